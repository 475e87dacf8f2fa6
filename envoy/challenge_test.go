package envoy

import (
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// What a refused credential is told, by RFC 6750 section 3 and RFC 9728 section 5.1: an error only when one was presented,
// the scope only when it is what lacks, and never that a credential is bad when it could not be checked.
func TestChallenges(t *testing.T) {
	t.Parallel()
	const metadata = "https://api.test/.well-known/oauth-protected-resource"
	names := Names{}.withDefaults()
	s := &authorizationService{names: &names, challenges: newChallenges(`shop "a"`, metadata)}
	for _, tt := range []struct {
		name   string
		result rls.CheckResult
		status int
		want   string
	}{
		{
			"nothing presented",
			rls.CheckResult{Result: rls.Result{Reason: rls.Unauthenticated}},
			401,
			`Bearer realm="shop \"a\"", resource_metadata="` + metadata + `"`,
		},
		{
			"a bad token",
			rls.CheckResult{Result: rls.Result{Reason: rls.Unauthenticated}, InvalidToken: true},
			401,
			`Bearer realm="shop \"a\"", error="invalid_token", resource_metadata="` + metadata + `"`,
		},
		{
			"a token without the scope",
			rls.CheckResult{
				Result: rls.Result{Reason: rls.InsufficientScope}, RequiredScopes: []string{"orders:read", "orders:write"},
			},
			403,
			`Bearer realm="shop \"a\"", error="insufficient_scope", scope="orders:read orders:write", resource_metadata="` + metadata + `"`,
		},
		{"a token that cannot be checked now", rls.CheckResult{Result: rls.Result{Reason: rls.IdentityUnavailable}, InvalidToken: true}, 503, ""},
		{"too many", rls.CheckResult{Result: rls.Result{Reason: rls.RateLimited}}, 429, ""},
		{"no such endpoint", rls.CheckResult{Result: rls.Result{Reason: rls.UnknownEndpoint}}, 404, ""},
	} {
		denied := s.response(&tt.result, false).GetDeniedResponse()
		if got := valueOf(denied.GetHeaders(), headerWWWAuthenticate); got != tt.want || int(denied.GetStatus().GetCode()) != tt.status {
			t.Errorf("%s: %d with %s, want %d with %s", tt.name, denied.GetStatus().GetCode(), got, tt.status, tt.want)
		}
		scope := `"scope":"orders:read orders:write"`
		if has := strings.Contains(denied.GetBody(), scope); has != (tt.status == 403) {
			t.Errorf("%s: body %s", tt.name, denied.GetBody())
		}
	}
}

// The plan travels with tenant and subject, as text, and not at all where there is none.
func TestPlanInMetadata(t *testing.T) {
	t.Parallel()
	s := newAuthorizationService()
	for _, plan := range []string{"gold", ""} {
		r := rls.CheckResult{Result: rls.Result{Allowed: true, Reason: rls.Allowed}, Identity: identity.Identity{Tenant: "t1", Subject: "u1", Plan: plan}}
		got, present := s.response(&r, false).GetDynamicMetadata().GetFields()["plan"]
		if got.GetStringValue() != plan || present != (plan != "") {
			t.Errorf("plan %q: metadata %v", plan, got)
		}
	}
}
