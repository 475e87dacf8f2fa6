package envoy

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// fakeEngine answers as a test says.
type fakeEngine struct {
	decide func(context.Context, rls.Request) (rls.Result, error)
	check  func(context.Context, rls.CheckRequest) rls.CheckResult
}

func (f fakeEngine) Decide(ctx context.Context, r rls.Request) (rls.Result, error) {
	return f.decide(ctx, r)
}

func (f fakeEngine) Check(ctx context.Context, r rls.CheckRequest) rls.CheckResult {
	return f.check(ctx, r)
}

// admitting admits everything.
func admitting() fakeEngine {
	return fakeEngine{
		decide: func(context.Context, rls.Request) (rls.Result, error) {
			return rls.Result{Allowed: true, Reason: rls.Allowed}, nil
		},
		check: func(context.Context, rls.CheckRequest) rls.CheckResult {
			return rls.CheckResult{Result: rls.Result{Allowed: true, Reason: rls.Allowed}}
		},
	}
}

// tally counts events as "event service".
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) count(event string, s rls.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[event+" "+string(s)]++
}

func (c *tally) Repaired(s rls.Service) { c.count("repaired", s) }
func (c *tally) Panicked(s rls.Service) { c.count("panicked", s) }
func (c *tally) Faulty(s rls.Service)   { c.count("faulty", s) }
func (c *tally) Late(s rls.Service)     { c.count("late", s) }
func (c *tally) Canceled(s rls.Service) { c.count("canceled", s) }

func (c *tally) snapshot() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// running is a server on a loopback port with one client connection.
type running struct {
	*Server

	tally *tally
	log   *syncBuffer
	conn  *grpc.ClientConn
	rls   rlsv3.RateLimitServiceClient
	authz authv3.AuthorizationClient
}

// start serves engine until the test ends. change may alter the configuration.
func start(t testing.TB, engine Engine, change ...func(*Config)) *running {
	t.Helper()
	r := &running{tally: &tally{}, log: &syncBuffer{}}
	cfg := Config{Engine: engine, Recorder: r.tally, Log: slog.New(slog.NewJSONHandler(r.log, nil))}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if r.Server, err = NewServer(cfg); err != nil {
		t.Fatalf("NewServer: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(l) }()
	r.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(func() {
		r.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	r.rls, r.authz = rlsv3.NewRateLimitServiceClient(r.conn), authv3.NewAuthorizationClient(r.conn)
	return r
}

// within is a context with a deadline that no healthy call reaches.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// wire is a client codec for messages that a test encodes by hand.
type wire struct{}

func (wire) Name() string { return "proto" }

func (wire) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (wire) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

// invoke sends a hand-made message.
func (r *running) invoke(t *testing.T, method string, frame []byte, reply proto.Message) error {
	t.Helper()
	return r.conn.Invoke(within(t), method, frame, reply, grpc.ForceCodecV2(wire{}))
}

// syncBuffer is a buffer that a server may write while a test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// question builds a RateLimitRequest of descriptors.
func question(domain string, descriptors ...*ratelimitv3.RateLimitDescriptor) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: domain, Descriptors: descriptors}
}

// entries builds a descriptor of keys and values.
func entries(kv ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(kv); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: kv[i], Value: kv[i+1]})
	}
	return d
}

func withHits(d *ratelimitv3.RateLimitDescriptor, n uint64) *ratelimitv3.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

// checking builds a CheckRequest for an endpoint id in route metadata, with headers as Envoy's map mode sends them.
func checking(endpointID string, headers map[string]string) *authv3.CheckRequest {
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		RouteMetadataContext: routeMetadata(structpb.NewStringValue(endpointID)),
		Request:              &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{Headers: headers}},
	}}
}

func routeMetadata(endpointID *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"sentinel": {Fields: map[string]*structpb.Value{"endpoint_id": endpointID}},
	}}
}

func tokenBucket(t testing.TB, capacity int64, refill algorithms.Rate) algorithms.Rule {
	t.Helper()
	r, err := algorithms.NewTokenBucket(capacity, refill)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func slidingWindow(t testing.TB, limit int64, window time.Duration) algorithms.Rule {
	t.Helper()
	r, err := algorithms.NewSlidingWindow(limit, window)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
