package rls_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// slowStore decides on the clock of the bubble it lives in, and takes time on the way there and back.
type slowStore struct {
	clockStore
	there, back time.Duration
	skew        time.Duration // of the store's clock
}

func newSlowStore(there, back time.Duration) *slowStore {
	return &slowStore{clockStore: clockStore{buckets: map[string]algorithms.State{}}, there: there, back: back}
}

func (s *slowStore) clock() algorithms.Micros {
	return algorithms.Micros(time.Now().Add(s.skew).UnixMicro())
}

func (s *slowStore) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	time.Sleep(s.there)
	s.mu.Lock()
	s.now = s.clock()
	s.mu.Unlock()
	answers := s.clockStore.Decide(ctx, groups)
	time.Sleep(s.back)
	return answers
}

// would returns the verdict on a take if the store were asked now.
func (s *slowStore) would(t rls.Take) algorithms.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.Rule.Peek(s.buckets[t.Key], s.clock(), t.Cost)
}

func bucket(t interface{ Fatal(...any) }, capacity, tokens, seconds int64) algorithms.Rule {
	rate, err := algorithms.NewRate(tokens, seconds)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := algorithms.NewTokenBucket(capacity, rate)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func window(t interface{ Fatal(...any) }, limit int64, length time.Duration) algorithms.Rule {
	rule, err := algorithms.NewSlidingWindow(limit, length)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func take(key string, rule algorithms.Rule, cost int64) rls.Group {
	return rls.Group{{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: cost}}
}

// TestDenyCacheStory follows one hot key: the second denial needs no store, the admission is not missed, and a state older
// than MaxAge is asked for again.
func TestDenyCacheStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(0, 0)
		c := rls.NewDenyCache(store, rls.DenyCacheConfig{})
		rule := bucket(t, 1, 1, 3)
		for i, s := range []struct {
			after          time.Duration
			allowed, fromC bool
			calls          int
		}{
			{0, true, false, 1},
			{0, false, false, 2},
			{0, false, true, 2},
			{900 * time.Millisecond, false, true, 2},
			{100 * time.Millisecond, false, true, 2},
			{time.Millisecond, false, false, 3}, // older than a second
			{0, false, true, 3},
			{1000 * time.Millisecond, false, true, 3},
			{500 * time.Millisecond, false, false, 4},
			{498*time.Millisecond - 10*time.Microsecond, false, true, 4},
			{999 * time.Millisecond, true, false, 5}, // 3 s after the first
			{0, false, true, 5},                      // what the admission left is known
		} {
			time.Sleep(s.after)
			a := c.Decide(t.Context(), []rls.Group{take("k", rule, 1)})[0]
			if a.Allowed != s.allowed || a.Cached != s.fromC || store.calls != s.calls {
				t.Errorf("step %d: allowed %v, cached %v, %d calls; want %v, %v, %d", i, a.Allowed, a.Cached, store.calls, s.allowed, s.fromC, s.calls)
			}
		}
	})
}

// TestPF_04_ACachedDenialEndsWithTheAdmission: a denial that was kept 100 ms before its bucket admits again is not told at
// that moment, and nothing is ever admitted from memory.
func TestPF_04_ACachedDenialEndsWithTheAdmission(t *testing.T) {
	fixed, err := algorithms.NewFixedWindow(1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rule   algorithms.Rule
		admits time.Duration // again, after the minute in which one was taken began
	}{
		"fixed window":   {fixed, time.Minute},
		"sliding window": {window(t, 1, time.Minute), 2 * time.Minute}, // the one of the minute before fades until then
		"token bucket":   {bucket(t, 1, 1, 60), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newSlowStore(0, 0)
				cache := rls.NewDenyCache(store, rls.DenyCacheConfig{})
				minute := time.Now() // a bubble begins at midnight
				ask := func(after time.Duration, allowed, cached bool) {
					t.Helper()
					time.Sleep(time.Until(minute.Add(after)))
					a := cache.Decide(t.Context(), []rls.Group{take("k", c.rule, 1)})[0]
					if a.Err != nil || a.Allowed != allowed || a.Cached != cached {
						t.Errorf("at %v: allowed %v, cached %v, %v; want %v, %v", after, a.Allowed, a.Cached, a.Err, allowed, cached)
					}
				}
				ask(0, true, false)
				ask(c.admits-100*time.Millisecond, false, false)
				ask(c.admits-100*time.Millisecond, false, true)
				ask(c.admits-time.Millisecond, false, true)
				ask(c.admits, true, false)
			})
		})
	}
}

// TestDenyCacheIsTheStore draws requests over a few keys and compares every answer with what the store would say itself.
func TestDenyCacheIsTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, denyCacheIsTheStore)
	})
}

func denyCacheIsTheStore(t *rapid.T) {
	there := time.Duration(rapid.IntRange(0, 5000).Draw(t, "there")) * time.Microsecond
	back := time.Duration(rapid.IntRange(0, 5000).Draw(t, "back")) * time.Microsecond
	store := newSlowStore(there, back)
	c := rls.NewDenyCache(store, rls.DenyCacheConfig{Keys: rapid.IntRange(1, 4).Draw(t, "keys")})
	rules := []algorithms.Rule{bucket(t, 2, 3, 1), bucket(t, 3, 1, 2), bucket(t, 1, 0, 0), window(t, 2, 700*time.Millisecond)}
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		time.Sleep(time.Duration(rapid.Int64Range(0, 800_000).Draw(t, "after")) * time.Microsecond)
		i := rapid.IntRange(0, len(rules)-1).Draw(t, "key")
		g := take(fmt.Sprint("k", i), rules[i], rapid.Int64Range(1, 3).Draw(t, "cost"))
		if rapid.Bool().Draw(t, "two") {
			j := (i + 1) % len(rules)
			g = append(g, take(fmt.Sprint("k", j), rules[j], 1)...)
		}
		if rapid.IntRange(0, 9).Draw(t, "peek") == 0 {
			g[0].Op = algorithms.OpPeek
		}
		compare(t, store, c, g)
	}
}

func compare(t *rapid.T, store *slowStore, c *rls.DenyCache, g rls.Group) {
	before := make([]algorithms.Verdict, len(g))
	allowed := true
	for i := range g {
		before[i] = store.would(g[i])
		allowed = allowed && before[i].Allowed
	}
	a := c.Decide(t.Context(), []rls.Group{g})[0]
	if a.Err != nil {
		t.Fatalf("%v", a.Err)
	}
	if !a.Cached {
		return // the store's own answer
	}
	if allowed {
		t.Fatalf("denied from memory what the store would admit: %+v", g)
	}
	slack := store.there + store.back + 2*time.Microsecond + time.Second/1000
	for i := range g {
		v := g[i].Rule.Verdict(g[i].Op, a.Before[i], a.Now, g[i].Cost)
		if v.Allowed || before[i].Allowed {
			continue
		}
		if v.RetryAfter < 0 != (before[i].RetryAfter < 0) || v.RetryAfter > before[i].RetryAfter+slack || v.RetryAfter >= 0 && v.RetryAfter < before[i].RetryAfter {
			t.Fatalf("retry after %v, the store says %v (round trip %v)", v.RetryAfter, before[i].RetryAfter, store.there+store.back)
		}
	}
}

// TestDenyCacheAsksOnce sends many callers at a hot key for a while: one call per second, and one per admission.
func TestDenyCacheAsksOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		rule func(*testing.T) algorithms.Rule
		most int32
		want int32
	}{
		{"never admitted", func(t *testing.T) algorithms.Rule { return bucket(t, 1, 0, 0) }, 7, 1},
		{"one a second", func(t *testing.T) algorithms.Rule { return bucket(t, 1, 1, 1) }, 13, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newSlowStore(time.Millisecond, time.Millisecond)
				var calls, admitted atomic.Int32
				cache := rls.NewDenyCache(storeFunc(func(ctx context.Context, g []rls.Group) []rls.Answer {
					calls.Add(1)
					return store.Decide(ctx, g)
				}), rls.DenyCacheConfig{})
				rule := c.rule(t)
				for range 2 { // one takes what is there, one is denied
					if cache.Decide(t.Context(), []rls.Group{take("k", rule, 1)})[0].Allowed {
						admitted.Add(1)
					}
				}
				var wg sync.WaitGroup
				for range 32 {
					wg.Go(func() {
						for end := time.Now().Add(4900 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
							if cache.Decide(t.Context(), []rls.Group{take("k", rule, 1)})[0].Allowed {
								admitted.Add(1)
							}
						}
					})
				}
				wg.Wait()
				if calls.Load() > c.most || admitted.Load() != c.want {
					t.Errorf("%d store calls, %d admitted; want at most %d, and %d", calls.Load(), admitted.Load(), c.most, c.want)
				}
			})
		})
	}
}

// TestDenyCacheForgets: a refund, a drop and another shape of the group are seen at once; what never stays true is never kept.
func TestDenyCacheForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(0, 0)
		c := rls.NewDenyCache(store, rls.DenyCacheConfig{})
		rule := bucket(t, 1, 0, 0)
		decide := func(g rls.Group) rls.Answer { return c.Decide(t.Context(), []rls.Group{g})[0] }
		exhaust := func() {
			decide(take("k", rule, 1))
			decide(take("k", rule, 1))
			if a := decide(take("k", rule, 1)); a.Allowed || !a.Cached {
				t.Fatalf("allowed %v, cached %v; want a denial from memory", a.Allowed, a.Cached)
			}
		}
		exhaust()
		decide(rls.Group{{Key: "k", Rule: rule, Op: algorithms.OpRefund, Cost: 1}})
		if a := decide(take("k", rule, 1)); !a.Allowed {
			t.Error("a refund was not seen")
		}
		exhaust()
		c.Drop()
		if a := decide(take("k", rule, 1)); a.Cached {
			t.Error("answered from memory after Drop")
		}
		if a := decide(append(take("k", rule, 1), take("other", rule, 1)...)); a.Cached || a.Allowed {
			t.Errorf("another group with the bucket: allowed %v, cached %v; want the store's denial", a.Allowed, a.Cached)
		}
		if a := decide(take("k", bucket(t, 5, 0, 0), 1)); a.Cached {
			t.Error("answered by a rule of before a reload")
		}
		charge := rls.Group{{Key: "c", Rule: rule, Op: algorithms.OpCharge, Cost: 1}}
		refundable := take("r", rule, 1)
		refundable[0].Refunds = true
		for range 3 {
			if decide(charge).Cached || decide(refundable).Cached {
				t.Error("a charge, or a take of a limit with refunds, was answered from memory")
			}
		}
	})
}

// TestDenyCacheWhileTheStoreFails: failures are the store's; nobody waits beyond the deadline; the next caller asks again.
func TestDenyCacheWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(0, 0)
		hang := false
		c := rls.NewDenyCache(storeFunc(func(ctx context.Context, g []rls.Group) []rls.Answer {
			if hang {
				<-ctx.Done()
				return []rls.Answer{{Err: rls.ErrTimeout}}
			}
			return store.Decide(ctx, g)
		}), rls.DenyCacheConfig{})
		rule := bucket(t, 1, 0, 0)
		for range 2 {
			c.Decide(t.Context(), []rls.Group{take("k", rule, 1)})
		}
		time.Sleep(2 * time.Second)
		hang = true
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 16*time.Millisecond)
				defer cancel()
				a := c.Decide(ctx, []rls.Group{take("k", rule, 1)})[0]
				if !errors.Is(a.Err, rls.ErrTimeout) || time.Since(start) > 16*time.Millisecond {
					t.Errorf("%v after %v, want a timeout at 16ms", a.Err, time.Since(start))
				}
			})
		}
		wg.Wait()
		hang = false
		if a := c.Decide(t.Context(), []rls.Group{take("k", rule, 1)})[0]; a.Err != nil || a.Allowed || a.Cached {
			t.Errorf("after the failure: %+v, want the store's denial", a)
		}
	})
}

// TestDenyCacheIsBounded denies more keys than it keeps.
func TestDenyCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(0, 0)
		c := rls.NewDenyCache(store, rls.DenyCacheConfig{Keys: 100})
		rule := bucket(t, 1, 0, 0)
		cached := 0
		for i := range 1000 {
			for range 3 {
				if c.Decide(t.Context(), []rls.Group{take(fmt.Sprint("k", i), rule, 1)})[0].Cached {
					cached++
				}
			}
		}
		if cached != 100 {
			t.Errorf("%d keys answered from memory, want 100", cached)
		}
		// A group that does not fit in beside them goes to the store, each for itself.
		two := append(take("k0", rule, 1), take("never seen", rule, 1)...)
		var wg sync.WaitGroup
		store.back = time.Millisecond
		start := time.Now()
		for range 50 {
			wg.Go(func() {
				if a := c.Decide(t.Context(), []rls.Group{two})[0]; a.Allowed || a.Cached {
					t.Errorf("allowed %v, cached %v; want the store's denial", a.Allowed, a.Cached)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > time.Millisecond {
			t.Errorf("50 calls at once took %v, want the millisecond of one", took)
		}
		time.Sleep(2 * time.Second) // old denials make room
		cached = 0
		for range 3 {
			for i := range 64 {
				if c.Decide(t.Context(), []rls.Group{take(fmt.Sprint("n", i), rule, 1)})[0].Cached {
					cached++
				}
			}
		}
		if cached == 0 {
			t.Error("a full cache of old denials keeps no new one")
		}
	})
}
