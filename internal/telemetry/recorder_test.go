package telemetry_test

import (
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func newRecorder(t *testing.T) (*telemetry.Recorder, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	return telemetry.New(telemetry.Config{Registerer: reg, Log: slog.New(slog.DiscardHandler)}), reg
}

// wantMetrics compares the named metrics with their exposition, given without HELP and TYPE lines.
func wantMetrics(t *testing.T, reg prometheus.Gatherer, want string, names ...string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var header strings.Builder
	for _, f := range families {
		for _, name := range names {
			if f.GetName() == name {
				header.WriteString("# HELP " + name + " " + f.GetHelp() + "\n# TYPE " + name + " " + strings.ToLower(f.GetType().String()) + "\n")
			}
		}
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(header.String()+want+"\n"), names...); err != nil {
		t.Error(err)
	}
}

func TestDecisionsCountByEndpointAndReason(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	orders := r.Endpoint("orders.create")
	orders.Decision(rls.Allowed, 49*time.Microsecond)
	orders.Decision(rls.Allowed, 51*time.Microsecond)
	orders.Decision(rls.FailClosed, 2*time.Second)
	orders.EmergencyAdmission()
	orders.ShadowDenial()
	orders.CostRefused()
	orders.EmergencyBound(50, 2.5)

	wantMetrics(t, reg, `
sentinel_decisions_total{decision_reason="ALLOWED",endpoint_id="orders.create"} 2
sentinel_decisions_total{decision_reason="CIRCUIT_OPEN",endpoint_id="orders.create"} 0
sentinel_decisions_total{decision_reason="EMERGENCY_LOCAL_LIMIT",endpoint_id="orders.create"} 0
sentinel_decisions_total{decision_reason="FAIL_CLOSED",endpoint_id="orders.create"} 1
sentinel_decisions_total{decision_reason="RATE_LIMITED",endpoint_id="orders.create"} 0
`, "sentinel_decisions_total")
	wantMetrics(t, reg, `sentinel_emergency_admissions_total{endpoint_id="orders.create"} 1`, "sentinel_emergency_admissions_total")
	wantMetrics(t, reg, `sentinel_shadow_denials_total{endpoint_id="orders.create"} 1`, "sentinel_shadow_denials_total")
	wantMetrics(t, reg, `sentinel_cost_refused_total{endpoint_id="orders.create"} 1`, "sentinel_cost_refused_total")
	wantMetrics(t, reg, `sentinel_emergency_capacity{endpoint_id="orders.create"} 50`, "sentinel_emergency_capacity")
	wantMetrics(t, reg, `sentinel_emergency_refill_per_second{endpoint_id="orders.create"} 2.5`, "sentinel_emergency_refill_per_second")

	allowed := histogram(t, reg, "sentinel_evaluate_latency_microseconds", "decision_reason", "ALLOWED")
	if allowed.count != 2 || allowed.upTo[50] != 1 || allowed.upTo[100] != 2 {
		t.Errorf("latency of ALLOWED: %+v, want one of two at most 50 µs, both at most 100 µs", allowed)
	}
	failed := histogram(t, reg, "sentinel_evaluate_latency_microseconds", "decision_reason", "FAIL_CLOSED")
	if failed.count != 1 || failed.upTo[1_000_000] != 0 {
		t.Errorf("latency of FAIL_CLOSED: %+v, want one above 1 s", failed)
	}
}

type distribution struct {
	count uint64
	upTo  map[float64]uint64
}

func histogram(t *testing.T, reg prometheus.Gatherer, name, labelName, labelValue string) distribution {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() != labelName || l.GetValue() != labelValue {
					continue
				}
				d := distribution{count: m.GetHistogram().GetSampleCount(), upTo: map[float64]uint64{}}
				for _, b := range m.GetHistogram().GetBucket() {
					d.upTo[b.GetUpperBound()] = b.GetCumulativeCount()
				}
				return d
			}
		}
	}
	t.Fatalf("no %s{%s=%q}", name, labelName, labelValue)
	return distribution{}
}

// What a client sends must not become a label: every counter with a closed set takes the values of the contract and
// counts everything else as one `other`.
func TestClosedLabelSets(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	r.StoreFailure(rls.ClassTimeout)
	r.StoreFailure("something \xff new")
	r.StoreFailure("something else")
	wantMetrics(t, reg, `
sentinel_store_failures_total{class="REDIS_ERROR"} 0
sentinel_store_failures_total{class="REDIS_TIMEOUT"} 1
sentinel_store_failures_total{class="REDIS_UNAVAILABLE"} 0
sentinel_store_failures_total{class="other"} 2
`, "sentinel_store_failures_total")

	r.UnknownEndpoint(rls.ServiceAuthz)
	r.UnknownDomain(rls.ServiceRateLimit)
	r.Unauthenticated(rls.Refused{Service: rls.ServiceAuthz})
	r.Late(rls.ServiceRateLimit)
	r.Canceled(rls.ServiceRateLimit)
	r.Repaired(rls.ServiceAuthz)
	for name, want := range map[string]string{
		"sentinel_unknown_endpoint_total":  "ext_authz",
		"sentinel_unknown_domain_total":    "ratelimit",
		"sentinel_unauthenticated_total":   "ext_authz",
		"sentinel_late_answers_total":      "ratelimit",
		"sentinel_canceled_calls_total":    "ratelimit",
		"sentinel_repaired_messages_total": "ext_authz",
	} {
		var exposition strings.Builder
		for _, service := range []string{"ext_authz", "ratelimit"} {
			value := "0"
			if service == want {
				value = "1"
			}
			exposition.WriteString(name + `{service="` + service + `"} ` + value + "\n")
		}
		wantMetrics(t, reg, exposition.String(), name)
	}

	r.Ignored(rls.IgnoredEntry, 3)
	r.Ignored(rls.IgnoredRefund, -1) // a counter panics on a negative number
	wantMetrics(t, reg, `
sentinel_ignored_total{what="empty"} 0
sentinel_ignored_total{what="entry"} 3
sentinel_ignored_total{what="override"} 0
sentinel_ignored_total{what="refund"} 0
`, "sentinel_ignored_total")

	r.RequestRefused(rls.BoundDescriptors)
	wantMetrics(t, reg, `
sentinel_requests_refused_total{bound="descriptors"} 1
sentinel_requests_refused_total{bound="empty"} 0
sentinel_requests_refused_total{bound="entries"} 0
sentinel_requests_refused_total{bound="key"} 0
sentinel_requests_refused_total{bound="takes"} 0
sentinel_requests_refused_total{bound="value"} 0
`, "sentinel_requests_refused_total")

	r.Panicked(rls.ServiceAuthz)
	r.Faulty(rls.ServiceRateLimit)
	r.Faulty(rls.ServiceRateLimit)
	r.Endpoint("orders").Decision("NO_SUCH_REASON", time.Millisecond)
	wantMetrics(t, reg, `
sentinel_internal_faults_total{kind="panic"} 1
sentinel_internal_faults_total{kind="reason"} 1
sentinel_internal_faults_total{kind="response"} 2
`, "sentinel_internal_faults_total")
}

func TestStoreObservations(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	r.RoundTrip(14, 1500*time.Microsecond, true)
	r.RoundTrip(1, 20*time.Millisecond, false)
	r.ScriptLoaded()
	r.QueueFull()
	r.Connections(3)
	r.Connections(2)
	r.StoreUnfit(false)
	r.StoreUnfit(true)
	r.Healed(2)
	r.Healed(-1)
	r.ClockBehind()
	r.DenyCacheHit()
	if d := histogram(t, reg, "sentinel_store_round_trip_seconds", "outcome", "ok"); d.count != 1 || d.upTo[.001] != 0 || d.upTo[.002] != 1 {
		t.Errorf("round trips that succeeded: %+v, want one between 1 and 2 ms", d)
	}
	if d := histogram(t, reg, "sentinel_store_round_trip_seconds", "outcome", "failed"); d.count != 1 {
		t.Errorf("round trips that failed: %+v, want one", d)
	}
	for name, want := range map[string]string{
		"sentinel_store_script_loads_total": "1",
		"sentinel_store_healed_total":       "2",
		"sentinel_store_queue_full_total":   "1",
		"sentinel_store_connections":        "2",
		"sentinel_store_unfit":              "1",
		"sentinel_store_clock_behind_total": "1",
		"sentinel_deny_cache_hits_total":    "1",
	} {
		wantMetrics(t, reg, name+" "+want, name)
	}
}

func TestMemoryStoreIsWatched(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	buckets := 0
	r.WatchMemoryStore(func() int { return buckets })
	buckets = 100
	r.MemoryOverflowed(7)
	r.MemoryOverflowed(-1)
	wantMetrics(t, reg, "sentinel_memory_store_buckets 100", "sentinel_memory_store_buckets")
	wantMetrics(t, reg, "sentinel_memory_store_overflow_total 7", "sentinel_memory_store_overflow_total")
}

func TestMT_02_InvalidUTF8IsNoLabelAndNoPanic(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	const bad = "a\xffb\xfe"
	e := r.Endpoint(bad)
	e.Decision(rls.Allowed, time.Microsecond)
	e.EmergencyAdmission()
	r.StoreFailure(bad)
	r.UnknownEndpoint(bad)
	r.UnknownDomain(bad)
	r.Unauthenticated(rls.Refused{Service: bad})
	r.Ignored(bad, 1)
	r.RequestRefused(bad)
	r.Late(bad)
	r.Canceled(bad)
	r.Repaired(bad)
	r.BreakerChanged(bad, bad, bad, errors.New(bad))
	r.Denied(rls.Denial{EndpointID: bad, Reason: bad, IdentityHash: bad})
	r.PoliciesLoaded(telemetry.Policies{Hash: bad, Loaded: time.Unix(1, 0), Endpoints: []string{bad}})
	telemetry.RegisterProcess(reg, telemetry.Build{Version: bad, Revision: bad, Go: bad})

	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("the registry does not gather after invalid UTF-8: %v", err)
	}
	if len(families) == 0 {
		t.Fatal("nothing gathered")
	}
	wantMetrics(t, reg, "sentinel_emergency_admissions_total{endpoint_id=\"a\uFFFDb\uFFFD\"} 1", "sentinel_emergency_admissions_total")
}

// Two ids that become the same label share its series instead of failing the scrape.
func TestMT_02_IdsThatSanitiseToOneLabelShareIt(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	r.Endpoint("a\xff").EmergencyAdmission()
	r.Endpoint("a\xfe").EmergencyAdmission()
	wantMetrics(t, reg, "sentinel_emergency_admissions_total{endpoint_id=\"a\uFFFD\"} 2", "sentinel_emergency_admissions_total")
}

func TestMT_05_ReloadsAndTransitionsKeepTheMetricsTrue(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	state := "closed"
	r.WatchBreaker(func() string { return state })
	for i := range 100 {
		r.Endpoint("orders").EmergencyBound(float64(i), 1)
		r.PoliciesLoaded(telemetry.Policies{Hash: "h", Loaded: time.UnixMilli(int64(i) * 1500), Endpoints: []string{"orders"}})
		r.Endpoint("orders").Decision(rls.Allowed, time.Millisecond)
		for _, next := range []string{"open", "half-open", "closed"} {
			r.BreakerChanged("127.0.0.1:6379", state, next, nil)
			state = next
			var want strings.Builder
			for _, s := range []string{"closed", "half-open", "open"} {
				value := "0"
				if s == state {
					value = "1"
				}
				want.WriteString(`sentinel_breaker_state{state="` + s + `"} ` + value + "\n")
			}
			wantMetrics(t, reg, want.String(), "sentinel_breaker_state")
		}
	}
	wantMetrics(t, reg, `
sentinel_breaker_transitions_total{to="closed"} 100
sentinel_breaker_transitions_total{to="half-open"} 100
sentinel_breaker_transitions_total{to="open"} 100
`, "sentinel_breaker_transitions_total")
	wantMetrics(t, reg, `sentinel_policies_info{hash="h"} 1`, "sentinel_policies_info")
	wantMetrics(t, reg, `sentinel_policies_loaded_timestamp_seconds 148.5`, "sentinel_policies_loaded_timestamp_seconds")
	wantMetrics(t, reg, `sentinel_policies_endpoints 1`, "sentinel_policies_endpoints")
	wantMetrics(t, reg, `sentinel_emergency_capacity{endpoint_id="orders"} 99`, "sentinel_emergency_capacity")

	// Files that cannot be used are seen until they can.
	for _, step := range []struct {
		reload func()
		stale  string
	}{{r.PoliciesRefused, "1"}, {r.PoliciesRefused, "1"}, {r.PoliciesUnchanged, "0"}, {r.PoliciesRefused, "1"}, {r.PoliciesReloaded, "0"}} {
		step.reload()
		wantMetrics(t, reg, "sentinel_policies_stale "+step.stale, "sentinel_policies_stale")
	}
	wantMetrics(t, reg, `
sentinel_policies_reloads_total{outcome="loaded"} 1
sentinel_policies_reloads_total{outcome="refused"} 3
sentinel_policies_reloads_total{outcome="unchanged"} 1
`, "sentinel_policies_reloads_total")

	// The endpoint is gone from the next set: its counts stay, its cap does not.
	r.PoliciesLoaded(telemetry.Policies{Hash: "h2", Loaded: time.UnixMilli(0)})
	wantMetrics(t, reg, `sentinel_emergency_capacity{endpoint_id="orders"} 0`, "sentinel_emergency_capacity")
	wantMetrics(t, reg, `sentinel_policies_info{hash="h2"} 1`, "sentinel_policies_info")
}

func TestConcurrentUseWhileReloading(t *testing.T) {
	t.Parallel()
	r, reg := newRecorder(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				r.Endpoint("shared").Decision(rls.RateLimited, time.Millisecond)
				r.Denied(rls.Denial{EndpointID: "shared", Reason: rls.RateLimited})
				r.PoliciesLoaded(telemetry.Policies{Hash: "h", Loaded: time.UnixMilli(1)})
			}
		})
	}
	for range 20 {
		if _, err := reg.Gather(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if d := histogram(t, reg, "sentinel_evaluate_latency_microseconds", "decision_reason", "RATE_LIMITED"); d.count != 1600 {
		t.Errorf("%d decisions recorded, want 1600", d.count)
	}
}

func TestDecisionAllocatesNothing(t *testing.T) {
	r, _ := newRecorder(t)
	e := r.Endpoint("orders")
	if n := testing.AllocsPerRun(100, func() { e.Decision(rls.RateLimited, 123*time.Microsecond) }); math.Abs(n) > 0 {
		t.Errorf("a decision allocates %v times, want 0", n)
	}
}
