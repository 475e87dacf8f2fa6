package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sentinel-rls/sentinel-rls/internal/collector"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// plan are the numbers of a run. They follow from its load so that the calls ask for several times what may be admitted:
// first the store's buckets run dry, then the emergency bucket does.
type plan struct {
	leadIn   int   // calls before anything goes wrong
	calls    int   // while it is wrong
	after    int   // calls once it is over, of a program that was away
	tenants  int   // that these and all other calls are about
	capacity int64 // of each tenant's bucket, which does not refill

	emergencyCapacity int64
	emergencyRefill   int64 // per second
}

// scaled returns a rate that a drill asks for itself, which its short form takes a tenth of.
func (o options) scaled(rate float64) float64 {
	if o.Short {
		return rate / 10
	}
	return rate
}

func (f *fault) plan(o options) (p plan, rate float64) {
	rate, p.calls = o.Rate, o.Calls
	if f.rate > 0 {
		rate = o.scaled(f.rate)
	}
	lasts := f.lasts
	if o.Short && f.short > 0 {
		lasts = f.short
	}
	if lasts > 0 {
		p.calls = max(minCalls, int(rate*lasts.Seconds()))
	}
	p.leadIn = p.calls / 10
	if f.dies {
		p.after = p.leadIn
	}
	p.tenants, p.capacity = p.leadIn/10, 5 // so that the lead-in asks each tenant's bucket for twice what it holds
	if f.wet {
		p.capacity = 15
	}
	p.emergencyCapacity, p.emergencyRefill = int64(p.calls/50), int64(math.Ceil(rate/20))
	return p, rate
}

func (p plan) policies() string {
	return fmt.Sprintf(`
domain: load
endpoints:
  scarce:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: %d, refill: %d/s}
    limits:
      - {algorithm: token_bucket, capacity: %d, refill: 0}
  plenty:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 0}
    limits:
      - {algorithm: token_bucket, capacity: 1000000000, refill: 0}
  spent:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 1/s}
    limits:
      - {algorithm: token_bucket, capacity: 1, refill: 0}
`, p.emergencyCapacity, p.emergencyRefill, p.capacity)
}

// held returns what the store's buckets hold at first, all together.
func (p plan) held() int64 { return int64(p.tenants) * p.capacity }

// emergency returns the most that the emergency buckets of so many programs admit in a time.
func (p plan) emergency(t time.Duration, programs int) int64 {
	return (p.emergencyCapacity + int64(float64(p.emergencyRefill)*t.Seconds())) * int64(programs)
}

// hold drives the program and, beside it, the bare server, lets the fault happen under the load, and heals it afterwards.
func (d drill) hold(ctx context.Context, s *stage, kind testserver.Kind) (row Row, err error) {
	f := d.fault
	p, rate := f.plan(s.options)
	c, err := s.open(ctx, kind, p.policies(), f)
	if err != nil {
		return row, err
	}
	defer c.close()
	if f.prepare != nil {
		if err := f.prepare(ctx, c); err != nil {
			return row, fmt.Errorf("preparing: %w", err)
		}
	}
	if err := c.spend(ctx); err != nil {
		return row, err
	}
	loop := load.Open{
		Rate: rate, Deadline: s.Deadline,
		MaxInFlight: callers + int(4*rate*s.Deadline.Seconds()), // a call is in flight for a deadline at most
		Phases:      []load.Phase{{Calls: max(minCalls, p.leadIn)}},
	}
	// A healthy program under the same load, so that what it holds then is known.
	question, err := load.RateLimitQuestion("plenty", p.tenants)
	if err != nil {
		return row, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(collector.Percent)) // the generator's; what it holds up is late
	if _, err := loop.Run(ctx, c.conns, question); err != nil {
		return row, err
	}
	if err := c.watch.start(ctx, c); err != nil {
		return row, err
	}
	defer c.watch.stop()
	start := time.Now()
	ours, bare, err := d.drive(ctx, c, loop, p)
	if err != nil {
		return row, err
	}
	if f.heal != nil {
		if err := f.heal(ctx, c); err != nil {
			return row, fmt.Errorf("healing: %w", err)
		}
	}
	row = f.row(ours, bare)
	row.Server, row.Lag = string(kind), c.lag
	if err := f.account(ctx, c, &row, p, time.Since(start)); err != nil {
		return row, err
	}
	row.Recovery = c.recovered
	if row.Lag < 0 { // else it was told when the replica took over
		if row.Recovery, err = c.recovery(ctx); err != nil {
			return row, err
		}
	}
	row.Goroutines, row.Memory, err = c.watch.levels(ctx, c)
	return row, err
}

// The phases of the load. In the last, which most drills do without, the program that was away is back.
const (
	before = iota
	wrong
	after
)

// drive drives both servers at once and has it go wrong in between.
func (d drill) drive(ctx context.Context, c *scene, loop load.Open, p plan) (ours, bare []*load.Report, err error) {
	loop.Phases = []load.Phase{before: {Calls: p.leadIn}, wrong: {Calls: p.calls}, after: {Calls: p.after}}
	beside := loop
	whileWrong, over := context.WithCancel(ctx)
	defer over()
	var happening errgroup.Group
	loop.Phases = slices.Clone(loop.Phases)
	loop.Phases[wrong].Before = func() error {
		if d.fault.hurt != nil {
			if err := d.fault.hurt(ctx, c); err != nil {
				return fmt.Errorf("hurting: %w", err)
			}
		}
		if d.fault.during != nil {
			happening.Go(func() error { return d.fault.during(whileWrong, c) })
		}
		return nil
	}
	loop.Phases[after].Connected = true
	loop.Phases[after].Before = func() error {
		over()
		return happening.Wait()
	}
	question, err := load.RateLimitQuestion("scarce", p.tenants)
	if err != nil {
		return nil, nil, err
	}
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() (err error) { bare, err = beside.Run(bothCtx, c.bareConns, question); return err })
	both.Go(func() (err error) { ours, err = loop.Run(bothCtx, c.conns, question); return err })
	err = both.Wait()
	over()
	return ours, bare, errors.Join(err, happening.Wait())
}

// row is what the reports of a run say.
func (f *fault) row(ours, bare []*load.Report) Row {
	judged := wrong
	if f.dies { // nobody can answer in its place
		judged = after
	}
	sick, bareSick := ours[judged], bare[judged]
	r := Row{
		Calls: sick.Calls(), InTime: sick.Answered(), Late: sick.Count(load.Late), BareLate: bareSick.Count(load.Late),
		P99: sick.Latency.Quantile(0.99), BareP99: bareSick.Latency.Quantile(0.99), Sent: sick.Lag.Quantile(0.99),
	}
	for phase, report := range ours {
		r.Admitted += report.Count(load.Allowed)
		if phase == after || !f.dies { // what was under way when it died fails, too
			r.Errors += report.Count(load.Failed)
		}
	}
	return r
}

// account fills in what may have been admitted over an outage, and what the store admitted by the program's own account.
func (f *fault) account(ctx context.Context, c *scene, row *Row, p plan, outage time.Duration) error {
	programs := len(c.programs())
	if f.dies {
		programs++
	}
	row.Loss = int64(f.losses) * p.held()
	if c.lag > 0 {
		row.Loss += int64(math.Ceil(c.Rate * c.lag.Seconds()))
	}
	row.Bound = p.held() + row.Loss + p.emergency(outage, programs)
	a, err := c.account(ctx)
	if err != nil {
		return err
	}
	row.Over = max(0, a.byStore-p.held())
	row.Vain = f.class != "" && a.failures[f.class] == 0
	return nil
}

// account is what the programs counted.
type account struct {
	byStore  int64 // admissions to the endpoint of the load by the store
	failures map[string]int64
}

// account reads what the programs have counted, with what one that was killed had counted before.
func (c *scene) account(ctx context.Context) (account, error) {
	a := account{c.buried, make(map[string]int64)}
	for _, p := range c.programs() {
		m, err := p.Metrics(ctx)
		if err != nil {
			return a, err
		}
		a.byStore += int64(m.Sum("sentinel_decisions_total", "endpoint_id=scarce", "decision_reason=ALLOWED") -
			m.Sum("sentinel_emergency_admissions_total", "endpoint_id=scarce"))
		for _, class := range []string{timedOut, unavailable, refused} {
			n := int64(m.Sum("sentinel_store_failures_total", "class="+class))
			a.failures[class] += n
			a.failures[anyClass] += n
		}
	}
	return a, nil
}

// The classes of store failures.
const (
	timedOut    = "REDIS_TIMEOUT"
	unavailable = "REDIS_UNAVAILABLE"
	refused     = "REDIS_ERROR"
	anyClass    = "any"
)

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
		if attempt == 1000 {
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
// from the call. A store that lost what was spent admits the probe once more.
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
