package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Overload is what comes of more load than the program can answer, with the program and Redis on one core and the generator
// on the other.
type Overload struct {
	Capacity   float64 `json:"capacity"`         // calls a second that the program answers on its core, in a closed loop
	Rate       float64 `json:"calls_per_second"` // offered
	Seconds    float64 `json:"seconds"`
	DeadlineMS float64 `json:"deadline_ms"`
	OpenSide
	InTime   float64 `json:"in_time_share"`
	ByStore  float64 `json:"by_store_share"` // of what was decided
	Locally  float64 `json:"locally_share"`  // by the emergency limiter, since the store could not be asked in time
	Admitted int64   `json:"admitted_locally"`
	Bound    int64   `json:"admitted_locally_bound"` // emergency capacity and refill
	Breaker  int64   `json:"breaker_openings"`
	Others   float64 `json:"others_share"`
	TooBusy  string  `json:"too_busy,omitempty"` // why nothing was offered
}

// The emergency cap of the overload measure.
const (
	overloadCapacity = 1000
	overloadRefill   = 500 // a second
)

var overloaded = fmt.Sprintf(`
domain: load
endpoints:
  all:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: %d, refill: %d/s}
    limits:
      - {algorithm: token_bucket, capacity: 10000000, refill: 1/60s}
`, overloadCapacity, overloadRefill)

// overload offers one and a half times of what the program answers at most.
func (b *bench) overload(ctx context.Context, r *Report) (err error) {
	const servers, generator = 0, 1
	pinned := *b
	var program *load.Program
	var conns load.Conns
	var stop func()
	err = load.OnCore(servers, func() (err error) {
		if pinned.store, err = testserver.Run(ctx, testserver.Redis); err != nil {
			return err
		}
		program, conns, stop, err = b.start(ctx, load.Settings{Policies: overloaded, Store: pinned.store})
		return err
	})
	if pinned.store != b.store && pinned.store != nil {
		defer pinned.store.Stop()
	}
	if stop != nil {
		defer stop()
	}
	if err != nil {
		return err
	}
	back, err := load.MoveToCore(generator)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back()) }()

	ours := entrant{server: program.Process, conns: conns, ask: load.RateLimit("all", b.size.Tenants), means: load.Allowed}
	o := &Overload{Seconds: b.size.OverloadFor.Seconds(), DeadlineMS: float64(envoyDeadline.Milliseconds())}
	r.Overload = o
	if o.Capacity, o.TooBusy, err = pinned.capacity(ctx, ours); err != nil || o.TooBusy != "" {
		return err
	}
	o.Rate = 1.5 * o.Capacity
	return o.offer(ctx, &pinned, program, ours)
}

// offer offers the load and counts who decided.
func (o *Overload) offer(ctx context.Context, b *bench, program *load.Program, ours entrant) error {
	names := [][]string{
		{"sentinel_decisions_total"},
		{"sentinel_emergency_admissions_total"}, // these are ALLOWED, too
		{"sentinel_decisions_total", "decision_reason=EMERGENCY_LOCAL_LIMIT"},
		{"sentinel_decisions_total", "decision_reason=CIRCUIT_OPEN"},
		{"sentinel_emergency_spent_total"},
		{"sentinel_breaker_transitions_total", "to=open"},
	}
	read := func() ([]float64, error) {
		values := make([]float64, len(names))
		for i, n := range names {
			var err error
			if values[i], err = program.Metric(ctx, n[0], n[1:]...); err != nil {
				return nil, err
			}
		}
		return values, nil
	}
	before, err := read()
	if err != nil {
		return err
	}
	used, err := b.meter(ctx, ours)
	if err != nil {
		return err
	}
	question, err := load.RateLimitQuestion("all", b.size.Tenants)
	if err != nil {
		return err
	}
	start := time.Now()
	report, err := openly(ctx, ours.conns, question, o.Rate, int(o.Rate*o.Seconds))
	if err != nil {
		return err
	}
	after, err := b.meter(ctx, ours)
	if err != nil {
		return err
	}
	counts, err := read()
	if err != nil {
		return err
	}
	took := time.Since(start)
	for i := range counts {
		counts[i] -= before[i]
	}
	o.OpenSide = sideOf(report)
	o.InTime = float64(report.Answered()) / float64(max(1, report.Calls()))
	o.Locally = (counts[1] + counts[2] + counts[3]) / max(1, counts[0])
	o.ByStore = 1 - o.Locally
	o.Admitted, o.Bound = int64(counts[4]), int64(overloadCapacity+overloadRefill*took.Seconds())
	o.Breaker = int64(counts[5])
	o.Others = after.others(used)
	return nil
}

func (o *Overload) figures() []Figure {
	verdict, why := Verdict(""), ""
	switch {
	case o.TooBusy != "":
		verdict, why = notJudged, o.TooBusy
	case o.Others > maxOthers:
		verdict, why = notJudged, fmt.Sprintf("other work took %.0f %% of the machine", 100*o.Others)
	case o.Lag > 1000*o.DeadlineMS:
		verdict, why = notJudged, o.generatorLate()
	case o.Failed > 0:
		verdict, why = void, fmt.Sprintf("%d calls failed", o.Failed)
	}
	admitted := alone(float64(o.Admitted) / float64(max(1, o.Bound)))
	return append(
		figures("overload", map[string]*Spread{"in_time": alone(o.InTime), "by_store": alone(o.ByStore)}, verdict, why),
		figures("overload", map[string]*Spread{"admitted": admitted}, "", "")...)
}

func (o *Overload) print(w io.Writer) {
	fmt.Fprintf(w, "\nOverload: %.0f calls/s, one and a half times of the %.0f that the program answers on its core, for %gs, deadlines of %g ms.\n\n",
		o.Rate, o.Capacity, o.Seconds, o.DeadlineMS)
	load.Table(w, [][]string{
		{"calls", "in time", "late", "failed", "p50 ms", "p99 ms", "sent within ms", "decided by Redis", "locally", "admitted locally", "bound", "breaker opened"},
		{
			fmt.Sprint(o.Calls), percent(o.InTime), fmt.Sprint(o.Late), fmt.Sprint(o.Failed),
			fmt.Sprintf("%.2f", o.P50/1000), fmt.Sprintf("%.2f", o.P99/1000), fmt.Sprintf("%.2f", o.Lag/1000),
			percent(o.ByStore), percent(o.Locally), fmt.Sprint(o.Admitted), fmt.Sprint(o.Bound), fmt.Sprint(o.Breaker),
		},
	})
}
