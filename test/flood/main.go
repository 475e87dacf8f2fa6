// Command flood sends sentinel-rls a flood of forged tokens, each naming another unknown key, beside valid callers, and
// tells whether it kept its word: the issuer's keys are fetched at most once, valid callers get their answers in time as
// beside a bare server, and no forged token costs a store command. `make flood` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

func main() {
	load.ServeBareIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a promise was broken, or it could not measure
	exitUsage  = 2
)

// options are how the flood is made.
type options struct {
	Runs     int
	For      time.Duration // the flood's length
	Forged   float64       // forged tokens a second
	Valid    float64       // calls of valid callers a second
	Deadline time.Duration // of each call
	Budget   time.Duration // of a store call; 0: the program's default
	// Allowance is how many late answers beyond the bare server's pass for chance, in each run.
	Allowance int64
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("flood", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{Deadline: 20 * time.Millisecond}
	flags.IntVar(&o.Runs, "runs", 3, "times that the flood is made")
	flags.DurationVar(&o.For, "for", 10*time.Second, "length of the flood")
	flags.Float64Var(&o.Forged, "forged", 10_000, "forged tokens a second")
	flags.Float64Var(&o.Valid, "valid", 500, "calls of valid callers a second")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	if flags.NArg() > 0 || o.Runs < 1 || o.For <= 0 || o.Forged <= 0 || o.Valid <= 0 {
		fmt.Fprintln(stderr, "flood: -runs must be at least 1, -for, -forged and -valid positive, and there are no arguments")
		return exitUsage
	}
	passed, err := hold(ctx, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "flood:", err)
		return exitFailed
	}
	if !passed {
		return exitFailed
	}
	return exitOK
}

// hold makes the floods, prints what came of them, and returns whether every promise was kept.
func hold(ctx context.Context, o options, w io.Writer) (passed bool, err error) {
	m := load.ThisMachine()
	fmt.Fprintf(w, "%s, %d cores, load %s before the run, %s, %s\n", m.Processor, m.Cores, m.LoadAverage, m.Kernel, m.Go)
	fmt.Fprintf(w, "%.0f forged tokens a second for %v, each of another unknown key, beside %.0f valid calls a second with deadlines of %v.\n\n",
		o.Forged, o.For, o.Valid, o.Deadline)
	s, err := newStage(ctx, o)
	if err != nil {
		return false, err
	}
	defer s.close()
	var rows []Row
	for i := range o.Runs {
		row, err := s.flood(ctx, i)
		if err != nil {
			return false, err
		}
		rows = append(rows, row)
	}
	printRows(w, rows)
	failures := judge(rows, o)
	for _, f := range failures {
		fmt.Fprintf(w, "\nFAILED: %s\n", f)
	}
	if len(failures) == 0 {
		fmt.Fprintln(w, "\npassed")
	}
	return len(failures) == 0, nil
}

// Row is what came of one flood.
type Row struct {
	Forged   int64 // calls with a forged token that were answered
	Accepted int64 // of them, with yes
	Missed   int64 // of them, late or failed
	Fetches  int   // of the issuer's keys, while the flood lasted
	Commands int64 // of the store, while forged tokens alone came
	Valid    int64 // calls of valid callers
	Denied   int64 // of them, with no
	Failed   int64 // of them, with another error than a late answer
	Late     int64 // of them
	BareLate int64 // the same of the bare server, flooded likewise
	P50, P99 time.Duration
	BareP99  time.Duration
}

// tooBusy is the share of the bare server's valid calls that may be late before a run says nothing about lateness: the
// machine cannot carry the load then, whoever answers.
const tooBusy = 0.05

// judge returns one line for each promise that was broken. Forged tokens, fetches, store commands and wrong answers are a
// matter of correctness and may not happen in any run; lateness is a matter of time, which the machine has a part in, and
// more than half of the runs that say anything must be good.
func judge(rows []Row, o options) (failures []string) {
	late, judged := 0, 0
	for i, r := range rows {
		broken := func(bad bool, format string, args ...any) {
			if bad {
				failures = append(failures, fmt.Sprintf("run %d: ", i+1)+fmt.Sprintf(format, args...))
			}
		}
		broken(r.Accepted > 0, "%d forged tokens were accepted", r.Accepted)
		broken(r.Fetches > 1, "the keys were fetched %d times", r.Fetches)
		broken(r.Commands > 0, "forged tokens cost %d store commands", r.Commands)
		broken(r.Denied > 0, "%d valid calls were denied", r.Denied)
		broken(r.Failed > 0, "%d valid calls failed", r.Failed)
		if float64(r.BareLate) > tooBusy*float64(r.Valid) {
			continue
		}
		judged++
		if r.Late > r.BareLate+o.Allowance {
			late++
		}
	}
	switch {
	case 2*judged <= len(rows):
		failures = append(failures, fmt.Sprintf("the machine is too busy to judge lateness: the bare server was late in %d of %d runs", len(rows)-judged, len(rows)))
	case 2*late >= judged:
		failures = append(failures, fmt.Sprintf("valid callers got more late answers than from the bare server in %d of %d runs", late, judged))
	}
	return failures
}

func printRows(w io.Writer, rows []Row) {
	cells := [][]string{{
		"run", "forged", "accepted", "late or failed", "key fetches", "store commands", "valid", "denied", "failed", "late", "bare late",
		"p50 ms", "p99 ms", "bare p99",
	}}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	for i, r := range rows {
		line := []string{fmt.Sprint(i + 1)}
		for _, n := range []int64{r.Forged, r.Accepted, r.Missed, int64(r.Fetches), r.Commands, r.Valid, r.Denied, r.Failed, r.Late, r.BareLate} {
			line = append(line, fmt.Sprint(n))
		}
		cells = append(cells, append(line, ms(r.P50), ms(r.P99), ms(r.BareP99)))
	}
	load.Table(w, cells)
}
