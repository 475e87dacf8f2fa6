package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/compat"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
	tiers "github.com/sentinel-rls/sentinel-rls/internal/run"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/xds"
)

// compatServe is `sentinel-rls compat serve`, and `sentinel-rls compat` alone.
type compatServe struct{}

// Run serves until the context is done.
func (compatServe) Run(env *environment) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	s, notices, err := compat.FromEnvironment(env.variables)
	if err != nil {
		return invalidError{err}
	}
	p, err := assembleCompat(s, env)
	if err != nil {
		return err
	}
	for _, n := range notices {
		p.log.Warn("no effect", "variable", n.Name, "reason", n.Why)
	}
	return p.run(env.ctx, hangups)
}

// ratelimitHealth is the name under which that service answers gRPC health.
const ratelimitHealth = "ratelimit"

// compatProgram is the assembled process.
type compatProgram struct {
	s          compat.Settings
	cfg        config.Config
	log        *slog.Logger
	logWriter  *telemetry.Writer
	store      compatStore
	stats      *compat.Stats
	statsd     *compat.Statsd // nil: none
	live       *livePolicies
	source     *xds.Source // nil: files
	health     *admin.Health
	grpc       *envoy.Server
	http       http.Handler
	debug      http.Handler
	prometheus http.Handler // nil: none
}

// compatConfig is the configuration that the environment of that service comes down to. What it has no name for keeps
// ours: SENTINEL_REDIS_BUDGET and its kin.
func compatConfig(s compat.Settings, env []string) (config.Config, []config.Warning, error) {
	cfg, warnings, err := config.Load("", env)
	if err != nil {
		return cfg, nil, invalidError{err}
	}
	cfg.Log.Level, cfg.Log.Format = s.LogLevel, s.LogFormat
	cfg.Redis.KeyPrefix = s.KeyPrefix
	cfg.GRPC.Keepalive.MaxConnectionAge, cfg.GRPC.Keepalive.MaxConnectionAgeGrace = s.MaxConnectionAge, s.MaxConnectionAgeGrace
	return cfg, warnings, nil
}

// assembleCompat puts the parts together and starts none of them.
func assembleCompat(s compat.Settings, env *environment) (*compatProgram, error) {
	cfg, warnings, err := compatConfig(s, env.variables)
	if err != nil {
		return nil, err
	}
	p := &compatProgram{s: s, cfg: cfg, logWriter: telemetry.NewWriter(env.stderr, logQueueLines)}
	if p.log, err = newLogger(cfg.Log, p.logWriter); err != nil {
		return nil, err
	}
	for _, w := range warnings {
		p.log.Warn("odd environment", "variable", w.Name, "problem", w.Text)
	}
	registry := prometheus.NewRegistry()
	telemetry.RegisterProcess(registry, telemetry.ReadBuild(version))
	recorder := telemetry.New(telemetry.Config{Registerer: registry, Log: p.log})
	recorder.WatchLog(p.logWriter)
	p.stats = compat.NewStats(s.Stats.Tags, s.Stats.Milliseconds)

	if p.store, err = newCompatStore(s, cfg, p.stats, recorder, p.log); err != nil {
		return nil, err
	}
	identities, err := identity.New(identityConfig(cfg, nil, nil))
	if err != nil {
		return nil, err
	}
	ec := engineConfig(cfg, p.store.store, identities, recorder)
	ec.DenyCache = nil // that service's own cache is LOCAL_CACHE_SIZE_IN_BYTES
	ec.DropIn = compatDropIn(s, p.store.fallback, p.stats)
	engine, err := rls.New(ec)
	if err != nil {
		return nil, invalidError{err}
	}
	p.live = &livePolicies{
		cfg: cfg, engine: engine, recorder: recorder, log: p.log, mayBeEmpty: s.ConfigType == compat.FromXDS,
		dropIn:  descriptors.DropInOptions{Only: true, MergeDomains: s.MergeDomains},
		outcome: p.loaded, active: new(descriptors.Set),
	}
	p.live.shown.Store(describe(p.live.active, time.Now()))
	p.health = admin.NewHealth(p.degraded)

	sc := serverConfig(cfg, engine, recorder, p.log)
	sc.Engine = &countingEngine{engine, p.stats, &p.live.set}
	if s.ServerTLS.On {
		if sc.TLS, err = s.ServerTLS.Server(); err != nil {
			return nil, invalidError{fmt.Errorf("GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY, GRPC_CLIENT_TLS_CACERT: %w (%s)", err, mendTLS)}
		}
	}
	if p.grpc, err = envoy.NewServer(sc); err != nil {
		return nil, err
	}
	if err := p.assembleSources(registry, recorder); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func compatDropIn(s compat.Settings, fallback rls.Store, stats *compat.Stats) rls.DropInConfig {
	c := rls.DropInConfig{
		Compat: true, Fallback: fallback, Recorder: stats, DynamicMetadata: s.DynamicMetadata, Shadow: s.Shadow, Quota: s.Quota,
		StopWhenOver: s.StopWhenOver, LocalCacheBytes: s.LocalCacheBytes, NearRatio: float32(s.NearRatio),
	}
	if s.Headers.On {
		c.Headers = &rls.LimitHeaders{Limit: s.Headers.Limit, Remaining: s.Headers.Remaining, Reset: s.Headers.Reset}
	}
	return c
}

// assembleSources adds where limits come from and where statistics go to.
func (p *compatProgram) assembleSources(registry *prometheus.Registry, recorder *telemetry.Recorder) (err error) {
	s := p.s
	if s.ConfigType == compat.FromXDS {
		if p.source, err = newXDSSource(s, p.live, p.log); err != nil {
			return invalidError{err}
		}
	}
	if (s.Stats.Statsd || s.Stats.Dog) && !s.Stats.Disabled {
		if p.statsd, err = compat.NewStatsd(p.stats, s, p.log); err != nil {
			return invalidError{err}
		}
	}
	var mapper *compat.Mapper
	if s.Stats.MapperFile != "" {
		if mapper, err = compat.ReadMapper(s.Stats.MapperFile); err != nil {
			return invalidError{fmt.Errorf("PROMETHEUS_MAPPER_YAML: %w (name a file in the format of prometheus/statsd_exporter, or unset it)", err)}
		}
	}
	theirs := prometheus.NewRegistry()
	theirs.MustRegister(p.stats.Collector(mapper))
	all := prometheus.Gatherers{theirs, registry}
	operators := admin.New(admin.Config{
		Gatherer: all, Health: p.health, Policies: p.live.shown.Load, Denied: recorder.TopDenied,
		Token: p.cfg.Admin.Token.Reveal(), Log: p.log,
	})
	if s.Stats.Prometheus && !s.Stats.Disabled {
		mux := http.NewServeMux()
		mux.Handle("GET "+s.Stats.PrometheusPath, promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
		p.prometheus = mux
	}
	p.http = compat.Handler(p.grpc, p.healthy)
	p.debug = compat.DebugHandler(p.live.set.Load, p.stats, p.others(operators.Handler()), p.xdsRoute()...)
	return nil
}

func newXDSSource(s compat.Settings, live *livePolicies, log *slog.Logger) (*xds.Source, error) {
	cfg := xds.Config{
		Server: s.XDS.Server, NodeID: s.XDS.NodeID, NodeMetadata: s.XDS.NodeMetadata, Headers: s.XDS.Headers,
		MaxMessageBytes: s.XDS.MaxMessageBytes, Retry: s.XDS.Retry, BackoffInitial: s.XDS.BackoffInitial, BackoffMax: s.XDS.BackoffMax,
		Apply: func(files []descriptors.File) error { return live.load(files, nil) }, Log: log,
	}
	if s.XDS.Jitter {
		cfg.Random = s.XDS.RandomFactor
	}
	if s.XDS.TLS.On {
		host, _, err := net.SplitHostPort(s.XDS.Server)
		if err != nil {
			return nil, err
		}
		if cfg.TLS, err = s.XDS.TLS.Client(host); err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_CLIENT_TLS_CERT, CONFIG_GRPC_XDS_CLIENT_TLS_KEY, CONFIG_GRPC_XDS_SERVER_TLS_CACERT: %w (%s)", err, mendTLS)
		}
	}
	return xds.New(cfg)
}

func (p *compatProgram) xdsRoute() []string {
	if p.source == nil {
		return nil
	}
	return []string{"/xds: what the control plane sent"}
}

// others adds /xds to the operators' routes.
func (p *compatProgram) others(operators http.Handler) http.Handler {
	if p.source == nil {
		return operators
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /xds", func(w http.ResponseWriter, _ *http.Request) { admin.WriteJSON(w, http.StatusOK, p.source.Status()) })
	mux.Handle("/", operators)
	return mux
}

// loaded counts what became of a set of files.
func (p *compatProgram) loaded(err error) {
	if err != nil {
		p.stats.ConfigFailed()
		return
	}
	p.stats.ConfigLoaded()
	p.health.Loaded()
}

// degraded returns the codes of what is wrong although answers are given.
func (p *compatProgram) degraded() []string { return append(p.store.degraded(), p.live.degraded()...) }

// healthy is the answer of /healthcheck: as that service, also before there are limits, unless asked otherwise.
func (p *compatProgram) healthy() bool {
	status, ready := p.health.Status()
	switch {
	case status.Status == "stopping":
		return false
	case p.s.HealthyWithConfig && !ready:
		return false
	}
	return !p.store.unhealthy()
}

// run listens, starts every part and returns when all have stopped.
func (p *compatProgram) run(ctx context.Context, hangups <-chan os.Signal) error {
	defer p.close()
	if err := p.store.check(ctx); err != nil {
		return err
	}
	ports, err := p.listen(ctx)
	if err != nil {
		return err
	}
	var files []descriptors.File
	var readErr error
	if p.source == nil {
		files, readErr = policyfile.Steady(p.s.Runtime.Read)
		p.live.apply(files, readErr)
	}
	p.tellStart(ports)

	drain := p.cfg.Shutdown.DrainDelay + p.cfg.Shutdown.Grace
	workers := slices.Concat(p.store.parts, []tiers.Part{{Name: "health", Run: p.followHealth}})
	if p.source != nil {
		workers = append(workers, tiers.Part{Name: "xds", Run: p.source.Run})
	} else {
		w := policyfile.Watcher{Read: p.s.Runtime.Read, Now: hangups, Applied: files, AppliedErr: readErr, Apply: p.live.apply}
		workers = append(workers, tiers.Part{Name: "limits", Run: w.Run})
	}
	sinks := []tiers.Part{{Name: "log", Run: p.logWriter.Run}}
	if p.statsd != nil {
		sinks = append(sinks, tiers.Part{Name: "statsd", Run: p.statsd.Run})
	}
	operators := []tiers.Part{p.serveHTTP("debug", ports.debug, p.debug)}
	if p.prometheus != nil {
		operators = append(operators, p.serveHTTP("prometheus", ports.prometheus, p.prometheus))
	}
	return tiers.Tiers(ctx, p.log,
		tiers.Tier{Name: "listeners", Bound: drain + stopMargin, Parts: []tiers.Part{
			{Name: "grpc", Run: func(ctx context.Context) error { return p.serveGRPC(ctx, ports.grpc) }},
			{Name: "http", Run: func(ctx context.Context) error { return p.answerHTTP(ctx, ports.http) }},
		}},
		tiers.Tier{Name: "workers", Bound: workersBound, Parts: workers},
		tiers.Tier{Name: "sinks", Bound: sinksBound + 4*time.Second, Parts: sinks},
		tiers.Tier{Name: "operators", Bound: adminBound, Parts: operators},
	)
}

func (p *compatProgram) serveHTTP(name string, l net.Listener, handler http.Handler) tiers.Part {
	return tiers.Part{Name: name, Run: func(ctx context.Context) error { return admin.Serve(ctx, l, handler, admin.MaxConnections, p.log) }}
}

// answerHTTP answers /json as long as gRPC is answered.
func (p *compatProgram) answerHTTP(ctx context.Context, l net.Listener) error {
	drained, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		p.health.Stopping()
		time.AfterFunc(p.cfg.Shutdown.DrainDelay, stop)
	})()
	err := admin.Serve(drained, l, p.http, maxConnections, p.log)
	if ctx.Err() == nil && err == nil {
		return tiers.ErrEnded
	}
	return err
}

// compatPorts are the process's listeners.
type compatPorts struct{ http, grpc, debug, prometheus net.Listener }

func (p *compatProgram) listen(ctx context.Context) (ports compatPorts, err error) {
	var opened []net.Listener
	shared := &net.ListenConfig{Control: compat.SharePort}
	own := new(net.ListenConfig)
	bind := func(how *net.ListenConfig, network, address, variable string) net.Listener {
		if err != nil {
			return nil
		}
		l, lerr := how.Listen(ctx, network, address)
		if lerr != nil {
			err = fmt.Errorf("%s %s: %w (set another with %s)", network, address, bareListenError(lerr), variable)
			return nil
		}
		opened = append(opened, l)
		return l
	}
	if p.s.GRPCSocket != "" {
		if err = removeSocket(ctx, p.s.GRPCSocket); err != nil {
			return ports, err
		}
		ports.grpc = bind(own, "unix", p.s.GRPCSocket, "GRPC_UDS")
	} else {
		ports.grpc = bind(shared, "tcp", p.s.GRPC.String(), "GRPC_HOST, GRPC_PORT")
	}
	ports.http = bind(shared, "tcp", p.s.HTTP.String(), "HOST, PORT")
	ports.debug = bind(shared, "tcp", p.s.Debug.String(), "DEBUG_HOST, DEBUG_PORT")
	if p.prometheus != nil {
		ports.prometheus = bind(own, "tcp", p.s.Stats.PrometheusAddr, "PROMETHEUS_ADDR")
	}
	for _, l := range opened {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return ports, err
}

// mendTLS says how to mend certificates that cannot be used.
const mendTLS = "name files in PEM that this process may read; the key is the certificate's own"

// removeSocket removes the socket of a process that is gone. One that someone listens on is left alone.
func removeSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("GRPC_UDS: %w (name a path in a directory that this process may write)", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("GRPC_UDS: %s is there and no socket (remove it, or name another path)", path)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("GRPC_UDS: another process listens on %s (end it, or name another path)", path)
	}
	return os.Remove(path)
}

func (p *compatProgram) tellStart(ports compatPorts) {
	build := telemetry.ReadBuild(version)
	attrs := []any{
		"version", build.Version, "grpc", ports.grpc.Addr().String(), "http", ports.http.Addr().String(),
		"admin", ports.debug.Addr().String(), "store", p.store.name, "policies", p.live.active.Hash(),
	}
	if ports.prometheus != nil {
		attrs = append(attrs, "prometheus", ports.prometheus.Addr().String())
	}
	p.log.Info("serving", attrs...)
}

// serveGRPC answers Envoy, once there are limits where they come from a control plane, until ctx is done.
func (p *compatProgram) serveGRPC(ctx context.Context, l net.Listener) error {
	if p.source != nil && !p.s.StartWithoutConfig {
		select {
		case <-ctx.Done():
			return l.Close()
		case <-p.source.Loaded():
		}
	}
	p.grpc.SetServing(true)
	served := make(chan error, 1)
	go func() { served <- p.grpc.Serve(netutil.LimitListener(l, maxConnections)) }()
	return drainGRPC(ctx, p.grpc, served, p.cfg.Shutdown, p.stopping, p.log)
}

func (p *compatProgram) stopping() {
	p.health.Stopping()
	p.grpc.SetServing(false)
	p.grpc.SetHealth(ratelimitHealth, false)
}

// healthEvery is how often gRPC health is brought in step with /healthcheck.
const healthEvery = 500 * time.Millisecond

// followHealth keeps the name of gRPC health that users of that service ask for in step with /healthcheck.
func (p *compatProgram) followHealth(ctx context.Context) error {
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		p.grpc.SetHealth(ratelimitHealth, p.healthy())
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// close cuts off what is left of the gRPC server, whose goroutines wait for calls even when it never served.
func (p *compatProgram) close() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.grpc.Shutdown(now) // the error says that it was cut off
}

// countingEngine is an engine that counts what that service's own server counts.
type countingEngine struct {
	envoy.Engine
	stats *compat.Stats
	set   interface{ Load() *descriptors.Set }
}

// Decide implements envoy.Engine.
func (e *countingEngine) Decide(ctx context.Context, r rls.Request) (rls.Result, error) {
	start := time.Now()
	result, err := e.Engine.Decide(ctx, r)
	e.stats.Answered(time.Since(start))
	if set := e.set.Load(); set != nil && err == nil {
		if _, known := set.DropIn(r.Domain); !known {
			e.stats.UnknownDomain(r.Domain, len(r.Descriptors))
		}
	}
	return result, err
}

// tlsFor returns the files of the per-second server's TLS: its own, or those of the other.
func tlsFor(s compat.Settings, r compat.Redis) compat.TLS {
	t := r.TLS
	t.Cert, t.Key = cmp.Or(t.Cert, s.Redis.TLS.Cert), cmp.Or(t.Key, s.Redis.TLS.Key)
	t.CA, t.AnyHost = cmp.Or(t.CA, s.Redis.TLS.CA), t.AnyHost || s.Redis.TLS.AnyHost
	return t
}
