package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"

	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/internal/collector"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// One of these as the only argument makes a program the bare server.
const (
	bareArg  = "serve-bare-grpc"
	tunedArg = "serve-bare-grpc-tuned"
)

// ServeBareIfAsked makes this process the bare server when StartBare started it, and does not return then. Programs and
// test binaries that use StartBare call it first.
func ServeBareIfAsked() {
	if len(os.Args) != 2 || os.Args[1] != bareArg && os.Args[1] != tunedArg {
		return
	}
	var options []grpc.ServerOption
	if os.Args[1] == tunedArg {
		collector.Tune(os.Environ())
		options = new(envoy.Config).ServerOptions()
	}
	if err := serveBare(options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveBare(options []grpc.ServerOption) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(options...)
	rlsv3.RegisterRateLimitServiceServer(server, bareRateLimit{})
	authv3.RegisterAuthorizationServer(server, bareAuthorization{})
	fmt.Printf("listening on %s\n", l.Addr())
	return server.Serve(l)
}

type bareRateLimit struct {
	rlsv3.UnimplementedRateLimitServiceServer
}

func (bareRateLimit) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
}

type bareAuthorization struct {
	authv3.UnimplementedAuthorizationServer
}

func (bareAuthorization) Check(context.Context, *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	return &authv3.CheckResponse{
		Status:       &statusv3.Status{},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{}},
	}, nil
}

// Bare is a running bare server: both services on one port, every answer yes. It is a process of its own, so that its
// processor time can be told from the generator's.
type Bare struct {
	*testserver.Process
	addr string
}

var listening = regexp.MustCompile(`(?m)^listening on (\S+)$`)

// StartBare starts this program again as the bare server, gRPC and Go as they come, no option set, and returns once it
// listens. Kill ends it.
func StartBare(ctx context.Context) (*Bare, error) { return startBare(ctx, bareArg) }

// StartTunedBare is StartBare with the settings of gRPC and of the collector that sentinel-rls gives itself.
func StartTunedBare(ctx context.Context) (*Bare, error) { return startBare(ctx, tunedArg) }

func startBare(ctx context.Context, arg string) (*Bare, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process, err := testserver.Exec("the bare server", self, []string{arg}, nil)
	if err != nil {
		return nil, err
	}
	b := &Bare{Process: process}
	err = await(ctx, process, func() bool {
		if m := listening.FindStringSubmatch(process.Log()); m != nil {
			b.addr = m[1]
		}
		return b.addr != ""
	})
	if err != nil {
		process.Kill()
		return nil, fmt.Errorf("the bare server: %w", err)
	}
	return b, nil
}

// Addr returns host and port of the server.
func (b *Bare) Addr() string { return b.addr }

const startTimeout = 20 * time.Second

// await polls ready every few milliseconds until it is true, the process ends, or time is up.
func await(ctx context.Context, p *testserver.Process, ready func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("not ready in time"))
	defer cancel()
	for !ready() {
		select {
		case <-p.Done():
			return fmt.Errorf("ended with exit code %d:\n%s", p.ExitCode(), p.Log())
		case <-ctx.Done():
			return fmt.Errorf("%w:\n%s", context.Cause(ctx), p.Log())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
