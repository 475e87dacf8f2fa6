// Command chaos drills failures of the store under load, on real servers, and tells whether sentinel-rls kept its word:
// answers in time, no errors, admissions within the bound, back to full accuracy soon. docs/performance.md says how.
// `make chaos` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
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
	exitFailed = 1 // a drill failed or could not be held
	exitUsage  = 2
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{Deadline: 20 * time.Millisecond, Quarantine: 2 * time.Second}
	name := flags.String("drill", "", "the `name` of one drill, of "+strings.Join(names(), ", ")+"; empty: all")
	flags.IntVar(&o.Runs, "runs", 3, "times that each drill is held")
	flags.IntVar(&o.Calls, "calls", 10_000, "calls while the store is sick, in each run")
	flags.Float64Var(&o.Rate, "rate", 0, "calls per second; 0: half of what the program answers at most")
	server := flags.String("server", "both", "the store's `kind`, of redis, valkey, both: then runs take turns")
	flags.BoolVar(&o.Short, "short", false, "a few seconds of what lasts for a minute, and a tenth of rates that a drill sets itself")
	manual := flags.String("write", "", "the `file` whose table of drills is written anew, when all were held")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	o.Kinds = kinds[*server]
	chosen, err := choose(*name)
	if err == nil && o.Kinds == nil {
		err = fmt.Errorf("-server must be redis, valkey or both, not %q", *server)
	}
	if err == nil && *manual != "" && *name != "" {
		err = errors.New("-write is for all drills")
	}
	if err == nil && (flags.NArg() > 0 || o.Runs < 1 || o.Calls < minCalls || o.Rate < 0) {
		err = fmt.Errorf("-runs must be at least 1, -calls at least %d, -rate not negative, and there are no arguments", minCalls)
	}
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitUsage
	}
	passed, err := hold(ctx, chosen, o, stdout, *manual)
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitFailed
	}
	if !passed {
		return exitFailed
	}
	return exitOK
}

var kinds = map[string][]testserver.Kind{
	"redis": {testserver.Redis}, "valkey": {testserver.Valkey}, "both": testserver.Kinds(),
}

// choose returns the drill of a name, or all.
func choose(name string) ([]drill, error) {
	if name == "" {
		return drills, nil
	}
	i := slices.Index(names(), name)
	if i < 0 {
		return nil, fmt.Errorf("there is no drill %q; there are: %s", name, strings.Join(names(), ", "))
	}
	return drills[i : i+1], nil
}

// hold holds the drills one after the other, prints what came of each, writes the manual's table if it is to, and returns
// whether all passed.
func hold(ctx context.Context, chosen []drill, o options, w io.Writer, manual string) (passed bool, err error) {
	s, err := newStage(ctx, o)
	if err != nil {
		return false, err
	}
	defer s.close()
	m := load.ThisMachine()
	where := fmt.Sprintf("%s, %d cores, load %s before the run, %s, %s, %s. %s",
		m.Processor, m.Cores, m.LoadAverage, m.Kernel, m.Go, strings.Join(s.servers, ", "), s.load())
	fmt.Fprintln(w, where)
	var errs []error
	passed = true
	table := [][]string{append([]string{"drill"}, columns...)}
	for _, d := range chosen {
		rows, err := d.runs(ctx, s)
		if err != nil { // the others may be held
			errs = append(errs, fmt.Errorf("%s: %w", d.name, err))
			fmt.Fprintf(w, "\n%s: FAILED: %v\n", d.name, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		v := judge(d, rows, o)
		printDrill(w, d, rows, v)
		passed = passed && v.passed()
		table = append(table, append([]string{d.name + v.mark()}, middle(rows, o.Deadline).cells()...))
	}
	if manual != "" && len(errs) == 0 {
		return passed, writeManual(manual, where, table)
	}
	return passed, errors.Join(errs...)
}

// runs holds a drill as often as the options say.
func (d drill) runs(ctx context.Context, s *stage) (rows []Row, err error) {
	for run := range s.Runs {
		row, err := d.hold(ctx, s, s.Kinds[run%len(s.Kinds)])
		if err != nil {
			return nil, fmt.Errorf("run %d: %w", run+1, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}
