package rls

import (
	"cmp"
	"slices"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// What is kept of emergency caps whose policy is not in the active set. Beyond the bounds those that left first are
// forgotten.
const (
	MaxRetiredCaps   = 1024
	MaxRetiredShares = 100_000 // of all of them together
	RetiredCapsAge   = 24 * time.Hour
)

// retiredCaps keeps the emergency caps of policies that left the active set, so that a policy which comes back, or turns
// fail_open again, in the same outage does not bring a full burst. A cap that is full again is forgotten: a new one is no
// different. Guarded by Engine.loading.
type retiredCaps map[bucketID]retiredCap

type retiredCap struct {
	*emergencyBucket
	since time.Duration // since the engine's start
}

// change takes in the caps that a reload left out, and lets go those that it uses again.
func (r retiredCaps) change(before, after map[bucketID]*emergencyBucket, now time.Duration) {
	for id, b := range before {
		if after[id] == nil {
			r[id] = retiredCap{b, now}
		}
	}
	for id := range after {
		delete(r, id)
	}
	r.prune(now)
}

func (r retiredCaps) prune(now time.Duration) {
	type kept struct {
		id     bucketID
		since  time.Duration
		shares int
	}
	all := make([]kept, 0, len(r))
	for id, b := range r {
		shares, full := b.tidy(algorithms.Micros(now.Microseconds()))
		if full || now-b.since > RetiredCapsAge {
			delete(r, id)
			continue
		}
		all = append(all, kept{id, b.since, shares})
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Compare(b.since, a.since) })
	shares := 0
	for i, k := range all {
		if shares += k.shares; i >= MaxRetiredCaps || shares > MaxRetiredShares {
			delete(r, k.id)
		}
	}
}

// tidy drops the shares that are full again. It returns how many there still are, and whether all of the bucket is full.
func (b *emergencyBucket) tidy(now algorithms.Micros) (shares int, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for caller, s := range b.shares {
		if b.per.Untouched(s, now) {
			delete(b.shares, caller)
		}
	}
	full = b.rule.Untouched(b.state, now) && len(b.shares) == 0 && (!b.hasShares || b.per.Untouched(b.overflow, now))
	return len(b.shares), full
}
