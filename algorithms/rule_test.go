package algorithms_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

func window(t testing.TB, limit int64, length time.Duration) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewSlidingWindow(limit, length)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func TestNewRateReduces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tokens, seconds int64
		want            algorithms.Rate
	}{
		{50, 1, algorithms.Rate{Tokens: 50, Seconds: 1}},
		{100, 60, algorithms.Rate{Tokens: 5, Seconds: 3}},
		{5000, 86_400, algorithms.Rate{Tokens: 25, Seconds: 432}},
		{1, 3, algorithms.Rate{Tokens: 1, Seconds: 3}},
		{0, 0, algorithms.Rate{}},
		{0, 60, algorithms.Rate{}},
		{1 << 52, 1, algorithms.Rate{Tokens: 1 << 52, Seconds: 1}},
		{1, 1 << 52, algorithms.Rate{Tokens: 1, Seconds: 1 << 52}},
		{1 << 26, 1<<26 - 1, algorithms.Rate{Tokens: 1 << 26, Seconds: 1<<26 - 1}},
		{math.MaxInt64, math.MaxInt64, algorithms.Rate{Tokens: 1, Seconds: 1}},
	} {
		if got, err := algorithms.NewRate(c.tokens, c.seconds); err != nil || got != c.want {
			t.Errorf("NewRate(%d, %d) = %v, %v; want %v", c.tokens, c.seconds, got, err, c.want)
		}
	}
}

func TestBoundsAreInTheMessages(t *testing.T) {
	t.Parallel()
	rate := func(tokens, seconds int64) func() (any, error) {
		return func() (any, error) { return algorithms.NewRate(tokens, seconds) }
	}
	token := func(capacity, tokens, seconds int64) func() (any, error) {
		return func() (any, error) {
			return algorithms.NewTokenBucket(capacity, algorithms.Rate{Tokens: tokens, Seconds: seconds})
		}
	}
	sliding := func(limit int64, length time.Duration) func() (any, error) {
		return func() (any, error) { return algorithms.NewSlidingWindow(limit, length) }
	}
	fixed := func(build func(int64, time.Duration) (algorithms.Rule, error), limit int64, length time.Duration) func() (any, error) {
		return func() (any, error) { return build(limit, length) }
	}
	const us = time.Microsecond
	for _, c := range []struct {
		name  string
		build func() (any, error)
		bound string // "" where it is built
	}{
		{"negative tokens", rate(-1, 1), "negative"},
		{"negative seconds", rate(1, -1), "negative"},
		{"no seconds", rate(1, 0), "at least 1 second"},
		{"N·S at the bound", rate(1<<26, 1<<26+1), "2^52 = 4503599627370496"},
		{"N·S far beyond", rate(math.MaxInt64, math.MaxInt64-1), "2^52 = 4503599627370496"},

		{"capacity 0", token(0, 1, 1), "1 to 4503599627 tokens"},
		{"negative capacity", token(-1, 1, 1), "1 to 4503599627 tokens"},
		{"largest capacity", token(4_503_599_627, 1, 1), ""},
		{"capacity too large", token(4_503_599_628, 1, 1), "1 to 4503599627 tokens"},
		{"largest capacity that never refills", token(4_503_599_627, 0, 0), ""},
		{"slowest refill of one token", token(1, 1, 4_503_599_627), ""},
		{"refill too slow", token(1, 1, 4_503_599_628), "within 2^52 µs"},
		{"refill of much too slow", token(4_503_599_627, 1, 2), "within 2^52 µs"},
		{"rate not as NewRate makes it", token(1, 1, 0), "at least 1 second"},
		{"rate beyond its bound", token(1, 1<<52, 3), "2^52 = 4503599627370496"},

		{"limit 0", sliding(0, time.Second), "1 to 4294967295"},
		{"negative limit", sliding(-1, time.Second), "1 to 4294967295"},
		{"largest limit", sliding(4_294_967_295, time.Second), ""},
		{"limit too large", sliding(4_294_967_296, time.Second), "1 to 4294967295"},
		{"no window", sliding(1, 0), "2^48-1 µs"},
		{"negative window", sliding(1, -time.Second), "2^48-1 µs"},
		{"shortest window", sliding(1, time.Millisecond), ""},
		{"window too short", sliding(1, 999*us), "1ms to"},
		{"not whole microseconds", sliding(1, time.Second+1), "whole microseconds"},
		{"longest window", sliding(1, (1<<48-1)*us), ""},
		{"window too long", sliding(1, (1<<48)*us), "2^48-1 µs"},

		{"largest fixed limit", fixed(algorithms.NewFixedWindow, 4_294_967_295, (1<<48-1)*us), ""},
		{"fixed limit 0", fixed(algorithms.NewFixedWindow, 0, time.Second), "1 to 4294967295"},
		{"fixed limit too large", fixed(algorithms.NewFixedWindow, 4_294_967_296, time.Second), "1 to 4294967295"},
		{"fixed window too short", fixed(algorithms.NewFixedWindow, 1, 999*us), "1ms to"},
		{"counting limit 0", fixed(algorithms.NewCountingWindow, 0, time.Millisecond), ""},
		{"negative counting limit", fixed(algorithms.NewCountingWindow, -1, time.Second), "0 to 4294967295"},
		{"counting limit too large", fixed(algorithms.NewCountingWindow, 4_294_967_296, time.Second), "0 to 4294967295"},
		{"counting window too long", fixed(algorithms.NewCountingWindow, 1, (1<<48)*us), "2^48-1 µs"},
	} {
		_, err := c.build()
		switch {
		case c.bound == "" && err != nil:
			t.Errorf("%s: %v, want none", c.name, err)
		case c.bound != "" && (!errors.Is(err, algorithms.ErrInvalidRule) || !strings.Contains(err.Error(), c.bound)):
			t.Errorf("%s: %v, want an ErrInvalidRule that says %q", c.name, err, c.bound)
		}
	}
}

func TestAccessors(t *testing.T) {
	t.Parallel()
	tb, sw := bucket(t, 100, 100, 60), window(t, 5, time.Minute)
	if got := fmt.Sprint(tb.Kind(), tb.Limit(), tb.Refill(), tb.Window()); got != "token_bucket 100 {5 3} 0" {
		t.Error(got)
	}
	if got := fmt.Sprint(sw.Kind(), sw.Limit(), sw.Refill(), sw.Window()); got != "sliding_window 5 {0 0} 60000000" {
		t.Error(got)
	}
	fw, err := algorithms.NewFixedWindow(5, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	cw, err := algorithms.NewCountingWindow(5, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(fw.Kind(), fw.Limit(), fw.Window(), fw.Counting(), cw.Kind(), cw.Counting(), fw == cw); got != "fixed_window 5 60000000 false fixed_window true false" {
		t.Error(got)
	}
	if tb == bucket(t, 100, 5, 4) || tb != bucket(t, 100, 5, 3) {
		t.Error("rules must be equal when their numbers are")
	}
	if got := fmt.Sprint(algorithms.Rule{}.Kind()); got != "invalid" {
		t.Error(got)
	}
}

// opStep is one operation of a story and what must come of it. Zero waits are none, Never is never.
type opStep struct {
	at      time.Duration
	op      algorithms.Op
	cost    int64
	allowed bool
	left    int64
	retry   time.Duration
	reset   time.Duration
}

const (
	tk = algorithms.OpTake
	ch = algorithms.OpCharge
	pk = algorithms.OpPeek
	rf = algorithms.OpRefund
)

// play plays a story that begins at the epoch with an absent bucket.
func play(t *testing.T, rule algorithms.Rule, steps []opStep) {
	t.Helper()
	var s algorithms.State
	for i, st := range steps {
		now := algorithms.Micros(st.at.Microseconds())
		got := rule.Verdict(st.op, s, now, st.cost)
		want := algorithms.Verdict{Allowed: st.allowed, Remaining: st.left, RetryAfter: st.retry, ResetAfter: st.reset}
		if got != want {
			t.Errorf("step %d at %v, op %d of %d on %+v:\n got %+v\nwant %+v", i, st.at, st.op, st.cost, s, got, want)
		}
		s = rule.Apply(st.op, s, now, st.cost, 0)
	}
}

func TestTokenBucketStory(t *testing.T) {
	t.Parallel()
	const s, ms, never = time.Second, time.Millisecond, algorithms.Never
	t.Run("2/s up to 5", func(t *testing.T) {
		t.Parallel()
		play(t, bucket(t, 5, 2, 1), []opStep{
			{0, pk, 5, true, 5, 0, 0},
			{0, tk, 6, false, 5, never, 0},            // more than there ever is
			{0, tk, 3, true, 2, 0, 1500 * ms},         // 2 left, 3 missing
			{0, tk, 3, false, 2, 500 * ms, 1500 * ms}, // one token short
			{400 * ms, pk, 3, false, 2, 100 * ms, 1100 * ms},
			{500 * ms, pk, 3, true, 3, 0, 1 * s},
			{500 * ms, tk, 3, true, 0, 0, 2500 * ms},
			{500 * ms, rf, 2, true, 2, 0, 1500 * ms},
			{500 * ms, rf, 9, true, 5, 0, 0},                 // never above full
			{500 * ms, ch, 4, true, 1, 0, 2 * s},             // fitted; one more would too
			{500 * ms, ch, 4, false, 0, 500 * ms, 2500 * ms}, // did not fit; down to 0, not below
			{500 * ms, ch, 99, false, 0, 500 * ms, 2500 * ms},
			{60 * s, tk, 1, true, 4, 0, 500 * ms}, // full for long
		})
	})
	t.Run("never refilled", func(t *testing.T) {
		t.Parallel()
		play(t, bucket(t, 2, 0, 0), []opStep{
			{0, pk, 2, true, 2, 0, 0},
			{0, tk, 1, true, 1, 0, never},
			{s, tk, 2, false, 1, never, never},
			{9 * s, tk, 1, true, 0, 0, never},
			{9 * s, rf, 2, true, 2, 0, 0},
		})
	})
	t.Run("a third of a token a second", func(t *testing.T) {
		t.Parallel()
		play(t, bucket(t, 1, 1, 3), []opStep{
			{0, tk, 1, true, 0, 0, 3 * s},
			{1 * s, tk, 1, false, 0, 2 * s, 2 * s}, // 333 333⅓ µtok: the third is not lost, since a denial stores nothing
			{2 * s, tk, 1, false, 0, 1 * s, 1 * s},
			{3 * s, tk, 1, true, 0, 0, 3 * s},
		})
	})
}

func TestSlidingWindowStory(t *testing.T) {
	t.Parallel()
	const s, never = time.Second, algorithms.Never
	play(t, window(t, 10, 10*time.Second), []opStep{
		{0, pk, 10, true, 10, 0, 0},
		{0, tk, 11, false, 10, never, 0},
		{4 * s, tk, 8, true, 2, 0, 16 * s},
		{4 * s, tk, 3, false, 2, 7250 * time.Millisecond, 16 * s}, // 6 s to the next window, and until 8 have faded to 7
		{11250 * time.Millisecond, pk, 3, true, 3, 0, 8750 * time.Millisecond},
		{15 * s, tk, 6, true, 0, 0, 15 * s},                        // 8·½ + 6 = 10
		{15 * s, tk, 1, false, 0, 1250 * time.Millisecond, 15 * s}, // until 8 have faded to 3
		{15 * s, rf, 2, true, 2, 0, 15 * s},
		{15 * s, rf, 9, true, 6, 0, 5 * s}, // not below 0 hits; what the window before holds stays
		{15 * s, ch, 5, true, 1, 0, 15 * s},
		{15 * s, ch, 20, false, 0, 11400 * time.Millisecond, 15 * s}, // counted in full
		{15 * s, pk, 1, false, 0, 11400 * time.Millisecond, 15 * s},
		{26400 * time.Millisecond, tk, 1, true, 0, 0, 13600 * time.Millisecond}, // 25·0.36 + 1 = 10
		{50 * s, pk, 10, true, 10, 0, 0},
	})
}

func TestSlidingWindowRefundNamesItsWindow(t *testing.T) {
	t.Parallel()
	rule := window(t, 10, 10*time.Second)
	s := algorithms.State{Present: true, Level: 3, Previous: 5, At: 20_000_000}
	const now = 24_000_000
	for _, c := range []struct {
		window            algorithms.Micros
		current, previous int64
	}{
		{0, 1, 5},
		{20_000_000, 1, 5},
		{10_000_000, 3, 3},
		{30_000_000, 3, 5}, // not yet
		{20_000_001, 3, 5}, // none
	} {
		want := algorithms.State{Present: true, Level: c.current, Previous: c.previous, At: 20_000_000}
		if got := rule.Refund(s, now, 2, c.window); got != want {
			t.Errorf("window %d: %+v, want %+v", c.window, got, want)
		}
	}
	// Taken at 20 s, refunded one window later and two later.
	if got, want := rule.Refund(s, 31_000_000, 2, 20_000_000), (algorithms.State{Present: true, Previous: 1, At: 30_000_000}); got != want {
		t.Errorf("one window later: %+v, want %+v", got, want)
	}
	if got := rule.Refund(s, 41_000_000, 2, 20_000_000); got != s {
		t.Errorf("two windows later: %+v, want it unchanged, the window is gone", got)
	}
	if got := rule.Refund(algorithms.State{}, now, 2, 0); got != (algorithms.State{}) {
		t.Errorf("absent: %+v, want absent", got)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	const us, s = time.Microsecond, time.Second
	state := func(level int64, at time.Duration) algorithms.State {
		return algorithms.State{Present: true, Level: level, At: algorithms.Micros(at.Microseconds())}
	}
	hour := window(t, 10, time.Hour)
	for _, c := range []struct {
		name string
		rule algorithms.Rule
		s    algorithms.State
		now  time.Duration
		want time.Duration
	}{
		{"empty, 1/h up to 10", bucket(t, 10, 1, 3600), state(0, s), s, 36_001 * s},
		{"rounded up to ms", bucket(t, 10, 1, 1), state(9_999_999, s), s, time.Millisecond + s},
		{"full", bucket(t, 10, 1, 1), state(10_000_000, s), s, s},
		{"written before, refilling since", bucket(t, 10, 1, 1), state(0, 0), 4 * s, 7 * s},
		{"clock behind", bucket(t, 10, 1, 1), state(0, 61*s), s, 71 * s},
		{"never refilled", bucket(t, 10, 0, 0), state(0, s), s, 366 * 24 * time.Hour},
		{"slowest", bucket(t, algorithms.MaxCapacity, 1, 1), state(0, 0), 0, 4_503_599_628 * s},
		{"window", hour, state(1, 0), 600 * s, 2*time.Hour - 600*s + s},
		{"window's last microsecond", hour, state(1, 0), time.Hour - us, time.Hour + time.Millisecond + s},
		{"window, clock behind", hour, state(1, time.Hour), 3599 * s, 2*time.Hour + s + s},
	} {
		if got := c.rule.Expiry(c.s, algorithms.Micros(c.now.Microseconds())); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	const now, hour = 1_796_035_863_000_000, 3_600_000_000
	tb, sw := bucket(t, 5, 1, 1), window(t, 5, time.Second)
	for _, c := range []struct {
		rule                algorithms.Rule
		level, previous, at int64
		want                bool
	}{
		{tb, 0, 0, now, true},
		{tb, 6_000_000, 0, now, true}, // the capacity was lowered
		{tb, 4_503_599_627_000_000, 0, 0, true},
		{tb, 4_503_599_627_000_001, 0, now, false},
		{tb, -1, 0, now, false},
		{tb, 0, 0, -1, false},
		{tb, 0, 1, now, false},
		{tb, 0, 0, now + hour, true},
		{tb, 0, 0, now + hour + 1, false},
		{tb, 0, 0, math.MaxInt64, false},
		{sw, 4_294_967_295, 4_294_967_295, now, true},
		{sw, 4_294_967_296, 0, now, false},
		{sw, 0, 4_294_967_296, now, false},
		{sw, -1, 0, now, false},
		{sw, 0, -1, now, false},
		{sw, 0, 0, now + 1, false},
		{sw, 0, 0, now + hour, true},
		{sw, 0, 0, now + hour + 1_000_000, false},
	} {
		s := algorithms.State{Present: true, Level: c.level, Previous: c.previous, At: algorithms.Micros(c.at)}
		if got := c.rule.Valid(s, now); got != c.want {
			t.Errorf("%v %+v: %v, want %v", c.rule.Kind(), s, got, c.want)
		}
		if got := c.rule.Advance(s, now) == c.rule.Advance(algorithms.State{}, now); !c.want && !got {
			t.Errorf("%v %+v is invalid and does not read as absent", c.rule.Kind(), s)
		}
	}
	if !tb.Valid(algorithms.State{}, now) || tb.Valid(algorithms.State{Level: 1}, now) {
		t.Error("an absent state is valid exactly when its fields are zero")
	}
}

// A capacity that an operator lowered, or a limit: what is stored above it counts as the bound, or denies until it fades.
func TestLoweredLimits(t *testing.T) {
	t.Parallel()
	was := algorithms.State{Present: true, Level: 9_000_000, At: 0}
	if v := bucket(t, 5, 1, 1).Peek(was, 0, 5); !v.Allowed || v.Remaining != 5 || v.ResetAfter != 0 {
		t.Errorf("capacity 5, 9 stored: %+v, want full with 5", v)
	}
	was = algorithms.State{Present: true, Level: 9, At: 0}
	if v := window(t, 3, 9*time.Second).Peek(was, 0, 1); v.Allowed || v.Remaining != 0 || v.RetryAfter != 16*time.Second {
		t.Errorf("limit 3, 9 stored: %+v, want denied until 9 have faded to 2, 16 s", v)
	}
}

func TestProgrammerErrorsPanic(t *testing.T) {
	t.Parallel()
	tb, sw := bucket(t, 5, 1, 1), window(t, 5, time.Second)
	var zero algorithms.Rule
	var absent algorithms.State
	some := algorithms.State{Present: true}
	calls := map[string]func(){
		"zero Rule, Take":            func() { zero.Take(absent, 0, 1) },
		"zero Rule, Charge":          func() { zero.Charge(some, 0, 1) },
		"zero Rule, Peek":            func() { zero.Peek(absent, 0, 1) },
		"zero Rule, Refund":          func() { zero.Refund(some, 0, 1, 0) },
		"zero Rule, Fits":            func() { zero.Fits(absent, 0, 1) },
		"zero Rule, Advance":         func() { zero.Advance(absent, 0) },
		"zero Rule, Expiry":          func() { zero.Expiry(absent, 0) },
		"zero Rule, Untouched":       func() { zero.Untouched(absent, 0) },
		"zero Rule, Valid":           func() { zero.Valid(some, 0) },
		"zero Op, Verdict":           func() { tb.Verdict(0, absent, 0, 1) },
		"zero Op, Apply":             func() { tb.Apply(0, absent, 0, 1, 0) },
		"unknown Op, Verdict":        func() { tb.Verdict(algorithms.OpRefund+1, absent, 0, 1) },
		"absent refund of 0":         func() { tb.Refund(absent, 0, 0, 0) },
		"refund of a negative count": func() { sw.Refund(some, 0, -1, 0) },
	}
	for _, r := range []algorithms.Rule{tb, sw} {
		for _, cost := range []int64{0, -1, math.MinInt64} {
			name := fmt.Sprintf("%v cost %d, ", r.Kind(), cost)
			calls[name+"Take"] = func() { r.Take(absent, 0, cost) }
			calls[name+"Charge"] = func() { r.Charge(absent, 0, cost) }
			calls[name+"Peek"] = func() { r.Peek(absent, 0, cost) }
			calls[name+"Fits"] = func() { r.Fits(absent, 0, cost) }
		}
	}
	for name, call := range calls {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "algorithms: ") {
					t.Errorf("%s: want a panic that says why", name)
				}
			}()
			call()
		}()
	}
}

func TestNothingAllocates(t *testing.T) {
	for _, rule := range []algorithms.Rule{bucket(t, 10, 7, 3), window(t, 10, time.Second)} {
		s := algorithms.State{Present: true, Level: 4, Previous: 9, At: 5_000_000}
		if rule.Kind() == algorithms.TokenBucket {
			s.Previous = 0
		}
		if n := testing.AllocsPerRun(100, func() {
			for _, op := range []algorithms.Op{tk, ch, pk, rf} {
				_ = rule.Verdict(op, s, 5_400_000, 2)
				_ = rule.Apply(op, s, 5_400_000, 2, 0)
			}
			_ = rule.Expiry(s, 5_400_000)
			_ = rule.Untouched(s, 5_400_000)
		}); n != 0 {
			t.Errorf("%v: %v allocations", rule.Kind(), n)
		}
	}
}

func ExampleRule_Take() {
	rate, _ := algorithms.NewRate(2, 1) // 2 tokens per second
	rule, _ := algorithms.NewTokenBucket(5, rate)

	var state algorithms.State // absent: full
	now := algorithms.Micros(0)
	for range 6 {
		var v algorithms.Verdict
		state, v = rule.Take(state, now, 1)
		fmt.Println(v.Allowed, v.Remaining, v.RetryAfter, v.ResetAfter)
	}
	// Output:
	// true 4 0s 500ms
	// true 3 0s 1s
	// true 2 0s 1.5s
	// true 1 0s 2s
	// true 0 0s 2.5s
	// false 0 500ms 2.5s
}
