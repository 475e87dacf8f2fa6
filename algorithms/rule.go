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

// Kind names an algorithm. The zero Kind is invalid.
type Kind uint8

// The algorithms.
const (
	TokenBucket Kind = iota + 1
	SlidingWindow
)

// String returns the algorithm's name as policies write it, "token_bucket" for example.
func (k Kind) String() string {
	switch k {
	case TokenBucket:
		return "token_bucket"
	case SlidingWindow:
		return "sliding_window"
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
	RetryAfter time.Duration // 0 when allowed; otherwise the exact wait (whole µs) until the same cost fits; < 0: never
	ResetAfter time.Duration // until the bucket is as if untouched; 0: it is; < 0: never
}

// ErrInvalidRule is wrapped by every error of the rule constructors.
var ErrInvalidRule = errors.New("invalid rule")

// Rate is a refill of Tokens per Seconds, reduced to lowest terms. It is also µtok per µs, so nothing is rounded.
// The zero Rate never refills.
type Rate struct {
	Tokens  int64 // N
	Seconds int64 // S; at least 1 unless Tokens is 0
}

// Rule is one algorithm with its numbers. Rules are comparable and immutable; the zero Rule is invalid and panics when
// it is asked. Build it with NewTokenBucket or NewSlidingWindow.
type Rule struct {
	kind   Kind
	limit  int64 // token bucket: capacity in tokens. windows: hits per window
	refill Rate
	window Micros
}
