package main

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// A thousand domains that nobody configured: each is admitted without a limit and counted, and none becomes a series.
func TestRLS_21_UnknownDomainsAreCountedTogether(t *testing.T) {
	t.Parallel()
	p := serve(t, nil, "--config", filepath.Join(shop(t), "sentinel.yaml"))
	client := rlsv3.NewRateLimitServiceClient(dial(t, p.grpcAddr))
	_, before := get(t, p.instance, "/metrics")
	for range 1000 {
		resp, err := client.ShouldRateLimit(t.Context(), limitRequest("domain-"+rand.Text(), "orders", "acme"))
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetOverallCode() != rlsv3.RateLimitResponse_OK || len(resp.GetStatuses()) != 1 ||
			resp.GetStatuses()[0].GetCode() != rlsv3.RateLimitResponse_OK || resp.GetStatuses()[0].GetCurrentLimit() != nil {
			t.Fatalf("an unknown domain is answered with %v", resp)
		}
	}
	if got := metric(t, p.instance, `sentinel_unknown_domain_total{service="ratelimit"}`); got != "1000" {
		t.Errorf("counted %s, want 1000", got)
	}
	_, after := get(t, p.instance, "/metrics")
	series := func(text string) int { return strings.Count(text, "\nsentinel_") }
	if series(after) != series(before) || strings.Contains(after, "domain-") {
		t.Errorf("%d series before and %d after", series(before), series(after))
	}
}

// A path without its leading slash must not reach a handler past what looks at paths (CVE-2026-33186).
func TestEA_13_PathWithoutSlashIsUnimplemented(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`(?m)^\s*google\.golang\.org/grpc v(\d+)\.(\d+)\.(\d+)`).FindStringSubmatch(document(t, "go.mod"))
	if m == nil {
		t.Fatal("go.mod does not require google.golang.org/grpc")
	}
	version := 0
	for _, part := range m[1:] {
		n, err := strconv.Atoi(part)
		if err != nil {
			t.Fatal(err)
		}
		version = 1000*version + n
	}
	if version < 1_079_003 {
		t.Errorf("go.mod requires grpc %s, want v1.79.3 at least", m[0])
	}
	p := serve(t, nil)
	unimplemented := func(path string) bool {
		status, _ := testserver.RawCall(t, p.grpcAddr, path, nil)
		return status == "" || status == strconv.Itoa(int(codes.Unimplemented))
	}
	if unimplemented("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit") {
		t.Fatal("a good path is unimplemented, so this test shows nothing")
	}
	for _, path := range []string{
		"envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "envoy.service.auth.v3.Authorization/Check", "", "/", "//",
	} {
		if !unimplemented(path) {
			t.Errorf(":path %q is not Unimplemented", path)
		}
	}
}

// Some Envoys crash when a report at the end of a stream fails (CVE-2026-26330), so it does not fail: with Redis frozen and
// then gone it is answered in time, and the manual names the Envoys that are mended.
func TestSEC_05_ReportsAtTheEndOfAStreamAreAnswered(t *testing.T) {
	t.Parallel()
	security := document(t, "docs/security.md")
	for _, version := range []string{"CVE-2026-26330", "1.34.13", "1.35.8", "1.36.5", "1.37.1", "apply_on_stream_done"} {
		if !strings.Contains(security, version) {
			t.Errorf("docs/security.md does not name %s", version)
		}
	}
	store := testserver.Start(t, testserver.Redis)
	dir := files(t, map[string]string{"sentinel.yaml": shopConfig, "secret": secret, "policies/usage.yaml": `
domain: shop
endpoints:
  closed: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 100, refill: 1/s, charge: after, max_cost: 50}]}
  open:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 10, refill: 1/s}
    limits: [{algorithm: token_bucket, capacity: 100, refill: 1/s, charge: after, max_cost: 50}]
`})
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"), "--redis", store.URL())
	client := rlsv3.NewRateLimitServiceClient(dial(t, p.grpcAddr))
	report := func(what string) {
		t.Helper()
		for _, endpoint := range []string{"closed", "open"} {
			request := limitRequest("shop", endpoint, "acme")
			request.Descriptors[0].HitsAddend = &wrapperspb.UInt64Value{Value: 7}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // Envoy's own is shorter; this machine is busy
			resp, err := client.ShouldRateLimit(ctx, request)
			cancel()
			if err != nil || len(resp.GetStatuses()) != 1 || resp.GetOverallCode() == rlsv3.RateLimitResponse_UNKNOWN {
				t.Errorf("%s: a report about %s is answered with %v, %v", what, endpoint, resp, err)
			}
		}
	}
	report("with Redis")
	if err := store.Freeze(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		report("with Redis frozen")
	}
	store.Kill()
	for range 4 {
		report("without Redis")
	}
	if faults := metric(t, p.instance, `sentinel_internal_faults_total{kind="panic"}`); faults != "0" {
		t.Errorf("%s panics", faults)
	}
}
