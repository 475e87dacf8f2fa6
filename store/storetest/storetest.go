// Package storetest is the conformance suite of rls.Store: what every store must do, however it keeps its buckets.
//
// A store's own tests call Run with a function that opens a fresh, empty store. Where a server stands behind the store,
// the suite also looks at what is written there and hurts it. Case ids of the project's fault collection stand in the
// names of the subtests that cover them.
package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// Harness is one open store with nothing in it.
type Harness struct {
	// Store must allow a call several seconds, so that no outcome is unknown on a busy machine.
	Store rls.Store
	// Server is what stands behind the store; nil when nothing does.
	Server Server
	// InSteps says that a group of several keys is decided in steps: a counting window that ends between them counts in
	// the next one what it denied in the last.
	InSteps bool
}

// Server is the raw side of a store on a server of its own.
type Server interface {
	// Read returns the value of a key and its time to live in whole milliseconds; < 0: it has none. False: no such key.
	Read(t testing.TB, key string) (value string, ttl time.Duration, ok bool)
	// Write sets a key, with a time to live unless that is 0.
	Write(t testing.TB, key, value string, ttl time.Duration)
	// WriteList makes the key a list, which is no bucket.
	WriteList(t testing.TB, key string)
	// Keys counts the keys.
	Keys(t testing.TB) int
	// SetFull makes the server refuse writes because its memory is used up, or ends that.
	SetFull(t testing.TB, full bool)
	// SetFrozen stops the server from answering, with its connections open, or ends that.
	SetFrozen(t testing.TB, frozen bool)
}

// Run runs the suite. open is called once for each subtest, from its goroutine, and closes what it opened by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, h Harness)
	}{
		{"answers agree with the rules", agreesWithTheRules},
		{"one bucket step by step", oneBucket},
		{"group is all or nothing", allOrNothing},
		{"group of both algorithms", bothAlgorithms},
		{"charge is recorded in a denied group", chargeInDeniedGroup},
		{"counting window counts what it denies", countingWindow},
		{"refund", refund},
		{"refund is dropped in a denied group", refundInDeniedGroup},
		{"peek spends nothing", peek},
		{"groups of one call are independent and in order", severalGroups},
		{"group that breaks the contract", brokenGroup},
		{"keys are bytes", keysAreBytes},
		{"a thousand takes in one group", hugeGroup},
		{"the clock", clock},
		{"context that is done", contextDone},
		{"LUA-14 exactly N are admitted", exactlyN},
		{"two buckets under 50 callers", twoBuckets},
		{"groups with keys in opposite order", oppositeOrder},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, open(t))
		})
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, store rls.Store, server Server)
	}{
		{"denied writes nothing", deniedWritesNothing},
		{"LUA-05 every key expires", everyKeyExpires},
		{"LUA-21 value of another type or shape", unreadableValue},
		{"LUA-23 server out of memory", outOfMemory},
		{"returns by the deadline of a frozen server", frozenServer},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			if h.Server == nil {
				t.Skip("no server stands behind this store")
			}
			c.run(t, h.Store, h.Server)
		})
	}
}

// callTimeout is the deadline of calls that are meant to succeed.
const callTimeout = 5 * time.Second

// failer is what *testing.T and *rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func decide(t failer, store rls.Store, groups ...rls.Group) []rls.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	answers := store.Decide(ctx, groups)
	if len(answers) != len(groups) {
		t.Fatalf("got %d answers for %d groups", len(answers), len(groups))
	}
	return answers
}

// ask decides one group of takes that the store must answer.
func ask(t testing.TB, store rls.Store, takes ...rls.Take) rls.Answer {
	t.Helper()
	a := decide(t, store, takes)[0]
	mustAnswer(t, a, len(takes))
	return a
}

func mustAnswer(t failer, a rls.Answer, takes int) {
	t.Helper()
	if a.Err != nil {
		t.Fatalf("the store failed: %v", a.Err)
	}
	if len(a.Before) != takes {
		t.Fatalf("got %d states for %d takes", len(a.Before), takes)
	}
}

func allows(t testing.TB, store rls.Store, want bool, takes ...rls.Take) rls.Answer {
	t.Helper()
	a := ask(t, store, takes...)
	if a.Allowed != want {
		t.Fatalf("allowed %v, want %v, of %+v before %+v", a.Allowed, want, takes, a.Before)
	}
	return a
}

// left returns the whole tokens or hits that a bucket has left.
func left(t testing.TB, store rls.Store, key string, rule algorithms.Rule) int64 {
	t.Helper()
	a := ask(t, store, rls.Take{Key: key, Rule: rule, Op: algorithms.OpPeek, Cost: 1})
	return rule.Peek(a.Before[0], a.Now, 1).Remaining
}

func hasLeft(t testing.TB, store rls.Store, key string, rule algorithms.Rule, want int64) {
	t.Helper()
	if got := left(t, store, key, rule); got != want {
		t.Fatalf("%s has %d left, want %d", key, got, want)
	}
}

func take(key string, rule algorithms.Rule, cost int64) rls.Take {
	return rls.Take{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: cost}
}

func with(op algorithms.Op, t rls.Take) rls.Take {
	t.Op = op
	return t
}

// full is a bucket of capacity tokens that never refills, so that what is left depends on nothing but the calls.
func full(t testing.TB, capacity int64) algorithms.Rule {
	t.Helper()
	return must(t)(algorithms.NewTokenBucket(capacity, algorithms.Rate{}))
}

// bucket refills tokens per second.
func bucket(t testing.TB, capacity, perSecond int64) algorithms.Rule {
	t.Helper()
	return must(t)(algorithms.NewTokenBucket(capacity, algorithms.Rate{Tokens: perSecond, Seconds: 1}))
}

func window(t testing.TB, limit int64, length time.Duration) algorithms.Rule {
	t.Helper()
	return must(t)(algorithms.NewSlidingWindow(limit, length))
}

func must(t testing.TB) func(r algorithms.Rule, err error) algorithms.Rule {
	t.Helper()
	return func(r algorithms.Rule, err error) algorithms.Rule {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// concurrently calls f from n goroutines that start together and waits for all.
func concurrently(n int, f func(caller int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}
