package telemetry

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// The states of a breaker, as rls.Breaker names them.
const (
	breakerClosed   = "closed"
	breakerOpen     = "open"
	breakerHalfOpen = "half-open"
)

var breakerStates = [...]string{breakerClosed, breakerOpen, breakerHalfOpen}

// WatchBreaker shows the breaker's state, asked anew at each scrape, so that the metric cannot differ from the state.
// Call it once.
func (r *Recorder) WatchBreaker(state func() string) { r.reg.MustRegister(breakerCollector(state)) }

type breakerCollector func() string

var breakerDesc = prometheus.NewDesc("sentinel_breaker_state",
	"1 for the state that the store's circuit breaker is in; in a cluster, for the worst of its servers' states.", []string{"state"}, nil)

func (c breakerCollector) Describe(out chan<- *prometheus.Desc) { out <- breakerDesc }

func (c breakerCollector) Collect(out chan<- prometheus.Metric) {
	now := c()
	for _, state := range breakerStates {
		out <- prometheus.MustNewConstMetric(breakerDesc, prometheus.GaugeValue, oneIf(state == now), state)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// WatchMemoryStore shows how many buckets the memory store keeps, asked anew at each scrape. Call it once.
func (r *Recorder) WatchMemoryStore(buckets func() int) {
	r.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sentinel_memory_store_buckets",
		Help: "Buckets that the memory store keeps.",
	}, func() float64 { return float64(buckets()) }))
}

// WatchLog shows how many log lines were lost. Call it once.
func (r *Recorder) WatchLog(w *Writer) {
	r.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sentinel_log_lines_lost_total",
		Help: "Log lines lost because nobody read the log fast enough.",
	}, func() float64 { return float64(w.Lost()) }))
}

// RegisterProcess adds the standard metrics of the process and the Go runtime (go_*, process_*) and sentinel_build_info.
func RegisterProcess(reg prometheus.Registerer, b Build) {
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "sentinel_build_info",
			Help:        "1, with the version of the running binary.",
			ConstLabels: prometheus.Labels{"version": label(b.Version), "revision": label(b.Revision), "go_version": label(b.Go)},
		}, func() float64 { return 1 }),
	)
}

// Build describes the running binary.
type Build struct {
	Version  string // of the module; "devel" for a build from a checkout
	Revision string // of the checkout, with +dirty when it was changed; "unknown" when the build did not record it
	Go       string
}

// ReadBuild returns what the linker recorded. A version that is not empty, set with -ldflags, wins.
func ReadBuild(version string) Build {
	b := Build{Version: "devel", Revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if ok {
		b.Go = info.GoVersion
		if v := info.Main.Version; v != "" && v != "(devel)" {
			b.Version = v
		}
		b.Revision = revision(info.Settings)
	}
	if version != "" {
		b.Version = version
	}
	return b
}

func revision(settings []debug.BuildSetting) string {
	rev, dirty := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && s.Value != "":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return rev + dirty
}
