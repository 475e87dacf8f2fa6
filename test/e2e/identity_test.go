package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// spoofs are what a client may write to be taken for another address, each as header name and value in turns.
func spoofs(victim string) map[string][]string {
	return map[string][]string{
		"nothing":                      nil,
		"our header":                   {"x-sentinel-client-ip", victim},
		"our header twice":             {"x-sentinel-client-ip", victim, "x-sentinel-client-ip", "198.51.100.1"},
		"our header in capitals":       {"X-SENTINEL-CLIENT-IP", victim},
		"our header, empty":            {"x-sentinel-client-ip", ""},
		"our header with a list":       {"x-sentinel-client-ip", victim + ", 198.51.100.1"},
		"X-Forwarded-For":              {"X-Forwarded-For", victim},
		"X-Forwarded-For twice":        {"X-Forwarded-For", victim, "X-Forwarded-For", "198.51.100.1"},
		"X-Forwarded-For with a list":  {"X-Forwarded-For", "10.0.0.1, " + victim + ", 127.0.0.2"},
		"X-Forwarded-For with garbage": {"X-Forwarded-For", "not-an-address"},
		"the usual others": {
			"X-Real-IP", victim, "Forwarded", "for=" + victim, "True-Client-IP", victim, "CF-Connecting-IP", victim,
			"X-Envoy-External-Address", victim, "X-Envoy-Internal", "true", "X-Client-IP", victim,
		},
	}
}

// attack asks /login from one client with every spoof until its five requests are gone, and shows that a spoof neither
// finds more of them nor takes any of the victim's. The upstream always sees the client's own address.
func attack(t *testing.T, e *example, attacker *client, address string, victim *client, victimAddress string) {
	t.Helper()
	target := e.url + "/login"
	for _, name := range []string{"x_sentinel_client_ip", "x_forwarded_for", "X_Forwarded_For"} {
		if r := attacker.get(target, name, victimAddress); r.status != http.StatusBadRequest {
			t.Errorf("with %s: %v, want 400", name, r)
		}
	}
	passed, denied := 0, 0
	for round := range 2 {
		for name, headers := range spoofs(victimAddress) {
			r := attacker.get(target, headers...)
			switch r.status {
			case http.StatusOK:
				passed++
				if got := r.seen["X-Sentinel-Client-Ip"]; !slices.Equal(got, []string{address}) {
					t.Errorf("with %s the upstream saw the address %q, want %s", name, got, address)
				}
			case http.StatusTooManyRequests:
				denied++
				if cookies := r.header["Set-Cookie"]; len(cookies) > 0 {
					t.Errorf("a denied request got cookies: %q", cookies)
				}
			default:
				t.Errorf("round %d, with %s: %v\n%s", round, name, r, r.body)
			}
		}
	}
	if passed != 5 {
		t.Errorf("%d of %d spoofing requests passed, want the 5 of one address", passed, passed+denied)
	}
	for i := range 5 {
		if r := victim.get(target); r.status != http.StatusOK {
			t.Errorf("request %d of the victim: %v", i+1, r)
		}
	}
}

// Envoy at the edge: the TCP peer is the client.
func TestAddressAtTheEdge(t *testing.T) {
	e := startExample(t, "edge.yaml", "sentinel.yaml")
	attack(t, e, from(t, "127.0.0.5"), "127.0.0.5", from(t, "127.0.0.6"), "127.0.0.6")
}

// Envoy behind a proxy: whom the proxy saw is the client, and who comes past the proxy is taken by its own address.
func TestAddressBehindAProxy(t *testing.T) {
	e := startExample(t, "behind-proxy.yaml", "sentinel.yaml")
	t.Run("through the proxy", func(t *testing.T) {
		attack(t, e, proxy(t, e, "127.0.0.5"), "127.0.0.5", proxy(t, e, "127.0.0.6"), "127.0.0.6")
	})
	t.Run("past the proxy", func(t *testing.T) {
		attack(t, e, from(t, "127.0.0.7"), "127.0.0.7", proxy(t, e, "127.0.0.8"), "127.0.0.8")
	})
	t.Run("a proxy that names nobody counts itself", func(t *testing.T) {
		bare := from(t, "127.0.0.2")
		for header, want := range map[string]string{"": "127.0.0.2", "not-an-address": "127.0.0.2", "203.0.113.9": "203.0.113.9"} {
			var headers []string
			if header != "" {
				headers = []string{"X-Forwarded-For", header}
			}
			r := bare.get(e.url+"/login", headers...)
			if got := r.seen["X-Sentinel-Client-Ip"]; !slices.Equal(got, []string{want}) {
				t.Errorf("X-Forwarded-For %q: %v, the address is %q, want %s", header, r, got, want)
			}
		}
	})
}

// Envoy behind a load balancer: the PROXY line names the client, and only the load balancer may write one.
func TestAddressBehindALoadBalancer(t *testing.T) {
	e := startExample(t, "behind-load-balancer.yaml", "sentinel.yaml")
	attack(t, e, balanced(t, "127.0.0.2", "203.0.113.5"), "203.0.113.5", balanced(t, "127.0.0.2", "203.0.113.6"), "203.0.113.6")
	for name, c := range map[string]*client{
		"a PROXY line of a stranger":           balanced(t, "127.0.0.5", "203.0.113.7"),
		"a stranger without a PROXY line":      from(t, "127.0.0.5"),
		"the load balancer without PROXY line": from(t, "127.0.0.2"),
	} {
		if r, err := c.try(e.url + "/login"); err == nil {
			t.Errorf("%s: %v, want the connection closed", name, r)
		}
	}
	// IP-06: an IPv6 client has its /64, whatever host bits it takes.
	for i := range 6 {
		c := balanced(t, "127.0.0.2", fmt.Sprintf("2001:db8:1:2::%x", 0x1000+i))
		if r := c.get(e.url + "/login"); (r.status == http.StatusOK) != (i < 5) {
			t.Errorf("request %d from one /64: %v", i+1, r)
		}
	}
	if r := balanced(t, "127.0.0.2", "2001:db8:1:3::1").get(e.url + "/login"); r.status != http.StatusOK {
		t.Errorf("from the next /64: %v", r)
	}
}

// CK-01 and EA-05: without a cookie the address decides; with one, both. Ours comes beside the upstream's two, each a line
// of its own, and never with a denial. Dropping or inventing cookies gains nothing.
func TestCK_01_EA_05_AnonymousVisitors(t *testing.T) {
	e := startExample(t, "edge.yaml", "sentinel.yaml")
	target := e.url + "/login"
	visitor := from(t, "127.0.0.5")
	var cookie string
	for i := range 7 {
		headers := []string(nil)
		if i%2 == 1 {
			headers = []string{"Cookie", "sentinel_anon_id=" + strings.Repeat("0", 32) + ".9999999999." + strings.Repeat("0", 64)}
		}
		r := visitor.get(target, headers...)
		set := r.header["Set-Cookie"]
		if i < 5 {
			if r.status != http.StatusOK || len(set) != 3 || set[0] != "session=1; Path=/" || set[1] != "theme=dark; Path=/" {
				t.Fatalf("request %d: %v, Set-Cookie %q; want 200 with the upstream's two and ours", i+1, r, set)
			}
			want := "; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax"
			if !strings.HasPrefix(set[2], "sentinel_anon_id=") || !strings.HasSuffix(set[2], want) || strings.Contains(set[2], ",") {
				t.Errorf("our cookie: %s", set[2])
			}
			cookie, _, _ = strings.Cut(set[2], ";")
			continue
		}
		if r.status != http.StatusTooManyRequests || len(set) > 0 {
			t.Errorf("request %d: %v, Set-Cookie %q; want 429 without cookies", i+1, r, set)
		}
	}
	elsewhere := from(t, "127.0.0.6")
	for i := range 4 {
		r := elsewhere.get(target, "Cookie", "session=1; "+cookie+"; theme=dark")
		want := http.StatusOK
		if i == 3 {
			want = http.StatusTooManyRequests
		}
		if r.status != want || len(r.header["Set-Cookie"]) > 2 {
			t.Errorf("request %d with the cookie: %v, Set-Cookie %q; want %d, and no new cookie", i+1, r, r.header["Set-Cookie"], want)
		}
		if i == 0 && !slices.Contains(r.seen["Cookie"], "session=1; "+cookie+"; theme=dark") {
			t.Errorf("the upstream saw the cookies %q", r.seen["Cookie"])
		}
	}
	// The denial spent nothing: the address has two of its five left.
	for i := range 3 {
		r := elsewhere.get(target)
		if want := i < 2; (r.status == http.StatusOK) != want {
			t.Errorf("request %d without the cookie: %v", i+1, r)
		}
	}
}

// A flood without cookies stays in the bucket of its address, and does not reach the upstream.
func TestFloodWithoutCookies(t *testing.T) {
	e := startExample(t, "edge.yaml", "sentinel.yaml")
	flood := from(t, "127.0.0.5")
	for i := range 200 {
		r := flood.get(e.url+"/login", "Cookie", fmt.Sprintf("sentinel_anon_id=%032x.9999999999.%064x", i, i))
		if want := i < 5; (r.status == http.StatusOK) != want {
			t.Fatalf("request %d: %v", i+1, r)
		}
	}
	if n := e.requests.Load(); n != 5 {
		t.Errorf("%d requests reached the upstream", n)
	}
	if n := e.metric(t, "sentinel_memory_store_buckets", ""); n > 6 {
		t.Errorf("the flood made %v buckets", n)
	}
	if r := from(t, "127.0.0.6").get(e.url + "/login"); r.status != http.StatusOK {
		t.Errorf("another visitor: %v", r)
	}
}

// The chain: ext_authz says who asks, the ratelimit filter counts for whom it said, and nothing is counted twice. What a
// client says about who it is reaches neither the upstream nor a bucket.
func TestChainCountsOnce(t *testing.T) {
	e := startExample(t, "chained.yaml", "sentinel.yaml")
	c := from(t, "127.0.0.5")
	lies := []string{"x-sentinel-tenant", "victim", "X-Sentinel-Tenant", "victim", "x-sentinel-subject", "root"}
	ask := func(path, tenant, subject string) reply {
		return c.get(e.url+path, append([]string{"Authorization", "Bearer " + exampleToken(t, tenant, subject)}, lies...)...)
	}
	for _, path := range []string{"/catalog", "/orders"} {
		t.Run(path, func(t *testing.T) {
			endpoint := map[string]string{"/catalog": "catalog.read", "/orders": "orders.create"}[path]
			before := e.metric(t, "sentinel_decisions_total", endpoint)
			for i, step := range []struct {
				subject string
				want    int
			}{{"ann", 200}, {"ann", 200}, {"bob", 200}, {"bob", 429}, {"cid", 429}} {
				r := ask(path, "acme", step.subject)
				if r.status != step.want {
					t.Fatalf("request %d, by %s: %v, want %d", i+1, step.subject, r, step.want)
				}
				if r.status == http.StatusOK {
					tenant, subject := r.seen["X-Sentinel-Tenant"], r.seen["X-Sentinel-Subject"]
					if !slices.Equal(tenant, []string{"acme"}) || !slices.Equal(subject, []string{step.subject}) {
						t.Errorf("the upstream saw tenant %q, subject %q", tenant, subject)
					}
				}
			}
			if n := e.metric(t, "sentinel_decisions_total", endpoint) - before; n != 5 {
				t.Errorf("5 requests were counted as %v decisions", n)
			}
			if r := ask(path, "victim", "root"); r.status != http.StatusOK {
				t.Errorf("the victim's first request: %v", r)
			}
		})
	}
	t.Run("a user's own limit", func(t *testing.T) {
		for i := range 3 {
			if r := ask("/orders", "other", "ann"); (r.status == http.StatusOK) != (i < 2) {
				t.Errorf("request %d: %v", i+1, r)
			}
		}
	})
}

// What 401 and 403 say, through a real Envoy.
func TestRefusedCredentialsThroughEnvoy(t *testing.T) {
	e := startExample(t, "chained.yaml", "sentinel.yaml")
	c := from(t, "127.0.0.5")
	const metadata = `, resource_metadata="https://api.example.com/.well-known/oauth-protected-resource"`
	good := exampleToken(t, "acme", "ann")
	for _, tt := range []struct {
		name, path, token, challenge string
		status                       int
	}{
		{"no token", "/catalog", "", `Bearer realm="site"` + metadata, 401},
		{"no token, no such endpoint", "/nowhere", "", `Bearer realm="site"` + metadata, 401},
		{"a changed token", "/catalog", good[:len(good)-4] + "AAAA", `Bearer realm="site", error="invalid_token"` + metadata, 401},
		{"expired", "/catalog", exampleToken(t, "acme", "ann", "exp", 1), `Bearer realm="site", error="invalid_token"` + metadata, 401},
		{"another issuer", "/catalog", exampleToken(t, "acme", "ann", "iss", "https://evil.test"), `Bearer realm="site", error="invalid_token"` + metadata, 401},
		{"longer than a token may be", "/catalog", strings.Repeat("a", 9000), `Bearer realm="site", error="invalid_token"` + metadata, 401},
		{"without the scope", "/reports", good, `Bearer realm="site", error="insufficient_scope", scope="reports:read"` + metadata, 403},
		{"with the scope", "/reports", exampleToken(t, "acme", "ann", "scope", "a reports:read"), "", 200},
		{"no such endpoint", "/nowhere", good, "", 404},
	} {
		var headers []string
		if tt.token != "" {
			headers = []string{"Authorization", "Bearer " + tt.token}
		}
		r := c.get(e.url+tt.path, headers...)
		if got := r.header["Www-Authenticate"]; r.status != tt.status || strings.Join(got, "|") != tt.challenge {
			t.Errorf("%s: %v with %q, want %d with %q", tt.name, r, got, tt.status, tt.challenge)
		}
		if tt.status == 403 && !strings.Contains(r.body, `"scope":"reports:read"`) {
			t.Errorf("%s: body %s", tt.name, r.body)
		}
	}
	log := e.sentinel.Log()
	for _, want := range []string{`"check":"the signature does not verify"`, `"check":"expired"`, `"check":"another issuer"`, `"check":"longer than a token may be"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log, good[:40]) {
		t.Error("the log shows a token")
	}
}

// The ratelimit filter alone: the token in the descriptor is verified, and a bad one is refused.
func TestRatelimitFilterAlone(t *testing.T) {
	e := startExample(t, "ratelimit-only.yaml", "ratelimit-only.yaml")
	c := from(t, "127.0.0.5")
	ask := func(path, token string) reply {
		if token == "" {
			return c.get(e.url + path)
		}
		return c.get(e.url+path, "Authorization", "Bearer "+token)
	}
	for i := range 4 {
		want := "200"
		if i == 3 {
			want = "429 RATE_LIMITED"
		}
		if r := ask("/catalog", exampleToken(t, "acme", fmt.Sprint("user-", i))); r.String() != want {
			t.Errorf("request %d: %v, want %s", i+1, r, want)
		}
	}
	good := exampleToken(t, "other", "ann")
	for _, tt := range []struct{ name, path, token, want string }{
		{"no token", "/catalog", "", "429 UNAUTHENTICATED"},
		{"a changed token", "/catalog", good[:len(good)-4] + "AAAA", "429 UNAUTHENTICATED"},
		{"expired", "/catalog", exampleToken(t, "other", "ann", "exp", 1), "429 UNAUTHENTICATED"},
		{"no token, no such endpoint", "/nowhere", "", "429 UNAUTHENTICATED"},
		{"no such endpoint", "/nowhere", good, "429 UNKNOWN_ENDPOINT"},
		{"without the scope", "/reports", good, "429 INSUFFICIENT_SCOPE"},
		{"a good one", "/catalog", good, "200"},
	} {
		if r := ask(tt.path, tt.token); r.String() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, r, tt.want)
		}
	}
	if n := e.metric(t, "sentinel_decisions_total", ""); n != 5 {
		t.Errorf("%v decisions, want 5: refused credentials are none", n)
	}
	if n := e.metric(t, "sentinel_unauthenticated_total", "ratelimit"); n != 4 {
		t.Errorf("%v refused credentials were counted, want 4", n)
	}
}
