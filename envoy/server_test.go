package envoy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewServerNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := NewServer(Config{
		Realm:           "a\r\nb",
		MaxMessageBytes: -1,
		PingMinTime:     -1,
		Names: Names{
			ClientAddressHeader: "authorization",
			TenantHeader:        "x tenant",
			SubjectHeader:       "host",
			ReasonHeader:        "retry-after",
			Metadata:            MetadataNames{Tenant: "subject"},
		},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"an engine is required", "a recorder is required", "a logger is required", "realm", "size", "times",
		`two request headers are named "authorization"`, `"x tenant": ' '`, `"host": belongs to Envoy`,
		`two response headers are named "retry-after"`, `two dynamic metadata keys are named "subject"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	for _, name := range []string{":path", "content-length", "date", "server", "x-sentinel-ténant"} {
		if checkHeaderName(name) == nil {
			t.Errorf("header name %q passes", name)
		}
	}
}

func TestHealthFollowsSetServing(t *testing.T) {
	t.Parallel()
	s := start(t, admitting())
	client := healthv1.NewHealthClient(s.conn)
	expect := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService", "envoy.service.auth.v3.Authorization"} {
			resp, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: name})
			if err != nil || resp.GetStatus() != want {
				t.Errorf("health of %q: %v, %v; want %v", name, resp.GetStatus(), err, want)
			}
		}
	}
	expect(healthv1.HealthCheckResponse_NOT_SERVING)
	s.SetServing(true)
	expect(healthv1.HealthCheckResponse_SERVING)
	s.SetServing(false)
	expect(healthv1.HealthCheckResponse_NOT_SERVING)
	if _, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b"))); err != nil {
		t.Errorf("a question while NOT_SERVING: %v; an Envoy that has nobody else goes on asking", err)
	}
	if _, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of an unknown service: %v", err)
	}
}

func TestReflectionIsOffUnlessAskedFor(t *testing.T) {
	t.Parallel()
	list := func(s *running) ([]string, error) {
		stream, err := reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(within(t))
		if err != nil {
			return nil, err
		}
		// A refusal may arrive before the question left: Send then fails with EOF, and Recv says why.
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
		}); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		resp, err := stream.Recv()
		var names []string
		for _, s := range resp.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		return names, err
	}
	if _, err := list(start(t, admitting())); status.Code(err) != codes.Unimplemented {
		t.Errorf("by default: %v, want UNIMPLEMENTED", err)
	}
	names, err := list(start(t, admitting(), func(cfg *Config) { cfg.Reflection = true }))
	if err != nil || !strings.Contains(strings.Join(names, " "), "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("with reflection: %v, %v", names, err)
	}
}

func TestMaxMessageBytes(t *testing.T) {
	t.Parallel()
	s := start(t, admitting(), func(cfg *Config) { cfg.MaxMessageBytes = 1 << 10 })
	for _, tt := range []struct {
		bytes int
		want  codes.Code
	}{{900, codes.OK}, {1100, codes.ResourceExhausted}} {
		_, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("k", strings.Repeat("v", tt.bytes))))
		if status.Code(err) != tt.want {
			t.Errorf("a value of %d bytes: %v, want %v", tt.bytes, err, tt.want)
		}
	}
}

// A call in flight is answered, and a caller that never goes away cannot hold up the stop.
func TestShutdown(t *testing.T) {
	t.Parallel()
	serve := func(t *testing.T, handler func(context.Context)) (s *running, answered chan error) {
		entered := make(chan struct{})
		engine := admitting()
		engine.check = func(ctx context.Context, _ rls.CheckRequest) rls.CheckResult {
			close(entered)
			handler(ctx)
			return rls.CheckResult{Result: rls.Result{Allowed: true, Reason: rls.Allowed}}
		}
		s = start(t, engine)
		answered = make(chan error, 1)
		go func() {
			_, err := s.authz.Check(within(t), &authv3.CheckRequest{})
			answered <- err
		}()
		<-entered
		return s, answered
	}
	t.Run("waits for a call in flight", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		s, answered := serve(t, func(context.Context) { <-release })
		stopped := make(chan error, 1)
		go func() { stopped <- s.Shutdown(within(t)) }()
		select {
		case err := <-stopped:
			t.Fatalf("Shutdown returned %v with a call in flight", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		if err := <-answered; err != nil {
			t.Errorf("the call in flight: %v", err)
		}
		if err := <-stopped; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	t.Run("cuts off what does not end", func(t *testing.T) {
		t.Parallel()
		s, answered := serve(t, func(ctx context.Context) { <-ctx.Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v, want the context's error", err)
		}
		if err := <-answered; err == nil {
			t.Error("the call that was cut off succeeded")
		}
	})
	t.Run("a health watch cannot hold it up", func(t *testing.T) {
		t.Parallel()
		s := start(t, admitting())
		watch, err := healthv1.NewHealthClient(s.conn).Watch(within(t), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v, want the context's error", err)
		}
	})
}

// Replacing connections must not lose a call.
func TestConnectionsAreReplacedWithoutLoss(t *testing.T) {
	t.Parallel()
	s := start(t, admitting(), func(cfg *Config) { cfg.MaxConnectionAge = 100 * time.Millisecond })
	connections := map[string]bool{} // by the client's port
	for ctx := within(t); len(connections) < 4; {
		var p peer.Peer
		if _, err := s.rls.ShouldRateLimit(ctx, question("shop", entries("a", "b")), grpc.Peer(&p)); err != nil {
			t.Fatalf("with %d connections so far: %v", len(connections), err)
		}
		connections[p.LocalAddr.String()] = true
	}
}

// Envoy's connection_keepalive pings idle connections, which grpc-go by default takes for an attack.
func TestIdleConnectionMayPing(t *testing.T) {
	t.Parallel()
	s, err := NewServer(Config{Engine: admitting(), Recorder: &tally{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		if err := errors.Join(s.Shutdown(within(t)), <-served); err != nil {
			t.Error(err)
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for ping := range byte(6) {
		if err := framer.WritePing(false, [8]byte{ping}); err != nil {
			t.Fatalf("ping %d: %v", ping, err)
		}
		for acked := false; !acked; {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("after ping %d: %v", ping, err)
			}
			switch frame := frame.(type) {
			case *http2.PingFrame:
				acked = frame.IsAck() && frame.Data[0] == ping
			case *http2.GoAwayFrame:
				t.Fatalf("after ping %d: GOAWAY %v %s", ping, frame.ErrCode, frame.DebugData())
			}
		}
		time.Sleep(110 * time.Millisecond)
	}
}

func BenchmarkAnswer(b *testing.B) {
	s := newRateLimitService(nil)
	req := question("shop", entries("tenant", "acme", "endpoint_id", "orders.create"))
	limit := &rls.Limit{Name: "orders.create", Rule: slidingWindow(b, 10, time.Minute)}
	result := rls.Result{Allowed: true, Reason: rls.Allowed, Statuses: []rls.Status{{Limit: limit, Remaining: 9, Reset: time.Second}}}
	g := guard{recorder: &tally{}, log: slog.New(slog.DiscardHandler)}
	b.ReportAllocs()
	for b.Loop() {
		_, err := g.unary(b.Context(), req, nil, func(context.Context, any) (any, error) {
			if r := rateLimitRequest(req); r.Domain != "shop" {
				b.Fatal(r)
			}
			return s.response(&result, 1), nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
