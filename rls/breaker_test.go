package rls_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// TestBreakerStory walks one outage: five failures open it, the quarantine keeps it open, one failed probe re-opens it,
// one good probe closes it.
func TestBreakerStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		b := rls.NewBreaker(rls.BreakerConfig{OnChange: func(from, to string) { seen = append(seen, from+" > "+to) }})
		trip := func(ok bool) {
			t.Helper()
			done, err := b.Allow()
			if err != nil {
				t.Fatalf("Allow() = %v in state %s", err, b.State())
			}
			done(ok)
		}
		for range 4 {
			trip(false)
		}
		trip(true) // a success resets the count
		for range 4 {
			trip(false)
		}
		if !b.Ready() || b.State() != "closed" {
			t.Fatalf("after four failures: ready %v, state %s; want closed", b.Ready(), b.State())
		}
		trip(false)
		if b.Ready() || b.State() != "open" {
			t.Fatalf("after five failures: ready %v, state %s; want open", b.Ready(), b.State())
		}
		time.Sleep(rls.DefaultQuarantine)
		if _, err := b.Allow(); !errors.Is(err, rls.ErrCircuitOpen) || b.Ready() {
			t.Fatalf("at the end of the quarantine: err %v, ready %v; want still open", err, b.Ready())
		}
		time.Sleep(time.Nanosecond)
		if !b.Ready() || !b.Probing() {
			t.Fatal("after the quarantine a probe must be due")
		}
		trip(false)
		if b.Ready() {
			t.Fatal("a failed probe must re-open")
		}
		time.Sleep(rls.DefaultQuarantine + 1)
		trip(true)
		if !b.Ready() || b.Probing() || b.State() != "closed" {
			t.Fatalf("a good probe must close; state %s", b.State())
		}
		want := []string{"closed > open", "open > half-open", "half-open > open", "open > half-open", "half-open > closed"}
		if !slices.Equal(seen, want) {
			t.Errorf("transitions %q, want %q", seen, want)
		}
	})
}

// TestRF_17_breakerLetsOneProbeThrough has many callers at once at the end of the quarantine.
func TestRF_17_breakerLetsOneProbeThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rls.NewBreaker(rls.BreakerConfig{Failures: 1, Quarantine: time.Second})
		done, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		done(false)
		time.Sleep(time.Second + 1)

		var probes atomic.Int32
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				done, err := b.Allow()
				if err != nil {
					if !errors.Is(err, rls.ErrCircuitOpen) {
						t.Errorf("Allow() = %v, want ErrCircuitOpen", err)
					}
					return
				}
				probes.Add(1)
				time.Sleep(time.Millisecond)
				done(true)
			})
		}
		synctest.Wait()
		if b.Ready() {
			t.Error("Ready while the probe is under way")
		}
		wg.Wait()
		if probes.Load() != 1 {
			t.Errorf("%d probes, want 1", probes.Load())
		}
		if !b.Ready() {
			t.Error("a good probe must close")
		}
	})
}

// TestBreakerIgnoresOldOutcomes reports a failure from before the breaker opened.
func TestBreakerIgnoresOldOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rls.NewBreaker(rls.BreakerConfig{Failures: 1, Quarantine: time.Second})
		slow, _ := b.Allow()
		quick, _ := b.Allow()
		quick(false)
		time.Sleep(time.Second + 1)
		probe, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		probe(true)
		slow(false)
		if b.State() != "closed" {
			t.Errorf("state %s after an outcome from before the transition, want closed", b.State())
		}
	})
}
