package telemetry_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func denial(endpoint string, reason rls.Reason) rls.Denial {
	return rls.Denial{
		Service: rls.ServiceRateLimit, Domain: "shop", EndpointID: endpoint, Policy: endpoint + ":everyone",
		IdentityMode: "tenant_jwt", IdentityHash: "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
		Reason: reason, Class: rls.ClassTimeout, Source: rls.SourceNone,
		DecisionID: "000102030405060708090a0b0c0d0e0f", Latency: 1234 * time.Microsecond, BreakerState: "closed",
	}
}

// logTo returns a recorder whose log goes to out.
func logTo(t *testing.T, out io.Writer, level slog.Level) (*telemetry.Recorder, *prometheus.Registry) {
	t.Helper()
	log, err := telemetry.NewLogger(out, telemetry.FormatJSON, level)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	r := telemetry.New(telemetry.Config{Registerer: reg, Log: log})
	for _, id := range []string{"orders", "login"} {
		r.Endpoint(id)
	}
	return r, reg
}

func records(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(text) {
		record := map[string]any{}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		all = append(all, record)
	}
	return all
}

func TestDenialIsOneWarningWithTheContractsFields(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r, _ := logTo(t, &out, slog.LevelInfo)
	r.Denied(denial("orders", rls.FailClosed))
	got := records(t, out.String())
	if len(got) != 1 {
		t.Fatalf("%d records, want 1: %v", len(got), got)
	}
	want := map[string]any{
		"level": "WARN", "msg": "denied", "service": "ratelimit", "domain": "shop", "endpoint_id": "orders",
		"policy": "orders:everyone", "identity_mode": "tenant_jwt",
		"identity_hash":   "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
		"decision_reason": "FAIL_CLOSED", "class": "REDIS_TIMEOUT", "source": "none",
		"decision_id": "000102030405060708090a0b0c0d0e0f", "latency_micro": 1234.0, "breaker_state": "closed",
	}
	for key, value := range want {
		if got[0][key] != value {
			t.Errorf("field %s is %v, want %v", key, got[0][key], value)
		}
	}
	if _, ok := got[0]["time"]; !ok || len(got[0]) != len(want)+1 {
		t.Errorf("record has %d fields, want %d and time: %v", len(got[0]), len(want), got[0])
	}
}

// A flood: the first ten of a second are logged, the rest counted; the next record says how many. Other endpoints and
// other reasons of the same endpoint are not hidden by it.
func TestFloodOfDenialsIsSampled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, reg := logTo(t, &out, slog.LevelInfo)
		for range 1000 {
			r.Denied(denial("orders", rls.RateLimited))
		}
		r.Denied(denial("orders", rls.FailClosed))
		r.Denied(denial("login", rls.RateLimited))
		time.Sleep(time.Second)
		r.Denied(denial("orders", rls.RateLimited))
		r.Denied(denial("orders", rls.RateLimited))

		count := map[string]int{}
		var suppressed []any
		for _, rec := range records(t, out.String()) {
			count[rec["endpoint_id"].(string)+" "+rec["decision_reason"].(string)]++
			if n, ok := rec["suppressed"]; ok {
				suppressed = append(suppressed, n)
			}
		}
		for key, want := range map[string]int{"orders RATE_LIMITED": 12, "orders FAIL_CLOSED": 1, "login RATE_LIMITED": 1} {
			if count[key] != want {
				t.Errorf("%d records of %s, want %d", count[key], key, want)
			}
		}
		if len(suppressed) != 1 || suppressed[0] != 990.0 {
			t.Errorf("suppressed: %v, want 990 once", suppressed)
		}
		wantMetrics(t, reg, "sentinel_denials_suppressed_total 990", "sentinel_denials_suppressed_total")
	})
}

// Endpoints that never loaded share one sampler per reason, so that they cannot flood the log either.
func TestDenialsOfUnregisteredEndpointsAreSampledTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, _ := logTo(t, &out, slog.LevelInfo)
		for i := range 26 {
			r.Denied(denial(string(rune('a'+i)), rls.RateLimited))
		}
		if got := records(t, out.String()); len(got) != 10 {
			t.Errorf("%d records, want 10", len(got))
		}
	})
}

// stuckWriter blocks until it is released.
type stuckWriter struct {
	release chan struct{}
	mu      sync.Mutex
	out     bytes.Buffer
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.release
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(p)
}

// A log that nobody reads costs lines, never time: Denied returns at once, and what did not fit counts as suppressed.
func TestStuckLogNeverHoldsARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := &stuckWriter{release: make(chan struct{})}
		w := telemetry.NewWriter(stuck, 4)
		r, reg := logTo(t, w, slog.LevelInfo)
		r.WatchLog(w)
		stop := runWriter(t, w)

		r.BreakerChanged("127.0.0.1:6379", "closed", "open", nil) // the writer takes this one and is stuck with it
		synctest.Wait()
		for range 9 {
			r.Denied(denial("orders", rls.RateLimited)) // would deadlock the bubble if it waited
		}
		wantMetrics(t, reg, "sentinel_denials_suppressed_total 5", "sentinel_denials_suppressed_total")
		wantMetrics(t, reg, "sentinel_log_lines_lost_total 5", "sentinel_log_lines_lost_total")

		close(stuck.release)
		time.Sleep(time.Second)
		r.Denied(denial("orders", rls.RateLimited))
		stop()
		got := records(t, stuck.out.String())
		if len(got) != 6 {
			t.Fatalf("%d records, want 1 + 4 queued + 1: %v", len(got), got)
		}
		if n := got[5]["suppressed"]; n != 5.0 {
			t.Errorf("the record after the jam says suppressed %v, want 5", n)
		}
	})
}

func TestDenialsBelowTheLogLevelAreNotCountedAsSuppressed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r, reg := logTo(t, &out, slog.LevelError)
	for range 100 {
		r.Denied(denial("orders", rls.RateLimited))
	}
	if out.Len() != 0 {
		t.Errorf("logged at level error: %s", out.String())
	}
	wantMetrics(t, reg, "sentinel_denials_suppressed_total 0", "sentinel_denials_suppressed_total")
}

// A refused credential is logged with the check that refused it, each check sampled for itself, and one that was merely
// missing only for debugging.
func TestRefusedCredentialsAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))
	r := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: log, DenialsPerSecond: 2})
	for range 100 {
		r.Unauthenticated(rls.Refused{Service: rls.ServiceAuthz, EndpointID: "orders", Check: "expired"})
		r.Unauthenticated(rls.Refused{Service: rls.ServiceAuthz, Check: "no credential", Missing: true})
	}
	r.Unauthenticated(rls.Refused{Service: rls.ServiceRateLimit, Check: "the signature does not verify"})
	text := out.String()
	if n := strings.Count(text, `"check":"expired"`); n < 2 || n > 8 {
		t.Errorf("%d records of a flood, want 2 a second:\n%s", n, text)
	}
	if !strings.Contains(text, `"msg":"credential refused","service":"ratelimit","endpoint_id":"","check":"the signature does not verify"`) {
		t.Errorf("the flood hid another check:\n%s", text)
	}
	if strings.Contains(text, "no credential") {
		t.Errorf("logs that nothing was presented:\n%s", text)
	}
}
