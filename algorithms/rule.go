// Package algorithms holds the rate limiting rules as pure functions: state, time and cost in, state and verdict out.
//
// A rule reads no clock, does no I/O and keeps nothing. It is the executable specification of the Lua scripts in
// package lua, which are compared with it case by case on real servers. All arithmetic is on integers: tokens are
// counted in microtokens (µtok), time in microseconds (µs), products in 128 bits. docs/algorithms.md derives the formulas.
package algorithms

import (
	"errors"
	"time"
)

// Micros is a point in time in microseconds since the Unix epoch, or a span in microseconds where a name says so.
type Micros int64

// Duration returns the span m. It is exact up to 292 years.
func (m Micros) Duration() time.Duration { return time.Duration(m) * time.Microsecond }

// wholeMillis returns the span m, rounded up to whole milliseconds: the unit in which servers expire keys.
func (m Micros) wholeMillis() time.Duration { return time.Duration((m+999)/1000) * time.Millisecond }

// Kind names an algorithm. The zero Kind is invalid.
type Kind uint8

// The algorithms.
const (
	TokenBucket Kind = iota + 1
	SlidingWindow
	FixedWindow
)

// String returns the algorithm's name as policies write it, "token_bucket" for example.
func (k Kind) String() string {
	switch k {
	case TokenBucket:
		return "token_bucket"
	case SlidingWindow:
		return "sliding_window"
	case FixedWindow:
		return "fixed_window"
	}
	return "invalid"
}

// Op says what a call does with a bucket. The zero Op is invalid.
type Op uint8

// The operations.
const (
	OpTake   Op = iota + 1 // spend if it fits; denied: nothing changes
	OpCharge               // record what was already used, in full even when it does not fit
	OpPeek                 // would it fit; changes nothing
	OpRefund               // give back; always fits
)

// State is what one bucket holds. The zero State is an absent bucket, which equals one that was never used.
type State struct {
	Present  bool   // false: absent; the other fields are then zero
	Level    int64  // token bucket: µtok left. windows: hits in the current window
	Previous int64  // sliding window: hits in the window before. Otherwise 0
	At       Micros // token bucket: when Level was true. windows: start of the current window, a multiple of the window
}

// Never is the wait that no wait would end. Every negative wait means the same.
const Never time.Duration = -1

// Verdict is the answer of one bucket.
type Verdict struct {
	Allowed    bool
	Remaining  int64         // whole tokens or hits left: after an admission in the new state, after a denial unspent
	RetryAfter time.Duration // 0 when allowed (a charge: see Charge); else the exact wait until the same cost fits; < 0: never
	ResetAfter time.Duration // until the bucket is as if untouched; 0: it is; < 0: never
}

// ErrInvalidRule is wrapped by every error of the rule constructors.
var ErrInvalidRule = errors.New("invalid rule")

// Bounds of the rules. Up to them the scripts' arithmetic on doubles is exact; docs/algorithms.md derives them.
const (
	MaxCapacity  int64         = 4_503_599_627                  // tokens; in µtok just below 2^52
	MaxLimit     int64         = 1<<32 - 1                      // hits per window
	MinWindow    time.Duration = time.Millisecond               // and whole microseconds
	MaxWindow    time.Duration = (1<<48 - 1) * time.Microsecond // 8.9 years
	MaxRate      int64         = 1 << 52                        // N·S of a refill of N tokens per S seconds, reduced
	MaxFill      time.Duration = (1 << 52) * time.Microsecond   // from empty to full, 142 years
	MaxClockSkew Micros        = 3600 * 1_000_000               // a stored time further ahead than this is unreadable
)

// micro is the number of µtok in a token, and of µs in a second.
const micro = 1_000_000

// Rule is one algorithm with its numbers. Rules are comparable and immutable, their methods are pure and safe for
// concurrent use; the zero Rule is invalid and panics when it is asked. Build it with NewTokenBucket, NewSlidingWindow,
// NewFixedWindow or NewCountingWindow.
//
// Every method takes the bucket's stored state and the time now (≥ 0). A state that Valid refuses is read as absent,
// as the scripts read it. A cost must be positive: callers turn what a client sends into a positive number before they
// ask, so a cost of 0 or less is a bug of the program and panics.
type Rule struct {
	kind   Kind
	limit  int64 // token bucket: capacity in tokens. windows: hits per window
	refill Rate
	window Micros

	counting bool // fixed window: see NewCountingWindow
}

// Kind returns the algorithm; the invalid zero Kind for the zero Rule.
func (r Rule) Kind() Kind { return r.kind }

// Limit returns the capacity in tokens of a token bucket, or the hits per window of a window algorithm.
func (r Rule) Limit() int64 { return r.limit }

// Refill returns the refill of a token bucket, reduced; the zero Rate for window algorithms.
func (r Rule) Refill() Rate { return r.refill }

// Window returns the length of the window in µs; 0 for a token bucket.
func (r Rule) Window() Micros { return r.window }

// Counting reports whether the rule is a fixed window in counting mode: see NewCountingWindow.
func (r Rule) Counting() bool { return r.counting }

// Take spends cost if it fits, else it returns s as it is; a counting window counts it all the same.
func (r Rule) Take(s State, now Micros, cost int64) (State, Verdict) {
	mustBePositive(cost)
	stored := r.read(s, now)
	at := r.advance(stored, now)
	if !r.fits(at, now, cost) {
		if r.counting {
			s = r.spend(at, cost)
			stored, at = s, s
		}
		return s, r.unspent(stored, at, now, cost)
	}
	at = r.spend(at, cost)
	return at, Verdict{Allowed: true, Remaining: r.remaining(at, now), ResetAfter: r.reset(at, now)}
}

// Charge records a cost that was already used: windows count it in full even above the limit (up to MaxLimit), a token
// bucket goes down to 0 at most. Allowed says whether it fitted; everything else, RetryAfter too, is what a Peek at a
// cost of 1 answers on the state after: what was used is used, and the question is when the next request may come. So an
// allowed charge that used the bucket up has a RetryAfter.
func (r Rule) Charge(s State, now Micros, cost int64) (State, Verdict) {
	mustBePositive(cost)
	at := r.advance(r.read(s, now), now)
	fitted := r.fits(at, now, cost)
	at = r.spend(at, cost)
	v := r.unspent(at, at, now, r.peeked(1))
	v.Allowed = fitted
	return at, v
}

// Peek answers whether a take of cost would fit, and spends nothing; of a counting window it answers whether the limit
// is kept so far. It is also the verdict on a take that fits in a group that was denied.
func (r Rule) Peek(s State, now Micros, cost int64) Verdict {
	mustBePositive(cost)
	stored := r.read(s, now)
	return r.unspent(stored, r.advance(stored, now), now, r.peeked(cost))
}

// peeked is the cost that a peek asks about.
func (r Rule) peeked(cost int64) int64 {
	if r.counting {
		return 0
	}
	return cost
}

// Refund gives n back, never above full. A window algorithm gives it back in the window that starts at window (0: the
// current one), not below 0 hits; a window that is gone leaves s as it is, and so does an absent bucket, which is full.
func (r Rule) Refund(s State, now Micros, n int64, window Micros) State {
	mustBePositive(n)
	if !s.Present || !r.Valid(s, now) {
		return s
	}
	at, paid := r.give(r.advance(r.read(s, now), now), n, window)
	if !paid {
		return s
	}
	return at
}

// Verdict returns the answer that op gives on the stored state s: Take's, Charge's or Peek's. A refund is always
// allowed; its verdict describes the bucket after n = cost was given back, in the current window.
func (r Rule) Verdict(op Op, s State, now Micros, cost int64) Verdict {
	switch op {
	case OpTake:
		_, v := r.Take(s, now, cost)
		return v
	case OpCharge:
		_, v := r.Charge(s, now, cost)
		return v
	case OpPeek:
		return r.Peek(s, now, cost)
	case OpRefund:
		stored := r.read(r.Refund(s, now, cost, 0), now)
		return Verdict{Allowed: true, Remaining: r.remaining(r.advance(stored, now), now), ResetAfter: r.reset(stored, now)}
	}
	panic("algorithms: invalid Op")
}

// Apply returns the state that op leaves when it is carried out: a take spends if it fits, a charge is recorded, a
// refund paid, a peek changes nothing. When the result equals s, nothing needs to be written. window is Refund's.
func (r Rule) Apply(op Op, s State, now Micros, cost int64, window Micros) State {
	switch op {
	case OpTake:
		s, _ = r.Take(s, now, cost)
		return s
	case OpCharge:
		s, _ = r.Charge(s, now, cost)
		return s
	case OpPeek:
		return s
	case OpRefund:
		return r.Refund(s, now, cost, window)
	}
	panic("algorithms: invalid Op")
}

// Fits reports whether a take of cost would be admitted.
func (r Rule) Fits(s State, now Micros, cost int64) bool {
	mustBePositive(cost)
	return r.fits(r.advance(r.read(s, now), now), now, cost)
}

// Admits reports whether op fits, which is its say in the decision on its group. A refund always does.
func (r Rule) Admits(op Op, s State, now Micros, cost int64) bool {
	switch op {
	case OpTake, OpCharge:
		return r.Fits(s, now, cost)
	case OpPeek:
		return r.Peek(s, now, cost).Allowed
	case OpRefund:
		return true
	}
	panic("algorithms: invalid Op")
}

// Insists reports whether op is carried out even when its group is denied, given whether op itself fitted: a charge is,
// and so is a take of a counting window that did not fit.
func (r Rule) Insists(op Op, fitted bool) bool {
	return op == OpCharge || op == OpTake && r.counting && !fitted
}

// Advance returns the state as it reads at now: refilled, or rolled over to the window of now. It is present, also for
// an absent s. It is idempotent, but not for storing: a token bucket would lose the fraction of a µtok.
func (r Rule) Advance(s State, now Micros) State { return r.advance(r.read(s, now), now) }

// Untouched reports whether s answers everything exactly as an absent bucket does, so that it may be dropped.
func (r Rule) Untouched(s State, now Micros) bool { return r.Advance(s, now) == r.fresh(now) }

// Expiry returns the time to live of a bucket that is written with state s at now, in whole milliseconds: until it is
// full again and a second more (366 days when it never refills), or a second past the end of the next window.
func (r Rule) Expiry(s State, now Micros) time.Duration {
	s = r.Advance(s, now)
	switch r.kind {
	case TokenBucket:
		return r.bucketExpiry(s, now)
	case SlidingWindow:
		return r.slidingExpiry(s, now)
	case FixedWindow:
		return r.fixedExpiry(s, now)
	}
	panic(zeroRule)
}

// Valid reports whether the scripts can read s: numbers in range, a window start on the grid, and no time more than
// MaxClockSkew ahead of now. An absent state is valid. A token bucket's Level may exceed the capacity, which is then
// read as the capacity (an operator lowered it).
func (r Rule) Valid(s State, now Micros) bool {
	if !s.Present {
		return s == State{}
	}
	if s.At < 0 || s.At-now > MaxClockSkew {
		return false
	}
	switch r.kind {
	case TokenBucket:
		return s.Previous == 0 && s.Level >= 0 && s.Level <= MaxCapacity*micro
	case SlidingWindow:
		return s.Level >= 0 && s.Level <= MaxLimit && s.Previous >= 0 && s.Previous <= MaxLimit && s.At%r.window == 0
	case FixedWindow:
		return s.Previous == 0 && s.Level >= 0 && s.Level <= MaxCount && s.At%r.window == 0
	}
	panic(zeroRule)
}

// unspent is the verdict on a bucket that is left as it is: stored as read, at the same advanced to now.
func (r Rule) unspent(stored, at State, now Micros, cost int64) Verdict {
	v := Verdict{Allowed: r.fits(at, now, cost), Remaining: r.remaining(at, now), ResetAfter: r.reset(stored, now)}
	if !v.Allowed {
		v.RetryAfter = r.retry(stored, now, cost)
	}
	return v
}

// What follows is what an algorithm is made of. One file per algorithm holds its side of each; states are present and
// valid from here on.

const zeroRule = "algorithms: zero Rule: build it with one of the constructors"

func mustBePositive(cost int64) {
	if cost <= 0 {
		panic("algorithms: cost must be positive")
	}
}

// fresh is the bucket that was never used.
func (r Rule) fresh(now Micros) State {
	switch r.kind {
	case TokenBucket:
		return State{Present: true, Level: r.limit * micro, At: now}
	case SlidingWindow, FixedWindow:
		return State{Present: true, At: now - now%r.window}
	}
	panic(zeroRule)
}

// read is s as the rule understands it: a present state, not advanced.
func (r Rule) read(s State, now Micros) State {
	if !s.Present || !r.Valid(s, now) {
		return r.fresh(now)
	}
	if r.kind == TokenBucket {
		s.Level = min(s.Level, r.limit*micro)
	}
	return s
}

// advance refills or rolls over.
func (r Rule) advance(s State, now Micros) State {
	switch r.kind {
	case TokenBucket:
		return r.refilled(s, now)
	case SlidingWindow:
		return r.rolled(s, now)
	case FixedWindow:
		return r.fixedRolled(s, now)
	}
	panic(zeroRule)
}

// fits reports whether cost fits into the advanced state s.
func (r Rule) fits(s State, now Micros, cost int64) bool {
	if cost > r.limit { // before anything is multiplied
		return false
	}
	switch r.kind {
	case TokenBucket:
		return s.Level >= cost*micro
	case SlidingWindow:
		return r.slidingFits(s, now, cost)
	case FixedWindow:
		return s.Level <= r.limit-cost
	}
	panic(zeroRule)
}

// spend takes cost out of the advanced state s, as far as s can record it.
func (r Rule) spend(s State, cost int64) State {
	switch r.kind {
	case TokenBucket:
		s.Level = max(0, s.Level-min(cost, r.limit)*micro)
		return s
	case SlidingWindow:
		s.Level = min(MaxLimit, s.Level+min(cost, MaxLimit))
		return s
	case FixedWindow:
		s.Level = min(MaxCount, s.Level+min(cost, MaxCount))
		return s
	}
	panic(zeroRule)
}

// give puts n back into the advanced state s; false: the window is gone.
func (r Rule) give(s State, n int64, window Micros) (State, bool) {
	switch r.kind {
	case TokenBucket:
		s.Level = min(r.limit*micro, s.Level+min(n, r.limit)*micro)
		return s, true
	case SlidingWindow:
		return r.slidingGive(s, n, window)
	case FixedWindow:
		return r.fixedGive(s, n, window)
	}
	panic(zeroRule)
}

// remaining is what is left in the advanced state s.
func (r Rule) remaining(s State, now Micros) int64 {
	switch r.kind {
	case TokenBucket:
		return s.Level / micro
	case SlidingWindow:
		return r.slidingRemaining(s, now)
	case FixedWindow:
		return max(0, r.limit-s.Level)
	}
	panic(zeroRule)
}

// retry is the wait until cost, which does not fit, will.
func (r Rule) retry(s State, now Micros, cost int64) time.Duration {
	if cost > r.limit {
		return Never
	}
	switch r.kind {
	case TokenBucket:
		return r.untilLevel(s, now, cost*micro)
	case SlidingWindow:
		return r.slidingRetry(s, now, cost)
	case FixedWindow:
		return r.fixedEnd(s, now)
	}
	panic(zeroRule)
}

// reset is the wait until s is as if untouched.
func (r Rule) reset(s State, now Micros) time.Duration {
	switch r.kind {
	case TokenBucket:
		return r.untilLevel(s, now, r.limit*micro)
	case SlidingWindow:
		return r.slidingReset(s, now)
	case FixedWindow:
		return r.fixedReset(s, now)
	}
	panic(zeroRule)
}
