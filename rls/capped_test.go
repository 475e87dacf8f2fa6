package rls_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// endlessStore answers when its context ends.
type endlessStore struct{ calls chan struct{} }

func (s endlessStore) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	s.calls <- struct{}{}
	<-ctx.Done()
	answers := make([]rls.Answer, len(groups))
	for i := range answers {
		answers[i].Err = rls.ErrTimeout
	}
	return answers
}

// TestCallsUnderWay: so many wait for the store, and who comes beyond them is answered at once from what is local.
func TestCallsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, callers = 5, 50
		store := endlessStore{make(chan struct{}, callers)}
		f := newFixture(t, fleetCaps, func(c *rls.Config) { c.Store, c.MaxInFlight = store, most })
		start := time.Now()
		var waiting sync.WaitGroup
		late := make(chan time.Duration, callers)
		for range callers {
			waiting.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				r, err := f.Decide(ctx, ask("shop", "endpoint_id=each tenant=a"))
				if err != nil || r.Source != rls.SourceEmergency {
					t.Errorf("got %+v, %v", r, err)
				}
				late <- time.Since(start)
			})
		}
		waiting.Wait()
		close(late)
		waited := 0
		for d := range late {
			if d > 0 {
				waited++
			}
			if d > 16*time.Millisecond {
				t.Errorf("answered after %v", d)
			}
		}
		if waited != most || len(store.calls) != most {
			t.Errorf("%d waited, %d calls reached the store, want %d", waited, len(store.calls), most)
		}
		// Their places are free again.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := f.Decide(ctx, ask("shop", "endpoint_id=each tenant=a")); err != nil {
			t.Fatal(err)
		}
		if len(store.calls) != most+1 {
			t.Errorf("%d calls reached the store, want %d", len(store.calls), most+1)
		}
	})
}
