package lua_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// draw makes the cases of the parity tests. Its numbers gather where the arithmetic is delicate: at the bounds, and
// within a few units of the point at which a decision turns.
type draw struct{ *rand.Rand }

func newDraw(seed, stream uint64) draw { return draw{rand.New(rand.NewPCG(seed, stream))} }

func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

// span is lo … hi, every order of magnitude alike, the ends often.
func (d draw) span(lo, hi int64) int64 {
	switch d.IntN(8) {
	case 0:
		return lo
	case 1:
		return hi
	}
	width := uint64(hi-lo) + 1
	n := d.IntN(bits.Len64(width)) + 1
	return lo + int64(d.Uint64N(min(width, 1<<n)))
}

// near is n, or a few beside it.
func (d draw) near(n int64) int64 { return n + d.Int64N(5) - 2 }

func within(n, lo, hi int64) int64 { return max(lo, min(n, hi)) }

func (d draw) rule(kind algorithms.Kind) algorithms.Rule {
	for {
		if r, err := d.candidate(kind); err == nil {
			return r
		}
	}
}

const maxProduct = algorithms.MaxRate

// candidate draws numbers that may just be out of bounds.
func (d draw) candidate(kind algorithms.Kind) (algorithms.Rule, error) {
	if kind != algorithms.TokenBucket {
		limit := d.span(1, algorithms.MaxLimit)
		window := algorithms.Micros(d.span(algorithms.MinWindow.Microseconds(), algorithms.MaxWindow.Microseconds()))
		switch {
		case kind == algorithms.SlidingWindow:
			return algorithms.NewSlidingWindow(limit, window.Duration())
		case d.chance(50):
			return algorithms.NewFixedWindow(limit, window.Duration())
		case d.chance(5):
			limit = 0
		}
		return algorithms.NewCountingWindow(limit, window.Duration())
	}
	capacity := d.span(1, algorithms.MaxCapacity)
	if d.chance(10) {
		return algorithms.NewTokenBucket(capacity, algorithms.Rate{})
	}
	tokens := d.span(1, maxProduct)
	// The largest S for which both N·S and the time to full stay in bounds.
	hi, lo := bits.Mul64(uint64(maxProduct), uint64(tokens))
	most := maxProduct / tokens
	if c := uint64(capacity) * 1_000_000; hi < c {
		q, _ := bits.Div64(hi, lo, c)
		most = min(most, int64(min(q, 1<<62)))
	}
	if most < 1 {
		return algorithms.Rule{}, algorithms.ErrInvalidRule
	}
	rate, err := algorithms.NewRate(tokens, d.span(1, most))
	if err != nil {
		return algorithms.Rule{}, err
	}
	return algorithms.NewTokenBucket(capacity, rate)
}

func (d draw) cost(r algorithms.Rule) int64 {
	switch d.IntN(8) {
	case 0:
		return 1
	case 1:
		return d.span(1, 1<<62)
	case 2:
		return max(1, d.near(r.Limit()))
	case 3, 4:
		return 1 + d.Int64N(max(1, r.Limit()))
	}
	return d.span(1, max(1, r.Limit()))
}

// state draws a present state that cost may just fit into, or just not, at about now.
func (d draw) state(r algorithms.Rule, now algorithms.Micros, cost int64) algorithms.State {
	if r.Kind() == algorithms.TokenBucket {
		return d.bucketState(r, now, cost)
	}
	return d.windowState(r, now, cost)
}

const skew = int64(algorithms.MaxClockSkew)

func (d draw) bucketState(r algorithms.Rule, now algorithms.Micros, cost int64) algorithms.State {
	full, wanted := r.Limit()*1_000_000, min(cost, r.Limit())*1_000_000
	var level int64
	switch d.IntN(8) {
	case 0:
		level = d.near(wanted)
	case 1:
		level = d.near(full)
	case 2:
		level = d.span(0, algorithms.MaxCapacity*1_000_000+2)
	default:
		level = d.span(0, max(1, wanted-1))
	}
	level = max(0, level)
	ago := d.span(0, int64(now))
	switch d.IntN(8) {
	case 0, 1, 2:
		ago = d.span(0, 2_000)
	case 3, 4, 5: // about when the level reaches what is wanted, or full
		v := r.Peek(algorithms.State{Present: true, Level: min(level, full), At: now}, now, min(cost, r.Limit()))
		wait := v.RetryAfter
		if d.chance(20) {
			wait = v.ResetAfter
		}
		ago = within(wait.Microseconds()+d.Int64N(400)-200, 0, int64(now))
	case 6:
		ago = -d.ahead()
	}
	return algorithms.State{Present: true, Level: level, At: now - algorithms.Micros(ago)}
}

// ahead is how far a time may stand before the clock, rarely too far.
func (d draw) ahead() int64 {
	switch d.IntN(4) {
	case 0:
		return skew + d.Int64N(400) - 200
	case 1:
		return d.span(0, 2*skew)
	}
	return d.span(0, skew)
}

func (d draw) windowState(r algorithms.Rule, now algorithms.Micros, cost int64) algorithms.State {
	window := r.Window()
	start := now - now%window
	switch d.IntN(16) {
	case 0:
		start -= window
	case 1:
		start -= 2 * window
	case 2:
		start += window * (1 + algorithms.Micros(d.ahead())/window)
	case 3:
		start = algorithms.Micros(d.span(0, int64(now/window))) * window
	}
	start = max(0, start)
	free := max(0, r.Limit()-cost)
	most := algorithms.MaxLimit
	if r.Kind() == algorithms.FixedWindow {
		most = algorithms.MaxCount + 1
		if d.chance(20) {
			free = r.Limit() // a peek at a counting window turns here
		}
	}
	current := d.span(0, most)
	switch d.IntN(3) {
	case 0:
		current = within(d.near(free), 0, most)
	case 1:
		current = d.span(0, free)
	}
	if r.Kind() == algorithms.FixedWindow {
		if d.chance(40) {
			current = free + d.span(1, 1+r.Limit())
		}
		return algorithms.State{Present: true, Level: current, At: start}
	}
	previous := d.span(0, algorithms.MaxLimit)
	if rem := int64(window - now%window); d.chance(60) && rem > 0 {
		// About the count that, weighted, leaves just enough: previous·rem = (free − current)·W.
		hi, lo := bits.Mul64(uint64(max(0, free-current)), uint64(window))
		if hi < uint64(rem) {
			q, _ := bits.Div64(hi, lo, uint64(rem))
			previous = within(d.near(int64(min(q, 1<<40))), 0, algorithms.MaxLimit)
		}
	}
	return algorithms.State{Present: true, Level: current, Previous: previous, At: start}
}

// value draws what a key holds: kind is "none", "string" or a command that makes a value of another type.
func (d draw) value(r algorithms.Rule, now algorithms.Micros, cost int64) (kind, text string) {
	switch n := d.IntN(100); {
	case n < 8:
		return "none", ""
	case n < 12:
		return []string{"hash", "list", "set", "zset"}[d.IntN(4)], ""
	case n < 22:
		return "string", d.corrupt(r, now)
	}
	return "string", lua.EncodeState(r, d.state(r, now, cost))
}

// corrupt draws a value that is, or looks almost like, no state. A few can be read after all.
func (d draw) corrupt(r algorithms.Rule, now algorithms.Micros) string {
	shapes := []string{
		"", ":", "::", "abc:xyz", "-5:%d", "1e30:%d", "5", "5:", ":%d", "5.0:%d", " 5:%d", "5 :%d", "5:%d ", "5:%d\n",
		"5:%d\x00", "\x005:%d", "0x10:%d", "nan:%d", "inf:%d", "+5:%d", "5:-%d", "5:%d:", "5:%d:5", "1:2:3:%d",
		"5:5:%d", "5:5:5", "-1:0:%d", "0:-1:%d", "1e3:0:%d", "4294967296:0:%d", "0:4294967296:%d", "5:32503680000000000",
		"5:0:32503680000000000", "9007199254740993:%d", "4503599627000000:%d", "4503599627000001:%d", "4503599627370496:%d", "4503599627370497:%d",
		"99999999999999999999999999:%d", "0:0:99999999999999999999999999", "0005:%d", "00:00:%d", "٣:%d",
		strings.Repeat("0", lua.MaxStateLength-17) + ":%d", strings.Repeat("0", lua.MaxStateLength-16) + ":%d",
	}
	shape := shapes[d.IntN(len(shapes))]
	if r.Kind() == algorithms.FixedWindow && d.chance(80) {
		shape = "w:" + shape
		if d.chance(10) {
			shape = "w" + shape
		}
	}
	if d.chance(20) {
		const alphabet = "0123456789:::-. ew"
		random := make([]byte, d.IntN(40))
		for i := range random {
			random[i] = alphabet[d.IntN(len(alphabet))]
		}
		return string(random)
	}
	if !strings.Contains(shape, "%d") {
		return shape
	}
	if w := r.Window(); w > 0 && d.chance(50) {
		now -= now % w
	}
	return fmt.Sprintf(shape, now)
}

// window draws the window that a refund is for.
func (d draw) window(r algorithms.Rule, now algorithms.Micros) algorithms.Micros {
	w := r.Window()
	if w == 0 {
		return 0
	}
	start := now - now%w
	return max(0, []algorithms.Micros{0, start, start - w, start - 2*w, start + w, start + 1, now}[d.IntN(7)])
}
