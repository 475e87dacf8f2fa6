package compat

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// maxDomains bounds the unknown domains that have a statistic of their own: a request may name any.
const maxDomains = 100

// maxTimings bounds the response times that are kept between two flushes; beyond it they are a sample.
const maxTimings = 1024

// Stats are the statistics of envoyproxy/ratelimit under that service's names. Safe for concurrent use.
type Stats struct {
	tags map[string]string // on every statistic below ratelimit.

	configLoaded, configFailed Counter
	redisErrors, serviceErrors Counter
	shadowed                   Counter
	requests                   Counter
	cacheHits                  Counter
	pools                      []*Pool
	latency                    prometheus.Histogram
	unit                       time.Duration // of latency

	mu      sync.RWMutex // guards rules and unknown
	rules   map[string]*ruleStats
	unknown map[string]*Counter // by domain
	other   *Counter            // of unknown domains beyond maxDomains

	timing  sync.Mutex // guards timings and timed
	timings []time.Duration
	timed   int
}

// Counter is a number that only grows.
type Counter struct {
	n    atomic.Uint64
	sent uint64 // of it; the flusher's
}

// Add adds n.
func (c *Counter) Add(n uint64) {
	if n > 0 {
		c.n.Add(n)
	}
}

// ruleCounters are the names of a rule's counters, in the order of ruleStats.counters.
var ruleCounters = [...]string{
	"total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit", "shadow_mode",
}

// ruleStats are one rule's counters.
type ruleStats struct {
	name     rls.RuleName
	counters [len(ruleCounters)]Counter
	cached   *Counter // of all rules
}

// Count implements rls.RuleRecorder.
func (r *ruleStats) Count(c rls.RuleCounts) {
	for i, n := range [...]uint64{c.TotalHits, c.OverLimit, c.NearLimit, c.OverLimitWithLocalCache, c.WithinLimit, c.ShadowMode} {
		r.counters[i].Add(n)
	}
	if c.OverLimitWithLocalCache > 0 {
		r.cached.Add(1)
	}
}

// Pool are the counters of the connections to one Redis.
type Pool struct {
	scope         string // redis_pool or redis_per_second_pool
	open          atomic.Int64
	opened, ended Counter
}

// Connections notes how many connections are open now. Calls must not overlap.
func (p *Pool) Connections(open int) {
	before := p.open.Swap(int64(open))
	switch d := int64(open) - before; {
	case d > 0:
		p.opened.Add(uint64(d))
	case d < 0:
		p.ended.Add(uint64(-d))
	}
}

var _ rls.DropInRecorder = (*Stats)(nil)

// NewStats returns statistics without rules. tags stand on each (EXTRA_TAGS); milliseconds is the unit of the response
// time's histogram, which is otherwise seconds.
func NewStats(tags map[string]string, milliseconds bool) *Stats {
	s := &Stats{
		tags: tags, rules: make(map[string]*ruleStats), unknown: make(map[string]*Counter), other: new(Counter), unit: time.Second,
	}
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	if milliseconds {
		s.unit = time.Millisecond
		for i := range buckets {
			buckets[i] *= 1000
		}
	}
	s.latency = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "ratelimit_service_response_time_seconds", Help: "Time from a request's arrival to its answer.",
		Buckets: buckets, ConstLabels: prometheus.Labels{"grpc_method": "ShouldRateLimit"},
	})
	return s
}

// NewPool adds the counters of one Redis. Not to be called once statistics are read.
func (s *Stats) NewPool(perSecond bool) *Pool {
	p := &Pool{scope: "redis_pool"}
	if perSecond {
		p.scope = "redis_per_second_pool"
	}
	s.pools = append(s.pools, p)
	return p
}

// Rule implements rls.DropInRecorder.
func (s *Stats) Rule(name rls.RuleName) rls.RuleRecorder {
	key := name.Domain + "\x00" + strings.Join(name.Levels, "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.rules[key]
	if !ok {
		r = &ruleStats{name: name, cached: &s.cacheHits}
		s.rules[key] = r
	}
	return r
}

// GlobalShadow implements rls.DropInRecorder.
func (s *Stats) GlobalShadow() { s.shadowed.Add(1) }

// RedisError implements rls.DropInRecorder.
func (s *Stats) RedisError() { s.redisErrors.Add(1) }

// ServiceError implements rls.DropInRecorder.
func (s *Stats) ServiceError() { s.serviceErrors.Add(1) }

// ConfigLoaded counts a set of limits that was loaded.
func (s *Stats) ConfigLoaded() { s.configLoaded.Add(1) }

// ConfigFailed counts a set of limits that could not be.
func (s *Stats) ConfigFailed() { s.configFailed.Add(1) }

// Answered counts a request and how long its answer took.
func (s *Stats) Answered(took time.Duration) {
	s.requests.Add(1)
	s.latency.Observe(float64(took) / float64(s.unit))
	s.timing.Lock()
	defer s.timing.Unlock()
	s.timed++
	if len(s.timings) < maxTimings {
		s.timings = append(s.timings, took)
	}
}

// takeTimings returns the times since it was last called, and how many there were.
func (s *Stats) takeTimings() (times []time.Duration, all int) {
	s.timing.Lock()
	defer s.timing.Unlock()
	times, all = s.timings, s.timed
	s.timings, s.timed = nil, 0
	return times, all
}

// UnknownDomain counts the descriptors of a request for a domain that no file names. Domains beyond the first hundred, and
// long ones, share a statistic.
func (s *Stats) UnknownDomain(domain string, descriptors int) {
	const most = 128
	s.mu.RLock()
	c, ok := s.unknown[domain]
	full := len(s.unknown) >= maxDomains
	s.mu.RUnlock()
	if !ok && (full || len(domain) > most) {
		c, ok = s.other, true
	}
	if !ok {
		s.mu.Lock()
		if c, ok = s.unknown[domain]; !ok {
			if c = s.other; len(s.unknown) < maxDomains {
				c = new(Counter)
				s.unknown[strings.Clone(domain)] = c
			}
		}
		s.mu.Unlock()
	}
	c.Add(uint64(descriptors))
}

// sample is one statistic as it is now.
type sample struct {
	name    []string // the parts of its name, each as it was configured or sent
	gauge   bool
	value   int64
	counter *Counter // nil for a gauge

	metric string // Prometheus' name
	labels []label
}

type label struct{ name, value string }

// statsd returns the name on the wire: parts joined by dots, without what has a meaning there.
func (m *sample) statsd() string {
	parts := make([]string, len(m.name))
	for i, p := range m.name {
		parts[i] = wireName(p)
	}
	return strings.Join(parts, ".")
}

// wireName replaces what a statistic's name must not hold.
func wireName(part string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == ':' || r == '|' || r == '\uFFFD' {
			return '_'
		}
		return r
	}, part)
}

// samples returns every statistic but the response time, in a fixed order.
func (s *Stats) samples() (all []sample) {
	service := func(metric string, c *Counter, labels []label, name ...string) {
		all = append(all, sample{
			name: append([]string{"ratelimit", "service"}, name...), value: int64(c.n.Load()), counter: c, metric: metric, labels: labels,
		})
	}
	service("ratelimit_service_config_load_success", &s.configLoaded, nil, "config_load_success")
	service("ratelimit_service_config_load_error", &s.configFailed, nil, "config_load_error")
	const failed = "ratelimit_service_should_rate_limit_error"
	service(failed, &s.redisErrors, []label{{"err_type", "redis_error"}}, "call", "should_rate_limit", "redis_error")
	service(failed, &s.serviceErrors, []label{{"err_type", "service_error"}}, "call", "should_rate_limit", "service_error")
	service("ratelimit_service_global_shadow_mode", &s.shadowed, nil, "global_shadow_mode")
	all = append(all, sample{
		name: []string{"ratelimit_server", "ShouldRateLimit", "total_requests"}, value: int64(s.requests.n.Load()), counter: &s.requests,
		metric: "ratelimit_service_total_requests", labels: []label{{"grpc_method", "ShouldRateLimit"}},
	})
	for _, p := range s.pools {
		scope, metric := []string{"ratelimit", p.scope}, "ratelimit_"+p.scope+"_"
		all = append(all,
			sample{name: append(slices.Clone(scope), "cx_active"), gauge: true, value: p.open.Load(), metric: metric + "cx_active"},
			sample{name: append(slices.Clone(scope), "cx_total"), value: int64(p.opened.n.Load()), counter: &p.opened, metric: metric + "cx_total"},
			sample{name: append(slices.Clone(scope), "cx_local_close"), value: int64(p.ended.n.Load()), counter: &p.ended, metric: metric + "cx_local_close"},
		)
	}
	all = append(all, sample{
		name: []string{"ratelimit", "localcache", "hitCount"}, value: int64(s.cacheHits.n.Load()), counter: &s.cacheHits,
		metric: "ratelimit_localcache_hitCount",
	})
	return s.byRule(all)
}

// byRule adds the statistics of rules and unknown domains.
func (s *Stats) byRule(all []sample) []sample {
	s.mu.RLock()
	rules := slices.Collect(maps.Values(s.rules))
	unknown := maps.Clone(s.unknown)
	s.mu.RUnlock()
	slices.SortFunc(rules, func(a, b *ruleStats) int {
		return cmp.Or(cmp.Compare(a.name.Domain, b.name.Domain), slices.Compare(a.name.Levels, b.name.Levels))
	})
	for _, r := range rules {
		labels := make([]label, 0, 1+len(r.name.Levels))
		labels = append(labels, label{"domain", r.name.Domain})
		for i, l := range r.name.Levels {
			labels = append(labels, label{fmt.Sprintf("key%d", i+1), l})
		}
		name := slices.Concat([]string{"ratelimit", "service", "rate_limit", r.name.Domain}, r.name.Levels)
		for i := range r.counters {
			c := &r.counters[i]
			all = append(all, sample{
				name: append(slices.Clone(name), ruleCounters[i]), value: int64(c.n.Load()), counter: c,
				metric: "ratelimit_service_rate_limit_" + ruleCounters[i], labels: labels,
			})
		}
	}
	if s.other.n.Load() > 0 {
		unknown["(other)"] = s.other
	}
	for _, domain := range slices.Sorted(maps.Keys(unknown)) {
		c := unknown[domain]
		all = append(all, sample{
			name: []string{"ratelimit", "service", "rate_limit", domain, "domain_not_found"}, value: int64(c.n.Load()), counter: c,
			metric: metricName("ratelimit_service_rate_limit_" + domain + "_domain_not_found"),
		})
	}
	return all
}

// taggedName returns the name with the tags that stand on it, as that service's own client writes them.
func (s *Stats) taggedName(m *sample) string {
	name := m.statsd()
	if m.name[0] != "ratelimit" {
		return name
	}
	for _, key := range slices.Sorted(maps.Keys(s.tags)) {
		name += ".__" + wireName(key) + "=" + wireName(strings.ReplaceAll(s.tags[key], ".", "_"))
	}
	return name
}

// Write writes every statistic as a line "name: value", as /stats shows them.
func (s *Stats) Write(w io.Writer) error {
	for _, m := range s.samples() {
		if _, err := fmt.Fprintf(w, "%s: %d\n", s.taggedName(&m), m.value); err != nil {
			return err
		}
	}
	return nil
}
