package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// frozenPlan are the numbers of the drill. They follow from its load so that the calls ask for several times what may be
// admitted: first the store's buckets run dry, then the emergency bucket does.
type frozenPlan struct {
	leadIn   int   // calls before the freeze
	tenants  int   // that these and all other calls are about
	capacity int64 // of each tenant's bucket, which does not refill

	emergencyCapacity int64
	emergencyRefill   int64 // per second
}

func planFrozen(calls int, rate float64) frozenPlan {
	leadIn := calls / 10
	return frozenPlan{
		leadIn: leadIn, tenants: leadIn / 10, capacity: 5,
		emergencyCapacity: int64(calls / 50), emergencyRefill: int64(math.Ceil(rate / 20)),
	}
}

func (p frozenPlan) policies() string {
	return fmt.Sprintf(`
domain: load
endpoints:
  scarce:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: %d, refill: %d/s}
    limits:
      - {algorithm: token_bucket, capacity: %d, refill: 0}
  spent:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 1/s}
    limits:
      - {algorithm: token_bucket, capacity: 1, refill: 0}
`, p.emergencyCapacity, p.emergencyRefill, p.capacity)
}

// bound returns the most that may be admitted in a time: what the store's buckets hold, and what the emergency bucket of one
// process holds and refills.
func (p frozenPlan) bound(t time.Duration) int64 {
	return int64(p.tenants)*p.capacity + p.emergencyCapacity + int64(float64(p.emergencyRefill)*t.Seconds())
}

// frozen drives the program and, beside it, the bare server, stops Redis under the load, and thaws it afterwards.
func frozen(ctx context.Context, s *stage) (row Row, err error) {
	plan := planFrozen(s.Calls, s.Rate)
	c, err := s.open(ctx, plan.policies())
	if err != nil {
		return row, err
	}
	defer c.close()
	if err := c.spend(ctx); err != nil {
		return row, err
	}

	loop := load.Open{
		Rate: s.Rate, Deadline: s.Deadline,
		MaxInFlight: callers + int(4*s.Rate*s.Deadline.Seconds()), // a call is in flight for a deadline at most
		Phases:      []load.Phase{{Calls: plan.leadIn}, {Calls: s.Calls}},
	}
	beside := loop
	loop.Phases = []load.Phase{{Calls: plan.leadIn}, {Calls: s.Calls, Before: c.store.Freeze}}
	ask := load.RateLimit("scarce", plan.tenants)

	var ours, bare []*load.Report
	start := time.Now()
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() (err error) { bare, err = beside.Run(bothCtx, s.bareConns, ask); return err })
	both.Go(func() (err error) { ours, err = loop.Run(bothCtx, c.conns, ask); return err })
	if err := both.Wait(); err != nil {
		return row, err
	}
	outage := time.Since(start)

	if err := c.store.Thaw(); err != nil {
		return row, err
	}
	before, sick := ours[0], ours[1]
	row = Row{
		Calls: sick.Calls(), InTime: sick.Answered(), Late: sick.Count(load.Late), BareLate: bare[1].Count(load.Late),
		P99: sick.Latency.Quantile(0.99), BareP99: bare[1].Latency.Quantile(0.99), Lag: sick.Lag.Quantile(0.99),
		Errors:   before.Count(load.Failed) + sick.Count(load.Failed),
		Admitted: before.Count(load.Allowed) + sick.Count(load.Allowed),
		Bound:    plan.bound(outage),
	}
	row.Recovery, err = c.recovery(ctx)
	return row, err
}

// spend takes the one token of a bucket that only the store knows: from now on the store denies it.
func (c *scene) spend(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		_, reason, err := load.Probe(ctx, c.conns[0], "spent", "probe")
		if err != nil {
			return err
		}
		if reason == rateLimited {
			return nil
		}
		if attempt == 100 {
			return fmt.Errorf("a bucket of one token is not spent after %d calls: %q", attempt, reason)
		}
		if err := sleep(ctx, probeEvery); err != nil {
			return err
		}
	}
}

const (
	rateLimited   = "RATE_LIMITED" // the reason of a denial that the store decided
	probeEvery    = 5 * time.Millisecond
	probesInRow   = 20
	recoveryBound = 10 * time.Second // beyond the quarantine; then it is given up
)

// recovery waits until probesInRow answers in a row are the store's own, and returns when the first of them came, counted
// from the call.
func (c *scene) recovery(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	var first time.Duration
	for streak := 0; streak < probesInRow; {
		if time.Since(start) > c.Quarantine+recoveryBound {
			return -1, nil
		}
		probe, cancel := context.WithTimeout(ctx, c.Deadline)
		_, reason, err := load.Probe(probe, c.conns[0], "spent", "probe")
		cancel()
		if err != nil || reason != rateLimited {
			streak = 0
		} else if streak++; streak == 1 {
			first = time.Since(start)
		}
		if err := sleep(ctx, probeEvery); err != nil {
			return 0, err
		}
	}
	return first, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
