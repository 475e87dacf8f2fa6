package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func oneBucket(t *testing.T, h Harness) {
	rule := full(t, 5)
	for i, step := range []struct {
		cost    int64
		allowed bool
		left    int64 // in the state that the answer reports, so before this step
	}{
		{2, true, 5},
		{1, true, 3},
		{3, false, 2}, // does not fit, so nothing is spent
		{2, true, 2},
		{1, false, 0},
		{6, false, 0}, // more than the bucket ever holds
	} {
		a := allows(t, h.Store, step.allowed, take("k", rule, step.cost))
		if got := rule.Peek(a.Before[0], a.Now, 1).Remaining; got != step.left {
			t.Fatalf("step %d: %d left before, want %d", i, got, step.left)
		}
		if present := i > 0; a.Before[0].Present != present {
			t.Fatalf("step %d: state %+v, want present %v", i, a.Before[0], present)
		}
	}
}

func allOrNothing(t *testing.T, h Harness) {
	wide, narrow := full(t, 10), full(t, 2)
	both := rls.Group{take("wide", wide, 1), take("narrow", narrow, 1)}
	allows(t, h.Store, true, both...)
	allows(t, h.Store, true, both...)
	for range 3 {
		a := allows(t, h.Store, false, both...)
		if got := wide.Peek(a.Before[0], a.Now, 1).Remaining; got != 8 {
			t.Fatalf("wide has %d left, want 8: a denied group spent", got)
		}
	}
	// The order of the takes does not matter, nor does a bucket that the denied group would have made.
	allows(t, h.Store, false, take("narrow", narrow, 1), take("fresh", wide, 1))
	hasLeft(t, h.Store, "fresh", wide, 10)
	hasLeft(t, h.Store, "wide", wide, 8)
	// A peek that does not fit denies as well.
	allows(t, h.Store, false, take("wide", wide, 1), with(algorithms.OpPeek, take("narrow", narrow, 1)))
	hasLeft(t, h.Store, "wide", wide, 8)
}

func bothAlgorithms(t *testing.T, h Harness) {
	tokens, hits := full(t, 3), window(t, 2, time.Hour)
	both := rls.Group{take("tokens", tokens, 1), take("hits", hits, 1)}
	// Across the end of an hour the two hits weigh a little less than 2, which still leaves no room for a third.
	allows(t, h.Store, true, both...)
	allows(t, h.Store, true, both...)
	allows(t, h.Store, false, both...)
	hasLeft(t, h.Store, "tokens", tokens, 1)
	hasLeft(t, h.Store, "hits", hits, 0)
}

func chargeInDeniedGroup(t *testing.T, h Harness) {
	rule, none := full(t, 10), full(t, 1)
	charge := with(algorithms.OpCharge, take("charged", rule, 4))
	allows(t, h.Store, true, take("none", none, 1))
	allows(t, h.Store, false, take("none", none, 1), charge, take("taken", rule, 4))
	hasLeft(t, h.Store, "charged", rule, 6)
	hasLeft(t, h.Store, "taken", rule, 10)

	// A charge that does not fit denies its group and takes the bucket to 0, not below.
	allows(t, h.Store, false, with(algorithms.OpCharge, take("charged", rule, 7)), take("taken", rule, 4))
	hasLeft(t, h.Store, "charged", rule, 0)
	hasLeft(t, h.Store, "taken", rule, 10)

	// A window counts it in full, above the limit.
	hits := window(t, 5, time.Hour)
	allows(t, h.Store, false, with(algorithms.OpCharge, take("hits", hits, 9)))
	a := ask(t, h.Store, with(algorithms.OpPeek, take("hits", hits, 1)))
	if s := a.Before[0]; s.Level+s.Previous != 9 {
		t.Fatalf("state %+v, want 9 hits", s)
	}
}

func countingWindow(t *testing.T, h Harness) {
	const years = 8 * 365 * 24 * time.Hour
	counting, tokens := must(t)(algorithms.NewCountingWindow(2, years)), full(t, 10)
	counts := func(want int64) {
		t.Helper()
		if a := ask(t, h.Store, with(algorithms.OpPeek, take("k", counting, 1))); a.Before[0].Level != want {
			t.Fatalf("state %+v, want %d hits", a.Before[0], want)
		}
	}
	allows(t, h.Store, true, take("k", counting, 2))
	allows(t, h.Store, false, take("k", counting, 3)) // counted all the same
	counts(5)
	// In a group that it denies it counts, and the others spend nothing.
	allows(t, h.Store, false, take("tokens", tokens, 1), take("k", counting, 1))
	counts(6)
	hasLeft(t, h.Store, "tokens", tokens, 10)
	// In a group that another one denies, what would have fitted is not counted.
	allows(t, h.Store, false, take("fresh", counting, 1), take("tokens", tokens, 11))
	allows(t, h.Store, true, take("fresh", counting, 2))
}

func refund(t *testing.T, h Harness) {
	rule := full(t, 10)
	refund := func(n int64) rls.Take { return with(algorithms.OpRefund, take("k", rule, n)) }

	if a := allows(t, h.Store, true, refund(1)); a.Before[0].Present {
		t.Fatalf("state %+v of a bucket that was never used", a.Before[0])
	}
	if a := allows(t, h.Store, true, take("k", rule, 6)); a.Before[0].Present {
		t.Fatalf("the refund of an absent bucket wrote %+v", a.Before[0])
	}
	allows(t, h.Store, true, refund(2))
	hasLeft(t, h.Store, "k", rule, 6)
	allows(t, h.Store, true, refund(100))
	hasLeft(t, h.Store, "k", rule, 10)

	// A window that is named gets it back when it is the current one or the one before; any other is gone.
	hits := window(t, 10, time.Hour)
	hour := hits.Window()
	a := allows(t, h.Store, true, take("hits", hits, 6))
	start := hits.Advance(algorithms.State{}, a.Now).At
	back := with(algorithms.OpRefund, take("hits", hits, 2))
	back.Window = start - 5*hour
	allows(t, h.Store, true, back)
	back.Window = start
	allows(t, h.Store, true, back)
	a = ask(t, h.Store, with(algorithms.OpPeek, take("hits", hits, 1)))
	if s := a.Before[0]; s.Level+s.Previous != 4 {
		t.Fatalf("state %+v, want 4 hits", s)
	}
}

func refundInDeniedGroup(t *testing.T, h Harness) {
	rule := full(t, 10)
	allows(t, h.Store, true, take("a", rule, 10), take("b", rule, 5))
	allows(t, h.Store, false, with(algorithms.OpRefund, take("b", rule, 3)), take("a", rule, 1))
	hasLeft(t, h.Store, "b", rule, 5)
	allows(t, h.Store, true, with(algorithms.OpRefund, take("a", rule, 1)), take("b", rule, 1))
	hasLeft(t, h.Store, "a", rule, 1)
	hasLeft(t, h.Store, "b", rule, 4)
}

func peek(t *testing.T, h Harness) {
	rule := full(t, 2)
	peek := func(cost int64) rls.Take { return with(algorithms.OpPeek, take("k", rule, cost)) }
	for range 3 {
		if a := allows(t, h.Store, true, peek(2)); a.Before[0].Present {
			t.Fatalf("a peek wrote %+v", a.Before[0])
		}
		allows(t, h.Store, false, peek(3))
	}
	allows(t, h.Store, true, take("k", rule, 1))
	for range 3 {
		allows(t, h.Store, true, peek(1))
		allows(t, h.Store, false, peek(2))
	}
	allows(t, h.Store, true, take("k", rule, 1))
	allows(t, h.Store, false, peek(1))
}

func severalGroups(t *testing.T, h Harness) {
	rule := full(t, 3)
	groups := []rls.Group{
		{take("a", rule, 1)},
		{take("a", rule, 1), take("b", rule, 4)}, // denied by b
		{take("a", rule, 1)},
		{take("b", rule, 3)},
		{take("a", rule, 1), take("c", rule, 1)},
		{take("a", rule, 1)}, // a is used up
		{take("c", rule, 2)},
	}
	want := []struct {
		allowed bool
		left    int64 // of the group's first bucket, before
	}{
		{true, 3},
		{false, 2},
		{true, 2},
		{true, 3},
		{true, 1},
		{false, 0},
		{true, 2},
	}
	for i, a := range decide(t, h.Store, groups...) {
		mustAnswer(t, a, len(groups[i]))
		left := rule.Peek(a.Before[0], a.Now, 1).Remaining
		if a.Allowed != want[i].allowed || left != want[i].left {
			t.Errorf("group %d: allowed %v with %d left, want %+v", i, a.Allowed, left, want[i])
		}
	}

	many := make([]rls.Group, 300)
	for i := range many {
		many[i] = rls.Group{take("many", full(t, 100), 1)}
	}
	for i, a := range decide(t, h.Store, many...) {
		mustAnswer(t, a, 1)
		if a.Allowed != (i < 100) {
			t.Fatalf("group %d of one bucket of 100: allowed %v", i, a.Allowed)
		}
	}
	if got := decide(t, h.Store); len(got) != 0 {
		t.Fatalf("%d answers to no group", len(got))
	}
}

func brokenGroup(t *testing.T, h Harness) {
	rule := full(t, 10)
	good := take("k", rule, 1)
	for name, group := range map[string]rls.Group{
		"no take":        {},
		"the same key":   {good, take("other", rule, 1), good},
		"no operation":   {{Key: "k", Rule: rule, Cost: 1}},
		"no rule":        {good, {Key: "other", Op: algorithms.OpTake, Cost: 1}},
		"cost 0":         {good, take("other", rule, 0)},
		"negative cost":  {with(algorithms.OpRefund, take("k", rule, -1))},
		"too many takes": make(rls.Group, rls.MaxTakes+1),
	} {
		answers := decide(t, h.Store, rls.Group{take("before", rule, 1)}, group, rls.Group{take("after", rule, 1)})
		if err := answers[1].Err; !errors.Is(err, rls.ErrStore) {
			t.Errorf("%s: error %v, want ErrStore", name, err)
		}
		for _, i := range []int{0, 2} {
			if answers[i].Err != nil || !answers[i].Allowed {
				t.Errorf("%s: the group beside it got %+v", name, answers[i])
			}
		}
	}
	hasLeft(t, h.Store, "k", rule, 10)
	hasLeft(t, h.Store, "other", rule, 10)
}

func keysAreBytes(t *testing.T, h Harness) {
	rule := full(t, 2)
	keys := []string{
		"k", "K", "k ", " k", "k\x00", "k\r\n", "\xff\xfe", "é", "e\u0301", "{k}", "k:1", "*",
		strings.Repeat("k", 1000), strings.Repeat("k", 1001),
	}
	for i, key := range keys {
		allows(t, h.Store, true, take(key, rule, 1))
		for j, other := range keys {
			want := int64(2)
			if j <= i {
				want = 1
			}
			if got := left(t, h.Store, other, rule); got != want {
				t.Fatalf("after a take from %q: %q has %d left, want %d", key, other, got, want)
			}
		}
	}
}

func hugeGroup(t *testing.T, h Harness) {
	rule := full(t, 2)
	group := make(rls.Group, 1000)
	for i := range group {
		group[i] = take(fmt.Sprint("k", i), rule, 1)
	}
	allows(t, h.Store, true, group...)
	group[999].Cost = 2
	a := allows(t, h.Store, false, group...)
	for i, s := range a.Before {
		if got := rule.Peek(s, a.Now, 1).Remaining; got != 1 {
			t.Fatalf("bucket %d has %d left, want 1", i, got)
		}
	}
	group[999].Cost = 1
	allows(t, h.Store, true, group...)
	allows(t, h.Store, false, group...)
}

func clock(t *testing.T, h Harness) {
	rule := full(t, 1000)
	const slack = algorithms.Micros(2_000_000) // the server's clock is this machine's; its adjustment is not ours
	var last algorithms.Micros
	for range 100 {
		before := algorithms.Micros(time.Now().UnixMicro())
		a := allows(t, h.Store, true, take("k", rule, 1))
		after := algorithms.Micros(time.Now().UnixMicro())
		if a.Now < before-slack || a.Now > after+slack {
			t.Fatalf("decided at %d, called between %d and %d", a.Now, before, after)
		}
		if a.Now < last {
			t.Fatalf("decided at %d after %d", a.Now, last)
		}
		last = a.Now
	}

	// What waits exactly as long as the rule says is admitted.
	refilled := bucket(t, 1, 20)
	allows(t, h.Store, true, take("refilled", refilled, 1))
	a := ask(t, h.Store, take("refilled", refilled, 1))
	if !a.Allowed {
		time.Sleep(refilled.Peek(a.Before[0], a.Now, 1).RetryAfter)
		allows(t, h.Store, true, take("refilled", refilled, 1))
	}
}

func contextDone(t *testing.T, h Harness) {
	rule := full(t, 10)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, expired} {
		start := time.Now()
		answers := h.Store.Decide(ctx, []rls.Group{{take("k", rule, 1)}, {take("l", rule, 1)}})
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
		if len(answers) != 2 {
			t.Fatalf("got %d answers, want 2", len(answers))
		}
		for _, a := range answers {
			if !errors.Is(a.Err, rls.ErrTimeout) {
				t.Errorf("error %v, want ErrTimeout", a.Err)
			}
		}
	}
	hasLeft(t, h.Store, "k", rule, 10)
	hasLeft(t, h.Store, "l", rule, 10)
}

func exactlyN(t *testing.T, h Harness) {
	for _, n := range []int64{1, 10, 100} {
		rules := map[string]algorithms.Rule{"bucket": full(t, n), "window": window(t, n, 24*time.Hour)}
		for name, rule := range rules {
			key := fmt.Sprint("sequential ", name, n)
			for i := range n + 3 {
				if a := ask(t, h.Store, take(key, rule, 1)); a.Allowed != (i < n) {
					t.Fatalf("%s of %d: request %d allowed %v", name, n, i+1, a.Allowed)
				}
			}
			key = fmt.Sprint("parallel ", name, n)
			var admitted atomic.Int64
			concurrently(200, func(int) {
				if ask(t, h.Store, take(key, rule, 1)).Allowed {
					admitted.Add(1)
				}
			})
			if got := admitted.Load(); got != n {
				t.Fatalf("%s of %d: %d of 200 parallel requests admitted", name, n, got)
			}
		}
	}
	// 50 callers who keep asking.
	rule, admitted := full(t, 1000), atomic.Int64{}
	concurrently(50, func(int) {
		for range 40 {
			if ask(t, h.Store, take("50 callers", rule, 1)).Allowed {
				admitted.Add(1)
			}
		}
	})
	if got := admitted.Load(); got != 1000 {
		t.Fatalf("bucket of 1000: %d admitted for 50 callers", got)
	}
}

// twoBuckets: groups of both buckets and takes of each alone race; what each bucket gave is what was admitted of it.
func twoBuckets(t *testing.T, h Harness) {
	a, b := full(t, 300), full(t, 200)
	var both, onlyA, onlyB atomic.Int64
	concurrently(50, func(caller int) {
		for i := range 20 {
			switch (caller + i) % 3 {
			case 0:
				if ask(t, h.Store, take("a", a, 1), take("b", b, 1)).Allowed {
					both.Add(1)
				}
			case 1:
				if ask(t, h.Store, take("a", a, 1)).Allowed {
					onlyA.Add(1)
				}
			case 2:
				if ask(t, h.Store, take("b", b, 1)).Allowed {
					onlyB.Add(1)
				}
			}
		}
	})
	spentA, spentB := both.Load()+onlyA.Load(), both.Load()+onlyB.Load()
	if spentA > 300 || spentB > 200 {
		t.Fatalf("admitted %d of 300 and %d of 200", spentA, spentB)
	}
	hasLeft(t, h.Store, "a", a, 300-spentA)
	hasLeft(t, h.Store, "b", b, 200-spentB)
	if spentB < 200 {
		t.Fatalf("admitted %d of 200 though more was asked and nothing is held back", spentB)
	}
}

// oppositeOrder: locks taken in the order of the keys would deadlock here.
func oppositeOrder(t *testing.T, h Harness) {
	const pairs = 40
	rule := full(t, 100_000)
	concurrently(20, func(caller int) {
		for i := range pairs {
			group := rls.Group{take(fmt.Sprint("k", i), rule, 1), take(fmt.Sprint("k", (i+1)%pairs), rule, 1)}
			if caller%2 == 0 {
				group[0], group[1] = group[1], group[0]
			}
			if !ask(t, h.Store, group...).Allowed {
				t.Error("denied")
			}
		}
	})
	for i := range pairs {
		hasLeft(t, h.Store, fmt.Sprint("k", i), rule, 100_000-40)
	}
}
