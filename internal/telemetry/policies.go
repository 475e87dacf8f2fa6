package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What becomes of the policy files when they are looked at again; values of the label outcome.
const (
	reloadLoaded    = "loaded"
	reloadUnchanged = "unchanged"
	reloadRefused   = "refused"
)

// Policies describes the active policy set.
type Policies struct {
	Hash      string // of the files' content
	Loaded    time.Time
	Endpoints []string // ids, as given to Endpoint
}

// PoliciesLoaded shows a new active set, once Engine.Use has stated its emergency bounds. Those of endpoints that are
// gone become 0.
func (r *Recorder) PoliciesLoaded(p Policies) {
	kept := make(map[string]bool, len(p.Endpoints))
	for _, id := range p.Endpoints {
		kept[id] = true
	}
	r.endpoints.Range(func(id, e any) bool {
		if !kept[id.(string)] {
			e.(*endpoint).EmergencyBound(0, 0)
		}
		return true
	})
	r.policies.active.Store(&p)
}

// PoliciesReloaded counts a set that replaced another one, which PoliciesLoaded shows.
func (r *Recorder) PoliciesReloaded() { r.policies.reloaded(reloadLoaded, false) }

// PoliciesUnchanged counts files that were applied and hold what is active.
func (r *Recorder) PoliciesUnchanged() { r.policies.reloaded(reloadUnchanged, false) }

// PoliciesRefused counts files that cannot be used, so that the active set stays and is stale from here on.
func (r *Recorder) PoliciesRefused() { r.policies.reloaded(reloadRefused, true) }

type policiesCollector struct {
	active  atomic.Pointer[Policies]
	stale   atomic.Bool
	reloads closedCounter[string]
}

func (c *policiesCollector) register(reg prometheus.Registerer) {
	c.reloads = closed(reg, "sentinel_policies_reloads_total",
		"Times that changed policy files were applied while running.", "outcome", reloadLoaded, reloadUnchanged, reloadRefused)
	reg.MustRegister(c)
}

func (c *policiesCollector) reloaded(outcome string, stale bool) {
	c.reloads.add(outcome, 1)
	c.stale.Store(stale)
}

var (
	policiesInfoDesc = prometheus.NewDesc("sentinel_policies_info",
		"1, with the hash of the active policy files; replicas with different hashes decide differently.", []string{"hash"}, nil)
	policiesLoadedDesc = prometheus.NewDesc("sentinel_policies_loaded_timestamp_seconds",
		"When the active policies were loaded.", nil, nil)
	policiesEndpointsDesc = prometheus.NewDesc("sentinel_policies_endpoints",
		"Endpoints of the active policies; a domain of envoyproxy/ratelimit counts as one.", nil, nil)
	policiesStaleDesc = prometheus.NewDesc("sentinel_policies_stale",
		"1 while the policy files cannot be used and the last good set is served instead.", nil, nil)
)

func (c *policiesCollector) Describe(out chan<- *prometheus.Desc) {
	out <- policiesInfoDesc
	out <- policiesLoadedDesc
	out <- policiesEndpointsDesc
	out <- policiesStaleDesc
}

func (c *policiesCollector) Collect(out chan<- prometheus.Metric) {
	p := c.active.Load()
	if p == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(policiesInfoDesc, prometheus.GaugeValue, 1, label(p.Hash))
	out <- prometheus.MustNewConstMetric(policiesLoadedDesc, prometheus.GaugeValue, float64(p.Loaded.UnixMilli())/1000)
	out <- prometheus.MustNewConstMetric(policiesEndpointsDesc, prometheus.GaugeValue, float64(len(p.Endpoints)))
	out <- prometheus.MustNewConstMetric(policiesStaleDesc, prometheus.GaugeValue, oneIf(c.stale.Load()))
}
