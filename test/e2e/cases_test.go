package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/story"
)

// get asks the stack, and fails the test when there is no answer.
func get(t *testing.T, s *story.Stack, path, token string, header ...string) *story.Response {
	t.Helper()
	r, err := s.Get(t.Context(), path, token, header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// exhaust uses up a tenant's three requests.
func exhaust(t *testing.T, s *story.Stack, path, token string) {
	t.Helper()
	for i := range 3 {
		if r := get(t, s, path, token); r.Status != http.StatusOK {
			t.Fatalf("request %d of 3: %v", i+1, r)
		}
	}
}

// replaceOnce returns a change of the bootstrap, which must have old exactly once.
func replaceOnce(t *testing.T, old, replacement string) func(string) string {
	return func(bootstrap string) string {
		if n := strings.Count(bootstrap, old); n != 1 {
			t.Fatalf("the bootstrap has %q %d times", old, n)
		}
		return strings.Replace(bootstrap, old, replacement, 1)
	}
}

// unanswered returns how many questions Envoy's filters got no usable answer to.
func unanswered(t *testing.T, s *story.Stack) uint64 {
	t.Helper()
	stats, err := s.Envoy.Stats(`^cluster\..*\.(ext_authz|ratelimit)\.(error|failure_mode_allowed|invalid)$`)
	if err != nil {
		t.Fatal(err)
	}
	var n uint64
	for _, v := range stats {
		n += v
	}
	return n
}

func stat(t *testing.T, e *testserver.Envoy, name string) uint64 {
	t.Helper()
	n, err := e.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What a client says about who it is never reaches the upstream, however often and in whatever spelling it says it.
func TestEA_01_client_sent_identity_headers(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{})
	for _, tt := range []struct {
		name   string
		header []string
	}{
		{"none", nil},
		{"once", []string{"x-sentinel-tenant", "victim"}},
		{"twice", []string{"x-sentinel-tenant", "victim", "x-sentinel-tenant", "victim"}},
		{"in capitals", []string{"X-SENTINEL-TENANT", "victim"}},
		{"both headers, both spellings", []string{
			"X-Sentinel-Tenant", "victim", "x-sentinel-tenant", "victim", "X-Sentinel-Subject", "root", "x-sentinel-subject", "root",
		}},
		{"empty", []string{"x-sentinel-tenant", "", "x-sentinel-subject", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := get(t, s, "/v1/catalog", s.Token("t1"), tt.header...).Seen()
			if got := seen.Header["X-Sentinel-Tenant"]; !slices.Equal(got, []string{"t1"}) {
				t.Errorf("the upstream saw the tenants %q", got)
			}
			if got := seen.Header["X-Sentinel-Subject"]; !slices.Equal(got, []string{"alice"}) {
				t.Errorf("the upstream saw the subjects %q", got)
			}
			denied := get(t, s, "/v1/catalog", "", tt.header...)
			if denied.Status != http.StatusUnauthorized || denied.Header.Get("X-Sentinel-Tenant") != "" {
				t.Errorf("without a token: %v, tenant header %q", denied, denied.Header.Get("X-Sentinel-Tenant"))
			}
		})
	}
	t.Run("with an underscore", func(t *testing.T) {
		// Another header to Envoy, the same one to many upstreams.
		if r := get(t, s, "/v1/catalog", s.Token("t1"), "x_sentinel_tenant", "victim"); r.Status != http.StatusBadRequest {
			t.Errorf("%v, want 400", r)
		}
	})
}

// However a path is spelled, what matched the route counts in the route's one bucket, and what did not is not served.
func TestEA_06_path_spellings_share_one_bucket(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{})
	spellings := []struct {
		path string
		want int // for a tenant that has requests left
	}{
		{"/v1/orders", http.StatusOK},
		{"/v1/orders?y=1", http.StatusOK},
		{"//v1///orders", http.StatusOK},
		{"/v1/../v1/orders", http.StatusOK},
		{"/v1/./orders", http.StatusOK},
		{"/v1/%6frders", http.StatusOK},
		{"/v1%2Forders", http.StatusTemporaryRedirect},
		{"/v1%5corders", http.StatusTemporaryRedirect},
		{"/V1/orders", http.StatusNotFound},
		{"/v1/orders;a=1", http.StatusNotFound},
		{"/v1/orders/", http.StatusNotFound},
	}
	for i, sp := range spellings {
		token := s.Token(fmt.Sprint("speller-", i))
		if r := get(t, s, sp.path, token); r.Status != sp.want {
			t.Errorf("%s: %v, want %d", sp.path, r, sp.want)
		}
		// Whatever it was, the plain spelling sees what it took.
		want := "2"
		if sp.want == http.StatusOK {
			want = "1"
		}
		if got := get(t, s, "/v1/orders", token).Header.Get("RateLimit-Remaining"); got != want {
			t.Errorf("after %s: %s remaining, want %s", sp.path, got, want)
		}
	}
	token := s.Token("all-of-them")
	exhaust(t, s, "/v1/orders", token)
	for _, sp := range spellings {
		if r := get(t, s, sp.path, token); r.Status == http.StatusOK {
			t.Errorf("%s was served although the bucket is empty", sp.path)
		}
	}
}

// A descriptor value that is no UTF-8 reaches the handler, repaired, and has a bucket of its own.
func TestRLS_25_invalid_utf8_through_envoy(t *testing.T) {
	t.Parallel()
	// The tenant of the route /v1/search is what the client says: only so can its bytes be the bucket's.
	const verified = `- metadata:
                        descriptor_key: tenant
                        source: DYNAMIC
                        metadata_key: { key: envoy.filters.http.ext_authz, path: [ { key: tenant } ] }
                        skip_if_absent: true
`
	s := start(t, story.Options{Bootstrap: func(bootstrap string) string {
		return strings.Replace(bootstrap, verified, "- request_headers: { descriptor_key: tenant, header_name: x-tenant }\n", 1)
	}})
	say := func(tenant string) *story.Response {
		return get(t, s, "/v1/search", s.Token("acme"), "X-Tenant", tenant)
	}
	for i := range 5 {
		want := http.StatusOK
		if i >= 3 {
			want = http.StatusTooManyRequests
		}
		if r := say("a\xffb"); r.Status != want {
			t.Errorf("request %d as a\\xffb: %v, want %d", i+1, r, want)
		}
	}
	if r := say("a\uFFFDb"); r.Status != http.StatusTooManyRequests {
		t.Errorf("as a\\uFFFDb, what a\\xffb is repaired to: %v, want 429", r)
	}
	for _, other := range []string{"ab", "a?b", "a"} {
		if r := say(other); r.Status != http.StatusOK {
			t.Errorf("as %s: %v, want 200", other, r)
		}
	}
	if n := unanswered(t, s); n != 0 {
		t.Errorf("Envoy got no usable answer %d times", n)
	}
	repaired, err := s.Sentinel.Metric(t.Context(), "sentinel_repaired_messages_total")
	if err != nil || repaired != 5 {
		t.Errorf("sentinel_repaired_messages_total = %v, %v; want 5", repaired, err)
	}
}

// Where an operator lets requests pass while ext_authz is away, the upstream is not told by a header that clients can forge.
func TestEA_16_failure_mode_header_is_stripped(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{
		Bootstrap: replaceOnce(t, "failure_mode_allow: false", "failure_mode_allow: true\n              failure_mode_allow_header_add: true"),
	})
	s.Sentinel.Kill()
	r := get(t, s, "/v1/catalog", "", "x-envoy-auth-failure-mode-allowed", "false")
	if r.Status != http.StatusOK {
		t.Fatalf("%v, want 200: the filter lets requests pass", r)
	}
	if n := stat(t, s.Envoy, "cluster.upstream.ext_authz.failure_mode_allowed"); n != 1 {
		t.Errorf("failure_mode_allowed = %d, want 1", n)
	}
	for name, values := range r.Seen().Header {
		if strings.Contains(strings.ToLower(name), "failure-mode") {
			t.Errorf("the upstream saw %s: %q", name, values)
		}
	}
}

// A gRPC client is told RESOURCE_EXHAUSTED by both filters: UNAVAILABLE would have it try again at once.
func TestEA_11_grpc_client(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{})
	conn, err := grpc.NewClient(strings.TrimPrefix(s.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, path := range []string{"/v1/orders", "/v1/search"} {
		token := s.Token("grpc-" + path)
		exhaust(t, s, path, token)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		var header metadata.MD
		err := conn.Invoke(ctx, path, &emptypb.Empty{}, &emptypb.Empty{}, grpc.Header(&header), grpc.Trailer(&header))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v, want ResourceExhausted", path, err)
		}
		if got := header.Get("x-sentinel-reason"); !slices.Equal(got, []string{"RATE_LIMITED"}) {
			t.Errorf("%s: x-sentinel-reason %q", path, got)
		}
		if got := header.Get("retry-after"); len(got) != 1 {
			t.Errorf("%s: retry-after %q", path, got)
		}
	}
	t.Run("a plain client sees no grpc-status", func(t *testing.T) {
		r := get(t, s, "/v1/orders", s.Token("grpc-/v1/orders"))
		if r.Status != http.StatusTooManyRequests || r.Header.Get("Grpc-Status") != "" {
			t.Errorf("%v with grpc-status %q", r, r.Header.Get("Grpc-Status"))
		}
	})
}

// A proxy in front that retries failures does not retry a denial, which would make more of the load that was denied.
func TestHD_05_denials_are_not_retried(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{Store: testserver.Valkey})
	host, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	front := testserver.StartEnvoy(t, fmt.Sprintf(`
static_resources:
  listeners:
  - name: front
    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: / }
                route: { cluster: inner, retry_policy: { retry_on: "5xx,retriable-4xx", num_retries: 3 } }
          http_filters:
          - name: router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: inner
    type: STATIC
    load_assignment:
      cluster_name: inner
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: %s, port_value: %s } } } } ] } ]
`, host, port))
	addr, err := front.Addr("front")
	if err != nil {
		t.Fatal(err)
	}
	through := *s
	through.URL = "http://" + addr

	for _, path := range []string{"/v1/orders", "/v1/search"} {
		token := s.Token("retry")
		exhaust(t, &through, path, token)
		if r := get(t, &through, path, token); r.Status != http.StatusTooManyRequests {
			t.Errorf("%s: %v, want 429", path, r)
		}
	}
	if n := stat(t, front, "cluster.inner.upstream_rq_retry"); n != 0 {
		t.Errorf("denials were retried %d times", n)
	}
	if n := s.Upstream.Requests(); n != 6 {
		t.Errorf("%d requests reached the upstream, want the 6 that were allowed", n)
	}
	// The same policy does retry what a retry may help.
	s.Store.Kill()
	if r := get(t, &through, "/v1/payments", s.Token("retry")); r.Status != http.StatusServiceUnavailable {
		t.Errorf("fail-closed: %v, want 503", r)
	}
	if n := stat(t, front, "cluster.inner.upstream_rq_retry"); n == 0 {
		t.Error("a 503 was not retried: this test shows nothing")
	}
}

// An answer that no limit had a part in carries no header of ours, and none of Envoy's rate limit headers.
func TestHD_08_no_headers_when_nobody_asked(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{
		Bootstrap: replaceOnce(t, "enable_x_ratelimit_headers: DRAFT_VERSION_03\n", `enable_x_ratelimit_headers: "OFF"`+"\n"),
	})
	bare := func(name string, r *story.Response, want int) {
		t.Helper()
		if r.Status != want {
			t.Errorf("%s: %v, want %d", name, r, want)
		}
		for header := range r.Header {
			if lower := strings.ToLower(header); strings.Contains(lower, "ratelimit") || strings.Contains(lower, "sentinel") ||
				lower == "retry-after" {
				t.Errorf("%s: has %s: %q", name, header, r.Header[header])
			}
		}
	}
	bare("a route that asks nobody", get(t, s, "/healthz", ""), http.StatusOK)
	bare("an answer of Envoy's own before the filters", get(t, s, "/v1/orders", s.Token("a"), "x_y", "1"), http.StatusBadRequest)
	bare("a redirect", get(t, s, "/v1%2Forders", s.Token("a")), http.StatusTemporaryRedirect)
	bare("an admission by the ratelimit filter, headers off", get(t, s, "/v1/search", s.Token("a")), http.StatusOK)
}
