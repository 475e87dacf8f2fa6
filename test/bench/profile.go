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

// profile puts the program under the load of rls_redis and then of authz_redis, each for the time that a processor profile
// takes, and leaves profiles of both in dir.
func profile(ctx context.Context, size Size, dir string, progress io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := openBench(ctx, size, progress)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.profile(ctx, load.Settings{Policies: admitAll, Store: b.store}, load.RateLimit("all", size.Tenants),
		filepath.Join(dir, "rls_redis"), progress); err != nil {
		return err
	}
	settings, check, forget, err := b.checks()
	if err != nil {
		return err
	}
	defer forget()
	return b.profile(ctx, settings, check, filepath.Join(dir, "authz_redis"), progress)
}

// profile leaves name.cpu.pprof and name.allocs.pprof of a program under load.
func (b *bench) profile(ctx context.Context, settings load.Settings, ask load.Ask, name string, progress io.Writer) error {
	program, conns, stop, err := b.start(ctx, settings)
	if err != nil {
		return err
	}
	defer stop()
	ours := entrant{server: program.Process, conns: conns, ask: ask, means: load.Allowed}
	if _, err := b.window(ctx, ours, b.size.WarmUp); err != nil {
		return err
	}
	seconds := max(1, int(b.size.ProfileFor.Seconds()))
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() error {
		w, err := b.window(bothCtx, ours, time.Duration(seconds)*time.Second+b.size.WarmUp)
		if err == nil {
			fmt.Fprintf(progress, "%s: %.0f calls/s, %.1f µs of processor time a call\n", filepath.Base(name), w.calls.Rate(), w.cpuPerCall())
		}
		return err
	})
	both.Go(func() error {
		return save(bothCtx, program, fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds), name+".cpu.pprof")
	})
	if err := both.Wait(); err != nil {
		return err
	}
	return save(ctx, program, "/debug/pprof/allocs", name+".allocs.pprof")
}

func save(ctx context.Context, program *load.Program, path, file string) error {
	profile, err := program.Get(ctx, path)
	if err != nil {
		return err
	}
	return os.WriteFile(file, profile, 0o644)
}
