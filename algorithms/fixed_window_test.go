package algorithms_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// TestFixedWindowStories follows one window of a minute in both modes, a limit of 3 each.
func TestFixedWindowStories(t *testing.T) {
	t.Parallel()
	const never = algorithms.Never
	type step struct {
		at      time.Duration
		op      algorithms.Op
		cost    int64
		allowed bool
		left    int64
		retry   time.Duration
		reset   time.Duration
		count   int64 // in the state that is left
	}
	for _, story := range []struct {
		name  string
		build func(int64, time.Duration) (algorithms.Rule, error)
		limit int64
		steps []step
	}{
		{"strict", algorithms.NewFixedWindow, 3, []step{
			{0, pk, 3, true, 3, 0, 0, 0},
			{0, pk, 4, false, 3, never, 0, 0},
			{10 * time.Second, tk, 2, true, 1, 0, 50 * time.Second, 2},
			{10 * time.Second, tk, 2, false, 1, 50 * time.Second, 50 * time.Second, 2},
			{10 * time.Second, tk, 4, false, 1, never, 50 * time.Second, 2},
			{59 * time.Second, tk, 1, true, 0, 0, time.Second, 3},
			{60*time.Second - time.Microsecond, tk, 1, false, 0, time.Microsecond, time.Microsecond, 3},
			{60 * time.Second, tk, 3, true, 0, 0, time.Minute, 3},
			{60 * time.Second, ch, 5, false, 0, time.Minute, time.Minute, 8}, // used, so counted
			{70 * time.Second, rf, 6, true, 1, 0, 50 * time.Second, 2},
			{70 * time.Second, rf, 9, true, 3, 0, 0, 0},
			{70 * time.Second, ch, 3, true, 0, 50 * time.Second, 50 * time.Second, 3},
			{65 * time.Second, tk, 1, false, 0, 55 * time.Second, 55 * time.Second, 3}, // the clock stepped back
		}},
		{"counting", algorithms.NewCountingWindow, 3, []step{
			{10 * time.Second, tk, 2, true, 1, 0, 50 * time.Second, 2},
			{10 * time.Second, tk, 2, false, 0, 50 * time.Second, 50 * time.Second, 4},
			{10 * time.Second, pk, 1, false, 0, 50 * time.Second, 50 * time.Second, 4},
			{10 * time.Second, rf, 1, true, 0, 0, 50 * time.Second, 3},
			{10 * time.Second, pk, 9, true, 0, 0, 50 * time.Second, 3}, // not over yet, whatever the cost
			{10 * time.Second, tk, 9, false, 0, never, 50 * time.Second, 12},
			{60 * time.Second, ch, 3, true, 0, 0, time.Minute, 3},
			{60 * time.Second, tk, 1 << 62, false, 0, never, time.Minute, algorithms.MaxCount},
			{60 * time.Second, tk, 1, false, 0, time.Minute, time.Minute, algorithms.MaxCount},
		}},
		{"counting with a limit of 0", algorithms.NewCountingWindow, 0, []step{
			{0, pk, 1, true, 0, 0, 0, 0},
			{0, tk, 1, false, 0, never, time.Minute, 1},
			{0, pk, 1, false, 0, time.Minute, time.Minute, 1},
		}},
	} {
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			rule, err := story.build(story.limit, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			var s algorithms.State
			for i, st := range story.steps {
				now := algorithms.Micros(st.at.Microseconds())
				v := rule.Verdict(st.op, s, now, st.cost)
				if got := rule.Admits(st.op, s, now, st.cost); got != v.Allowed {
					t.Errorf("step %d: admits %v, and its verdict says %v", i, got, v.Allowed)
				}
				s = rule.Apply(st.op, s, now, st.cost, 0)
				want := algorithms.Verdict{Allowed: st.allowed, Remaining: st.left, RetryAfter: st.retry, ResetAfter: st.reset}
				if v != want || s.Level != st.count {
					t.Errorf("step %d %+v:\n got %+v, count %d\nwant %+v, count %d", i, st, v, s.Level, want, st.count)
				}
			}
		})
	}
}

// What is carried out in a group that is denied: charges, and what a counting window counts.
func TestInsists(t *testing.T) {
	t.Parallel()
	strict, err := algorithms.NewFixedWindow(1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	counting, err := algorithms.NewCountingWindow(1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, rule := range []algorithms.Rule{strict, counting, bucket(t, 1, 1, 1)} {
		for op := tk; op <= rf; op++ {
			fmt.Fprintf(&got, "%v/%v ", rule.Insists(op, true), rule.Insists(op, false))
		}
		got.WriteString("; ")
	}
	const want = "false/false true/true false/false false/false ; false/true true/true false/false false/false ; false/false true/true false/false false/false ; "
	if got.String() != want {
		t.Errorf("insists (fitted/not) on take, charge, peek, refund:\n got %s\nwant %s", got.String(), want)
	}
	for name, call := range map[string]func(){
		"Admits":  func() { strict.Admits(0, algorithms.State{}, 0, 1) },
		"no cost": func() { strict.Admits(tk, algorithms.State{}, 0, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			call()
		}()
	}
}

// TestPF_06_WindowEdges: three a minute, three asked for at 59.9 s and three at the minute. A fixed window admits all six. A
// sliding one admits three and then none, until what it holds of the minute before has faded.
func TestPF_06_WindowEdges(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	fixed, err := algorithms.NewFixedWindow(3, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	play(t, fixed, []opStep{
		{59900 * ms, tk, 3, true, 0, 0, 100 * ms},
		{60 * s, tk, 3, true, 0, 0, 60 * s},
		{60 * s, tk, 1, false, 0, 60 * s, 60 * s},
	})
	play(t, window(t, 3, time.Minute), []opStep{
		{59900 * ms, tk, 3, true, 0, 0, 60100 * ms},
		{60 * s, tk, 1, false, 0, 20 * s, 60 * s}, // until 3 have faded to 2
		{79 * s, tk, 1, false, 0, 1 * s, 41 * s},
		{80 * s, tk, 1, true, 0, 0, 100 * s},
	})
}
