package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// report is what `explain` says; its JSON is for tools.
type report struct {
	Service  rls.Service   `json:"service"`
	Domain   string        `json:"domain,omitempty"`
	Known    bool          `json:"known"` // a policy answers
	DropIn   bool          `json:"drop_in,omitempty"`
	Identity []reportStep  `json:"identity,omitempty"` // the checks of a token or cookie
	Refusal  rls.Reason    `json:"refusal,omitempty"`  // why no limit is asked
	Asks     []reportAsk   `json:"asks,omitempty"`     // one for each descriptor; one for ext_authz
	Notes    []string      `json:"notes,omitempty"`
	Answer   *reportAnswer `json:"answer,omitempty"` // what would be answered now; with --peek
}

// reportStep is one check on the way to an identity.
type reportStep struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// reportAsk is what one descriptor, or ext_authz, meets.
type reportAsk struct {
	Entries      string                  `json:"entries,omitempty"`
	Policy       *descriptors.PolicyText `json:"policy,omitempty"`
	Rule         *descriptors.DropInText `json:"rule,omitempty"`
	CallerHash   string                  `json:"caller_hash,omitempty"` // as identity_hash in the log
	Refusal      rls.Reason              `json:"refusal,omitempty"`
	IdentifyOnly bool                    `json:"identify_only,omitempty"`
	Replaced     bool                    `json:"replaced,omitempty"`
	Limits       []reportLimit           `json:"limits,omitempty"`
	StoreAway    string                  `json:"store_away,omitempty"` // what happens while the store cannot answer
}

// reportLimit is one limit. It has one of Limit and DropIn, or neither: a limit that the request brings.
type reportLimit struct {
	Limit       *descriptors.LimitText       `json:"limit,omitempty"`
	DropIn      *descriptors.DropInLimitText `json:"drop_in_limit,omitempty"`
	Key         string                       `json:"key"`
	Operation   string                       `json:"operation"` // take, charge, peek, refund
	Cost        int64                        `json:"cost"`
	OverMaxCost bool                         `json:"over_max_cost,omitempty"`
	Bucket      *reportBucket                `json:"bucket,omitempty"` // with --peek
}

// reportBucket is what a bucket holds now. Waits are in milliseconds, rounded up; null: never.
type reportBucket struct {
	Used       bool   `json:"used"` // false: as if never used
	Fits       bool   `json:"fits"` // the cost, now
	Remaining  int64  `json:"remaining"`
	RetryAfter *int64 `json:"retry_after_ms"`
	FullAfter  *int64 `json:"full_after_ms"`
}

// reportAnswer is what would be answered now.
type reportAnswer struct {
	Allowed    bool       `json:"allowed"`
	Reason     rls.Reason `json:"reason"`
	Policy     string     `json:"policy,omitempty"`
	RetryAfter *int64     `json:"retry_after_ms"`
}

var operations = map[algorithms.Op]string{
	algorithms.OpTake: "take", algorithms.OpCharge: "charge", algorithms.OpPeek: "peek", algorithms.OpRefund: "refund",
}

func describeAsk(a rls.Ask) reportAsk {
	r := reportAsk{CallerHash: a.CallerHash, Refusal: a.Refusal, IdentifyOnly: a.IdentifyOnly, Replaced: a.Replaced}
	switch {
	case a.Policy != nil:
		r.Policy = new(a.Policy.Text())
		r.StoreAway = policyWithoutStore(a.Policy)
	case a.Rule != nil:
		r.Rule = new(a.Rule.Text())
		r.StoreAway = ruleWithoutStore(a.Rule)
	}
	for _, l := range a.Limits {
		limit := reportLimit{Key: l.Key, Operation: operations[l.Op], Cost: l.Cost, OverMaxCost: l.Over}
		switch {
		case l.Native != nil:
			limit.Limit = new(l.Native.Text())
		case l.DropIn != nil:
			limit.DropIn = new(l.DropIn.Text())
		}
		r.Limits = append(r.Limits, limit)
	}
	if len(r.Limits) == 0 {
		r.StoreAway = "" // it is not asked
	}
	return r
}

func policyWithoutStore(p *descriptors.Policy) string {
	if p.Mode == descriptors.Shadow {
		return "admitted: shadow mode denies nobody"
	}
	if p.FailMode == descriptors.FailOpen {
		return "fail_open, " + p.Emergency.Bound()
	}
	return "fail_closed, refused with FAIL_CLOSED, or CIRCUIT_OPEN once the breaker is open"
}

func ruleWithoutStore(r *descriptors.DropInRule) string {
	switch {
	case r.Shadow:
		return "admitted: shadow_mode denies nobody"
	case r.FailMode == descriptors.FailDeny:
		return "fail_closed, refused"
	case r.FailMode == descriptors.FailAnswer:
		return "error, the call fails and Envoy's failure_mode_deny decides"
	case r.Emergency != nil:
		return "fail_open, " + r.Emergency.Bound()
	}
	return "fail_open, each process counts the limit for itself"
}

// print writes the report for people.
func (r *report) print(w io.Writer) error {
	p := &printer{w: w}
	for _, s := range r.Identity {
		verdict := "ok"
		if !s.OK {
			verdict = "REFUSED"
		}
		p.line(0, "%s: %s, %s", s.Check, verdict, s.Detail)
	}
	switch {
	case r.Refusal != "" && r.Known:
		p.line(0, "domain %s: refused with %s, whatever the limits say", r.Domain, r.Refusal)
	case r.Refusal != "":
		p.line(0, "no limit is asked: %s", r.Refusal)
	default:
		p.line(0, "domain %s", r.Domain)
	}
	for i := range r.Asks {
		r.Asks[i].print(p)
	}
	for _, note := range r.Notes {
		p.line(0, "%s", note)
	}
	if r.Answer != nil {
		p.line(0, "answer now: %s", r.Answer)
	}
	return p.err
}

// printer writes lines and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(indent int, format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, strings.Repeat("  ", indent)+format+"\n", args...)
	}
}

func (a *reportAsk) print(p *printer) {
	if a.Entries != "" {
		p.line(0, "descriptor %s", a.Entries)
	}
	switch {
	case a.Policy != nil:
		name := a.Policy.Endpoint
		if a.Policy.Tenant != "" {
			name += fmt.Sprintf(", replaced for tenant %q", a.Policy.Tenant)
		}
		p.line(1, "%s:%d: policy %s: %s", a.Policy.File, a.Policy.Line, name, a.Policy)
	case a.Rule != nil:
		p.line(1, "%s:%d: rule %s: %s", a.Rule.File, a.Rule.Line, a.Rule.Rule, a.Rule)
	default:
		p.line(1, "no policy answers")
	}
	if a.CallerHash != "" {
		p.line(1, "caller %s, as identity_hash in the log", a.CallerHash)
	}
	if a.Refusal != "" {
		p.line(1, "refused with %s, without asking the store", a.Refusal)
	}
	if a.IdentifyOnly {
		p.line(1, "only identified here: count is false, the rate limit filter counts")
	}
	if a.Replaced {
		p.line(1, "no limit: another descriptor's replaces it")
	}
	for i := range a.Limits {
		a.Limits[i].print(p)
	}
	if a.StoreAway != "" {
		p.line(1, "while the store is away: %s", a.StoreAway)
	}
}

func (l *reportLimit) print(p *printer) {
	switch {
	case l.Limit != nil:
		name := "limit"
		if l.Limit.Name != "" {
			name += " " + l.Limit.Name
		}
		p.line(1, "%s:%d: %s: %s", l.Limit.File, l.Limit.Line, name, l.Limit)
	case l.DropIn != nil:
		name := "limit"
		if l.DropIn.Name != "" {
			name += " " + l.DropIn.Name
		}
		p.line(1, "%s: %s", name, l.DropIn)
	default:
		p.line(1, "limit of the request's own")
	}
	switch {
	case l.OverMaxCost:
		p.line(2, "%s %d is more than max_cost: refused without asking the store", l.Operation, l.Cost)
	default:
		p.line(2, "%s %d of key %s", l.Operation, l.Cost, l.Key)
	}
	if l.Bucket != nil {
		p.line(2, "now %s", l.Bucket)
	}
}

// String returns the bucket on one line.
func (b *reportBucket) String() string {
	if !b.Used {
		return fmt.Sprintf("%d left: as if never used", b.Remaining)
	}
	text := fmt.Sprintf("%d left", b.Remaining)
	if !b.Fits {
		text += ", the cost fits " + after(b.RetryAfter)
	}
	return text + ", full again " + after(b.FullAfter)
}

// String returns the answer on one line.
func (a *reportAnswer) String() string {
	if a.Allowed {
		return "admitted"
	}
	text := "refused with " + string(a.Reason)
	if a.Policy != "" {
		text += " by " + a.Policy
	}
	return text + ", a retry fits " + after(a.RetryAfter)
}

// after says a wait in words.
func after(ms *int64) string {
	if ms == nil {
		return "never"
	}
	return "after " + (time.Duration(*ms) * time.Millisecond).String()
}
