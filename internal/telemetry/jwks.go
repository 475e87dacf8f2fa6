package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// KeySource is an issuer's published keys, as metrics show them. Safe for concurrent use.
type KeySource interface {
	Name() string // of the URL or file; from configuration
	// Age returns how long ago the keys were last read; false: never.
	Age(now time.Time) (time.Duration, bool)
	Count() int // of keys in use
}

// JWKS records the reads of one issuer's published keys. Safe for concurrent use.
type JWKS struct{ ok, failed prometheus.Counter }

// Fetched counts one read of the keys.
func (j *JWKS) Fetched(_ time.Duration, ok bool) {
	if ok {
		j.ok.Inc()
	} else {
		j.failed.Inc()
	}
}

// JWKS returns the recorder of one issuer's published keys; name is the URL or file.
func (r *Recorder) JWKS(name string) *JWKS {
	return &JWKS{
		ok: r.metrics.jwksFetches.WithLabelValues(label(name), "ok"), failed: r.metrics.jwksFetches.WithLabelValues(label(name), "failed"),
	}
}

// WatchJWKS shows age and number of the keys of every source, asked anew at each scrape. Keys that were never read have
// the age of the process. Call it once.
func (r *Recorder) WatchJWKS(sources ...KeySource) {
	r.reg.MustRegister(jwksCollector{sources, time.Now()})
}

type jwksCollector struct {
	sources []KeySource
	start   time.Time
}

var (
	jwksAgeDesc = prometheus.NewDesc("sentinel_jwks_age_seconds",
		"Time since the keys of an issuer were last read, or since the process started if they never were.", []string{"source"}, nil)
	jwksKeysDesc = prometheus.NewDesc("sentinel_jwks_keys", "Usable keys that an issuer published.", []string{"source"}, nil)
)

func (c jwksCollector) Describe(out chan<- *prometheus.Desc) {
	out <- jwksAgeDesc
	out <- jwksKeysDesc
}

func (c jwksCollector) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	for _, s := range c.sources {
		age, ever := s.Age(now)
		if !ever {
			age = now.Sub(c.start)
		}
		out <- prometheus.MustNewConstMetric(jwksAgeDesc, prometheus.GaugeValue, age.Seconds(), label(s.Name()))
		out <- prometheus.MustNewConstMetric(jwksKeysDesc, prometheus.GaugeValue, float64(s.Count()), label(s.Name()))
	}
}
