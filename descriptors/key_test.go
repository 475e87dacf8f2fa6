package descriptors_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// sum is the contract's sha256hex.
func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// keyOf returns the key of the only limit of a policy.
func keyOf(t testing.TB, text, prefix string, s descriptors.Subject) (string, bool) {
	t.Helper()
	set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, descriptors.Options{KeyPrefix: prefix})
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, text)
	}
	return set.Policies()[0].Limits[0].Key(&s)
}

// The table of the contract, with the hashes of sha256sum.
func TestKeysAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	const (
		acme     = "822b33ad87c148a0a20a5ba7cd5ebcaa68d36a18e7aad165554903f52ca82757" // printf acme | sha256sum
		acmeAnn  = "5b269fe032f6c6d2a5a07ce6b4be1015f2ca17ddb86cf6124c5f3f884538ae64" // printf user:4:acme:ann | sha256sum
		cookieAB = "8f24519368bcb18d4f2a8b510b852ddbe30ada5608ec31871514f2a25f54aa99" // printf anon:cookie:ab | sha256sum
		address  = "5e01db1dc893797a1c12539e1e9d279cabdb76b62510ab3ca086b50ba4db05dc" // printf anon:ip:1.2.3.4 | sha256sum
		global   = "87bbd34d68d7a675983ce50132036c4dcc1e7e46c09bcf8acf18de3f2c5c0516" // printf global:shop | sha256sum
	)
	everyone := descriptors.Subject{Tenant: "acme", User: "ann", ClientIP: "1.2.3.4", Cookie: "ab"}
	for _, c := range []struct {
		name, policy, prefix string
		subject              descriptors.Subject
		want                 string
	}{
		{"tenant", tenantLimits("{" + bucketLimit + "}"), "", everyone, "sentinel:v1:{" + acme + "}:a:1"},
		{"tenant, named", tenantLimits("{name: burst, " + bucketLimit + "}"), "", everyone, "sentinel:v1:{" + acme + "}:a:1:burst"},
		{"tenant, prefixed", tenantLimits("{" + bucketLimit + "}"), "eu-1:", everyone, "eu-1:sentinel:v1:{" + acme + "}:a:1"},
		{"user", tenantLimits("{scope: user, " + bucketLimit + "}"), "", everyone, "sentinel:v3:{" + acme + "}:" + acmeAnn + ":a:1"},
		{"user, named", tenantLimits("{name: u, scope: user, " + bucketLimit + "}"), "", everyone, "sentinel:v3:{" + acme + "}:" + acmeAnn + ":a:1:u"},
		{"client_ip", tenantLimits("{scope: client_ip, " + bucketLimit + "}"), "", everyone, "sentinel:v2:{" + address + "}:a:1"},
		{"cookie", anonymousLimits("{scope: cookie, " + bucketLimit + "}, {name: ip, scope: client_ip, " + bucketLimit + "}"), "", everyone, "sentinel:v2:{" + cookieAB + "}:a:1"},
		{"global", tenantLimits("{scope: global, " + bucketLimit + "}"), "", everyone, "sentinel:v2:{" + global + "}:a:1"},
		{"version", strings.Replace(tenantLimits("{"+bucketLimit+"}"), "policy_version: 1", "policy_version: 41", 1), "", everyone, "sentinel:v1:{" + acme + "}:a:41"},

		{"no tenant", tenantLimits("{" + bucketLimit + "}"), "", descriptors.Subject{}, "sentinel:v1:{unknown}:a:1"},
		{"no user", tenantLimits("{scope: user, " + bucketLimit + "}"), "", descriptors.Subject{Tenant: "acme"}, "sentinel:v3:{unknown}:a:1"},
		{"user without tenant", tenantLimits("{name: u, scope: user, " + bucketLimit + "}"), "p.", descriptors.Subject{User: "ann"}, "p.sentinel:v3:{unknown}:a:1:u"},
		{"no address", anonymousLimits("{scope: client_ip, " + bucketLimit + "}"), "", descriptors.Subject{}, "sentinel:v2:{unknown}:a:1"},
		{"global without anybody", tenantLimits("{scope: global, " + bucketLimit + "}"), "", descriptors.Subject{}, "sentinel:v2:{" + global + "}:a:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := keyOf(t, c.policy, c.prefix, c.subject); got != c.want || !ok {
				t.Errorf("key %q, %v\nwant %q", got, ok, c.want)
			}
		})
	}
	if key, ok := keyOf(t, anonymousLimits("{scope: cookie, "+bucketLimit+"}, {name: ip, scope: client_ip, "+bucketLimit+"}"), "", descriptors.Subject{ClientIP: "1.2.3.4"}); ok {
		t.Errorf("a cookie limit without cookie has the key %q, want none", key)
	}
}

// A replacement's limits use the tenant's own buckets of the endpoint, and the shared one of everybody.
func TestReplacementsKeepTheKeysOfTheirEndpoint(t *testing.T) {
	t.Parallel()
	set := parse(t, shop)
	orders, _ := set.Endpoint("orders.create")
	acme := orders.For("acme")
	if acme == orders {
		t.Fatal("no replacement for acme")
	}
	for i := range orders.Limits {
		want, _ := orders.Limits[i].Key(&descriptors.Subject{Tenant: "acme"})
		got, _ := acme.Limits[i].Key(&descriptors.Subject{Tenant: "acme"})
		if got != want {
			t.Errorf("limit %d: replacement has key %q, policy %q", i, got, want)
		}
	}
}

func TestPrimaryHashIsTheHashInTheKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode    descriptors.IdentityMode
		subject descriptors.Subject
		want    string
	}{
		{descriptors.TenantJWT, descriptors.Subject{Tenant: "acme", User: "ann", ClientIP: "::1"}, sum("acme")},
		{descriptors.TenantJWT, descriptors.Subject{User: "ann", ClientIP: "::1", Cookie: "ab"}, ""},
		{descriptors.Anonymous, descriptors.Subject{ClientIP: "::1", Cookie: "ab"}, sum("anon:cookie:ab")},
		{descriptors.Anonymous, descriptors.Subject{ClientIP: "::1", Tenant: "acme"}, sum("anon:ip:::1")},
		{descriptors.Anonymous, descriptors.Subject{Tenant: "acme"}, ""},
	} {
		if got := c.subject.PrimaryHash(c.mode); got != c.want {
			t.Errorf("PrimaryHash(%v) of %+v = %q, want %q", c.mode, c.subject, got, c.want)
		}
	}
}

// SEC-03: keys hold the whole SHA-256 of an unambiguous text, and nothing that a caller sent.
func TestSEC_03_KeysHoldWholeHashesOfUnambiguousText(t *testing.T) {
	t.Parallel()
	whole := regexp.MustCompile(`^sentinel:v[123]:\{[0-9a-f]{64}\}(:[0-9a-f]{64})?:a:1$`)
	scopes := map[string]func(string) string{
		"tenant": tenantLimits, "user": tenantLimits, "client_ip": tenantLimits, "global": tenantLimits, "cookie": anonymousLimits,
	}
	for scope, policy := range scopes {
		s := descriptors.Subject{Tenant: "secret-tenant", User: "secret-user", ClientIP: "secret-ip", Cookie: "secret-cookie"}
		key, _ := keyOf(t, policy("{scope: "+scope+", "+bucketLimit+"}, {name: ip, scope: client_ip, "+bucketLimit+"}"), "", s)
		if !whole.MatchString(key) || strings.Contains(key, "secret") {
			t.Errorf("scope %s: key %q, want whole hashes only", scope, key)
		}
	}
	// Pairs that a joined text would confuse.
	pairs := [][2]string{{"a", "b:c"}, {"a:b", "c"}, {"1:a", "b"}, {"a", "1:b"}, {"a:", "b"}, {"a", ":b"}, {"12:a", "b"}, {"2:a", "b"}}
	seen := make(map[string][2]string)
	for _, p := range pairs {
		key, _ := keyOf(t, tenantLimits("{scope: user, "+bucketLimit+"}"), "", descriptors.Subject{Tenant: p[0], User: p[1]})
		user := strings.Split(key, ":")[3] // without the tenant's own hash
		if other, twice := seen[user]; twice {
			t.Errorf("tenant and user %q have the user hash of %q", p, other)
		}
		seen[user] = p
	}
	// Nobody is called unknown, whatever they call themselves.
	for _, name := range []string{"unknown", "{unknown}"} {
		if key, _ := keyOf(t, tenantLimits("{"+bucketLimit+"}"), "", descriptors.Subject{Tenant: name}); strings.Contains(key, "unknown") {
			t.Errorf("tenant %q has the key %q", name, key)
		}
	}
}

// bucketID is what makes a bucket one: two requests share a key exactly when all of it is equal.
type bucketID struct {
	scope, identity, other, endpoint, version, name string
}

// bucketOf draws one limit and subject from fuzzed parts, and returns its bucket and key. False: the parts make none.
func bucketOf(t *testing.T, scope uint8, tenant, who, endpoint, name, domain string, version uint64) (bucketID, string, bool) {
	names := []string{"tenant", "user", "client_ip", "cookie", "global"}
	id := bucketID{scope: names[int(scope)%len(names)], endpoint: endpoint, version: fmt.Sprint(version), name: name}
	var s descriptors.Subject
	mode := "tenant_jwt"
	switch id.scope {
	case "tenant":
		s.Tenant, id.identity = tenant, tenant
	case "user":
		s.Tenant, s.User, id.identity, id.other = tenant, who, tenant, who
		if tenant == "" || who == "" {
			id.identity, id.other = "", ""
		}
	case "client_ip":
		s.ClientIP, id.identity = who, who
	case "cookie":
		s.Cookie, id.identity, mode = who, who, "anonymous"
	case "global":
		id.identity = domain
	}
	text := fmt.Sprintf("domain: %q\nendpoints: {%q: {policy_version: %d, identity: %s, fail_mode: fail_closed, limits: [{scope: %s, %s, %s}, {name: beside, scope: global, algorithm: token_bucket, capacity: 1, refill: 0}]}}",
		domain, endpoint, version, mode, id.scope, nameField(name), bucketLimit)
	set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, descriptors.Options{})
	if err != nil {
		return bucketID{}, "", false
	}
	key, ok := set.Policies()[0].Limits[0].Key(&s)
	return id, key, ok
}

func nameField(name string) string {
	if name == "" {
		return "refunds: false"
	}
	return fmt.Sprintf("name: %q", name)
}

func FuzzKeyInjective(f *testing.F) {
	f.Add(uint8(0), "acme", "", "orders.create", "", "shop", uint64(1), uint8(0), "acme", "", "orders.create", "burst", "shop", uint64(1))
	f.Add(uint8(1), "a", "b:c", "x", "", "shop", uint64(1), uint8(1), "a:b", "c", "x", "", "shop", uint64(1))
	f.Add(uint8(2), "", "1.2.3.4", "x", "", "shop", uint64(1), uint8(3), "", "1.2.3.4", "x", "", "shop", uint64(1))
	f.Add(uint8(4), "", "", "x", "", "shop", uint64(1), uint8(4), "", "", "x", "", "bank", uint64(1))
	f.Add(uint8(0), "", "", "x", "", "shop", uint64(1), uint8(1), "", "ann", "x", "", "shop", uint64(1))
	f.Add(uint8(0), "t", "", "x", "1", "shop", uint64(1), uint8(0), "t", "", "x", "", "shop", uint64(11))
	f.Add(uint8(3), "", "ab", "x", "n", "shop", uint64(1<<53-1), uint8(2), "", "cookie:ab", "x", "n", "shop", uint64(1<<53-1))
	f.Fuzz(func(t *testing.T,
		scope1 uint8, tenant1, who1, endpoint1, name1, domain1 string, version1 uint64,
		scope2 uint8, tenant2, who2, endpoint2, name2, domain2 string, version2 uint64,
	) {
		one, key1, ok1 := bucketOf(t, scope1, tenant1, who1, endpoint1, name1, domain1, version1)
		two, key2, ok2 := bucketOf(t, scope2, tenant2, who2, endpoint2, name2, domain2, version2)
		if !ok1 || !ok2 {
			return
		}
		if (one == two) != (key1 == key2) {
			t.Errorf("buckets %+v and %+v have the keys\n%s\n%s", one, two, key1, key2)
		}
	})
}

func TestKeysOfOneRequestAllocateOnceEach(t *testing.T) {
	set := parse(t, shop)
	orders, _ := set.Endpoint("orders.create")
	var key string
	got := testing.AllocsPerRun(100, func() {
		s := descriptors.Subject{Tenant: "acme"}
		key, _ = orders.For(s.Tenant).Limits[0].Key(&s)
		key, _ = orders.Limits[0].Key(&s)
		key, _ = orders.Limits[1].Key(&s)
	})
	if key == "" || got > 2 { // the global limit's key is there already
		t.Errorf("%v allocations for three keys, want 2", got)
	}
}

func BenchmarkLookup(b *testing.B) {
	set := parse(b, shop)
	b.ReportAllocs()
	for b.Loop() {
		d, _ := set.Domain("shop")
		p, _ := d.Lookup("orders.create")
		if p.For("acme") == nil {
			b.Fatal("no policy")
		}
	}
}

func BenchmarkKey(b *testing.B) {
	limits := map[string]*descriptors.Limit{
		"tenant": &parse(b, tenantLimits("{"+bucketLimit+"}")).Policies()[0].Limits[0],
		"user":   &parse(b, tenantLimits("{scope: user, "+bucketLimit+"}")).Policies()[0].Limits[0],
		"global": &parse(b, tenantLimits("{scope: global, "+bucketLimit+"}")).Policies()[0].Limits[0],
	}
	for name, limit := range limits {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s := descriptors.Subject{Tenant: "acme", User: "ann"}
				if _, ok := limit.Key(&s); !ok {
					b.Fatal("no key")
				}
			}
		})
	}
}
