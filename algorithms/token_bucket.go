package algorithms

import (
	"fmt"
	"math/bits"
	"time"
)

// NeverRefilled is how long a bucket with rate 0 is remembered after its last write: forgotten after a year.
const NeverRefilled = 366 * 24 * time.Hour

// afterlife is how long a bucket outlives the moment at which it is as if untouched.
const afterlife = time.Second

// NewTokenBucket returns a bucket of capacity tokens that refills at the given rate; it starts full. Errors wrap
// ErrInvalidRule and name the bound: capacity 1 … MaxCapacity, the rate as NewRate, and at most MaxFill from empty to
// full (a rate of 0 never fills and is legal).
func NewTokenBucket(capacity int64, refill Rate) (Rule, error) {
	if capacity < 1 || capacity > MaxCapacity {
		return Rule{}, fmt.Errorf("%w: capacity %d: must be 1 to %d tokens", ErrInvalidRule, capacity, MaxCapacity)
	}
	refill, err := NewRate(refill.Tokens, refill.Seconds)
	if err != nil {
		return Rule{}, err
	}
	hi, lo := bits.Mul64(uint64(capacity*micro), uint64(refill.Seconds))
	maxHi, maxLo := bits.Mul64(uint64(MaxFill.Microseconds()), uint64(refill.Tokens))
	if refill.Tokens > 0 && (hi > maxHi || hi == maxHi && lo > maxLo) {
		return Rule{}, fmt.Errorf("%w: capacity %d at refill %d/%ds: must fill within 2^52 µs (142 years)",
			ErrInvalidRule, capacity, refill.Tokens, refill.Seconds)
	}
	return Rule{kind: TokenBucket, limit: capacity, refill: refill}, nil
}

// refilled is s at now. A clock behind s.At refills nothing and keeps s.At, or the same time would refill twice.
func (r Rule) refilled(s State, now Micros) State {
	if now <= s.At {
		return s
	}
	elapsed, missing := int64(now-s.At), r.limit*micro-s.Level
	s.At = now
	switch {
	case r.refill.Tokens == 0:
	case elapsed >= mulDivUp(missing, r.refill.Seconds, r.refill.Tokens):
		s.Level = r.limit * micro
	default:
		gained, _ := mulDiv(elapsed, r.refill.Tokens, r.refill.Seconds)
		s.Level += gained
	}
	return s
}

// untilLevel is the wait until s, as stored, holds level µtok.
func (r Rule) untilLevel(s State, now Micros, level int64) time.Duration {
	need := level - s.Level
	if need <= 0 {
		return 0
	}
	if r.refill.Tokens == 0 {
		return Never
	}
	at := s.At + Micros(mulDivUp(need, r.refill.Seconds, r.refill.Tokens))
	return max(0, (at - now).Duration())
}

func (r Rule) bucketExpiry(s State, now Micros) time.Duration {
	if r.refill.Tokens == 0 {
		return NeverRefilled
	}
	fill := mulDivUp(r.limit*micro-s.Level, r.refill.Seconds, r.refill.Tokens)
	return Micros(fill).wholeMillis() + max(0, s.At-now).wholeMillis() + afterlife
}
