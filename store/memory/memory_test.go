package memory_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]memory.Config{
		"one shard":   {MaxBuckets: 4000},
		"many shards": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Harness { return storetest.Harness{Store: open(t, cfg)} })
		})
	}
}

func open(t testing.TB, cfg memory.Config) *memory.Store {
	t.Helper()
	store, err := memory.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func bucket(t testing.TB, capacity, perSecond int64) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewTokenBucket(capacity, algorithms.Rate{Tokens: perSecond, Seconds: 1})
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func window(t testing.TB, limit int64, length time.Duration) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewSlidingWindow(limit, length)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func take(key string, rule algorithms.Rule, cost int64) rls.Take {
	return rls.Take{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: cost}
}

func peek(key string, rule algorithms.Rule, cost int64) rls.Take {
	return rls.Take{Key: key, Rule: rule, Op: algorithms.OpPeek, Cost: cost}
}

func decide(t testing.TB, store *memory.Store, group ...rls.Take) rls.Answer {
	t.Helper()
	a := store.Decide(context.Background(), []rls.Group{group})[0]
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	return a
}

func allows(t testing.TB, store *memory.Store, want bool, group ...rls.Take) {
	t.Helper()
	if a := decide(t, store, group...); a.Allowed != want {
		t.Fatalf("allowed %v, want %v, of %+v before %+v", a.Allowed, want, group, a.Before)
	}
}

// TestFullStore follows a store of three buckets through the whole rule: as if untouched goes first, then new keys share.
func TestFullStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		overflows := 0
		store := open(t, memory.Config{MaxBuckets: 3, Overflowed: func(n int) { overflows += n }})
		rule := bucket(t, 4, 1) // full again a second after each token

		for _, step := range []struct {
			after     time.Duration
			key       string
			cost      int64
			allowed   bool
			buckets   int
			overflows int
		}{
			{0, "a", 1, true, 1, 0}, // untouched at 1 s
			{0, "b", 2, true, 2, 0}, // at 2 s
			{0, "c", 4, true, 3, 0}, // at 4 s
			{0, "d", 1, true, 3, 1}, // full: d takes from the overflow bucket
			{0, "e", 3, true, 3, 2}, // which e shares
			{0, "f", 1, false, 3, 3},
			{0, "d", 1, false, 3, 4},
			{0, "a", 3, true, 3, 4}, // who has a bucket keeps it; untouched at 4 s now
			{1999 * time.Millisecond, "g", 2, false, 3, 5},
			{time.Millisecond, "g", 2, true, 3, 5},      // b is as if untouched and goes
			{0, "b", 1, true, 3, 6},                     // so b is a new key; the overflow bucket has refilled to 2
			{2 * time.Second, "h", 4, true, 2, 6},       // at 4 s a, c and g are untouched: two go at a time
			{0, "i", 4, true, 2, 6},                     // and the third with the next
			{0, "j", 4, true, 3, 6},                     // the last place
			{0, "k", 4, false, 3, 7},                    // the overflow bucket: 1 at 2 s, 3 at 4 s
			{0, "k", 3, true, 3, 8},                     //
			{time.Hour, "l", 4, true, 2, 8},             // everything is untouched
			{0, "m", 4, true, 2, 8},                     //
			{24 * time.Hour, "overflow", 4, true, 1, 8}, //
		} {
			time.Sleep(step.after)
			allows(t, store, step.allowed, take(step.key, rule, step.cost))
			if store.Buckets() != step.buckets || overflows != step.overflows {
				t.Fatalf("after %+v: %d buckets, %d overflows", step, store.Buckets(), overflows)
			}
		}
	})
}

// TestOverflowIsPerLimit: limits do not share their overflow with one another, and takes of one group that share it
// are counted together.
func TestOverflowIsPerLimit(t *testing.T) {
	t.Parallel()
	store := open(t, memory.Config{MaxBuckets: 1})
	first, second, hits := bucket(t, 3, 0), bucket(t, 5, 0), window(t, 2, time.Hour)
	allows(t, store, true, take("the bucket", first, 1))

	allows(t, store, true, peek("a", first, 3))
	allows(t, store, true, take("a", first, 2), take("b", second, 5), take("c", hits, 2))
	allows(t, store, false, peek("d", first, 2))
	allows(t, store, true, peek("d", first, 1))
	allows(t, store, false, take("d", second, 1))
	allows(t, store, false, take("d", hits, 1))

	// One token is left of the first rule: two takes of one group see each other.
	allows(t, store, false, take("d", first, 1), take("e", first, 1))
	allows(t, store, true, take("d", first, 1))
	allows(t, store, false, take("e", first, 1))

	// A denied group gives everything back but its charges.
	charged := bucket(t, 10, 0)
	charge := rls.Take{Key: "f", Rule: charged, Op: algorithms.OpCharge, Cost: 4}
	allows(t, store, false, take("g", charged, 1), charge, take("h", charged, 2), take("i", first, 1))
	allows(t, store, true, peek("j", charged, 6))
	allows(t, store, false, peek("j", charged, 7))

	// A refund of a key without a bucket is dropped: what it pays for may have been forgotten long ago.
	allows(t, store, true, rls.Take{Key: "a", Rule: first, Op: algorithms.OpRefund, Cost: 3})
	allows(t, store, false, peek("a", first, 1))
}

// TestOverflowIsBounded: callers may bring rules of their own, so their number is bounded too.
func TestOverflowIsBounded(t *testing.T) {
	t.Parallel()
	store := open(t, memory.Config{MaxBuckets: 1})
	allows(t, store, true, take("the bucket", bucket(t, 1, 0), 1))
	var err error
	for i := range int64(4097) {
		group := rls.Group{take("k", bucket(t, 10+i, 0), 1)}
		if err = store.Decide(context.Background(), []rls.Group{group})[0].Err; err != nil && i < 4096 {
			t.Fatalf("rule %d: %v", i, err)
		}
	}
	if !errors.Is(err, rls.ErrUnavailable) {
		t.Fatalf("rule 4096: got %v, want ErrUnavailable", err)
	}
	// The group that failed left nothing behind, and the others still work.
	group := rls.Group{take("k", bucket(t, 10, 0), 9), take("l", bucket(t, 9999, 0), 1)}
	if err := store.Decide(context.Background(), []rls.Group{group})[0].Err; !errors.Is(err, rls.ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	allows(t, store, true, take("k", bucket(t, 10, 0), 9))
}

// TestReclaims: a store that never fills up drops what is as if untouched, a little with each new key.
func TestReclaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, memory.Config{MaxBuckets: 4000})
		rule := window(t, 10, time.Second)
		for i := range 1000 {
			allows(t, store, true, take(fmt.Sprint("old", i), rule, 1))
		}
		time.Sleep(2 * time.Second)
		for i := range 500 {
			allows(t, store, true, take(fmt.Sprint("new", i), rule, 1))
		}
		if got := store.Buckets(); got != 500 {
			t.Fatalf("%d buckets, want the 500 in use", got)
		}
	})
}

// TestDeniedKeepsNothing: a key that was only ever denied, peeked at or refunded has no bucket.
func TestDeniedKeepsNothing(t *testing.T) {
	t.Parallel()
	store := open(t, memory.Config{})
	rule := bucket(t, 2, 0)
	allows(t, store, false, take("a", rule, 3))
	allows(t, store, false, take("b", rule, 1), take("c", rule, 3))
	allows(t, store, true, peek("d", rule, 2))
	allows(t, store, true, rls.Take{Key: "e", Rule: rule, Op: algorithms.OpRefund, Cost: 1})
	if got := store.Buckets(); got != 0 {
		t.Fatalf("%d buckets, want none", got)
	}
}

// TestForgetsAfterAYear: a bucket that never refills is not kept for ever.
func TestForgetsAfterAYear(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, memory.Config{})
		rule := bucket(t, 2, 0)
		allows(t, store, true, take("k", rule, 1))
		time.Sleep(300 * 24 * time.Hour)
		allows(t, store, true, take("k", rule, 1))
		time.Sleep(365 * 24 * time.Hour)
		allows(t, store, false, take("k", rule, 1))
		time.Sleep(24*time.Hour - time.Microsecond)
		allows(t, store, false, take("k", rule, 1))
		time.Sleep(time.Microsecond)
		allows(t, store, true, take("k", rule, 2))
	})
}

// TestRuleChanges: another capacity, limit or rate keeps the bucket; another algorithm or window cannot read it.
func TestRuleChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, memory.Config{})
		allows(t, store, true, take("k", bucket(t, 10, 0), 8))
		allows(t, store, false, peek("k", bucket(t, 5, 0), 3))
		allows(t, store, true, peek("k", bucket(t, 5, 0), 2))
		allows(t, store, true, peek("k", window(t, 10, time.Hour), 10))
		allows(t, store, true, take("k", window(t, 10, time.Hour), 10))
		allows(t, store, false, take("k", window(t, 10, time.Hour), 1))
		allows(t, store, true, take("k", window(t, 10, time.Minute), 10))
		allows(t, store, true, take("k", bucket(t, 10, 0), 2))
	})
}

// TestMemoryIsBounded sends a flood of new keys through a store that is full and looks at the heap.
func TestMemoryIsBounded(t *testing.T) {
	var overflows atomic.Int64
	store := open(t, memory.Config{MaxBuckets: 20_000, Overflowed: func(n int) { overflows.Add(int64(n)) }})
	short, long := window(t, 10, time.Millisecond), window(t, 10, time.Hour)
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			rule := long
			if i%2 == 0 {
				rule = short // comes and goes
			}
			decide(t, store, take(fmt.Sprint("tenant", i), rule, 1))
		}
	}
	fill(0, 60_000)
	if got := store.Buckets(); got < 19_000 || got > 20_000 {
		t.Fatalf("%d buckets of 20 000 after 60 000 keys", got)
	}
	before := heap()
	fill(60_000, 150_000)
	if grown := int64(heap()) - int64(before); grown > 256<<10 {
		t.Errorf("the heap grew by %d bytes after the store was full", grown)
	}
	if got := store.Buckets(); got > 20_000 {
		t.Errorf("%d buckets, bound 20 000", got)
	}
	if overflows.Load() == 0 {
		t.Error("nothing overflowed")
	}
	runtime.KeepAlive(store)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 1<<30 + 1} {
		if _, err := memory.New(memory.Config{MaxBuckets: n}); err == nil || !strings.Contains(err.Error(), "1 to 2^30") {
			t.Errorf("%d buckets: got %v, want an error with the bounds", n, err)
		}
	}
}

// BenchmarkBytesPerBucket fills a default store and reports what a bucket costs.
func BenchmarkBytesPerBucket(b *testing.B) {
	rule := window(b, 10, 24*time.Hour)
	for b.Loop() {
		before := heap()
		store := open(b, memory.Config{})
		for i := range memory.DefaultMaxBuckets {
			decide(b, store, take(fmt.Sprint("tenant", i), rule, 1))
		}
		b.ReportMetric(float64(heap()-before)/float64(store.Buckets()), "B/bucket")
		b.ReportMetric(float64(store.Buckets()), "buckets")
	}
}

func BenchmarkDecide(b *testing.B) {
	store := open(b, memory.Config{})
	rule := bucket(b, 1_000_000_000, 1_000_000)
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		keys := make([]string, 1000)
		id := n.Add(1)
		for i := range keys {
			keys[i] = fmt.Sprintf("sentinel:v1:{%064d}:orders.create:%d", i, id)
		}
		groups := []rls.Group{{take("", rule, 1)}}
		for i := 0; pb.Next(); i++ {
			groups[0][0].Key = keys[i%len(keys)]
			store.Decide(context.Background(), groups)
		}
	})
}
