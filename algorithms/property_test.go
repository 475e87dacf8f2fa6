package algorithms_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// span draws lo … hi, every order of magnitude alike.
func span(t *rapid.T, label string, lo, hi int64) int64 {
	bits := rapid.IntRange(0, 62).Draw(t, label+" bits")
	return rapid.Int64Range(lo, min(hi, lo+min(hi-lo, 1<<bits))).Draw(t, label)
}

func drawRule(t *rapid.T) algorithms.Rule {
	build := rapid.SampledFrom([]func(int64, time.Duration) (algorithms.Rule, error){
		nil, algorithms.NewSlidingWindow, algorithms.NewFixedWindow, algorithms.NewCountingWindow,
	}).Draw(t, "algorithm")
	if build != nil {
		length := time.Duration(span(t, "window µs", 1000, algorithms.MaxWindow.Microseconds())) * time.Microsecond
		rule, err := build(span(t, "limit", 1, algorithms.MaxLimit), length)
		if err != nil {
			t.Fatal(err)
		}
		return rule
	}
	capacity := span(t, "capacity", 1, algorithms.MaxCapacity)
	rate, err := algorithms.NewRate(span(t, "N", 0, 1<<52), span(t, "S", 1, 1<<52))
	if err != nil {
		t.Skip("refill out of bounds")
	}
	rule, err := algorithms.NewTokenBucket(capacity, rate)
	if err != nil {
		t.Skip("fills too slowly")
	}
	return rule
}

// drawNow draws a time in 1970 … 2112, less what a state may stand ahead or a wait may last.
func drawNow(t *rapid.T) algorithms.Micros {
	return algorithms.Micros(rapid.Int64Range(0, 1<<51).Draw(t, "now"))
}

func drawCost(t *rapid.T, rule algorithms.Rule) int64 {
	return rapid.OneOf(
		rapid.Int64Range(1, 3),
		rapid.Int64Range(max(1, rule.Limit()-3), rule.Limit()+3),
		rapid.Int64Range(1, rule.Limit()),
		rapid.Int64Min(1),
	).Draw(t, "cost")
}

// drawState draws an absent state, or one that is valid at now.
func drawState(t *rapid.T, rule algorithms.Rule, now algorithms.Micros) algorithms.State {
	if rapid.IntRange(0, 9).Draw(t, "absent") == 0 {
		return algorithms.State{}
	}
	s := algorithms.State{Present: true}
	ago := algorithms.Micros(rapid.OneOf(
		rapid.Int64Range(-int64(algorithms.MaxClockSkew), 0), // the clock stepped back
		rapid.Int64Range(0, 2_000_000),
		rapid.Int64Range(0, max(1, 3*int64(rule.Window()))),
		rapid.Int64Range(0, int64(now)),
	).Draw(t, "ago"))
	s.At = max(0, now-ago)
	if rule.Kind() == algorithms.TokenBucket {
		s.Level = rapid.OneOf(
			rapid.Int64Range(0, rule.Limit()*1_000_000),
			rapid.Int64Range(0, algorithms.MaxCapacity*1_000_000),
		).Draw(t, "level")
		return s
	}
	s.At -= s.At % rule.Window()
	if rule.Kind() == algorithms.FixedWindow {
		s.Level = rapid.OneOf(rapid.Int64Range(0, rule.Limit()+2), rapid.Int64Range(0, algorithms.MaxCount)).Draw(t, "count")
		return s
	}
	counts := rapid.OneOf(rapid.Int64Range(0, rule.Limit()), rapid.Int64Range(0, algorithms.MaxLimit))
	s.Level, s.Previous = counts.Draw(t, "current"), counts.Draw(t, "previous")
	return s
}

// check runs a property on a drawn rule, valid state, time and cost.
func check(t *testing.T, property func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64)) {
	t.Helper()
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule, now := drawRule(t), drawNow(t)
		s := drawState(t, rule, now)
		if !rule.Valid(s, now) {
			t.Fatalf("drew an invalid state %+v at %d", s, now)
		}
		property(t, rule, s, now, drawCost(t, rule))
	})
}

func after(now algorithms.Micros, d time.Duration) algorithms.Micros {
	return now + algorithms.Micros(d.Microseconds())
}

func TestTheReferenceModelAgrees(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		present := s
		if !s.Present {
			present = r.Advance(s, now)
		}
		m := model{r, present}
		if got, want := r.Fits(s, now, cost), m.fits(now, cost); got != want {
			t.Errorf("Fits %v, want %v", got, want)
		}
		if got, want := r.Peek(s, now, cost).Remaining, m.remaining(now); got != want {
			t.Errorf("Remaining %d, want %d", got, want)
		}
		at := r.Advance(s, now)
		if r.Kind() == algorithms.TokenBucket {
			if got, want := at.Level, floor(m.level(now)); got != want {
				t.Errorf("refilled to %d, want %d", got, want)
			}
			return
		}
		current, previous, _ := m.window(now)
		if r.Kind() == algorithms.FixedWindow {
			previous = 0
		}
		if at.Level != current || at.Previous != previous {
			t.Errorf("rolled over to %+v, want %d and %d", at, current, previous)
		}
	})
}

func TestRetryAfterIsExact(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		_, v := r.Take(s, now, cost)
		if v.Allowed {
			if v.RetryAfter != 0 {
				t.Errorf("allowed, and retry after %v", v.RetryAfter)
			}
			return
		}
		if v.RetryAfter < 0 {
			if cost <= r.Limit() && (r.Kind() != algorithms.TokenBucket || r.Refill().Tokens > 0) {
				t.Errorf("never, although some wait is enough: %+v", v)
			}
			return
		}
		if v.RetryAfter == 0 || v.RetryAfter%time.Microsecond != 0 {
			t.Fatalf("denied, and retry after %v", v.RetryAfter)
		}
		if then := after(now, v.RetryAfter); !r.Fits(s, then, cost) {
			t.Errorf("after waiting %v it does not fit", v.RetryAfter)
		}
		if then := after(now, v.RetryAfter-time.Microsecond); r.Fits(s, then, cost) {
			t.Errorf("one µs before %v it fits", v.RetryAfter)
		}
	})
}

// A wait of Never is right: it does not fit at the end of time either.
func TestNeverIsNever(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		if v := r.Peek(s, now, cost); v.RetryAfter < 0 && r.Fits(s, 1<<62, cost) {
			t.Errorf("%+v, but it fits at last", v)
		}
	})
}

func TestAdmissionIsNotTakenBack(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		wait := algorithms.Micros(span(t, "wait", 0, 1<<51))
		if r.Fits(s, now, cost) && !r.Fits(s, now+wait, cost) {
			t.Errorf("fits now and not %d µs later", wait)
		}
	})
}

func TestResetAfterIsExact(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		s, v := r.Take(s, now, cost)
		if v.ResetAfter < 0 {
			if r.Refill().Tokens > 0 || r.Kind() != algorithms.TokenBucket || r.Advance(s, 1<<62).Level == r.Limit()*1_000_000 {
				t.Errorf("never: %+v", v)
			}
			return
		}
		then := after(now, v.ResetAfter)
		if v.ResetAfter == 0 {
			then = max(now, s.At) // untouched but for a time ahead
		}
		if !r.Untouched(s, then) {
			t.Errorf("after %v it is not untouched: %+v", v.ResetAfter, r.Advance(s, then))
		}
		if v.ResetAfter > 0 && r.Untouched(s, then-1) {
			t.Errorf("one µs before %v it is untouched", v.ResetAfter)
		}
	})
}

// What Untouched allows to drop, and what expires, is never missed.
func TestForgettingChangesNothing(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		same := func(when string, s algorithms.State, at algorithms.Micros) {
			for _, op := range []algorithms.Op{tk, ch, pk, rf} {
				if got, want := r.Verdict(op, s, at, cost), r.Verdict(op, algorithms.State{}, at, cost); got != want {
					t.Errorf("%s: op %d says %+v, absent %+v", when, op, got, want)
				}
			}
			if got, want := r.Apply(tk, s, at, cost, 0), r.Apply(tk, algorithms.State{}, at, cost, 0); r.Fits(s, at, cost) && got != want {
				t.Errorf("%s: a take leaves %+v, absent %+v", when, got, want)
			}
		}
		if r.Untouched(s, now) {
			same("untouched", s, now+algorithms.Micros(span(t, "later", 0, 1<<51)))
		}
		s, _ = r.Charge(s, now, cost)
		expiry := r.Expiry(s, now)
		if expiry%time.Millisecond != 0 || expiry < time.Second {
			t.Fatalf("expiry %v, want whole ms, at least 1 s", expiry)
		}
		if r.Kind() == algorithms.TokenBucket && r.Refill().Tokens == 0 {
			return
		}
		same("expired", s, after(now, expiry))
		if reset := r.Peek(s, now, cost).ResetAfter; expiry > reset+time.Second+2*time.Millisecond+time.Duration(r.Window())*time.Microsecond {
			t.Errorf("expiry %v is far beyond the reset after %v", expiry, reset)
		}
	})
}

func TestStatesStayInBounds(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		full := r.Limit() * 1_000_000
		for op := tk; op <= rf; op++ {
			next := r.Apply(op, s, now, cost, 0)
			if !r.Valid(next, now) {
				t.Errorf("op %d leaves %+v, which is invalid", op, next)
			}
			if r.Kind() == algorithms.TokenBucket && next != s && next.Level > full {
				t.Errorf("op %d leaves %d µtok of %d", op, next.Level, full)
			}
			if next.Present && s.Present && next.At < s.At {
				t.Errorf("op %d moves the time back from %d to %d", op, s.At, next.At)
			}
		}
		at := r.Advance(s, now)
		if r.Kind() == algorithms.TokenBucket && at.Level > full {
			t.Errorf("refilled to %d of %d", at.Level, full)
		}
		if again := r.Advance(at, now); again != at {
			t.Errorf("advanced twice: %+v, once: %+v", again, at)
		}
	})
}

func TestDenialChangesNothing(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		next, v := r.Take(s, now, cost)
		if r.Counting() {
			if charged, _ := r.Charge(s, now, cost); next != charged || v.Allowed != r.Fits(s, now, cost) {
				t.Errorf("allowed %v, %+v became %+v; want everything counted: %+v", v.Allowed, s, next, charged)
			}
			if over := r.Advance(s, now).Level > r.Limit(); r.Peek(s, now, cost).Allowed == over {
				t.Errorf("over %v, and a peek says %+v", over, r.Peek(s, now, cost))
			}
			return
		}
		if v.Allowed == (next == s) {
			t.Errorf("allowed %v, %+v became %+v", v.Allowed, s, next)
		}
		if v.Allowed != r.Fits(s, now, cost) || v.Allowed != r.Peek(s, now, cost).Allowed {
			t.Error("Take, Fits and Peek differ")
		}
		if !v.Allowed && v != r.Peek(s, now, cost) {
			t.Errorf("a denied take says %+v, a peek %+v", v, r.Peek(s, now, cost))
		}
		if v.Allowed && r.Peek(s, now, cost).Remaining-v.Remaining != cost {
			t.Errorf("a take of %d leaves %d of %d", cost, v.Remaining, r.Peek(s, now, cost).Remaining)
		}
	})
}

func TestChargeThenPeek(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		next, v := r.Charge(s, now, cost)
		want := r.Peek(next, now, 1)
		want.Allowed = r.Fits(s, now, cost)
		if v != want {
			t.Errorf("a charge says %+v, then a peek %+v", v, want)
		}
		if taken, _ := r.Take(s, now, cost); v.Allowed && taken != next {
			t.Errorf("a charge that fits leaves %+v, a take %+v", next, taken)
		}
		before := r.Advance(s, now)
		switch r.Kind() {
		case algorithms.TokenBucket:
			if want := max(0, before.Level-min(cost, r.Limit())*1_000_000); next.Level != want {
				t.Errorf("charged %d: %d µtok left, want %d", cost, next.Level, want)
			}
		case algorithms.SlidingWindow:
			if want := before.Level + min(cost, algorithms.MaxLimit-before.Level); next.Level != want {
				t.Errorf("charged %d: %d hits, want %d", cost, next.Level, want)
			}
		case algorithms.FixedWindow:
			if want := before.Level + min(cost, algorithms.MaxCount-before.Level); next.Level != want {
				t.Errorf("charged %d: %d hits, want %d", cost, next.Level, want)
			}
		}
	})
}

// Whatever is refunded, no bucket becomes fuller than full, and what was taken can be given back exactly.
func TestRefundUndoesATake(t *testing.T) {
	check(t, func(t *rapid.T, r algorithms.Rule, s algorithms.State, now algorithms.Micros, cost int64) {
		taken, v := r.Take(s, now, cost)
		if !v.Allowed {
			taken = s
		}
		var of algorithms.Micros
		if r.Kind() != algorithms.TokenBucket {
			of = taken.At
		}
		back := r.Refund(taken, now, cost, of)
		if v.Allowed && back != r.Advance(s, now) {
			t.Errorf("taken and refunded: %+v, want %+v", back, r.Advance(s, now))
		}
		v = r.Verdict(rf, taken, now, cost)
		if !v.Allowed || v.RetryAfter != 0 || v.Remaining > r.Limit() {
			t.Errorf("refund of %d: %+v", cost, v)
		}
		if !s.Present && r.Refund(s, now, cost, of).Present {
			t.Error("a refund made an absent bucket present")
		}
	})
}

// An invalid state is read as absent by everything, and replaced by the first admission.
func TestInvalidStatesReadAsAbsent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, now := drawRule(t), drawNow(t)
		s := algorithms.State{
			Present: true, Level: rapid.Int64().Draw(t, "level"), Previous: rapid.Int64().Draw(t, "previous"),
			At: algorithms.Micros(rapid.Int64().Draw(t, "at")),
		}
		if r.Valid(s, now) {
			t.Skip("valid by chance")
		}
		cost := drawCost(t, r)
		for op := tk; op <= pk; op++ {
			if got, want := r.Verdict(op, s, now, cost), r.Verdict(op, algorithms.State{}, now, cost); got != want {
				t.Errorf("op %d says %+v, absent %+v", op, got, want)
			}
		}
		if next, v := r.Take(s, now, cost); (v.Allowed || r.Counting()) != r.Valid(next, now) || !r.Valid(next, now) && next != s {
			t.Errorf("allowed %v leaves %+v of %+v", v.Allowed, next, s)
		}
		if got := r.Refund(s, now, cost, 0); got != s {
			t.Errorf("a refund leaves %+v of %+v", got, s)
		}
	})
}

// callers is a run of takes by callers who come when they like, over a clock that may step back.
func callers(t *rapid.T, now *algorithms.Micros, longest int64) func(yield func(cost int64) bool) {
	return func(yield func(int64) bool) {
		for range rapid.IntRange(1, 60).Draw(t, "takes") {
			step := span(t, "step", 0, longest)
			if rapid.IntRange(0, 9).Draw(t, "back") == 0 {
				step = -min(step, int64(algorithms.MaxClockSkew), int64(*now))
			}
			*now += algorithms.Micros(step)
			if !yield(rapid.Int64Range(1, 4).Draw(t, "cost")) {
				return
			}
		}
	}
}

func TestASlidingWindowStaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 20).Draw(t, "limit")
		r, err := algorithms.NewSlidingWindow(limit, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		now := algorithms.Micros(1_796_035_863_000_000)
		var s algorithms.State
		admitted := map[algorithms.Micros]int64{} // by window
		for cost := range callers(t, &now, 900_000) {
			var v algorithms.Verdict
			if s, v = r.Take(s, now, cost); !v.Allowed {
				continue
			}
			if admitted[s.At] += cost; admitted[s.At] > limit {
				t.Fatalf("%d admitted in one window of limit %d", admitted[s.At], limit)
			}
			if estimate := (model{r, s}).estimate(now); estimate.Cmp(whole(limit)) > 0 {
				t.Fatalf("the estimate is %v of %d", estimate, limit)
			}
		}
	})
}

// In strict mode what is admitted in a window stays within the limit, and a denied caller costs nothing. In counting mode
// every hit of the window counts: whoever went over stays over until it ends.
func TestAFixedWindowStaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 20).Draw(t, "limit")
		build := algorithms.NewFixedWindow
		if rapid.Bool().Draw(t, "counting") {
			build = algorithms.NewCountingWindow
		}
		r, err := build(limit, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		now := algorithms.Micros(1_796_035_863_000_000)
		var s algorithms.State
		asked, admitted := map[algorithms.Micros]int64{}, map[algorithms.Micros]int64{} // by window
		for cost := range callers(t, &now, 900_000) {
			at := r.Advance(s, now).At
			before := admitted[at]
			if r.Counting() {
				before = asked[at]
			}
			asked[at] += cost
			var v algorithms.Verdict
			s, v = r.Take(s, now, cost)
			if v.Allowed {
				admitted[at] += cost
			}
			if want := before+cost <= limit; v.Allowed != want || admitted[at] > limit {
				t.Fatalf("allowed %v a cost of %d after %d, admitted %d of %d", v.Allowed, cost, before, admitted[at], limit)
			}
		}
	})
}

func TestATokenBucketAdmitsNoMoreThanItRefills(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Int64Range(1, 20).Draw(t, "capacity")
		rate, err := algorithms.NewRate(rapid.Int64Range(0, 9).Draw(t, "N"), rapid.Int64Range(1, 9).Draw(t, "S"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := algorithms.NewTokenBucket(capacity, rate)
		if err != nil {
			t.Fatal(err)
		}
		now, admitted := algorithms.Micros(1_796_035_863_000_000), int64(0)
		earliest, latest := now, now
		var s algorithms.State
		for cost := range callers(t, &now, 5_000_000) {
			earliest, latest = min(earliest, now), max(latest, now)
			var v algorithms.Verdict
			if s, v = r.Take(s, now, cost); v.Allowed {
				admitted += cost
			}
			refilled := int64(0)
			if rate.Tokens > 0 {
				refilled = int64(latest-earliest) * rate.Tokens / rate.Seconds
			}
			if admitted*1_000_000 > capacity*1_000_000+refilled {
				t.Fatalf("admitted %d tokens, but %d µtok refilled a bucket of %d", admitted, refilled, capacity)
			}
		}
	})
}
