package telemetry_test

import (
	"bytes"
	"context"
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

// startLog runs a recorder's denial log into a buffer; stop ends it and returns the records.
func startLog(t *testing.T, cfg telemetry.Config) (r *telemetry.Recorder, reg *prometheus.Registry, stop func() []map[string]any) {
	t.Helper()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.FormatJSON, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	reg = prometheus.NewPedanticRegistry()
	cfg.Registerer, cfg.Log = reg, log
	r = telemetry.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return r, reg, func() []map[string]any {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		return records(t, out.String())
	}
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
	r, _, stop := startLog(t, telemetry.Config{})
	r.Endpoint("orders")
	r.Denied(denial("orders", rls.FailClosed))
	got := stop()
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
		r, reg, stop := startLog(t, telemetry.Config{})
		for _, id := range []string{"orders", "login"} {
			r.Endpoint(id)
		}
		for range 1000 {
			r.Denied(denial("orders", rls.RateLimited))
		}
		r.Denied(denial("orders", rls.FailClosed))
		r.Denied(denial("login", rls.RateLimited))
		synctest.Wait()
		time.Sleep(time.Second)
		r.Denied(denial("orders", rls.RateLimited))
		r.Denied(denial("orders", rls.RateLimited))

		got := stop()
		count := map[string]int{}
		var suppressed []any
		for _, rec := range got {
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

// A log that nobody reads costs records, never time: Denied returns at once, and what did not fit is counted.
func TestStuckLogNeverHoldsARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{release: make(chan struct{})}
		log, err := telemetry.NewLogger(w, telemetry.FormatJSON, slog.LevelInfo)
		if err != nil {
			t.Fatal(err)
		}
		reg := prometheus.NewPedanticRegistry()
		r := telemetry.New(telemetry.Config{Registerer: reg, Log: log, DenialsPerSecond: 1_000_000, DenialQueue: 100})
		r.Endpoint("orders")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()

		r.Denied(denial("orders", rls.RateLimited)) // the writer takes this one and is stuck with it
		synctest.Wait()
		for range 500 {
			r.Denied(denial("orders", rls.RateLimited)) // would deadlock the bubble if it waited
		}
		wantMetrics(t, reg, "sentinel_denials_suppressed_total 400", "sentinel_denials_suppressed_total")

		close(w.release)
		synctest.Wait()
		r.Denied(denial("orders", rls.RateLimited))
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		got := records(t, w.out.String())
		if len(got) != 102 {
			t.Fatalf("%d records, want 1 + 100 queued + 1", len(got))
		}
		if n := got[101]["suppressed"]; n != 400.0 {
			t.Errorf("the record after the jam says suppressed %v, want 400", n)
		}
	})
}

func TestQueuedDenialsAreWrittenAtTheStop(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.FormatJSON, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	r := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: log})
	for range 7 {
		r.Denied(denial("unregistered", rls.RateLimited))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := records(t, out.String()); len(got) != 7 {
		t.Errorf("%d records after the stop, want 7", len(got))
	}
}

func TestDenialsBelowTheLogLevelCostNothing(t *testing.T) {
	t.Parallel()
	log, err := telemetry.NewLogger(io.Discard, telemetry.FormatText, slog.LevelError)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	r := telemetry.New(telemetry.Config{Registerer: reg, Log: log, DenialQueue: 1})
	for range 10 {
		r.Denied(denial("orders", rls.RateLimited))
	}
	wantMetrics(t, reg, "sentinel_denials_suppressed_total 0", "sentinel_denials_suppressed_total")
}

func TestLoggerFormats(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.FormatJSON, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("hidden")
	log.Info("shown", "took", 1500*time.Millisecond, "bad", "a\xffb\n")
	got := records(t, out.String())
	if len(got) != 1 || got[0]["took"] != 1.5 || got[0]["bad"] != "a\uFFFDb\n" {
		t.Errorf("records %v, want one with took 1.5 and repaired text", got)
	}
	out.Reset()
	if log, err = telemetry.NewLogger(&out, telemetry.FormatText, slog.LevelDebug); err != nil {
		t.Fatal(err)
	}
	log.Debug("shown", "name", "two words")
	if !strings.Contains(out.String(), `level=DEBUG msg=shown name="two words"`) {
		t.Errorf("text log: %q", out.String())
	}
	if _, err := telemetry.NewLogger(&out, "xml", slog.LevelInfo); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("format xml: error %v, want one that names it", err)
	}
}
