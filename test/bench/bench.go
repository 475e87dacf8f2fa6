package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Size is how much is measured.
type Size struct {
	Pairs   int           `json:"pairs"`       // rounds of each race
	Spare   int           `json:"spare_pairs"` // more, in place of those that other work disturbs
	Window  time.Duration `json:"-"`
	WarmUp  time.Duration `json:"-"`       // of each server before its rounds
	Callers int           `json:"callers"` // each waits for its answer before it asks again
	Conns   int           `json:"connections"`
	Tenants int           `json:"tenants"`
	Quick   bool          `json:"quick,omitempty"` // without what is only printed

	IdleFor       time.Duration `json:"-"` // from start to the reading of idle memory
	IdleEndpoints int           `json:"idle_endpoints"`

	FullTenants int `json:"full_tenants"` // distinct tenants sent through a memory store
	FullBuckets int `json:"full_buckets"` // of so many buckets

	TokenCalls int `json:"token_calls"` // in a window of token_cache

	ScaleEndpoints int `json:"scale_endpoints"` // against a thousandth of them
	ScaleTenants   int `json:"scale_tenants"`   // against a thousandth of them

	OpenFor     time.Duration `json:"-"` // open loop on each server
	OverloadFor time.Duration `json:"-"`
	ProfileFor  time.Duration `json:"-"` // rounded down to seconds

	Env []string `json:"env,omitempty"` // of sentinel-rls in every measure, as NAME=value
}

// fullSize is the size of the figures that are published.
func fullSize() Size {
	return Size{
		Pairs: 5, Spare: 5, Window: 1500 * time.Millisecond, WarmUp: time.Second, Callers: 64, Conns: 4, Tenants: 10_000,
		IdleFor: 10 * time.Second, IdleEndpoints: 100,
		FullTenants: 1_000_000, FullBuckets: 200_000, TokenCalls: 200_000,
		ScaleEndpoints: 10_000, ScaleTenants: 1_000_000, OpenFor: 20 * time.Second, OverloadFor: 10 * time.Second,
		ProfileFor: 15 * time.Second,
	}
}

// tokens returns how many distinct tokens of one algorithm there are.
func (s Size) tokens() int { return min(s.Tenants, 1000) }

// measure is one thing that is measured, and what it adds to a report.
type measure struct {
	name  string
	gated bool // its figures have floors
	run   func(*bench, context.Context, *Report) error
}

// measures are all there are, in the order of the report.
var measures = []measure{
	{"rls_redis", true, (*bench).rlsRedis},
	{"rls_memory", false, (*bench).rlsMemory},
	{"rls_denied", true, (*bench).rlsDenied},
	{"authz", true, (*bench).authz},
	{"groups", true, (*bench).groups},
	{"envoy", true, (*bench).throughEnvoy},
	{"scale", false, (*bench).scale},
	{"open_loop", false, (*bench).openLoop},
	{"overload", false, (*bench).overload},
	{"token_cache", false, (*bench).tokenCache},
	{"memory_idle", false, (*bench).memoryIdle},
	{"memory_full", false, (*bench).memoryFull},
}

func names() []string {
	all := make([]string, len(measures))
	for i, m := range measures {
		all[i] = m.name
	}
	return all
}

// bench is what measures share: the servers that all of them use.
type bench struct {
	size      Size
	dir       string
	binary    string
	bare      *load.Bare
	bareConns load.Conns
	store     *testserver.Server
	client    *redis.Client // of store
	progress  io.Writer
}

// openBench starts what measures share. The caller closes it.
func openBench(ctx context.Context, size Size, progress io.Writer) (_ *bench, err error) {
	b := &bench{size: size, progress: progress}
	if b.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.binary, err = load.Build(ctx, b.dir); err != nil {
		return nil, err
	}
	if b.store, err = testserver.Run(ctx, testserver.Redis); err != nil {
		return nil, err
	}
	b.client = redis.NewClient(&redis.Options{Addr: b.store.Addr(), ReadTimeout: time.Minute})
	if b.bare, err = load.StartBare(ctx); err != nil {
		return nil, err
	}
	if b.bareConns, err = load.Dial(ctx, b.bare.Addr(), size.Conns); err != nil {
		return nil, err
	}
	return b, nil
}

// close ends what has been started.
func (b *bench) close() {
	b.bareConns.Close()
	if b.bare != nil {
		b.bare.Kill()
	}
	if b.client != nil {
		_ = b.client.Close()
	}
	if b.store != nil {
		b.store.Stop()
	}
	_ = os.RemoveAll(b.dir)
}

// runBench runs the measures whose names match only.
func runBench(ctx context.Context, size Size, only *regexp.Regexp, progress io.Writer) (*Report, error) {
	b, err := openBench(ctx, size, progress)
	if err != nil {
		return nil, err
	}
	defer b.close()
	r := newReport(size, b.store)
	for _, m := range measures {
		if !only.MatchString(m.name) {
			continue
		}
		if err := b.make(ctx, m, r); err != nil {
			return nil, err
		}
	}
	r.Figures = r.figures()
	return r, nil
}

func (b *bench) make(ctx context.Context, m measure, r *Report) error {
	fmt.Fprintf(b.progress, "%s %s\n", time.Now().Format(time.TimeOnly), m.name)
	err := m.run(b, ctx, r)
	if errors.Is(err, testserver.ErrMissing) && os.Getenv("CI") != "true" {
		fmt.Fprintf(b.progress, "%s is not measured: %v\n", m.name, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return nil
}
