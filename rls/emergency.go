package rls

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// MaxEmergencyShares bounds the per-key shares that one policy keeps. When it is reached, further callers use one
// overflow share together until a share is full again; a share in use is never dropped, for that would refill it.
const MaxEmergencyShares = 10_000

// emergencyBucket is one policy's cap in this process for the time the store cannot answer: a token bucket on the
// monotonic clock, and inside it each caller's share where the policy has one.
//
// It is warm: while the store answers, each admitted request takes what is there, so that an outage does not begin with a
// full burst. Its state outlives the breaker's probes and policy reloads.
//
// A cap that is the whole fleet's has the fleet's numbers, and each process charges a cost as often as there are
// processes: an exact part of the cap, which follows their number without a bucket of other numbers.
type emergencyBucket struct {
	id   uint64 // lock order
	rule algorithms.Rule
	per  algorithms.Rule // of each share; used when hasShares

	hasShares bool
	fleet     *fleet // nil: the cap is this process's
	least     int64  // processes that there are at least; with fleet

	mu       sync.Mutex // guards everything below; with several buckets, taken in the order of id
	state    algorithms.State
	shares   map[string]algorithms.State
	overflow algorithms.State
}

// emergencyAsk is what one request asks of one policy's cap.
type emergencyAsk struct {
	bucket *emergencyBucket
	op     algorithms.Op
	cost   int64

	// callers are the identity hashes of those who ask, each for its share; nil where the cap has none. A request that
	// names several callers takes the cost from each one's share, and once from the whole.
	callers []string
}

// fleet is what is known about the processes that share a cap.
type fleet struct{ processes atomic.Int64 } // the last number learnt; 0: none was

// spends returns what an ask costs when it is admitted.
func (a *emergencyAsk) spends() int64 {
	if a.op == algorithms.OpPeek {
		return 0
	}
	return a.cost
}

func newEmergencyBucket(id uint64, e descriptors.Emergency, all *fleet) (*emergencyBucket, error) {
	rule, err := algorithms.NewTokenBucket(e.Capacity, e.Refill)
	if err != nil {
		return nil, err
	}
	b := &emergencyBucket{id: id, rule: rule}
	if e.Fleet {
		b.fleet, b.least = all, e.MinProcesses
	}
	if e.PerKey != nil {
		b.per, err = algorithms.NewTokenBucket(e.PerKey.Capacity, e.PerKey.Refill)
		if err != nil {
			return nil, err
		}
		b.hasShares, b.shares = true, make(map[string]algorithms.State)
	}
	return b, nil
}

// parts returns into how many parts the cap is cut, one for each process.
func (b *emergencyBucket) parts() int64 {
	if b.fleet == nil {
		return 1
	}
	return max(b.least, b.fleet.processes.Load())
}

// charged returns what a cost is in this bucket. One that is beyond every bucket stays so.
func (b *emergencyBucket) charged(cost int64) int64 {
	parts := b.parts()
	if cost > maxHits/parts {
		return maxHits
	}
	return cost * parts
}

// same reports whether a bucket has the numbers of another, so that its state means the same.
func (b *emergencyBucket) same(other *emergencyBucket) bool {
	return b.rule == other.rule && b.per == other.per && b.hasShares == other.hasShares &&
		b.fleet == other.fleet && b.least == other.least
}

// inherit carries the state of the bucket that this one replaces after a reload.
func (b *emergencyBucket) inherit(old *emergencyBucket) {
	old.mu.Lock()
	defer old.mu.Unlock()
	b.state, b.overflow = old.state, old.overflow
	for caller, s := range old.shares {
		if b.hasShares {
			b.shares[caller] = s
		}
	}
}

// warm takes what is there of what was admitted while the store answered. It never denies.
func (b *emergencyBucket) warm(now algorithms.Micros, a emergencyAsk) {
	a.cost = b.charged(a.cost)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spend(now, a)
}

// admitEmergency decides asks all or nothing and returns, for each, whether it fitted, after what wait it would, and what
// remains. Charges are recorded whatever else happens. Buckets of asks are distinct.
func admitEmergency(now algorithms.Micros, asks []emergencyAsk) (allowed bool, verdicts []algorithms.Verdict) {
	inOrder := slices.Clone(asks)
	slices.SortFunc(inOrder, func(a, b emergencyAsk) int { return cmp.Compare(a.bucket.id, b.bucket.id) })
	for _, a := range inOrder {
		a.bucket.mu.Lock()
		defer a.bucket.mu.Unlock()
	}
	asks = slices.Clone(asks)
	allowed = true
	verdicts = make([]algorithms.Verdict, len(asks))
	for i := range asks {
		a := &asks[i]
		a.cost = a.bucket.charged(a.cost) // once: the number of processes may change between peek and spend
		verdicts[i] = a.bucket.peek(now, *a)
		allowed = allowed && verdicts[i].Allowed
	}
	for i, a := range asks {
		if a.op == algorithms.OpCharge || allowed && a.op == algorithms.OpTake {
			a.bucket.spend(now, a)
		}
		verdicts[i].Remaining = a.bucket.remaining(now, a)
	}
	return allowed, verdicts
}

// peek tells whether an ask fits, changing nothing: the verdict of the share or of the whole, whichever denies longer.
func (b *emergencyBucket) peek(now algorithms.Micros, a emergencyAsk) algorithms.Verdict {
	v := b.rule.Peek(b.state, now, a.cost)
	if !b.hasShares {
		return v
	}
	for _, caller := range a.callers {
		share := b.per.Peek(b.share(now, caller), now, a.cost)
		if !share.Allowed && (v.Allowed || longer(share.RetryAfter, v.RetryAfter)) {
			v = share
		}
	}
	return v
}

// remaining is what this process still admits of who asks: of the whole, or of the share that has less.
func (b *emergencyBucket) remaining(now algorithms.Micros, a emergencyAsk) int64 {
	left := b.rule.Peek(b.state, now, 1).Remaining
	if b.hasShares {
		for _, caller := range a.callers {
			left = min(left, b.per.Peek(b.share(now, caller), now, 1).Remaining)
		}
	}
	return left / b.parts()
}

// spend takes the cost, or what is there of it.
func (b *emergencyBucket) spend(now algorithms.Micros, a emergencyAsk) {
	b.state, _ = b.rule.Charge(b.state, now, a.cost)
	if !b.hasShares {
		return
	}
	for _, caller := range a.callers {
		s, _ := b.per.Charge(b.share(now, caller), now, a.cost)
		b.setShare(now, caller, s)
	}
}

// share returns a caller's share, or the overflow share when the table is full without it.
func (b *emergencyBucket) share(now algorithms.Micros, caller string) algorithms.State {
	if s, ok := b.shares[caller]; ok {
		return s
	}
	if b.full(now) {
		return b.overflow
	}
	return algorithms.State{}
}

func (b *emergencyBucket) setShare(now algorithms.Micros, caller string, s algorithms.State) {
	if _, ok := b.shares[caller]; !ok && b.full(now) {
		b.overflow = s
		return
	}
	b.shares[caller] = s
}

// full reports whether the table has no room for another share. At the bound it looks at a few shares and drops those
// that are as if untouched, so that the cost per call stays bounded.
func (b *emergencyBucket) full(now algorithms.Micros) bool {
	if len(b.shares) < MaxEmergencyShares {
		return false
	}
	const looks = 8
	seen := 0
	for caller, s := range b.shares { // random order
		if b.per.Untouched(s, now) {
			delete(b.shares, caller)
		}
		if seen++; seen == looks {
			break
		}
	}
	return len(b.shares) >= MaxEmergencyShares
}

// longer orders waits; a negative one never ends.
func longer(a, b time.Duration) bool {
	if a < 0 || b < 0 {
		return a < 0 && b >= 0
	}
	return a > b
}
