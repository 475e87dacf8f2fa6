package envoy

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func newAuthorizationService() *authorizationService {
	names := Names{}.withDefaults()
	return &authorizationService{names: &names, challenges: newChallenges("sentinel", ""), rateLimitHeaders: true}
}

func httpRequest(headers map[string]string, raw ...*corev3.HeaderValue) *authv3.CheckRequest {
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Headers: headers, HeaderMap: &corev3.HeaderMap{Headers: raw},
		}},
	}}
}

func rawHeader(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
}

func from(address *corev3.Address) *authv3.CheckRequest {
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{Source: &authv3.AttributeContext_Peer{Address: address}}}
}

func socket(address string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: address}}}
}

func TestCheckRequestMapping(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		in     *authv3.CheckRequest
		want   rls.CheckRequest
		isGRPC bool
	}{
		{name: "EA-14 nil", in: nil},
		{name: "EA-14 no attributes", in: &authv3.CheckRequest{}},
		{name: "EA-14 empty attributes", in: &authv3.CheckRequest{Attributes: &authv3.AttributeContext{}}},
		{name: "EA-14 an empty request", in: &authv3.CheckRequest{Attributes: &authv3.AttributeContext{Request: &authv3.AttributeContext_Request{}}}},
		{name: "EA-14 nil parts", in: &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
			Source:               &authv3.AttributeContext_Peer{},
			RouteMetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"sentinel": nil}},
			Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
				HeaderMap: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{nil, {}}},
			}},
		}}},
		{name: "EA-14 the source is a pipe", in: from(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/envoy"}}})},
		{name: "EA-14 the source is no address", in: from(socket("upstream.local"))},
		{name: "EA-14 network ext_authz", in: from(socket("192.0.2.7")), want: rls.CheckRequest{
			Credentials: identity.Credentials{Peer: netip.MustParseAddr("192.0.2.7")},
		}},
		{name: "an IPv6 peer", in: from(socket("2001:db8::77")), want: rls.CheckRequest{
			Credentials: identity.Credentials{Peer: netip.MustParseAddr("2001:db8::77")},
		}},
		{
			name: "map mode", in: httpRequest(map[string]string{
				":path": "/v1/orders", "authorization": "Bearer t", "cookie": "a=1,b=2", "x-sentinel-client-ip": "192.0.2.1",
				"x-forwarded-for": "203.0.113.9, 198.51.100.7", "x-sentinel-tenant": "victim",
			}),
			want: rls.CheckRequest{Credentials: identity.Credentials{
				Authorization: []string{"Bearer t"}, Cookies: []string{"a=1,b=2"}, ClientAddress: []string{"192.0.2.1"},
				ForwardedFor: []string{"203.0.113.9, 198.51.100.7"},
			}},
		},
		{
			name: "raw mode keeps repeats and bytes", in: httpRequest(nil, rawHeader("authorization", "Bearer \xff"),
				rawHeader("cookie", "a=1"), rawHeader("cookie", "b=2"), rawHeader("x-sentinel-client-ip", "192.0.2.1")),
			want: rls.CheckRequest{Credentials: identity.Credentials{
				Authorization: []string{"Bearer \xff"}, Cookies: []string{"a=1", "b=2"}, ClientAddress: []string{"192.0.2.1"},
			}},
		},
		{
			name: "raw mode with value", in: httpRequest(nil, &corev3.HeaderValue{Key: "authorization", Value: "Bearer t"}),
			want: rls.CheckRequest{Credentials: identity.Credentials{Authorization: []string{"Bearer t"}}},
		},
		{
			name: "names in any case", in: httpRequest(map[string]string{"Authorization": "Bearer t"}, rawHeader("COOKIE", "a=1")),
			want: rls.CheckRequest{Credentials: identity.Credentials{Authorization: []string{"Bearer t"}, Cookies: []string{"a=1"}}},
		},
		{
			name: "EA-03 joined by Envoy: left whole, for the verification to refuse",
			in:   httpRequest(map[string]string{"authorization": "Bearer a,Bearer b"}),
			want: rls.CheckRequest{Credentials: identity.Credentials{Authorization: []string{"Bearer a,Bearer b"}}},
		},
		{
			name: "EA-03 both modes filled: both count", in: httpRequest(map[string]string{"authorization": "Bearer a"}, rawHeader("authorization", "Bearer b")),
			want: rls.CheckRequest{Credentials: identity.Credentials{Authorization: []string{"Bearer a", "Bearer b"}}},
		},
		{name: "EA-03 an empty one counts", in: httpRequest(nil, rawHeader("authorization", "")), want: rls.CheckRequest{
			Credentials: identity.Credentials{Authorization: []string{""}},
		}},
		{name: "EA-11 gRPC", in: httpRequest(map[string]string{"content-type": "application/grpc"}), isGRPC: true},
		{name: "EA-11 gRPC with a subtype", in: httpRequest(nil, rawHeader("Content-Type", "application/gRPC+proto")), isGRPC: true},
		{name: "EA-11 not gRPC", in: httpRequest(map[string]string{"content-type": "application/json", "accept": "application/grpc"})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, isGRPC := newAuthorizationService().checkRequest(tt.in)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || isGRPC != tt.isGRPC {
				t.Errorf("isGRPC %v, want %v; mapping (-want +got):\n%s", isGRPC, tt.isGRPC, diff)
			}
		})
	}
}

func TestEndpointID(t *testing.T) {
	t.Parallel()
	route := func(v *structpb.Value) *authv3.AttributeContext {
		return &authv3.AttributeContext{RouteMetadataContext: routeMetadata(v)}
	}
	with := func(a *authv3.AttributeContext, extension string) *authv3.AttributeContext {
		a.ContextExtensions = map[string]string{"endpoint_id": extension}
		return a
	}
	list, err := structpb.NewList([]any{"paid"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		in   *authv3.AttributeContext
		want string
	}{
		{"EA-08 nothing", &authv3.AttributeContext{}, ""},
		{"EA-08 the namespace without the key", &authv3.AttributeContext{RouteMetadataContext: &corev3.Metadata{
			FilterMetadata: map[string]*structpb.Struct{"sentinel": {}},
		}}, ""},
		{"EA-08 another namespace", &authv3.AttributeContext{RouteMetadataContext: &corev3.Metadata{
			FilterMetadata: map[string]*structpb.Struct{"other": routeMetadata(structpb.NewStringValue("paid")).GetFilterMetadata()["sentinel"]},
		}}, ""},
		{"EA-08 empty", route(structpb.NewStringValue("")), ""},
		{"route metadata", route(structpb.NewStringValue("paid")), "paid"},
		{"context extension", with(&authv3.AttributeContext{}, "paid"), "paid"},
		{"route metadata wins", with(route(structpb.NewStringValue("paid")), "free"), "paid"},
		{"an empty one does not", with(route(structpb.NewStringValue("")), "paid"), "paid"},
		{"a number is none", with(route(structpb.NewNumberValue(1)), "paid"), "paid"},
		{"a list is none", route(structpb.NewListValue(list)), ""},
		{"null is none", route(structpb.NewNullValue()), ""},
		{"EA-10 dynamic metadata is never read", &authv3.AttributeContext{MetadataContext: routeMetadata(structpb.NewStringValue("free"))}, ""},
		{"EA-10 nor preferred", &authv3.AttributeContext{
			MetadataContext:      routeMetadata(structpb.NewStringValue("free")),
			RouteMetadataContext: routeMetadata(structpb.NewStringValue("paid")),
		}, "paid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := newAuthorizationService().endpointID(tt.in); got != tt.want {
				t.Errorf("endpoint id %q, want %q", got, tt.want)
			}
		})
	}
}

// Path, query, host and headers spelled in any way leave the question as it is.
func TestEA_06_PathIsNeverUsed(t *testing.T) {
	t.Parallel()
	want, _ := newAuthorizationService().checkRequest(checking("orders.create", nil))
	for _, path := range []string{
		"/api/v1/x", "/api//v1/x", "/api/v1/../v1/x", "/api/v1%2Fx", "/API/v1/x", "/api/v1/x;a=1", "/api/v1/x?y=1",
		"/api/v1/x?endpoint_id=free", "", "*", "free",
	} {
		req := checking("orders.create", map[string]string{":path": path, "endpoint_id": "free", "x-endpoint-id": "free", "x-envoy-original-path": path})
		http := req.GetAttributes().GetRequest().GetHttp()
		http.Path, http.Query, http.Fragment, http.Host, http.Method = path, path, path, path, path
		got, _ := newAuthorizationService().checkRequest(req)
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("path %q changes the question (-want +got):\n%s", path, diff)
		}
	}
}

func TestConfiguredNames(t *testing.T) {
	t.Parallel()
	names := Names{
		MetadataNamespace: "acme", EndpointID: "route", ClientAddressHeader: "X-Real-Client",
		TenantHeader: "X-Tenant", SubjectHeader: "x-user", ReasonHeader: "x-why",
		Metadata: MetadataNames{Tenant: "t", Subject: "s", EndpointID: "e", DecisionID: "d", Reason: "r", Policy: "p"},
	}.withDefaults()
	s := &authorizationService{names: &names, challenges: newChallenges("sentinel", "")}
	q, _ := s.checkRequest(&authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		RouteMetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"acme": {Fields: map[string]*structpb.Value{"route": structpb.NewStringValue("orders")}},
		}},
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Headers: map[string]string{"x-real-client": "192.0.2.1", "x-sentinel-client-ip": "192.0.2.2"},
		}},
	}})
	if q.EndpointID != "orders" || !slices.Equal(q.Credentials.ClientAddress, []string{"192.0.2.1"}) {
		t.Errorf("question %+v", q)
	}
	result := rls.CheckResult{
		Result:     rls.Result{Allowed: true, Reason: rls.Allowed, DecisionID: "0d", Policy: "orders"},
		EndpointID: "orders", Identity: identity.Identity{Tenant: "acme", Subject: "ann"},
	}
	golden(t, "check-configured-names", s.response(&result, false))
	result.Result = rls.Result{Reason: rls.FailClosed, RetryAfter: -1}
	golden(t, "check-configured-names-refused", s.response(&result, false))
}

func TestCheckResponses(t *testing.T) {
	t.Parallel()
	bucket := &rls.Limit{Name: "orders.create", Rule: tokenBucket(t, 100, algorithms.Rate{Tokens: 50, Seconds: 1})}
	const id = "000102030405060708090a0b0c0d0e0f"
	tenant := identity.Identity{Tenant: "acme", Subject: "ann"}
	for _, tt := range []struct {
		name   string
		result rls.CheckResult
		isGRPC bool
	}{
		{name: "check-allowed", result: rls.CheckResult{
			Result: rls.Result{
				Allowed: true, Reason: rls.Allowed, Source: rls.SourceStore, DecisionID: id, Policy: "orders.create",
				Statuses: []rls.Status{{Limit: bucket, Remaining: 99, Reset: 20 * time.Millisecond}},
			},
			EndpointID: "orders.create", Identity: tenant,
		}},
		{name: "check-allowed-identify-only", result: rls.CheckResult{
			Result:     rls.Result{Allowed: true, Reason: rls.Allowed, DecisionID: id, Policy: "orders.create", Statuses: []rls.Status{{Reset: -1}}},
			EndpointID: "orders.create", Identity: tenant,
		}},
		{name: "check-allowed-anonymous", result: rls.CheckResult{
			Result:     rls.Result{Allowed: true, Reason: rls.Allowed, DecisionID: id, Policy: "auth.login"},
			EndpointID: "auth.login", Identity: identity.Identity{Address: "192.0.2.1", SetCookie: "sentinel_anon_id=0a.1.0b; Path=/; HttpOnly"},
		}},
		{name: "check-rate-limited", result: rls.CheckResult{
			Result: rls.Result{
				Reason: rls.RateLimited, DecisionID: id, Policy: "orders.create", RetryAfter: 1500*time.Millisecond + 1,
				Statuses: []rls.Status{{OverLimit: true, Limit: bucket, Remaining: 0, Reset: 3200 * time.Millisecond}},
			},
			EndpointID: "orders.create", Identity: tenant,
		}},
		{name: "check-rate-limited-grpc", isGRPC: true, result: rls.CheckResult{
			Result:     rls.Result{Reason: rls.EmergencyLocalLimit, DecisionID: id, Policy: "orders.create", RetryAfter: -1, Statuses: []rls.Status{{OverLimit: true, Reset: -1}}},
			EndpointID: "orders.create", Identity: tenant,
		}},
		{name: "check-denied-anonymous-without-cookie", result: rls.CheckResult{
			Result:     rls.Result{Reason: rls.RateLimited, DecisionID: id, Policy: "auth.login:address", RetryAfter: time.Second},
			EndpointID: "auth.login", Identity: identity.Identity{Address: "192.0.2.1", SetCookie: "sentinel_anon_id=0a.1.0b"},
		}},
		{name: "check-fail-closed", result: rls.CheckResult{
			Result:     rls.Result{Reason: rls.FailClosed, Class: rls.ClassTimeout, DecisionID: id, Policy: "orders.create", RetryAfter: -1},
			EndpointID: "orders.create", Identity: tenant,
		}},
		{name: "check-no-credential", result: rls.CheckResult{
			Result:     rls.Result{Reason: rls.Unauthenticated, DecisionID: id, RetryAfter: -1},
			EndpointID: "orders.create",
		}},
		{name: "check-invalid-credential", result: rls.CheckResult{
			Result:     rls.Result{Reason: rls.Unauthenticated, DecisionID: id, RetryAfter: -1},
			EndpointID: "orders.create", InvalidToken: true,
		}},
		{name: "check-insufficient-scope", result: rls.CheckResult{
			Result:     rls.Result{Reason: rls.InsufficientScope, DecisionID: id, RetryAfter: -1},
			EndpointID: "orders.create", Identity: tenant, RequiredScopes: []string{"orders:write", "orders:read"},
		}},
		{name: "check-unknown-endpoint", result: rls.CheckResult{Result: rls.Result{Reason: rls.UnknownEndpoint, DecisionID: id, RetryAfter: -1}, Identity: tenant}},
		{name: "check-invalid-request", result: rls.CheckResult{Result: rls.Result{Reason: rls.InvalidRequest, RetryAfter: -1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			resp := newAuthorizationService().response(&tt.result, tt.isGRPC)
			if !sound(resp) {
				t.Errorf("the guard would refuse it")
			}
			golden(t, tt.name, resp)
		})
	}
}

// Each reason, with its HTTP status and the gRPC code.
func TestEA_11_StatusOfEachReason(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reason rls.Reason
		http   int32
		grpc   codes.Code
		code   string
	}{
		{rls.RateLimited, 429, codes.ResourceExhausted, "rate_limited"},
		{rls.EmergencyLocalLimit, 429, codes.ResourceExhausted, "rate_limited"},
		{rls.CircuitOpen, 503, codes.Unavailable, "unavailable"},
		{rls.FailClosed, 503, codes.Unavailable, "unavailable"},
		{rls.IdentityUnavailable, 503, codes.Unavailable, "unavailable"},
		{rls.Unauthenticated, 401, codes.Unauthenticated, "unauthenticated"},
		{rls.InsufficientScope, 403, codes.PermissionDenied, "insufficient_scope"},
		{rls.UnknownEndpoint, 404, codes.NotFound, "not_found"},
		{rls.UnknownDomain, 404, codes.NotFound, "not_found"},
		{rls.InvalidRequest, 400, codes.InvalidArgument, "invalid_request"},
	} {
		for _, isGRPC := range []bool{false, true} {
			result := rls.CheckResult{Result: rls.Result{Reason: tt.reason, RetryAfter: -1}}
			resp := newAuthorizationService().response(&result, isGRPC)
			denied := resp.GetDeniedResponse()
			if got := int32(denied.GetStatus().GetCode()); got != tt.http || resp.GetStatus().GetCode() != int32(tt.grpc) {
				t.Errorf("%s: HTTP %d, gRPC %d; want %d, %d", tt.reason, got, resp.GetStatus().GetCode(), tt.http, tt.grpc)
			}
			if got, want := valueOf(denied.GetHeaders(), "grpc-status"), decimal(int64(tt.grpc)); isGRPC && got != want || !isGRPC && got != "" {
				t.Errorf("%s: grpc-status %q for gRPC %v, want %q for gRPC only", tt.reason, got, isGRPC, want)
			}
			var body errorDocument
			if err := json.Unmarshal([]byte(denied.GetBody()), &body); err != nil || body.Schema != "sentinel.error/1" || body.Error.Code != tt.code {
				t.Errorf("%s: body %s, %v; want code %s", tt.reason, denied.GetBody(), err, tt.code)
			}
		}
	}
}

func valueOf(headers []*corev3.HeaderValueOption, name string) string {
	for _, h := range headers {
		if h.GetHeader().GetKey() == name {
			return h.GetHeader().GetValue()
		}
	}
	return ""
}

// A refused credential must not tell what was wrong with it, nor whether the endpoint exists.
func TestSEC_04_Every401LooksAlike(t *testing.T) {
	t.Parallel()
	s := newAuthorizationService()
	var bodies []string
	for _, r := range []rls.CheckResult{
		{Result: rls.Result{Reason: rls.Unauthenticated, DecisionID: "01", Policy: "orders.create", RetryAfter: -1}, EndpointID: "orders.create", InvalidToken: true},
		{Result: rls.Result{Reason: rls.Unauthenticated, DecisionID: "02", RetryAfter: -1}, InvalidToken: true},
		{Result: rls.Result{Reason: rls.Unauthenticated, DecisionID: "03", RetryAfter: -1}},
	} {
		denied := s.response(&r, false).GetDeniedResponse()
		bodies = append(bodies, denied.GetBody())
		challenge, invalid := valueOf(denied.GetHeaders(), "www-authenticate"), `, error="invalid_token"`
		if got := strings.HasSuffix(challenge, invalid); got != r.InvalidToken || !strings.HasPrefix(challenge, `Bearer realm="sentinel"`) {
			t.Errorf("WWW-Authenticate %q with a credential %v", challenge, r.InvalidToken)
		}
	}
	if bodies[0] != bodies[1] || bodies[0] != bodies[2] {
		t.Errorf("bodies differ: %q", bodies)
	}
}

// Envoy's lists disagree about which of append and append_action they read, and with which default.
func TestEA_02_AppendAndAppendActionAgree(t *testing.T) {
	t.Parallel()
	for _, h := range []*corev3.HeaderValueOption{overwrite("x", "v"), add("x", "v")} {
		//lint:ignore SA1019 what Envoy reads
		if h.Append == nil {
			t.Fatalf("append is not set in %v", h)
		}
		appends := h.GetAppend().GetValue() //lint:ignore SA1019 what Envoy reads
		switch h.GetAppendAction() {
		case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD:
			if appends {
				t.Errorf("%v overwrites and appends", h)
			}
		case corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD:
			if !appends {
				t.Errorf("%v appends and overwrites", h)
			}
		default:
			t.Errorf("%v has another action", h)
		}
	}
}

// Whatever a client or identity provider wrote, an admitted request reaches the upstream with our identity headers or none,
// and nothing that is sent can break a header, the body or the metadata.
func TestHD_04_EveryAnswerCanBeSent(t *testing.T) {
	t.Parallel()
	s := newAuthorizationService()
	for _, evil := range []string{"acmé", "a\r\nx-evil: 1", "a\x00\x7f", "\xff\xfe", "100%", "a,b", " a ", "\u2028"} {
		for _, r := range []rls.CheckResult{
			{
				Result:     rls.Result{Allowed: true, Reason: rls.Allowed, Policy: evil, DecisionID: evil},
				EndpointID: evil, Identity: identity.Identity{Tenant: evil, Subject: evil, SetCookie: evil},
			},
			{
				Result:     rls.Result{Reason: rls.InsufficientScope, Policy: evil, DecisionID: evil},
				EndpointID: evil, Identity: identity.Identity{Tenant: evil, Subject: evil}, RequiredScopes: []string{evil},
			},
		} {
			resp := s.response(&r, true)
			if _, err := proto.Marshal(resp); err != nil {
				t.Errorf("tenant %q: the answer cannot be sent: %v", evil, err)
			}
			ok, denied := resp.GetOkResponse(), resp.GetDeniedResponse()
			if denied != nil && !json.Valid([]byte(denied.GetBody())) {
				t.Errorf("tenant %q: body %s", evil, denied.GetBody())
			}
			for _, h := range slices.Concat(ok.GetHeaders(), ok.GetResponseHeadersToAdd(), denied.GetHeaders()) {
				v := h.GetHeader().GetValue()
				if v == "" || len(h.GetHeader().GetRawValue()) > 0 || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Errorf("tenant %q: header %v", evil, h)
				}
				if checkHeaderName(h.GetHeader().GetKey()) != nil {
					t.Errorf("header name %q", h.GetHeader().GetKey())
				}
			}
			if ok != nil && (valueOf(ok.GetHeaders(), "x-sentinel-tenant") != identityValue(evil) || len(ok.GetHeadersToRemove()) > 0) {
				t.Errorf("tenant %q: headers %v, removed %v", evil, ok.GetHeaders(), ok.GetHeadersToRemove())
			}
		}
	}
}

func TestEA_01_ClientSentIdentityHeadersAreOverwrittenOrRemoved(t *testing.T) {
	t.Parallel()
	s := newAuthorizationService()
	for _, tt := range []struct {
		id      identity.Identity
		set     []string
		removed []string
	}{
		{identity.Identity{Tenant: "acme", Subject: "ann"}, []string{"x-sentinel-tenant", "x-sentinel-subject"}, nil},
		{identity.Identity{Tenant: "acme"}, []string{"x-sentinel-tenant"}, []string{"x-sentinel-subject"}},
		{identity.Identity{Address: "192.0.2.1"}, nil, []string{"x-sentinel-tenant", "x-sentinel-subject"}},
	} {
		r := rls.CheckResult{Result: rls.Result{Allowed: true, Reason: rls.Allowed}, Identity: tt.id}
		ok := s.response(&r, false).GetOkResponse()
		var set []string
		for _, h := range ok.GetHeaders() {
			set = append(set, h.GetHeader().GetKey())
			//lint:ignore SA1019 what Envoy reads
			if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD || h.GetAppend().GetValue() {
				t.Errorf("%v would stand behind the client's", h)
			}
		}
		if !slices.Equal(set, tt.set) || !slices.Equal(ok.GetHeadersToRemove(), tt.removed) {
			t.Errorf("%+v: set %v, removed %v; want %v, %v", tt.id, set, ok.GetHeadersToRemove(), tt.set, tt.removed)
		}
	}
}

// Reset says when the bucket is full, Retry-After when the next request fits; both in whole seconds from now.
func TestHD_06_ResetIsNotRetryAfter(t *testing.T) {
	t.Parallel()
	s := newAuthorizationService()
	limit := &rls.Limit{Name: "a", Rule: tokenBucket(t, 100, algorithms.Rate{Tokens: 1, Seconds: 3})}
	for _, tt := range []struct {
		name                    string
		result                  rls.Result
		limit, remaining, reset string
		retry                   string
	}{
		{"allowed", rls.Result{Allowed: true, Reason: rls.Allowed, Statuses: []rls.Status{
			{Limit: limit, Remaining: 40, Reset: 179500 * time.Millisecond},
		}}, "100", "40", "180", ""},
		{"allowed, untouched", rls.Result{Allowed: true, Reason: rls.Allowed, Statuses: []rls.Status{
			{Limit: limit, Remaining: 100, Reset: 0},
		}}, "100", "100", "0", ""},
		{"denied", rls.Result{Reason: rls.RateLimited, RetryAfter: 2500 * time.Millisecond, Statuses: []rls.Status{
			{OverLimit: true, Limit: limit, Remaining: 0, Reset: 299500 * time.Millisecond},
		}}, "100", "0", "300", "3"},
		{"denied for less than a second", rls.Result{Reason: rls.RateLimited, RetryAfter: time.Microsecond, Statuses: []rls.Status{
			{OverLimit: true, Limit: limit, Remaining: -1, Reset: 0},
		}}, "100", "0", "1", "1"},
		{"never", rls.Result{Reason: rls.RateLimited, RetryAfter: -1, Statuses: []rls.Status{
			{OverLimit: true, Limit: limit, Remaining: 0, Reset: -1},
		}}, "100", "0", "", ""},
		{"denied without a wait", rls.Result{Reason: rls.RateLimited, RetryAfter: 0, Statuses: []rls.Status{
			{OverLimit: true, Limit: limit, Remaining: 0, Reset: time.Second},
		}}, "100", "0", "1", ""},
		{"no limit", rls.Result{Allowed: true, Reason: rls.Allowed, Statuses: []rls.Status{{Reset: -1}}}, "", "", "", ""},
		{"no status", rls.Result{Reason: rls.FailClosed, RetryAfter: -1}, "", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			resp := s.response(&rls.CheckResult{Result: tt.result}, false)
			headers := slices.Concat(resp.GetOkResponse().GetResponseHeadersToAdd(), resp.GetDeniedResponse().GetHeaders())
			for _, want := range [][2]string{
				{"ratelimit-limit", tt.limit}, {"ratelimit-remaining", tt.remaining}, {"ratelimit-reset", tt.reset}, {"retry-after", tt.retry},
			} {
				if got := valueOf(headers, want[0]); got != want[1] {
					t.Errorf("%s: %q, want %q", want[0], got, want[1])
				}
			}
		})
	}
}

func TestHD_08_NoRateLimitHeadersWhereNobodyWantsThem(t *testing.T) {
	t.Parallel()
	limit := &rls.Limit{Name: "a", Rule: slidingWindow(t, 10, time.Second)}
	for _, result := range []rls.Result{
		{Allowed: true, Reason: rls.Allowed, Statuses: []rls.Status{{Limit: limit, Remaining: 1}}},
		{Reason: rls.RateLimited, RetryAfter: time.Second, Statuses: []rls.Status{{OverLimit: true, Limit: limit}}},
	} {
		engine := admitting()
		engine.check = func(context.Context, rls.CheckRequest) rls.CheckResult { return rls.CheckResult{Result: result} }
		s := start(t, engine, func(cfg *Config) { cfg.OmitRateLimitHeaders = true })
		resp, err := s.authz.Check(within(t), checking("a", nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range slices.Concat(resp.GetOkResponse().GetResponseHeadersToAdd(), resp.GetDeniedResponse().GetHeaders()) {
			if strings.HasPrefix(h.GetHeader().GetKey(), "ratelimit-") {
				t.Errorf("header %v", h)
			}
		}
	}
}

// Envoy's descriptors read strings and nothing else, and a default_value only stands in for what is missing.
func TestDynamicMetadataIsStringsOrMissing(t *testing.T) {
	t.Parallel()
	r := rls.CheckResult{
		Result:     rls.Result{Reason: rls.RateLimited, DecisionID: "0d", Policy: "orders.create"},
		EndpointID: "orders.create", Identity: identity.Identity{Tenant: "acmé\xff"},
	}
	got := newAuthorizationService().response(&r, false).GetDynamicMetadata().AsMap()
	want := map[string]any{
		"tenant": "acmé\uFFFD", "endpoint_id": "orders.create", "decision_id": "0d", "reason": "RATE_LIMITED", "policy": "orders.create",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dynamic metadata (-want +got):\n%s", diff)
	}
}
