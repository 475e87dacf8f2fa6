package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Size is how much is measured.
type Size struct {
	Pairs   int           `json:"pairs"`
	Window  time.Duration `json:"-"`
	WarmUp  time.Duration `json:"-"`       // of each server before its pairs
	Callers int           `json:"callers"` // each waits for its answer before it asks again
	Conns   int           `json:"connections"`
	Tenants int           `json:"tenants"`

	IdleFor       time.Duration `json:"-"` // from start to the reading of idle memory
	IdleEndpoints int           `json:"idle_endpoints"`

	FullTenants int `json:"full_tenants"` // distinct tenants sent through a memory store
	FullBuckets int `json:"full_buckets"` // of so many buckets

	TokenCalls int `json:"token_calls"` // in a window of token_cache

	Env []string `json:"env,omitempty"` // of sentinel-rls in every measure, as NAME=value
}

// fullSize is the size of the figures that are published.
func fullSize() Size {
	return Size{
		Pairs: 5, Window: 2 * time.Second, WarmUp: time.Second, Callers: 64, Conns: 4, Tenants: 10_000,
		IdleFor: 10 * time.Second, IdleEndpoints: 100,
		FullTenants: 1_000_000, FullBuckets: 200_000, TokenCalls: 200_000,
	}
}

// deadline is that of every call. It is long, so that what is measured is the server and not when it gives up: a store call
// has its own budget of 20 ms anyway.
const deadline = time.Second

// measures are all there are, in the order of the report.
var measures = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"rls_redis", (*bench).rlsRedis},
	{"rls_memory", (*bench).rlsMemory},
	{"authz_redis", (*bench).authzRedis},
	{"token_cache", (*bench).tokenCache},
	{"memory_idle", (*bench).memoryIdle},
	{"memory_full", (*bench).memoryFull},
}

func names() []string {
	all := make([]string, len(measures))
	for i, m := range measures {
		all[i] = m.name
	}
	return all
}

// bench is what measures share: the servers that all of them use, and the report they write to.
type bench struct {
	size      Size
	binary    string
	bare      *load.Bare
	bareConns load.Conns
	store     *testserver.Server
	client    *redis.Client // of store
	report    *Report
}

// runBench runs the measures whose names match only, and tells progress which.
func runBench(ctx context.Context, size Size, only *regexp.Regexp, progress io.Writer) (_ *Report, err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &bench{size: size}
	if b.binary, err = load.Build(ctx, dir); err != nil {
		return nil, err
	}
	if b.store, err = testserver.Run(ctx, testserver.Redis); err != nil {
		return nil, err
	}
	defer b.store.Stop()
	b.client = redis.NewClient(&redis.Options{Addr: b.store.Addr()})
	defer b.client.Close()
	if b.bare, err = load.StartBare(ctx); err != nil {
		return nil, err
	}
	defer b.bare.Kill()
	if b.bareConns, err = load.Dial(ctx, b.bare.Addr(), size.Conns); err != nil {
		return nil, err
	}
	defer b.bareConns.Close()

	b.report = newReport(size, b.store)
	for _, m := range measures {
		if !only.MatchString(m.name) {
			continue
		}
		fmt.Fprintf(progress, "%s %s\n", time.Now().Format(time.TimeOnly), m.name)
		if err := m.run(b, ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return b.report, nil
}

// start starts the program and connects to it. stop ends both.
func (b *bench) start(ctx context.Context, s load.Settings) (p *load.Program, conns load.Conns, stop func(), err error) {
	s.Binary, s.Env = b.binary, slices.Concat(b.size.Env, s.Env)
	if p, err = load.Start(ctx, s); err != nil {
		return nil, nil, nil, err
	}
	if conns, err = load.Dial(ctx, p.Addr(), b.size.Conns); err != nil {
		p.Stop()
		return nil, nil, nil, err
	}
	return p, conns, func() { conns.Close(); p.Stop() }, nil
}
