package load

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets are linear within each power of two: 64 of them, so that a bucket is at most 1/64 of its values wide.
const (
	subBits    = 6
	subBuckets = 1 << subBits
	buckets    = (64 - subBits) * subBuckets
)

// Histogram counts times with an error of less than 1.6 %. The zero value is empty. Safe for concurrent use.
type Histogram struct {
	counts [buckets]atomic.Int64
	max    atomic.Int64
}

// Record counts one time; a negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	n := max(0, int64(d))
	h.counts[bucketOf(uint64(n))].Add(1)
	for {
		before := h.max.Load()
		if n <= before || h.max.CompareAndSwap(before, n) {
			return
		}
	}
}

// Add counts what other has recorded, too.
func (h *Histogram) Add(other *Histogram) {
	for i := range h.counts {
		h.counts[i].Add(other.counts[i].Load())
	}
	h.max.Store(max(h.max.Load(), other.max.Load()))
}

// Quantile returns the time that a share q of what was recorded does not exceed, 0 ≤ q ≤ 1: the upper edge of its bucket,
// but never more than the largest time recorded. It is 0 when nothing was.
func (h *Histogram) Quantile(q float64) time.Duration {
	var total int64
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	rank := int64(q*float64(total) + 0.5) // the q-th of them, counted from 1
	rank = min(max(rank, 1), total)
	var seen int64
	for i := range h.counts {
		if seen += h.counts[i].Load(); total > 0 && seen >= rank {
			return min(time.Duration(edgeOf(i)), h.Max())
		}
	}
	return 0
}

// Max returns the largest time recorded, exactly.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// bucketOf returns the bucket of n: n itself below subBuckets, then its leading subBits+1 bits and their position.
func bucketOf(n uint64) int {
	shift := max(0, bits.Len64(n)-subBits-1)
	return shift*subBuckets + int(n>>shift)
}

// edgeOf returns the largest value of a bucket.
func edgeOf(bucket int) uint64 {
	if bucket < 2*subBuckets {
		return uint64(bucket)
	}
	shift := bucket/subBuckets - 1
	return uint64(bucket-shift*subBuckets+1)<<shift - 1
}
