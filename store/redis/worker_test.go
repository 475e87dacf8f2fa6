package redis

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// TestDeadline: the last caller's, within the budget, and not before half of it, to learn something about the server.
func TestDeadline(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, c := range []struct {
		budget  time.Duration
		callers []time.Duration
		want    time.Duration
	}{
		{20, []time.Duration{16}, 16},
		{20, []time.Duration{8, 16, 4}, 16},
		{20, []time.Duration{16, 21}, 20},
		{20, []time.Duration{5000}, 20},
		{20, []time.Duration{1}, 10},
		{20, []time.Duration{-3, 2}, 10},
		{20, []time.Duration{11}, 11},
		{200, []time.Duration{16}, 100},
		{2, []time.Duration{0}, 1},
	} {
		n := &node{settings: &settings{Config: Config{Budget: c.budget * time.Millisecond}}}
		var batch []*call
		for _, left := range c.callers {
			batch = append(batch, &call{deadline: start.Add(left * time.Millisecond)})
		}
		if got := n.deadline(batch, start).Sub(start); got != c.want*time.Millisecond {
			t.Errorf("budget %d, callers %d: %v, want %d ms", c.budget, c.callers, got, c.want)
		}
	}
}

// TestWorkersKeepTheirDistance: of a server that is far the round trips are spread over time, so that nobody waits for nearly
// two of them.
func TestWorkersKeepTheirDistance(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name               string
		workers            int
		took, behind, left time.Duration
		underWay           int32
		want               time.Duration
	}{
		{"half a round trip", 2, 10 * ms, ms, 20 * ms, 1, 4 * ms},
		{"a quarter", 4, 10 * ms, ms, 20 * ms, 3, 1500 * time.Microsecond},
		{"far enough", 2, 10 * ms, 6 * ms, 20 * ms, 1, 0},
		{"nobody on the way", 2, 10 * ms, ms, 20 * ms, 0, 0},
		{"a server nearby", 2, farServer - 1, 0, 20 * ms, 1, 0},
		{"the last round trip failed", 2, 0, 0, 20 * ms, 1, 0},
		{"a caller who would have his answer just in time", 2, 14 * ms, 0, 20 * ms, 1, 4250 * time.Microsecond},
		{"a caller who would not", 2, 18 * ms, 0, 20 * ms, 1, 0},
		{"a caller with little time", 2, 10 * ms, 0, 5 * ms, 1, 0},
		{"a round trip longer than the budget", 2, time.Hour, 0, 20 * ms, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := distant(c.workers, c.took, c.behind)
				n.underWay.Store(c.underWay)
				start := time.Now()
				n.keepDistance(start.Add(c.left), nil)
				if got := time.Since(start); got != c.want {
					t.Errorf("waited %v, want %v", got, c.want)
				}
			})
		})
	}
}

// distant is a node whose last round trip lasted took, and began so long ago.
func distant(workers int, took, ago time.Duration) *node {
	n := &node{settings: &settings{Config: Config{Workers: workers}}, began: time.Now()}
	n.took.Store(int64(took))
	time.Sleep(time.Minute)
	n.departed.Store(int64(time.Since(n.began) - ago))
	return n
}

// TestWorkersKeepTheirDistanceNoLonger: once there is nobody to keep it from, and once they are to stop. One long round trip,
// a pause of the server, says nothing about the next one.
func TestWorkersKeepTheirDistanceNoLonger(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(n *node, stop chan struct{}){
		"the other is back": func(n *node, _ chan struct{}) { n.underWay.Add(-1) },
		"the other was back soon, and left again": func(n *node, _ chan struct{}) {
			n.took.Store(int64(time.Millisecond))
			n.departed.Store(int64(time.Since(n.began)))
		},
		"the other failed": func(n *node, _ chan struct{}) { n.took.Store(0) },
		"they stop":        func(_ *node, stop chan struct{}) { close(stop) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := distant(2, 4*time.Second, 0)
				n.underWay.Store(1)
				start, stop := time.Now(), make(chan struct{})
				time.AfterFunc(100*time.Millisecond, func() { happens(n, stop) })
				n.keepDistance(start.Add(10*time.Second), stop)
				if got := time.Since(start); got < 100*time.Millisecond || got > 100*time.Millisecond+farServer {
					t.Errorf("waited %v", got)
				}
			})
		})
	}
}

// TestCallIsSentOrLeft: of worker and caller, the first decides.
func TestCallIsSentOrLeft(t *testing.T) {
	t.Parallel()
	wasSent, wasNot, outcome := errors.New("sent"), errors.New("not sent"), errors.New("outcome")
	now := time.Now()
	fresh := func() *call { return &call{deadline: now.Add(time.Second), done: make(chan struct{})} }

	c := fresh()
	if err := c.leave(wasSent, wasNot); !errors.Is(err, wasNot) || c.claim(now) {
		t.Errorf("left, then claimed: %v", err)
	}
	c = fresh()
	if !c.claim(now) || !errors.Is(c.leave(wasSent, wasNot), wasSent) {
		t.Error("claimed, then left")
	}
	c = fresh()
	c.claim(now)
	c.finish(outcome)
	if err := c.leave(wasSent, wasNot); !errors.Is(err, outcome) {
		t.Errorf("finished, then left: %v", err)
	}
	c = fresh()
	if c.claim(c.deadline) || !errors.Is(c.leave(wasSent, wasNot), wasNot) {
		t.Error("claimed at its deadline")
	}
}

// idle returns a store without workers, for a server that is not there, with its breaker open.
func idle(t *testing.T) (*Store, *node) {
	t.Helper()
	s, err := New(Config{URL: "unix:///does/not/exist", Breaker: rls.BreakerConfig{Failures: 1, Quarantine: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	n := s.servers.nodes()[0]
	report, err := n.breaker.Allow()
	if err != nil {
		t.Fatal(err)
	}
	report(false)
	return s, n
}

func oneTake(t *testing.T) []rls.Group {
	t.Helper()
	rule, err := algorithms.NewTokenBucket(1, algorithms.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	return []rls.Group{{{Key: "k", Rule: rule, Op: algorithms.OpTake, Cost: 1}}}
}

// TestOpenBreakerAnswersAtOnce: without a place in the queue, without a worker.
func TestOpenBreakerAnswersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := idle(t)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a := s.Decide(ctx, oneTake(t))[0]
		if !errors.Is(a.Err, rls.ErrCircuitOpen) || time.Since(start) > 0 || len(n.queue) > 0 {
			t.Errorf("got %v after %v, %d queued", a.Err, time.Since(start), len(n.queue))
		}
	})
}

// TestProbeIsOneCall: what waits behind the probe is not sent with it.
func TestProbeIsOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, n := idle(t)
		time.Sleep(time.Hour + time.Second) // half-open is due
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 3 {
			c := newCall(ctx, 1)
			c.put(0, oneTake(t)[0])
			n.queue <- c
		}
		first := <-n.queue
		if !first.claim(time.Now()) {
			t.Fatal("not claimed")
		}
		if batch := n.roundTrip([]*call{first}); len(batch) != 1 || len(n.queue) != 2 {
			t.Errorf("%d calls were sent, %d left", len(batch), len(n.queue))
		}
		if !errors.Is(first.decisions[0].err, rls.ErrUnavailable) || n.breaker.State() != "open" {
			t.Errorf("got %v, breaker %s", first.decisions[0].err, n.breaker.State())
		}
		// The next ones find it open again.
		second := <-n.queue
		if n.roundTrip([]*call{second}); !errors.Is(second.err, rls.ErrCircuitOpen) {
			t.Errorf("got %v, want ErrCircuitOpen", second.err)
		}
	})
}

// TestDialerLeavesNothingOpen: connections that come up while the dialer is closed are closed too.
func TestDialerLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 200 {
		d := newDialer("tcp", l.Addr().String(), nil, func(int) {})
		var dials sync.WaitGroup
		for range 4 {
			dials.Go(func() { _, _ = d.dial(context.Background(), "", "") })
		}
		d.close()
		dials.Wait()
		if n := len(d.open); n > 0 {
			t.Fatalf("%d connections are open", n)
		}
		if _, err := d.dial(context.Background(), "", ""); !errors.Is(err, errClosed) {
			t.Fatalf("got %v, want errClosed", err)
		}
	}
}
