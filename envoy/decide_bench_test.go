package envoy

import (
	"context"
	"log/slog"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// fullStore answers that every bucket is untouched.
type fullStore struct{}

func (fullStore) Decide(_ context.Context, groups []rls.Group) []rls.Answer {
	answers := make([]rls.Answer, len(groups))
	for i := range groups {
		answers[i] = rls.Answer{Now: 1_800_000_000_000_000, Allowed: true, Before: make([]algorithms.State, len(groups[i]))}
	}
	return answers
}

// TestAllocationsOfADecision holds the hot path to ten allocations: question 2, key 1, plan 1, store context 1, the store's
// own 2, answer 3.
func TestAllocationsOfADecision(t *testing.T) {
	ask := hotPath(t)
	if got := testing.AllocsPerRun(100, ask); got > 10 {
		t.Errorf("%v allocations for a decision, want at most 10", got)
	}
}

// BenchmarkDecide is one ShouldRateLimit call without gRPC and store: mapping, matching, keys, engine, metrics, answer.
// The store's two allocations are counted.
func BenchmarkDecide(b *testing.B) {
	ask := hotPath(b)
	b.ReportAllocs()
	for b.Loop() {
		ask()
	}
}

// hotPath returns a call that asks for one take from one token bucket.
func hotPath(t testing.TB) func() {
	t.Helper()
	identities, err := identity.New(identity.Config{})
	if err != nil {
		t.Fatal(err)
	}
	recorder := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	engine, err := rls.New(rls.Config{Store: fullStore{}, Identifier: identities, Recorder: recorder})
	if err != nil {
		t.Fatal(err)
	}
	set, err := descriptors.Parse([]descriptors.File{{Name: "p.yaml", Data: []byte(`
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 25/s}
    limits: [{algorithm: token_bucket, capacity: 100, refill: 50/s}]
`)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Use(set); err != nil {
		t.Fatal(err)
	}
	var names Names
	names = names.withDefaults()
	s := &rateLimitService{engine: engine, names: &names, log: slog.New(slog.DiscardHandler)}
	req := &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "endpoint_id", Value: "orders"}, {Key: "tenant", Value: "tenant-00042"}},
	}}}
	return func() {
		if resp, err := s.ShouldRateLimit(t.Context(), req); err != nil || resp.GetOverallCode() != rlsv3.RateLimitResponse_OK {
			t.Fatal(resp, err)
		}
	}
}
