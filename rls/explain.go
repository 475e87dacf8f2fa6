package rls

import (
	"context"
	"sync"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// Explanation says which limits a request meets. It is made by the code that decides, but asks and spends nothing. What
// the request holds and the set does not honour is told to the engine's Recorder, as when it is decided.
type Explanation struct {
	Domain  string
	Known   bool   // the set has the domain, or for a Check the endpoint
	DropIn  bool   // the domain is in the language of envoyproxy/ratelimit
	Refusal Reason // why no limit is asked, for the request as a whole; empty: none
	Asks    []Ask  // one for each descriptor; one for a Check that is not refused
}

// Ask is what one descriptor, or a Check, asks.
type Ask struct {
	Policy       *descriptors.Policy     // of a native domain; nil: none answers
	Rule         *descriptors.DropInRule // of a drop-in domain; nil: none matches
	Refusal      Reason                  // refused before any limit; empty: not
	IdentifyOnly bool                    // count: false at ext_authz
	Replaced     bool                    // drop-in: limits of other descriptors of the request stand in for all of this one
	CallerHash   string                  // of the primary identity, as in keys and logs; empty: unknown
	Limits       []AskedLimit
}

// AskedLimit is one limit that an Ask meets.
type AskedLimit struct {
	Native *descriptors.Limit
	DropIn *descriptors.DropInLimit // neither: a limit that the request brings
	Rule   algorithms.Rule
	Key    string // of its bucket
	Op     algorithms.Op
	Cost   int64
	Over   bool // its cost is more than the limit's max_cost: refused without asking
}

// Explain explains one ShouldRateLimit question. The errors are Decide's.
func (e *Engine) Explain(r Request) (Explanation, error) {
	snap := e.active.Load()
	x := Explanation{Domain: r.Domain}
	if r.Domain == "" || len(r.Descriptors) == 0 {
		return x, ErrInvalidRequest
	}
	var domain *descriptors.Domain
	var dropIn *descriptors.DropIn
	dropIn, x.DropIn = snap.set.DropIn(r.Domain)
	domain, x.Known = snap.set.Domain(r.Domain)
	if x.Known = x.Known || x.DropIn; !x.Known {
		x.Refusal = UnknownDomain
		return x, nil
	}
	if bound, beyond := e.beyond(&r); beyond {
		e.cfg.Recorder.RequestRefused(bound)
		x.Refusal = InvalidRequest
		return x, nil
	}
	if x.DropIn {
		p := &dropInPlan{asks: make([]dropInAsk, len(r.Descriptors))}
		e.matchAll(p, snap, dropIn, &r)
		x.Asks = p.explain()
		return x, nil
	}
	p := newPlan()
	for i := range r.Descriptors {
		if x.Refusal = e.addDescriptor(p, snap, domain, &r.Descriptors[i], r.Hits); x.Refusal != "" {
			return x, nil
		}
	}
	x.Asks = p.explain()
	return x, nil
}

// ExplainCheck explains one Check of a caller who is known to be who.
func (e *Engine) ExplainCheck(endpointID string, who descriptors.Subject, scopes []string) Explanation {
	snap := e.active.Load()
	policy, known := e.authzPolicy(snap, endpointID)
	if !known {
		return Explanation{Refusal: UnknownEndpoint}
	}
	x := Explanation{Domain: policy.Domain, Known: true}
	p := newPlan()
	e.addCheck(p, snap, policy, &who)
	x.Asks = p.explain()
	if missingScope(policy.RequiredScopes, scopes) {
		x.Refusal = InsufficientScope
	}
	return x
}

func (p *plan) explain() []Ask {
	asks := make([]Ask, len(p.asks))
	for i := range p.asks {
		a := &p.asks[i]
		ask := &asks[i]
		ask.Policy, ask.Refusal, ask.IdentifyOnly = a.policy, a.refusal, a.identifyOnly
		if a.policy == nil {
			continue
		}
		ask.CallerHash = a.subject.PrimaryHash(a.policy.Identity)
		for j := a.from; j < a.to; j++ {
			s := &p.slots[j]
			key, _ := s.limit.Key(&a.subject)
			ask.Limits = append(ask.Limits, AskedLimit{Native: s.limit, Rule: s.limit.Rule, Key: key, Op: s.op, Cost: s.cost, Over: s.over})
		}
	}
	return asks
}

func (p *dropInPlan) explain() []Ask {
	asks := make([]Ask, len(p.asks))
	for i := range p.asks {
		a := &p.asks[i]
		ask := &asks[i]
		ask.Rule, ask.Replaced = a.match.Rule, a.replaced
		if a.match.Rule != nil || a.override {
			ask.CallerHash = a.match.Hash()
		}
		for j := a.from; j < a.to; j++ {
			t := &p.takes[j]
			limit := AskedLimit{Rule: t.rule, Key: t.key, Op: t.op, Cost: t.cost}
			for k := range ask.limits() {
				if a.match.Key(k) == t.key {
					limit.DropIn = &a.match.Rule.Limits[k]
				}
			}
			ask.Limits = append(ask.Limits, limit)
		}
	}
	return asks
}

// limits returns the limits of the rule that the ask met.
func (a *Ask) limits() []descriptors.DropInLimit {
	if a.Rule == nil {
		return nil
	}
	return a.Rule.Limits
}

// Preview is a Store that answers as another one would at this moment and spends nothing: it peeks at the buckets there and
// plays the groups on what it saw. Safe for concurrent use.
type Preview struct {
	store Store

	mu   sync.Mutex
	seen map[string]Sight // by key; what this Preview's own groups left there
}

var _ Store = (*Preview)(nil)

// Sight is a bucket as the store showed it.
type Sight struct {
	Before algorithms.State
	Now    algorithms.Micros // the store's clock then
	after  algorithms.State
}

// NewPreview returns a preview of store.
func NewPreview(store Store) *Preview { return &Preview{store: store, seen: make(map[string]Sight)} }

// Seen returns what the store showed of a bucket that a group asked about.
func (p *Preview) Seen(key string) (Sight, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.seen[key]
	return s, ok
}

// Decide implements Store.
func (p *Preview) Decide(ctx context.Context, groups []Group) []Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := make([]Answer, len(groups))
	if err := p.look(ctx, groups); err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	for i, g := range groups {
		answers[i] = p.play(g)
	}
	return answers
}

// look peeks at every bucket that has not been seen yet, each for itself: they may stand in several slots of a cluster.
func (p *Preview) look(ctx context.Context, groups []Group) error {
	var peeks []Group
	asked := make(map[string]bool)
	for _, g := range groups {
		for i := range g {
			if _, seen := p.seen[g[i].Key]; !seen && !asked[g[i].Key] {
				asked[g[i].Key] = true
				peeks = append(peeks, Group{{Key: g[i].Key, Rule: g[i].Rule, Op: algorithms.OpPeek, Cost: 1}})
			}
		}
	}
	if len(peeks) == 0 {
		return nil
	}
	answers := p.store.Decide(ctx, peeks)
	for _, a := range answers {
		if a.Err != nil {
			return a.Err
		}
	}
	for i, a := range answers {
		p.seen[peeks[i][0].Key] = Sight{Before: a.Before[0], after: a.Before[0], Now: a.Now}
	}
	return nil
}

// play decides one group on what was seen, as a store does.
func (p *Preview) play(g Group) Answer {
	a := Answer{Before: make([]algorithms.State, len(g)), Allowed: true}
	for i := range g {
		a.Now = max(a.Now, p.seen[g[i].Key].Now)
	}
	fits := make([]bool, len(g))
	for i := range g {
		a.Before[i] = p.seen[g[i].Key].after
		fits[i] = g[i].Rule.Admits(g[i].Op, a.Before[i], a.Now, g[i].Cost)
		a.Allowed = a.Allowed && fits[i]
	}
	for i, t := range g {
		if a.Allowed || t.Rule.Insists(t.Op, fits[i]) {
			s := p.seen[t.Key]
			s.after = t.Rule.Apply(t.Op, a.Before[i], a.Now, t.Cost, t.Window)
			p.seen[t.Key] = s
		}
	}
	return a
}
