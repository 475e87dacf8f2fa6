package algorithms_test

import (
	"math/big"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// The reference model: the definitions of the algorithms in exact fractions, without any of the rules' arithmetic.

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func times(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }

func plus(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }

// floor is ⌊x⌋; every x here is at least 0 and every result fits.
func floor(x *big.Rat) int64 { return new(big.Int).Quo(x.Num(), x.Denom()).Int64() }

// model answers about a state that is present and valid.
type model struct {
	rule algorithms.Rule
	s    algorithms.State
}

// level is a token bucket's µtok at now: what was stored, plus N/S for every µs since, at most the capacity.
func (m model) level(now algorithms.Micros) *big.Rat {
	full := whole(m.rule.Limit() * 1_000_000)
	level := whole(m.s.Level)
	if rate := m.rule.Refill(); rate.Tokens > 0 && now > m.s.At {
		level = plus(level, times(big.NewRat(rate.Tokens, rate.Seconds), whole(int64(now-m.s.At))))
	}
	if level.Cmp(full) > 0 {
		return full
	}
	return level
}

// window is a sliding window's counts at now, and the part of the previous window that still weighs.
func (m model) window(now algorithms.Micros) (current, previous int64, weight *big.Rat) {
	w, into := m.rule.Window(), max(0, now-m.s.At)
	into %= w
	weight = big.NewRat(int64(w-into), int64(w))
	switch max(0, now-m.s.At) / w {
	case 0:
		return m.s.Level, m.s.Previous, weight
	case 1:
		return 0, m.s.Level, weight
	}
	return 0, 0, weight
}

// estimate is the hits that count at now.
func (m model) estimate(now algorithms.Micros) *big.Rat {
	current, previous, weight := m.window(now)
	if m.rule.Kind() == algorithms.FixedWindow {
		return whole(current)
	}
	return plus(whole(current), times(whole(previous), weight))
}

func (m model) fits(now algorithms.Micros, cost int64) bool {
	if m.rule.Kind() == algorithms.TokenBucket {
		return m.level(now).Cmp(times(whole(cost), whole(1_000_000))) >= 0
	}
	return plus(m.estimate(now), whole(cost)).Cmp(whole(m.rule.Limit())) <= 0
}

// remaining is the largest whole cost that fits, or 0.
func (m model) remaining(now algorithms.Micros) int64 {
	if m.rule.Kind() == algorithms.TokenBucket {
		return floor(m.level(now)) / 1_000_000
	}
	left := new(big.Rat).Sub(whole(m.rule.Limit()), m.estimate(now))
	if left.Sign() < 0 {
		return 0
	}
	return floor(left)
}
