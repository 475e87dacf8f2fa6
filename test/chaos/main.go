// Command chaos drills failures of the store under load, on real servers, and tells whether sentinel-rls kept its word:
// answers in time, no errors, admissions within the bound. docs/performance.md says how. `make chaos` runs it.
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
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	chosen, err := choose(*name)
	if err == nil && (flags.NArg() > 0 || o.Runs < 1 || o.Calls < minCalls || o.Rate < 0) {
		err = fmt.Errorf("-runs must be at least 1, -calls at least %d, -rate not negative, and there are no arguments", minCalls)
	}
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitUsage
	}
	passed, err := hold(ctx, chosen, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return exitFailed
	}
	if !passed {
		return exitFailed
	}
	return exitOK
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

// hold holds the drills one after the other, prints what came of each, and returns whether all passed.
func hold(ctx context.Context, chosen []drill, o options, w io.Writer) (passed bool, err error) {
	s, err := newStage(ctx, o)
	if err != nil {
		return false, err
	}
	defer s.close()
	m := load.ThisMachine()
	fmt.Fprintf(w, "%s, %d cores, load %s before the run, %s, %s, %s\n", m.Processor, m.Cores, m.LoadAverage, m.Kernel, m.Go, s.storeVersion)
	fmt.Fprintln(w, s.load())
	passed = true
	for _, d := range chosen {
		var rows []Row
		for range o.Runs {
			row, err := d.run(ctx, s)
			if err != nil {
				return false, fmt.Errorf("%s: %w", d.name, err)
			}
			rows = append(rows, row)
		}
		failures := judge(rows, o)
		printDrill(w, d, rows, failures)
		passed = passed && len(failures) == 0
	}
	return passed, nil
}
