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
	for _, tt := range []struct {
		name   string
		change func(*identity.Config)
		want   string
	}{
		{"an algorithm in lower case", func(c *identity.Config) { c.Issuers[0].Algorithms[0] = "hs256" }, `"hs256" is none of`},
		{"algorithm none", func(c *identity.Config) { c.Issuers[0].Algorithms = append(c.Issuers[0].Algorithms, "none") }, `"none" is none of`},
		{"an algorithm that is not implemented", func(c *identity.Config) { c.Issuers[0].Algorithms = append(c.Issuers[0].Algorithms, "ES256K") }, `"ES256K" is none of`},
		{"a key whose algorithm is not allowed", func(c *identity.Config) { c.Issuers[0].Algorithms = []string{"HS256", "HS384"} }, `"HS512" is not among`},
		{"keys and no algorithms", func(c *identity.Config) { c.Issuers[0].Algorithms = nil }, "not among those allowed"},
		{"17 keys without key id in two issuers", func(c *identity.Config) {
			c.Issuers = append(c.Issuers, identity.Issuer{Issuer: "https://b.test", Algorithms: []string{"HS256"}})
			for i := range 17 {
				k := keySet(hmacKey("HS256", "", fmt.Sprintf("%032d", i)))
				c.Issuers[i%2].Keys = append(c.Issuers[i%2].Keys, k)
			}
		}, "17 HS256 keys without key id"},
		{"17 issuers", func(c *identity.Config) {
			for i := range 16 {
				c.Issuers = append(c.Issuers, identity.Issuer{Issuer: fmt.Sprint("https://i.test/", i)})
			}
		}, "17 issuers"},
		{"two issuers, one without a name", func(c *identity.Config) { c.Issuers = append(c.Issuers, identity.Issuer{}) }, "without a name"},
		{"an issuer twice", func(c *identity.Config) {
			c.Issuers = append(c.Issuers, identity.Issuer{Issuer: "https://issuer.test"})
		}, `"https://issuer.test" is there already`},
		{"a cache below 0", func(c *identity.Config) { c.CacheTokens = -1 }, "cache of -1"},
		{"a cache of billions", func(c *identity.Config) { c.CacheTokens = 2_000_000_000 }, "cache of 2000000000"},
		{"leeway below 0", func(c *identity.Config) { c.Issuers[0].Leeway = -1 }, "leeway"},
		{"leeway of an hour", func(c *identity.Config) { c.Issuers[0].Leeway = time.Hour }, "leeway"},
		{"a claim path with a hole", func(c *identity.Config) { c.Issuers[0].TenantClaim = "a..b" }, `"a..b"`},
		{"a claim path of 9", func(c *identity.Config) { c.Issuers[0].ScopeClaim = "a.b.c.d.e.f.g.h.i" }, "up to 8"},
		{"CK-07 the cookie secret is a token secret", func(c *identity.Config) { c.Cookie.Secrets[1] = identity.Secret(secret256) }, "cookie secret 2 has the same secret as token key 1"},
		{"one secret for two keys", onlyKeys(hmacKey("HS256", "a", secret512), hmacKey("HS512", "b", secret512)), "token key 2 has the same secret as token key 1"},
		{"a plan claim with a hole", func(c *identity.Config) { c.Issuers[0].PlanClaim = ".plan" }, `".plan"`},
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
		Issuers: []identity.Issuer{{Leeway: -1, TenantClaim: "."}},
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
	data, err := json.Marshal(struct{ Cookie, Issuers any }{cfg.Cookie, cfg.Issuers})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(data)
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("started", "config", cfg.Issuers, "secret", cfg.Cookie.Secrets[0])
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
