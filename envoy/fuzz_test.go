package envoy

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

var endpointIDs = []string{"one", "two", "three", "ten", "narrow", "broad", "huge", "minute", "login", "scoped", "free"}

// answer decodes a message as the server does and asks the service behind the guard. Nil: the message is no encoding.
func answer(t *testing.T, data []byte, req proto.Message, service func(context.Context) (any, error)) any {
	t.Helper()
	counts := &tally{}
	if err := newCodec(defaultNames(), counts.Repaired).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, req); err != nil {
		return nil
	}
	g := guard{recorder: counts, log: slog.New(slog.DiscardHandler)}
	resp, err := g.unary(t.Context(), req, nil, func(ctx context.Context, _ any) (any, error) { return service(ctx) })
	if err != nil {
		t.Fatalf("%v; events %v", err, counts.snapshot())
	}
	if _, err := proto.Marshal(resp.(proto.Message)); err != nil {
		t.Fatalf("the answer cannot be sent: %v", err)
	}
	return resp
}

// FuzzRateLimitRequest sends arbitrary bytes as a question: every one that decodes is answered, with one status per
// descriptor, and none passes our domain without naming an endpoint of it.
func FuzzRateLimitRequest(f *testing.F) {
	engine, _, _ := realEngine(f)
	service := newRateLimitService(engine)
	f.Add(rateLimitFrame("shop", "tenant", "acme", "endpoint_id", "one"))
	f.Add(rateLimitFrame("shop", "tenant", "a\xff", "endpoint_id", "free"))
	f.Add(rateLimitFrame("shop", "endpoint_id", "free", "endpoint_id", "nobody"))
	f.Add(rateLimitFrame("other", "a", "b"))
	f.Add(marshal(f, &rlsv3.RateLimitRequest{}))
	f.Add(marshal(f, question("shop", entries(), withHits(asking("huge", "acme"), 1<<63), withHits(asking("free", ""), 0))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req rlsv3.RateLimitRequest
		resp, ok := answer(t, data, &req, func(ctx context.Context) (any, error) {
			return service.ShouldRateLimit(ctx, &req)
		}).(*rlsv3.RateLimitResponse)
		if !ok {
			return
		}
		if len(resp.GetStatuses()) != len(req.GetDescriptors()) {
			t.Fatalf("%d statuses for %d descriptors", len(resp.GetStatuses()), len(req.GetDescriptors()))
		}
		if resp.GetOverallCode() != rlsv3.RateLimitResponse_OK || req.GetDomain() != "shop" {
			return
		}
		for _, d := range req.GetDescriptors() {
			known := len(d.GetEntries()) == 0
			for _, e := range d.GetEntries() {
				known = known || e.GetKey() == "endpoint_id" && slices.Contains(endpointIDs, e.GetValue())
			}
			if !known {
				t.Fatalf("passed without a known endpoint: %v", d)
			}
		}
	})
}

// FuzzCheckRequest sends arbitrary bytes as a question: every one that decodes is answered, and none is allowed unless its
// route names a known endpoint.
func FuzzCheckRequest(f *testing.F) {
	engine, _, _ := realEngine(f)
	service := newAuthorizationService()
	service.engine = engine
	forever := token(f, "acme", func(c jwt.MapClaims) { c["exp"] = int64(4102444800) })
	valid := map[string]string{"authorization": "Bearer " + forever, "content-type": "application/grpc"}
	f.Add(marshal(f, checking("free", valid)))
	f.Add(marshal(f, checking("nobody", valid)))
	f.Add(marshal(f, checking("", valid)))
	f.Add(marshal(f, checking("login", map[string]string{"cookie": "sentinel_anon_id=x", "x-sentinel-client-ip": "192.0.2.1"})))
	f.Add(marshal(f, withRaw("login", rawHeader("x-sentinel-client-ip", "2001:db8::1"), rawHeader("authorization", "\xff"))))
	f.Add(marshal(f, from(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/envoy"}}})))
	f.Add(checkFrame("authorization", "Bearer \xff", "\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req authv3.CheckRequest
		resp, ok := answer(t, data, &req, func(ctx context.Context) (any, error) {
			return service.Check(ctx, &req)
		}).(*authv3.CheckResponse)
		if !ok || resp.GetOkResponse() == nil {
			return
		}
		named := false
		note := func(s string) { named = named || slices.Contains(endpointIDs, s) }
		eachString(req.GetAttributes().GetRouteMetadataContext().ProtoReflect(), note)
		for _, v := range req.GetAttributes().GetContextExtensions() {
			note(v)
		}
		if !named {
			t.Fatalf("allowed without a known endpoint: %v", &req)
		}
	})
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
