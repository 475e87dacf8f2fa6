package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// drill is one way in which something fails, and what must hold meanwhile.
type drill struct {
	name  string
	what  string // for the reader of the table
	cases string // ids of the fault cases that it covers
	fault fault
}

func names() []string {
	all := make([]string, len(drills))
	for i, d := range drills {
		all[i] = d.name
	}
	return all
}

// options are how drills are held.
type options struct {
	Runs       int
	Kinds      []testserver.Kind // of store servers; runs take turns
	Calls      int               // while something is wrong, in a drill that does not say how long that lasts
	Rate       float64           // calls per second; 0: half of what the program answers at most
	Deadline   time.Duration     // of each call
	Quarantine time.Duration     // of the program's breaker
	Budget     time.Duration     // of a store call; 0: the program's default
	Allowance  int64             // late answers beyond the bare server's that pass for chance, in each run
	Short      bool              // what lasts for a minute lasts for a few seconds, at a tenth of a drill's own rate
}

// minCalls is the least number of calls of a run: fewer would not reach the bound.
const minCalls = 100

// Row is what came of one run of a drill.
type Row struct {
	Server   string
	Calls    int64 // while something was wrong; the next three are about them
	InTime   int64 // answered before the caller's deadline
	Late     int64 // the caller saw DEADLINE_EXCEEDED
	BareLate int64 // the same of the bare server, driven beside it at the same rate
	P99      time.Duration
	BareP99  time.Duration
	Sent     time.Duration // 99 of 100 calls were sent within so long of when they were due
	Errors   int64         // other gRPC errors, from before it went wrong to the end
	Admitted int64         // over the same time, by store and emergency caps
	Bound    int64         // the most that may be admitted over that time
	Over     int64         // over-admission: admitted by the store beyond what its buckets held
	Loss     int64         // how much of that the loss of state explains
	Vain     bool          // no store call failed as it should, so that nothing was shown
	// Lag is how far the replica was behind when it took over; negative: there was none.
	Lag time.Duration
	// Recovery is the time from the store's return until every answer is the store's own again; negative: it did not come.
	Recovery time.Duration

	Goroutines, Memory Levels // of the program; memory in bytes
}

// Levels are what something was before, at most while something was wrong, and afterwards.
type Levels struct{ Before, Peak, After int64 }

// tooBusy is the share of the bare server's calls that may be late before a run says nothing about lateness: the machine
// cannot carry the load then, whoever answers.
const tooBusy = 0.05

// void says that a run says nothing about lateness: the bare server was late too often, or the generator itself was.
func (r Row) void(deadline time.Duration) bool {
	return float64(r.BareLate) > tooBusy*float64(r.Calls) || r.Sent > deadline
}

// What a run may take beyond what it had before.
const (
	recoverySlack = time.Second // beyond the breaker's quarantine
	inFlightCap   = 512         // the program's default: guard.max_in_flight
	memorySlack   = 32 << 20
)

// promise is something that a run must keep.
type promise struct {
	broken string
	kind   promiseKind
	by     func(Row) bool
}

type promiseKind int

const (
	always   promiseKind = iota // no run may break it
	mostly                      // more than half of the runs must keep it, since the machine has a part in it
	lateness                    // likewise, of the runs that say anything about lateness
)

func (d drill) promises(o options) []promise {
	back := o.Quarantine + recoverySlack
	return []promise{
		{fmt.Sprintf("no call failed with class %s", d.fault.class), mostly, func(r Row) bool { return r.Vain }},
		{"errors reached the caller", always, func(r Row) bool { return r.Errors > 0 }},
		{"admissions passed the bound", always, func(r Row) bool { return r.Admitted > r.Bound }},
		{"the store admitted more than its buckets held", always, func(r Row) bool { return r.Over > r.Loss }},
		{"more late answers than the bare server", lateness, func(r Row) bool { return r.Late > r.BareLate+o.Allowance }},
		{fmt.Sprintf("fewer than %.0f %% of the calls in time", 100*d.fault.inTime), lateness, func(r Row) bool {
			return float64(r.InTime) < d.fault.inTime*float64(r.Calls)
		}},
		{fmt.Sprintf("not back to full accuracy within %v", back), mostly, func(r Row) bool { return r.Recovery < 0 || r.Recovery > back }},
		{"too many goroutines", mostly, func(r Row) bool { return r.Goroutines.Peak > r.Goroutines.Before+2*inFlightCap }},
		{"too much memory", mostly, func(r Row) bool { return r.Memory.Peak > r.Memory.Before+memorySlack }},
		{"goroutines are left", mostly, func(r Row) bool { return 10*r.Goroutines.After > 11*r.Goroutines.Before }},
		{"memory is left", mostly, func(r Row) bool { return 10*r.Memory.After > 11*r.Memory.Before }},
	}
}

// verdict is what the runs of a drill say.
type verdict struct {
	failures []string // one line for each promise that was broken
	void     []string // the numbers of the runs that say nothing about lateness
	unjudged bool     // these are so many that lateness was not judged
}

func (v verdict) passed() bool { return len(v.failures) == 0 && !v.unjudged }

// mark is what the manual's table adds to the name of a drill that has not passed.
func (v verdict) mark() string {
	switch {
	case len(v.failures) > 0:
		return " (failed)"
	case v.unjudged:
		return " (void)"
	}
	return ""
}

// lines returns the verdict in words.
func (v verdict) lines(runs int) (lines []string) {
	for _, f := range v.failures {
		lines = append(lines, "FAILED: "+f)
	}
	switch {
	case v.unjudged:
		lines = append(lines, fmt.Sprintf("VOID: the machine is too busy to judge lateness: the bare server or the generator was late in run %s of %d",
			strings.Join(v.void, ", "), runs))
	case len(v.failures) > 0:
	case len(v.void) > 0:
		lines = append(lines, fmt.Sprintf("passed, but that run %s of %d says nothing about lateness: the bare server or the generator was late", strings.Join(v.void, ", "), runs))
	default:
		lines = append(lines, "passed")
	}
	return lines
}

// judge says what the runs of a drill are worth.
func judge(d drill, rows []Row, o options) (v verdict) {
	for i, r := range rows {
		if r.void(o.Deadline) {
			v.void = append(v.void, fmt.Sprint(i+1))
		}
	}
	v.unjudged = 2*len(v.void) >= len(rows)
	for _, p := range d.promises(o) {
		broken, of := []string{}, len(rows)
		if p.kind == lateness {
			of -= len(v.void)
		}
		for i, r := range rows {
			if !(p.kind == lateness && r.void(o.Deadline)) && p.by(r) {
				broken = append(broken, fmt.Sprint(i+1))
			}
		}
		if p.kind == lateness && v.unjudged || len(broken) == 0 || p.kind != always && 2*len(broken) < of {
			continue
		}
		v.failures = append(v.failures, fmt.Sprintf("%s in run %s of %d", p.broken, strings.Join(broken, ", "), len(rows)))
	}
	return v
}

var columns = []string{
	"server", "calls", "in time", "late", "bare late", "p99 ms", "bare", "sent within ms", "errors", "admitted", "bound",
	"over-admission", "explained", "replica's lag ms", "full accuracy after s", "goroutines", "memory MiB",
}

func (r Row) cells() []string {
	recovery := "never"
	if r.Recovery >= 0 {
		recovery = fmt.Sprintf("%.2f", r.Recovery.Seconds())
	}
	lag := "-"
	if r.Lag >= 0 {
		lag = fmt.Sprintf("%.1f", float64(r.Lag)/float64(time.Millisecond))
	}
	cells := append([]string{r.Server}, numbers(r.Calls, r.InTime, r.Late, r.BareLate)...)
	cells = append(cells, millis(r.P99, r.BareP99, r.Sent)...)
	cells = append(cells, numbers(r.Errors, r.Admitted, r.Bound, r.Over, r.Loss)...)
	return append(
		cells, lag, recovery,
		fmt.Sprintf("%d / %d / %d", r.Goroutines.Before, r.Goroutines.Peak, r.Goroutines.After),
		fmt.Sprintf("%.1f / %.1f / %.1f", mebibytes(r.Memory.Before), mebibytes(r.Memory.Peak), mebibytes(r.Memory.After)),
	)
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

// printDrill writes what came of a drill as Markdown.
func printDrill(w io.Writer, d drill, rows []Row, v verdict) {
	fmt.Fprintf(w, "\n%s: %s.\n\n", d.name, d.what)
	cells := [][]string{append([]string{"run"}, columns...)}
	for i, r := range rows {
		cells = append(cells, append(numbers(int64(i+1)), r.cells()...))
	}
	load.Table(w, cells)
	for _, line := range v.lines(len(rows)) {
		fmt.Fprintf(w, "\n%s: %s\n", d.name, line)
	}
}

// middle returns the run that was neither the best nor the worst for its late answers, of those that say anything about
// them if there are any.
func middle(rows []Row, deadline time.Duration) Row {
	byLate := slices.SortedFunc(slices.Values(rows), func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Late-a.BareLate, b.Late-b.BareLate), cmp.Compare(a.Recovery, b.Recovery))
	})
	telling := slices.DeleteFunc(slices.Clone(byLate), func(r Row) bool { return r.void(deadline) })
	if len(telling) == 0 {
		telling = byLate
	}
	return telling[len(telling)/2]
}

func numbers(values ...int64) (cells []string) {
	for _, v := range values {
		cells = append(cells, fmt.Sprint(v))
	}
	return cells
}

func millis(values ...time.Duration) (cells []string) {
	for _, v := range values {
		cells = append(cells, fmt.Sprintf("%.1f", float64(v)/float64(time.Millisecond)))
	}
	return cells
}

// fault is what goes wrong in a drill, and on what.
type fault struct {
	topology topology
	proxied  bool     // the program reaches the server through a proxy
	args     []string // of the servers
	password string   // of the server, and of the program's file
	other    bool     // another version of the program serves half of the calls

	lasts  time.Duration // 0: for as many calls as the options say
	short  time.Duration // in the short form; 0: as long
	rate   float64       // calls per second; 0: the options'
	inTime float64       // the least share of calls in time; 0: none is asked
	wet    bool          // the store's buckets still hold something when it goes wrong, so that what is written then can be lost
	class  string        // of store failures that there must be, or the run was in vain; empty: there may be none

	prepare func(ctx context.Context, c *scene) error // before the load
	hurt    func(ctx context.Context, c *scene) error // when it goes wrong, at once
	during  func(ctx context.Context, c *scene) error // while it is wrong, until ctx is done or before
	heal    func(ctx context.Context, c *scene) error // when the load is over; recovery counts from its end

	losses int  // how often the store loses what was spent: each admits one burst of each key more
	dies   bool // the program itself dies: calls are judged once it is back, and its cap is full again
}

type topology string

const (
	single   topology = ""
	sentinel topology = "sentinel"
	cluster  topology = "cluster"
)
