// Command bench measures sentinel-rls beside a bare gRPC server in the same run: throughput, latency, processor time and
// memory. docs/performance.md says how, and what the figures mean. `make bench` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
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
	exitFailed = 1 // it could not measure, or with -check a figure missed its mark
	exitUsage  = 2
)

// options are what the command line says.
type options struct {
	size    Size
	only    *regexp.Regexp
	file    string // to write the figures to
	from    string // to read them from
	write   bool
	check   bool
	gate    bool
	profile string // directory
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	if err := o.run(ctx, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	return exitOK
}

// parse tells stderr what is wrong.
func parse(args []string, stderr io.Writer) (o options, err error) {
	o.size = fullSize()
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.file, "json", "", "also write the figures to this `file`")
	flags.StringVar(&o.from, "from", "", "measure nothing, read the figures from this `file`")
	flags.BoolVar(&o.write, "write", false, "publish the figures: docs/performance.json, .md and .svg")
	only := flags.String("run", "", "measure only what matches this `regexp`, of "+strings.Join(names(), ", "))
	flags.BoolVar(&o.check, "check", false, "exit with 1 when a figure misses its mark")
	flags.BoolVar(&o.gate, "gate", false, "measure in short what has a floor, and exit with 1 when a figure is below it")
	flags.StringVar(&o.profile, "profile", "", "measure nothing, leave profiles of a loaded server in this `directory`")
	full := flags.Bool("full", false, "let the open loop last five minutes on each server")
	flags.IntVar(&o.size.Pairs, "pairs", o.size.Pairs, "pairs of windows, one on each server, for every throughput")
	flags.DurationVar(&o.size.OpenFor, "open-for", o.size.OpenFor, "length of the open loop on each server")
	flags.Func("env", "set `NAME=value` in the environment of sentinel-rls, to try what it does; repeatable", func(v string) error {
		o.size.Env = append(o.size.Env, v)
		return nil
	})
	seconds := flags.Float64("seconds", o.size.Window.Seconds(), "length of a window")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.size.Window = time.Duration(*seconds * float64(time.Second))
	o.size.Spare = o.size.Pairs
	if *full {
		o.size.OpenFor = 5 * time.Minute
	}
	o.only, err = regexp.Compile(*only)
	if err == nil && (flags.NArg() > 0 || o.size.Pairs < 1 || o.size.Window <= 0 || o.size.OpenFor <= 0) {
		err = errors.New("-pairs, -seconds and -open-for must be positive, and there are no arguments")
	}
	if err == nil && o.write && (*only != "" || o.gate) {
		err = errors.New("-write publishes every figure: leave -run and -gate out")
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
	}
	return o, err
}

func (o *options) run(ctx context.Context, stdout, stderr io.Writer) error {
	if o.profile != "" {
		return profile(ctx, o.size, o.profile, stderr)
	}
	report, err := o.report(ctx, stderr)
	if err != nil {
		return err
	}
	if o.file != "" {
		if err := writeJSON(o.file, report); err != nil {
			return err
		}
	}
	if o.write {
		root, err := testserver.Root()
		if err != nil {
			return err
		}
		if err := publish(filepath.Join(root, "docs"), report); err != nil {
			return err
		}
	}
	report.print(stdout)
	if missed := report.missed(); (o.check || o.gate) && len(missed) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

func (o *options) report(ctx context.Context, progress io.Writer) (*Report, error) {
	switch {
	case o.from != "":
		r, err := readJSON(o.from)
		if err == nil {
			r.Figures = r.figures() // judged as they would be today
		}
		return r, err
	case o.gate:
		return runGate(ctx, gateSize(), progress)
	}
	return runBench(ctx, o.size, o.only, progress)
}
