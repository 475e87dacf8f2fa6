// Command bench measures sentinel-rls beside a bare gRPC server in the same run: throughput, latency, processor time and
// memory. docs/performance.md says how, and what the figures mean. `make bench` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
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
	exitFailed = 1 // it could not measure, or with -check a figure missed its mark
	exitUsage  = 2
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	size := fullSize()
	file := flags.String("json", "", "also write the figures to this `file`")
	only := flags.String("run", "", "measure only what matches this `regexp`, of "+strings.Join(names(), ", "))
	check := flags.Bool("check", false, "exit with 1 when a figure misses its mark")
	gate := flags.Bool("gate", false, "measure in short what has a floor, and exit with 1 when a figure is below it")
	flags.IntVar(&size.Pairs, "pairs", size.Pairs, "pairs of windows, one on each server, for every throughput")
	flags.Func("env", "set `NAME=value` in the environment of sentinel-rls, to try what it does; repeatable", func(v string) error {
		size.Env = append(size.Env, v)
		return nil
	})
	seconds := flags.Float64("seconds", size.Window.Seconds(), "length of a window")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	size.Window = time.Duration(*seconds * float64(time.Second))
	pattern, err := regexp.Compile(*only)
	if err == nil && (flags.NArg() > 0 || size.Pairs < 1 || size.Window <= 0) {
		err = errors.New("-pairs and -seconds must be positive, and there are no arguments")
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}

	var report *Report
	if *gate {
		report, err = runGate(ctx, gateSize(), stderr)
	} else {
		report, err = runBench(ctx, size, pattern, stderr)
	}
	if err == nil && *file != "" {
		err = writeJSON(*file, report)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	report.print(stdout)
	if missed := report.missed(); (*check || *gate) && len(missed) > 0 {
		fmt.Fprintln(stderr, "bench: missed:", strings.Join(missed, "; "))
		return exitFailed
	}
	return exitOK
}

func writeJSON(file string, r *Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
