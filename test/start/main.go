// Start measures how long sentinel-rls takes from the start of its process to the first gRPC health answer SERVING, with the
// memory store and with Redis. `make start` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// mark is what the median must stay under.
const mark = 100 * time.Millisecond

// patience is how long one start may take before it counts as none.
const patience = 20 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(stderr)
	n := flags.Int("n", 10, "starts to measure, with each store")
	check := flags.Bool("check", false, "exit with 1 when a median is not under the mark")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *n < 1 || flags.NArg() > 0:
		fmt.Fprintln(stderr, "start: -n must be positive, and there are no arguments")
		return 2
	}
	figures, err := measure(ctx, *n)
	if err != nil {
		fmt.Fprintln(stderr, "start:", err)
		return 1
	}
	report(stdout, load.ThisMachine(), figures)
	if slow := slices.ContainsFunc(figures, func(f figure) bool { return f.median() >= mark }); slow && *check {
		return 1
	}
	return 0
}

// figure is what was measured with one store.
type figure struct {
	store string
	took  []time.Duration // sorted
}

func (f figure) median() time.Duration {
	n := len(f.took)
	return (f.took[(n-1)/2] + f.took[n/2]) / 2
}

func report(w io.Writer, m load.Machine, figures []figure) {
	millis := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	fmt.Fprintf(w, "%s, %d cores, load %s, %s, %s\n\n", m.Processor, m.Cores, m.LoadAverage, m.Kernel, m.Go)
	rows := [][]string{{"start to SERVING", "median ms", "least", "most", "starts", "under"}}
	for _, f := range figures {
		rows = append(rows, []string{
			f.store, millis(f.median()), millis(f.took[0]), millis(f.took[len(f.took)-1]), fmt.Sprint(len(f.took)), millis(mark),
		})
	}
	load.Table(w, rows)
}

// measure starts the program n times with each store, in turns.
func measure(ctx context.Context, n int) (_ []figure, err error) {
	dir, err := os.MkdirTemp("", "start")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary, err := load.Build(ctx, dir)
	if err != nil {
		return nil, err
	}
	config, err := write(dir)
	if err != nil {
		return nil, err
	}
	redis, err := testserver.Run(ctx, testserver.Redis)
	if err != nil {
		return nil, err
	}
	defer redis.Stop()

	stores := []struct{ name, url string }{{"memory store", ""}, {"Redis", redis.URL()}}
	figures := make([]figure, len(stores))
	for range n {
		for i, store := range stores {
			took, err := startOnce(ctx, binary, "serve", "--config", config, "--admin", "127.0.0.1:0", "--redis", store.url)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", store.name, err)
			}
			figures[i].store = store.name
			figures[i].took = append(figures[i].took, took)
		}
	}
	for _, f := range figures {
		slices.Sort(f.took)
	}
	return figures, nil
}

// write writes a configuration with a hundred endpoints of two limits each, and returns its path.
func write(dir string) (config string, err error) {
	var policies strings.Builder
	policies.WriteString("domain: shop\nendpoints:\n")
	for i := range 100 {
		fmt.Fprintf(&policies, `  endpoint-%d:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 25/s}
    limits:
      - {algorithm: token_bucket, capacity: 100, refill: 50/s}
      - {name: everyone, scope: global, algorithm: sliding_window, limit: 5000, window: 1m}
`, i)
	}
	config = filepath.Join(dir, "sentinel.yaml")
	return config, errors.Join(
		os.WriteFile(filepath.Join(dir, "secret"), []byte("a secret that signs nothing in this measurement"), 0o600),
		os.WriteFile(filepath.Join(dir, "policies.yaml"), []byte(policies.String()), 0o600),
		os.WriteFile(config, []byte("policies: [policies.yaml]\njwt: {keys: [{alg: HS256, secret_file: secret}]}\n"), 0o600),
	)
}

// startOnce starts the program on a free port and returns how long it took to be SERVING.
func startOnce(ctx context.Context, binary string, args ...string) (time.Duration, error) {
	port, err := testserver.FreePort()
	if err != nil {
		return 0, err
	}
	address := testserver.LoopbackAddr(port)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := time.Now()
	program, err := testserver.Exec("sentinel-rls", binary, append(args, "--grpc", address), nil)
	if err != nil {
		return 0, err
	}
	defer program.Kill()
	for ctx.Err() == nil {
		if serving(ctx, address) {
			return time.Since(begun), nil
		}
		select {
		case <-program.Done():
			return 0, fmt.Errorf("it ended with exit code %d:\n%s", program.ExitCode(), program.Log())
		case <-time.After(500 * time.Microsecond):
		}
	}
	return 0, fmt.Errorf("not SERVING: %w\n%s", ctx.Err(), program.Log())
}

// serving asks once. It connects by itself first: a gRPC client would wait a second before it tried again.
func serving(ctx context.Context, address string) bool {
	raw, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	raw.Close()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer conn.Close()
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
}
