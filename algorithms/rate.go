package algorithms

import (
	"fmt"
	"math/bits"
)

// Rate is a refill of Tokens per Seconds, reduced to lowest terms. It is also µtok per µs, so nothing is rounded.
// The zero Rate never refills.
type Rate struct {
	Tokens  int64 // N
	Seconds int64 // S; at least 1 unless Tokens is 0
}

// NewRate returns tokens per seconds in lowest terms. No tokens give the zero Rate, whatever the seconds. Errors wrap
// ErrInvalidRule: a negative number, no seconds, or N·S above MaxRate after reduction.
func NewRate(tokens, seconds int64) (Rate, error) {
	switch {
	case tokens < 0 || seconds < 0:
		return Rate{}, fmt.Errorf("%w: refill %d/%ds: must not be negative", ErrInvalidRule, tokens, seconds)
	case tokens == 0:
		return Rate{}, nil
	case seconds == 0:
		return Rate{}, fmt.Errorf("%w: refill %d/0s: needs at least 1 second", ErrInvalidRule, tokens)
	}
	g := gcd(tokens, seconds)
	n, s := tokens/g, seconds/g
	if hi, lo := bits.Mul64(uint64(n), uint64(s)); hi != 0 || lo > uint64(MaxRate) {
		return Rate{}, fmt.Errorf("%w: refill %d/%ds: tokens times seconds, in lowest terms (%d·%d), must be at most 2^52 = %d",
			ErrInvalidRule, tokens, seconds, n, s, MaxRate)
	}
	return Rate{Tokens: n, Seconds: s}, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mulDiv returns ⌊a·b/c⌋ and whether there is a remainder, by way of 128 bits. It panics when the quotient does not fit
// into 64 bits, which the rules' bounds rule out.
func mulDiv(a, b, c int64) (quotient int64, inexact bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, rem := bits.Div64(hi, lo, uint64(c))
	return int64(q), rem != 0
}

// mulDivUp returns ⌈a·b/c⌉.
func mulDivUp(a, b, c int64) int64 {
	q, inexact := mulDiv(a, b, c)
	if inexact {
		q++
	}
	return q
}
