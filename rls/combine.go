package rls

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

const never = algorithms.Never

// call is where a request came in.
type call struct {
	service Service
	domain  string
	start   time.Time
}

// decide asks the store for the plan, answers from it, or without it when the store cannot, and records the outcome.
func (e *Engine) decide(ctx context.Context, c call, p *plan) Result {
	p.enforce.seal()
	p.shadow.seal()
	e.askStore(ctx, p)
	var res Result
	if err := p.enforce.answer.Err; err != nil && !p.enforce.refused {
		res = e.withoutStore(p, err)
	} else {
		res = fromStore(p)
		switch {
		case res.Allowed && e.guarded():
			res = e.confirm(p, res)
		case res.Allowed:
			e.warm(p)
		}
	}
	if c.service == ServiceAuthz || !res.Allowed {
		res.DecisionID = newDecisionID()
	}
	res.Document = true
	e.record(c, p, &res)
	return res
}

// fromStore combines the verdicts of the limits.
func fromStore(p *plan) Result {
	res := Result{Allowed: true, Reason: Allowed, Source: SourceNone, Statuses: p.statuses()}
	if len(p.enforce.group) > 0 && p.enforce.answer.Err == nil {
		res.Source = SourceStore
		if p.enforce.answer.Cached {
			res.Source = SourceDenyCache
		}
	}
	for i := range p.asks {
		a := &p.asks[i]
		status, wait := p.status(a)
		if a.policy != nil && a.policy.Mode == descriptors.Shadow {
			status.OverLimit = false
		}
		res.Statuses[i] = status
		if !status.OverLimit {
			continue
		}
		if name := a.speaker(&status); res.Allowed || longer(wait, res.RetryAfter) {
			res.RetryAfter, res.Policy = wait, name
		}
		res.Allowed = false
		if res.Reason != RateLimited {
			res.Reason = a.deniedBecause()
		}
	}
	if res.Allowed {
		res.Policy = p.firstPolicy()
	}
	return res
}

func (a *ask) deniedBecause() Reason {
	if a.refusal != "" {
		return a.refusal
	}
	return RateLimited
}

// speaker names the policy and limit that a status speaks for.
func (a *ask) speaker(s *Status) string {
	switch {
	case s.Limit != nil:
		return s.Limit.Name
	case a.policy != nil:
		return a.policy.Endpoint
	}
	return ""
}

func (p *plan) firstPolicy() string {
	for i := range p.asks {
		if p.asks[i].policy != nil {
			return p.asks[i].policy.Endpoint
		}
	}
	return ""
}

// status returns the answer to one ask and, when it is over limit, the wait of the limit that speaks for it: of those
// that deny the one with the longest wait, else the one with the least remaining; ties in file order.
func (p *plan) status(a *ask) (s Status, wait time.Duration) {
	s.Reset = never
	if a.refusal != "" {
		s.OverLimit = true
		return s, never
	}
	if a.policy == nil {
		return s, 0
	}
	part := p.part(a.policy.Mode)
	for i := a.from; i < a.to; i++ {
		v, ok := part.verdict(&p.slots[i])
		if !ok {
			continue
		}
		speaks := s.Limit == nil
		switch {
		case !v.Allowed:
			speaks = speaks || !s.OverLimit || longer(v.RetryAfter, wait)
		case !s.OverLimit:
			speaks = speaks || v.Remaining < s.Remaining
		}
		if speaks {
			s = Status{OverLimit: !v.Allowed, Limit: p.slots[i].shown, Remaining: v.Remaining, Reset: v.ResetAfter}
			wait = v.RetryAfter
		}
	}
	if !s.OverLimit {
		wait = 0
	}
	return s, wait
}

// withoutStore answers while the store cannot: closed when any policy of the request asks for it, else from the emergency
// caps of all its policies, all or nothing.
func (e *Engine) withoutStore(p *plan, err error) Result {
	res := Result{Class: ClassOf(err), Source: SourceNone, RetryAfter: never, Statuses: p.statuses()}
	for i := range res.Statuses {
		res.Statuses[i].Reset = never
	}
	for i := range p.asks {
		a := &p.asks[i]
		if p.enforces(a) && a.policy.FailMode == descriptors.FailClosed {
			res.Statuses[i].OverLimit = true
			if res.Policy == "" {
				res.Policy = a.policy.Endpoint
			}
		}
	}
	if res.Policy == "" {
		return e.emergency(p, res)
	}
	res.Reason = FailClosed
	if errors.Is(err, ErrCircuitOpen) {
		res.Reason = CircuitOpen
	}
	return res
}

// enforces reports whether an ask has limits whose denial counts.
func (p *plan) enforces(a *ask) bool {
	return a.policy != nil && a.policy.Mode == descriptors.Enforce && a.to > a.from
}

// confirm lets an admission by a store that may have forgotten what was spent stand only where the emergency caps admit
// it too: they are warm.
func (e *Engine) confirm(p *plan, res Result) Result {
	asks, bucketOf := p.emergencyAsks()
	allowed, verdicts := admitEmergency(e.monotonic(), asks)
	if allowed {
		return res
	}
	denied := Result{Source: SourceEmergency, Statuses: res.Statuses}
	return p.deniedByEmergency(denied, bucketOf, verdicts)
}

// emergency completes res from the emergency caps.
func (e *Engine) emergency(p *plan, res Result) Result {
	res.Source = SourceEmergency
	asks, bucketOf := p.emergencyAsks()
	allowed, verdicts := admitEmergency(e.monotonic(), asks)
	if allowed {
		for i := range asks {
			first := slices.Index(bucketOf, i)
			p.asks[first].state.recorder.EmergencySpent(asks[i].spends())
		}
		res.Allowed, res.Reason, res.RetryAfter, res.Policy = true, Allowed, 0, p.firstPolicy()
		return res
	}
	return p.deniedByEmergency(res, bucketOf, verdicts)
}

// deniedByEmergency completes res from the caps that deny.
func (p *plan) deniedByEmergency(res Result, bucketOf []int, verdicts []algorithms.Verdict) Result {
	res.Reason, res.RetryAfter = EmergencyLocalLimit, 0
	for i, b := range bucketOf {
		if b < 0 || verdicts[b].Allowed {
			continue
		}
		res.Statuses[i] = Status{OverLimit: true, Reset: verdicts[b].RetryAfter}
		if res.Policy == "" || longer(verdicts[b].RetryAfter, res.RetryAfter) {
			res.RetryAfter, res.Policy = verdicts[b].RetryAfter, p.asks[i].policy.Endpoint
		}
	}
	return res
}

// emergencyAsks returns what the request asks of each emergency cap, and for each ask of the plan the index of its cap,
// -1 when it asks none. Of one cap a request is charged the largest cost that it asks.
func (p *plan) emergencyAsks() (asks []emergencyAsk, bucketOf []int) {
	bucketOf = make([]int, len(p.asks))
	for i := range p.asks {
		a := &p.asks[i]
		bucketOf[i] = -1
		if !p.enforces(a) || a.state.emergency == nil {
			continue
		}
		op, cost := p.emergencyCost(a)
		if op == 0 {
			continue
		}
		j := 0
		for j < len(asks) && asks[j].bucket != a.state.emergency {
			j++
		}
		if j == len(asks) {
			asks = append(asks, emergencyAsk{bucket: a.state.emergency, op: op, cost: cost})
		}
		if caller, ok := a.caller(); ok && !slices.Contains(asks[j].callers, caller) {
			asks[j].callers = append(asks[j].callers, caller)
		}
		asks[j].op, asks[j].cost = min(asks[j].op, op), max(asks[j].cost, cost)
		bucketOf[i] = j
	}
	return asks, bucketOf
}

// emergencyCost returns the strictest operation and the largest cost that an ask has: a take, else a charge, else a peek.
// Refunds are dropped. The order of the Ops is their strictness.
func (p *plan) emergencyCost(a *ask) (op algorithms.Op, cost int64) {
	for i := a.from; i < a.to; i++ {
		s := &p.slots[i]
		if s.op == algorithms.OpRefund {
			continue
		}
		if op == 0 || s.op < op {
			op = s.op
		}
		cost = max(cost, s.cost)
	}
	return op, cost
}

// caller names who asks to the emergency cap; false where it has no shares.
func (a *ask) caller() (string, bool) {
	if !a.state.emergency.hasShares {
		return "", false
	}
	return a.subject.PrimaryHash(a.policy.Identity), true
}

// hasShare reports whether the emergency cap of an ask has a share for each caller.
func (a *ask) hasShare() bool {
	return a.state != nil && a.state.emergency != nil && a.state.emergency.hasShares
}

// warm takes what was admitted from the emergency caps, as far as it is there, so that an outage does not begin with a
// full burst.
func (e *Engine) warm(p *plan) {
	if len(p.asks) == 1 && !p.asks[0].hasShare() { // the common request, without a table
		a := &p.asks[0]
		if !p.enforces(a) || a.state.emergency == nil {
			return
		}
		if op, cost := p.emergencyCost(a); op == algorithms.OpTake || op == algorithms.OpCharge {
			a.state.emergency.warm(e.monotonic(), emergencyAsk{cost: cost})
		}
		return
	}
	asks, _ := p.emergencyAsks()
	for _, a := range asks {
		if a.op == algorithms.OpTake || a.op == algorithms.OpCharge {
			a.bucket.warm(e.monotonic(), a)
		}
	}
}

// newDecisionID returns 32 hex characters that name one decision in answers and logs. Not a secret.
func newDecisionID() string {
	var raw [16]byte
	for i, word := range [2]uint64{rand.Uint64(), rand.Uint64()} {
		for j := range 8 {
			raw[8*i+j] = byte(word >> (8 * j))
		}
	}
	return hex.EncodeToString(raw[:])
}
