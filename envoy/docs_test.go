package envoy

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// The manual's table of answers says what the code does.
func TestManualHasEveryAnswer(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	row := func(columns ...string) bool {
		for line := range strings.Lines(string(manual)) {
			found := strings.HasPrefix(line, "|")
			for _, c := range columns {
				found = found && strings.Contains(line, c)
			}
			if found {
				return true
			}
		}
		return false
	}
	both := []rls.Reason{rls.RateLimited, rls.EmergencyLocalLimit, rls.CircuitOpen, rls.FailClosed, rls.UnknownEndpoint}
	for _, reason := range append(slices.Clip(both), rls.UnknownDomain, rls.InvalidRequest) {
		if !row(quotedCode(reason), "OVER_LIMIT") {
			t.Errorf("no row of RateLimitService for %s", reason)
		}
	}
	for _, reason := range append(slices.Clip(both), rls.Unauthenticated, rls.InsufficientScope, rls.IdentityUnavailable) {
		r := refusals[reason]
		want := []string{quotedCode(reason), fmt.Sprintf("| %d |", r.http), quotedCode(r.code), fmt.Sprintf("(%d)", r.grpc)}
		if !row(want...) {
			t.Errorf("no row of ext_authz with %q", want)
		}
	}
}

func quotedCode[T ~string](s T) string { return "`" + string(s) + "`" }
