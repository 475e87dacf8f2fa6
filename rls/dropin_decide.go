package rls

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

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

	err       error
	before    algorithms.State // as this take found it
	now       algorithms.Micros
	verdict   algorithms.Verdict
	reset     time.Duration
	spent     bool // op was carried out and fitted
	cached    bool // answered by the overCache
	local     bool // answered by this process alone
	uncounted bool // and not by its own limit
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
			e.addOverride(p, a, r.Descriptors[i].Limit)
		case a.match.Rule != nil && !a.match.Rule.Unlimited:
			e.addRule(p, snap, a, replaced)
		}
		a.to = len(p.takes)
		if a.to > a.from {
			a.recorder = e.recorderOf(snap, domain, &a.match)
		}
	}
}

func (e *Engine) addOverride(p *dropInPlan, a *dropInAsk, o LimitOverride) {
	rule, _ := o.rule()
	t := dropInTake{
		shown: &Limit{Rule: rule, PerUnit: int64(o.PerUnit), Unit: o.Unit, Multiplier: o.Multiplier},
		rule:  rule, key: a.match.OverrideKey(o.Unit, o.Multiplier),
	}
	if e.cfg.DropIn.StopWhenOver {
		t.kind = stopping
	}
	p.add(a, t)
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
		takes := p.takes[a.from:a.to]
		if !slices.ContainsFunc(takes, func(t dropInTake) bool { return t.err != nil }) {
			continue
		}
		failed = true
		switch rule := a.match.Rule; {
		case rule == nil:
		case rule.FailMode == descriptors.FailDeny:
			a.denyFailed(takes)
		case snap.rules[rule.Index].emergency != nil:
			e.underCap(snap, a, takes)
		}
	}
	if failed {
		e.countHere(ctx, p)
	}
}

// denyFailed is fail_closed.
func (a *dropInAsk) denyFailed(takes []dropInTake) {
	for i := range takes {
		t := &takes[i]
		if t.err == nil {
			continue
		}
		t.local, t.uncounted = true, true
		t.verdict, t.reset = algorithms.Verdict{RetryAfter: never, ResetAfter: never}, time.Second
		if a.fault = FailClosed; errors.Is(t.err, ErrCircuitOpen) {
			a.fault = CircuitOpen
		}
	}
}

// underCap answers by the rule's emergency cap, which is charged once for a descriptor, however many limits its rule has.
func (e *Engine) underCap(snap *snapshot, a *dropInAsk, takes []dropInTake) {
	var asked []algorithms.Verdict
	for i := range takes {
		t := &takes[i]
		if t.err == nil {
			continue
		}
		t.local, t.uncounted = true, true
		if t.op == algorithms.OpRefund {
			t.verdict = algorithms.Verdict{Allowed: true}
			continue
		}
		if asked == nil {
			asks := []emergencyAsk{{bucket: snap.rules[a.match.Rule.Index].emergency, callers: []string{a.match.Hash()}, op: t.op, cost: t.cost}}
			var allowed bool
			if allowed, asked = admitEmergency(e.monotonic(), asks); allowed {
				snap.dropIns[a.match.Rule.Domain].EmergencySpent(asks[0].spends())
			}
		}
		t.verdict, t.reset = asked[0], max(time.Second, asked[0].RetryAfter)
		t.verdict.Remaining = min(t.verdict.Remaining, t.rule.Limit())
	}
}

// countHere decides what failed and has no answer yet in this process alone.
func (e *Engine) countHere(ctx context.Context, p *dropInPlan) {
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
