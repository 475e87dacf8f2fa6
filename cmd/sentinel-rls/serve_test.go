package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// Ten requests for each tenant, ever: what a test counts does not depend on how long it takes.
const shopPolicies = `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{scope: tenant, algorithm: token_bucket, capacity: 10, refill: 0}]
`

const shopConfig = `
policies: [policies]
jwt: {keys: [{alg: HS256, secret_file: secret}]}
`

func shop(t *testing.T) string {
	t.Helper()
	return files(t, map[string]string{"sentinel.yaml": shopConfig, "secret": secret, "policies/shop.yaml": shopPolicies})
}

// The first thing a person does: serve without any configuration, and try the printed token.
func TestServeWithoutConfigurationIsADemoThatWorks(t *testing.T) {
	t.Parallel()
	p := serve(t, nil)
	banner := p.stdout.String()
	if !strings.Contains(banner, "*** DEMO") || !strings.Contains(banner, "Not for production") {
		t.Errorf("the banner is not loud:\n%s", banner)
	}
	if _, ok := logRecord(p.log(), "serving the built-in demo endpoint only: nothing is configured"); !ok {
		t.Errorf("the log does not say that this is the demo:\n%s", p.log())
	}
	var bearer string
	for line := range strings.Lines(banner) {
		if strings.HasPrefix(line, "eyJ") {
			bearer = strings.TrimSpace(line)
		}
	}
	conn := dial(t, p.grpcAddr)
	for _, c := range []struct {
		what, endpoint, bearer string
		want                   int
	}{
		{"no token", "demo", "", http.StatusUnauthorized},
		{"a token of another secret", "demo", token(t, "alice"), http.StatusUnauthorized},
		{"an unknown endpoint without token", "other", "", http.StatusUnauthorized},
		{"an unknown endpoint with the token", "other", bearer, http.StatusNotFound},
		{"the printed token", "demo", bearer, http.StatusOK},
	} {
		if got := check(t, conn, c.endpoint, c.bearer); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	// 5 and 1 more each second: of 30 quick calls some are refused, by both services, since they ask the same bucket.
	refused := 0
	for range 30 {
		if limited(t, conn, "demo", "demo", demoTenant) {
			refused++
		}
	}
	if refused == 0 {
		t.Error("30 calls at once and none over the limit")
	}
	if got := check(t, conn, "demo", bearer); got != http.StatusTooManyRequests && got != http.StatusOK {
		t.Errorf("Check beside ShouldRateLimit: %d, want 429 (or 200 after a pause)", got)
	}

	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		services = append(services, s.GetName())
	}
	if !slices.Contains(services, "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("reflection, which the hints need, lists %v", services)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d after a clean stop, want 0:\n%s", code, p.log())
	}
}

// Policies, identity, limits, metrics, log and health of one instance with a configuration file.
func TestServeWithConfiguration(t *testing.T) {
	t.Parallel()
	p := serve(t, nil, "--config", filepath.Join(shop(t), "sentinel.yaml"))
	if p.stdout.String() != "" {
		t.Errorf("a configured server prints %q", p.stdout.String())
	}
	conn := dial(t, p.grpcAddr)
	acme := token(t, "acme")

	// Both services spend from one bucket: 4 + 6 pass, then both refuse.
	for i := range 4 {
		if got := check(t, conn, "orders", acme); got != http.StatusOK {
			t.Fatalf("Check %d: %d, want 200", i+1, got)
		}
	}
	for i := range 6 {
		if limited(t, conn, "shop", "orders", "acme") {
			t.Fatalf("ShouldRateLimit %d is over the limit", i+1)
		}
	}
	if got := check(t, conn, "orders", acme); got != http.StatusTooManyRequests {
		t.Errorf("the eleventh, by Check: %d, want 429", got)
	}
	if !limited(t, conn, "shop", "orders", "acme") {
		t.Error("the eleventh, by ShouldRateLimit, passed")
	}
	if got := check(t, conn, "orders", token(t, "globex")); got != http.StatusOK {
		t.Errorf("another tenant: %d, want 200", got)
	}
	if limited(t, conn, "elsewhere", "orders", "acme") {
		t.Error("a domain that no policy names is over the limit")
	}

	for series, want := range map[string]string{
		`sentinel_decisions_total{decision_reason="ALLOWED",endpoint_id="orders"}`:      "11",
		`sentinel_decisions_total{decision_reason="RATE_LIMITED",endpoint_id="orders"}`: "2",
		`sentinel_unknown_domain_total{service="ratelimit"}`:                            "1",
		`sentinel_unauthenticated_total{service="ext_authz"}`:                           "0",
		`sentinel_memory_store_buckets`:                                                 "2",
		`sentinel_policies_endpoints`:                                                   "1",
		`sentinel_breaker_state{state="closed"}`:                                        "absent",
	} {
		if got := metric(t, p.instance, series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}
	for path, want := range map[string]string{
		"/readyz":   `{"status":"ready","degraded":[]}`,
		"/healthz":  `{"status":"alive"}`,
		"/policies": `"domains":["shop"],"endpoints":[{"id":"orders","domain":"shop","policy_version":1,"identity":"tenant_jwt","fail_mode":"fail_closed","mode":"enforce","tenants":0}]`,
	} {
		if code, body := get(t, p.instance, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 200 with %s", path, code, body, want)
		}
	}
	for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService", "envoy.service.auth.v3.Authorization"} {
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		if err != nil || resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("gRPC health of %q: %v, %v, want SERVING", name, resp.GetStatus(), err)
		}
	}

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d, want 0", code)
	}
	denied, ok := logRecord(p.log(), "denied")
	if !ok {
		t.Fatalf("no denial in the log:\n%s", p.log())
	}
	for key, want := range map[string]any{
		"level": "WARN", "endpoint_id": "orders", "identity_mode": "tenant_jwt", "decision_reason": "RATE_LIMITED", "breaker_state": "none",
		"identity_hash": fmt.Sprintf("%x", sha256.Sum256([]byte("acme"))),
	} {
		if denied[key] != want {
			t.Errorf("the denial's %s is %v, want %v", key, denied[key], want)
		}
	}
	if strings.Contains(p.log(), "acme") || strings.Contains(p.log(), acme) || strings.Contains(p.log(), secret) {
		t.Errorf("the log shows a tenant, a token or a secret:\n%s", p.log())
	}
}

// A flag wins over the environment, which wins over the file.
func TestPrecedenceFlagEnvironmentFile(t *testing.T) {
	t.Parallel()
	dir := shop(t)
	for _, name := range []string{"environment", "flag"} {
		policy := strings.ReplaceAll(shopPolicies, "domain: shop", "domain: by-"+name)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := []string{"--config", filepath.Join(dir, "sentinel.yaml")}
	env := []string{"SENTINEL_POLICIES=" + filepath.Join(dir, "environment.yaml"), "SENTINEL_POLICEIS=typo"}
	flag := []string{"--policies", filepath.Join(dir, "flag.yaml")}
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"file":                        {nil, config, "shop"},
		"environment over file":       {env, config, "by-environment"},
		"flag over both":              {env, slices.Concat(config, flag), "by-flag"},
		"two flags are read together": {nil, slices.Concat(config, flag, []string{"--policies", filepath.Join(dir, "extra.yaml")}), "by-flag\",\"extra"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(c.want, "extra") {
				extra := strings.NewReplacer("domain: shop", "domain: extra", "orders:", "refunds:").Replace(shopPolicies)
				if err := os.WriteFile(filepath.Join(dir, "extra.yaml"), []byte(extra), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := serve(t, c.env, c.args...)
			if _, body := get(t, p.instance, "/policies"); !strings.Contains(body, `"domains":["`+c.want+`"]`) {
				t.Errorf("/policies shows %s, want the domain %s", body, c.want)
			}
			if c.env != nil && !strings.Contains(p.log(), "did you mean SENTINEL_POLICIES?") {
				t.Errorf("the misspelt variable is not logged:\n%s", p.log())
			}
		})
	}
}

// What refuses the start is one clear line per problem, and an exit code that says who must act.
func TestPortInUseIsOneLine(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", ephemeral)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for flag, c := range map[string]struct {
		args []string
		path string
	}{
		"--grpc":  {[]string{"--grpc", taken.Addr().String(), "--admin", ephemeral}, "grpc.address"},
		"--admin": {[]string{"--admin", taken.Addr().String(), "--grpc", ephemeral}, "admin.address"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"serve"}, c.args...), nil, &stdout, &stderr)
		want := fmt.Sprintf("sentinel-rls: %s %s: bind: address already in use (set another with %s)\n", c.path, taken.Addr(), flag)
		if code != exitFailure || stderr.String() != want || stdout.String() != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %d and %q", flag, code, stdout.String(), stderr.String(), exitFailure, want)
		}
	}
}

// A certificate that nobody vouches for is one line of the log, and no reason to refuse Envoy its answers.
func TestBadCertificateIsOneLine(t *testing.T) {
	t.Parallel()
	impostor := httptest.NewUnstartedServer(http.NotFoundHandler())
	impostor.Config.ErrorLog = log.New(io.Discard, "", 0)
	impostor.StartTLS()
	defer impostor.Close()
	patient := []string{"SENTINEL_REDIS_BUDGET=5s"} // a busy machine takes its time to refuse a certificate
	p := serve(t, patient, "--config", filepath.Join(shop(t), "sentinel.yaml"), "--redis", "rediss://"+impostor.Listener.Addr().String())
	record, ok := logRecord(p.log(), "redis does not answer: fail modes decide until it does")
	if problem := fmt.Sprint(record["error"]); !ok || !strings.Contains(problem, "certificate signed by unknown authority") || strings.Contains(problem, "\n") {
		t.Errorf("the log says %v:\n%s", record, p.log())
	}
	if got := check(t, dial(t, p.grpcAddr), "orders", token(t, "acme")); got != http.StatusServiceUnavailable {
		t.Errorf("fail_closed answers %d, want 503", got)
	}
}

// A context that is done before anything listens: nothing is served, and it is no failure of the configuration.
func TestStopBeforeTheStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"serve", "--grpc", ephemeral, "--admin", ephemeral}, nil, &stdout, &stderr); code == exitInvalid || code == exitUsage {
		t.Errorf("exit code %d:\n%s", code, stderr.String())
	}
}

// Callers before login: the cookie is minted under the configured secret, the address is the configured one, and an
// address that looks like a proxy's is warned of once.
func TestServeAnonymousCallers(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"cookie-secret": "a cookie secret of at least 32 bytes",
		"sentinel.yaml": `
policies: [login.yaml]
anonymous: {cookie_name: visitor, cookie_secret_files: [cookie-secret]}
client_address: {from: peer}
`,
		"login.yaml": `
domain: shop
endpoints:
  login:
    policy_version: 1
    identity: anonymous
    fail_mode: fail_closed
    limits:
      - {scope: cookie, algorithm: sliding_window, limit: 100, window: 1d}
      - {name: address, scope: client_ip, algorithm: sliding_window, limit: 2, window: 1d}
`,
	})
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"))
	client := authv3.NewAuthorizationClient(dial(t, p.grpcAddr))
	ask := func(peer string) *authv3.CheckResponse {
		t.Helper()
		req := checkRequest("login", "")
		req.Attributes.Source = &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: peer},
		}}}
		resp, err := client.Check(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for i := range 2 {
		var cookies []string
		for _, h := range ask("10.0.0.1").GetOkResponse().GetResponseHeadersToAdd() {
			if strings.EqualFold(h.GetHeader().GetKey(), "set-cookie") {
				cookies = append(cookies, h.GetHeader().GetValue())
			}
		}
		if len(cookies) != 1 || !strings.HasPrefix(cookies[0], "visitor=") {
			t.Errorf("call %d: the answer sets the cookies %v, want one named visitor", i+1, cookies)
		}
	}
	if code := ask("10.0.0.1").GetDeniedResponse().GetStatus().GetCode(); code != http.StatusTooManyRequests {
		t.Errorf("the third of one address: %d, want 429", code)
	}
	if ask("10.0.0.2").GetOkResponse() == nil {
		t.Error("another address is refused")
	}
	p.stop()
	if n := strings.Count(p.log(), "a client's address is private or loopback"); n != 1 {
		t.Errorf("warned %d times of private addresses, want once:\n%s", n, p.log())
	}
	if strings.Contains(p.log(), "10.0.0.") {
		t.Errorf("the log shows a client's address:\n%s", p.log())
	}
}
