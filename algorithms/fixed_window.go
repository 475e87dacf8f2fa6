package algorithms

import (
	"fmt"
	"time"
)

// MaxCount is where the hits of a fixed window stop counting. Up to it the scripts' sums are exact.
const MaxCount int64 = 1 << 52

// NewFixedWindow returns a limit of hits per window in strict mode: a take that does not fit counts nothing. Windows are
// aligned to the epoch, so a week turns over on Thursday at 00:00 UTC. Up to twice the limit can pass around the end of
// a window; a sliding window does not let that happen. Errors wrap ErrInvalidRule and name the bound: limit
// 1 … MaxLimit, window MinWindow … MaxWindow in whole µs.
func NewFixedWindow(limit int64, window time.Duration) (Rule, error) {
	return newFixedWindow(1, limit, window, false)
}

// NewCountingWindow returns a fixed window in counting mode, as envoyproxy/ratelimit counts: a take that does not fit is
// counted all the same, up to MaxCount, so a caller who never pauses stays denied until the window ends. A peek asks
// whether the limit is exceeded already, whatever its cost. A limit of 0 denies every take. Errors as NewFixedWindow's,
// with limit 0 … MaxLimit. Both modes keep the same state.
func NewCountingWindow(limit int64, window time.Duration) (Rule, error) {
	return newFixedWindow(0, limit, window, true)
}

func newFixedWindow(least, limit int64, window time.Duration, counting bool) (Rule, error) {
	if limit < least || limit > MaxLimit {
		return Rule{}, fmt.Errorf("%w: limit %d: must be %d to %d", ErrInvalidRule, limit, least, MaxLimit)
	}
	if err := checkWindow(window); err != nil {
		return Rule{}, err
	}
	return Rule{kind: FixedWindow, limit: limit, window: Micros(window.Microseconds()), counting: counting}, nil
}

// fixedRolled is s in the window of now. A clock behind the window stays in it.
func (r Rule) fixedRolled(s State, now Micros) State {
	if now-s.At < r.window {
		return s
	}
	return r.fresh(now)
}

// fixedEnd is the time until the window of s, rolled to now, ends.
func (r Rule) fixedEnd(s State, now Micros) time.Duration {
	return (r.fixedRolled(s, now).At + r.window - now).Duration()
}

func (r Rule) fixedReset(s State, now Micros) time.Duration {
	if r.fixedRolled(s, now).Level == 0 {
		return 0
	}
	return r.fixedEnd(s, now)
}

func (r Rule) fixedGive(s State, n int64, window Micros) (State, bool) {
	if window != 0 && window != s.At {
		return s, false
	}
	s.Level = max(0, s.Level-n)
	return s, true
}

func (r Rule) fixedExpiry(s State, now Micros) time.Duration {
	return (s.At + r.window - now).wholeMillis() + afterlife
}
