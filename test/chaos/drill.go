package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// drill is one way in which the store fails, and what must hold meanwhile.
type drill struct {
	name string
	what string // for the reader of the table
	run  func(ctx context.Context, s *stage) (Row, error)
}

// drills are all there are, in the order in which they are held.
var drills = []drill{
	{"frozen", "Redis is stopped (SIGSTOP) under load and thawed afterwards; fail-open policy", frozen},
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
	Calls      int           // while the store is sick
	Rate       float64       // calls per second; 0: half of what the program answers at most
	Deadline   time.Duration // of each call
	Quarantine time.Duration // of the program's breaker
	Budget     time.Duration // of a store call; 0: the program's default
	Allowance  int64         // late answers beyond the bare server's that pass for chance, in each run
}

// minCalls is the least number of calls of a run: fewer would not reach the bound.
const minCalls = 100

// Row is what came of one run of a drill.
type Row struct {
	Calls    int64 // while the store was sick; the next three are about them
	InTime   int64 // answered before the caller's deadline
	Late     int64 // the caller saw DEADLINE_EXCEEDED
	BareLate int64 // the same of the bare server, driven beside it at the same rate
	P99      time.Duration
	BareP99  time.Duration
	Lag      time.Duration // 99 of 100 calls were sent within so long of when they were due
	Errors   int64         // other gRPC errors, from before the store was sick to the end
	Admitted int64         // over the same time
	Bound    int64         // the most that may be admitted over that time
	// Recovery is the time from the store's return until every answer is the store's own again; negative: it did not come.
	Recovery time.Duration
}

// Over returns by how much admissions passed the bound.
func (r Row) Over() int64 { return max(0, r.Admitted-r.Bound) }

// recoverySlack is what recovery may take beyond the breaker's quarantine.
const recoverySlack = time.Second

// judge returns one line for each promise that the runs of a drill broke. Errors and admissions beyond the bound are a
// matter of correctness and may not happen in any run. Lateness and recovery are a matter of time, which the machine has a
// part in: more than half of the runs must be good.
func judge(rows []Row, o options) (failures []string) {
	back := o.Quarantine + recoverySlack
	late, slow := 0, 0
	for i, r := range rows {
		if r.Errors > 0 {
			failures = append(failures, fmt.Sprintf("run %d: %d errors reached the caller", i+1, r.Errors))
		}
		if over := r.Over(); over > 0 {
			failures = append(failures, fmt.Sprintf("run %d: %d admissions beyond the bound", i+1, over))
		}
		if r.Late > r.BareLate+o.Allowance {
			late++
		}
		if r.Recovery < 0 || r.Recovery > back {
			slow++
		}
	}
	if 2*late >= len(rows) {
		failures = append(failures, fmt.Sprintf("more late answers than the bare server in %d of %d runs", late, len(rows)))
	}
	if 2*slow >= len(rows) {
		failures = append(failures, fmt.Sprintf("not back to full accuracy within %v in %d of %d runs", back, slow, len(rows)))
	}
	return failures
}

// printDrill writes what came of a drill as Markdown.
func printDrill(w io.Writer, d drill, rows []Row, failures []string) {
	fmt.Fprintf(w, "\n%s: %s.\n\n", d.name, d.what)
	cells := [][]string{{
		"run", "calls", "in time", "late", "bare late", "p99 ms", "bare", "sent within ms", "errors", "admitted", "bound",
		"over-admission", "full accuracy after s",
	}}
	for i, r := range rows {
		recovery := "never"
		if r.Recovery >= 0 {
			recovery = fmt.Sprintf("%.2f", r.Recovery.Seconds())
		}
		cells = append(cells, append(numbers(int64(i+1), r.Calls, r.InTime, r.Late, r.BareLate),
			append(append(millis(r.P99, r.BareP99, r.Lag), numbers(r.Errors, r.Admitted, r.Bound, r.Over())...), recovery)...))
	}
	load.Table(w, cells)
	if len(failures) == 0 {
		fmt.Fprintf(w, "\n%s: passed\n", d.name)
	}
	for _, f := range failures {
		fmt.Fprintf(w, "\n%s: FAILED: %s\n", d.name, f)
	}
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
