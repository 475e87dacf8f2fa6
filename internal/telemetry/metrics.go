package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// metrics are the metrics of docs/metrics.md that count events. Those that show a state are collectors of their own.
type metrics struct {
	decisions           *prometheus.CounterVec
	latency             *prometheus.HistogramVec
	emergencyAdmissions *prometheus.CounterVec
	emergencySpent      *prometheus.CounterVec
	emergencyCapacity   *prometheus.GaugeVec
	emergencyRefill     *prometheus.GaugeVec
	shadowDenials       *prometheus.CounterVec
	costRefused         *prometheus.CounterVec

	storeFailures   closedCounter[rls.Class]
	roundTripOK     prometheus.Observer
	roundTripFailed prometheus.Observer
	batchSize       prometheus.Histogram
	scriptLoads     prometheus.Counter
	healed          prometheus.Counter
	clockBehind     prometheus.Counter
	denyCacheHits   prometheus.Counter
	transitions     closedCounter[string]
	queueFull       prometheus.Counter
	undone          closedCounter[string]
	stateLost       closedCounter[string]
	serverChanged   closedCounter[string]
	processes       prometheus.Gauge
	connections     prometheus.Gauge
	storeUnfit      prometheus.Gauge
	memoryOverflow  prometheus.Counter

	unknownEndpoint closedCounter[rls.Service]
	unknownDomain   closedCounter[rls.Service]
	unauthenticated closedCounter[rls.Service]
	jwksFetches     *prometheus.CounterVec
	ignored         closedCounter[rls.Ignored]
	requestsRefused closedCounter[rls.Bound]

	late              closedCounter[rls.Service]
	canceled          closedCounter[rls.Service]
	repaired          closedCounter[rls.Service]
	faults            closedCounter[fault]
	denialsSuppressed prometheus.Counter
}

// latencyBuckets are the contract's 50 µs to 1 s, in µs; 20 ms is Envoy's default deadline for RateLimitService.
var latencyBuckets = []float64{
	50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
}

// roundTripBuckets end at 5 s, the largest store budget that tests use; the default budget is 20 ms.
var roundTripBuckets = []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .5, 1, 5}

func newMetrics(reg prometheus.Registerer) metrics {
	services := []rls.Service{rls.ServiceRateLimit, rls.ServiceAuthz}
	roundTrip := register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sentinel_store_round_trip_seconds",
		Help:    "Time of one round trip to the store, which may carry several requests.",
		Buckets: roundTripBuckets,
	}, []string{"outcome"}))
	return metrics{
		decisions: counterVec(reg, "sentinel_decisions_total",
			"Decisions, one per policy that a request touched.", "endpoint_id", "decision_reason"),
		latency: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sentinel_evaluate_latency_microseconds",
			Help:    "Time from a request's arrival to its decision, in microseconds.",
			Buckets: latencyBuckets,
		}, []string{"endpoint_id", "decision_reason"})),
		emergencyAdmissions: counterVec(reg, "sentinel_emergency_admissions_total",
			"Requests admitted by the emergency limiter while the store could not answer.", "endpoint_id"),
		emergencySpent: counterVec(reg, "sentinel_emergency_spent_total",
			"What requests that the emergency limiter admitted cost, in cost units.", "endpoint_id"),
		emergencyCapacity: gaugeVec(reg, "sentinel_emergency_capacity",
			"Burst that the emergency limiter of this process admits while the store cannot answer, in cost units.", "endpoint_id"),
		emergencyRefill: gaugeVec(reg, "sentinel_emergency_refill_per_second",
			"Rate that the emergency limiter of this process admits while the store cannot answer, in cost units per second.", "endpoint_id"),
		shadowDenials: counterVec(reg, "sentinel_shadow_denials_total",
			"Requests that a policy in shadow mode would have denied.", "endpoint_id"),
		costRefused: counterVec(reg, "sentinel_cost_refused_total",
			"Descriptors refused because they asked for more than a limit's max_cost.", "endpoint_id"),

		storeFailures: closed(reg, "sentinel_store_failures_total",
			"Requests whose store call failed.", "class", rls.ClassTimeout, rls.ClassUnavailable, rls.ClassError),
		roundTripOK:     roundTrip.WithLabelValues("ok"),
		roundTripFailed: roundTrip.WithLabelValues("failed"),
		batchSize: register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sentinel_store_batch_groups",
			Help:    "Groups of limits that one round trip to the store carried.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		})),
		scriptLoads: counter(reg, "sentinel_store_script_loads_total",
			"Times the script was sent to the store because it was not there: a start, a restart of Redis or a failover."),
		healed: counter(reg, "sentinel_store_healed_total",
			"Unreadable stored values that an admitted take overwrote."),
		denyCacheHits: counter(reg, "sentinel_deny_cache_hits_total",
			"Denials answered from memory, without the store."),
		clockBehind: counter(reg, "sentinel_store_clock_behind_total",
			"Answers of a store whose clock stood before a time that it had stored."),
		transitions: closed(reg, "sentinel_breaker_transitions_total",
			"Transitions of the circuit breakers of the store's servers into a state.", "to", breakerStates[:]...),
		queueFull: counter(reg, "sentinel_store_queue_full_total",
			"Calls that found the queue to the store full and were answered as if it were unavailable."),
		undone: closed(reg, "sentinel_store_undone_total",
			"Groups over several slots of a cluster that took from one and could not from another.", "outcome", "given_back", "left_spent"),
		stateLost: closed(reg, "sentinel_store_state_lost_total",
			"Times the memory of a server of the store was found to be not what it had been.", "how", "empty", "older", "clock_back"),
		serverChanged: closed(reg, "sentinel_store_server_changed_total",
			"Times a server of the store was found to be another one than before.", "what", "run_id", "replication_id"),
		processes: gauge(reg, "sentinel_processes",
			"Processes that share the store, as last learnt from it; 0: never."),
		connections: gauge(reg, "sentinel_store_connections", "Open connections to the store."),
		storeUnfit: gauge(reg, "sentinel_store_unfit",
			"1 while the store's configuration is unfit (eviction, rights, version), so that nothing is sent to it."),
		memoryOverflow: counter(reg, "sentinel_memory_store_overflow_total",
			"Takes on a new key that found the memory store full and shared their limit's overflow bucket."),

		unknownEndpoint: closed(reg, "sentinel_unknown_endpoint_total",
			"Requests of a known domain whose endpoint id is missing or not configured.", "service", services...),
		unknownDomain: closed(reg, "sentinel_unknown_domain_total",
			"Requests of a domain that no policy names.", "service", services...),
		unauthenticated: closed(reg, "sentinel_unauthenticated_total",
			"Requests with a missing or refused credential.", "service", services...),
		jwksFetches: counterVec(reg, "sentinel_jwks_fetches_total",
			"Reads of the keys that an issuer publishes.", "source", "outcome"),
		ignored: closed(reg, "sentinel_ignored_total",
			"Parts of a request that a native domain does not honour.", "what",
			rls.IgnoredEntry, rls.IgnoredOverride, rls.IgnoredRefund, rls.IgnoredEmpty),
		requestsRefused: closed(reg, "sentinel_requests_refused_total",
			"Requests beyond a cap on what a caller may send.", "bound",
			rls.BoundDescriptors, rls.BoundEntries, rls.BoundKey, rls.BoundValue, rls.BoundEmpty, rls.BoundTakes),

		late: closed(reg, "sentinel_late_answers_total",
			"Answers that left after the caller's deadline.", "service", services...),
		canceled: closed(reg, "sentinel_canceled_calls_total",
			"Calls whose caller went away before its deadline.", "service", services...),
		repaired: closed(reg, "sentinel_repaired_messages_total",
			"Messages with invalid UTF-8 that were repaired before they were read.", "service", services...),
		faults: closed(reg, "sentinel_internal_faults_total",
			"Errors of sentinel itself; the caller got a gRPC error.", "kind", faultPanic, faultResponse, faultReason),
		denialsSuppressed: counter(reg, "sentinel_denials_suppressed_total",
			"Denials that were counted but not logged, because of their number or a slow log."),
	}
}

// closedCounter is a counter with one label whose values are known when the process starts. Any other value counts as
// `other`, so that no text from elsewhere becomes a label value.
type closedCounter[V ~string] struct {
	vec   *prometheus.CounterVec
	known map[V]prometheus.Counter
}

func closed[V ~string](reg prometheus.Registerer, name, help, label string, values ...V) closedCounter[V] {
	c := closedCounter[V]{vec: counterVec(reg, name, help, label), known: make(map[V]prometheus.Counter, len(values))}
	for _, v := range values {
		c.known[v] = c.vec.WithLabelValues(string(v))
	}
	return c
}

// add adds n; a negative n, which a counter must not see, adds nothing.
func (c closedCounter[V]) add(value V, n int) {
	counter, ok := c.known[value]
	if !ok {
		counter = c.vec.WithLabelValues("other")
	}
	counter.Add(float64(max(n, 0)))
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	reg.MustRegister(c)
	return c
}

func counter(reg prometheus.Registerer, name, help string) prometheus.Counter {
	return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func counterVec(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func gauge(reg prometheus.Registerer, name, help string) prometheus.Gauge {
	return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

func gaugeVec(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}
