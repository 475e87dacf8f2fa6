package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Budget and deadlines of 5 s, so that no outcome is unknown and each admission is seen by its caller.
const (
	patience = 5 * time.Second

	exactConfig = `
policies: [policies]
redis: {budget: 5s}
guard: {no_deadline: 5s}
jwt: {keys: [{alg: HS256, secret_file: secret}]}
`
	exactCapacity = 300
	exactPolicies = `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{scope: tenant, algorithm: token_bucket, capacity: 300, refill: 0}]
`
)

func exactShop(t *testing.T) string {
	t.Helper()
	dir := files(t, map[string]string{"sentinel.yaml": exactConfig, "secret": secret, "policies/shop.yaml": exactPolicies})
	return filepath.Join(dir, "sentinel.yaml")
}

// admissions has callers ask for one tenant, each as often as it is told, over conns in turn and over both services in
// turn, and returns how many requests were admitted. Any other refusal than RATE_LIMITED fails the test.
func admissions(t *testing.T, conns []*grpc.ClientConn, callers, each int) int64 {
	t.Helper()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	bearer := token(t, "acme")
	for i := range callers {
		conn := conns[i%len(conns)]
		wg.Go(func() {
			for j := range each {
				ask := askRateLimit
				if (i+j)%2 == 0 {
					ask = askAuthz
				}
				ok, err := ask(t.Context(), conn, bearer)
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}

func askRateLimit(ctx context.Context, conn *grpc.ClientConn, _ string) (admitted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, limitRequest("shop", "orders", "acme"))
	if err != nil || resp.GetOverallCode() == rlsv3.RateLimitResponse_OK {
		return err == nil, err
	}
	for _, h := range resp.GetResponseHeadersToAdd() {
		if h.GetKey() == "x-sentinel-reason" && h.GetValue() == "RATE_LIMITED" {
			return false, nil
		}
	}
	return false, fmt.Errorf("refused for another reason: %v", resp)
}

func askAuthz(ctx context.Context, conn *grpc.ClientConn, bearer string) (admitted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := authv3.NewAuthorizationClient(conn).Check(ctx, checkRequest("orders", bearer))
	if err != nil || resp.GetOkResponse() != nil {
		return err == nil, err
	}
	if code := resp.GetDeniedResponse().GetStatus().GetCode(); code != http.StatusTooManyRequests {
		return false, fmt.Errorf("refused with %d: %v", code, resp)
	}
	return false, nil
}

// The contract's exactness (spec 10): a bucket that never refills admits its capacity and not one more, however many ask
// at once.
func TestExactlyCapacityFrom50ConcurrentCallers(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			p := serve(t, nil, "--config", exactShop(t), "--redis", server.URL())
			var conns []*grpc.ClientConn
			for range 4 { // as many as Envoy has worker threads
				conns = append(conns, dial(t, p.grpcAddr))
			}
			if got := admissions(t, conns, 50, 20); got != exactCapacity {
				t.Errorf("50 callers were admitted %d times, want exactly %d", got, exactCapacity)
			}
			for series, want := range map[string]string{
				`sentinel_decisions_total{decision_reason="ALLOWED",endpoint_id="orders"}`:      "300",
				`sentinel_decisions_total{decision_reason="RATE_LIMITED",endpoint_id="orders"}`: "700",
				`sentinel_store_failures_total{class="REDIS_TIMEOUT"}`:                          "0",
				`sentinel_breaker_state{state="closed"}`:                                        "1",
				`sentinel_store_unfit`:                                                          "0",
			} {
				if got := metric(t, p.instance, series); got != want {
					t.Errorf("%s is %s, want %s", series, got, want)
				}
			}
		})
	}
}

func TestExactlyCapacityFromThreeProcesses(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	config := exactShop(t)
	var conns []*grpc.ClientConn
	for range 3 {
		_, in := startProcess(t, nil, "--config", config, "--redis", server.URL())
		conns = append(conns, dial(t, in.grpcAddr))
	}
	if got := admissions(t, conns, 51, 20); got != exactCapacity {
		t.Errorf("three processes admitted %d requests together, want exactly %d", got, exactCapacity)
	}
}

// Redis is away when the process starts: it serves at once by its fail modes, says so, and heals by itself, within one
// quarantine and a second.
func TestRF_16_RedisAbsentAtTheStart(t *testing.T) {
	t.Parallel()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := files(t, map[string]string{
		"secret": secret,
		"sentinel.yaml": `
policies: [shop.yaml]
redis: {budget: 1s}
guard: {no_deadline: 5s}
breaker: {failures: 2, quarantine: 1s}
jwt: {keys: [{alg: HS256, secret_file: secret}]}
`,
		"shop.yaml": `
domain: shop
endpoints:
  open:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 3, refill: 0}
    limits: [{scope: tenant, algorithm: token_bucket, capacity: 10, refill: 0}]
  closed:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{scope: tenant, algorithm: token_bucket, capacity: 10, refill: 0}]
`,
	})
	start := time.Now()
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"), "--redis", "redis://"+testserver.LoopbackAddr(port))
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it served after %v only", took)
	}
	if _, ok := logRecord(p.log(), "redis does not answer: fail modes decide until it does"); !ok {
		t.Errorf("the log does not say that Redis is away:\n%s", p.log())
	}
	conn := dial(t, p.grpcAddr)
	bearer := token(t, "acme")
	admitted := 0
	for range 10 {
		if check(t, conn, "open", bearer) == http.StatusOK {
			admitted++
		}
		if got := check(t, conn, "closed", bearer); got != http.StatusServiceUnavailable {
			t.Errorf("fail_closed answers %d without Redis, want 503", got)
		}
	}
	if admitted != 3 {
		t.Errorf("fail_open admitted %d requests without Redis, want its cap of 3", admitted)
	}
	if code, _ := get(t, p.instance, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz without Redis: %d, want 200", code)
	}
	code, body := get(t, p.instance, "/readyz")
	if code != http.StatusOK || !strings.Contains(body, "redis_down") || !strings.Contains(body, "breaker_open") {
		t.Errorf("/readyz without Redis: %d %s, want 200 with redis_down and breaker_open", code, body)
	}
	for series, want := range map[string]string{
		`sentinel_emergency_admissions_total{endpoint_id="open"}`: "3",
		`sentinel_emergency_capacity{endpoint_id="open"}`:         "3",
		`sentinel_emergency_capacity{endpoint_id="closed"}`:       "0",
		`sentinel_breaker_state{state="closed"}`:                  "0",
	} {
		if got := metric(t, p.instance, series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}

	testserver.Start(t, testserver.Redis, testserver.OnPort(port))
	back := time.Now()
	for check(t, conn, "closed", bearer) != http.StatusOK {
		if took := time.Since(back); took > 4*time.Second { // 2 s, and 2 s for a machine that is busy with other tests
			t.Fatalf("Redis is not used %v after it came\n%s", took, p.log())
		}
		time.Sleep(10 * time.Millisecond)
	}
	healed := func() bool {
		_, body := get(t, p.instance, "/readyz")
		return check(t, conn, "closed", bearer) == http.StatusOK && strings.Contains(body, `"degraded":[]`)
	}
	for deadline := time.Now().Add(30 * time.Second); !healed(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			_, body := get(t, p.instance, "/readyz")
			t.Fatalf("not healed after 30 s with Redis back: %s\n%s", body, p.log())
		}
	}
	if got := metric(t, p.instance, `sentinel_breaker_state{state="closed"}`); got != "1" {
		t.Errorf(`sentinel_breaker_state{state="closed"} is %s after the recovery, want 1`, got)
	}
}

// What waiting does not mend refuses the start, with the problem and how to mend it on one line.
func TestRedisConfigurationFaultsRefuseTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options []testserver.Option
		url     func(*testserver.Server) string
		want    []string
	}{
		"eviction": {
			[]testserver.Option{testserver.WithArgs("--maxmemory-policy", "allkeys-lru")},
			(*testserver.Server).URL,
			[]string{"allkeys-lru", "noeviction"},
		},
		"RF-10 no password": {
			[]testserver.Option{testserver.WithPassword("hunter22hunter22")},
			func(s *testserver.Server) string { return "redis://" + s.Addr() },
			[]string{"NOAUTH", "redis.password_file"},
		},
		"no such database": {
			nil,
			func(s *testserver.Server) string { return s.URL() + "/999" },
			[]string{"no such database", "redis.url"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, testserver.Redis, c.options...)
			code, output := runToTheEnd(t, nil, "serve", "--config", exactShop(t), "--grpc", ephemeral, "--admin", ephemeral, "--redis", c.url(server))
			if code != exitInvalid || strings.Count(output, "\n") != 1 {
				t.Errorf("exit code %d and output %q, want %d and one line", code, output, exitInvalid)
			}
			for _, want := range c.want {
				if !strings.Contains(output, want) {
					t.Errorf("the line lacks %q: %s", want, output)
				}
			}
		})
	}
}

// A right that the script needs is taken away while it runs: that is no outage, and is told apart from one. It has a class
// of its own, a log record that says how to mend it, and a metric to alert on; and when it is mended, it is over.
func TestRF_25_TakenRightIsNoOutage(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	admin := server.Client()
	defer admin.Close()
	rule := func(rules ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), append([]any{"acl", "setuser", "default"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p := serve(t, []string{"SENTINEL_REDIS_BUDGET=1s", "SENTINEL_GUARD_NO_DEADLINE=5s"}, "--config", exactShop(t), "--redis", server.URL())
	conn := dial(t, p.grpcAddr)
	bearer := token(t, "acme")
	if got := check(t, conn, "orders", bearer); got != http.StatusOK {
		t.Fatalf("before: %d", got)
	}
	rule("-set") // which the script calls
	if got := check(t, conn, "orders", bearer); got != http.StatusServiceUnavailable {
		t.Errorf("fail_closed answers %d, want 503", got)
	}
	for series, want := range map[string]string{
		`sentinel_store_failures_total{class="REDIS_ERROR"}`:       "1",
		`sentinel_store_failures_total{class="REDIS_TIMEOUT"}`:     "0",
		`sentinel_store_failures_total{class="REDIS_UNAVAILABLE"}`: "0",
	} {
		if got := metric(t, p.instance, series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}
	becomes := func(unfit string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); metric(t, p.instance, "sentinel_store_unfit") != unfit; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("sentinel_store_unfit is not %s:\n%s", unfit, p.log())
			}
		}
	}
	becomes("1") // by the next probe, 10 s after the last
	record, ok := logRecord(p.log(), "redis' configuration is unfit: nothing is sent to it")
	if mend, _ := record["mend"].(string); !ok || record["level"] != "ERROR" || !strings.Contains(mend, "+set") {
		t.Errorf("the log says %v", record)
	}
	if code, body := get(t, p.instance, "/readyz"); !strings.Contains(body, "redis_config") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	rule("+set")
	becomes("0")
	if got := check(t, conn, "orders", bearer); got != http.StatusOK {
		t.Errorf("mended: %d", got)
	}
}
