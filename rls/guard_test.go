package rls_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// storeFunc is a store that is one function.
type storeFunc func(ctx context.Context, groups []rls.Group) []rls.Answer

func (f storeFunc) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	return f(ctx, groups)
}

// TestBudget says how long the store may take for each deadline of the caller.
func TestBudget(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		deadline time.Duration // of the caller; 0: none
		want     time.Duration // the store's; 0: not asked
	}{
		{"Envoy's 20 ms for RateLimitService", 20 * ms, 10 * ms},
		{"ext_authz with 200 ms", 200 * ms, 20 * ms},
		{"30 ms", 30 * ms, 20 * ms},
		{"29 ms", 29 * ms, 19 * ms},
		{"22 ms", 22 * ms, 12 * ms},
		{"19 ms: reserve of half", 19 * ms, 9500 * time.Microsecond},
		{"5 ms", 5 * ms, 2500 * time.Microsecond},
		{"2 ms", 2 * ms, 1 * ms},
		{"less than 2 ms: the emergency cap answers at once", 2*ms - 1, 0},
		{"already over", -1, 0},
		{"none", 0, 20 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got time.Duration
				f := newFixture(t, shop, func(cfg *rls.Config) {
					cfg.Store = storeFunc(func(ctx context.Context, groups []rls.Group) []rls.Answer {
						deadline, _ := ctx.Deadline()
						got = time.Until(deadline)
						<-ctx.Done()
						return []rls.Answer{{Err: rls.ErrTimeout}}
					})
				})
				ctx := t.Context()
				if c.deadline != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				r, err := f.Decide(ctx, ask("shop", "endpoint_id=orders tenant=a"))
				if err != nil || r.Source != rls.SourceEmergency || r.Class != rls.ClassTimeout || !r.Allowed {
					t.Errorf("got %s class %q, %v; want an admission by the emergency cap", line(r), r.Class, err)
				}
				if c.deadline > 0 && ctx.Err() != nil {
					t.Error("answered after the caller's deadline")
				}
				if got != c.want {
					t.Errorf("the store got %v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestStoreCallIsDetached: a caller who leaves neither cuts the store call short nor counts as a failure of the store.
func TestStoreCallIsDetached(t *testing.T) {
	f := newFixture(t, shop, func(cfg *rls.Config) {
		inner := cfg.Store
		cfg.Store = storeFunc(func(ctx context.Context, groups []rls.Group) []rls.Answer {
			if ctx.Err() != nil {
				return []rls.Answer{{Err: rls.ErrTimeout}}
			}
			return inner.Decide(ctx, groups)
		})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cancel()
	r, err := f.Decide(ctx, ask("shop", "endpoint_id=orders tenant=a"))
	if err != nil || line(r) != "allow ALLOWED store [ok orders:4 1s]" {
		t.Errorf("got %s, %v", line(r), err)
	}
}
