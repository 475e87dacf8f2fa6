package descriptors_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// shadow_mode inside rate_limit does nothing in the language of envoyproxy/ratelimit: whoever wrote it believes in a dry run,
// and traffic is denied. There it is read as that service reads it, and warned about; the native language refuses it.
func TestCFG_16_MisplacedShadowMode(t *testing.T) {
	t.Parallel()
	const misplaced = "../../shared/cases/oracle/shadow-inside-rate_limit.yaml"
	text, err := os.ReadFile(filepath.FromSlash(misplaced))
	if err != nil {
		testserver.SkipUnlessCI(t, "no shared cases here: %v", err)
	}
	set := parseFiles(t, descriptors.File{Name: "shadow.yaml", Data: text})
	rules := set.DropInRules()
	if len(rules) != 1 || rules[0].Shadow {
		t.Errorf("rules %+v, want one that is enforced", rules)
	}
	var warnings []string
	for _, w := range set.Warnings() {
		warnings = append(warnings, w.Error())
	}
	if all := strings.Join(warnings, "\n"); !strings.Contains(all, "shadow.yaml:7: ") || !strings.Contains(all, "shadow_mode") || !strings.Contains(all, "into a descriptor, beside key") {
		t.Errorf("warnings %q, want one that says where shadow_mode belongs", warnings)
	}
	for name, text := range map[string]string{
		"in a limit":  tenantLimits("{" + bucketLimit + ", shadow_mode: true}"),
		"mode there":  tenantLimits("{" + bucketLimit + ", mode: shadow}"),
		"in a policy": endpoint("policy_version: 1, fail_mode: fail_closed, shadow_mode: true, limits: [{" + bucketLimit + "}]"),
	} {
		if got := refusals(t, file("shop.yaml", text)); len(got) != 1 || !strings.Contains(got[0], "unknown key") {
			t.Errorf("%s: %q, want an unknown key", name, got)
		}
	}
}
