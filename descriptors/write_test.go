package descriptors_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

type object = map[string]any

// writeJSON writes a set of one domain as a policy file, endpoints and tenants in the order of Policy.Index.
func writeJSON(set *descriptors.Set) string {
	var endpoints, tenants []string
	domain := ""
	for _, p := range slices.Backward(set.Policies()) {
		domain = p.Domain
		if p.Tenant != "" {
			tenants = append(tenants, text(p.Tenant)+": "+text(replacementObject(p)))
			continue
		}
		o := policyObject(p)
		if len(tenants) > 0 {
			o["tenants"] = json.RawMessage(braces(tenants))
			tenants = nil
		}
		endpoints = append(endpoints, text(p.Endpoint)+": "+text(o))
	}
	return fmt.Sprintf(`{"domain": %s, "endpoints": %s}`, text(domain), braces(endpoints))
}

// braces joins pairs that were collected from the last to the first.
func braces(pairs []string) string {
	slices.Reverse(pairs)
	return "{" + strings.Join(pairs, ", ") + "}"
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func policyObject(p *descriptors.Policy) object {
	o := object{
		"policy_version": p.Version, "identity": p.Identity.String(), "fail_mode": p.FailMode.String(), "mode": p.Mode.String(),
		"count": p.Count, "limits": limitsObject(p),
	}
	if len(p.RequiredScopes) > 0 {
		o["required_scopes"] = p.RequiredScopes
	}
	if p.FailMode == descriptors.FailOpen {
		o["emergency"] = emergencyObject(p.Emergency)
	}
	return o
}

func replacementObject(p *descriptors.Policy) object {
	o := object{"limits": limitsObject(p), "mode": p.Mode.String()}
	if p.OwnEmergency {
		o["emergency"] = emergencyObject(p.Emergency)
	}
	return o
}

func emergencyObject(e descriptors.Emergency) object {
	o := object{"capacity": e.Capacity, "refill": refillText(e.Refill)}
	if e.PerKey != nil {
		o["per_key"] = object{"capacity": e.PerKey.Capacity, "refill": refillText(e.PerKey.Refill)}
	}
	if e.Fleet {
		o["across"], o["min_processes"] = "fleet", e.MinProcesses
	}
	return o
}

func refillText(r algorithms.Rate) any {
	if r.Tokens == 0 {
		return 0
	}
	return fmt.Sprintf("%d/%ds", r.Tokens, r.Seconds)
}

func limitsObject(p *descriptors.Policy) any {
	switch p.Verdict {
	case descriptors.Unlimited:
		return "unlimited"
	case descriptors.Blocked:
		return "blocked"
	}
	limits := make([]object, len(p.Limits))
	for i, l := range p.Limits {
		o := object{"scope": l.Scope.String(), "algorithm": l.Rule.Kind().String(), "max_cost": l.MaxCost, "refunds": l.Refunds, "charge": "before"}
		if l.ChargeAfter {
			o["charge"] = "after"
		}
		if l.Name != "" {
			o["name"] = l.Name
		}
		if l.Rule.Kind() == algorithms.TokenBucket {
			o["capacity"], o["refill"] = l.Rule.Limit(), refillText(l.Rule.Refill())
		} else {
			o["limit"], o["window"] = l.Rule.Limit(), fmt.Sprintf("%dms", l.Rule.Window().Duration()/time.Millisecond)
		}
		limits[i] = o
	}
	return limits
}

// What follows draws policy files that are good, as an operator might write them.

var drawName = rapid.StringMatching(`[a-z0-9._-]{1,63}`)

func drawFile(t *rapid.T) string {
	ids := rapid.SliceOfNDistinct(drawName, 1, 4, rapid.ID).Draw(t, "endpoints")
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %q\nendpoints:\n", rapid.StringMatching(`[!-~]{1,40}`).Draw(t, "domain"))
	for _, id := range ids {
		fmt.Fprintf(&b, "  %q:\n%s", id, drawPolicy(t))
	}
	return b.String()
}

func drawPolicy(t *rapid.T) string {
	scopes := []string{"tenant", "user", "client_ip", "global"}
	anonymous := rapid.Bool().Draw(t, "anonymous")
	var b strings.Builder
	fmt.Fprintf(&b, "    policy_version: %d\n", rapid.Int64Range(1, 1<<53-1).Draw(t, "version"))
	if anonymous {
		scopes = []string{"cookie", "client_ip", "global"}
		b.WriteString("    identity: anonymous\n")
	}
	open := rapid.Bool().Draw(t, "open")
	if open {
		fleet := ""
		if rapid.Bool().Draw(t, "fleet") {
			fleet = ", across: fleet, min_processes: 1"
		}
		fmt.Fprintf(&b, "    fail_mode: fail_open\n    emergency: {%s, per_key: {%s}%s}\n", drawBucket(t, 0), drawBucket(t, 0), fleet)
	} else {
		b.WriteString("    fail_mode: fail_closed\n")
	}
	if rapid.Bool().Draw(t, "shadow") {
		b.WriteString("    mode: shadow\n    count: false\n")
	}
	limits := drawLimits(t, scopes)
	fmt.Fprintf(&b, "    limits: %s\n", limits)
	if anonymous {
		return b.String()
	}
	b.WriteString("    required_scopes: [a, 'b:c']\n    tenants:\n      acme: {mode: shadow}\n")
	// Never global or client_ip: those must match the policy's own.
	fmt.Fprintf(&b, "      %q: {limits: %s}\n", rapid.StringMatching(`[a-z|@ü]{1,20}x`).Draw(t, "tenant"), drawLimits(t, scopes[:2]))
	if open {
		fmt.Fprintf(&b, "      '42': {emergency: {%s}}\n", drawBucket(t, 0))
	}
	return b.String()
}

func drawLimits(t *rapid.T, scopes []string) string {
	if word := rapid.SampledFrom([]string{"", "", "", "unlimited", "blocked"}).Draw(t, "word"); word != "" {
		return word
	}
	all := scopes
	scopes = slices.DeleteFunc(slices.Clone(scopes), func(s string) bool { return s == "cookie" })
	names := append([]string{""}, rapid.SliceOfNDistinct(drawName, 0, 3, rapid.ID).Draw(t, "names")...)
	after := rapid.Bool().Draw(t, "after")
	limits := make([]string, len(names))
	for i, name := range names {
		if i > 0 { // the first is not of a cookie: these may not stand alone
			scopes = all
		}
		limits[i] = drawLimit(t, name, rapid.SampledFrom(scopes).Draw(t, "scope"), after)
	}
	return "[" + strings.Join(limits, ", ") + "]"
}

func drawLimit(t *rapid.T, name, scope string, after bool) string {
	l := "scope: " + scope
	if name != "" {
		l += fmt.Sprintf(", name: %q", name)
	}
	most := int64(100)
	if rapid.Bool().Draw(t, "bucket") {
		l += ", algorithm: token_bucket, " + drawBucket(t, 1)
	} else {
		window := rapid.SampledFrom([]string{"1ms", "1500ms", "1s", "1m", "24h", "3257d"}).Draw(t, "window")
		algorithm := rapid.SampledFrom([]string{"sliding_window", "fixed_window"}).Draw(t, "algorithm")
		l += fmt.Sprintf(", algorithm: %s, limit: %d, window: %s", algorithm, rapid.Int64Range(most, 1<<32-1).Draw(t, "limit"), window)
	}
	if after {
		l += ", charge: after"
	}
	if after || rapid.Bool().Draw(t, "costly") {
		l += fmt.Sprintf(", max_cost: %d, refunds: %v", rapid.Int64Range(1, most).Draw(t, "max_cost"), rapid.Bool().Draw(t, "refunds"))
	}
	return "{" + l + "}"
}

// drawBucket draws a refill of at least least tokens.
func drawBucket(t *rapid.T, least int64) string {
	capacity := rapid.Int64Range(100, 10_000).Draw(t, "capacity")
	tokens := rapid.Int64Range(least, 1_000_000).Draw(t, "tokens")
	if tokens == 0 {
		return fmt.Sprintf("capacity: %d, refill: 0", capacity)
	}
	unit := rapid.SampledFrom([]string{"s", "3s", "m", "h", "d"}).Draw(t, "unit")
	return fmt.Sprintf("capacity: %d, refill: %d/%s", capacity, tokens, unit)
}
