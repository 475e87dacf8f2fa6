package envoy

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
)

// The buckets never refill, so each test knows what is left whatever the time.
const policies = `
domain: shop
endpoints:
  one: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]}
  two: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 2, refill: 0, max_cost: 2}]}
  three: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 3, refill: 0}]}
  ten: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 10, refill: 0, max_cost: 10}]}
  narrow: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 5, refill: 0}]}
  broad: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 7, refill: 0}]}
  huge: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 4400000000, refill: 1/s}]}
  minute: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: sliding_window, limit: 1, window: 1m}]}
  login:
    policy_version: 1
    identity: anonymous
    fail_mode: fail_closed
    limits: [{scope: client_ip, algorithm: sliding_window, limit: 2, window: 1d}]
  scoped: {policy_version: 1, fail_mode: fail_closed, required_scopes: [orders.write], limits: unlimited}
  free: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}
`

var hmacSecret = identity.Secret("0123456789abcdef0123456789abcdef")

// startReal serves the real engine over a memory store, with real identities and real metrics.
func startReal(t testing.TB, change ...func(*Config)) (*running, *prometheus.Registry) {
	t.Helper()
	engine, registry, recorder := realEngine(t)
	s := start(t, engine, append([]func(*Config){func(cfg *Config) { cfg.Recorder = recorder }}, change...)...)
	return s, registry
}

func realEngine(t testing.TB) (*rls.Engine, *prometheus.Registry, *telemetry.Recorder) {
	t.Helper()
	fatal := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	set, err := descriptors.Parse([]descriptors.File{{Name: "shop.yaml", Data: []byte(policies)}}, descriptors.Options{})
	fatal(err)
	key, err := identity.NewHMACKey("HS256", "k", identity.Secret(hmacSecret))
	fatal(err)
	keys, err := identity.NewKeys(key)
	fatal(err)
	identities, err := identity.New(identity.Config{
		Issuers: []identity.Issuer{{Keys: []identity.KeySource{keys}, Algorithms: []string{"HS256"}}},
		Cookie:  identity.CookieConfig{Secrets: []identity.Secret{identity.Secret("fedcba9876543210fedcba9876543210")}},
	})
	fatal(err)
	store, err := memory.New(memory.Config{MaxBuckets: 10_000})
	fatal(err)
	registry := prometheus.NewPedanticRegistry()
	recorder := telemetry.New(telemetry.Config{Registerer: registry, Log: slog.New(slog.DiscardHandler)})
	engine, err := rls.New(rls.Config{Store: store, Identifier: identities, Recorder: recorder})
	fatal(err)
	fatal(engine.Use(set))
	return engine, registry, recorder
}

// asking builds a descriptor for a tenant at an endpoint.
func asking(endpoint, tenant string) *ratelimitv3.RateLimitDescriptor {
	return entries("tenant", tenant, "endpoint_id", endpoint)
}

// token signs a token for a tenant. change may alter its claims.
func token(t testing.TB, tenant string, change ...func(jwt.MapClaims)) string {
	t.Helper()
	claims := jwt.MapClaims{"sub": tenant, "exp": time.Now().Add(time.Hour).Unix()}
	for _, f := range change {
		f(claims)
	}
	unsigned := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
	unsigned.Header["kid"] = "k"
	signed, err := unsigned.SignedString([]byte(hmacSecret))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func bearer(t testing.TB, tenant string) map[string]string {
	return map[string]string{"authorization": "Bearer " + token(t, tenant)}
}

func (r *running) limit(t *testing.T, req *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	t.Helper()
	resp, err := r.rls.ShouldRateLimit(within(t), req)
	if err != nil {
		t.Fatalf("ShouldRateLimit: %v", err)
	}
	if len(resp.GetStatuses()) != len(req.GetDescriptors()) {
		t.Errorf("%d statuses for %d descriptors", len(resp.GetStatuses()), len(req.GetDescriptors()))
	}
	return resp
}

func (r *running) check(t *testing.T, req *authv3.CheckRequest) *authv3.CheckResponse {
	t.Helper()
	resp, err := r.authz.Check(within(t), req)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	return resp
}

// step is a question and what it is to be answered.
type step struct {
	ask       *rlsv3.RateLimitRequest
	over      bool
	remaining []uint32
}

func (r *running) play(t *testing.T, steps ...step) {
	t.Helper()
	for i, s := range steps {
		resp := r.limit(t, s.ask)
		var remaining []uint32
		for _, st := range resp.GetStatuses() {
			remaining = append(remaining, st.GetLimitRemaining())
		}
		over := resp.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
		if over != s.over || !slices.Equal(remaining, s.remaining) {
			t.Errorf("step %d: over limit %v, remaining %v; want %v, %v", i, over, remaining, s.over, s.remaining)
		}
	}
}

func headerOf(resp *rlsv3.RateLimitResponse, name string) string {
	for _, h := range resp.GetResponseHeadersToAdd() {
		if h.GetKey() == name {
			return h.GetValue()
		}
	}
	return ""
}

func TestRateLimitServiceOverTheEngine(t *testing.T) {
	t.Parallel()
	s, _ := startReal(t)

	t.Run("RLS-03 each descriptor's own hits, else the request's", func(t *testing.T) {
		s.play(t, step{
			ask: &rlsv3.RateLimitRequest{Domain: "shop", HitsAddend: 5, Descriptors: []*ratelimitv3.RateLimitDescriptor{
				asking("ten", "rls-03-a"), withHits(asking("ten", "rls-03-b"), 2),
			}},
			remaining: []uint32{5, 8},
		})
	})

	t.Run("a descriptor's explicit 0 spends nothing", func(t *testing.T) {
		peek := question("shop", withHits(asking("one", "peek"), 0))
		s.play(t,
			step{ask: peek, remaining: []uint32{1}},
			step{ask: peek, remaining: []uint32{1}},
			step{ask: question("shop", asking("one", "peek")), remaining: []uint32{0}},
			step{ask: peek, over: true, remaining: []uint32{0}},
		)
	})

	t.Run("RLS-04 the largest weight cannot fit and costs nothing", func(t *testing.T) {
		heavy := &rlsv3.RateLimitRequest{
			Domain: "shop", HitsAddend: math.MaxUint32,
			Descriptors: []*ratelimitv3.RateLimitDescriptor{asking("two", "rls-04")},
		}
		resp := s.limit(t, heavy)
		if resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT || headerOf(resp, "retry-after") != "" {
			t.Errorf("got %v; want OVER_LIMIT without Retry-After: no wait would help", resp)
		}
		s.play(t, step{ask: question("shop", asking("two", "rls-04")), remaining: []uint32{1}})
	})

	t.Run("RLS-05 weights beyond 63 bits", func(t *testing.T) {
		for _, hits := range []uint64{1 << 63, 1<<63 - 1, math.MaxUint64, 9223372036855} {
			if resp := s.limit(t, question("shop", withHits(asking("two", "rls-05"), hits))); resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("%d hits: %v", hits, resp)
			}
		}
		s.play(t, step{ask: question("shop", asking("two", "rls-05")), remaining: []uint32{1}})
	})

	t.Run("RLS-06 an override is ignored, of whatever unit", func(t *testing.T) {
		for i, unit := range []typev3.RateLimitUnit{0, 1, 99} {
			d := asking("three", "rls-06")
			d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1000, Unit: unit}
			s.play(t, step{ask: question("shop", d), remaining: []uint32{uint32(2 - i)}})
		}
		s.play(t, step{ask: question("shop", asking("three", "rls-06")), over: true, remaining: []uint32{0}})
	})

	t.Run("RLS-09 a descriptor without entries asks nothing", func(t *testing.T) {
		for range 3 {
			resp := s.limit(t, question("shop", entries()))
			status := resp.GetStatuses()[0]
			if resp.GetOverallCode() != rlsv3.RateLimitResponse_OK || status.GetCode() != rlsv3.RateLimitResponse_OK ||
				status.GetCurrentLimit() != nil || status.GetDurationUntilReset() != nil {
				t.Errorf("got %v; want OK with an empty status", resp)
			}
		}
	})

	t.Run("RLS-13 a denied request spends nothing", func(t *testing.T) {
		both := question("shop", asking("narrow", "rls-13"), asking("broad", "rls-13"))
		for i := range uint32(5) {
			s.play(t, step{ask: both, remaining: []uint32{4 - i, 6 - i}})
		}
		s.play(t,
			step{ask: both, over: true, remaining: []uint32{0, 2}},
			step{ask: both, over: true, remaining: []uint32{0, 2}},
			step{ask: question("shop", asking("broad", "rls-13")), remaining: []uint32{1}},
			step{ask: question("shop", asking("broad", "rls-13")), remaining: []uint32{0}},
			step{ask: question("shop", asking("broad", "rls-13")), over: true, remaining: []uint32{0}},
		)
		resp := s.limit(t, both)
		if got := resp.GetStatuses()[1].GetCode(); got != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("the second status is %v", got)
		}
	})

	t.Run("RLS-24 5000 descriptors are refused and harm nobody", func(t *testing.T) {
		many := slices.Repeat([]*ratelimitv3.RateLimitDescriptor{asking("ten", "rls-24")}, 5000)
		resp := s.limit(t, question("shop", many...))
		if resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT || headerOf(resp, "x-sentinel-reason") != "INVALID_REQUEST" {
			t.Errorf("got %v, %v", resp.GetOverallCode(), resp.GetResponseHeadersToAdd())
		}
		s.play(t, step{ask: question("shop", asking("ten", "rls-24")), remaining: []uint32{9}})
	})

	t.Run("RLS-25 text that is not UTF-8 has its own bucket", func(t *testing.T) {
		for i, want := range []rlsv3.RateLimitResponse_Code{rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT} {
			var resp rlsv3.RateLimitResponse
			frame := rateLimitFrame("shop", "tenant", "a\xff", "endpoint_id", "one")
			if err := s.invoke(t, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, frame, &resp); err != nil {
				t.Fatal(err)
			}
			if resp.GetOverallCode() != want {
				t.Errorf("call %d: %v, want %v", i, resp.GetOverallCode(), want)
			}
		}
		s.play(t, step{ask: question("shop", asking("one", "a")), remaining: []uint32{0}})
	})

	t.Run("RLS-26 case and normal form are significant", func(t *testing.T) {
		for _, tenant := range []string{"gold", "Gold", "caf\u00e9", "cafe\u0301"} {
			s.play(t,
				step{ask: question("shop", asking("one", tenant)), remaining: []uint32{0}},
				step{ask: question("shop", asking("one", tenant)), over: true, remaining: []uint32{0}},
			)
		}
		if resp := s.limit(t, question("shop", asking("One", "gold"))); headerOf(resp, "x-sentinel-reason") != "UNKNOWN_ENDPOINT" {
			t.Errorf("endpoint One: %v", resp)
		}
		if resp := s.limit(t, question("Shop", asking("one", "gold"))); resp.GetOverallCode() != rlsv3.RateLimitResponse_OK {
			t.Errorf("domain Shop: %v; it is unknown, and not ours", resp)
		}
	})

	t.Run("HD-07 a limit beyond 32 bits shows as the largest", func(t *testing.T) {
		resp := s.limit(t, question("shop", asking("huge", "hd-07")))
		status := resp.GetStatuses()[0]
		if status.GetLimitRemaining() != math.MaxUint32 || status.GetCurrentLimit().GetRequestsPerUnit() != math.MaxUint32 {
			t.Errorf("got %v", status)
		}
	})

	t.Run("HD-06 a denial says when to come back", func(t *testing.T) {
		s.limit(t, question("shop", asking("minute", "hd-06")))
		resp := s.limit(t, question("shop", asking("minute", "hd-06")))
		reset := resp.GetStatuses()[0].GetDurationUntilReset()
		if resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT || reset.GetNanos() != 0 || reset.GetSeconds() < 60 || reset.GetSeconds() > 120 {
			t.Errorf("duration_until_reset %v", reset)
		}
		var retry int64
		if _, err := fmt.Sscan(headerOf(resp, "retry-after"), &retry); err != nil || retry < 1 || retry > reset.GetSeconds() {
			t.Errorf("Retry-After %q with reset %v", headerOf(resp, "retry-after"), reset)
		}
		if !strings.Contains(string(resp.GetRawBody()), `"code":"rate_limited"`) {
			t.Errorf("body %s", resp.GetRawBody())
		}
	})

	t.Run("malformed requests are refused", func(t *testing.T) {
		for _, req := range []*rlsv3.RateLimitRequest{{}, question("shop"), question("", asking("one", "x"))} {
			resp := s.limit(t, req)
			if resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT || headerOf(resp, "x-sentinel-reason") != "INVALID_REQUEST" {
				t.Errorf("%v: %v", req, resp)
			}
		}
	})
}

// denied returns the HTTP status of a refusal, 0 for an admission.
func denied(resp *authv3.CheckResponse) int32 {
	if resp.GetStatus().GetCode() == 0 {
		return 0
	}
	return int32(resp.GetDeniedResponse().GetStatus().GetCode())
}

func TestAuthorizationOverTheEngine(t *testing.T) {
	t.Parallel()
	s, _ := startReal(t)

	t.Run("a tenant is limited and told apart from others", func(t *testing.T) {
		for i, want := range []int32{0, 429} {
			resp := s.check(t, checking("one", bearer(t, "acme")))
			if denied(resp) != want {
				t.Errorf("call %d: %v", i, resp)
			}
		}
		resp := s.check(t, checking("one", bearer(t, "globex")))
		if denied(resp) != 0 || valueOf(resp.GetOkResponse().GetHeaders(), "x-sentinel-tenant") != "globex" ||
			valueOf(resp.GetOkResponse().GetResponseHeadersToAdd(), "ratelimit-remaining") != "0" {
			t.Errorf("another tenant: %v", resp)
		}
	})

	t.Run("EA-03 two credentials are none", func(t *testing.T) {
		one, two := token(t, "t1"), token(t, "t2")
		for _, headers := range []*authv3.CheckRequest{
			checking("ten", map[string]string{"authorization": "Bearer " + one + ",Bearer " + two}),
			checking("ten", map[string]string{"authorization": "Bearer " + one + ", "}),
			withRaw("ten", rawHeader("authorization", "Bearer "+one), rawHeader("authorization", "Bearer "+two)),
			withRaw("ten", rawHeader("authorization", "Bearer "+one), rawHeader("Authorization", "")),
			withRaw("ten", rawHeader("authorization", "Bearer "+one+",Bearer "+two)),
		} {
			resp := s.check(t, headers)
			if got := valueOf(resp.GetDeniedResponse().GetHeaders(), "www-authenticate"); denied(resp) != 401 || got != `Bearer realm="sentinel", error="invalid_token"` {
				t.Errorf("got %d, WWW-Authenticate %q", denied(resp), got)
			}
		}
	})

	t.Run("EA-06 one bucket however the path is spelled", func(t *testing.T) {
		admitted := 0
		for _, path := range []string{
			"/api/v1/x", "/api//v1/x", "/api/v1/../v1/x", "/api/v1%2Fx", "/API/v1/x", "/api/v1/x;a=1", "/api/v1/x?y=1",
		} {
			req := checking("three", bearer(t, "ea-06"))
			req.GetAttributes().GetRequest().GetHttp().Path = path
			req.GetAttributes().GetRequest().GetHttp().Headers[":path"] = path
			if denied(s.check(t, req)) == 0 {
				admitted++
			}
		}
		if admitted != 3 {
			t.Errorf("%d admitted of a bucket of 3", admitted)
		}
	})

	t.Run("EA-08 without an endpoint id: 401, then 404", func(t *testing.T) {
		missing := checking("", nil)
		missing.GetAttributes().RouteMetadataContext = nil
		namespace := checking("", nil)
		namespace.GetAttributes().GetRouteMetadataContext().GetFilterMetadata()["sentinel"] = &structpb.Struct{}
		for name, req := range map[string]*authv3.CheckRequest{
			"no route metadata": missing, "the namespace alone": namespace, "empty": checking("", nil), "unknown": checking("nobody", nil),
		} {
			if got := denied(s.check(t, req)); got != 401 {
				t.Errorf("%s, without a token: %d", name, got)
			}
			for range 2 { // no bucket that such routes would share
				authenticated := proto.CloneOf(req)
				authenticated.GetAttributes().GetRequest().GetHttp().Headers = bearer(t, "ea-08")
				if got := denied(s.check(t, authenticated)); got != 404 {
					t.Errorf("%s, with a token: %d", name, got)
				}
			}
		}
	})

	t.Run("EA-14 whatever is missing is refused", func(t *testing.T) {
		for _, req := range []*authv3.CheckRequest{
			{},
			{Attributes: &authv3.AttributeContext{}},
			{Attributes: &authv3.AttributeContext{Request: &authv3.AttributeContext_Request{}}},
			from(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/envoy"}}}),
			from(socket("192.0.2.7")),
		} {
			if got := denied(s.check(t, req)); got != 401 {
				t.Errorf("%v: %d, want 401", req, got)
			}
		}
	})

	t.Run("EA-15 schemes", func(t *testing.T) {
		tok, client := token(t, "ea-15"), 1
		for value, want := range map[string]int32{
			"bearer " + tok: 0, "BEARER " + tok: 0, "Bearer  " + tok: 0,
			"Bearer\t" + tok: 401, "Bearer": 401, "Bearer ": 401, "Basic dTpw": 401, "Bearer " + tok + " extra": 401, "BearerX " + tok: 401,
			"": 401, tok: 401,
		} {
			if got := denied(s.check(t, checking("ten", map[string]string{"authorization": value}))); got != want {
				t.Errorf("%q: %d, want %d", value, got, want)
			}
			address := fmt.Sprintf("192.0.2.%d", client)
			client++
			login := checking("login", map[string]string{"authorization": value, "x-sentinel-client-ip": address})
			if got := denied(s.check(t, login)); got != 0 {
				t.Errorf("%q at an anonymous endpoint: %d; Authorization is not read there", value, got)
			}
		}
	})

	t.Run("SEC-04 every 401 has the same body", func(t *testing.T) {
		good := token(t, "sec-04")
		bodies := map[string]bool{}
		for _, value := range []string{
			good[:len(good)-4] + "AAAA", // another MAC
			token(t, "sec-04", func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Hour).Unix() }),
			"eyJhbGciOiJIUzI1NiIsImtpZCI6Im90aGVyIn0" + good[strings.IndexByte(good, '.'):], // another kid
			"garbage",
		} {
			for _, endpoint := range []string{"one", "nobody"} {
				resp := s.check(t, checking(endpoint, map[string]string{"authorization": "Bearer " + value}))
				if denied(resp) != 401 {
					t.Errorf("%q: %d", value, denied(resp))
				}
				bodies[resp.GetDeniedResponse().GetBody()] = true
			}
		}
		if len(bodies) != 1 {
			t.Errorf("bodies differ: %v", bodies)
		}
	})

	t.Run("HD-04 a tenant beyond ASCII", func(t *testing.T) {
		resp := s.check(t, checking("one", bearer(t, "café")))
		if got := valueOf(resp.GetOkResponse().GetHeaders(), "x-sentinel-tenant"); got != "caf%C3%A9" {
			t.Errorf("x-sentinel-tenant %q", got)
		}
		if got := resp.GetDynamicMetadata().AsMap()["tenant"]; got != "café" {
			t.Errorf("metadata tenant %q: the ratelimit filter must count the same tenant", got)
		}
	})

	t.Run("EA-05 a cookie comes with an admission only", func(t *testing.T) {
		for i, want := range []bool{true, true, false} {
			resp := s.check(t, checking("login", map[string]string{"x-sentinel-client-ip": "198.51.100.1"}))
			set := resp.GetOkResponse().GetResponseHeadersToAdd()
			if got := valueOf(set, "set-cookie") != ""; got != want || (denied(resp) == 0) != want {
				t.Errorf("call %d: %d, headers %v", i, denied(resp), set)
			}
			if strings.Contains(resp.GetDeniedResponse().String(), "sentinel_anon_id") {
				t.Errorf("call %d: the refusal carries a cookie", i)
			}
		}
	})

	t.Run("a scope that is missing", func(t *testing.T) {
		resp := s.check(t, checking("scoped", bearer(t, "acme")))
		if got := valueOf(resp.GetDeniedResponse().GetHeaders(), "www-authenticate"); denied(resp) != 403 ||
			got != `Bearer realm="sentinel", error="insufficient_scope", scope="orders.write"` {
			t.Errorf("%d, WWW-Authenticate %q", denied(resp), got)
		}
	})
}

func withRaw(endpoint string, headers ...*corev3.HeaderValue) *authv3.CheckRequest {
	req := checking(endpoint, nil)
	req.GetAttributes().GetRequest().GetHttp().HeaderMap = &corev3.HeaderMap{Headers: headers}
	return req
}

// Both services spend from one bucket, so a route may change from one to the other.
func TestBothServicesShareBuckets(t *testing.T) {
	t.Parallel()
	s, _ := startReal(t)
	if got := denied(s.check(t, checking("two", bearer(t, "acme")))); got != 0 {
		t.Fatalf("Check: %d", got)
	}
	s.play(t,
		step{ask: question("shop", asking("two", "acme")), remaining: []uint32{0}},
		step{ask: question("shop", asking("two", "acme")), over: true, remaining: []uint32{0}},
	)
	if got := denied(s.check(t, checking("two", bearer(t, "acme")))); got != 429 {
		t.Errorf("Check: %d, want 429", got)
	}
}

// Nothing that a client sent becomes a label, and nothing it sent can make the metrics panic.
func TestMT_02_NoClientTextInLabels(t *testing.T) {
	t.Parallel()
	s, registry := startReal(t)
	const mark = "mt02"
	for _, evil := range []string{mark + "\xff", mark + "\x00\r\n", mark + "é", strings.Repeat(mark, 1000)} {
		for _, frame := range [][]byte{
			rateLimitFrame("shop", "tenant", evil, "endpoint_id", evil),
			rateLimitFrame("shop", "tenant", evil, "endpoint_id", "one"),
			rateLimitFrame(evil, evil, evil),
		} {
			if err := s.invoke(t, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, frame, &rlsv3.RateLimitResponse{}); err != nil {
				t.Errorf("%q: %v", evil, err)
			}
		}
		if err := s.invoke(t, authv3.Authorization_Check_FullMethodName, checkFrame("authorization", "Bearer "+evil, evil), &authv3.CheckResponse{}); err != nil {
			t.Errorf("%q: %v", evil, err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	repaired := 0.0
	for _, family := range families {
		if strings.Contains(family.String(), mark) {
			t.Errorf("client text in %v", family)
		}
		if family.GetName() == "sentinel_repaired_messages_total" {
			for _, m := range family.GetMetric() {
				repaired += m.GetCounter().GetValue()
			}
		}
	}
	if repaired != 4 {
		t.Errorf("%v repaired messages, want 4", repaired)
	}
}
