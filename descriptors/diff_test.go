package descriptors_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// diff returns what changes from one file to another, a line each; before and after are the texts of shop.yaml.
func diff(t testing.TB, before, after string) []string {
	t.Helper()
	var lines []string
	for _, c := range descriptors.Diff(parse(t, before), parse(t, after)) {
		lines = append(lines, c.String())
	}
	return lines
}

const diffPolicies = `domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 25/s}
    limits:
      - {algorithm: token_bucket, capacity: 100, refill: 50/s}
      - {name: all, scope: global, algorithm: sliding_window, limit: 5000, window: 1m}
    tenants:
      acme: {limits: [{algorithm: token_bucket, capacity: 1000, refill: 500/s}]}
  login:
    policy_version: 1
    identity: anonymous
    fail_mode: fail_closed
    limits: [{scope: client_ip, algorithm: sliding_window, limit: 30, window: 1m}]
`

func TestDiffSaysWhatChangesForWhom(t *testing.T) {
	t.Parallel()
	const orders = "shop.yaml:3: shop orders: "
	for name, c := range map[string]struct {
		old, new string // replaced in the policies
		want     []string
	}{
		"nothing": {"", "", nil},
		"a larger burst": {"capacity: 100,", "capacity: 150,", []string{
			"shop.yaml:8: shop orders, everyone but tenant \"acme\": limit without name: token_bucket, capacity 100, refill 50/s -> token_bucket, capacity 150, refill 50/s; loosens by 50 %",
		}},
		"a larger burst, a smaller rate": {"capacity: 100, refill: 50/s", "capacity: 110, refill: 40/s", []string{
			"shop.yaml:8: shop orders, everyone but tenant \"acme\": limit without name: token_bucket, capacity 100, refill 50/s -> token_bucket, capacity 110, refill 40/s; loosens by 10 %, tightens by 20 %",
		}},
		"one tenant": {"capacity: 1000", "capacity: 500", []string{
			"shop.yaml:11: shop orders, tenant \"acme\": limit without name: token_bucket, capacity 1000, refill 500/s -> token_bucket, capacity 500, refill 500/s; tightens by 50 %",
		}},
		"one tenant is like all": {"    tenants:\n      acme: {limits: [{algorithm: token_bucket, capacity: 1000, refill: 500/s}]}\n", "", []string{
			"shop.yaml:8: shop orders, tenant \"acme\": limit without name: token_bucket, capacity 1000, refill 500/s -> token_bucket, capacity 100, refill 50/s; tightens by 90 %",
			"shop.yaml:9: shop orders, tenant \"acme\": limit added \"all\": global, sliding_window, limit 5000, window 1m; tightens without a measure",
		}},
		"another window": {"limit: 5000, window: 1m", "limit: 5000, window: 2m", []string{
			"shop.yaml:9: shop orders, everyone but tenant \"acme\": limit \"all\": sliding_window, limit 5000, window 1m -> sliding_window, limit 5000, window 2m; tightens by 50 %",
		}},
		"another algorithm": {"algorithm: token_bucket, capacity: 100, refill: 50/s", "algorithm: sliding_window, limit: 3000, window: 1m", []string{
			"shop.yaml:8: shop orders, everyone but tenant \"acme\": limit without name: token_bucket, capacity 100, refill 50/s -> sliding_window, limit 3000, window 1m; loosens by 2900 %",
		}},
		"never refills": {"capacity: 100, refill: 50/s", "capacity: 100, refill: 0", []string{
			"shop.yaml:8: shop orders, everyone but tenant \"acme\": limit without name: token_bucket, capacity 100, refill 50/s -> token_bucket, capacity 100, refill 0; tightens by 100 %",
		}},
		"a limit less": {"      - {name: all, scope: global, algorithm: sliding_window, limit: 5000, window: 1m}\n", "", []string{
			"shop.yaml:9: shop orders, everyone but tenant \"acme\": limit removed \"all\", was global, sliding_window, limit 5000, window 1m; loosens without a measure",
		}},
		"a limit of another scope is another limit": {"name: all, scope: global", "name: all, scope: user", []string{
			"shop.yaml:9: shop orders, everyone but tenant \"acme\": limit removed \"all\", was global, sliding_window, limit 5000, window 1m; loosens without a measure",
			"shop.yaml:9: shop orders, everyone but tenant \"acme\": limit added \"all\": user, sliding_window, limit 5000, window 1m; tightens without a measure",
		}},
		"costs": {"capacity: 100, refill: 50/s", "capacity: 100, refill: 50/s, max_cost: 5, refunds: true", []string{
			"shop.yaml:8: shop orders, everyone but tenant \"acme\": max_cost of limit without name: 1 -> 5; loosens by 400 %",
			"shop.yaml:8: shop orders, everyone but tenant \"acme\": refunds of limit without name: false -> true; loosens without a measure",
		}},
		"charged after": {"limits: [{scope: client_ip,", "limits: [{max_cost: 1, charge: after, scope: client_ip,", []string{
			"shop.yaml:16: shop login: charge of limit without name: before -> after; loosens without a measure",
		}},
		"a version": {"policy_version: 1\n    fail_mode", "policy_version: 2\n    fail_mode", []string{
			orders + "policy_version: 1 -> 2; every bucket starts afresh",
		}},
		"shadow": {"fail_mode: fail_open", "mode: shadow\n    fail_mode: fail_open", []string{
			orders + "mode: enforce -> shadow; loosens without a measure",
		}},
		"shadow for one": {"acme: {limits", "acme: {mode: shadow, limits", []string{
			"shop.yaml:11: shop orders, tenant \"acme\": mode: enforce -> shadow; loosens without a measure",
		}},
		"counted elsewhere": {"fail_mode: fail_open", "count: false\n    fail_mode: fail_open", []string{
			orders + "count: true -> false; loosens without a measure",
		}},
		"scopes": {"fail_mode: fail_open", "required_scopes: [write, read]\n    fail_mode: fail_open", []string{
			orders + "required_scopes: none -> write read; tightens without a measure",
		}},
		"everything": {"limits:\n      - {algorithm: token_bucket, capacity: 100, refill: 50/s}\n      - {name: all, scope: global, algorithm: sliding_window, limit: 5000, window: 1m}\n", "limits: unlimited\n", []string{
			"shop.yaml:3: shop orders, everyone but tenant \"acme\": limits: limited -> unlimited; loosens without a measure",
		}},
		"nobody": {"limits: [{scope: client_ip, algorithm: sliding_window, limit: 30, window: 1m}]", "limits: blocked", []string{
			"shop.yaml:12: shop login: limits: limited -> blocked; tightens without a measure",
		}},
		"fail mode": {"fail_mode: fail_open\n    emergency: {capacity: 50, refill: 25/s}", "fail_mode: fail_closed", []string{
			orders + "fail_mode: fail_open, at most 50 + 25/s x T per process in an outage of length T -> fail_closed; tightens without a measure, while the store is away",
		}},
		"cap": {"capacity: 50, refill: 25/s", "capacity: 50, refill: 50/s", []string{
			orders + "emergency: capacity 50, refill 25/s -> capacity 50, refill 50/s; loosens by 100 %, while the store is away",
		}},
		"the cap of the fleet": {"capacity: 50, refill: 25/s", "capacity: 100, refill: 50/s, across: fleet, min_processes: 4", []string{
			orders + "emergency: capacity 50, refill 25/s -> capacity 100, refill 50/s, across the fleet of at least 4; tightens by 50 %, while the store is away",
		}},
		"shares of the cap": {"capacity: 50, refill: 25/s", "capacity: 50, refill: 25/s, per_key: {capacity: 5, refill: 1/s}", []string{
			orders + "emergency: capacity 50, refill 25/s -> capacity 50, refill 25/s, per_key capacity 5, refill 1/s; tightens without a measure, while the store is away",
		}},
		"identity": {"identity: anonymous", "identity: tenant_jwt", []string{
			"shop.yaml:12: shop login: identity: anonymous -> tenant_jwt; tightens without a measure",
		}},
		"an endpoint more": {"  login:", "  logout: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}\n  login:", []string{
			"shop.yaml:12: shop logout: endpoint added: unknown, refused -> policy_version 1, tenant_jwt, fail_closed, unlimited; loosens without a measure",
		}},
		"an endpoint less": {"  login:", "  other:", []string{
			"shop.yaml:12: shop login: endpoint removed: policy_version 1, anonymous, fail_closed -> unknown, refused; tightens without a measure",
			"shop.yaml:12: shop other: endpoint added: unknown, refused -> policy_version 1, anonymous, fail_closed; loosens without a measure",
		}},
		"an endpoint that default answers for": {"  login:", "  default:", []string{
			"shop.yaml:12: shop default: endpoint added: unknown, refused -> policy_version 1, anonymous, fail_closed; loosens without a measure",
			"shop.yaml:12: shop login: endpoint removed: policy_version 1, anonymous, fail_closed -> answered by the endpoint default (shop.yaml:12); loosens without a measure, tightens without a measure",
		}},
		"another domain": {"domain: shop", "domain: store", []string{
			"shop.yaml:12: shop login: endpoint removed: policy_version 1, anonymous, fail_closed -> of an unknown domain, admitted; loosens without a measure",
			"shop.yaml:12: store login: endpoint added: of an unknown domain, admitted -> policy_version 1, anonymous, fail_closed; tightens without a measure",
			"shop.yaml:3: shop orders: endpoint removed: policy_version 1, tenant_jwt, fail_open -> of an unknown domain, admitted; loosens without a measure",
			"shop.yaml:3: store orders: endpoint added: of an unknown domain, admitted -> policy_version 1, tenant_jwt, fail_open; tightens without a measure",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := strings.Replace(diffPolicies, c.old, c.new, 1)
			if c.old != "" && after == diffPolicies {
				t.Fatalf("%q is not in the policies", c.old)
			}
			if d := cmp.Diff(c.want, diff(t, diffPolicies, after)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

const diffRules = `domain: mesh
descriptors:
  - key: plan
    value: gold
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: plan
    rate_limit: {unit: minute, requests_per_unit: 10}
    descriptors:
      - key: user
        value: bot-*
        rate_limit: {unit: second, requests_per_unit: 1}
  - key: path
    rate_limit:
      - {name: short, unit: second, requests_per_unit: 5}
      - {name: long, unit: day, requests_per_unit: 1000}
`

func TestDiffOfDropInRules(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		old, new string
		want     []string
	}{
		"nothing": {"", "", nil},
		"numbers": {"requests_per_unit: 100}", "requests_per_unit: 120}", []string{
			"shop.yaml:3: mesh plan=gold: limit number 1: 100 per minute -> 120 per minute; loosens by 20 %",
		}},
		"an exemption": {"    rate_limit: {unit: minute, requests_per_unit: 100}\n", "", []string{
			"shop.yaml:3: mesh plan=gold: rule removed, was 100 per minute; fail_open; loosens without a measure",
		}},
		"what is more general takes over": {"  - key: plan\n    value: gold\n    rate_limit: {unit: minute, requests_per_unit: 100}\n", "", []string{
			"shop.yaml:3: mesh plan=gold: limit number 1: 100 per minute -> 10 per minute; tightens by 90 %",
		}},
		"shadow": {"requests_per_unit: 100}", "requests_per_unit: 100}\n    shadow_mode: true", []string{
			"shop.yaml:3: mesh plan=gold: shadow_mode: false -> true; loosens without a measure",
		}},
		"one bucket for all bots": {"value: bot-*\n", "value: bot-*\n        share_threshold: true\n", []string{
			"shop.yaml:9: mesh plan=(any) user=bot-(any): share_threshold: [false false] -> [false true]; tightens without a measure",
		}},
		"unlimited": {"rate_limit: {unit: minute, requests_per_unit: 100}", "rate_limit: {unlimited: true}", []string{
			"shop.yaml:3: mesh plan=gold: rate_limit: 100 per minute; fail_open -> fail_open, unlimited; loosens without a measure",
		}},
		"a limit of two": {"      - {name: long, unit: day, requests_per_unit: 1000}\n", "", []string{
			"shop.yaml:12: mesh path=(any): limit removed number 2, was 1000 per day; loosens without a measure",
		}},
		"a name": {"name: long", "name: daily, replaces: [{name: short}]", []string{
			`shop.yaml:12: mesh path=(any): name and replaces of limit number 2: "long" -> "daily", replaces short; loosens without a measure, tightens without a measure`,
		}},
		"several units": {"unit: day, requests_per_unit: 1000", "unit: day, unit_multiplier: 2, requests_per_unit: 1000", []string{
			"shop.yaml:12: mesh path=(any): limit number 2: 1000 per day -> 1000 per 2 days; tightens by 50 %",
		}},
		"refused without the store": {"requests_per_unit: 100}", "requests_per_unit: 100}\n    fail_mode: fail_closed", []string{
			"shop.yaml:3: mesh plan=gold: fail_mode: fail_open -> fail_closed; tightens without a measure, while the store is away",
		}},
		"a domain less": {"domain: mesh", "domain: grid", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := strings.Replace(diffRules, c.old, c.new, 1)
			if c.old != "" && after == diffRules {
				t.Fatalf("%q is not in the rules", c.old)
			}
			got := diff(t, diffRules, after)
			if name == "a domain less" {
				if len(got) != 8 || !strings.Contains(got[0], "mesh") && !strings.Contains(got[0], "grid") {
					t.Errorf("%d changes, want each of the four rules once gone and once new:\n%s", len(got), strings.Join(got, "\n"))
				}
				return
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// What one way loosens the other way tightens; nothing changes from a set to itself.
func TestDiffIsSymmetric(t *testing.T) {
	t.Parallel()
	number := rapid.Int64Range(1, 1000)
	policies := rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteString("domain: shop\nendpoints:\n")
		for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "default"}), 1, 4, rapid.ID[string]).Draw(t, "ids") {
			n := func(what string) int64 { return number.Draw(t, what) }
			fmt.Fprintf(&b, "  %s: {policy_version: %d, fail_mode: fail_closed, mode: %s, limits: %s}\n", id, 1+n("version")%2,
				rapid.SampledFrom([]string{"enforce", "shadow"}).Draw(t, "mode"),
				rapid.SampledFrom([]string{
					"blocked", "unlimited",
					fmt.Sprintf("[{algorithm: token_bucket, capacity: %d, refill: %d/m}]", n("capacity"), n("refill")),
					fmt.Sprintf("[{algorithm: sliding_window, limit: %d, window: %ds}]", n("limit"), n("window")),
					fmt.Sprintf("[{algorithm: token_bucket, capacity: 10, refill: 0}, {name: x, algorithm: fixed_window, limit: %d, window: 1m}]", n("fixed")),
				}).Draw(t, "limits"))
		}
		return b.String()
	})
	rapid.Check(t, func(t *rapid.T) {
		one, other := policies.Draw(t, "one"), policies.Draw(t, "other")
		a, err := descriptors.Parse([]descriptors.File{file("a", one)}, descriptors.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := descriptors.Parse([]descriptors.File{file("a", other)}, descriptors.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if self := descriptors.Diff(a, a); len(self) > 0 {
			t.Fatalf("from itself to itself: %v", self)
		}
		there, back := descriptors.Diff(a, b), descriptors.Diff(b, a)
		if len(there) != len(back) {
			t.Fatalf("%d changes there, %d back:\n%v\n%v", len(there), len(back), there, back)
		}
		for _, c := range there {
			if !slices.ContainsFunc(back, func(o descriptors.Change) bool {
				return c.Endpoint == o.Endpoint && c.Old == o.New && c.New == o.Old &&
					(c.Loosens > 0) == (o.Tightens > 0) && (c.Tightens > 0) == (o.Loosens > 0)
			}) {
				t.Fatalf("%v has no counterpart in %v", c, back)
			}
		}
	})
}

func TestChangesAsJSON(t *testing.T) {
	t.Parallel()
	after := strings.NewReplacer("capacity: 100, refill: 50/s", "capacity: 110, refill: 50/s", "    tenants:", "    mode: shadow\n    tenants:").Replace(diffPolicies)
	text, err := json.Marshal(descriptors.Diff(parse(t, diffPolicies), parse(t, after)))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"domain":"shop","endpoint":"orders","whom":"everyone","what":"mode","old":"enforce","new":"shadow",` +
		`"loosens":"unbounded","tightens":0,"file":"shop.yaml","line":3},` +
		`{"domain":"shop","endpoint":"orders","whom":"everyone but tenant \"acme\"","what":"limit","limit":"without name",` +
		`"old":"token_bucket, capacity 100, refill 50/s","new":"token_bucket, capacity 110, refill 50/s","loosens":10,"tightens":0,` +
		`"file":"shop.yaml","line":8}]`
	if string(text) != want {
		t.Errorf("JSON\n%s\nwant\n%s", text, want)
	}
}
