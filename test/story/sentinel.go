package story

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Sentinel is the program, running on the configuration in examples/demo.
type Sentinel struct {
	*testserver.Process
	GRPCAddr string // host:port
	AdminURL string
}

// startSentinel starts the program on a store, nil for its own memory, and returns once it is ready.
func startSentinel(ctx context.Context, o Options, store *testserver.Server) (*Sentinel, error) {
	// Another process may take a free port before the program does; then it says so and ends.
	for attempt := 1; ; attempt++ {
		s, err := startSentinelOnce(ctx, o, store)
		if err == nil || attempt == 5 || !strings.Contains(err.Error(), "address already in use") {
			return s, err
		}
	}
}

func startSentinelOnce(ctx context.Context, o Options, store *testserver.Server) (*Sentinel, error) {
	root, err := testserver.Root()
	if err != nil {
		return nil, err
	}
	var addrs [2]string
	for i, fixed := range []int{portGRPC, portAdmin} {
		port := o.port(fixed)
		if port == 0 {
			if port, err = testserver.FreePort(); err != nil {
				return nil, err
			}
		}
		addrs[i] = testserver.LoopbackAddr(port)
	}
	args := []string{
		"serve", "--config", filepath.Join(root, "examples", "demo", "sentinel.yaml"), "--grpc", addrs[0], "--admin", addrs[1],
	}
	if store != nil {
		args = append(args, "--redis", store.URL())
	}
	var env []string
	if o.Patience > 0 {
		env = append(env, "SENTINEL_REDIS_BUDGET="+(o.Patience/2).String())
	}
	process, err := testserver.Exec("sentinel-rls", o.Binary, args, env)
	if err != nil {
		return nil, err
	}
	s := &Sentinel{Process: process, GRPCAddr: addrs[0], AdminURL: "http://" + addrs[1]}
	if err := s.awaitReady(ctx); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// awaitReady returns once /readyz says that answers can be given.
func (s *Sentinel) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if status, _, err := fetch(ctx, s.AdminURL+"/readyz"); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-s.Done():
			return fmt.Errorf("sentinel-rls ended with exit code %d:\n%s", s.ExitCode(), s.Log())
		case <-ctx.Done():
			return fmt.Errorf("sentinel-rls is not ready: %w\n%s", ctx.Err(), s.Log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Metric returns the sum of a metric's series whose labels contain all of the given texts, `reason="ALLOWED"` for
// example; 0 when there is none.
func (s *Sentinel) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	_, body, err := fetch(ctx, s.AdminURL+"/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		metric, set, _ := strings.Cut(series, "{")
		if !ok || metric != name || !containsAll(set, labels) {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		sum += v
	}
	return sum, nil
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}
