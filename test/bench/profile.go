package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// profile puts the program under the load of rls_redis for the time that its processor profile takes, and leaves profiles
// in dir.
func profile(ctx context.Context, size Size, dir string, progress io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := openBench(ctx, size, progress)
	if err != nil {
		return err
	}
	defer b.close()
	program, conns, stop, err := b.start(ctx, load.Settings{Policies: admitAll, Store: b.store})
	if err != nil {
		return err
	}
	defer stop()
	ours := entrant{server: program.Process, conns: conns, ask: load.RateLimit("all", size.Tenants), means: load.Allowed}
	if _, err := b.window(ctx, ours, size.WarmUp); err != nil {
		return err
	}
	seconds := max(1, int(size.ProfileFor.Seconds()))
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() error {
		w, err := b.window(bothCtx, ours, time.Duration(seconds)*time.Second+size.WarmUp)
		if err == nil {
			fmt.Fprintf(progress, "%.0f calls/s, %.1f µs of processor time a call\n", w.calls.Rate(), w.cpuPerCall())
		}
		return err
	})
	both.Go(func() error {
		return save(bothCtx, program, fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds), filepath.Join(dir, "cpu.pprof"))
	})
	if err := both.Wait(); err != nil {
		return err
	}
	return save(ctx, program, "/debug/pprof/allocs", filepath.Join(dir, "allocs.pprof"))
}

func save(ctx context.Context, program *load.Program, path, file string) error {
	profile, err := program.Get(ctx, path)
	if err != nil {
		return err
	}
	return os.WriteFile(file, profile, 0o644)
}
