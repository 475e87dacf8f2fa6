package algorithms

import (
	"fmt"
	"time"
)

// NewSlidingWindow returns a limit of hits per window. Windows are aligned to the epoch; the estimate is the hits of
// the current window plus those of the one before, weighted by how much of it the last window's length still covers.
// Errors wrap ErrInvalidRule and name the bound: limit 1 … MaxLimit, window MinWindow … MaxWindow in whole µs.
func NewSlidingWindow(limit int64, window time.Duration) (Rule, error) {
	if limit < 1 || limit > MaxLimit {
		return Rule{}, fmt.Errorf("%w: limit %d: must be 1 to %d", ErrInvalidRule, limit, MaxLimit)
	}
	if err := checkWindow(window); err != nil {
		return Rule{}, err
	}
	return Rule{kind: SlidingWindow, limit: limit, window: Micros(window.Microseconds())}, nil
}

func checkWindow(window time.Duration) error {
	if window < MinWindow || window > MaxWindow || window%time.Microsecond != 0 {
		return fmt.Errorf("%w: window %v: must be %v to 2^48-1 µs (%v), in whole microseconds",
			ErrInvalidRule, window, MinWindow, MaxWindow)
	}
	return nil
}

// rolled is s in the window of now. A clock behind the window stays in it, at its start.
func (r Rule) rolled(s State, now Micros) State {
	switch {
	case now-s.At < r.window:
		return s
	case now-s.At < 2*r.window:
		return State{Present: true, Previous: s.Level, At: s.At + r.window}
	}
	return r.fresh(now)
}

// left is the part of the window that is still to come, and the gap that a clock behind the window must first close.
func (r Rule) left(s State, now Micros) (rem, gap Micros) {
	if now < s.At {
		return r.window, s.At - now
	}
	return r.window - (now - s.At), 0
}

// share is ⌊hits·W/of⌋: for how long at the end of a window hits may still be free, when of hits fade over it.
func (r Rule) share(hits, of int64) Micros {
	q, _ := mulDiv(hits, int64(r.window), of)
	return Micros(q)
}

// slidingFits: current + cost + previous·rem/W ≤ limit, without the fraction.
func (r Rule) slidingFits(s State, now Micros, cost int64) bool {
	free := r.limit - s.Level - cost
	if free < 0 || free >= s.Previous {
		return free >= 0
	}
	rem, _ := r.left(s, now)
	return rem <= r.share(free, s.Previous)
}

func (r Rule) slidingRemaining(s State, now Micros) int64 {
	rem, _ := r.left(s, now)
	return max(0, r.limit-s.Level-mulDivUp(s.Previous, int64(rem), int64(r.window)))
}

// slidingRetry: a cost that the current window's own hits leave room for waits for the previous ones to fade; any other
// waits for the next window, in which the current hits fade.
func (r Rule) slidingRetry(s State, now Micros, cost int64) time.Duration {
	s = r.rolled(s, now)
	rem, gap := r.left(s, now)
	if free := r.limit - s.Level - cost; free >= 0 {
		return (gap + rem - r.share(free, s.Previous)).Duration()
	}
	return (gap + rem + r.window - r.share(r.limit-cost, s.Level)).Duration()
}

func (r Rule) slidingReset(s State, now Micros) time.Duration {
	s = r.rolled(s, now)
	rem, gap := r.left(s, now)
	switch {
	case s.Level > 0:
		return (gap + rem + r.window).Duration()
	case s.Previous > 0:
		return (gap + rem).Duration()
	}
	return 0
}

func (r Rule) slidingGive(s State, n int64, window Micros) (State, bool) {
	switch window {
	case 0, s.At:
		s.Level = max(0, s.Level-n)
	case s.At - r.window:
		s.Previous = max(0, s.Previous-n)
	default:
		return s, false
	}
	return s, true
}

func (r Rule) slidingExpiry(s State, now Micros) time.Duration {
	return (s.At + 2*r.window - now).wholeMillis() + afterlife
}
