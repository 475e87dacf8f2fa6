package rls

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// ruleState is what the engine keeps for one drop-in rule.
type ruleState struct {
	limits    []Limit          // as shown to callers, by index in DropInRule.Limits
	emergency *emergencyBucket // nil: the rule's own limit is counted
	recorder  RuleRecorder     // of its own name
}

// dropInPlan is one request of a drop-in domain on its way through the store. It lives for one request, in one goroutine.
//
// Each descriptor is decided for itself, one after the other: the same one twice counts twice. Two kinds of limits are
// decided together: those of all_or_nothing rules, and every counting one with StopWhenOver.
type dropInPlan struct {
	asks  []dropInAsk
	takes []dropInTake

	groups  []Group
	members [][]int // of each group: the takes that it decides, in order
}

// dropInAsk is one descriptor.
type dropInAsk struct {
	match    descriptors.Match
	override bool
	hits     hits
	replaced bool   // all its limits are
	from, to int    // its takes
	status   Status // as shown
	over     bool   // over limit, shadow or not
	fault    Reason // why it is over, when no limit said so
	chosen   int    // the take that speaks for it; -1: none
	recorder RuleRecorder
}

// dropInTake is one limit that a descriptor meets.
type dropInTake struct {
	shown  *Limit
	rule   algorithms.Rule
	key    string
	op     algorithms.Op
	cost   int64
	shadow bool
	kind   takeKind

	err     error
	before  algorithms.State // as this take found it
	now     algorithms.Micros
	verdict algorithms.Verdict
	reset   time.Duration
	spent   bool // op was carried out and fitted
	cached  bool // answered by the overCache
	local   bool // answered by this process alone
}

// takeKind says with what others a take is decided.
type takeKind uint8

const (
	alone takeKind = iota
	together
	stopping
)

// decideDropIn answers one request of a drop-in domain; nil: a domain that nobody knows.
func (e *Engine) decideDropIn(ctx context.Context, snap *snapshot, domain *descriptors.DropIn, r *Request, start time.Time) (Result, error) {
	p := &dropInPlan{asks: make([]dropInAsk, len(r.Descriptors))}
	if domain != nil {
		e.matchAll(p, snap, domain, r)
	}
	if len(p.takes) > MaxTakes {
		e.cfg.Recorder.RequestRefused(BoundTakes)
		res := unasked(len(r.Descriptors), false, InvalidRequest, false)
		res.Plain = true
		return res, nil
	}
	sent := e.sinceStart()
	e.askCache(p, sent)
	p.group()
	e.askDropInStore(ctx, p)
	if err := e.dropInError(p); err != nil {
		return Result{}, err
	}
	e.withoutDropInStore(ctx, snap, p)
	e.learn(p, sent)
	res := e.dropInResult(p)
	if e.cfg.DropIn.DynamicMetadata {
		res.Metadata = dynamicMetadata(p, r)
	}
	e.recordDropIn(snap, domain, p, &res, start)
	return res, nil
}

// matchAll finds the limits of each descriptor, and drops those that others of the request replace.
func (e *Engine) matchAll(p *dropInPlan, snap *snapshot, domain *descriptors.DropIn, r *Request) {
	var replaced map[string]bool
	for i := range r.Descriptors {
		d, a := &r.Descriptors[i], &p.asks[i]
		a.hits = descriptorHits(d, r.Hits)
		domain.Match(d.Entries, &a.match)
		if d.Override && len(d.Entries) > 0 {
			if _, ok := d.Limit.rule(); ok {
				a.override = true
				a.match.Override()
			} else {
				e.cfg.Recorder.Ignored(IgnoredOverride, 1)
			}
		}
		if a.match.Rule == nil {
			continue
		}
		for j := range a.match.Rule.Limits {
			for _, name := range a.match.Rule.Limits[j].Replaces {
				if replaced == nil {
					replaced = make(map[string]bool)
				}
				replaced[name] = true
			}
		}
	}
	for i := range p.asks {
		a := &p.asks[i]
		a.from = len(p.takes)
		switch {
		case a.override:
			p.addOverride(a, r.Descriptors[i].Limit)
		case a.match.Rule != nil && !a.match.Rule.Unlimited:
			e.addRule(p, snap, a, replaced)
		}
		a.to = len(p.takes)
		if a.to > a.from {
			a.recorder = e.recorderOf(snap, domain, &a.match)
		}
	}
}

func (p *dropInPlan) addOverride(a *dropInAsk, o LimitOverride) {
	rule, _ := o.rule()
	p.add(a, dropInTake{
		shown: &Limit{Rule: rule, PerUnit: int64(o.PerUnit), Unit: o.Unit, Multiplier: o.Multiplier},
		rule:  rule, key: a.match.OverrideKey(o.Unit, o.Multiplier),
	})
}

func (e *Engine) addRule(p *dropInPlan, snap *snapshot, a *dropInAsk, replaced map[string]bool) {
	rule, state := a.match.Rule, &snap.rules[a.match.Rule.Index]
	for i := range rule.Limits {
		l := &rule.Limits[i]
		if l.Name != "" && replaced[l.Name] {
			continue
		}
		t := dropInTake{shown: &state.limits[i], rule: l.Rule, key: a.match.Key(i), shadow: rule.Shadow}
		switch {
		case rule.AllOrNothing:
			t.kind = together
		case e.cfg.DropIn.StopWhenOver && l.Rule.Counting():
			t.kind = stopping
		}
		p.add(a, t)
	}
	a.replaced = len(p.takes) == a.from
}

// add completes a take by the descriptor's hits.
func (p *dropInPlan) add(a *dropInAsk, t dropInTake) {
	t.op, t.cost = algorithms.OpTake, int64(min(a.hits.n, maxHits))
	switch {
	case a.hits.peek:
		t.op, t.cost = algorithms.OpPeek, 1
	case a.hits.refund:
		t.op, t.kind = algorithms.OpRefund, alone
	}
	p.takes = append(p.takes, t)
}

// askCache answers what this process knows to be over limit. With StopWhenOver nothing else is counted then.
func (e *Engine) askCache(p *dropInPlan, now time.Duration) {
	if e.over == nil {
		return
	}
	stop := false
	for i := range p.takes {
		t := &p.takes[i]
		if t.op == algorithms.OpRefund || !t.rule.Counting() {
			continue
		}
		left, ok := e.over.over(t.key, t.rule.Limit(), now)
		if !ok {
			continue
		}
		t.cached, t.reset = true, left
		t.verdict = algorithms.Verdict{RetryAfter: left, ResetAfter: left}
		stop = stop || t.kind == stopping
	}
	if !stop {
		return
	}
	for i := range p.takes {
		if t := &p.takes[i]; t.kind == stopping && !t.cached && t.op == algorithms.OpTake {
			t.op, t.cost = algorithms.OpPeek, 1
		}
	}
}

// group turns the takes into groups for the store.
func (p *dropInPlan) group() { p.groupThose(func(t *dropInTake) bool { return !t.cached }) }

func (p *dropInPlan) groupThose(asked func(*dropInTake) bool) {
	p.groups, p.members = p.groups[:0], p.members[:0]
	for _, kind := range [...]takeKind{together, stopping} {
		p.groupTogether(kind, asked)
	}
	for i := range p.takes {
		if t := &p.takes[i]; t.kind == alone && asked(t) {
			p.groups = append(p.groups, Group{{Key: t.key, Rule: t.rule, Op: t.op, Cost: t.cost}})
			p.members = append(p.members, []int{i})
		}
	}
}

// groupTogether makes one group of all takes of a kind. Those on the same key are decided by their sum.
func (p *dropInPlan) groupTogether(kind takeKind, asked func(*dropInTake) bool) {
	var group Group
	var members []int
	for i := range p.takes {
		t := &p.takes[i]
		if t.kind != kind || !asked(t) {
			continue
		}
		members = append(members, i)
		j := 0
		for j < len(group) && group[j].Key != t.key {
			j++
		}
		if j == len(group) {
			group = append(group, Take{Key: t.key, Rule: t.rule, Op: t.op, Cost: t.cost})
			continue
		}
		g := &group[j]
		if t.rule.Limit() < g.Rule.Limit() {
			g.Rule = t.rule
		}
		switch {
		case t.op == algorithms.OpTake && g.Op == algorithms.OpTake:
			g.Cost = min(maxHits, g.Cost+t.cost)
		case t.op == algorithms.OpTake:
			g.Op, g.Cost = t.op, t.cost
		}
	}
	if len(group) > 0 {
		p.groups, p.members = append(p.groups, group), append(p.members, members)
	}
}

// askDropInStore asks the store for the groups: see askStore.
func (e *Engine) askDropInStore(ctx context.Context, p *dropInPlan) {
	if len(p.groups) == 0 {
		return
	}
	budget, ok := e.budget(ctx)
	if !ok {
		for i := range p.groups {
			p.settle(i, &Answer{Err: ErrTimeout})
		}
		return
	}
	detached := newStoreContext(ctx, budget)
	defer detached.end()
	// Not by way of the deny cache: a counting window must be told of what it denies.
	answers := e.cfg.Store.Decide(detached, p.groups)
	for i := range answers {
		e.observeAnswer(&answers[i])
		p.settle(i, &answers[i])
	}
}

// settle hands a group's answer to its takes. Takes on one key follow one another.
func (p *dropInPlan) settle(group int, answer *Answer) {
	var after map[string]algorithms.State
	for _, i := range p.members[group] {
		t := &p.takes[i]
		if t.err = answer.Err; t.err != nil {
			continue
		}
		at := p.groups[group].find(t.key)
		now := answer.Clock(at)
		t.now = now
		state, seen := after[t.key]
		if !seen {
			state = answer.Before[at]
		}
		t.before = state
		t.verdict = t.rule.Verdict(t.op, state, now, t.cost)
		t.spent = t.verdict.Allowed && t.op == algorithms.OpTake
		if t.spent && !answer.Allowed {
			t.verdict, t.spent = t.rule.Peek(state, now, t.cost), false
			t.verdict.Allowed = true
		}
		if len(p.members[group]) > 1 {
			if after == nil {
				after = make(map[string]algorithms.State)
			}
			after[t.key] = t.rule.Apply(t.op, state, now, t.cost, 0)
		}
		t.reset = t.verdict.ResetAfter
		if t.rule.Kind() == algorithms.FixedWindow { // as the service that is stood in for: also for an unused window
			t.reset = (t.rule.Window() - now%t.rule.Window()).Duration()
		}
	}
}

func (g Group) find(key string) int {
	for i := range g {
		if g[i].Key == key {
			return i
		}
	}
	panic("rls: a take that is not in its group")
}

// dropInError is the whole call's error when the store failed a rule that asks for it.
func (e *Engine) dropInError(p *dropInPlan) error {
	for i := range p.asks {
		a := &p.asks[i]
		if a.match.Rule == nil || a.match.Rule.FailMode != descriptors.FailAnswer {
			continue
		}
		for j := a.from; j < a.to; j++ {
			if err := p.takes[j].err; err != nil {
				e.cfg.DropIn.Recorder.RedisError()
				if class := ClassOf(err); class != "" {
					e.cfg.Recorder.StoreFailure(class)
				}
				return &DropInError{Text: err.Error()}
			}
		}
	}
	return nil
}

// withoutDropInStore answers for the limits that the store did not: fail_closed ones deny, those with an emergency cap go
// by it, and the others are counted in this process.
func (e *Engine) withoutDropInStore(ctx context.Context, snap *snapshot, p *dropInPlan) {
	failed := false
	for i := range p.asks {
		a := &p.asks[i]
		for j := a.from; j < a.to; j++ {
			failed = failed || p.takes[j].err != nil
			if err := p.takes[j].err; err != nil && a.match.Rule != nil {
				e.withoutOne(snap, a, &p.takes[j], err)
			}
		}
	}
	if !failed {
		return
	}
	p.groupThose(func(t *dropInTake) bool { return t.err != nil && !t.local })
	if len(p.groups) == 0 {
		return
	}
	failures := make([]error, len(p.takes))
	for i := range p.takes {
		failures[i] = p.takes[i].err
	}
	answers := e.cfg.DropIn.Fallback.Decide(context.WithoutCancel(ctx), p.groups)
	for g := range answers {
		p.settle(g, &answers[g])
		for _, i := range p.members[g] {
			t := &p.takes[i]
			if t.err != nil { // the process has no room left: nobody is let in uncounted
				t.verdict = algorithms.Verdict{RetryAfter: never, ResetAfter: never}
			}
			t.local, t.err = true, failures[i]
		}
	}
}

// withoutOne answers one limit of a rule that does not count its own.
func (e *Engine) withoutOne(snap *snapshot, a *dropInAsk, t *dropInTake, err error) {
	rule := a.match.Rule
	switch bucket := snap.rules[rule.Index].emergency; {
	case rule.FailMode == descriptors.FailDeny:
		t.local = true
		t.verdict, t.reset = algorithms.Verdict{RetryAfter: never, ResetAfter: never}, time.Second
		if a.fault = FailClosed; errors.Is(err, ErrCircuitOpen) {
			a.fault = CircuitOpen
		}
	case bucket != nil:
		t.local = true
		if t.op == algorithms.OpRefund {
			t.verdict = algorithms.Verdict{Allowed: true}
			return
		}
		asks := []emergencyAsk{{bucket: bucket, callers: []string{a.match.Hash()}, op: t.op, cost: t.cost}}
		allowed, verdicts := admitEmergency(e.monotonic(), asks)
		if allowed {
			snap.dropIns[rule.Domain].EmergencySpent(asks[0].spends())
		}
		t.verdict, t.reset = verdicts[0], max(time.Second, verdicts[0].RetryAfter)
	}
}

// learn keeps what the answers say about windows that are over limit.
func (e *Engine) learn(p *dropInPlan, sent time.Duration) {
	if e.over == nil {
		return
	}
	for i := range p.takes {
		t := &p.takes[i]
		switch {
		case t.op == algorithms.OpRefund:
			e.over.forget(t.key)
		case t.rule.Counting() && !t.cached && t.err == nil && !t.verdict.Allowed:
			state := t.rule.Advance(t.rule.Apply(t.op, t.before, t.now, t.cost, 0), t.now)
			e.over.learn(t.key, overEntry{count: state.Level, end: state.At + t.rule.Window(), at: t.now, sent: sent})
		}
	}
}

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

// useDropIns prepares what the engine keeps for the drop-in domains of a set.
func (e *Engine) useDropIns(next *snapshot, before map[bucketID]*emergencyBucket) error {
	set, domains := next.set, next.set.DropIns()
	if len(domains) > 0 && e.cfg.DropIn.Fallback == nil {
		return errors.New("engine: drop-in domains need Config.DropIn.Fallback")
	}
	next.rules = make([]ruleState, len(set.DropInRules()))
	next.dropIns = make(map[string]EndpointRecorder, len(domains))
	next.overrides = make(map[string]RuleRecorder, len(domains))
	for _, d := range domains {
		next.dropIns[d.Name()] = e.cfg.Recorder.Endpoint(DropInEndpoint(d.Name()))
		next.overrides[d.Name()] = e.cfg.DropIn.Recorder.Rule(RuleName{d.Name(), []string{"override"}})
	}
	caps := make(map[string][]descriptors.Emergency, len(domains))
	for _, r := range set.DropInRules() {
		name := RuleName{r.Domain, r.Levels}
		state := ruleState{limits: make([]Limit, len(r.Limits)), recorder: e.cfg.DropIn.Recorder.Rule(name)}
		for i := range r.Limits {
			l := &r.Limits[i]
			state.limits[i] = Limit{Name: l.Name, Rule: l.Rule, PerUnit: l.PerUnit, Unit: l.Unit, Multiplier: l.Multiplier}
		}
		if r.Emergency != nil {
			id := bucketID{DropInEndpoint(r.Domain), strings.Join(r.Levels, "\x00"), ""} // a level may hold what String puts between two
			bucket, err := e.emergencyBucketFor(id, *r.Emergency, next.buckets, before)
			if err != nil {
				return fmt.Errorf("%s:%d: emergency: %w", r.File, r.Line, err)
			}
			state.emergency = bucket
			caps[r.Domain] = append(caps[r.Domain], *r.Emergency)
		}
		next.rules[r.Index] = state
	}
	for name, recorder := range next.dropIns {
		next.caps = append(next.caps, endpointCaps{recorder, caps[name]})
	}
	return nil
}
