package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// deadline is that of every call in a closed loop. It is long, so that what is measured is the server and not when it gives
// up: a store call has its own budget of 20 ms anyway.
const deadline = time.Second

// entrant is a server under load and what it is asked.
type entrant struct {
	server *testserver.Process // whose processor time counts
	conns  load.Conns
	ask    load.Ask
	means  load.Outcome // what every call is meant to end in; anything else is odd
	// count, where not nil, reads a counter before and after each window.
	count func() (float64, error)
	// also are processes beside Redis and the generator that take part.
	also []int
}

// race is what came of some rounds. In each, every entrant had a window, the first of them another one each time.
type race struct {
	rounds    [][]window // by round and entrant
	repeated  int        // rounds that other work disturbed and that others took the place of
	disturbed bool       // rounds that other work disturbed are among them, since there were too many
}

// windows returns those of one entrant.
func (r *race) windows(entrant int) []window {
	windows := make([]window, len(r.rounds))
	for i, round := range r.rounds {
		windows[i] = round[entrant]
	}
	return windows
}

// against returns the spread of a value of one entrant against that of another in the same round.
func (r *race) against(entrant, base int, compare func(ours, base window) float64) Spread {
	values := make([]float64, len(r.rounds))
	for i, round := range r.rounds {
		values[i] = compare(round[entrant], round[base])
	}
	return spreadOf(values)
}

// race warms every entrant up and then lets them run in rounds.
func (b *bench) race(ctx context.Context, entrants ...entrant) (*race, error) {
	for _, e := range entrants {
		if _, err := b.window(ctx, e, b.size.WarmUp); err != nil {
			return nil, err
		}
	}
	return inRounds(b.size.Pairs, b.size.Spare, func(n int) ([]window, error) {
		round := make([]window, len(entrants))
		for turn := range entrants {
			i := (turn + n) % len(entrants)
			var err error
			if round[i], err = b.window(ctx, entrants[i], b.size.Window); err != nil {
				return nil, err
			}
		}
		return round, nil
	})
}

// inRounds plays as many rounds as wanted, and up to spare more in place of those that other work disturbs.
func inRounds(wanted, spare int, play func(n int) ([]window, error)) (*race, error) {
	r := new(race)
	var disturbed [][]window
	for n := 0; len(r.rounds) < wanted && n < wanted+spare; n++ {
		round, err := play(n)
		switch {
		case err != nil:
			return nil, err
		case slices.ContainsFunc(round, func(w window) bool { return w.others > maxOthers }):
			disturbed = append(disturbed, round)
		default:
			r.rounds = append(r.rounds, round)
		}
	}
	missing := wanted - len(r.rounds)
	r.disturbed = missing > 0
	r.repeated = len(disturbed) - missing
	r.rounds = append(r.rounds, disturbed[:missing]...)
	return r, nil
}

// window is one run on one server and what was used for it.
type window struct {
	calls   *load.Report
	odd     float64       // share of calls that ended otherwise than meant
	cpu     time.Duration // of the server
	store   load.RedisUsage
	others  float64 // share of the machine's processor time that went elsewhere
	counted float64 // by the entrant's own counter
}

func (w window) perCall(n float64) float64 { return n / float64(max(1, w.calls.Calls())) }
func (w window) cpuPerCall() float64       { return w.perCall(micros(w.cpu)) }
func (w window) p99() float64              { return micros(w.calls.Latency.Quantile(0.99)) }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// The comparisons of windows in the same round.
func rateRatio(ours, base window) float64 { return ours.calls.Rate() / max(1, base.calls.Rate()) }
func p99Ratio(ours, base window) float64  { return ours.p99() / max(1, base.p99()) }
func cpuBeyond(ours, base window) float64 { return ours.cpuPerCall() - base.cpuPerCall() }
func cpuRatio(ours, base window) float64  { return ours.cpuPerCall() / max(0.1, base.cpuPerCall()) }

func (b *bench) window(ctx context.Context, e entrant, length time.Duration) (w window, err error) {
	count := e.count
	if count == nil {
		count = func() (float64, error) { return 0, nil }
	}
	counted, err := count()
	if err != nil {
		return w, err
	}
	before, err := b.meter(ctx, e)
	if err != nil {
		return w, err
	}
	loop := load.Closed{Callers: b.size.Callers, Deadline: deadline, For: length}
	if w.calls, err = loop.Run(ctx, e.conns, e.ask); err != nil {
		return w, err
	}
	after, err := b.meter(ctx, e)
	if err != nil {
		return w, err
	}
	if w.counted, err = count(); err != nil {
		return w, err
	}
	w.counted -= counted
	w.odd = 1 - w.calls.Share(e.means)
	w.cpu = after.server - before.server
	w.store = after.store.Sub(before.store)
	w.others = after.others(before)
	if w.calls.Answered() == 0 {
		return w, fmt.Errorf("no call of %d was answered in time: %w", w.calls.Calls(), w.calls.Err())
	}
	return w, nil
}

// meter is what had been used at one moment.
type meter struct {
	server   time.Duration
	involved time.Duration // by the server, Redis, this process and who else takes part, together
	machine  time.Duration // by every process
	there    time.Duration // and how much there was
	store    load.RedisUsage
}

// others returns the share of the machine's processor time since before that went elsewhere.
func (m meter) others(before meter) float64 {
	elsewhere := (m.machine - before.machine) - (m.involved - before.involved)
	return max(0, float64(elsewhere)/float64(max(1, m.there-before.there)))
}

func (b *bench) meter(ctx context.Context, e entrant) (m meter, err error) {
	if m.server, err = load.CPU(e.server.PID()); err != nil {
		return m, fmt.Errorf("%w\n%s", err, e.server.Log())
	}
	m.involved = m.server
	for _, pid := range append([]int{b.store.PID(), os.Getpid()}, e.also...) {
		cpu, err := load.CPU(pid)
		if err != nil {
			return m, err
		}
		m.involved += cpu
	}
	if m.machine, m.there, err = load.MachineCPU(); err != nil {
		return m, err
	}
	m.store, err = load.ReadRedisUsage(ctx, b.client)
	return m, err
}
