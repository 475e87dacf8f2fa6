package identity_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

func TestTenantReadsAVerifiedToken(t *testing.T) {
	t.Parallel()
	token := sign(goodHeader, `{"iss":"https://issuer.test","aud":["other","sentinel"],"sub":"u1","tenant_id":"t1",
		"scope":"orders:read  orders:write","exp":1750000060.9,"nbf":1750000000,"iat":1749999990}`, secret256)
	c := bearer("Bearer " + token)
	c.ClientAddress = []string{"203.0.113.7"}
	got, err := newResolver(t).Tenant(c)
	if err != nil {
		t.Fatal(err)
	}
	want := identity.Identity{
		Tenant: "t1", Subject: "u1", Scopes: []string{"orders:read", "orders:write"}, Expires: time.Unix(1_750_000_060, 0),
		Address: "203.0.113.7",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSharedTokenVectors runs JWT-01, JWT-02, JWT-04, JWT-08 to JWT-16, JWT-22 and JWT-24. The policy is that of the file.
// Each vector is asked twice: the second answer may come from the cache.
func TestSharedTokenVectors(t *testing.T) {
	t.Parallel()
	var file struct {
		Keys    map[string]string `json:"hs_keys_ascii"`
		JWKS    json.RawMessage
		Vectors []struct{ ID, Token, Expect, Why string }
	}
	readCases(t, "jwt_vectors.json", &file)
	if len(file.Vectors) < 69 {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	allowed := []string{"HS256", "HS384", "HS512", "RS256"}
	published, skipped, err := identity.ParseJWKS(file.JWKS, allowed)
	if err != nil || published.Len() != 1 || len(skipped) != 2 {
		t.Fatalf("the JWK set: %v of it used, %q not, %v; want rs-1 alone", published.Names(), skipped, err)
	}
	var shared []identity.Key
	for kid, secret := range file.Keys {
		shared = append(shared, hmacKey(strings.ToUpper(strings.TrimSuffix(kid, "-1")), kid, secret))
	}
	r := newResolver(t, onlyKeys(shared...), func(c *identity.Config) {
		c.Issuers[0].Algorithms = allowed
		c.Issuers[0].Keys = append(c.Issuers[0].Keys, published)
		c.Issuers[0].Leeway = 60 * time.Second
		c.CacheTokens = 1000
	})
	cases := map[string]string{
		"V-alg": "JWT-01", "V-ALG": "JWT-01", "V-confusion": "JWT-02", "V-embedded": "JWT-04", "V-jku": "JWT-04",
		"V-case": "JWT-08", "V-exp-float": "JWT-09", "V-exp-exponent": "JWT-09", "V-exp-string": "JWT-10", "V-exp-null": "JWT-10",
		"V-exp-bool": "JWT-10", "V-exp-array": "JWT-10", "V-exp-0": "JWT-12", "V-exp-missing": "JWT-12",
		"V-expired-and-badsig": "JWT-15", "V-aud": "JWT-16", "V-hs512-with": "JWT-22", "V-rs256-use-enc": "JWT-22",
		"V-ps256": "JWT-22", "V-es256": "JWT-22", "V-tenant-badutf8": "JWT-24",
	}
	caseOf := func(id string) string {
		best := ""
		for prefix := range cases {
			if strings.HasPrefix(id, prefix) && len(prefix) > len(best) {
				best = prefix
			}
		}
		return strings.TrimPrefix(cases[best]+" ", " ")
	}
	baseline := file.Vectors[0].Token
	for _, v := range file.Vectors {
		t.Run(caseOf(v.ID)+v.ID, func(t *testing.T) {
			accept, reason := false, ""
			switch v.Expect {
			case "accept", "accept:t1":
				accept = true
			case "reject-if-changed":
				accept = v.Token == baseline
			case "reject:signature":
				reason = "signature"
			case "reject", "no-token", // an empty credential was sent, and is unusable
				"policy",                // ours: a token from the future is refused
				"reject-or-accept-fast": // ours: longer than MaxTokenBytes
			default:
				t.Fatalf("expectation %q is unknown", v.Expect)
			}
			for range 2 {
				id, err := r.Tenant(bearer("Bearer " + v.Token))
				switch {
				case accept && (err != nil || id.Tenant != "t1" || id.Subject != "u1"):
					t.Errorf("%s: got %+v, %v; want tenant t1, subject u1", v.Why, id, err)
				case !accept && (!errors.Is(err, identity.ErrInvalid) || !strings.Contains(err.Error(), reason)):
					t.Errorf("%s: got %+v, %v; want ErrInvalid for %q", v.Why, id, err, reason)
				}
			}
		})
	}
}

// TestTokenRefusals changes one thing about a good token.
func TestTokenRefusals(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	payload := func(member string) string { return strings.Replace(goodPayload, "{", "{"+member+",", 1) }
	replaced := func(old, with string) string {
		if !strings.Contains(goodPayload, old) {
			t.Fatalf("%s is not in the payload", old)
		}
		return strings.Replace(goodPayload, old, with, 1)
	}
	for _, tt := range []struct{ name, header, payload, reason string }{
		{"alg twice", `{"alg":"HS256","alg":"HS256","kid":"hs256-1"}`, goodPayload, "header"},
		{"alg twice by escape", `{"alg":"HS256","\u0061lg":"none","kid":"hs256-1"}`, goodPayload, "header"},
		{"alg no text", `{"alg":256,"kid":"hs256-1"}`, goodPayload, "algorithm"},
		{"kid no text", `{"alg":"HS256","kid":1}`, goodPayload, "key id"},
		{"kid null", `{"alg":"HS256","kid":null}`, goodPayload, "key id"},
		{"kid of 257 bytes", `{"alg":"HS256","kid":"` + strings.Repeat("k", 257) + `"}`, goodPayload, "key id"},
		{"kid of another algorithm's key", `{"alg":"HS256","kid":"hs512-1"}`, goodPayload, "no key"},
		{"no kid, several keys", `{"alg":"HS256"}`, goodPayload, "no key"},
		{"crit", `{"alg":"HS256","kid":"hs256-1","crit":["exp"]}`, goodPayload, "header carries"},
		{"b64", `{"alg":"HS256","kid":"hs256-1","b64":false}`, goodPayload, "header carries"},
		{"x5c", `{"alg":"HS256","kid":"hs256-1","x5c":[]}`, goodPayload, "header carries"},
		{"x5u", `{"alg":"HS256","kid":"hs256-1","x5u":"https://evil.test"}`, goodPayload, "header carries"},
		{"33 header names", `{"alg":"HS256","kid":"hs256-1"` + manyMembers(31) + `}`, goodPayload, "header is not"},
		{"header an array", `["alg","HS256"]`, goodPayload, "header is not"},
		{"sub twice", goodHeader, payload(`"sub":"u2"`), "payload"},
		{"tenant twice by escape", goodHeader, payload(`"tenant\u005fid":"t2"`), "payload"},
		{"257 claims", goodHeader, payload(manyMembers(252)[1:]), "payload"},
		{"sub missing", goodHeader, replaced(`"sub":"u1",`, ``), "sub"},
		{"sub empty", goodHeader, replaced(`"u1"`, `""`), "sub"},
		{"sub null", goodHeader, replaced(`"u1"`, `null`), "sub"},
		{"sub a number", goodHeader, replaced(`"u1"`, `1`), "sub"},
		{"sub of 257 bytes", goodHeader, replaced(`u1`, strings.Repeat("u", 257)), "sub"},
		{"tenant missing", goodHeader, replaced(`"tenant_id":"t1",`, ``), "tenant"},
		{"tenant empty", goodHeader, replaced(`"t1"`, `""`), "tenant"},
		{"tenant a list", goodHeader, replaced(`"t1"`, `["t1"]`), "tenant"},
		{"tenant with NUL", goodHeader, replaced(`t1`, `t1\u0000`), "tenant"},
		{"tenant with line feed", goodHeader, replaced(`t1`, `t1\n`), "tenant"},
		{"tenant with C1 control", goodHeader, replaced(`t1`, `t1\u0085`), "tenant"},
		{"tenant with a space that headers lose", goodHeader, replaced(`t1`, `t1 `), "tenant"},
		{"tenant with half a surrogate pair", goodHeader, replaced(`t1`, `t\ud800`), "tenant"},
		{"tenant with U+FFFD", goodHeader, replaced(`t1`, "t\uFFFD"), "tenant"},
		{"tenant of 257 bytes", goodHeader, replaced(`t1`, strings.Repeat("t", 257)), "tenant"},
		{"scope a number", goodHeader, payload(`"scope":1`), "scope"},
		{"scope a list with a number", goodHeader, payload(`"scope":["a",1]`), "scope"},
		{"exp after the year 9999", goodHeader, replaced(`4102444800`, `253402300800`), "exp"},
		{"exp huge", goodHeader, replaced(`4102444800`, `1e400`), "exp"},
		{"exp less than a second", goodHeader, replaced(`4102444800`, `0.9`), "exp"},
		{"nbf null", goodHeader, payload(`"nbf":null`), "nbf"},
		{"iat text", goodHeader, payload(`"iat":"1"`), "iat"},
		{"iat in the future", goodHeader, payload(`"iat":1750000001`), "future"},
		{"iss missing", goodHeader, replaced(`"iss":"https://issuer.test",`, ``), "issuer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := r.Tenant(bearer("Bearer " + sign(tt.header, tt.payload, secret256)))
			if !errors.Is(err, identity.ErrInvalid) || !strings.Contains(fmt.Sprint(err), tt.reason) {
				t.Errorf("got %v, want ErrInvalid with %q", err, tt.reason)
			}
		})
	}
}

// manyMembers returns n further members of an object, each with a comma before it.
func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"m%d":%d`, i, i)
	}
	return b.String()
}

func TestTokenAcceptances(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, header, payload string
		change                func(*identity.Issuer)
		tenant                string
		scopes                []string
	}{
		{name: "thumbprint of a certificate", header: `{"alg":"HS256","kid":"hs256-1","x5t":"abc","typ":"at+jwt"}`, tenant: "t1"},
		{name: "white space in the JSON", header: " {\t\"alg\" : \"HS256\" ,\r\n\"kid\":\"hs256-1\" } ", tenant: "t1"},
		{name: "256 bytes of tenant", payload: strings.Replace(goodPayload, "t1", strings.Repeat("t", 256), 1), tenant: strings.Repeat("t", 256)},
		{name: "escapes mean what they spell", payload: strings.Replace(goodPayload, "t1", `\u0074\u00e9\ud83d\ude00\"`, 1), tenant: "té😀\""},
		{name: "tenant is sub unless configured", change: func(c *identity.Issuer) { c.TenantClaim = "" }, tenant: "u1"},
		{
			name: "nested tenant", payload: strings.Replace(goodPayload, `"t1"`, `"t1","org":{"id.x":"no","unit":{"id":"t9"}}`, 1),
			change: func(c *identity.Issuer) { c.TenantClaim = "org.unit.id" }, tenant: "t9",
		},
		{
			name: "claim named by a URL", payload: strings.Replace(goodPayload, `"t1"`, `"t1","https://acme.test/tenant":"t8"`, 1),
			change: func(c *identity.Issuer) { c.TenantClaim = "https://acme.test/tenant" }, tenant: "t8",
		},
		{
			name: "scopes as a list", payload: strings.Replace(goodPayload, `"t1"`, `"t1","permissions":["a:b","c d"]`, 1),
			change: func(c *identity.Issuer) { c.ScopeClaim = "permissions" }, tenant: "t1", scopes: []string{"a:b", "c d"},
		},
		{name: "scope null is none", payload: strings.Replace(goodPayload, `"t1"`, `"t1","scope":null`, 1), tenant: "t1"},
		{name: "another audience, none configured", payload: strings.Replace(goodPayload, `"sentinel"`, `7`, 1), change: func(c *identity.Issuer) { c.Audience = "" }, tenant: "t1"},
		{name: "another issuer, none configured", payload: strings.Replace(goodPayload, `"https://issuer.test"`, `7`, 1), change: func(c *identity.Issuer) { c.Issuer = "" }, tenant: "t1"},
		{
			name: "no kid and the only key", header: `{"alg":"HS256"}`,
			change: func(c *identity.Issuer) {
				c.Keys = []identity.KeySource{keySet(hmacKey("HS256", "hs256-1", secret256))}
			}, tenant: "t1",
		},
		{
			name: "any kid and a key without", header: `{"alg":"HS256","kid":"of-the-issuer"}`,
			change: func(c *identity.Issuer) {
				c.Keys = []identity.KeySource{keySet(hmacKey("HS256", "", secret256), hmacKey("HS384", "hs384-1", secret384))}
			}, tenant: "t1",
		},
		{
			name: "rotation: several keys without kid", header: `{"alg":"HS256"}`,
			change: func(c *identity.Issuer) {
				c.Keys = []identity.KeySource{keySet(hmacKey("HS256", "", strings.Repeat("n", 32)), hmacKey("HS256", "", secret256))}
			}, tenant: "t1",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newResolver(t, func(c *identity.Config) {
				if tt.change != nil {
					tt.change(&c.Issuers[0])
				}
			})
			header, payload := tt.header, tt.payload
			if header == "" {
				header = goodHeader
			}
			if payload == "" {
				payload = goodPayload
			}
			id, err := r.Tenant(bearer("Bearer " + sign(header, payload, secret256)))
			if err != nil || id.Tenant != tt.tenant || !slices.Equal(id.Scopes, tt.scopes) {
				t.Errorf("got %+v, %v; want tenant %q, scopes %q", id, err, tt.tenant, tt.scopes)
			}
		})
	}
}

// TestJWT_26_TokenTimes compares with the plain inequalities, near the edges: valid while nbf ≤ now < exp, give or take leeway.
func TestJWT_26_TokenTimes(t *testing.T) {
	t.Parallel()
	type edge struct {
		claim  string
		offset int64
		leeway int64
		ok     bool
	}
	check := func(tb rapid.TB, e edge) {
		tb.Helper()
		cfg := testConfig()
		cfg.Issuers[0].Leeway = time.Duration(e.leeway) * time.Second
		r, err := identity.New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		payload := fmt.Sprintf(`{"iss":"https://issuer.test","aud":"sentinel","sub":"u1","tenant_id":"t1","%s":%d`, e.claim, now.Unix()+e.offset)
		if e.claim != "exp" {
			payload += `,"exp":4102444800`
		}
		_, err = r.Tenant(bearer("Bearer " + sign(goodHeader, payload+"}", secret256)))
		if (err == nil) != e.ok {
			tb.Errorf("%s = now %+d s, leeway %d s: got %v, want ok %v", e.claim, e.offset, e.leeway, err, e.ok)
		}
	}
	for _, e := range []edge{
		{"exp", -1, 0, false},
		{"exp", 0, 0, false},
		{"exp", 1, 0, true},
		{"nbf", 0, 0, true},
		{"nbf", 1, 0, false},
		{"exp", -59, 60, true},
		{"exp", -60, 60, false},
		{"nbf", 60, 60, true},
		{"nbf", 61, 60, false},
		{"iat", 60, 60, true},
		{"iat", 61, 60, false},
	} {
		check(t, e)
	}
	rapid.Check(t, func(rt *rapid.T) {
		e := edge{
			claim:  rapid.SampledFrom([]string{"exp", "nbf", "iat"}).Draw(rt, "claim"),
			offset: rapid.Int64Range(-400, 400).Draw(rt, "offset"),
			leeway: rapid.Int64Range(0, 300).Draw(rt, "leeway"),
		}
		if e.claim == "exp" {
			e.ok = e.offset+e.leeway > 0
		} else {
			e.ok = e.offset-e.leeway <= 0
		}
		check(rt, e)
	})
}

// TestAnyChangeToATokenIsRefused flips one bit anywhere: one token has one spelling.
func TestAnyChangeToATokenIsRefused(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	token := sign(goodHeader, goodPayload, secret256)
	for i := range len(token) {
		for bit := range 8 {
			changed := []byte(token)
			changed[i] ^= 1 << bit
			if _, err := r.Tenant(bearer("Bearer " + string(changed))); !errors.Is(err, identity.ErrInvalid) {
				t.Fatalf("byte %d, bit %d: got %v, want ErrInvalid", i, bit, err)
			}
		}
	}
}

func TestJWT_14_LongTokensCostNothing(t *testing.T) {
	r := newResolver(t)
	for name, token := range map[string]string{
		"dots":      strings.Repeat(".", 1<<20),
		"letters":   strings.Repeat("a", 1<<20),
		"60 KiB":    strings.Repeat(".", 60<<10),
		"one above": strings.Repeat("a", identity.MaxTokenBytes+1),
	} {
		c := bearer("Bearer " + token)
		if _, err := r.Tenant(c); !errors.Is(err, identity.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
		if n := testing.AllocsPerRun(10, func() { _, _ = r.Tenant(c) }); n > 2 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestSEC_04_RefusalsLookAlike: what the caller can branch on is the same for each kind of bad token, and an unknown key
// id costs as much as a wrong signature. The reason is in the error's text, for the log.
func TestSEC_04_RefusalsLookAlike(t *testing.T) {
	r := newResolver(t)
	padding := strings.Replace(goodPayload, "{", `{"x":"`+strings.Repeat("x", 5500)+`",`, 1)
	tokens := map[string]string{
		"bad MAC":     sign(goodHeader, padding, strings.Repeat("w", 32)),
		"unknown kid": sign(`{"alg":"HS256","kid":"hs256-2"}`, padding, secret256),
		"expired":     sign(goodHeader, strings.Replace(padding, "4102444800", "1700000000", 1), secret256),
	}
	reasons := map[string]bool{}
	for name, token := range tokens {
		id, err := r.Tenant(bearer("Bearer " + token))
		if !errors.Is(err, identity.ErrInvalid) || errors.Is(err, identity.ErrMissing) || errors.Is(err, identity.ErrBusy) {
			t.Errorf("%s: got %v, want ErrInvalid alone", name, err)
		}
		if diff := cmp.Diff(identity.Identity{}, id); diff != "" {
			t.Errorf("%s: claims of a refused token got out: %s", name, diff)
		}
		reasons[err.Error()] = true
	}
	if len(reasons) != len(tokens) {
		t.Errorf("the log cannot tell the reasons apart: %v", reasons)
	}

	const rounds = 301
	took := map[string][]time.Duration{}
	for range rounds {
		for _, name := range []string{"bad MAC", "unknown kid"} {
			c := bearer("Bearer " + tokens[name])
			start := time.Now()
			_, _ = r.Tenant(c)
			took[name] = append(took[name], time.Since(start))
		}
	}
	median := func(name string) time.Duration {
		slices.Sort(took[name])
		return took[name][rounds/2]
	}
	mac, kid := median("bad MAC"), median("unknown kid")
	if kid < mac/2 || kid > mac*2 {
		t.Errorf("median %v with an unknown key id, %v with a wrong signature", kid, mac)
	}
}

func TestErrorsNeverShowTheToken(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	const marker = "c0ffeec0ffee"
	for _, value := range []string{
		"Bearer " + marker, "Basic " + marker, marker, "Bearer " + marker + "," + marker,
		"Bearer " + sign(`{"alg":"`+marker+`"}`, goodPayload, secret256),
		"Bearer " + sign(`{"alg":"HS256","kid":"`+marker+`"}`, goodPayload, secret256),
		"Bearer " + sign(goodHeader, `{"sub":"`+marker+`"}`, secret256),
	} {
		if _, err := r.Tenant(bearer(value)); err == nil || strings.Contains(err.Error(), marker) {
			t.Errorf("%s: got %v", value, err)
		}
	}
}
