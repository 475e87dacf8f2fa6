package main

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/health" // clients look at gRPC health, as Envoy does
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Two replicas behind a client that looks at their health, as Envoy does. One of them is told to stop in the middle of
// the load: it says so, goes on answering while the client notices, and exits with 0. Nobody loses a call.
func TestDP_02_SIGTERMUnderLoadLosesNoCall(t *testing.T) {
	t.Parallel()
	env := []string{"SENTINEL_SHUTDOWN_DRAIN_DELAY=1s", "SENTINEL_SHUTDOWN_GRACE=10s"}
	config := filepath.Join(shop(t), "sentinel.yaml")
	stopping, first := startProcess(t, env, "--config", config)
	_, second := startProcess(t, env, "--config", config)

	replicas := manual.NewBuilderWithScheme("replicas")
	replicas.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
		{Addresses: []resolver.Address{{Addr: first.grpcAddr}}},
		{Addresses: []resolver.Address{{Addr: second.grpcAddr}}},
	}})
	conn := dial(t, "replicas:///", grpc.WithResolvers(replicas), grpc.WithDefaultServiceConfig(
		`{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "envoy.service.ratelimit.v3.RateLimitService"}}`,
	))
	direct := dial(t, first.grpcAddr)
	if limited(t, direct, "shop", "orders", "warm") {
		t.Fatal("the first call is over the limit")
	}

	var calls, failed atomic.Int64
	loadCtx, endLoad := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 32 {
		load.Go(func() {
			client := rlsv3.NewRateLimitServiceClient(conn)
			for loadCtx.Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if _, err := client.ShouldRateLimit(ctx, limitRequest("shop", "orders", "acme")); err != nil {
					failed.Add(1)
					t.Errorf("a call failed: %v", err)
				}
				calls.Add(1)
				cancel()
			}
		})
	}
	defer func() {
		endLoad()
		load.Wait()
	}()

	time.Sleep(500 * time.Millisecond)
	signalled := time.Now()
	if err := stopping.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// While it drains it says that it stops, and still answers.
	health := grpc_health_v1.NewHealthClient(direct)
	for {
		resp, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatalf("gRPC health while draining: %v", err)
		}
		if resp.GetStatus() == grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if code, body := get(t, first, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"stopping"`) {
		t.Errorf("/readyz while draining: %d %s, want 503 and stopping", code, body)
	}
	if code, _ := get(t, first, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz while draining: %d, want 200", code)
	}
	if limited(t, direct, "shop", "orders", "late") {
		t.Error("a call during the drain delay is over the limit, want an answer as before")
	}

	select {
	case <-stopping.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it has not exited 20 s after SIGTERM")
	}
	if code := stopping.ExitCode(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	if took := time.Since(signalled); took < time.Second || took > 12*time.Second {
		t.Errorf("it exited after %v, want the drain delay of 1 s and less than the grace of 10 s", took)
	}
	before := calls.Load()
	time.Sleep(200 * time.Millisecond) // the other replica goes on
	endLoad()
	load.Wait()
	if calls.Load() == before || failed.Load() > 0 {
		t.Errorf("%d calls, %d of them failed, %d before the exit; want more after it and none failed", calls.Load(), failed.Load(), before)
	}
	t.Logf("%d calls", calls.Load())
}

// A second signal does not wait for the drain.
func TestDP_02_SecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	process, _ := startProcess(t, []string{"SENTINEL_SHUTDOWN_DRAIN_DELAY=5m"})
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, ok := logRecord(process.Log(), "stopping"); ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first signal is not logged")
		}
	}
	// The first signal gives up catching signals a moment after the log line, so one more may still be caught.
	for deadline := time.Now().Add(10 * time.Second); ; {
		_ = process.Signal(syscall.SIGTERM) // it may be gone
		select {
		case <-process.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("it has not ended 10 s after the second SIGTERM")
		}
	}
}
