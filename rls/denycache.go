package rls

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// The defaults of DenyCacheConfig.
const (
	DefaultDenyMaxAge = time.Second
	DefaultDenyKeys   = 65536
)

// DenyCacheConfig holds the bounds of a DenyCache.
type DenyCacheConfig struct {
	MaxAge time.Duration // no answer rests on a state that is older; 0 means DefaultDenyMaxAge
	Keys   int           // states kept, about 200 bytes each; 0 means DefaultDenyKeys. Beyond them denials go to the store
}

// DenyCache is a Store that answers denials from memory while they certainly hold. A denied request writes nothing, so a
// bucket's earliest admission time stays true until someone refunds, resets or changes the policy. What is kept is the
// bucket's state, not the verdict: any cost and any descriptor is decided from it.
//
// A denial is answered from memory only while the latest time that the store's clock can show lies before the admission,
// and only from a state younger than MaxAge. When that is over, one caller asks the store again and the others wait for
// what it learns, so a hot key costs the store one call per MaxAge and admission. A refund in this process drops the state
// at once; one made elsewhere shows within MaxAge, and can only keep a denial too long, never admit.
//
// Groups with charges or refunds, and takes of limits that have refunds, always go to the store. Safe for concurrent use.
type DenyCache struct {
	store  Store
	maxAge time.Duration
	most   int64
	start  time.Time
	seed   maphash.Seed
	kept   atomic.Int64
	shards [64]denyShard
}

var _ Store = (*DenyCache)(nil)

type denyShard struct {
	mu      sync.Mutex // guards buckets; never held together with another shard's
	buckets map[string]*bucketSight
}

// bucketSight is a bucket of a denied group as the store last showed it, or as an admission by this process left it.
type bucketSight struct {
	rule     algorithms.Rule
	state    algorithms.State
	at       algorithms.Micros // the store's clock at that moment
	sent     time.Duration     // this process's clock before the call that brought it, and after
	received time.Duration

	renewal chan struct{} // not nil: someone asks the store; closed when it has answered
}

// NewDenyCache returns a cache before store.
func NewDenyCache(store Store, cfg DenyCacheConfig) *DenyCache {
	c := &DenyCache{
		store: store, maxAge: orDefault(cfg.MaxAge, DefaultDenyMaxAge), most: int64(orDefault(cfg.Keys, DefaultDenyKeys)),
		start: time.Now(), seed: maphash.MakeSeed(),
	}
	for i := range c.shards {
		c.shards[i].buckets = make(map[string]*bucketSight)
	}
	return c
}

// Drop forgets everything, as when policies change or a bucket was reset.
func (c *DenyCache) Drop() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for key := range s.buckets {
			c.remove(s, key)
		}
		s.mu.Unlock()
	}
}

// Decide implements Store.
func (c *DenyCache) Decide(ctx context.Context, groups []Group) []Answer {
	if c.kept.Load() == 0 {
		return c.ask(ctx, groups)
	}
	answers := make([]Answer, len(groups))
	var rest []Group
	var at []int
	var renewing []string
	for i, g := range groups {
		a, known, renews := c.lookUp(ctx, g, len(renewing) == 0)
		if known {
			answers[i] = a
			continue
		}
		if renews != "" {
			renewing = append(renewing, renews)
		}
		rest, at = append(rest, g), append(at, i)
	}
	if len(rest) == 0 {
		return answers
	}
	defer func() {
		for _, key := range renewing {
			c.endRenewal(key)
		}
	}()
	for i, a := range c.ask(ctx, rest) {
		answers[at[i]] = a
	}
	return answers
}

// ask asks the store and learns from its answers.
func (c *DenyCache) ask(ctx context.Context, groups []Group) []Answer {
	sent := time.Since(c.start)
	answers := c.store.Decide(ctx, groups)
	received := time.Since(c.start)
	for i, g := range groups {
		if answers[i].Err == nil {
			c.learn(g, &answers[i], sent, received)
		}
	}
	return answers
}

// lookUp answers a group from memory where that is certain. Otherwise the caller must ask the store; renews is then the key
// whose renewal it must end, if any. While another caller renews what this one needs, it waits; without wait it asks the store instead:
// a call that holds a renewal must not wait for one, which may be its own.
func (c *DenyCache) lookUp(ctx context.Context, g Group, wait bool) (a Answer, known bool, renews string) {
	if !cacheable(g) {
		return Answer{}, false, ""
	}
	for {
		now := time.Since(c.start)
		a, stale, renewal := c.consult(g, now)
		switch {
		case renewal != nil && !wait:
			return Answer{}, false, ""
		case renewal != nil:
			select {
			case <-renewal:
				continue
			case <-ctx.Done():
				return Answer{Err: fmt.Errorf("%w: waiting for a renewal: %w", ErrTimeout, ctx.Err())}, true, ""
			}
		case a.Cached:
			return a, true, ""
		case stale == "":
			return Answer{}, false, ""
		case c.claimRenewal(stale):
			return Answer{}, false, stale
		}
	}
}

// consult looks for a bucket that certainly denies, in a group whose buckets are all known, so that it can say for how
// long. The answer is then Cached. Otherwise stale names a bucket that denied when it was last seen and must be asked for
// again, and wait is the renewal that is under way.
func (c *DenyCache) consult(g Group, now time.Duration) (a Answer, stale string, wait <-chan struct{}) {
	var room [4]bucketSight
	seen, fresh, certain := room[:0], true, false
	for i := range g {
		b, ok := c.get(g[i].Key)
		if !ok || b.rule != g[i].Rule {
			return Answer{}, "", nil
		}
		fresh = fresh && now-b.sent <= c.maxAge
		if b.denies(g[i].Cost, b.at) {
			stale = g[i].Key
			certain = certain || b.denies(g[i].Cost, b.latest(now))
		}
		if b.renewal != nil {
			wait = b.renewal
		}
		seen = append(seen, b)
	}
	switch {
	case fresh && certain:
		return deny(seen, now), "", nil
	case stale == "":
		return Answer{}, "", nil
	}
	return Answer{}, stale, wait
}

// deny answers a group whose buckets were seen like this. Its clock is the earliest that the store's can show, so that
// waiting Retry-After is enough.
func deny(seen []bucketSight, now time.Duration) Answer {
	a := Answer{Now: seen[0].earliest(now), Before: make([]algorithms.State, len(seen)), Cached: true}
	for i := range seen {
		a.Now = min(a.Now, seen[i].earliest(now))
		a.Before[i] = seen[i].state
	}
	return a
}

func (b *bucketSight) denies(cost int64, now algorithms.Micros) bool {
	return !b.rule.Peek(b.state, now, cost).Allowed
}

// latest and earliest bound what the store's clock can show now: it was read somewhere between sending the call and
// receiving its answer, and runs up to 0.1 % faster or slower than this process's.
func (b *bucketSight) latest(now time.Duration) algorithms.Micros {
	passed := (now - b.sent).Microseconds() + 1
	return b.at + algorithms.Micros(passed+passed/1000+1)
}

func (b *bucketSight) earliest(now time.Duration) algorithms.Micros {
	passed := (now - b.received).Microseconds()
	return b.at + algorithms.Micros(max(0, passed-passed/1000-1))
}

// cacheable reports whether a group may be denied from memory.
func cacheable(g Group) bool {
	return !slices.ContainsFunc(g, func(t Take) bool {
		return t.Refunds || t.Op != algorithms.OpTake && t.Op != algorithms.OpPeek
	})
}

// learn keeps the buckets of a denied group, and what an admission left in a bucket that is kept already.
func (c *DenyCache) learn(g Group, a *Answer, sent, received time.Duration) {
	if a.Allowed && c.kept.Load() == 0 {
		return
	}
	keeps := a.Clocks == nil && cacheable(g) // one clock is all that a cached denial knows
	for i, t := range g {
		if !keeps {
			c.forget(t.Key)
			continue
		}
		b := bucketSight{rule: t.Rule, state: a.Before[i], at: a.Now, sent: sent, received: received}
		if a.Allowed {
			b.state = t.Rule.Apply(t.Op, b.state, a.Now, t.Cost, t.Window)
		}
		c.put(t.Key, b, !a.Allowed)
	}
}

func (c *DenyCache) shard(key string) *denyShard {
	return &c.shards[maphash.String(c.seed, key)%uint64(len(c.shards))]
}

func (c *DenyCache) get(key string) (bucketSight, bool) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[key]
	if !ok {
		return bucketSight{}, false
	}
	return *b, true
}

// put keeps what was last seen of a bucket. One that is not kept yet is added only with add.
func (c *DenyCache) put(key string, b bucketSight, add bool) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	old, kept := s.buckets[key]
	switch {
	case kept && (old.at <= b.at || old.rule != b.rule):
		b.renewal = old.renewal
		*old = b
	case !kept && add && (c.kept.Load() < c.most || c.evict(s, b.received)):
		s.buckets[key] = &b
		c.kept.Add(1)
	}
}

// evict makes room in a full cache by dropping a few buckets that were seen too long ago to answer from.
func (c *DenyCache) evict(s *denyShard, now time.Duration) bool {
	const looks = 8
	seen, before := 0, len(s.buckets)
	for key, b := range s.buckets { // random order
		if b.renewal == nil && now-b.sent > c.maxAge {
			c.remove(s, key)
		}
		if seen++; seen == looks {
			break
		}
	}
	return len(s.buckets) < before
}

func (c *DenyCache) forget(key string) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.remove(s, key)
}

// remove needs s.mu. Whoever waits for a renewal looks again.
func (c *DenyCache) remove(s *denyShard, key string) {
	b, ok := s.buckets[key]
	if !ok {
		return
	}
	b.endRenewal()
	delete(s.buckets, key)
	c.kept.Add(-1)
}

// claimRenewal reports whether the caller is the one that renews a key.
func (c *DenyCache) claimRenewal(key string) bool {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[key]
	if !ok || b.renewal != nil {
		return false
	}
	b.renewal = make(chan struct{})
	return true
}

func (c *DenyCache) endRenewal(key string) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.buckets[key]; ok {
		b.endRenewal()
	}
}

func (b *bucketSight) endRenewal() {
	if b.renewal != nil {
		close(b.renewal)
		b.renewal = nil
	}
}
