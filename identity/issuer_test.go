package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

// source is keys that a test changes, and a provider that may be away.
type source struct {
	keys   atomic.Pointer[identity.Keys]
	away   atomic.Bool
	missed atomic.Int64
}

func sourceOf(keys *identity.Keys) *source {
	s := &source{}
	s.keys.Store(keys)
	return s
}

func (s *source) Keys() *identity.Keys { return s.keys.Load() }

func (s *source) Missed() bool {
	s.missed.Add(1)
	return !s.away.Load()
}

func payloadOf(issuer, tenant string) string {
	return strings.NewReplacer("https://issuer.test", issuer, "t1", tenant).Replace(goodPayload)
}

// Each issuer has its own algorithms, keys and claims, and a token is judged by those of the issuer it names.
func TestSeveralIssuers(t *testing.T) {
	t.Parallel()
	rs, es, ed := pairs()["RS256"], pairs()["ES256"], pairs()["EdDSA"]
	const a, b = "https://a.test", "https://b.test"
	shared := keySet(ed.key("shared"))
	r := newResolver(t, func(c *identity.Config) {
		c.Issuers = []identity.Issuer{
			{Issuer: a, Algorithms: []string{"RS256", "EdDSA"}, Keys: []identity.KeySource{keySet(rs.key("k")), shared}, TenantClaim: "tenant_id", PlanClaim: "plan"},
			{Issuer: b, Algorithms: []string{"ES256", "EdDSA"}, Keys: []identity.KeySource{keySet(es.key("k")), shared}, TenantClaim: "org.id", Audience: "sentinel"},
		}
	})
	ofB := strings.Replace(payloadOf(b, "t1"), `"tenant_id":"t1"`, `"org":{"id":"t2"}`, 1)
	for _, tt := range []struct{ name, token, tenant, plan, reason string }{
		{"a's token", rs.sign("k", payloadOf(a, "t1")), "t1", "", ""},
		{"a's token with a plan", rs.sign("k", strings.Replace(payloadOf(a, "t1"), "{", `{"plan":"gold",`, 1)), "t1", "gold", ""},
		{"a's token with no plan said", rs.sign("k", strings.Replace(payloadOf(a, "t1"), "{", `{"plan":null,`, 1)), "t1", "", ""},
		{"a's token with a plan that is no text", rs.sign("k", strings.Replace(payloadOf(a, "t1"), "{", `{"plan":1,`, 1)), "", "", "the plan claim"},
		{"b's token, tenant in an object", es.sign("k", ofB), "t2", "", ""},
		{"signed by a, in the name of b", rs.sign("k", ofB), "", "", "another issuer"},
		{"signed by b, in the name of a", es.sign("k", payloadOf(a, "t1")), "", "", "another issuer"},
		{"in nobody's name", rs.sign("k", payloadOf("https://c.test", "t1")), "", "", "another issuer"},
		{"b's, without b's audience", es.sign("k", strings.Replace(ofB, `"aud":"sentinel"`, `"aud":"x"`, 1)), "", "", "another audience"},
		{"a key that both have, in a's name", ed.sign("shared", payloadOf(a, "t1")), "t1", "", ""},
		{"a key that both have, in b's name", ed.sign("shared", ofB), "t2", "", ""},
		{"an algorithm that nobody allows", pairs()["PS256"].sign("k", payloadOf(a, "t1")), "", "", "algorithm is not allowed"},
		{"a key that nobody has", rs.sign("other", payloadOf(a, "t1")), "", "", "no key has this key id"},
	} {
		id, err := r.Tenant(bearer("Bearer " + tt.token))
		if tt.reason == "" && (err != nil || id.Tenant != tt.tenant || id.Plan != tt.plan) {
			t.Errorf("%s: got %+v, %v; want tenant %s, plan %q", tt.name, id, err, tt.tenant, tt.plan)
		}
		if tt.reason != "" && (!errors.Is(err, identity.ErrInvalid) || !strings.Contains(err.Error(), tt.reason)) {
			t.Errorf("%s: got %+v, %v; want %s", tt.name, id, err, tt.reason)
		}
	}
}

// A token without kid is tried with the only key that an issuer has, in whatever source it lies, and with no one of several.
func TestTokenWithoutKeyID(t *testing.T) {
	t.Parallel()
	rs, es := pairs()["RS256"], pairs()["ES256"]
	one := newResolver(t, asymmetric([]string{"RS256", "ES256"}, keySet(), keySet(rs.key("a"))))
	two := newResolver(t, asymmetric([]string{"RS256", "ES256"}, keySet(es.key("b")), keySet(rs.key("a"))))
	if _, err := one.Tenant(bearer("Bearer " + rs.sign("", goodPayload))); err != nil {
		t.Error("the only key: ", err)
	}
	if _, err := two.Tenant(bearer("Bearer " + rs.sign("", goodPayload))); !errors.Is(err, identity.ErrInvalid) {
		t.Error("one of two keys: ", err)
	}
}

// While a source cannot tell which keys there are, a token of a key that it does not have is neither good nor bad; every
// other verdict is as always.
func TestSourceAway(t *testing.T) {
	t.Parallel()
	rs, es := pairs()["RS256"], pairs()["ES256"]
	s := sourceOf(keySet(rs.key("k")))
	r := newResolver(t, asymmetric([]string{"RS256", "ES256", "HS256"}, s, keySet(hmacKey("HS256", "h", secret256))))
	for _, away := range []bool{false, true} {
		s.away.Store(away)
		unknown := identity.ErrInvalid
		if away {
			unknown = identity.ErrBusy
		}
		for _, tt := range []struct {
			name, token string
			want        error
		}{
			{"a known key", rs.sign("k", goodPayload), nil},
			{"an unknown key id", rs.sign("new", goodPayload), unknown},
			{"an unknown key", es.sign("k", goodPayload), unknown},
			{"a wrong signature", rs.sign("k", goodPayload)[:400] + "AA", identity.ErrInvalid},
			{"a secret's token, expired", sign(`{"alg":"HS256","kid":"h"}`, strings.Replace(goodPayload, "4102444800", "1", 1), secret256), identity.ErrInvalid},
			{"an unknown secret", sign(`{"alg":"HS256","kid":"x"}`, goodPayload, secret256), identity.ErrInvalid},
			{"an algorithm that is not allowed", pairs()["EdDSA"].sign("k", goodPayload), identity.ErrInvalid},
		} {
			if _, err := r.Tenant(bearer("Bearer " + tt.token)); !errors.Is(err, tt.want) || errors.Is(err, identity.ErrMissing) {
				t.Errorf("away %v, %s: %v, want %v", away, tt.name, err, tt.want)
			}
		}
	}
	s.keys.Store(nil)
	if _, err := r.Tenant(bearer("Bearer " + rs.sign("k", goodPayload))); !errors.Is(err, identity.ErrBusy) {
		t.Errorf("keys that were never had: %v", err)
	}
	if s.missed.Load() == 0 {
		t.Error("the source was never told")
	}
}

// JWT-04: whatever key a token brings or points to, nothing is fetched and nothing verifies.
func TestJWT_04_TokensBringNoKeys(t *testing.T) {
	t.Parallel()
	s := sourceOf(keySet(pairs()["RS256"].key("k")))
	r := newResolver(t, asymmetric([]string{"RS256"}, s))
	for _, name := range []string{"jwk", "jku", "x5u", "x5c"} {
		header := fmt.Sprintf(`{"alg":"RS256","kid":"evil",%q:"https://evil.test"}`, name)
		if _, err := r.Tenant(bearer("Bearer " + sign(header, goodPayload, secret256))); !errors.Is(err, identity.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.missed.Load(); n != 0 {
		t.Errorf("the source was asked for news %d times", n)
	}
}

// A token that is kept is good for as long as verifying it would find it good, and no longer.
func TestJWT_28_CacheSaysWhatVerifyingSays(t *testing.T) {
	t.Parallel()
	p := pairs()["ES256"]
	clock := now
	s := sourceOf(keySet(p.key("k")))
	r := newResolver(t, asymmetric([]string{"ES256"}, s), func(c *identity.Config) {
		c.CacheTokens, c.Now = 100, func() time.Time { return clock }
		c.Issuers[0].Leeway = 10 * time.Second
	})
	token := p.sign("k", strings.Replace(goodPayload, `"exp":4102444800`, fmt.Sprintf(`"exp":%d,"nbf":%d`, now.Unix()+60, now.Unix()), 1))
	good := func(what string, want bool) {
		t.Helper()
		for range 3 {
			if id, err := r.Tenant(bearer("Bearer " + token)); (err == nil) != want || want && id.Tenant != "t1" {
				t.Errorf("%s: got %+v, %v; want good %v", what, id, err, want)
			}
		}
	}
	good("at first", true)
	clock = now.Add(70*time.Second - 1)
	good("at its last moment, leeway included", true)
	clock = now.Add(70 * time.Second)
	good("expired", false)
	clock = now.Add(-10*time.Second - 1)
	good("before it is valid, after the clock stepped back", false)
	clock = now
	good("once more", true)

	s.keys.Store(keySet(pairs()["EdDSA"].key("k")))
	good("its key removed", false)
	s.keys.Store(keySet(p.key("k"), pairs()["EdDSA"].key("new")))
	good("its key back beside a new one", true)
	s.keys.Store(nil)
	good("no keys at all", false)
}

// Other spellings of a token that is kept find nothing of it, and are refused as without a cache.
func TestCacheKnowsOneSpelling(t *testing.T) {
	t.Parallel()
	r := newResolver(t, func(c *identity.Config) { c.CacheTokens = 100 })
	token := sign(goodHeader, goodPayload, secret256)
	for range 2 {
		if _, err := r.Tenant(bearer("bearer  " + token)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range len(token) {
		for bit := range 8 {
			changed := []byte(token)
			changed[i] ^= 1 << bit
			if id, err := r.Tenant(bearer("Bearer " + string(changed))); !errors.Is(err, identity.ErrInvalid) {
				t.Fatalf("byte %d, bit %d: got %+v, %v", i, bit, id, err)
			}
		}
	}
	for _, other := range []string{token + "=", token + "==", token + ".", "." + token, token + " ", strings.ToUpper(token)} {
		if id, err := r.Tenant(bearer("Bearer " + other)); !errors.Is(err, identity.ErrInvalid) {
			t.Errorf("%q: got %+v, %v", other, id, err)
		}
	}
}
