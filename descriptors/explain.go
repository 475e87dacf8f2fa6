package descriptors

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// PolicyText is a policy in the words of its file, for people and their tools.
type PolicyText struct {
	Domain         string         `json:"domain"`
	Endpoint       string         `json:"endpoint"`
	Tenant         string         `json:"tenant,omitempty"` // a replacement, for this tenant
	Version        int64          `json:"policy_version"`
	Identity       string         `json:"identity"`
	FailMode       string         `json:"fail_mode"`
	Emergency      *EmergencyText `json:"emergency,omitempty"`
	Mode           string         `json:"mode"`
	Count          bool           `json:"count"`
	RequiredScopes []string       `json:"required_scopes,omitempty"`
	Verdict        string         `json:"verdict"` // limited, unlimited, blocked
	File           string         `json:"file"`
	Line           int            `json:"line"`
}

// Text describes the policy without its limits.
func (p *Policy) Text() PolicyText {
	t := PolicyText{
		Domain: p.Domain, Endpoint: p.Endpoint, Tenant: p.Tenant, Version: p.Version,
		Identity: p.Identity.String(), FailMode: p.FailMode.String(), Mode: p.Mode.String(), Count: p.Count,
		RequiredScopes: p.RequiredScopes, Verdict: p.Verdict.String(), File: p.File, Line: p.Line,
	}
	if p.FailMode == FailOpen {
		t.Emergency = p.Emergency.text()
	}
	return t
}

// String returns the policy on one line, without its place.
func (t PolicyText) String() string {
	parts := []string{t.Identity, t.FailMode}
	if t.Mode != Enforce.String() {
		parts = append(parts, t.Mode)
	}
	if !t.Count {
		parts = append(parts, "count: false")
	}
	if len(t.RequiredScopes) > 0 {
		parts = append(parts, "scopes "+strings.Join(t.RequiredScopes, " "))
	}
	if t.Verdict != limitedText {
		parts = append(parts, t.Verdict)
	}
	return fmt.Sprintf("policy_version %d, %s", t.Version, strings.Join(parts, ", "))
}

const limitedText = "limited"

// String returns the verdict in lower case; limited has no word in policies.
func (v Verdict) String() string {
	if v == Limited {
		return limitedText
	}
	return nameOf(verdictNames, v)
}

// EmergencyText is an emergency cap in the words of its file.
type EmergencyText struct {
	Capacity int64       `json:"capacity"`
	Refill   string      `json:"refill"`
	PerKey   *BucketText `json:"per_key,omitempty"`
	Bound    string      `json:"bound"` // the most that it admits, in words
}

// BucketText is a token bucket's numbers in the words of a file.
type BucketText struct {
	Capacity int64  `json:"capacity"`
	Refill   string `json:"refill"`
}

func (e Emergency) text() *EmergencyText {
	t := &EmergencyText{Capacity: e.Capacity, Refill: rateText(e.Refill), Bound: e.Bound()}
	if e.PerKey != nil {
		t.PerKey = &BucketText{e.PerKey.Capacity, rateText(e.PerKey.Refill)}
	}
	return t
}

// LimitText is a limit in the words of its file.
type LimitText struct {
	Name    string `json:"name,omitempty"`
	Scope   string `json:"scope"`
	MaxCost int64  `json:"max_cost"`
	Charge  string `json:"charge"`
	Refunds bool   `json:"refunds"`
	RuleText
	File string `json:"file"`
	Line int    `json:"line"`
}

// RuleText is an algorithm and its numbers in the words of a file.
type RuleText struct {
	Algorithm string `json:"algorithm"`
	Capacity  int64  `json:"capacity,omitempty"`
	Refill    string `json:"refill,omitempty"`
	Limit     *int64 `json:"limit,omitempty"` // a drop-in limit may be 0
	Window    string `json:"window,omitempty"`
}

// Text describes the limit.
func (l *Limit) Text() LimitText {
	charge := chargeNames[0]
	if l.ChargeAfter {
		charge = chargeNames[1]
	}
	return LimitText{
		Name: l.Name, Scope: l.Scope.String(), RuleText: ruleText(l.Rule), MaxCost: l.MaxCost, Charge: charge, Refunds: l.Refunds,
		File: l.File, Line: l.Line,
	}
}

// String returns the limit on one line, without its name and place.
func (t LimitText) String() string {
	parts := []string{t.Scope, t.RuleText.String()}
	if t.MaxCost != 1 {
		parts = append(parts, fmt.Sprintf("max_cost %d", t.MaxCost))
	}
	if t.Charge != chargeNames[0] {
		parts = append(parts, "charge "+t.Charge)
	}
	if t.Refunds {
		parts = append(parts, "refunds")
	}
	return strings.Join(parts, ", ")
}

func ruleText(r algorithms.Rule) RuleText {
	t := RuleText{Algorithm: r.Kind().String()}
	if r.Kind() == algorithms.TokenBucket {
		t.Capacity, t.Refill = r.Limit(), rateText(r.Refill())
		return t
	}
	t.Limit, t.Window = new(r.Limit()), windowText(r.Window().Duration())
	return t
}

// String returns the numbers as a file has them.
func (t RuleText) String() string {
	if t.Limit != nil {
		return fmt.Sprintf("%s, limit %d, window %s", t.Algorithm, *t.Limit, t.Window)
	}
	return fmt.Sprintf("%s, capacity %d, refill %s", t.Algorithm, t.Capacity, t.Refill)
}

// rateText writes a rate as policies do, in the smallest unit in which it is a whole number of tokens.
func rateText(r algorithms.Rate) string {
	if r.Tokens == 0 {
		return "0"
	}
	for _, u := range []string{"s", "m", "h", "d"} {
		length := unitSeconds[u]
		if length%r.Seconds == 0 && r.Tokens <= math.MaxInt64/length {
			return fmt.Sprintf("%d/%s", r.Tokens*(length/r.Seconds), u)
		}
	}
	return fmt.Sprintf("%d/%ds", r.Tokens, r.Seconds)
}

// windowText writes a window as policies do, in the largest unit that holds it.
func windowText(d time.Duration) string {
	for _, u := range []struct {
		name   string
		length time.Duration
	}{{"d", aDay}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if d%u.length == 0 {
			return fmt.Sprintf("%d%s", d/u.length, u.name)
		}
	}
	return d.String()
}

// DropInText is a rule of a file in the language of envoyproxy/ratelimit.
type DropInText struct {
	Domain       string            `json:"domain"`
	Rule         string            `json:"rule"` // the name of its statistic
	Unlimited    bool              `json:"unlimited,omitempty"`
	Limits       []DropInLimitText `json:"limits,omitempty"`
	Shadow       bool              `json:"shadow_mode,omitempty"`
	Quota        bool              `json:"quota_mode,omitempty"`
	AllOrNothing bool              `json:"all_or_nothing,omitempty"`
	FailMode     string            `json:"fail_mode"`
	Emergency    *EmergencyText    `json:"emergency,omitempty"`
	File         string            `json:"file"`
	Line         int               `json:"line"`
}

// DropInLimitText is one limit of such a rule.
type DropInLimitText struct {
	Name            string   `json:"name,omitempty"`
	RequestsPerUnit int64    `json:"requests_per_unit"`
	Unit            string   `json:"unit"`
	Multiplier      int64    `json:"unit_multiplier,omitempty"` // 0: 1
	Replaces        []string `json:"replaces,omitempty"`
	RuleText
}

// Text describes the rule.
func (r *DropInRule) Text() DropInText {
	t := DropInText{
		Domain: r.Domain, Rule: strings.Join(append([]string{r.Domain}, r.Levels...), "."), Unlimited: r.Unlimited,
		Shadow: r.Shadow, Quota: r.Quota, AllOrNothing: r.AllOrNothing, FailMode: ruleFailModeNames[r.FailMode],
		File: r.File, Line: r.Line,
	}
	if r.Emergency != nil {
		t.Emergency = r.Emergency.text()
	}
	if r.Unlimited {
		return t
	}
	for i := range r.Limits {
		t.Limits = append(t.Limits, r.Limits[i].Text())
	}
	return t
}

// Text describes the limit.
func (l *DropInLimit) Text() DropInLimitText {
	t := DropInLimitText{
		Name: l.Name, RequestsPerUnit: l.PerUnit, Unit: l.Unit.String(), Replaces: l.Replaces, RuleText: ruleText(l.Rule),
	}
	if l.Multiplier != 1 {
		t.Multiplier = l.Multiplier
	}
	return t
}

// String returns the rule on one line, without its limits and place.
func (t DropInText) String() string {
	parts := []string{t.FailMode}
	for _, flag := range []struct {
		name string
		on   bool
	}{{"unlimited", t.Unlimited}, {"shadow_mode", t.Shadow}, {"quota_mode", t.Quota}, {"all_or_nothing", t.AllOrNothing}} {
		if flag.on {
			parts = append(parts, flag.name)
		}
	}
	return strings.Join(parts, ", ")
}

// String returns the limit on one line.
func (t DropInLimitText) String() string {
	text := fmt.Sprintf("%d per %s", t.RequestsPerUnit, t.Unit)
	if t.Multiplier != 0 {
		text = fmt.Sprintf("%d per %d %ss", t.RequestsPerUnit, t.Multiplier, t.Unit)
	}
	if t.Algorithm != algorithms.FixedWindow.String() {
		text += ", " + t.RuleText.String()
	}
	if len(t.Replaces) > 0 {
		text += ", replaces " + strings.Join(t.Replaces, " ")
	}
	return text
}
