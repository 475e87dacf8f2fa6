package rls

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// The defaults of BreakerConfig (spec section 5).
const (
	DefaultFailures   = 5
	DefaultQuarantine = 30 * time.Second
)

// BreakerConfig holds a breaker's thresholds.
type BreakerConfig struct {
	Failures   int           // consecutive failed round trips that open it; 0 means DefaultFailures
	Quarantine time.Duration // how long it stays open before one probe; 0 means DefaultQuarantine

	// OnChange is told of each transition between closed, open and half-open, in order. It must not call the breaker. May be nil.
	OnChange func(from, to string)
}

// Breaker keeps calls from a store that does not answer: closed, it lets every round trip through; after
// BreakerConfig.Failures consecutive failures it is open and refuses them; after the quarantine it is half-open and lets
// one probe through, whose outcome closes or re-opens it. A store owns one per server and observes each round trip once.
// Safe for concurrent use; time is the monotonic clock.
type Breaker struct {
	steps *gobreaker.TwoStepCircuitBreaker[struct{}]
	start time.Time
	// probeAt is 0 while closed, else the time since start, in nanoseconds, from which a probe is due.
	probeAt atomic.Int64
	probing atomic.Bool // a probe is under way
}

// NewBreaker returns a closed breaker.
func NewBreaker(cfg BreakerConfig) *Breaker {
	if cfg.Failures <= 0 {
		cfg.Failures = DefaultFailures
	}
	if cfg.Quarantine <= 0 {
		cfg.Quarantine = DefaultQuarantine
	}
	b := &Breaker{start: time.Now()}
	b.steps = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     cfg.Quarantine,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.Failures },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch to {
			case gobreaker.StateClosed:
				b.probeAt.Store(0)
			case gobreaker.StateOpen:
				// One more nanosecond: the library leaves the open state strictly after the quarantine.
				b.probeAt.Store(int64(time.Since(b.start)+cfg.Quarantine) + 1)
			}
			if cfg.OnChange != nil {
				cfg.OnChange(from.String(), to.String())
			}
		},
	})
	return b
}

// Ready reports, without taking anything, whether a call may be tried: closed, or due for a probe that nobody makes yet.
func (b *Breaker) Ready() bool {
	at := b.probeAt.Load()
	return at == 0 || int64(time.Since(b.start)) >= at && !b.probing.Load()
}

// Probing reports whether the next round trip would be the probe, which must carry one call only.
func (b *Breaker) Probing() bool { return b.probeAt.Load() != 0 }

var errRoundTrip = errors.New("round trip failed")

// Allow asks for one round trip. The error wraps ErrCircuitOpen. Otherwise done must be called exactly once with the
// outcome; an outcome from before a transition is ignored.
func (b *Breaker) Allow() (done func(ok bool), err error) {
	probe := b.Probing()
	if probe && !b.probing.CompareAndSwap(false, true) {
		return nil, ErrCircuitOpen
	}
	report, err := b.steps.Allow()
	if err != nil {
		if probe {
			b.probing.Store(false)
		}
		return nil, fmt.Errorf("%w: %w", ErrCircuitOpen, err)
	}
	return func(ok bool) {
		if ok {
			report(nil)
		} else {
			report(errRoundTrip)
		}
		if probe {
			b.probing.Store(false)
		}
	}, nil
}

// State returns closed, open or half-open.
func (b *Breaker) State() string { return b.steps.State().String() }
