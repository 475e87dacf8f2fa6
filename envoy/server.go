package envoy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// Engine decides. Safe for concurrent use; both methods return by ctx's deadline and bound a call that has none.
type Engine interface {
	// Decide answers one ShouldRateLimit question. The error wraps rls.ErrInvalidRequest.
	Decide(ctx context.Context, r rls.Request) (rls.Result, error)
	// Check answers one ext_authz question.
	Check(ctx context.Context, r rls.CheckRequest) rls.CheckResult
}

var _ Engine = (*rls.Engine)(nil)

// Config is what a Server is made of. Zero values take the default named at each field.
type Config struct {
	Engine   Engine       // required
	Recorder Recorder     // required
	Log      *slog.Logger // required

	Names Names
	// Realm is the protection space named in WWW-Authenticate; sentinel. Visible ASCII and spaces.
	Realm string
	// ResourceMetadata is the URL of the protected resource metadata (RFC 9728) that WWW-Authenticate names; empty: none.
	// Visible ASCII.
	ResourceMetadata string
	// OmitRateLimitHeaders leaves RateLimit-Limit, -Remaining and -Reset out of ext_authz answers. In the ratelimit filter
	// Envoy's enable_x_ratelimit_headers decides.
	OmitRateLimitHeaders bool
	// TLS encrypts the port; nil: plain text.
	TLS *tls.Config
	// Reflection serves gRPC reflection, for grpcurl. Off in production: it tells strangers what they may call.
	Reflection bool

	// MaxMessageBytes bounds one question; 4 MiB. Envoy's are some hundred bytes, for ext_authz the request's headers and
	// the part of the body that with_request_body adds. A larger one is RESOURCE_EXHAUSTED: the request passes by Envoy's
	// failure mode.
	MaxMessageBytes int
	// MaxConcurrentStreams bounds the calls in flight on one connection; 1024, Envoy's own default. Envoy opens another
	// connection beyond it.
	MaxConcurrentStreams uint32
	// PingMinTime is the shortest interval at which a caller may ping; 100 ms. A caller that pings more often is
	// disconnected, so it must not exceed the interval of Envoy's connection_keepalive.
	PingMinTime time.Duration
	// PingTime is how long a caller may be silent before it is pinged; 30 s. It has PingTimeout to answer; 5 s.
	PingTime, PingTimeout time.Duration
	// MaxConnectionAge is after how long a connection is asked to close, so that Envoys find new replicas; 10 min, ± 10 %.
	// Calls in flight have MaxConnectionAgeGrace to end; 30 s.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

const (
	connectionTimeout = 5 * time.Second // from accept to the end of HTTP/2's preface
	windowBytes       = 1 << 20         // HTTP/2's flow control, of a stream and of a connection
	// streamWorkers is how many goroutines are kept for calls, which saves growing a stack for each; about as many calls as
	// are usually in flight. More calls than that get a goroutine each.
	streamWorkers      = 64
	maxHeaderListBytes = 16 << 10 // of one call; Envoy sends a dozen short ones
)

// healthNames are the names that gRPC health answers for; all have one status.
var healthNames = []string{"", rlsv3.RateLimitService_ServiceDesc.ServiceName, authv3.Authorization_ServiceDesc.ServiceName}

// Server serves both services, and gRPC health, on one port. Safe for concurrent use.
type Server struct {
	grpc      *grpc.Server
	health    *health.Server
	guard     guard
	rateLimit *rateLimitService
}

// NewServer returns a server that is NOT_SERVING until SetServing. The error names every problem of cfg.
func NewServer(cfg Config) (*Server, error) {
	names := cfg.Names.withDefaults()
	realm := cmp.Or(cfg.Realm, "sentinel")
	if err := errors.Join(cfg.check(), names.check()); err != nil {
		return nil, err
	}
	g := guard{recorder: cfg.Recorder, log: cfg.Log}
	s := &Server{
		grpc: grpc.NewServer(append(cfg.ServerOptions(),
			grpc.ForceServerCodecV2(newCodec(&names, cfg.Recorder.Repaired)),
			grpc.UnaryInterceptor(g.unary),
		)...),
		health:    health.NewServer(),
		guard:     g,
		rateLimit: &rateLimitService{engine: cfg.Engine, names: &names, log: cfg.Log},
	}
	rlsv3.RegisterRateLimitServiceServer(s.grpc, s.rateLimit)
	authv3.RegisterAuthorizationServer(s.grpc, &authorizationService{
		engine: cfg.Engine, names: &names, rateLimitHeaders: !cfg.OmitRateLimitHeaders,
		challenges: newChallenges(realm, cfg.ResourceMetadata),
	})
	healthv1.RegisterHealthServer(s.grpc, s.health)
	if cfg.Reflection {
		reflection.Register(s.grpc)
	}
	s.SetServing(false)
	return s, nil
}

func (cfg *Config) check() error {
	var problems []error
	need := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New("envoy: "+problem))
		}
	}
	need(cfg.Engine != nil, "an engine is required")
	need(cfg.Recorder != nil, "a recorder is required")
	need(cfg.Log != nil, "a logger is required")
	need(printable(cfg.Realm) == cfg.Realm, "the realm must be visible ASCII and spaces")
	need(printable(cfg.ResourceMetadata) == cfg.ResourceMetadata, "the URL of the resource metadata must be visible ASCII")
	need(cfg.MaxMessageBytes >= 0, "the size of a message must not be negative")
	need(min(cfg.PingMinTime, cfg.PingTime, cfg.PingTimeout, cfg.MaxConnectionAge, cfg.MaxConnectionAgeGrace) >= 0,
		"times must not be negative")
	return errors.Join(problems...)
}

// ServerOptions returns how the gRPC server is set, without its codec and interceptor: what another server takes to be
// measured under the same conditions.
func (cfg *Config) ServerOptions() []grpc.ServerOption {
	security := insecure.NewCredentials()
	if cfg.TLS != nil {
		security = credentials.NewTLS(cfg.TLS)
	}
	return []grpc.ServerOption{
		grpc.Creds(security),
		grpc.MaxRecvMsgSize(cmp.Or(cfg.MaxMessageBytes, 4<<20)),
		grpc.MaxHeaderListSize(maxHeaderListBytes),
		grpc.MaxConcurrentStreams(cmp.Or(cfg.MaxConcurrentStreams, 1024)),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.WaitForHandlers(true), // Shutdown returns after the last handler, so the engine may stop next
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             cmp.Or(cfg.PingMinTime, 100*time.Millisecond),
			PermitWithoutStream: true, // Envoy pings idle connections
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      cmp.Or(cfg.MaxConnectionAge, 10*time.Minute),
			MaxConnectionAgeGrace: cmp.Or(cfg.MaxConnectionAgeGrace, 30*time.Second),
			Time:                  cmp.Or(cfg.PingTime, 30*time.Second),
			Timeout:               cmp.Or(cfg.PingTimeout, 5*time.Second),
		}),
	}
}

// ShouldRateLimit answers one question that came by another way than gRPC, exactly as one that came by it. The error has
// a gRPC status.
func (s *Server) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	resp, err := s.guard.unary(ctx, req, nil, func(ctx context.Context, _ any) (any, error) {
		return s.rateLimit.ShouldRateLimit(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return resp.(*rlsv3.RateLimitResponse), nil // the guard lets nothing else through
}

// SetServing sets what gRPC health answers for the empty name and for both services. Questions are answered either way:
// NOT_SERVING asks Envoy to go elsewhere, and it takes up to a health interval and a second to do so.
func (s *Server) SetServing(serving bool) {
	for _, name := range healthNames {
		s.SetHealth(name, serving)
	}
}

// SetHealth sets what gRPC health answers for one more name.
func (s *Server) SetHealth(name string, serving bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthv1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(name, status)
}

// Serve answers on l until Shutdown, which makes it return nil, or until l fails. It closes l.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Shutdown closes the listeners, tells callers to go elsewhere, and returns when the calls in flight have ended. When ctx
// ends first they are cut off: Envoy may keep a stream open for ever. The error is then ctx's.
func (s *Server) Shutdown(ctx context.Context) error {
	s.SetServing(false)
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
		return ctx.Err()
	}
}
