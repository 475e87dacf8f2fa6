package rls

import (
	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// plan is one request turned into groups for the store. It lives for one request, in one goroutine.
//
// The limits of all enforced policies form one group, decided all or nothing. Those of shadow policies form another,
// which is decided alone and never denies the request.
type plan struct {
	asks    []ask
	slots   []slot
	enforce part
	shadow  part

	// Room for the common request, so that it needs no slices of its own.
	askRoom    [1]ask
	slotRoom   [2]slot
	needRoom   [2]need // the enforced part's, as is groupRoom
	groupRoom  [2]Take
	statusRoom [1]Status
	groups     [2]Group
}

// statuses returns room for one status per ask.
func (p *plan) statuses() []Status {
	if len(p.asks) <= len(p.statusRoom) {
		return p.statusRoom[:len(p.asks)]
	}
	return make([]Status, len(p.asks))
}

// ask is what one descriptor, or one Check, asks of one policy.
type ask struct {
	policy   *descriptors.Policy // nil: it asks nothing, or its endpoint is unknown
	state    *policyState
	subject  descriptors.Subject
	refusal  Reason // refused before any limit was looked at; empty: not
	from, to int    // its slots

	identifyOnly bool // count: false at ext_authz; RLS decides and records
}

// slot is one limit that an ask meets.
type slot struct {
	limit *descriptors.Limit
	shown *Limit
	op    algorithms.Op
	cost  int64
	need  int  // index into the part's needs; meaningless when refused
	over  bool // refused for its cost, without a store call
}

// part is the half of a plan that is decided together.
type part struct {
	needs   []need
	group   Group // what goes to the store
	refused bool  // something in it was refused without a store call; only charges go to the store
	answer  Answer

	index map[string]int // key → need, once there are more than a few
}

// fewNeeds is how many needs are searched one by one.
const fewNeeds = 8

// need is what a request wants of one bucket, summed over its descriptors.
type need struct {
	key    string
	rule   algorithms.Rule
	take   int64
	charge int64
	refund int64

	limit   string // its name
	refunds bool   // the limit has refunds
	sent    int    // index into the part's group; -1: not sent
}

// hits is the cost that a request asks with.
type hits struct {
	n      uint64
	peek   bool // an explicit 0
	refund bool
	check  bool // ext_authz: what is charged after the fact is only looked at
}

// maxHits stands for every larger cost: above every capacity, and far from overflow when costs are summed.
const maxHits = 1 << 52

func newPlan() *plan {
	p := new(plan)
	p.asks = p.askRoom[:0]
	p.slots = p.slotRoom[:0]
	p.enforce.needs = p.needRoom[:0]
	p.enforce.group = p.groupRoom[:0]
	return p
}

func (p *plan) part(m descriptors.Mode) *part {
	if m == descriptors.Shadow {
		return &p.shadow
	}
	return &p.enforce
}

// refuse adds an ask that is refused whatever the limits say.
func (p *plan) refuse(a ask, why Reason) {
	a.refusal = why
	a.from, a.to = len(p.slots), len(p.slots)
	p.asks = append(p.asks, a)
	if a.policy != nil {
		p.part(a.policy.Mode).refused = true
		return
	}
	p.enforce.refused = true
}

// skip adds a descriptor that asks nothing.
func (p *plan) skip() {
	p.asks = append(p.asks, ask{from: len(p.slots), to: len(p.slots)})
}

// add adds an ask with the limits of its policy.
func (p *plan) add(a ask, h hits, rec Recorder) {
	a.from = len(p.slots)
	if a.policy.Verdict == descriptors.Limited {
		p.addLimits(&a, h, rec)
	}
	a.to = len(p.slots)
	p.asks = append(p.asks, a)
}

func (p *plan) addLimits(a *ask, h hits, rec Recorder) {
	part := p.part(a.policy.Mode)
	costly := false
	for i := range a.policy.Limits {
		limit := &a.policy.Limits[i]
		key, applies := limit.Key(&a.subject)
		if !applies {
			continue
		}
		s := slot{limit: limit, shown: &a.state.limits[i]}
		s.op, s.cost, s.over = operation(limit, h)
		switch {
		case s.op == 0:
			rec.Ignored(IgnoredRefund, 1)
			continue
		case s.over:
			costly = true
		default:
			s.need = part.require(key, limit, s.shown.Name, s.op, s.cost)
		}
		p.slots = append(p.slots, s)
	}
	if costly {
		part.refused = true
		a.state.recorder.CostRefused()
	}
}

// operation says what hits do at a limit: the operation, its cost, and whether the cost is more than the limit takes from
// one descriptor. The zero Op: nothing.
func operation(l *descriptors.Limit, h hits) (op algorithms.Op, cost int64, over bool) {
	cost = int64(min(h.n, maxHits))
	switch {
	case h.peek:
		return algorithms.OpPeek, 1, false
	case h.refund && !l.Refunds:
		return 0, 0, false
	case h.refund:
		return algorithms.OpRefund, min(cost, l.Rule.Limit()), false
	case l.ChargeAfter && h.check:
		return algorithms.OpPeek, 1, false
	case l.ChargeAfter:
		return algorithms.OpCharge, min(cost, l.MaxCost), false
	}
	return algorithms.OpTake, cost, cost > l.MaxCost
}

// require adds a cost to what is needed of a bucket and returns the need's index. Descriptors of one request that meet in
// one bucket are decided by their sum, which is what keeps the keys of a group distinct. Where two tenants' replacements
// give one global bucket different numbers, the stricter ones decide.
func (h *part) require(key string, limit *descriptors.Limit, name string, op algorithms.Op, cost int64) int {
	i := h.find(key)
	if i < 0 {
		i = len(h.needs)
		h.needs = append(h.needs, need{key: key, rule: limit.Rule, limit: name})
		if h.index != nil {
			h.index[key] = i
		}
	}
	n := &h.needs[i]
	if limit.Rule.Limit() < n.rule.Limit() {
		n.rule = limit.Rule
	}
	n.refunds = n.refunds || limit.Refunds
	switch op {
	case algorithms.OpTake:
		n.take += cost
	case algorithms.OpCharge:
		n.charge += cost
	case algorithms.OpRefund:
		n.refund += cost
	}
	return i
}

// find returns the index of the need for a key, -1 when there is none.
func (h *part) find(key string) int {
	if h.index == nil && len(h.needs) > fewNeeds {
		h.index = make(map[string]int)
		for i := range h.needs {
			h.index[h.needs[i].key] = i
		}
	}
	if h.index != nil {
		if i, ok := h.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range h.needs {
		if h.needs[i].key == key {
			return i
		}
	}
	return -1
}

// operation returns what is asked of the store for all the costs of one need. Takes and refunds of one request in one
// bucket are netted.
func (n *need) operation() (op algorithms.Op, cost int64) {
	net := n.take + n.charge - n.refund
	switch {
	case net < 0:
		return algorithms.OpRefund, min(-net, n.rule.Limit())
	case net == 0:
		return algorithms.OpPeek, max(n.take, 1)
	case n.charge > 0:
		return algorithms.OpCharge, net
	}
	return algorithms.OpTake, net
}

// seal turns the needs into the group for the store. A sum above what a bucket can ever hold is refused here; of a
// refused part only what was already used goes to the store.
func (h *part) seal() {
	for i := range h.needs {
		h.refused = h.refused || h.needs[i].impossible()
	}
	for i := range h.needs {
		n := &h.needs[i]
		op, cost := n.operation()
		n.sent = -1
		if h.refused && op != algorithms.OpCharge {
			continue
		}
		n.sent = len(h.group)
		h.group = append(h.group, Take{Key: n.key, Rule: n.rule, Op: op, Cost: cost, Limit: n.limit, Refunds: n.refunds})
	}
}

// impossible reports whether no wait would let the need's sum fit.
func (n *need) impossible() bool {
	op, cost := n.operation()
	return (op == algorithms.OpTake || op == algorithms.OpPeek) && cost > n.rule.Limit()
}

// verdict returns the answer to one slot; false: nobody was asked about it.
func (h *part) verdict(s *slot) (algorithms.Verdict, bool) {
	if s.over {
		return algorithms.Verdict{RetryAfter: algorithms.Never, ResetAfter: algorithms.Never}, true
	}
	n := &h.needs[s.need]
	if n.impossible() {
		return algorithms.Verdict{RetryAfter: algorithms.Never, ResetAfter: algorithms.Never}, true
	}
	if n.sent < 0 || h.answer.Err != nil {
		return algorithms.Verdict{}, false
	}
	before, now := h.answer.Before[n.sent], h.answer.Clock(n.sent)
	take := &h.group[n.sent]
	if s.op == algorithms.OpPeek && take.Op != algorithms.OpPeek {
		return n.rule.Peek(before, now, s.cost), true
	}
	v := n.rule.Verdict(take.Op, before, now, take.Cost)
	if take.Op == algorithms.OpTake && v.Allowed && !h.answer.Allowed {
		v = n.rule.Peek(before, now, take.Cost) // it would fit, and nothing was spent
	}
	return v, true
}
