package main

import (
	"context"
	"log/slog"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	tiers "github.com/sentinel-rls/sentinel-rls/internal/run"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
)

// store is the configured rls.Store and what the process must know of it.
type store struct {
	rls.Store
	name         string                          // for the log
	breakerState func() string                   // nil: it has no breaker
	degradations []admin.Degradation             // for /readyz
	parts        []tiers.Part                    // what must run for it
	check        func(ctx context.Context) error // called before anything is served; an error refuses the start
}

// newStore returns Redis where a URL is configured, else the memory store. It connects to nothing.
func newStore(cfg config.Config, recorder *telemetry.Recorder, log *slog.Logger) (store, error) {
	return newMemoryStore(cfg.Memory, recorder)
}

func newMemoryStore(cfg config.Memory, recorder *telemetry.Recorder) (store, error) {
	s, err := memory.New(memory.Config{MaxBuckets: cfg.MaxBuckets, Overflowed: recorder.MemoryOverflowed})
	if err != nil {
		return store{}, err
	}
	recorder.WatchMemoryStore(s.Buckets)
	return store{Store: s, name: "memory", check: func(context.Context) error { return nil }}, nil
}
