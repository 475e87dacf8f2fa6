package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // client-side health checks
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/story"
)

// ask asks for one request of a tenant at an endpoint of the demo, and returns whether it was decided.
func ask(ctx context.Context, client rlsv3.RateLimitServiceClient, endpoint, tenant string) error {
	resp, err := client.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
			{Key: "endpoint_id", Value: endpoint}, {Key: "tenant", Value: tenant},
		}}},
	})
	if err != nil {
		return err
	}
	if resp.GetOverallCode() == rlsv3.RateLimitResponse_UNKNOWN || len(resp.GetStatuses()) != 1 {
		return fmt.Errorf("not decided: %v", resp)
	}
	return nil
}

// endsWell fails the test unless the process ends by itself with exit code 0 in time.
func endsWell(t *testing.T, s *story.Sentinel, within time.Duration) {
	t.Helper()
	select {
	case <-s.Done():
		if code := s.ExitCode(); code != 0 {
			t.Errorf("exit code %d\n%s", code, s.Log())
		}
	case <-time.After(within):
		t.Errorf("still there %v after SIGTERM\n%s", within, s.Log())
	}
}

// Of two replicas under load one is told to stop: callers that retry notice nothing.
func TestDP_02_sigterm_under_load(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{Store: testserver.Valkey})
	other, err := s.Another(t.Context(), story.Options{Binary: binary, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Kill()

	addresses := manual.NewBuilderWithScheme("replicas")
	addresses.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: s.Sentinel.GRPCAddr}, {Addr: other.GRPCAddr}}})
	conn, err := grpc.NewClient("replicas:///", grpc.WithResolvers(addresses),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{
			"loadBalancingConfig": [{"round_robin": {}}],
			"healthCheckConfig": {"serviceName": ""},
			"methodConfig": [{"name": [{}], "retryPolicy": {
				"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2,
				"retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := rlsv3.NewRateLimitServiceClient(conn)

	// Bounded load: 16 callers, each a call every 4 ms at most, for as long as the stop takes and a little more.
	const callers = 16
	stopped, end := make(chan struct{}), make(chan struct{})
	var calls, after atomic.Int64
	failures := make(chan error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-end:
					return
				case <-tick.C:
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := ask(ctx, client, "search", fmt.Sprint("load-", i))
				cancel()
				if err != nil {
					failures <- err
					return
				}
				calls.Add(1)
				select {
				case <-stopped:
					after.Add(1)
				default:
				}
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	if err := s.Sentinel.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endsWell(t, s.Sentinel, 30*time.Second)
	close(stopped)
	time.Sleep(500 * time.Millisecond)
	close(end)
	wg.Wait()
	close(failures)
	for err := range failures {
		t.Errorf("a call failed: %v", err)
	}
	if calls.Load() < 10*callers || after.Load() == 0 {
		t.Errorf("%d calls, %d of them after the stop: too few to show anything", calls.Load(), after.Load())
	}
	t.Logf("%d calls, %d of them after the stop", calls.Load(), after.Load())
}

// Calls that are in flight at the stop, here on a frozen store, get their answers.
func TestDP_02_sigterm_answers_calls_in_flight(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{Store: testserver.Redis})
	conn, err := grpc.NewClient(s.Sentinel.GRPCAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := rlsv3.NewRateLimitServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := ask(ctx, client, "search", "first"); err != nil {
		t.Fatal(err)
	}
	if err := s.Store.Freeze(); err != nil {
		t.Fatal(err)
	}
	const calls = 20
	answers := make(chan error, calls)
	for i := range calls {
		go func() { answers <- ask(ctx, client, "search", fmt.Sprint("in-flight-", i)) }()
	}
	time.Sleep(100 * time.Millisecond)
	if err := s.Sentinel.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var failed error
	for range calls {
		failed = errors.Join(failed, <-answers)
	}
	if failed != nil {
		t.Errorf("calls in flight failed: %v", failed)
	}
	endsWell(t, s.Sentinel, 30*time.Second)
}
