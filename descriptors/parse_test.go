package descriptors_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

const shop = `domain: shop
endpoints:
  orders.create:
    policy_version: 3
    identity: tenant_jwt
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 25/s, per_key: {capacity: 5, refill: 1/3s}}
    required_scopes: [orders.write, "https://shop.example/admin"]
    limits:
      - {scope: tenant, algorithm: token_bucket, capacity: 100, refill: 50/s, max_cost: 20, refunds: true}
      - name: everyone
        scope: global
        algorithm: sliding_window
        limit: 5000
        window: 1m
    tenants:
      acme:
        limits:
          - {algorithm: token_bucket, capacity: 1000, refill: 500/s}
          - {name: everyone, scope: global, algorithm: sliding_window, limit: 9000, window: 60s}
      "42": {mode: shadow, emergency: {capacity: 7, refill: 0}}
      partner@example.com: {limits: unlimited}
  auth.login:
    policy_version: 1
    identity: anonymous
    fail_mode: fail_closed
    mode: shadow
    count: false
    limits:
      - {scope: cookie, algorithm: sliding_window, limit: 10, window: 500ms}
      - {name: address, scope: client_ip, algorithm: sliding_window, limit: 30, window: 1d}
  reports.usage:
    policy_version: 9007199254740991
    fail_mode: fail_closed
    limits: [{scope: user, algorithm: token_bucket, capacity: 5000, refill: 5000/d, charge: after, max_cost: 600}]
  closed: {policy_version: 1, fail_mode: fail_closed, limits: blocked}
`

func TestParseReadsEveryField(t *testing.T) {
	t.Parallel()
	set := parse(t, shop)

	ordersLimits := []descriptors.Limit{
		{Scope: descriptors.ScopeTenant, Rule: bucket(t, 100, 50, 1), MaxCost: 20, Refunds: true, File: "shop.yaml", Line: 10},
		{Name: "everyone", Scope: descriptors.ScopeGlobal, Rule: sliding(t, 5000, time.Minute), MaxCost: 1, File: "shop.yaml", Line: 11},
	}
	orders := descriptors.Policy{
		Domain: "shop", Endpoint: "orders.create", Version: 3, FailMode: descriptors.FailOpen, OwnEmergency: true, Count: true,
		Emergency: descriptors.Emergency{
			Bucket: descriptors.Bucket{Capacity: 50, Refill: rate(t, 25, 1)},
			PerKey: &descriptors.Bucket{Capacity: 5, Refill: rate(t, 1, 3)},
		},
		RequiredScopes: []string{"orders.write", "https://shop.example/admin"},
		Limits:         ordersLimits,
		File:           "shop.yaml", Line: 3,
	}
	acme := orders
	acme.Tenant, acme.OwnEmergency, acme.Line, acme.Index = "acme", false, 17, 1
	acme.Limits = []descriptors.Limit{
		{Scope: descriptors.ScopeTenant, Rule: bucket(t, 1000, 500, 1), MaxCost: 1, File: "shop.yaml", Line: 19},
		{Name: "everyone", Scope: descriptors.ScopeGlobal, Rule: sliding(t, 9000, time.Minute), MaxCost: 1, File: "shop.yaml", Line: 20},
	}
	fortyTwo := orders
	fortyTwo.Tenant, fortyTwo.Mode, fortyTwo.Line, fortyTwo.Index = "42", descriptors.Shadow, 21, 2
	fortyTwo.Emergency = descriptors.Emergency{Bucket: descriptors.Bucket{Capacity: 7}}
	partner := orders
	partner.Tenant, partner.OwnEmergency, partner.Line, partner.Index = "partner@example.com", false, 22, 3
	partner.Verdict, partner.Limits = descriptors.Unlimited, nil

	want := []*descriptors.Policy{
		&orders, &acme, &fortyTwo, &partner,
		{
			Domain: "shop", Endpoint: "auth.login", Version: 1, Identity: descriptors.Anonymous, Mode: descriptors.Shadow,
			Limits: []descriptors.Limit{
				{Scope: descriptors.ScopeCookie, Rule: sliding(t, 10, 500*time.Millisecond), MaxCost: 1, File: "shop.yaml", Line: 30},
				{Name: "address", Scope: descriptors.ScopeClientIP, Rule: sliding(t, 30, 24*time.Hour), MaxCost: 1, File: "shop.yaml", Line: 31},
			},
			File: "shop.yaml", Line: 23, Index: 4,
		},
		{
			Domain: "shop", Endpoint: "reports.usage", Version: 1<<53 - 1, Count: true,
			Limits: []descriptors.Limit{
				{Scope: descriptors.ScopeUser, Rule: bucket(t, 5000, 5000, 86400), MaxCost: 600, ChargeAfter: true, File: "shop.yaml", Line: 35},
			},
			File: "shop.yaml", Line: 32, Index: 5,
		},
		{Domain: "shop", Endpoint: "closed", Version: 1, Count: true, Verdict: descriptors.Blocked, File: "shop.yaml", Line: 36, Index: 6},
	}
	if diff := cmp.Diff(want, set.Policies(), visible); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

func TestParseKeepsRatesExact(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int64{
		"0": {0, 0}, "50/s": {50, 1}, "100/m": {5, 3}, "1/3s": {1, 3}, "5000/d": {25, 432}, "3600/h": {1, 1}, "7/2m": {7, 120},
		`"6/4h"`: {1, 2400}, "4503599627370496/s": {1 << 52, 1}, "1/4503599627s": {1, 4503599627},
	} {
		set := parse(t, endpoint("policy_version: 1, fail_mode: fail_open, limits: unlimited, emergency: {capacity: 1, refill: "+text+"}"))
		if got := set.Policies()[0].Emergency.Refill; got != rate(t, want[0], want[1]) {
			t.Errorf("refill %s = %+v, want %v", text, got, want)
		}
	}
}

func TestParseReadsWindows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"1ms": time.Millisecond, "1500ms": 1500 * time.Millisecond, "1s": time.Second, "1m": time.Minute, "24h": 24 * time.Hour,
		"7d": 7 * 24 * time.Hour, "3257d": 3257 * 24 * time.Hour, `"90m"`: 90 * time.Minute,
	} {
		set := parse(t, tenantLimits("{algorithm: sliding_window, limit: 1, window: "+text+"}"))
		if got := set.Policies()[0].Limits[0].Rule.Window().Duration(); got != want {
			t.Errorf("window %s = %v, want %v", text, got, want)
		}
	}
}

// Every problem of every file is in one error, by file and line.
func TestParseReportsEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	got := refusals(
		t,
		file("a.yaml", `domain: shop
endpoints:
  orders.create:
    polcy_version: 3
    fail_mode: fail_open
    limits:
      - {scope: tenant, algorithm: token_bucket, capacity: 100, refill: 50}
      - name: Everyone
        scope: globl
        algorithm: sliding_window
        limit: 5_000
        window:
    tenants:
      acme: {}
`),
		file("b.json", `{"domain": "shop",
 "endpoints": {"orders.create": {"policy_version": 1, "fail_mode": "fail_closed",
   "limits": [{"algorithm": "token_bucket", "capacity": 1.0, "refill": "1/s"}]}}}`),
		file("c.yaml", "domain: shop\nendpoints: {}\ndescriptors: []\n"),
		file("d.yaml", "domain: shop\ndescriptors: []\n"),
	)
	want := []string{
		`a.yaml:4: endpoints."orders.create".polcy_version: unknown key; did you mean policy_version?`,
		`a.yaml:4: endpoints."orders.create".policy_version: missing; an integer of at least 1; raising it starts fresh buckets`,
		`a.yaml:4: endpoints."orders.create".emergency: missing with fail_mode: fail_open; add emergency: {capacity: 50, refill: 25/s}, the most that each process admits while the store cannot answer`,
		`a.yaml:7: endpoints."orders.create".limits[0].refill: "50" is not a refill rate; write tokens per time, as 50/s, 100/m, 1/3s or 5000/d, or 0 for no refill; units: s, m, h, d`,
		`a.yaml:8: endpoints."orders.create".limits[1].name: "Everyone" is not allowed here; use 1 to 63 of a-z 0-9 . _ -`,
		`a.yaml:9: endpoints."orders.create".limits[1].scope: unknown word "globl"; did you mean global?`,
		`a.yaml:11: endpoints."orders.create".limits[1].limit: 5_000 is not a plain decimal integer; write digits only, as 10 or 1000: no leading zero, sign, base, underscore, dot or exponent`,
		`a.yaml:12: endpoints."orders.create".limits[1].window: no value; it must be a window`,
		`a.yaml:14: endpoints."orders.create".tenants.acme: an empty replacement; replace one of: limits, emergency, mode`,
		`b.json:2: endpoints."orders.create": the endpoint "orders.create" stands twice; rename or remove one: the first is in a.yaml:3, domain "shop"`,
		`b.json:3: endpoints."orders.create".limits[0].capacity: 1.0 is not a plain decimal integer; write digits only, as 10 or 1000: no leading zero, sign, base, underscore, dot or exponent`,
		`c.yaml:3: descriptors: descriptors beside endpoints; a file is native (domain and endpoints), or in the language of envoyproxy/ratelimit (domain and descriptors)`,
		`d.yaml:1: domain: the domain "shop" stands in a native file too; give one of them another domain`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// What a policy may not say, each with the one problem it gives: where, what, and a part of the hint.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	open := func(emergency string) string {
		return endpoint("policy_version: 1, fail_mode: fail_open, limits: unlimited, emergency: " + emergency)
	}
	closed := func(more string) string {
		return endpoint("policy_version: 1, fail_mode: fail_closed, limits: unlimited, " + more)
	}
	replaced := func(own, replacement string) string {
		return endpoint("policy_version: 1, fail_mode: fail_closed, limits: [" + own + "], tenants: {acme: {limits: [" + replacement + "]}}")
	}
	for _, c := range []struct{ name, text, path, problem, hint string }{
		// The file.
		{"domain missing", "endpoints: {a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}}", "domain", "missing", "domain: shop"},
		{"domain empty", "domain: ''\nendpoints: {a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}}", "domain", `"" is not allowed here`, "visible ASCII"},
		{"domain with a space", "domain: my shop\nendpoints: {a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}}", "domain", `"my shop" is not allowed here`, "visible ASCII"},
		{"domain too long", "domain: " + strings.Repeat("x", 256) + "\nendpoints: {a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}}", "domain", `..." is not allowed here`, "1 to 255"},
		{"domain a list", "domain: [shop]\nendpoints: {a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}}", "domain", "a list is not text", ""},
		{"endpoints missing", "domain: shop", "endpoints", "missing", "by endpoint id"},
		{"endpoints null", "domain: shop\nendpoints:\n", "endpoints", "no value", "a mapping by endpoint id"},
		{"endpoints empty", "domain: shop\nendpoints: {}\n", "endpoints", "an empty mapping", "at least one endpoint id"},
		{"endpoints a list", "domain: shop\nendpoints: [a]\n", "endpoints", "a list is not a mapping by endpoint id", ""},
		{"unknown root key", closed("mode: enforce") + "version: 1\n", "version", "unknown key", "domain, endpoints"},
		{"endpoint id with a slash", strings.Replace(tenantLimits("{"+bucketLimit+"}"), "a:", "/orders:", 1), `endpoints."/orders"`, `"/orders" is not an endpoint id`, "a-z 0-9"},
		{"endpoint id too long", strings.Replace(closed("count: true"), "a:", strings.Repeat("a", 64)+":", 1), "endpoints." + strings.Repeat("a", 64), "is not an endpoint id", "1 to 63"},
		{"endpoint id empty", strings.Replace(closed("count: true"), "a:", `"":`, 1), `endpoints.""`, `"" is not an endpoint id`, "1 to 63"},
		{"endpoint null", "domain: shop\nendpoints: {a: }", "endpoints.a", "no value", "a mapping"},

		// The policy.
		{"version 0", endpoint("policy_version: 0, fail_mode: fail_closed, limits: unlimited"), "endpoints.a.policy_version", "0 is out of range", "1..9007199254740991"},
		{"version negative", endpoint("policy_version: -1, fail_mode: fail_closed, limits: unlimited"), "endpoints.a.policy_version", "-1 is out of range", "1..9007199254740991"},
		{"version huge", endpoint("policy_version: 99999999999999999999, fail_mode: fail_closed, limits: unlimited"), "endpoints.a.policy_version", "99999999999999999999 is out of range", "1..9007199254740991"},
		{"version missing", endpoint("fail_mode: fail_closed, limits: unlimited"), "endpoints.a.policy_version", "missing", "at least 1"},
		{"fail_mode missing", endpoint("policy_version: 1, limits: unlimited"), "endpoints.a.fail_mode", "missing", "fail_open or fail_closed"},
		{"fail_mode misspelt", endpoint("policy_version: 1, limits: unlimited, fail_mode: fail-closed"), "endpoints.a.fail_mode", `unknown word "fail-closed"`, "did you mean fail_closed?"},
		{"fail_mode in capitals", endpoint("policy_version: 1, limits: unlimited, fail_mode: FAIL_CLOSED"), "endpoints.a.fail_mode", `unknown word "FAIL_CLOSED"`, "did you mean fail_closed?"},
		{"identity unknown", closed("identity: api_key"), "endpoints.a.identity", `unknown word "api_key"`, "use one of: tenant_jwt, anonymous"},
		{"identity null", closed("identity: ~"), "endpoints.a.identity", "no value", "text"},
		{"mode unknown", closed("mode: dry_run"), "endpoints.a.mode", `unknown word "dry_run"`, "enforce, shadow"},
		{"count a word", closed("count: yes"), "endpoints.a.count", `the text "yes" is not true or false`, ""},
		{"count in capitals", closed("count: TRUE"), "endpoints.a.count", "TRUE is not true or false", ""},
		{"count quoted", closed(`count: "true"`), "endpoints.a.count", `the text "true" is not true or false`, ""},
		{"unknown policy key", closed("limitz: []"), "endpoints.a.limitz", "unknown key", "did you mean limits?"},
		{"required_scopes a word", closed("required_scopes: admin"), "endpoints.a.required_scopes", `the text "admin" is not a list of scopes`, ""},
		{"required scope with a space", closed(`required_scopes: ["a b"]`), "endpoints.a.required_scopes[0]", `"a b" is not allowed here`, "RFC 6749"},
		{"required scope twice", closed("required_scopes: [a, b, a]"), "endpoints.a.required_scopes[2]", "the scope stands twice", "remove one"},
		{"required scope of an anonymous caller", closed("identity: anonymous, required_scopes: [a]"), "endpoints.a.required_scopes", "required_scopes with identity: anonymous", "no token"},

		// The emergency cap.
		{"emergency missing", endpoint("policy_version: 1, fail_mode: fail_open, limits: unlimited"), "endpoints.a.emergency", "missing with fail_mode: fail_open", "capacity: 50"},
		{"emergency with fail_closed", closed("emergency: {capacity: 1, refill: 1/s}"), "endpoints.a.emergency", "emergency with fail_mode: fail_closed", "set fail_mode: fail_open"},
		{"emergency null", open("null"), "endpoints.a.emergency", "no value", "a mapping"},
		{"emergency without capacity", open("{refill: 1/s}"), "endpoints.a.emergency.capacity", "missing", "capacity: 100"},
		{"emergency without refill", open("{capacity: 1}"), "endpoints.a.emergency.refill", "missing", "50/s"},
		{"emergency capacity 0", open("{capacity: 0, refill: 1/s}"), "endpoints.a.emergency.capacity", "0 is out of range", "1..4503599627"},
		{"emergency misspelt", open("{capacity: 1, refill: 1/s, per-key: {capacity: 1, refill: 1/s}}"), "endpoints.a.emergency.per-key", "unknown key", "did you mean per_key?"},
		{"across misspelt", open("{capacity: 9, refill: 1/s, across: cluster}"), "endpoints.a.emergency.across", `unknown word "cluster"`, "fleet"},
		{"fleet of no number", open("{capacity: 9, refill: 1/s, across: fleet}"), "endpoints.a.emergency.min_processes", "missing", "min_processes: 3"},
		{"fleet of none", open("{capacity: 9, refill: 1/s, across: fleet, min_processes: 0}"), "endpoints.a.emergency.min_processes", "0 is out of range", "1..10000"},
		{"fleet larger than the cap", open("{capacity: 9, refill: 1/s, across: fleet, min_processes: 10}"), "endpoints.a.emergency.min_processes", "more processes than the cap has capacity", "raise capacity"},
		{"processes of no fleet", open("{capacity: 9, refill: 1/s, min_processes: 3}"), "endpoints.a.emergency.min_processes", "min_processes without across: fleet", "add across: fleet"},
		{"share without refill", open("{capacity: 1, refill: 1/s, per_key: {capacity: 1}}"), "endpoints.a.emergency.per_key.refill", "missing", "50/s"},
		{"share null", open("{capacity: 1, refill: 1/s, per_key: }"), "endpoints.a.emergency.per_key", "no value", "a mapping"},

		// The limits.
		{"limits missing", endpoint("policy_version: 1, fail_mode: fail_closed"), "endpoints.a.limits", "missing", "unlimited or blocked"},
		{"limits null", endpoint("policy_version: 1, fail_mode: fail_closed, limits: "), "endpoints.a.limits", "no value", "unlimited or blocked"},
		{"limits empty", tenantLimits(""), "endpoints.a.limits", "an empty list", "limits: unlimited"},
		{"limits misspelt word", endpoint("policy_version: 1, fail_mode: fail_closed, limits: unlimitted"), "endpoints.a.limits", `unknown word "unlimitted"`, "did you mean unlimited?"},
		{"limits a mapping", endpoint("policy_version: 1, fail_mode: fail_closed, limits: {}"), "endpoints.a.limits", "a mapping is not a list of limits", ""},
		{"limit a word", tenantLimits("unlimited"), "endpoints.a.limits[0]", `the text "unlimited" is not a mapping`, ""},
		{"unknown limit key", tenantLimits("{" + bucketLimit + ", burst: 5}"), "endpoints.a.limits[0].burst", "unknown key", "use one of: name, scope"},
		{"algorithm missing", tenantLimits("{capacity: 1, refill: 1/s}"), "endpoints.a.limits[0].algorithm", "missing", "token_bucket, sliding_window"},
		{"algorithm unknown", tenantLimits("{algorithm: leaky_bucket}"), "endpoints.a.limits[0].algorithm", `unknown word "leaky_bucket"`, "token_bucket"},
		{"algorithm a number", tenantLimits("{algorithm: 1}"), "endpoints.a.limits[0].algorithm", "1 is not text to every reader", `quote it: "1"`},
		{"window in a bucket", tenantLimits("{" + bucketLimit + ", window: 1m}"), "endpoints.a.limits[0].window", "a field of sliding_window in a limit of token_bucket", "token_bucket has capacity and refill"},
		{"refill in a fixed window", tenantLimits("{algorithm: fixed_window, limit: 10, window: 1m, refill: 1/s}"), "endpoints.a.limits[0].refill", "a field of token_bucket in a limit of fixed_window", "fixed_window has limit and window"},
		{"fixed window of 0", tenantLimits("{algorithm: fixed_window, limit: 0, window: 1m}"), "endpoints.a.limits[0].limit", "0 is out of range", "limits: blocked"},
		{"refill in a window", tenantLimits("{" + windowLimit + ", refill: 1/s}"), "endpoints.a.limits[0].refill", "a field of token_bucket in a limit of sliding_window", "sliding_window has limit and window"},
		{"capacity missing", tenantLimits("{algorithm: token_bucket, refill: 1/s}"), "endpoints.a.limits[0].capacity", "missing", "capacity: 100"},
		{"refill missing", tenantLimits("{algorithm: token_bucket, capacity: 1}"), "endpoints.a.limits[0].refill", "missing", "50/s"},
		{"limit missing", tenantLimits("{algorithm: sliding_window, window: 1m}"), "endpoints.a.limits[0].limit", "missing", "limit: 5000"},
		{"window missing", tenantLimits("{algorithm: sliding_window, limit: 1}"), "endpoints.a.limits[0].window", "missing", "500ms"},
		{"capacity 0", tenantLimits("{algorithm: token_bucket, capacity: 0, refill: 1/s}"), "endpoints.a.limits[0].capacity", "0 is out of range", "limits: blocked"},
		{"capacity above the bound", tenantLimits("{algorithm: token_bucket, capacity: 4503599628, refill: 1/s}"), "endpoints.a.limits[0].capacity", "4503599628 is out of range", "1..4503599627"},
		{"limit 0", tenantLimits("{algorithm: sliding_window, limit: 0, window: 1m}"), "endpoints.a.limits[0].limit", "0 is out of range", "limits: blocked"},
		{"limit above the bound", tenantLimits("{algorithm: sliding_window, limit: 4294967296, window: 1m}"), "endpoints.a.limits[0].limit", "4294967296 is out of range", "1..4294967295"},
		{"refill beyond exactness", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 4503599627370497/s}"), "endpoints.a.limits[0].refill", "4503599627370497/s is out of range", "4503599627370496"},
		{"refill of a huge count", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 99999999999999999999/s}"), "endpoints.a.limits[0].refill", "99999999999999999999/s is out of range", "4503599627370496"},
		{"refill over a huge time", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 1/9007199254740993d}"), "endpoints.a.limits[0].refill", "out of range", "4503599627370496"},
		{"refill of coprime huge parts", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 1000000007/1000000009s}"), "endpoints.a.limits[0].refill", "must be at most 2^52 = 4503599627370496", ""},
		{"refill too slow to fill", tenantLimits("{algorithm: token_bucket, capacity: 4503599627, refill: 1/d}"), "endpoints.a.limits[0].refill", "must fill within 2^52 µs (142 years)", ""},
		{"refill without unit", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 50}"), "endpoints.a.limits[0].refill", `"50" is not a refill rate`, "50/s"},
		{"refill of nothing", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 0/s}"), "endpoints.a.limits[0].refill", `"0/s" is not a refill rate`, "0 for no refill"},
		{"refill in milliseconds", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 1/100ms}"), "endpoints.a.limits[0].refill", `"1/100ms" is not a refill rate`, "units: s, m, h, d"},
		{"refill negative", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: -1/s}"), "endpoints.a.limits[0].refill", `"-1/s" is not a refill rate`, "50/s"},
		{"refill with a leading zero", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 010/s}"), "endpoints.a.limits[0].refill", `"010/s" is not a refill rate`, "50/s"},
		{"refill fraction", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 0.5/s}"), "endpoints.a.limits[0].refill", `"0.5/s" is not a refill rate`, "1/3s"},
		{"refill a mapping", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: {tokens: 1}}"), "endpoints.a.limits[0].refill", "a mapping is not a refill rate", ""},
		{"window without unit", tenantLimits("{algorithm: sliding_window, limit: 1, window: 60}"), "endpoints.a.limits[0].window", `"60" is not a window`, "1m"},
		{"window 0", tenantLimits("{algorithm: sliding_window, limit: 1, window: 0s}"), "endpoints.a.limits[0].window", `"0s" is not a window`, "500ms"},
		{"window below a millisecond", tenantLimits("{algorithm: sliding_window, limit: 1, window: 999us}"), "endpoints.a.limits[0].window", `"999us" is not a window`, "units: ms"},
		{"window of two units", tenantLimits("{algorithm: sliding_window, limit: 1, window: 1h30m}"), "endpoints.a.limits[0].window", `"1h30m" is not a window`, "a whole number and a unit"},
		{"window above the bound", tenantLimits("{algorithm: sliding_window, limit: 1, window: 3258d}"), "endpoints.a.limits[0].window", "3258d is out of range", "1ms..3257d"},
		{"name with a colon", tenantLimits("{name: 'a:b', " + bucketLimit + "}"), "endpoints.a.limits[0].name", `"a:b" is not allowed here`, "a-z 0-9"},
		{"name too long", tenantLimits("{name: " + strings.Repeat("n", 64) + ", " + bucketLimit + "}"), "endpoints.a.limits[0].name", "is not allowed here", "1 to 63"},
		{"name empty", tenantLimits("{name: '', " + bucketLimit + "}"), "endpoints.a.limits[0].name", `"" is not allowed here`, "1 to 63"},
		{"two limits without name", tenantLimits("{" + bucketLimit + "}, {" + windowLimit + "}"), "endpoints.a.limits[1]", "a second limit without name", "the one in line 3 owns the key"},
		{"two limits of one name", tenantLimits("{name: x, " + bucketLimit + "}, {name: x, scope: global, " + windowLimit + "}"), "endpoints.a.limits[1].name", `the name "x" stands twice`, "the first is in line 3"},

		// Scopes.
		{"cookie of a tenant", tenantLimits("{scope: cookie, " + windowLimit + "}"), "endpoints.a.limits[0].scope", "scope cookie with identity: tenant_jwt", "tenant, user, client_ip, global"},
		{"tenant of an anonymous caller", anonymousLimits("{scope: tenant, " + windowLimit + "}"), "endpoints.a.limits[0].scope", "scope tenant with identity: anonymous", "cookie, client_ip, global"},
		{"user of an anonymous caller", anonymousLimits("{scope: user, " + windowLimit + "}"), "endpoints.a.limits[0].scope", "scope user with identity: anonymous", "cookie, client_ip, global"},
		{"anonymous without scope", anonymousLimits("{" + windowLimit + "}"), "endpoints.a.limits[0].scope", "missing with identity: anonymous", "cookie, client_ip, global"},
		{"scope unknown", tenantLimits("{scope: ip, " + windowLimit + "}"), "endpoints.a.limits[0].scope", `unknown word "ip"`, "use one of: tenant, user, client_ip, cookie, global"},
		{"cookies alone", anonymousLimits("{scope: cookie, " + bucketLimit + "}, {name: b, scope: cookie, " + windowLimit + "}"), "endpoints.a.limits", "a caller without a cookie meets none", "scope: client_ip"},
		{"rate 0 by cookie", anonymousLimits("{scope: cookie, algorithm: token_bucket, capacity: 1, refill: 0}, {name: ip, scope: client_ip, " + bucketLimit + "}"), "endpoints.a.limits[0].refill", "refill 0 with scope cookie", "a stranger can mint"},
		{"rate 0 by address", tenantLimits("{scope: client_ip, algorithm: token_bucket, capacity: 1, refill: 0}"), "endpoints.a.limits[0].refill", "refill 0 with scope client_ip", "a stranger can mint"},

		// Costs.
		{"max_cost 0", tenantLimits("{" + bucketLimit + ", max_cost: 0}"), "endpoints.a.limits[0].max_cost", "0 is out of range", "1..10"},
		{"max_cost above the capacity", tenantLimits("{" + bucketLimit + ", max_cost: 11}"), "endpoints.a.limits[0].max_cost", "11 is out of range", "1..10"},
		{"max_cost above the limit", tenantLimits("{" + windowLimit + ", max_cost: 11}"), "endpoints.a.limits[0].max_cost", "11 is out of range", "1..10"},
		{"charge after without max_cost", tenantLimits("{" + bucketLimit + ", charge: after}"), "endpoints.a.limits[0].max_cost", "missing with charge: after", "the largest cost"},
		{"charge unknown", tenantLimits("{" + bucketLimit + ", charge: later}"), "endpoints.a.limits[0].charge", `unknown word "later"`, "before, after"},
		{"charge before and after", tenantLimits("{" + bucketLimit + "}, {name: x, " + bucketLimit + ", charge: after, max_cost: 5}"), "endpoints.a.limits[1].charge", "limits that charge before beside limits that charge after", "an endpoint of their own"},
		{"refunds a number", tenantLimits("{" + bucketLimit + ", refunds: 1}"), "endpoints.a.limits[0].refunds", "1 is not true or false", ""},

		// Tenant replacements.
		{"tenants empty", closed("tenants: {}"), "endpoints.a.tenants", "an empty mapping", "at least one tenant"},
		{"tenants null", closed("tenants: "), "endpoints.a.tenants", "no value", "a mapping by tenant"},
		{"tenants of anonymous callers", closed("identity: anonymous, tenants: {acme: {mode: shadow}}"), "endpoints.a.tenants", "tenants with identity: anonymous", "no tenant"},
		{"tenant null", closed("tenants: {acme: }"), "endpoints.a.tenants.acme", "no value", "a mapping"},
		{"tenant replaces nothing", closed("tenants: {acme: {}}"), "endpoints.a.tenants.acme", "an empty replacement", "limits, emergency, mode"},
		{"tenant replaces what it may not", closed("tenants: {acme: {fail_mode: fail_open}}"), "endpoints.a.tenants.acme.fail_mode", "unknown key", "limits, emergency, mode"},
		{"tenant name empty", closed(`tenants: {"": {mode: shadow}}`), `endpoints.a.tenants.""`, `"" is not a tenant name`, "1 to 1024"},
		{"tenant name too long", closed(`tenants: {? ` + strings.Repeat("t", 1025) + ` : {mode: shadow}}`), "endpoints.a.tenants.", "is not a tenant name", "1 to 1024"},
		{"tenant name with hidden space", closed(`tenants: {"ac\u00a0me": {mode: shadow}}`), "endpoints.a.tenants.", "is not a tenant name", "visible"},
		{"tenant name with space at its end", closed(`tenants: {"acme ": {mode: shadow}}`), "endpoints.a.tenants.", "is not a tenant name", "without space at either end"},
		{"tenant emergency with fail_closed", closed("tenants: {acme: {emergency: {capacity: 1, refill: 1/s}}}"), "endpoints.a.tenants.acme.emergency", "emergency with fail_mode: fail_closed", "remove it"},
		{"global limit that the policy lacks", replaced("{"+bucketLimit+"}", "{name: all, scope: global, "+windowLimit+"}"), "endpoints.a.tenants.acme.limits", `a global limit "all" that the policy itself does not have`, "add it to the policy's own limits"},
		{"global limit of another scope there", replaced("{name: all, "+windowLimit+"}", "{name: all, scope: global, "+windowLimit+"}"), "endpoints.a.tenants.acme.limits", `a global limit "all" that the policy itself does not have`, "add it"},
		{"global limit of another algorithm", replaced("{scope: global, "+windowLimit+"}", "{scope: global, "+bucketLimit+"}"), "endpoints.a.tenants.acme.limits", "the global limit without name has another algorithm or window than in line 3", "keep the policy's algorithm"},
		{"global limit of another window", replaced("{name: all, scope: global, "+windowLimit+"}", "{name: all, scope: global, algorithm: sliding_window, limit: 10, window: 2m}"), "endpoints.a.tenants.acme.limits", `the global limit "all" has another algorithm or window than in line 3`, "keep the policy's algorithm"},
		{"address limit of another algorithm", replaced("{scope: client_ip, "+windowLimit+"}", "{scope: client_ip, "+bucketLimit+"}"), "endpoints.a.tenants.acme.limits", "the client_ip limit without name has another algorithm or window than in line 3", "keep the policy's algorithm"},
		{"global bucket of another capacity", replaced("{scope: global, "+bucketLimit+"}", "{scope: global, "+strings.Replace(bucketLimit, "10", "20", 1)+"}"), "endpoints.a.tenants.acme.limits", "the global limit without name has another capacity or refill than in line 3", "keep the policy's numbers"},
		{"global bucket of another refill", replaced("{name: all, scope: global, algorithm: token_bucket, capacity: 9, refill: 1/s}", "{name: all, scope: global, algorithm: token_bucket, capacity: 9, refill: 2/s}"), "endpoints.a.tenants.acme.limits", `the global limit "all" has another capacity or refill than in line 3`, "cannot refill at two rates"},
		{"address bucket of another capacity", replaced("{scope: client_ip, algorithm: token_bucket, capacity: 9, refill: 1/s}", "{scope: client_ip, algorithm: token_bucket, capacity: 8, refill: 1/s}"), "endpoints.a.tenants.acme.limits", "the client_ip limit without name has another capacity or refill than in line 3", "scope: tenant"},
		{"two limits without name for a tenant", replaced("{"+bucketLimit+"}", "{"+bucketLimit+"}, {"+windowLimit+"}"), "endpoints.a.tenants.acme.limits[1]", "a second limit without name", "name it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := refusals(t, file("f.yaml", c.text))
			if len(got) != 1 {
				t.Fatalf("%d problems, want one:\n%s", len(got), strings.Join(got, "\n"))
			}
			_, rest, _ := strings.Cut(got[0], ": ")
			path, rest, _ := strings.Cut(rest, ": ")
			if !strings.HasPrefix(got[0], "f.yaml:") || !strings.HasPrefix(path, c.path) || !strings.Contains(rest, c.problem) || !strings.Contains(rest, c.hint) {
				t.Errorf("got  %s\nwant f.yaml:…: %s: …%s…; …%s…", got[0], c.path, c.problem, c.hint)
			}
		})
	}
}

func TestParseRefusesAnEmptySet(t *testing.T) {
	t.Parallel()
	_, err := descriptors.Parse(nil, descriptors.Options{})
	if want := "no policy files; name at least one file with domain and endpoints"; err == nil || err.Error() != want {
		t.Errorf("no files: error %v, want %s", err, want)
	}
	for text, want := range map[string]string{
		"":            "f.yaml: the file is empty; a policy file holds domain and endpoints",
		"# nothing\n": "f.yaml: the file is empty; a policy file holds domain and endpoints",
		"null":        "f.yaml:1: no value; it must be a mapping with domain and endpoints",
		"---\n":       "f.yaml:2: no value; it must be a mapping with domain and endpoints",
		"[]":          "f.yaml:1: a list is not a mapping with domain and endpoints",
		"!":           "f.yaml:1: the tag !; tags are not used here: remove it",
		"shop":        `f.yaml:1: the text "shop" is not a mapping with domain and endpoints`,
	} {
		if got := refusals(t, file("f.yaml", text)); got[0] != want || len(got) > 1 {
			t.Errorf("%q: %q, want %s", text, got, want)
		}
	}
}

func TestParseRefusesABadKeyPrefix(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"{a}", "a b", "é", strings.Repeat("x", 129), "a\n"} {
		_, err := descriptors.Parse([]descriptors.File{file("f.yaml", shop)}, descriptors.Options{KeyPrefix: prefix})
		if err == nil || !strings.Contains(err.Error(), "the key prefix ") {
			t.Errorf("prefix %q: error %v", prefix, err)
		}
	}
}

// A file of nothing but mistakes costs a bounded error.
func TestParseBoundsItsError(t *testing.T) {
	t.Parallel()
	got := refusals(t, file("f.yaml", "domain: shop\nendpoints:\n  a:\n"+strings.Repeat("    x: 1\n", 5000)))
	if len(got) != 1001 {
		t.Fatalf("%d lines, want 1000 problems and the count of the others", len(got))
	}
	if want := "4003 further problems are not shown"; got[1000] != want {
		t.Errorf("last line %q, want %q", got[1000], want)
	}
}

// One domain may stand in several files; an endpoint may not, whatever its domain.
func TestParseJoinsDomainsOverFiles(t *testing.T) {
	t.Parallel()
	one := func(domain, id string) string {
		return fmt.Sprintf("domain: %s\nendpoints:\n  %s: {policy_version: 1, fail_mode: fail_closed, limits: blocked}\n", domain, id)
	}
	set := parseFiles(t, file("a.yaml", one("shop", "a")), file("b.yaml", one("shop", "b")), file("c.yaml", one("bank", "c")))
	d, ok := set.Domain("shop")
	if !ok {
		t.Fatal("no domain shop")
	}
	for id, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if _, ok := d.Lookup(id); ok != want {
			t.Errorf("shop has %s: %v, want %v", id, ok, want)
		}
	}
	got := refusals(t, file("a.yaml", one("shop", "same")), file("b.yaml", one("shop", "other")), file("c.yaml", one("bank", "same")))
	want := []string{`c.yaml:3: endpoints.same: the endpoint "same" stands twice; rename or remove one: the first is in a.yaml:3, domain "shop"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
