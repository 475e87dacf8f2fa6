package identity_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	hmacKey := func(alg string, bytes int) func(*identity.Config) {
		return func(c *identity.Config) {
			c.Tokens.Keys = []identity.HMACKey{{Algorithm: alg, Secret: identity.Secret(strings.Repeat("s", bytes))}}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*identity.Config)
		want   string
	}{
		{"JWT-23 no secret", hmacKey("HS256", 0), "0 bytes of secret; HS256 needs 32"},
		{"JWT-23 HS256 with 31 bytes", hmacKey("HS256", 31), "HS256 needs 32"},
		{"JWT-23 HS384 with 47 bytes", hmacKey("HS384", 47), "HS384 needs 48"},
		{"JWT-23 HS512 with 63 bytes", hmacKey("HS512", 63), "HS512 needs 64"},
		{"algorithm none", hmacKey("none", 64), `"none" is none of`},
		{"algorithm in lower case", hmacKey("hs256", 64), `"hs256" is none of`},
		{"an algorithm that is not implemented", func(c *identity.Config) { c.Tokens.Algorithms = append(c.Tokens.Algorithms, "RS256") }, `"RS256" is none of`},
		{"a key whose algorithm is not allowed", func(c *identity.Config) { c.Tokens.Algorithms = []string{"HS256", "HS384"} }, `"HS512" is not among`},
		{"keys and no algorithms", func(c *identity.Config) { c.Tokens.Algorithms = nil }, "not among those allowed"},
		{"a public key as secret", func(c *identity.Config) {
			c.Tokens.Keys[0].Secret = identity.Secret("-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOC\n")
		}, "PEM"},
		{"a key id twice", func(c *identity.Config) {
			c.Tokens.Keys = append(c.Tokens.Keys, identity.HMACKey{Algorithm: "HS256", KeyID: "hs256-1", Secret: identity.Secret(strings.Repeat("z", 32))})
		}, "another HS256 key"},
		{"a long key id", func(c *identity.Config) { c.Tokens.Keys[0].KeyID = strings.Repeat("k", 257) }, "256 bytes"},
		{"17 keys", func(c *identity.Config) {
			for i := range 14 {
				k := identity.HMACKey{Algorithm: "HS256", Secret: identity.Secret(fmt.Sprintf("%032d", i))}
				c.Tokens.Keys = append(c.Tokens.Keys, k)
			}
		}, "17 token keys"},
		{"leeway below 0", func(c *identity.Config) { c.Tokens.Leeway = -1 }, "leeway"},
		{"leeway of an hour", func(c *identity.Config) { c.Tokens.Leeway = time.Hour }, "leeway"},
		{"a claim path with a hole", func(c *identity.Config) { c.Tokens.TenantClaim = "a..b" }, `"a..b"`},
		{"a claim path of 9", func(c *identity.Config) { c.Tokens.ScopeClaim = "a.b.c.d.e.f.g.h.i" }, "up to 8"},
		{"CK-07 the cookie secret is a token secret", func(c *identity.Config) { c.Cookie.Secrets[1] = identity.Secret(secret256) }, "cookie secret 2 has the same secret as token key 1"},
		{"one secret for two keys", func(c *identity.Config) { c.Tokens.Keys[0].Secret = c.Tokens.Keys[1].Secret }, "token key 2 has the same secret as token key 1"},
		{"a short cookie secret", func(c *identity.Config) { c.Cookie.Secrets[0] = identity.Secret("short") }, "cookie secret 1 has 5 bytes"},
		{"9 cookie secrets", func(c *identity.Config) {
			for i := range 7 {
				c.Cookie.Secrets = append(c.Cookie.Secrets, identity.Secret(fmt.Sprintf("%032d", i)))
			}
		}, "9 cookie secrets"},
		{"a cookie name with =", func(c *identity.Config) { c.Cookie.Name = "a=b" }, "cookie name"},
		{"a cookie name with a line break", func(c *identity.Config) { c.Cookie.Name = "a\nb" }, "cookie name"},
		{"a __Host- cookie without Secure", func(c *identity.Config) { c.Cookie.Name, c.Cookie.Insecure = "__Host-id", true }, "without Secure"},
		{"a TTL of a second", func(c *identity.Config) { c.Cookie.TTL = time.Second }, "TTL"},
		{"a TTL of years", func(c *identity.Config) { c.Cookie.TTL = 20000 * time.Hour }, "TTL"},
		{"a TTL with a fraction", func(c *identity.Config) { c.Cookie.TTL = time.Hour + time.Millisecond }, "TTL"},
		{"an unknown source", func(c *identity.Config) { c.Address.From = 9 }, "source 9"},
		{"X-Forwarded-For that anyone may send", func(c *identity.Config) { c.Address.From, c.Address.Hops = identity.FromForwardedFor, 1 }, "without trusted proxies"},
		{"an invalid trusted network", func(c *identity.Config) { c.Address.TrustedProxies = []netip.Prefix{{}} }, "not a network"},
		{"17 hops", func(c *identity.Config) { c.Address.Hops = 17 }, "17 hops"},
		{"hops below 0", func(c *identity.Config) { c.Address.Hops = -1 }, "-1 hops"},
		{"an IPv6 prefix of 129", func(c *identity.Config) { c.Address.IPv6Prefix = 129 }, "IPv6 prefix 129"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig()
			tt.change(&cfg)
			r, err := identity.New(cfg)
			if r != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, %v; want an error with %q", r, err, tt.want)
			}
			for _, secret := range []string{secret256, secret384, secret512, cookieKey, oldCookie} {
				if strings.Contains(err.Error(), secret) {
					t.Error("the error shows a secret: ", err)
				}
			}
		})
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := identity.New(identity.Config{
		Tokens:  identity.TokenConfig{Leeway: -1, TenantClaim: "."},
		Cookie:  identity.CookieConfig{Name: "=", TTL: 1},
		Address: identity.AddressConfig{From: 9, Hops: -1, IPv6Prefix: -1},
	})
	if n := strings.Count(fmt.Sprint(err), "\n") + 1; n != 7 {
		t.Errorf("%d problems, want 7:\n%v", n, err)
	}
}

// TestWithoutKeys: the zero Config believes no token and no cookie.
func TestWithoutKeys(t *testing.T) {
	t.Parallel()
	r, err := identity.New(identity.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{goodHeader, `{"alg":"none"}`, `{"alg":""}`} {
		if id, err := r.Tenant(bearer("Bearer " + sign(header, goodPayload, ""))); err == nil {
			t.Errorf("%s: got %+v", header, id)
		}
	}
	if id := r.Anonymous(identity.Credentials{}); id.SetCookie != "" || id.Cookie != "" {
		t.Errorf("got %+v", id)
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Now = nil // a function has no JSON
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		fmt.Fprintf(&out, verb+"\n", cfg)
		fmt.Fprintf(&out, verb+"\n", cfg.Cookie.Secrets[0])
	}
	data, err := json.Marshal(struct{ Cookie, Tokens any }{cfg.Cookie, cfg.Tokens})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(data)
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("started", "config", cfg.Tokens, "secret", cfg.Cookie.Secrets[0])
	slog.New(slog.NewTextHandler(&out, nil)).Info("started", "config", cfg.Cookie, "secret", cfg.Cookie.Secrets[0])
	for _, secret := range []string{secret256, cookieKey} {
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprint([]byte(secret)), fmt.Sprintf("%#v", []byte(secret))} {
			if strings.Contains(out.String(), form) {
				t.Errorf("%q is shown in\n%s", form, &out)
			}
		}
	}
	if !strings.Contains(out.String(), "[redacted]") {
		t.Errorf("no [redacted] in\n%s", &out)
	}
}
