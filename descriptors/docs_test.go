package descriptors_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// examples returns the paths of the example policies.
func examples(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("../examples/policies/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no example policies: %v", err)
	}
	return paths
}

// The example policies are one good set, and each is good alone.
func TestExamplesAreGood(t *testing.T) {
	t.Parallel()
	var files []descriptors.File
	for _, path := range examples(t) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := file(filepath.Base(path), string(data))
		checkSet(t, parseFiles(t, f))
		files = append(files, f)
	}
	set := parseFiles(t, files...)
	checkSet(t, set)
	for _, id := range []string{"orders.create", "auth.login", "search.query", "reports.usage", descriptors.DefaultEndpoint} {
		if p, _ := set.Endpoint(id); p == nil || p.Endpoint != id {
			t.Errorf("the examples have no endpoint %s", id)
		}
	}
	if orders, _ := set.Endpoint("orders.create"); orders.For("acme") == orders {
		t.Error("the examples have no replacement for acme")
	}
}

var block = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// Every YAML block of the manual is a good policy file.
func TestTheManualsPoliciesAreGood(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(data), -1)
	if want := strings.Count(string(data), "```yaml"); len(blocks) < 5 || len(blocks) != want {
		t.Fatalf("%d YAML blocks read, %d begin", len(blocks), want)
	}
	for _, b := range blocks {
		checkSet(t, parseFiles(t, file("policies.md", b[1])))
	}
}

// Every key of the language stands in the manual's tables.
func TestTheManualNamesEveryField(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{
		"domain", "endpoints", "policy_version", "identity", "fail_mode", "emergency", "mode", "count", "required_scopes", "limits", "tenants",
		"capacity", "refill", "per_key", "name", "scope", "algorithm", "limit", "window", "max_cost", "charge", "refunds",
	} {
		if !regexp.MustCompile("(?m)^\\| `" + field + "` \\|").Match(data) {
			t.Errorf("no table row for %s", field)
		}
	}
}

// Every YAML block of the drop-in's manual is a good file, and every key stands in its tables.
func TestTheDropInManual(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/drop-in.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(data), -1)
	if len(blocks) < 2 {
		t.Fatalf("%d YAML blocks", len(blocks))
	}
	for _, b := range blocks {
		set := parseFiles(t, file("drop-in.md", b[1]))
		if len(set.DropInRules()) == 0 || len(set.Warnings()) > 0 {
			t.Errorf("%d rules, warnings %v:\n%s", len(set.DropInRules()), set.Warnings(), b[1])
		}
	}
	for _, key := range []string{
		"domain", "descriptors", "key", "value", "rate_limit", "unit", "requests_per_unit", "unlimited", "name", "replaces", "shadow_mode",
		"quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
		"algorithm", "burst", "unit_multiplier", "fail_mode", "emergency", "all_or_nothing",
	} {
		if !regexp.MustCompile("(?m)^\\| `" + key + "` \\| ").Match(data) {
			t.Errorf("no table row for %s", key)
		}
	}
}
