package load

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

func TestBareServer(t *testing.T) {
	t.Parallel()
	bare, err := StartBare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Kill()
	conns, err := Dial(t.Context(), bare.Addr(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	for name, ask := range map[string]Ask{"RateLimit": RateLimit("e", 1), "Check": Check("e", []string{"no token"})} {
		if allowed, err := ask(t.Context(), conns[0], 0); !allowed || err != nil {
			t.Errorf("%s: %v, %v, want yes", name, allowed, err)
		}
	}
	if rss, err := RSS(bare.PID()); rss < 1<<20 || err != nil {
		t.Errorf("resident memory of the bare server: %d bytes, %v", rss, err)
	}
	// Processor time is counted in steps, so it takes some calls to see it grow.
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, err := (Closed{Callers: 8, Calls: 1000}).Run(t.Context(), conns, RateLimit("e", 1)); err != nil {
			t.Fatal(err)
		}
		cpu, err := CPU(bare.PID())
		if err != nil {
			t.Fatal(err)
		}
		if cpu >= 50*time.Millisecond {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the bare server has used %v", cpu)
		}
	}
	bare.Kill()
	if _, err := RateLimit("e", 1)(t.Context(), conns[0], 0); status.Code(err) != codes.Unavailable {
		t.Errorf("a dead server answers %v", err)
	}
	if _, err := CPU(bare.PID()); err == nil {
		t.Error("a dead server has processor time")
	}
}

// The tuned bare server is another one, and says yes, too.
func TestTunedBareServer(t *testing.T) {
	t.Parallel()
	bare, err := StartTunedBare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Kill()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", bare.PID()))
	if err != nil || !strings.Contains(string(args), tunedArg) {
		t.Errorf("started as %q, %v", args, err)
	}
	conns, err := Dial(t.Context(), bare.Addr(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	if allowed, err := RateLimit("e", 1)(t.Context(), conns[0], 0); !allowed || err != nil {
		t.Errorf("%v, %v, want yes", allowed, err)
	}
}

// Not parallel: it moves this process to one core for a moment.
func TestCores(t *testing.T) {
	cores := func(pid int) string {
		t.Helper()
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
		list, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(list)
	}
	before := cores(os.Getpid())
	var bare *Bare
	if err := OnCore(0, func() (err error) { bare, err = StartBare(t.Context()); return err }); err != nil {
		t.Fatal(err)
	}
	defer bare.Kill()
	if got := cores(bare.PID()); got != "0" {
		t.Errorf("a server started on core 0 may use %s", got)
	}
	back, err := MoveToCore(0)
	if err != nil {
		t.Fatal(err)
	}
	if got := cores(os.Getpid()); got != "0" {
		t.Errorf("moved to core 0, this process may use %s", got)
	}
	if err := back(); err != nil {
		t.Fatal(err)
	}
	if got := cores(os.Getpid()); got != before {
		t.Errorf("this process may use %s, before %s", got, before)
	}
	broken := errors.New("broken")
	if err := OnCore(0, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the start", err)
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("x-tenant") {
		case "over":
			w.WriteHeader(http.StatusTooManyRequests)
		case "broken":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	client := NewHTTP(2)
	defer client.Close()
	for tenant, want := range map[string]Outcome{"within": Allowed, "over": Denied, "broken": Failed} {
		ask := client.Get(server.URL, "x-tenant", []string{tenant})
		r, err := Closed{Callers: 2, Calls: 10}.Run(t.Context(), make(Conns, 1), ask)
		if err != nil || r.Count(want) != 10 {
			t.Errorf("%s: %d of 10 calls ended in %d, %v", tenant, r.Count(want), want, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const head, tail = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 ", " 30 40 20 0 11 0"
	for _, tt := range []struct {
		stat string
		want time.Duration
		ok   bool
	}{
		{head + "1 2" + tail, 30 * time.Millisecond, true},
		{head + "100 0" + tail, time.Second, true},
		{head + "x 2" + tail, 0, false},
		{"7 (a) S 1 2 3", 0, false},
		{"", 0, false},
	} {
		got, err := parseStat(tt.stat)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseStat(%q) = %v, %v, want %v", tt.stat, got, err, tt.want)
		}
	}
}

func TestParseMachineStat(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		stat      string
		used, all time.Duration
		ok        bool
	}{
		{"cpu  100 20 30 400 5 6 7 50 9 9\ncpu0 1 2\n", 2 * time.Second, 6180 * time.Millisecond, true},
		{"cpu  100 20 30 x 5 6 7 50\n", 0, 0, false},
		{"cpu0 100 20 30 400 5 6 7 50\n", 0, 0, false},
		{"", 0, 0, false},
	} {
		used, all, err := parseMachineStat(tt.stat)
		if (err == nil) != tt.ok || tt.ok && (used != tt.used || all != tt.all) {
			t.Errorf("%q: %v of %v, %v, want %v of %v", tt.stat, used, all, err, tt.used, tt.all)
		}
	}
	if used, all, err := MachineCPU(); used <= 0 || used > all || err != nil {
		t.Errorf("this machine: %v of %v, %v", used, all, err)
	}
}

func TestParseRSS(t *testing.T) {
	t.Parallel()
	if got, err := parseRSS([]byte("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n")); got != 1234<<10 || err != nil {
		t.Errorf("%d, %v, want %d", got, err, 1234<<10)
	}
	if got, err := parseRSS([]byte("Name:\tx\n")); err == nil {
		t.Errorf("a process without memory has %d bytes", got)
	}
}

func TestProcessorName(t *testing.T) {
	t.Parallel()
	if got := processorName([]byte("processor\t: 0\nmodel name\t: Some CPU: v2\n")); got != "Some CPU: v2" {
		t.Errorf("processor %q", got)
	}
	if got := processorName(nil); got != "unknown" {
		t.Errorf("processor %q", got)
	}
}

func TestRedisUsage(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			before, err := ReadRedisUsage(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				// Long enough for its time to be seen, with one command in it.
				const script = "for i = 1, 1000000 do local _ = i * i end return redis.call('TIME')[1]"
				if err := client.Eval(t.Context(), script, nil).Err(); err != nil {
					t.Fatal(err)
				}
			}
			after, err := ReadRedisUsage(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			u := after.Sub(before)
			// Three scripts, the command in each, and the INFO before; connecting adds some.
			if u.Scripts != 3 || u.Commands < 7 || u.Commands > 20 || u.CPU <= 0 {
				t.Errorf("%d scripts, %d commands, %v processor time", u.Scripts, u.Commands, u.CPU)
			}
		})
	}
}

const testPolicies = `
domain: load
endpoints:
  two:
    policy_version: 1
    fail_mode: fail_closed
    limits:
      - {algorithm: token_bucket, capacity: 2, refill: 0}
`

func TestProgram(t *testing.T) {
	t.Parallel()
	binary, err := Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program, err := Start(t.Context(), Settings{Binary: binary, Policies: testPolicies})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Stop()
	conns, err := Dial(t.Context(), program.Addr(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()

	// The third of a tenant is denied, whichever service asks, and however.
	light, err := RateLimitQuestion("two", 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		ask  Ask
		want bool
	}{{RateLimit("two", 1), true}, {light.Ask(), true}, {light.Ask(), false}} {
		want := tt.want
		if allowed, err := tt.ask(t.Context(), conns[0], uint64(i)); allowed != want || err != nil {
			t.Errorf("rate limit call %d: %v, %v, want %v", i, allowed, err, want)
		}
	}
	allowed, reason, err := Probe(t.Context(), conns[0], "two", Tenant(0))
	if allowed || reason != "RATE_LIMITED" || err != nil {
		t.Errorf("probe: %v, %q, %v, want RATE_LIMITED", allowed, reason, err)
	}
	token, err := program.Token("other")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, false} {
		if allowed, err := Check("two", []string{token})(t.Context(), conns[1], uint64(i)); allowed != want || err != nil {
			t.Errorf("check %d: %v, %v, want %v", i, allowed, err, want)
		}
	}
	if got, err := program.Metric(t.Context(), "sentinel_decisions_total"); got != 7 || err != nil {
		t.Errorf("%v decisions, %v, want 7", got, err)
	}
	metrics, err := program.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		labels []string
		want   float64
	}{
		{nil, 7},
		{[]string{"decision_reason=RATE_LIMITED"}, 3},
		{[]string{"endpoint_id=two", "decision_reason=ALLOWED"}, 4},
		{[]string{"endpoint_id=three", "decision_reason=ALLOWED"}, 0},
		{[]string{"nothing=x"}, 0},
	} {
		if got := metrics.Sum("sentinel_decisions_total", tt.labels...); got != tt.want {
			t.Errorf("%q: %v decisions, want %v", tt.labels, got, tt.want)
		}
	}
	if _, err := Start(t.Context(), Settings{Binary: binary, Policies: "domain: load\nnothing: {}\n"}); err == nil {
		t.Error("the program starts with a broken policy file")
	}
}
