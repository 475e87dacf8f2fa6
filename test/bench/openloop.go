package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/collector"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// envoyDeadline is Envoy's default for ShouldRateLimit.
const envoyDeadline = 20 * time.Millisecond

// OpenLoop is how servers answer at a given rate, one after the other in turns.
type OpenLoop struct {
	Capacity   float64  `json:"capacity"`         // calls a second that the program answers in a closed loop
	Rate       float64  `json:"calls_per_second"` // offered to each
	Seconds    float64  `json:"seconds"`          // of load on each
	DeadlineMS float64  `json:"deadline_ms"`
	Base       OpenSide `json:"base"`
	Ours       OpenSide `json:"ours"`
	Others     float64  `json:"others_share"`       // of the machine's processor time, used by what has no part in the measure
	TooBusy    string   `json:"too_busy,omitempty"` // why nothing was offered
}

// OpenSide is one server of an OpenLoop. Latencies count from when a call was due.
type OpenSide struct {
	Calls  int64   `json:"calls"`
	Late   int64   `json:"late"`   // the caller saw DEADLINE_EXCEEDED
	Failed int64   `json:"failed"` // another error
	Denied int64   `json:"denied"` // no: every call is meant to be admitted
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
	P999   float64 `json:"p999_us"`
	Lag    float64 `json:"sent_within_us"` // of when they were due, 99 of 100 calls: the generator's own lateness
}

// openLoop offers half of what the program answers at most. The servers take turns of a tenth of the time, so that what
// happens to the machine meanwhile happens to both.
func (b *bench) openLoop(ctx context.Context, r *Report) error {
	ask := load.RateLimit("all", b.size.Tenants)
	ours, stop, err := b.enter(ctx, load.Settings{Policies: admitAll, Store: b.store}, ask)
	if err != nil {
		return err
	}
	defer stop()
	entrants := []entrant{b.barely(ask), ours}
	o := &OpenLoop{Seconds: b.size.OpenFor.Seconds(), DeadlineMS: float64(envoyDeadline.Milliseconds())}
	r.Open = o
	if o.Capacity, o.TooBusy, err = b.capacity(ctx, ours); err != nil || o.TooBusy != "" {
		return err
	}
	question, err := load.RateLimitQuestion("all", b.size.Tenants)
	if err != nil {
		return err
	}
	o.Rate = math.Round(o.Capacity / 2)
	const turns = 10
	calls := int(o.Rate * o.Seconds / turns)
	reports := []*load.Report{new(load.Report), new(load.Report)}
	before, err := b.meter(ctx, ours)
	if err != nil {
		return err
	}
	bareBefore, err := load.CPU(b.bare.PID())
	if err != nil {
		return err
	}
	for turn := range 2 * turns {
		i := (turn + turn/2) % 2 // bare, ours, ours, bare, …
		report, err := openly(ctx, entrants[i].conns, question, o.Rate, calls)
		if err != nil {
			return err
		}
		reports[i].Add(report)
	}
	after, err := b.meter(ctx, ours)
	if err != nil {
		return err
	}
	bareAfter, err := load.CPU(b.bare.PID())
	if err != nil {
		return err
	}
	after.involved += bareAfter - bareBefore
	o.Others = after.others(before)
	o.Base, o.Ours = sideOf(reports[0]), sideOf(reports[1])
	return nil
}

// openly offers calls at a rate.
func openly(ctx context.Context, conns load.Conns, q load.Question, rate float64, calls int) (*load.Report, error) {
	loop := load.Open{
		Rate: rate, Deadline: envoyDeadline, Phases: []load.Phase{{Calls: calls}},
		MaxInFlight: 64 + int(4*rate*envoyDeadline.Seconds()), // a call is in flight for a deadline at most
	}
	defer debug.SetGCPercent(debug.SetGCPercent(collector.Percent)) // the generator's; what it holds up is late
	reports, err := loop.Run(ctx, conns, q)
	if err != nil {
		return nil, err
	}
	return reports[0], nil
}

func sideOf(r *load.Report) OpenSide {
	return OpenSide{
		Calls: r.Calls(), Late: r.Count(load.Late), Failed: r.Count(load.Failed), Denied: r.Count(load.Denied),
		P50: micros(r.Latency.Quantile(0.5)), P99: micros(r.Latency.Quantile(0.99)), P999: micros(r.Latency.Quantile(0.999)),
		Lag: micros(r.Lag.Quantile(0.99)),
	}
}

// capacity returns the calls a second that a server answers in a closed loop: the median of some windows. tooBusy is not
// empty when that cannot be told, since the machine does other things.
func (b *bench) capacity(ctx context.Context, e entrant) (perSecond float64, tooBusy string, err error) {
	alone, err := b.race(ctx, e)
	if err != nil {
		return 0, "", err
	}
	if odd := alone.server(0).Odd.Median; odd > maxOdd {
		tooBusy = fmt.Sprintf("what the program answers at most cannot be told: %.2f %% of the calls did not end as meant", 100*odd)
	}
	return alone.server(0).PerSecond.Median, tooBusy, nil
}

// figures returns what is judged of the loop: the share of late answers against the bare server's.
// generatorLate says that lateness is the generator's: its core is too slow for the rate, and it reads answers as late.
func (s *OpenSide) generatorLate() string {
	return fmt.Sprintf("the generator itself sent one call of 100 more than %.0f ms after it was due", s.Lag/1000)
}

func (o *OpenLoop) figures() []Figure {
	verdict, why := Verdict(""), ""
	switch failed := o.Base.Failed + o.Ours.Failed; {
	case o.TooBusy != "":
		verdict, why = notJudged, o.TooBusy
	case o.Others > maxOthers:
		verdict, why = notJudged, fmt.Sprintf("other work took %.0f %% of the machine", 100*o.Others)
	case o.Base.Lag > 1000*o.DeadlineMS:
		verdict, why = notJudged, o.Base.generatorLate()
	case o.Ours.Lag > 1000*o.DeadlineMS:
		verdict, why = notJudged, o.Ours.generatorLate()
	case failed > 0:
		verdict, why = void, fmt.Sprintf("%d calls failed", failed)
	}
	late := alone(1000 * float64(o.Ours.Late) / float64(max(1, o.Ours.Calls)))
	all := figures("open_loop", map[string]*Spread{"late": late, "p999": alone(o.Ours.P999 / 1000)}, "", "")
	for i := range all {
		if all[i].Name == "open_loop.late" {
			bare := 1000 * float64(o.Base.Late) / float64(max(1, o.Base.Calls))
			all[i].Reach = &bare
			all[i].judge(verdict, why)
		}
	}
	return all
}

func (o *OpenLoop) print(w io.Writer) {
	fmt.Fprintf(w, "\nOpen loop: %.0f calls/s, half of the %.0f that the program answers at most, for %gs on each server, deadlines of %g ms.\n\n",
		o.Rate, o.Capacity, o.Seconds, o.DeadlineMS)
	rows := [][]string{{"server", "calls", "late", "failed", "denied", "p50 ms", "p99 ms", "p99.9 ms", "sent within ms"}}
	ms := func(us float64) string { return fmt.Sprintf("%.2f", us/1000) }
	for _, side := range []struct {
		name string
		OpenSide
	}{{"bare", o.Base}, {"sentinel-rls", o.Ours}} {
		rows = append(rows, []string{
			side.name, fmt.Sprint(side.Calls), fmt.Sprint(side.Late), fmt.Sprint(side.Failed), fmt.Sprint(side.Denied),
			ms(side.P50), ms(side.P99), ms(side.P999), ms(side.Lag),
		})
	}
	load.Table(w, rows)
}
