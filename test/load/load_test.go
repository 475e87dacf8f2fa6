package load

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) {
	ServeBareIfAsked()
	os.Exit(m.Run())
}

// answering is a server that answers each question with a function.
type answering struct {
	rlsv3.UnimplementedRateLimitServiceServer
	answer func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error)
}

func (a answering) ShouldRateLimit(ctx context.Context, q *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	code, err := a.answer(ctx, q)
	return &rlsv3.RateLimitResponse{OverallCode: code}, err
}

// serve serves an answer about each tenant and returns connections to it.
func serve(t *testing.T, conns int, answer func(context.Context, string) (rlsv3.RateLimitResponse_Code, error)) Conns {
	t.Helper()
	return serveAll(t, conns, func(ctx context.Context, q *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		return answer(ctx, q.GetDescriptors()[0].GetEntries()[1].GetValue())
	})
}

func serveAll(t *testing.T, conns int, answer func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error)) Conns {
	t.Helper()
	server := grpc.NewServer()
	rlsv3.RegisterRateLimitServiceServer(server, answering{answer: answer})
	return connectTo(t, server, conns)
}

// connectTo has a server serve for one test and returns connections to it.
func connectTo(t *testing.T, server *grpc.Server, conns int) Conns {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	c, err := Dial(t.Context(), l.Addr().String(), conns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

func question(t *testing.T, endpoint string, tenants int) Question {
	t.Helper()
	q, err := RateLimitQuestion(endpoint, tenants)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// distinct asks what DistinctTenants asks.
func distinct(t *testing.T) Question {
	t.Helper()
	q := question(t, "e", 1)
	q.message = func(i uint64) ([]byte, error) { return proto.Marshal(rateLimitRequest("e", Tenant(i))) }
	return q
}

// patience is a deadline that only a call without an answer reaches, however busy the machine is.
const patience = 3 * time.Second

// Of each ten tenants one is denied, one never answered and one answered with an error.
func mixed(ctx context.Context, tenant string) (rlsv3.RateLimitResponse_Code, error) {
	switch tenant[len(tenant)-1] {
	case '1':
		return rlsv3.RateLimitResponse_OVER_LIMIT, nil
	case '2':
		// The server's timer may be ahead of the caller's: the answer leaves when the caller has surely given up.
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond)
		return rlsv3.RateLimitResponse_OK, nil
	case '3':
		return rlsv3.RateLimitResponse_OK, status.Error(codes.Unavailable, "on purpose")
	}
	return rlsv3.RateLimitResponse_OK, nil
}

func TestClosedCountsOutcomes(t *testing.T) {
	t.Parallel()
	conns := serve(t, 3, mixed)
	const calls, deadline = 200, patience
	r, err := Closed{Callers: 64, Deadline: deadline, Calls: calls, First: 1000}.Run(t.Context(), conns, DistinctTenants("e"))
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, r, calls)
	if r.Err() == nil || !strings.Contains(r.Err().Error(), "on purpose") {
		t.Errorf("Err() = %v, want the server's", r.Err())
	}
	if got := r.Latency.Quantile(0.99); got < deadline {
		t.Errorf("p99 is %v although a tenth of the calls waited %v", got, deadline)
	}
	if got, want := r.Rate(), float64(r.Answered())/r.Elapsed.Seconds(); got != want || got > calls/deadline.Seconds() {
		t.Errorf("Rate() = %v after %v, want %v", got, r.Elapsed, want)
	}
	if got := r.Share(Denied); got != 0.1 {
		t.Errorf("Share(Denied) = %v, want 0.1", got)
	}
}

// wantCounts checks a report on mixed, where calls is a multiple of ten.
func wantCounts(t *testing.T, r *Report, calls int64) {
	t.Helper()
	for o, want := range map[Outcome]int64{Allowed: calls * 7 / 10, Denied: calls / 10, Late: calls / 10, Failed: calls / 10} {
		if got := r.Count(o); got != want {
			t.Errorf("outcome %d: %d of %d calls, want %d", o, got, calls, want)
		}
	}
	if r.Calls() != calls || r.Answered() != calls*8/10 {
		t.Errorf("%d calls, %d answered, want %d and %d", r.Calls(), r.Answered(), calls, calls*8/10)
	}
}

func TestClosedEndsAfterItsTime(t *testing.T) {
	t.Parallel()
	conns := serve(t, 1, func(context.Context, string) (rlsv3.RateLimitResponse_Code, error) {
		return rlsv3.RateLimitResponse_OK, nil
	})
	const length = 100 * time.Millisecond
	r, err := Closed{Callers: 4, For: length}.Run(t.Context(), conns, RateLimit("e", 3))
	if err != nil || r.Elapsed < length || r.Calls() == 0 || r.Share(Allowed) != 1 {
		t.Errorf("%d calls, %d allowed in %v, %v", r.Calls(), r.Count(Allowed), r.Elapsed, err)
	}
}

func TestRunsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	conns := serve(t, 1, func(ctx context.Context, _ string) (rlsv3.RateLimitResponse_Code, error) {
		<-ctx.Done()
		return rlsv3.RateLimitResponse_OK, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := (Closed{Callers: 4, For: time.Hour}).Run(ctx, conns, RateLimit("e", 3)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closed loop: %v, want the context's error", err)
	}
	open := Open{Rate: 1000, MaxInFlight: 8, Phases: []Phase{{Calls: 1 << 30}}}
	if _, err := open.Run(ctx, conns, question(t, "e", 3)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("open loop: %v, want the context's error", err)
	}
}

func TestOpenPhases(t *testing.T) {
	t.Parallel()
	var seen atomic.Int64
	conns := serve(t, 2, func(ctx context.Context, tenant string) (rlsv3.RateLimitResponse_Code, error) {
		seen.Add(1)
		return mixed(ctx, tenant)
	})
	before := int64(-1)
	o := Open{Rate: 1000, Deadline: 3 * time.Second, MaxInFlight: 1000, Phases: []Phase{
		{Calls: 100},
		{Calls: 200, Before: func() error { before = seen.Load(); return nil }},
	}}
	start := time.Now()
	reports, err := o.Run(t.Context(), conns, distinct(t))
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, reports[0], 100)
	wantCounts(t, reports[1], 200)
	if before < 0 || before > 100 {
		t.Errorf("the second phase began after %d calls, want at most the first phase's 100", before)
	}
	if got := reports[1].Elapsed; got < 199*time.Millisecond || got > time.Since(start)-100*time.Millisecond {
		t.Errorf("200 calls at 1000/s have taken %v", got)
	}

	broken := errors.New("broken")
	o.Phases[1].Before = func() error { return broken }
	if _, err := o.Run(t.Context(), conns, distinct(t)); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of Before", err)
	}
}

// Calls that were due while the server paused count with the whole time from when they were due, even where they could
// only be sent after the pause. A generator that leaves them out would report one slow call.
func TestOpenLeavesNoSlowCallOut(t *testing.T) {
	t.Parallel()
	const (
		pause = 400 * time.Millisecond
		rate  = 500.0
		calls = 500 // of which 200 are due during the pause
	)
	for _, inFlight := range []int{1, calls} {
		var resume atomic.Pointer[time.Time]
		conns := serve(t, 1, func(context.Context, string) (rlsv3.RateLimitResponse_Code, error) {
			end := time.Now().Add(pause)
			if !resume.CompareAndSwap(nil, &end) {
				end = *resume.Load()
			}
			time.Sleep(time.Until(end))
			return rlsv3.RateLimitResponse_OK, nil
		})
		reports, err := Open{Rate: rate, MaxInFlight: inFlight, Phases: []Phase{{Calls: calls}}}.Run(
			t.Context(), conns, question(t, "e", 1))
		if err != nil {
			t.Fatal(err)
		}
		// A call due after a quarter of the pause waits three quarters of it. More may have waited on a busy machine.
		r := reports[0]
		waited := func(atLeast time.Duration) float64 {
			for q := 1.0; q >= 0; q -= 0.001 {
				if r.Latency.Quantile(q) < atLeast {
					return 1 - q
				}
			}
			return 1
		}
		if got, want := waited(pause*3/4), pause.Seconds()/4*rate/calls; got < want-0.01 {
			t.Errorf("%d in flight: %.3f of the calls waited %v, want %.3f", inFlight, got, pause*3/4, want)
		}
		if r.Calls() != calls || r.Count(Allowed) != calls {
			t.Errorf("%d in flight: %d calls, %d allowed, want %d", inFlight, r.Calls(), r.Count(Allowed), calls)
		}
		if lag := r.Lag.Max(); inFlight == 1 && lag < pause*3/4 {
			t.Errorf("calls were at most %v behind their time although one waited %v alone", lag, pause)
		}
	}
}

func TestOpenBoundsCallsInFlight(t *testing.T) {
	t.Parallel()
	const most, calls = 8, 200
	var now, peak atomic.Int64
	conns := serve(t, 2, func(context.Context, string) (rlsv3.RateLimitResponse_Code, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		return rlsv3.RateLimitResponse_OK, nil
	})
	reports, err := Open{Rate: 10_000, MaxInFlight: most, Phases: []Phase{{Calls: calls}}}.Run(t.Context(), conns, question(t, "e", 1))
	if err != nil || reports[0].Count(Allowed) != calls {
		t.Fatalf("%v, want %d calls allowed", err, calls)
	}
	if got := peak.Load(); got != most {
		t.Errorf("%d calls at once, want %d", got, most)
	}
}

func TestReportAdd(t *testing.T) {
	t.Parallel()
	sum := &Report{Elapsed: time.Second}
	sum.record(Allowed, nil, 2*time.Millisecond)
	other := &Report{Elapsed: 2 * time.Second}
	broken := errors.New("broken")
	for o, err := range map[Outcome]error{Allowed: nil, Denied: nil, Late: nil, Failed: broken} {
		other.record(o, err, 3*time.Millisecond)
		other.Lag.Record(time.Millisecond)
	}
	sum.Add(other)
	for o, want := range map[Outcome]int64{Allowed: 2, Denied: 1, Late: 1, Failed: 1} {
		if got := sum.Count(o); got != want {
			t.Errorf("outcome %d: %d calls, want %d", o, got, want)
		}
	}
	if sum.Elapsed != 3*time.Second || sum.Latency.Max() != 3*time.Millisecond || sum.Lag.Max() != time.Millisecond || !errors.Is(sum.Err(), broken) {
		t.Errorf("%v, at most %v, %v behind, %v", sum.Elapsed, sum.Latency.Max(), sum.Lag.Max(), sum.Err())
	}
}

func TestEndpointsAndTenantsAreDrawnApart(t *testing.T) {
	t.Parallel()
	const endpoints, tenants, calls = 4, 5, 4000
	var mu sync.Mutex
	seen := make(map[string]int)
	conns := serveAll(t, 4, func(_ context.Context, q *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		mu.Lock()
		defer mu.Unlock()
		entries := q.GetDescriptors()[0].GetEntries()
		seen[entries[0].GetValue()+" "+entries[1].GetValue()]++
		return rlsv3.RateLimitResponse_OK, nil
	})
	ask := RateLimitAmong([]string{"a", "b", "c", "d"}, tenants)
	if _, err := (Closed{Callers: 8, Calls: calls}).Run(t.Context(), conns, ask); err != nil {
		t.Fatal(err)
	}
	const share = calls / endpoints / tenants
	for what, n := range seen {
		if n < share/2 || n > share*2 {
			t.Errorf("%s was drawn %d times, want about %d", what, n, share)
		}
	}
	if len(seen) != endpoints*tenants {
		t.Errorf("%d pairs of endpoint and tenant, want %d", len(seen), endpoints*tenants)
	}
}

func TestTenantsAreDrawnEvenly(t *testing.T) {
	t.Parallel()
	const tenants, calls = 20, 2000
	var seen [tenants]atomic.Int64
	conns := serve(t, 4, func(_ context.Context, tenant string) (rlsv3.RateLimitResponse_Code, error) {
		n, err := strconv.Atoi(strings.TrimPrefix(tenant, "tenant-"))
		if err != nil {
			return 0, err
		}
		seen[n].Add(1)
		return rlsv3.RateLimitResponse_OK, nil
	})
	if _, err := (Closed{Callers: 8, Calls: calls}).Run(t.Context(), conns, RateLimit("e", tenants)); err != nil {
		t.Fatal(err)
	}
	var counts []int64
	for i := range seen {
		counts = append(counts, seen[i].Load())
	}
	if least, most := slices.Min(counts), slices.Max(counts); least < calls/tenants/2 || most > calls/tenants*2 {
		t.Errorf("a tenant was drawn %d to %d times, want about %d", least, most, calls/tenants)
	}
}
