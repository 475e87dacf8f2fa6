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

// TestDeadline: the last caller's, within the budget, and never too soon to learn something about the server.
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
		{20, []time.Duration{1}, 5},
		{20, []time.Duration{-3, 2}, 5},
		{3, []time.Duration{1}, 3},
		{3, []time.Duration{10}, 3},
	} {
		s := &Store{cfg: Config{Budget: c.budget * time.Millisecond}}
		var batch []*call
		for _, left := range c.callers {
			batch = append(batch, &call{deadline: start.Add(left * time.Millisecond)})
		}
		if got := s.deadline(batch, start).Sub(start); got != c.want*time.Millisecond {
			t.Errorf("budget %d, callers %d: %v, want %d ms", c.budget, c.callers, got, c.want)
		}
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
func idle(t *testing.T) *Store {
	t.Helper()
	s, err := New(Config{URL: "unix:///does/not/exist", Breaker: rls.BreakerConfig{Failures: 1, Quarantine: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.breaker.Allow()
	if err != nil {
		t.Fatal(err)
	}
	report(false)
	return s
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
		s := idle(t)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a := s.Decide(ctx, oneTake(t))[0]
		if !errors.Is(a.Err, rls.ErrCircuitOpen) || time.Since(start) > 0 || len(s.queue) > 0 {
			t.Errorf("got %v after %v, %d queued", a.Err, time.Since(start), len(s.queue))
		}
	})
}

// TestProbeIsOneCall: what waits behind the probe is not sent with it.
func TestProbeIsOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := idle(t)
		time.Sleep(time.Hour + time.Second) // half-open is due
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		newCall := func() *call { return s.newCall(ctx, oneTake(t), make([]rls.Answer, 1)) }
		for range 3 {
			s.queue <- newCall()
		}
		first := <-s.queue
		if !first.claim(time.Now()) {
			t.Fatal("not claimed")
		}
		if batch := s.roundTrip([]*call{first}); len(batch) != 1 || len(s.queue) != 2 {
			t.Errorf("%d calls were sent, %d left", len(batch), len(s.queue))
		}
		if !errors.Is(first.commands[0].err, rls.ErrUnavailable) || s.breaker.State() != "open" {
			t.Errorf("got %v, breaker %s", first.commands[0].err, s.breaker.State())
		}
		// The next ones find it open again.
		second := <-s.queue
		if s.roundTrip([]*call{second}); !errors.Is(second.err, rls.ErrCircuitOpen) {
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
		d := newDialer(nil, func(int) {})
		var dials sync.WaitGroup
		for range 4 {
			dials.Go(func() { _, _ = d.dial(context.Background(), "tcp", l.Addr().String()) })
		}
		d.close()
		dials.Wait()
		if n := len(d.open); n > 0 {
			t.Fatalf("%d connections are open", n)
		}
		if _, err := d.dial(context.Background(), "tcp", l.Addr().String()); !errors.Is(err, errClosed) {
			t.Fatalf("got %v, want errClosed", err)
		}
	}
}
