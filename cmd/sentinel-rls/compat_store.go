package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/internal/compat"
	tiers "github.com/sentinel-rls/sentinel-rls/internal/run"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// compatStore is the store that the environment asks for.
type compatStore struct {
	store
	unhealthy func() bool // whether /healthcheck must fail for it
}

// newCompatStore returns one Redis, two, or this process's memory. It connects to nothing.
func newCompatStore(s compat.Settings, cfg config.Config, stats *compat.Stats, recorder *telemetry.Recorder, log *slog.Logger) (compatStore, error) {
	c := compatStore{unhealthy: func() bool { return false }}
	var err error
	if s.Memory {
		c.store, err = newMemoryStore(cfg, recorder)
		c.degradedCodes(nil)
	} else {
		c, err = newRedisStores(s, cfg, stats, recorder, log)
	}
	if err != nil {
		return compatStore{}, err
	}
	c.fallback, err = memory.New(memoryConfig(cfg, recorder))
	return c, err
}

func (c *compatStore) degradedCodes(codes func() []string) {
	if codes == nil {
		codes = func() []string { return nil }
	}
	c.degraded = codes
}

func newRedisStores(s compat.Settings, cfg config.Config, stats *compat.Stats, recorder *telemetry.Recorder, log *slog.Logger) (compatStore, error) {
	one, err := newCompatRedis(s, s.Redis, cfg, stats.NewPool(false), recorder, log)
	if err != nil {
		return compatStore{}, named("REDIS_URL", err)
	}
	one.parts = startupNamed("REDIS_STARTUP_MAX_ELAPSED_TIME", one.parts)
	recorder.WatchBreaker(one.breakerState)
	c := compatStore{store: one, unhealthy: func() bool { return s.Redis.HealthCheck && isDown(one) }}
	if !s.PerSecond.On {
		return c, nil
	}
	second, err := newCompatRedis(s, s.PerSecond, cfg, stats.NewPool(true), recorder, log)
	if err != nil {
		return compatStore{}, named("REDIS_PERSECOND_URL", err)
	}
	second.parts = startupNamed("REDIS_PERSECOND_STARTUP_MAX_ELAPSED_TIME", second.parts)
	c.Store = &perSecond{seconds: second, others: one}
	c.name = "redis, and another for limits of a second"
	c.parts = slices.Concat(one.parts, second.parts)
	c.degraded = func() []string {
		codes := append(one.degraded(), second.degraded()...)
		slices.Sort(codes)
		return slices.Compact(codes)
	}
	c.check = func(ctx context.Context) error { return errors.Join(one.check(ctx), second.check(ctx)) }
	c.unhealthy = func() bool {
		return s.Redis.HealthCheck && isDown(one) || s.PerSecond.HealthCheck && isDown(second)
	}
	return c, nil
}

func named(variable string, err error) error { return fmt.Errorf("%s: %w", variable, err) }

// startupNamed has the parts of a store say which variable ended the process because no server came.
func startupNamed(variable string, parts []tiers.Part) []tiers.Part {
	named := slices.Clone(parts)
	for i, part := range parts {
		named[i].Run = func(ctx context.Context) error {
			err := part.Run(ctx)
			if errors.Is(err, redis.ErrNoServer) {
				return fmt.Errorf("%w (start it, or raise %s; 0 waits for ever)", err, variable)
			}
			return err
		}
	}
	return named
}

func isDown(s store) bool { return slices.Contains(s.degraded(), redis.DegradedDown) }

// newCompatRedis returns one Redis.
func newCompatRedis(s compat.Settings, r compat.Redis, cfg config.Config, pool *compat.Pool, recorder *telemetry.Recorder, log *slog.Logger) (store, error) {
	address, err := r.Address()
	if err != nil {
		return store{}, invalidError{err}
	}
	rc, err := redisConfig(cfg, recorder, log)
	if err != nil {
		return store{}, invalidError{err}
	}
	rc.URL, rc.Username, rc.PasswordFile, rc.TLS = address, "", "", nil
	rc.SentinelUsername, rc.SentinelPassword, rc.SentinelPasswordFile = "", "", ""
	rc.DialTimeout, rc.ExpiryJitter = r.DialTimeout, s.ExpiryJitter
	rc.Startup = redis.Startup(r.Startup)
	if r.Type == compat.Sentinel {
		rc.SentinelUsername, rc.SentinelPassword = r.Login(r.SentinelAuth)
	}
	rc.Observer = compatObserver{storeObserver{recorder, log, nil}, &poolObserver{pool: pool}}
	if r.Encrypted() {
		if rc.TLS, err = redisTLS(tlsFor(s, r)); err != nil {
			return store{}, invalidError{err}
		}
	}
	return redisStore(rc, log)
}

// redisTLS returns how the servers are verified, each by the host under which it is reached.
func redisTLS(t compat.TLS) (*tls.Config, error) {
	if t.AnyHost {
		return t.Client("")
	}
	return redis.TLSFiles{CA: t.CA, Cert: t.Cert, Key: t.Key}.Config()
}

// compatObserver also counts connections under that service's names.
type compatObserver struct {
	storeObserver
	pool *poolObserver
}

// Connections implements redis.Observer.
func (o compatObserver) Connections(open int) {
	o.storeObserver.Connections(open)
	o.pool.set(open)
}

// poolObserver makes the calls follow one another.
type poolObserver struct {
	mu   sync.Mutex
	pool *compat.Pool
}

func (o *poolObserver) set(open int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pool.Connections(open)
}

// perSecond sends the limits of one second to a server of their own. Which limits those are depends on the rule alone, so
// a bucket is always in the same place: counting windows, which are never decided together with others here.
type perSecond struct{ seconds, others rls.Store }

var _ rls.Store = (*perSecond)(nil)

// Decide implements rls.Store.
func (p *perSecond) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	var parts [2][]rls.Group // others, seconds
	var at [2][]int
	for i, g := range groups {
		side := 0
		if ofOneSecond(g) {
			side = 1
		}
		parts[side], at[side] = append(parts[side], g), append(at[side], i)
	}
	switch {
	case len(parts[1]) == 0:
		return p.others.Decide(ctx, groups)
	case len(parts[0]) == 0:
		return p.seconds.Decide(ctx, groups)
	}
	answers := make([]rls.Answer, len(groups))
	put := func(side int, got []rls.Answer) {
		for i, a := range got {
			answers[at[side][i]] = a
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { put(1, p.seconds.Decide(ctx, parts[1])) })
	put(0, p.others.Decide(ctx, parts[0]))
	wg.Wait()
	return answers
}

func ofOneSecond(g rls.Group) bool {
	return !slices.ContainsFunc(g, func(t rls.Take) bool {
		return !t.Rule.Counting() || t.Rule.Window().Duration() != time.Second
	})
}
