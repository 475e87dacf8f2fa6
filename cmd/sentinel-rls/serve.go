package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/identity/jwks"
	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/collector"
	tiers "github.com/sentinel-rls/sentinel-rls/internal/run"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// serveCommand is `sentinel-rls serve`.
type serveCommand struct {
	Config   string   `long:"config" value-name:"FILE" description:"Process configuration."`
	GRPC     *string  `long:"grpc" value-name:"ADDR" description:"Where Envoy connects (grpc.address)."`
	Admin    *string  `long:"admin" value-name:"ADDR" description:"Where metrics and health are served (admin.address)."`
	Redis    *string  `long:"redis" value-name:"URL" description:"The shared store; an empty URL means this process's memory (redis.url)."`
	Policies []string `long:"policies" value-name:"PATH" description:"A policy file or a directory of them; repeatable (policies)."`
}

// Run serves until the context is done.
func (c *serveCommand) Run(env *environment) error {
	collector.Tune(env.variables)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // before anything else: a hangup must not end a process that is starting
	defer signal.Stop(hangups)
	s, err := load(c.Config, env.variables, overrides(
		override("--grpc", "grpc.address", given(c.GRPC)...),
		override("--admin", "admin.address", given(c.Admin)...),
		override("--redis", "redis.url", given(c.Redis)...),
		override("--policies", "policies", c.Policies...),
	))
	if err != nil {
		return err
	}
	p, err := assemble(s, env)
	if err != nil {
		return err
	}
	p.memoryLimit = limitMemory(env.variables, cgroupRoot)
	return p.run(env.ctx, hangups)
}

// given returns what a flag was set to, if it was.
func given(flag *string) []string {
	if flag == nil {
		return nil
	}
	return []string{*flag}
}

func override(flag, path string, values ...string) config.Override {
	return config.Override{Flag: flag, Path: path, Values: values}
}

// overrides leaves out the flags that were not given.
func overrides(all ...config.Override) (set []config.Override) {
	for _, o := range all {
		if len(o.Values) > 0 {
			set = append(set, o)
		}
	}
	return set
}

const (
	logQueueLines = 1024
	workersBound  = 5 * time.Second
	sinksBound    = 2 * time.Second
	adminBound    = 2 * time.Second
	stopMargin    = 2 * time.Second // on top of what a part's own stop may take

	// maxConnections is how many connections Envoys may have to the gRPC port. Further ones wait to be accepted.
	maxConnections = 16_384
)

// program is the assembled process.
type program struct {
	settings
	env       *environment
	log       *slog.Logger
	logWriter *telemetry.Writer
	store     store
	tokens    *tokens
	live      *livePolicies
	health    *admin.Health
	grpc      *envoy.Server
	admin     *admin.Server

	memoryLimit int64 // of the Go runtime, in bytes; 0: none
}

// assemble puts the parts together and starts none of them.
func assemble(s settings, env *environment) (*program, error) {
	p := &program{settings: s, env: env, logWriter: telemetry.NewWriter(env.stderr, logQueueLines)}
	build := telemetry.ReadBuild(version)
	registry := prometheus.NewRegistry()

	var err error
	if p.log, err = newLogger(s.cfg.Log, p.logWriter); err != nil {
		return nil, err
	}
	telemetry.RegisterProcess(registry, build)
	recorder := telemetry.New(telemetry.Config{Registerer: registry, Log: p.log})
	recorder.WatchLog(p.logWriter)

	if p.store, err = newStore(s.cfg, recorder, p.log); err != nil {
		return nil, err
	}
	if p.tokens, err = newTokens(s.cfg, p.log, func(name string) jwks.Observer { return recorder.JWKS(name) }); err != nil {
		return nil, invalidError{err}
	}
	p.tokens.watch(recorder)
	identities, err := identity.New(identityConfig(s.cfg, p.tokens.issuers, p.warnOfPrivatePeer))
	if err != nil {
		return nil, err
	}
	engine, err := rls.New(engineConfig(s.cfg, p.store, identities, recorder))
	if err != nil {
		return nil, err
	}
	if p.store.engine != nil {
		p.store.engine.Store(engine)
	}
	p.live = &livePolicies{cfg: s.cfg, engine: engine, recorder: recorder, log: p.log}
	p.health = admin.NewHealth(p.degraded)
	p.admin = admin.New(admin.Config{
		Gatherer: registry, Health: p.health, Policies: p.live.shown.Load, Denied: recorder.TopDenied,
		Token: s.cfg.Admin.Token.Reveal(), Log: p.log,
	})

	if err := p.live.use(s.policies); err != nil {
		return nil, invalidError{err}
	}
	p.health.Loaded()

	if p.grpc, err = envoy.NewServer(serverConfig(s.cfg, engine, recorder, p.log)); err != nil {
		return nil, err
	}
	p.health.Follow(p.grpc.SetServing)
	return p, nil
}

// newLogger returns the log that the configuration asks for.
func newLogger(cfg config.Log, w *telemetry.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	return telemetry.NewLogger(w, cfg.Format, level)
}

// degraded returns the codes of what is wrong although answers are given.
func (p *program) degraded() (codes []string) {
	if p.store.degraded != nil {
		codes = p.store.degraded()
	}
	return append(append(codes, p.tokens.degraded()...), p.live.degraded()...)
}

func (p *program) warnOfPrivatePeer(netip.Addr) {
	p.log.Warn("a client's address is private or loopback: if a proxy stands before Envoy, all its clients share one bucket; see client_address")
}

// run listens, starts every part and returns when all have stopped.
func (p *program) run(ctx context.Context, hangups <-chan os.Signal) error {
	defer p.close()
	if err := p.store.check(ctx); err != nil {
		return err
	}
	p.tokens.fetch(ctx)
	grpcListener, err := listen(ctx, p.cfg.GRPC.Address, "--grpc", "grpc.address")
	if err != nil {
		return err
	}
	grpcListener = netutil.LimitListener(grpcListener, maxConnections)
	adminListener, err := listen(ctx, p.cfg.Admin.Address, "--admin", "admin.address")
	if err != nil {
		return errors.Join(err, grpcListener.Close())
	}
	if p.demo != nil {
		if err := p.demo.announce(p.env.stdout, grpcListener.Addr(), adminListener.Addr()); err != nil {
			return errors.Join(err, grpcListener.Close(), adminListener.Close())
		}
	}
	p.tellStart(grpcListener.Addr(), adminListener.Addr())

	drain := p.cfg.Shutdown.DrainDelay + p.cfg.Shutdown.Grace
	return tiers.Tiers(ctx, p.log,
		tiers.Tier{Name: "listeners", Bound: drain + stopMargin, Parts: []tiers.Part{
			{Name: "grpc", Run: func(ctx context.Context) error { return p.serveGRPC(ctx, grpcListener) }},
		}},
		tiers.Tier{Name: "workers", Bound: workersBound, Parts: slices.Concat(p.tokens.parts(), p.store.parts, []tiers.Part{
			{Name: "policies", Run: func(ctx context.Context) error { return p.live.watch(ctx, p.files, hangups) }},
		})},
		tiers.Tier{Name: "sinks", Bound: sinksBound, Parts: []tiers.Part{{Name: "log", Run: p.logWriter.Run}}},
		tiers.Tier{Name: "operators", Bound: adminBound, Parts: []tiers.Part{
			{Name: "admin", Run: func(ctx context.Context) error { return p.admin.Run(ctx, adminListener) }},
		}},
	)
}

// close cuts off what is left of the gRPC server, whose goroutines wait for calls even when it never served.
func (p *program) close() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.grpc.Shutdown(now) // the error says that it was cut off
}

// listen binds an address that a flag and a configuration path name.
func listen(ctx context.Context, address, flag, path string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w (set another with %s)", path, address, bareListenError(err), flag)
	}
	return l, nil
}

// bareListenError leaves out the address, which stands beside it already.
func bareListenError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

func (p *program) tellStart(grpc, admin net.Addr) {
	for _, w := range p.warnings {
		p.log.Warn("odd environment", "variable", w.Name, "problem", w.Text)
	}
	switch {
	case p.demo != nil:
		p.log.Warn("serving the built-in demo endpoint only: nothing is configured")
	case len(p.policies.Policies()) == 0 && len(p.policies.DropIns()) == 0:
		p.log.Warn("no policies: nothing is limited, and every Check is an unknown endpoint")
	}
	warnOfPolicies(p.log, p.policies)
	build := telemetry.ReadBuild(version)
	p.log.Info("serving", "version", build.Version, "grpc", grpc.String(), "admin", admin.String(), "store", p.store.name,
		"policies", p.policies.Hash(), "memory_limit_bytes", p.memoryLimit)
}

// serveGRPC answers Envoy until ctx is done. Then it says NOT_SERVING and goes on answering for the drain delay, since
// Envoy keeps asking until it has noticed; then it lets the calls in flight end, and cuts off what outlasts the grace.
func (p *program) serveGRPC(ctx context.Context, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- p.grpc.Serve(l) }()
	return drainGRPC(ctx, p.grpc, served, p.cfg.Shutdown, p.health.Stopping, p.log)
}

// drainGRPC waits until ctx is done or serving ended, which served receives, and stops as serveGRPC says.
func drainGRPC(ctx context.Context, server *envoy.Server, served <-chan error, cfg config.Shutdown, stopping func(), log *slog.Logger) error {
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stopping()
	noticed := time.NewTimer(cfg.DrainDelay)
	defer noticed.Stop()
	select {
	case err := <-served:
		return err
	case <-noticed.C:
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Grace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		log.Warn("calls were cut off at the end of shutdown.grace", "grace", cfg.Grace)
	}
	return <-served
}

// describe returns what /policies shows of a set.
func describe(set *descriptors.Set, loaded time.Time) *admin.Policies {
	shown := &admin.Policies{Hash: set.Hash(), Loaded: loaded, Files: []string{}, Domains: []string{}, Endpoints: []admin.Endpoint{}}
	for _, file := range set.Summary() {
		shown.Files = append(shown.Files, file.File)
	}
	seen := map[string]bool{}
	at := map[string]int{}
	for _, p := range set.Policies() {
		if !seen[p.Domain] {
			seen[p.Domain] = true
			shown.Domains = append(shown.Domains, p.Domain)
		}
		if p.Tenant != "" {
			shown.Endpoints[at[p.Endpoint]].Tenants++
			continue
		}
		at[p.Endpoint] = len(shown.Endpoints)
		shown.Endpoints = append(shown.Endpoints, admin.Endpoint{
			ID: p.Endpoint, Domain: p.Domain, Version: p.Version,
			Identity: p.Identity.String(), FailMode: p.FailMode.String(), Mode: p.Mode.String(),
		})
	}
	for _, d := range set.DropIns() {
		shown.Domains = append(shown.Domains, d.Name())
		shown.DropIns = append(shown.DropIns, admin.DropIn{Domain: d.Name(), Rules: d.Rules()})
	}
	return shown
}
