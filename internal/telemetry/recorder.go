// Package telemetry turns what happens in the process into metrics and log records.
//
// Metrics are Prometheus metrics with the names of docs/metrics.md, registered on an injected registry. Label values come
// from configuration or from closed sets, never from a request. The series of an endpoint are resolved when policies load,
// and those of its latency once each, so that the request path only adds numbers.
package telemetry

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// Config is what a Recorder is made of.
type Config struct {
	Registerer prometheus.Registerer // required; a second Recorder on the same one panics
	Log        *slog.Logger          // required; it must not make callers wait, see Writer

	// DenialsPerSecond is how many denials of one endpoint and reason are logged within a second; the others are counted
	// and their number stands in the next record as `suppressed`. 10 when 0.
	DenialsPerSecond int
}

// Recorder implements rls.Recorder and envoy.Recorder, and takes the observations of the stores and the breaker. Safe for
// concurrent use.
type Recorder struct {
	metrics   metrics
	reg       prometheus.Registerer
	log       *slog.Logger
	denials   denialLog
	endpoints sync.Map // endpoint id → *endpoint; grows when policies load only
	stray     endpointSamplers
	refusals  sync.Map // check → *sampler: a flood of one kind of bad credential does not hide another
	policies  policiesCollector
	top       topDenied
	outages   outages
}

var (
	_ rls.Recorder         = (*Recorder)(nil)
	_ rls.EndpointRecorder = (*endpoint)(nil)
)

// New registers every metric that needs no source. The series of closed label sets exist from here on with value 0.
func New(cfg Config) *Recorder {
	r := &Recorder{metrics: newMetrics(cfg.Registerer), reg: cfg.Registerer, log: cfg.Log, outages: outages{told: make(map[string]bool)}}
	r.denials = newDenialLog(cfg, r.metrics.denialsSuppressed)
	r.policies.register(cfg.Registerer)
	return r
}

// Endpoint returns the recorder of one endpoint id, the same one for the same id: reloading policies keeps its series.
func (r *Recorder) Endpoint(endpointID string) rls.EndpointRecorder {
	if known, ok := r.endpoints.Load(endpointID); ok {
		return known.(*endpoint)
	}
	e, _ := r.endpoints.LoadOrStore(endpointID, newEndpoint(&r.metrics, label(endpointID)))
	return e.(*endpoint)
}

// StoreFailure counts one request whose store call failed.
func (r *Recorder) StoreFailure(class rls.Class) { r.metrics.storeFailures.add(class, 1) }

// UnknownEndpoint counts a request without a known endpoint.
func (r *Recorder) UnknownEndpoint(service rls.Service) { r.metrics.unknownEndpoint.add(service, 1) }

// UnknownDomain counts a request for a domain that no policy names.
func (r *Recorder) UnknownDomain(service rls.Service) { r.metrics.unknownDomain.add(service, 1) }

// Unauthenticated counts a refused or missing credential, and logs which check refused it, sampled. That nothing was
// presented is no event of its own: it is logged for debugging only.
func (r *Recorder) Unauthenticated(refused rls.Refused) {
	r.metrics.unauthenticated.add(refused.Service, 1)
	level := slog.LevelInfo
	if refused.Missing {
		level = slog.LevelDebug
	}
	s, ok := r.refusals.Load(refused.Check)
	if !ok {
		s, _ = r.refusals.LoadOrStore(refused.Check, new(sampler)) // checks are a closed set
	}
	r.denials.write(s.(*sampler), level, "credential refused", refused)
}

// Ignored counts n parts of a request that a native domain does not honour.
func (r *Recorder) Ignored(what rls.Ignored, n int) { r.metrics.ignored.add(what, n) }

// RequestRefused counts a request beyond one of the caps.
func (r *Recorder) RequestRefused(bound rls.Bound) { r.metrics.requestsRefused.add(bound, 1) }

// Healed counts unreadable stored values that were overwritten.
func (r *Recorder) Healed(n int) { r.metrics.healed.Add(float64(max(n, 0))) }

// ClockBehind counts an answer of a store whose clock stands before a stored time.
func (r *Recorder) ClockBehind() { r.metrics.clockBehind.Inc() }

// DenyCacheHit counts a denial answered from memory.
func (r *Recorder) DenyCacheHit() { r.metrics.denyCacheHits.Inc() }

// Denied logs the denial, or counts it as suppressed, and remembers who was denied where.
func (r *Recorder) Denied(d rls.Denial) {
	r.top.add(d)
	samplers := &r.stray
	if e, ok := r.endpoints.Load(d.EndpointID); ok {
		samplers = &e.(*endpoint).samplers
	}
	r.denials.write(samplers.of(d.Reason), slog.LevelWarn, "denied", d)
}

// Late counts an answer that left after its deadline.
func (r *Recorder) Late(service rls.Service) { r.metrics.late.add(service, 1) }

// Canceled counts a call whose caller went away before its deadline.
func (r *Recorder) Canceled(service rls.Service) { r.metrics.canceled.add(service, 1) }

// Repaired counts a message with invalid UTF-8 that was repaired before it was read.
func (r *Recorder) Repaired(service rls.Service) { r.metrics.repaired.add(service, 1) }

// Panicked counts a handler that panicked.
func (r *Recorder) Panicked(rls.Service) { r.metrics.faults.add(faultPanic, 1) }

// Faulty counts an answer that Envoy would have misread.
func (r *Recorder) Faulty(rls.Service) { r.metrics.faults.add(faultResponse, 1) }

// fault names an error of sentinel itself; it is a label value.
type fault string

const (
	faultPanic    fault = "panic"    // a handler panicked
	faultResponse fault = "response" // an answer was missing, empty or contradicted itself
	faultReason   fault = "reason"   // a decision came with a reason that is none of the contract's
)

// RoundTrip records one round trip to the store: how many groups it carried, how long it took, whether it succeeded.
func (r *Recorder) RoundTrip(groups int, took time.Duration, ok bool) {
	r.metrics.batchSize.Observe(float64(groups))
	if ok {
		r.metrics.roundTripOK.Observe(took.Seconds())
	} else {
		r.metrics.roundTripFailed.Observe(took.Seconds())
	}
}

// ScriptLoaded counts a script sent to the store because it was not there.
func (r *Recorder) ScriptLoaded() { r.metrics.scriptLoads.Inc() }

// QueueFull counts a call that found the queue to the store full.
func (r *Recorder) QueueFull() { r.metrics.queueFull.Inc() }

// Connections shows the number of open connections to the store.
func (r *Recorder) Connections(open int) { r.metrics.connections.Set(float64(open)) }

// Undone counts groups over several slots of a cluster that were given up halfway.
func (r *Recorder) Undone(ok bool) {
	if ok {
		r.metrics.undone.add("given_back", 1)
	} else {
		r.metrics.undone.add("left_spent", 1)
	}
}

// StateLost counts and logs that the memory of a server of the store is not what it was.
func (r *Recorder) StateLost(how string) {
	r.metrics.stateLost.add(how, 1)
	r.log.LogAttrs(context.Background(), slog.LevelWarn, "the store's memory is not what it was: limits admit again what was spent",
		slog.String("how", how))
}

// ServerChanged counts and logs that a server of the store is another one than before.
func (r *Recorder) ServerChanged(server, what string) {
	r.metrics.serverChanged.add(what, 1)
	r.log.LogAttrs(context.Background(), slog.LevelInfo, "a server of the store is another one than before",
		slog.String("server", server), slog.String("what", what))
}

// Processes shows how many processes share the store.
func (r *Recorder) Processes(n int) { r.metrics.processes.Set(float64(n)) }

// StoreUnfit shows whether the store's configuration is unfit, so that nothing is sent to it.
func (r *Recorder) StoreUnfit(unfit bool) { r.metrics.storeUnfit.Set(oneIf(unfit)) }

// MemoryOverflowed counts takes of the memory store that shared an overflow bucket.
func (r *Recorder) MemoryOverflowed(takes int) { r.metrics.memoryOverflow.Add(float64(max(takes, 0))) }

// StoreFailing logs that a server of the store begins to fail, and why, and that it answers again where cause is nil. Of
// one that comes and goes, or of many, one failure a second is logged, with the number of those that were left out; a
// recovery is logged exactly if the failure was. cause must be fit for a log.
func (r *Recorder) StoreFailing(server string, cause error) {
	r.outages.mu.Lock()
	defer r.outages.mu.Unlock()
	ctx := context.Background()
	if cause == nil {
		if r.outages.told[server] {
			delete(r.outages.told, server)
			r.log.LogAttrs(ctx, slog.LevelInfo, "a server of the store answers again", slog.String("server", server))
		}
		return
	}
	before, ok := r.outages.sampler.admit(time.Now(), 1)
	if !ok {
		return
	}
	r.outages.told[server] = true
	attrs := append([]slog.Attr{slog.String("server", server)}, why(cause)...)
	if before > 0 {
		attrs = append(attrs, slog.Int64("suppressed", before))
	}
	r.log.LogAttrs(ctx, slog.LevelWarn, "a server of the store fails", attrs...)
}

// outages are the failures of servers that were logged.
type outages struct {
	mu      sync.Mutex // guards everything below
	sampler sampler
	told    map[string]bool // by server
}

// why returns the attributes that say why the store failed.
func why(cause error) []slog.Attr {
	return []slog.Attr{slog.String("class", string(rls.ClassOf(cause))), slog.String("error", cause.Error())}
}

// BreakerChanged counts and logs a transition of the breaker for one server of the store. cause is why the last thing that
// was sent to it failed, fit for a log; nil: it did not.
func (r *Recorder) BreakerChanged(server, from, to string, cause error) {
	r.metrics.transitions.add(to, 1)
	level := slog.LevelInfo
	if to == breakerOpen {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("server", server), slog.String("from", from), slog.String("to", to)}
	if to == breakerOpen && cause != nil {
		attrs = append(attrs, why(cause)...)
	}
	r.log.LogAttrs(context.Background(), level, "breaker changed", attrs...)
}

// label makes a configured text a legal label value: Prometheus panics on invalid UTF-8.
func label(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// endpoint records one endpoint's decisions on series that were resolved when it was made. Only its latencies begin with
// their first decision: most endpoints never see most reasons, and a histogram is seventeen lines of each scrape.
type endpoint struct {
	id         string
	decisions  [len(reasons)]prometheus.Counter
	latencies  *prometheus.HistogramVec
	latency    [len(reasons)]atomic.Pointer[prometheus.Observer] // nil: no decision yet
	admissions prometheus.Counter
	spent      prometheus.Counter
	shadow     prometheus.Counter
	cost       prometheus.Counter
	capacity   prometheus.Gauge
	refill     prometheus.Gauge
	faults     *closedCounter[fault]
	samplers   endpointSamplers
}

func newEndpoint(m *metrics, id string) *endpoint {
	e := &endpoint{
		id:         id,
		latencies:  m.latency,
		admissions: m.emergencyAdmissions.WithLabelValues(id),
		spent:      m.emergencySpent.WithLabelValues(id),
		shadow:     m.shadowDenials.WithLabelValues(id),
		cost:       m.costRefused.WithLabelValues(id),
		capacity:   m.emergencyCapacity.WithLabelValues(id),
		refill:     m.emergencyRefill.WithLabelValues(id),
		faults:     &m.faults,
	}
	for i, reason := range reasons {
		e.decisions[i] = m.decisions.WithLabelValues(id, string(reason))
	}
	return e
}

// Decision counts one decision and its latency.
func (e *endpoint) Decision(reason rls.Reason, latency time.Duration) {
	i, ok := reasonIndex(reason)
	if !ok {
		e.faults.add(faultReason, 1)
		return
	}
	e.decisions[i].Inc()
	e.latencyOf(i).Observe(float64(latency) / float64(time.Microsecond))
}

func (e *endpoint) latencyOf(i int) prometheus.Observer {
	if known := e.latency[i].Load(); known != nil {
		return *known
	}
	series := e.latencies.WithLabelValues(e.id, string(reasons[i])) // the same one for all who come here at once
	e.latency[i].Store(&series)
	return series
}

// EmergencyAdmission counts an admission by the emergency limiter.
func (e *endpoint) EmergencyAdmission() { e.admissions.Inc() }

// EmergencySpent counts what admissions by the emergency limiter cost.
func (e *endpoint) EmergencySpent(cost int64) { e.spent.Add(float64(max(cost, 0))) }

// ShadowDenial counts what a shadow policy would have denied.
func (e *endpoint) ShadowDenial() { e.shadow.Inc() }

// CostRefused counts a descriptor that asked for more than a limit's max_cost.
func (e *endpoint) CostRefused() { e.cost.Inc() }

// EmergencyBound shows this process's part of an endpoint's emergency caps; zeros for an endpoint without one.
func (e *endpoint) EmergencyBound(capacity, refillPerSecond float64) {
	e.capacity.Set(capacity)
	e.refill.Set(refillPerSecond)
}

// reasons are the values of the label decision_reason.
var reasons = [...]rls.Reason{
	rls.Allowed, rls.RateLimited, rls.EmergencyLocalLimit, rls.CircuitOpen, rls.FailClosed,
}

func reasonIndex(r rls.Reason) (int, bool) {
	for i, known := range reasons {
		if r == known {
			return i, true
		}
	}
	return 0, false
}
