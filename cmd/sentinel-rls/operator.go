package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/identity/jwks"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// operatorPatience is how long an operator's command waits for Redis. No request waits with it.
const operatorPatience = 5 * time.Second

// sources are the flags by which an operator's command finds configuration and policies, as serve does.
type sources struct {
	Config   string   `long:"config" value-name:"FILE" description:"The process configuration that the server has."`
	Policies []string `long:"policies" value-name:"PATH" description:"A policy file or a directory of them; repeatable (policies)."`
	Redis    *string  `long:"redis" value-name:"URL" description:"The shared store (redis.url)."`
}

// load returns configuration and policies. That they fit is for serve and validate to check: a question about policies
// needs no secrets.
func (s *sources) load(env *environment) (config.Config, *descriptors.Set, error) {
	cfg, _, err := config.Load(s.Config, env.variables, overrides(
		override("--redis", "redis.url", given(s.Redis)...),
		override("--policies", "policies", s.Policies...),
	)...)
	if err != nil {
		return cfg, nil, invalidError{err}
	}
	if len(cfg.Policies) == 0 {
		return cfg, nil, usageError{errors.New("no policies: add --policies PATH, or --config FILE that names some")}
	}
	_, set, err := readPolicies(cfg.Policies, policyOptions(cfg))
	if err != nil {
		return cfg, nil, invalidError{err}
	}
	return cfg, set, nil
}

// callers returns what verifies the callers of a configuration, its keys fetched where fetch is true.
func callers(ctx context.Context, cfg config.Config, fetch bool) (*identity.Resolver, error) {
	t, err := newTokens(cfg, slog.New(slog.DiscardHandler), func(string) jwks.Observer { return unobserved{} })
	if err != nil {
		return nil, invalidError{err}
	}
	if fetch {
		t.fetch(ctx)
	}
	resolver, err := identity.New(identityConfig(cfg, t.issuers, nil))
	if err != nil {
		return nil, invalidError{err}
	}
	return resolver, nil
}

// withRedis calls f with a running store on the configured Redis.
func withRedis(env *environment, cfg config.Config, f func(context.Context, *redis.Store) error) error {
	if cfg.Redis.URL == "" {
		return invalidError{errors.New("redis.url: there is no shared store: without one, buckets are kept in the memory of the serving process (add --redis URL)")}
	}
	recorder := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	c, err := redisConfig(cfg, recorder, slog.New(slog.DiscardHandler))
	if err != nil {
		return invalidError{err}
	}
	c.Budget, c.Workers = operatorPatience, 1
	s, err := redis.New(c)
	if err != nil {
		return invalidError{err}
	}
	ctx, cancel := context.WithTimeout(env.ctx, operatorPatience)
	defer cancel()
	running, stop := context.WithCancel(context.WithoutCancel(env.ctx))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	err = f(ctx, s)
	stop()
	<-ended // what was asked is answered by now
	return err
}

// questioner returns an engine over store that only answers questions about a set.
func questioner(cfg config.Config, set *descriptors.Set, s rls.Store, who rls.Identifier, recorder rls.Recorder) (*rls.Engine, error) {
	fallback, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	c := engineConfig(cfg, store{Store: s, fallback: fallback}, who, recorder)
	c.DenyCache, c.StoreBudget, c.NoDeadline = nil, operatorPatience, operatorPatience
	engine, err := rls.New(c)
	if err != nil {
		return nil, err
	}
	if err := engine.Use(set); err != nil {
		return nil, invalidError{err}
	}
	return engine, nil
}

// maxSecretBytes bounds what an operator's command reads of a token or cookie; verification has smaller bounds.
const maxSecretBytes = 64 << 10

// readSecret reads a token or cookie from a file, "-" is standard input. On the command line it would be seen in the
// list of processes and stay in the shell's history.
func readSecret(stdin io.Reader, name string) (string, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", invalidError{fmt.Errorf("%w (name a file that this user may read, or - for standard input)", err)}
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSecretBytes+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", name, err)
	case len(text) > maxSecretBytes:
		return "", invalidError{fmt.Errorf("%s: more than %d bytes: that is no token or cookie", name, maxSecretBytes)}
	}
	return strings.TrimSpace(string(text)), nil
}
