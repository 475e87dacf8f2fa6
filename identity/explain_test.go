package identity_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

// stepNames returns the names of steps, the refusing one with a minus.
func stepNames(steps []identity.Step) (names []string) {
	for _, s := range steps {
		if s.OK {
			names = append(names, s.Name)
		} else {
			names = append(names, "-"+s.Name)
		}
	}
	return names
}

// Each check that passed is told, then the one that refused; the verdict is Tenant's, and nothing secret is shown.
func TestExplainTenant(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	signature := func(token string) string { return token[strings.LastIndex(token, ".")+1:] }
	good := sign(goodHeader, strings.Replace(goodPayload, "{", `{"scope":"read write",`, 1), secret256)
	for _, tt := range []struct {
		name, value string
		steps       []string
	}{
		{"a good token", "Bearer " + good, []string{"authorization", "header", "signature", "times", "audience", "subject", "tenant", "scopes", "plan", "-address"}},
		{"no bearer", "Basic abc", []string{"-authorization"}},
		{"a token that is none", "Bearer abc", []string{"authorization", "-header"}},
		{"an algorithm that is not allowed", "Bearer " + sign(`{"alg":"RS256"}`, goodPayload, secret256), []string{"authorization", "-header"}},
		{"an unknown key", "Bearer " + sign(`{"alg":"HS256","kid":"x"}`, goodPayload, secret256), []string{"authorization", "header", "-signature"}},
		{"a wrong signature", "Bearer " + sign(goodHeader, goodPayload, strings.Repeat("w", 32)), []string{"authorization", "header", "-signature"}},
		{"another issuer", "Bearer " + sign(goodHeader, strings.Replace(goodPayload, "issuer", "other", 1), secret256), []string{"authorization", "header", "-claims"}},
		{"expired", "Bearer " + sign(goodHeader, strings.Replace(goodPayload, "4102444800", "1", 1), secret256), []string{"authorization", "header", "signature", "-times"}},
		{"another audience", "Bearer " + sign(goodHeader, strings.Replace(goodPayload, `"sentinel"`, `"x"`, 1), secret256), []string{"authorization", "header", "signature", "times", "-audience"}},
		{"no tenant", "Bearer " + sign(goodHeader, strings.Replace(goodPayload, "tenant_id", "tenant", 1), secret256), []string{"authorization", "header", "signature", "times", "audience", "subject", "-tenant"}},
	} {
		steps, id, err := r.ExplainTenant(bearer(tt.value))
		if diff := cmp.Diff(tt.steps, stepNames(steps)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
		wantID, wantErr := r.Tenant(bearer(tt.value))
		if diff := cmp.Diff(wantID, id); diff != "" || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("%s: %v, %s; want as Tenant, %v", tt.name, err, diff, wantErr)
		}
		shown := fmt.Sprint(steps)
		for what, secret := range map[string]string{"the token": strings.TrimPrefix(tt.value, "Bearer "), "its signature": signature(tt.value), "a secret": secret256} {
			if strings.Contains(shown, secret) {
				t.Errorf("%s: shows %s:\n%s", tt.name, what, shown)
			}
		}
	}
	steps, _, _ := r.ExplainTenant(bearer("Bearer " + good))
	shown := fmt.Sprint(steps)
	for _, want := range []string{`alg HS256, kid "hs256-1"`, "of https://issuer.test", "2100-01-01T00:00:00Z", `"t1", from the claim tenant_id`, `["read" "write"]`} {
		if !strings.Contains(shown, want) {
			t.Errorf("does not show %s:\n%s", want, shown)
		}
	}
}

func TestExplainMissing(t *testing.T) {
	t.Parallel()
	steps, _, err := newResolver(t).ExplainTenant(identity.Credentials{})
	if len(steps) != 1 || steps[0].OK || steps[0].Detail != "no credential" || err == nil {
		t.Errorf("%v, %v", steps, err)
	}
}

// Cookie and address are explained with what decided, never with a cookie's value.
func TestExplainAnonymous(t *testing.T) {
	t.Parallel()
	good := makeCookie(clientID, inSeconds(60), cookieKey)
	cookie := func(value string) []string { return []string{"sentinel_anon_id=" + value} }
	for _, tt := range []struct {
		name  string
		r     *identity.Resolver
		c     identity.Credentials
		steps []string
		shows []string
	}{
		{"nothing", newResolver(t), identity.Credentials{}, []string{"cookie", "-address"}, []string{"none named sentinel_anon_id", "all such callers share"}},
		{
			"a cookie and an address", newResolver(t),
			identity.Credentials{Cookies: cookie(good), ClientAddress: []string{"203.0.113.7"}},
			[]string{"cookie", "address"},
			[]string{"sha256:", "expires 2025-06-15T15:07:40Z", "the bucket of 203.0.113.7"},
		},
		{"expired", newResolver(t), identity.Credentials{Cookies: cookie(makeCookie(clientID, "1", cookieKey))}, []string{"-cookie", "-address"}, []string{"has expired"}},
		{"forged", newResolver(t), identity.Credentials{Cookies: cookie(makeCookie(clientID, inSeconds(60), secret256))}, []string{"-cookie", "-address"}, []string{"signed by none"}},
		{"malformed", newResolver(t), identity.Credentials{Cookies: cookie("x")}, []string{"-cookie", "-address"}, []string{"malformed"}},
		{
			"a trusted proxy", newResolver(t, trusting(1)),
			identity.Credentials{ForwardedFor: []string{"6.6.6.6, 203.0.113.7"}, Peer: netip.MustParseAddr("10.0.0.2")},
			[]string{"cookie", "address"},
			[]string{"10.0.0.2 is a trusted proxy", "place 1 from the right", "203.0.113.7"},
		},
		{
			"a trusted proxy that names nobody", newResolver(t, trusting(2)),
			identity.Credentials{ForwardedFor: []string{"203.0.113.7"}, Peer: netip.MustParseAddr("10.0.0.2")},
			[]string{"cookie", "address"},
			[]string{"no address at place 2", "the bucket of 10.0.0.2"},
		},
		{
			"a stranger", newResolver(t, trusting(1)),
			identity.Credentials{ForwardedFor: []string{"203.0.113.7"}, Peer: netip.MustParseAddr("198.51.100.9")},
			[]string{"cookie", "address"},
			[]string{"no trusted proxy", "the bucket of 198.51.100.9"},
		},
	} {
		steps, id := tt.r.ExplainAnonymous(tt.c)
		if diff := cmp.Diff(tt.steps, stepNames(steps)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
		want := tt.r.Anonymous(tt.c)
		if id.Cookie != want.Cookie || id.Address != want.Address {
			t.Errorf("%s: %+v, want as Anonymous, %+v", tt.name, id, want)
		}
		shown := fmt.Sprint(steps)
		for _, text := range tt.shows {
			if !strings.Contains(shown, text) {
				t.Errorf("%s: does not show %q:\n%s", tt.name, text, shown)
			}
		}
		if strings.Contains(shown, clientID) || strings.Contains(shown, good) {
			t.Errorf("%s: shows the cookie:\n%s", tt.name, shown)
		}
	}
}
