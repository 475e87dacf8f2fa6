package rls

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// dropInResult combines the verdicts: over limit when any descriptor is that is not of quota_mode, or when there are
// some of quota_mode and all of them are.
func (e *Engine) dropInResult(p *dropInPlan) Result {
	cfg := &e.cfg.DropIn
	res := Result{Allowed: true, Reason: Allowed, Source: SourceNone, Plain: true, Statuses: make([]Status, len(p.asks))}
	quotas, quotasOver, denies := 0, 0, false
	closest, least := -1, int64(math.MaxUint32)
	for i := range p.asks {
		a := &p.asks[i]
		p.answer(a, &res)
		res.Statuses[i] = a.status
		if a.status.Limit != nil && a.status.Remaining < least {
			closest, least = i, a.status.Remaining
		}
		if a.match.Rule != nil && a.match.Rule.Unlimited {
			continue
		}
		quota := cfg.Quota || a.match.Rule != nil && a.match.Rule.Quota && !a.replaced
		switch {
		case quota:
			quotas++
			if a.status.OverLimit {
				quotasOver++
			}
		case a.status.OverLimit:
			denies, closest, least = true, i, 0
		}
	}
	if denies || quotas > 0 && quotas == quotasOver {
		p.deny(&res)
		if cfg.Shadow {
			cfg.Recorder.GlobalShadow()
			res.Allowed, res.Reason, res.RetryAfter = true, Allowed, 0
		}
	}
	if cfg.Headers != nil && closest >= 0 {
		res.Headers = limitHeaders(cfg.Headers, &res.Statuses[closest])
	}
	return res
}

// answer sets the status of one descriptor: that of the limit that denies with the longest wait, else of the one with the
// least remaining.
func (p *dropInPlan) answer(a *dropInAsk, res *Result) {
	a.status.Reset, a.chosen = never, -1
	if a.match.Rule != nil && a.match.Rule.Unlimited {
		a.status.Remaining = math.MaxUint32
		return
	}
	for i := a.from; i < a.to; i++ {
		t := &p.takes[i]
		res.Source = t.source(res.Source)
		if res.Class == "" && t.err != nil {
			res.Class = ClassOf(t.err)
		}
		speaks := a.chosen < 0
		switch {
		case !t.verdict.Allowed:
			speaks = speaks || !a.over || longer(t.verdict.RetryAfter, p.takes[a.chosen].verdict.RetryAfter)
			a.over = true
		case !a.over:
			speaks = speaks || t.verdict.Remaining < a.status.Remaining
		}
		if speaks {
			a.chosen = i
			a.status = Status{OverLimit: !t.verdict.Allowed, Limit: t.shown, Remaining: t.verdict.Remaining, Reset: t.reset}
		}
	}
	if a.chosen >= 0 && p.takes[a.chosen].shadow {
		a.status.OverLimit = false
	}
}

// source is what decided, after this take: a request that the store was asked about is the store's, one that this process
// answered for is the emergency's.
func (t *dropInTake) source(so Source) Source {
	switch {
	case t.local || so == SourceEmergency:
		return SourceEmergency
	case t.cached && so != SourceStore:
		return SourceDenyCache
	}
	return SourceStore
}

// deny makes res a denial by the descriptors that are over limit.
func (p *dropInPlan) deny(res *Result) {
	res.Allowed, res.Reason, res.RetryAfter = false, "", 0
	for i := range p.asks {
		a := &p.asks[i]
		if !a.status.OverLimit {
			continue
		}
		t := &p.takes[a.chosen]
		if res.Policy == "" || longer(t.verdict.RetryAfter, res.RetryAfter) {
			res.RetryAfter, res.Policy = t.verdict.RetryAfter, a.name()
		}
		switch {
		case !t.local:
			res.Reason = RateLimited
		case a.fault != "" && res.Reason != RateLimited:
			res.Reason = a.fault
		case res.Reason == "":
			res.Reason = EmergencyLocalLimit
		}
	}
	res.DecisionID = newDecisionID()
}

// name names a descriptor's rule, without anything that a caller sent.
func (a *dropInAsk) name() string {
	if a.match.Rule == nil {
		return "override"
	}
	return RuleName{a.match.Rule.Domain, a.match.Rule.Levels}.String()
}

func limitHeaders(names *LimitHeaders, s *Status) []Header {
	return []Header{
		{names.Limit, strconv.FormatInt(s.Limit.PerUnit, 10)},
		{names.Remaining, strconv.FormatInt(min(s.Remaining, math.MaxUint32), 10)},
		{names.Reset, strconv.FormatInt(int64((max(0, s.Reset)+time.Second-1)/time.Second), 10)},
	}
}

// dynamicMetadata tells what was asked, and the metadata of the rules that passed: of two values for one key the first.
func dynamicMetadata(p *dropInPlan, r *Request) map[string]any {
	asked := make([]any, len(r.Descriptors))
	passed := make(map[string]any)
	for i := range r.Descriptors {
		asked[i] = r.Descriptors[i].metadata()
		a := &p.asks[i]
		if !a.status.OverLimit && a.chosen >= 0 {
			mergeMetadata(passed, a.match.Metadata())
		}
	}
	all := map[string]any{"domain": r.Domain, "descriptors": asked}
	if r.Hits != 0 {
		all["hitsAddend"] = float64(r.Hits)
	}
	if len(passed) > 0 {
		all["metadata"] = passed
	}
	return all
}

func (d *Descriptor) metadata() map[string]any {
	entries := make([]any, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = e.Key + "=" + e.Value
	}
	m := map[string]any{"entries": entries}
	if d.HasHits {
		m["hitsAddend"] = float64(d.Hits)
	}
	if d.Override && d.Limit.Unit != 0 {
		m["limit"] = fmt.Sprintf("requests_per_unit:%d unit:%s", d.Limit.PerUnit, strings.ToUpper(d.Limit.Unit.String()))
	}
	return m
}

// mergeMetadata adds to into what it does not have yet, mappings level by level. from is not modified.
func mergeMetadata(into, from map[string]any) {
	for key, v := range from {
		m, isMap := v.(map[string]any)
		old, exists := into[key]
		if oldMap, both := old.(map[string]any); exists && both && isMap {
			mergeMetadata(oldMap, m)
			continue
		}
		if exists {
			continue
		}
		if isMap {
			copied := make(map[string]any, len(m))
			mergeMetadata(copied, m)
			v = copied
		}
		into[key] = v
	}
}

// recordDropIn tells the recorders what became of a request: its rules' counters, one decision when a limit had a say, and
// one log record when it was denied.
func (e *Engine) recordDropIn(snap *snapshot, domain *descriptors.DropIn, p *dropInPlan, res *Result, start time.Time) {
	matched, shadowed := false, false
	for i := range p.asks {
		a := &p.asks[i]
		matched = matched || a.match.Rule != nil || a.override
		if a.chosen < 0 {
			continue
		}
		t := &p.takes[a.chosen]
		shadowed = shadowed || t.shadow && a.over
		if t.op != algorithms.OpRefund {
			a.recorder.Count(t.countedHits(min(a.hits.n, maxHits), e.cfg.DropIn.NearRatio))
		}
		if e.warms(snap, a, t) {
			snap.rules[a.match.Rule.Index].emergency.warm(e.monotonic(), emergencyAsk{callers: []string{a.match.Hash()}, cost: t.cost})
		}
	}
	if res.Class != "" {
		e.cfg.Recorder.StoreFailure(res.Class)
	}
	if !matched {
		return
	}
	rec, latency := snap.dropIns[domain.Name()], time.Since(start)
	rec.Decision(res.Reason, latency)
	if shadowed {
		rec.ShadowDenial()
	}
	if res.Allowed && res.Source == SourceEmergency {
		rec.EmergencyAdmission()
	}
	if !res.Allowed {
		e.cfg.Recorder.Denied(e.dropInDenial(domain, p, res, latency))
	}
}

// warms reports whether an admitted take belongs into the rule's emergency cap, so that an outage does not begin with a
// full burst.
func (e *Engine) warms(snap *snapshot, a *dropInAsk, t *dropInTake) bool {
	return t.spent && !t.local && a.match.Rule != nil && snap.rules[a.match.Rule.Index].emergency != nil
}

func (e *Engine) dropInDenial(domain *descriptors.DropIn, p *dropInPlan, res *Result, latency time.Duration) Denial {
	d := Denial{
		Service: ServiceRateLimit, Domain: domain.Name(), EndpointID: DropInEndpoint(domain.Name()), Policy: res.Policy,
		IdentityMode: "descriptor", Reason: res.Reason, Class: res.Class, Source: res.Source, DecisionID: res.DecisionID,
		Latency: latency, BreakerState: "none",
	}
	if e.cfg.BreakerState != nil {
		d.BreakerState = e.cfg.BreakerState()
	}
	for i := range p.asks {
		if a := &p.asks[i]; a.status.OverLimit && a.name() == res.Policy {
			d.IdentityHash = a.match.Hash()
			break
		}
	}
	return d
}

// DropInEndpoint returns the endpoint id under which decisions of a drop-in domain are recorded.
func DropInEndpoint(domain string) string { return "drop-in:" + domain }
