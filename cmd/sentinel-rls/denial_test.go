package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// What a refused client is told leads support to the line of the policy: the decision id stands in the error document, in
// the dynamic metadata (so in Envoy's access log) and in our log, with policy and limit, and says nothing of other tenants.
func TestDenialIsExplainedEverywhere(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{"sentinel.yaml": shopConfig, "secret": secret, "policies/shop.yaml": `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_closed
    limits:
      - {algorithm: token_bucket, capacity: 100, refill: 1/s}
      - {name: slow, algorithm: token_bucket, capacity: 1, refill: 0}
    tenants:
      globex: {limits: [{name: slow, algorithm: token_bucket, capacity: 5, refill: 0}]}
`})
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"))
	conn := dial(t, p.grpcAddr)
	for _, tenant := range []string{"acme", "globex"} {
		if limited(t, conn, "shop", "orders", tenant) {
			t.Fatalf("the first request of %s is over the limit", tenant)
		}
	}
	authz, err := authv3.NewAuthorizationClient(conn).Check(t.Context(), checkRequest("orders", token(t, "acme")))
	if err != nil {
		t.Fatal(err)
	}
	rate, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), limitRequest("shop", "orders", "acme"))
	if err != nil {
		t.Fatal(err)
	}
	metadata := authz.GetDynamicMetadata().AsMap()
	if code, _ := get(t, p.instance, "/healthz"); code != 200 {
		t.Fatal("not alive")
	}
	p.stop()
	byID := map[string]map[string]any{}
	for line := range strings.Lines(p.log()) {
		record := map[string]any{}
		if json.Unmarshal([]byte(line), &record) == nil && record["msg"] == "denied" {
			byID[fmt.Sprint(record["decision_id"])] = record
		}
	}
	for service, body := range map[string]string{"ext_authz": authz.GetDeniedResponse().GetBody(), "ratelimit": string(rate.GetRawBody())} {
		var document struct {
			Error struct{ Details map[string]any }
		}
		if err := json.Unmarshal([]byte(body), &document); err != nil {
			t.Fatalf("%s: %v: %s", service, err, body)
		}
		details := document.Error.Details
		id := fmt.Sprint(details["decision_id"])
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id) || details["policy"] != "orders:slow" || details["reason"] != "RATE_LIMITED" {
			t.Errorf("%s tells the client %v, want an id, RATE_LIMITED and orders:slow", service, details)
		}
		record := byID[id]
		if record["policy"] != "orders:slow" || record["service"] != service || record["endpoint_id"] != "orders" ||
			record["identity_hash"] != fmt.Sprintf("%x", sha256.Sum256([]byte("acme"))) {
			t.Errorf("%s: the log of %s is %v", service, id, record)
		}
		if service == "ext_authz" && (metadata["decision_id"] != id || metadata["policy"] != "orders:slow" || metadata["reason"] != "RATE_LIMITED") {
			t.Errorf("dynamic metadata %v, want the id %s, RATE_LIMITED and orders:slow", metadata, id)
		}
		other := fmt.Sprintf("%x", sha256.Sum256([]byte("globex")))
		for what, text := range map[string]string{"document": body, "answer": fmt.Sprint(authz, rate), "log": fmt.Sprint(record)} {
			if strings.Contains(text, "globex") || strings.Contains(text, other) {
				t.Errorf("%s: the %s speaks of another tenant: %s", service, what, text)
			}
		}
	}
	// With what the client was told, the line is found.
	_, stdout, _ := runCommand(t, "explain", "--config", filepath.Join(dir, "sentinel.yaml"), "--endpoint", "orders", "--tenant", "acme")
	if !strings.Contains(stdout, "shop.yaml:9: limit slow: ") {
		t.Errorf("explain does not lead to the line:\n%s", stdout)
	}
}
