package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/config"
	tiers "github.com/sentinel-rls/sentinel-rls/internal/run"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// store is the configured rls.Store and what the process must know of it.
type store struct {
	rls.Store
	name         string                          // for the log
	instant      bool                            // it never waits, so it needs no budget
	breakerState func() string                   // nil: it has no breaker
	degraded     func() []string                 // codes for /readyz; nil: it is never degraded
	parts        []tiers.Part                    // what must run for it
	check        func(ctx context.Context) error // called before anything is served; an error refuses the start
	engine       *atomic.Pointer[rls.Engine]     // who is told what the store learns; nil: nobody
	fallback     rls.Store                       // counts the limits of drop-in rules while Store cannot answer
}

// newStore returns Redis where a URL is configured, else the memory store. It connects to nothing.
func newStore(cfg config.Config, recorder *telemetry.Recorder, log *slog.Logger) (store, error) {
	build := func() (store, error) { return newRedisStore(cfg, recorder, log) }
	if cfg.Redis.URL == "" {
		build = func() (store, error) { return newMemoryStore(cfg, recorder) }
	}
	s, err := build()
	if err != nil {
		return store{}, err
	}
	s.fallback, err = memory.New(memoryConfig(cfg, recorder))
	return s, err
}

func newMemoryStore(cfg config.Config, recorder *telemetry.Recorder) (store, error) {
	s, err := memory.New(memoryConfig(cfg, recorder))
	if err != nil {
		return store{}, err
	}
	recorder.WatchMemoryStore(s.Buckets)
	return store{Store: s, name: "memory", instant: true, check: func(context.Context) error { return nil }}, nil
}

func newRedisStore(cfg config.Config, recorder *telemetry.Recorder, log *slog.Logger) (store, error) {
	c, err := redisConfig(cfg, recorder, log)
	if err != nil {
		return store{}, invalidError{err}
	}
	engine := new(atomic.Pointer[rls.Engine])
	c.HeartbeatKey = cfg.Redis.KeyPrefix + redis.DefaultHeartbeatKey
	c.Observer = storeObserver{recorder, log, engine}
	s, err := redisStore(c, log)
	if err == nil {
		recorder.WatchBreaker(s.breakerState)
	}
	s.engine = engine
	return s, err
}

// redisStore returns one Redis as a store.
func redisStore(cfg redis.Config, log *slog.Logger) (store, error) {
	s, err := redis.New(cfg)
	if err != nil {
		return store{}, invalidError{err}
	}
	return store{
		Store: s, name: "redis", breakerState: s.BreakerState, degraded: s.Degraded,
		parts: []tiers.Part{{Name: "redis", Run: s.Run}},
		check: func(ctx context.Context) error { return checkRedis(ctx, s, log) },
	}, nil
}

// probeBound is how long the start waits for Redis. A process that cannot start while Redis is away has failed closed,
// so no answer is an answer.
const probeBound = time.Second

// checkRedis refuses the start when Redis is configured in a way that waiting does not mend.
func checkRedis(ctx context.Context, s *redis.Store, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	err := s.Probe(ctx)
	if fault, ok := errors.AsType[*redis.ConfigFault](err); ok {
		return invalidError{fault}
	}
	if err != nil {
		log.Warn("redis does not answer: fail modes decide until it does", "error", err.Error())
	}
	return nil
}

// storeObserver passes on what the Redis store tells.
type storeObserver struct {
	*telemetry.Recorder
	log    *slog.Logger
	engine *atomic.Pointer[rls.Engine] // nil: there will be none that is told; nil inside: there is none yet
}

func (o storeObserver) tell(what func(*rls.Engine)) {
	if o.engine == nil {
		return
	}
	if e := o.engine.Load(); e != nil {
		what(e)
	}
}

// Processes has the engine count on that many processes, for emergency caps that are the whole fleet's.
func (o storeObserver) Processes(n int) {
	o.Recorder.Processes(n)
	o.tell(func(e *rls.Engine) { e.SetProcesses(n) })
}

// StateLost tells that a server's memory is not what it was. A clock that stepped back forgot nothing.
func (o storeObserver) StateLost(loss redis.Loss) {
	o.Recorder.StateLost(string(loss))
	if loss != redis.ClockBack {
		o.tell(func(e *rls.Engine) { e.StateLost() })
	}
}

// Failing tells that a server begins to fail, or answers again.
func (o storeObserver) Failing(server string, cause error) { o.StoreFailing(server, cause) }

// ServerChanged tells that a server is another one than before.
func (o storeObserver) ServerChanged(server string, change redis.Change) {
	o.Recorder.ServerChanged(server, string(change))
}

// ConfigFault shows a configuration fault that was found while running, or that it is mended.
func (o storeObserver) ConfigFault(fault *redis.ConfigFault) {
	o.StoreUnfit(fault != nil)
	if fault == nil {
		o.log.Info("redis' configuration is mended")
		return
	}
	o.log.Error("redis' configuration is unfit: nothing is sent to it", "problem", fault.Problem, "mend", fault.Mend)
}
