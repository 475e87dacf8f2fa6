package rls_test

import (
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

const fleetCaps = `
domain: shop
endpoints:
  whole:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 60, refill: 30/s, across: fleet, min_processes: 2}
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0, max_cost: 50}]
  each:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 6, refill: 3/s, across: process}
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]
    tenants:
      acme:
        emergency: {capacity: 4, refill: 1/s}
      coyote:
        emergency: {capacity: 10, refill: 0, across: fleet, min_processes: 2}
      shares: {mode: enforce}
  closed:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`

// admit counts how many of n requests are admitted.
func (f *fixture) admit(t *testing.T, n int, words string) (admitted int) {
	t.Helper()
	for range n {
		r, err := f.Decide(t.Context(), ask("shop", words))
		if err != nil {
			t.Fatal(err)
		}
		if r.Allowed {
			admitted++
		}
	}
	return admitted
}

// TestFleetCap: each process has an equal part of a cap that is the whole fleet's, by the last number of processes that it
// learnt, and never by fewer than the policy says that there are.
func TestFleetCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, fleetCaps)
		f.store.fail = rls.ErrUnavailable
		step := func(what string, asked, want int) {
			t.Helper()
			if got := f.admit(t, asked, "endpoint_id=whole tenant=a"); got != want {
				t.Errorf("%s: admitted %d of %d, want %d", what, got, asked, want)
			}
		}
		step("never learnt: half of the capacity", 50, 30)
		time.Sleep(time.Second)
		step("and half of the refill", 50, 15)
		f.SetProcesses(3)
		time.Sleep(time.Second)
		step("a third", 50, 10)
		f.SetProcesses(1)
		time.Sleep(time.Second)
		step("not more than a half", 50, 15)
		f.SetProcesses(60)
		time.Sleep(time.Minute)
		step("a sixtieth", 50, 1)
		time.Sleep(2 * time.Second)
		step("after two seconds one more", 50, 1)
		// A cost above this process's part never fits, and the answer says so.
		r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=whole tenant=a hits=50"))
		if err != nil || r.Allowed || r.RetryAfter >= 0 {
			t.Errorf("got %+v, %v", r, err)
		}
		// The other endpoint's cap is each process's own.
		if got := f.admit(t, 10, "endpoint_id=each tenant=a"); got != 6 {
			t.Errorf("each process's own: admitted %d, want 6", got)
		}
	})
}

// TestEmergencyBoundIsStated: of each endpoint, what this process may admit: the policy's own cap, those of tenants that
// have one, and of a fleet's cap its part; and what was spent of it.
func TestEmergencyBoundIsStated(t *testing.T) {
	f := newFixture(t, fleetCaps)
	check := func(what string, want map[string][2]float64) {
		t.Helper()
		f.notes.mu.Lock()
		defer f.notes.mu.Unlock()
		if !maps.Equal(f.notes.bounds, want) {
			t.Errorf("%s: %v, want %v", what, f.notes.bounds, want)
		}
	}
	check("never learnt", map[string][2]float64{"whole": {30, 15}, "each": {6 + 4 + 5, 3 + 1}, "closed": {0, 0}})
	f.SetProcesses(5)
	check("five", map[string][2]float64{"whole": {12, 6}, "each": {6 + 4 + 2, 3 + 1}, "closed": {0, 0}})

	f.store.fail = rls.ErrUnavailable
	f.admit(t, 1, "endpoint_id=whole tenant=a hits=7")
	f.admit(t, 1, "endpoint_id=whole tenant=a hits=0") // a peek
	f.admit(t, 100, "endpoint_id=each tenant=acme")
	f.admit(t, 2, "endpoint_id=each tenant=shares")
	if want := map[string]int64{"whole": 7, "each": 4 + 2}; !maps.Equal(f.notes.spent, want) {
		t.Errorf("spent %v, want %v", f.notes.spent, want)
	}
}

// TestFleetOutage: whatever each of several processes learnt and whenever the store went, they admit together at most the
// cap and its refill, and each that starts in the outage at most its smallest part more.
func TestFleetOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, seconds = 3, 10
		admitted := 0
		for i := range processes + 1 {
			f := newFixture(t, fleetCaps)
			if i < processes {
				f.SetProcesses(processes)
			}
			f.store.fail = rls.ErrUnavailable
			for range seconds {
				admitted += f.admit(t, 100, "endpoint_id=whole tenant=a")
				time.Sleep(time.Second)
			}
		}
		const bound = (60 + 30*seconds) * 3 / 2 // the fourth started in the outage: half more
		if admitted > bound || admitted < bound*8/10 {
			t.Errorf("admitted %d, the bound is %d", admitted, bound)
		}
	})
}

// TestRF_18_threeProcesses: the store is away, one tenant asks a hundred times a second at three processes, then a
// crowd of tenants asks, many more than there are shares: the caps of the processes together, and memory that is bounded.
func TestRF_18_threeProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const policies = `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 10, refill: 10/s, per_key: {capacity: 10, refill: 10/s}}
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]
`
		var fleet []*fixture
		for range 3 {
			f := newFixture(t, policies)
			f.store.fail = rls.ErrUnavailable
			fleet = append(fleet, f)
		}
		const seconds = 20
		admitted := 0
		for range seconds * 100 {
			for _, f := range fleet {
				admitted += f.admit(t, 1, "endpoint_id=orders tenant=one")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if most := 3 * (10 + 10*seconds); admitted > most || admitted < most*9/10 {
			t.Errorf("admitted %d in %d s, the bound is %d", admitted, seconds, most)
		}

		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		f := fleet[0]
		f.store.groups = nil
		admitted = 0
		const callers = 20 * rls.MaxEmergencyShares
		for i := range callers {
			admitted += f.admit(t, 1, fmt.Sprint("endpoint_id=orders tenant=t", i))
			if i%10_000 == 0 {
				f.store.groups = nil // the fixture's own notes
			}
		}
		f.store.groups, f.notes.denials, f.notes.counts = nil, nil, nil
		if admitted > 10 {
			t.Errorf("%d of %d callers admitted in an instant, the cap is 10", admitted, callers)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
			t.Errorf("the process grew by %d bytes", grown)
		}
	})
}

// TestGuardAfterLoss: for the configured time after the store forgot what was spent, a fail-open policy admits what both
// store and emergency cap admit; a fail-closed one what the store does. Later the store alone decides.
func TestGuardAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const policies = `
domain: shop
endpoints:
  open:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 5, refill: 1/s}
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]
  closed:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 100, refill: 0}]
`
		f := newFixture(t, policies, func(c *rls.Config) { c.AfterLoss = 10 * time.Second })
		if got := f.admit(t, 50, "endpoint_id=open tenant=a"); got != 50 {
			t.Errorf("before: admitted %d, want 50", got)
		}
		f.StateLost()
		clear(f.store.buckets) // the store forgot
		if got := f.admit(t, 50, "endpoint_id=open tenant=a"); got != 0 {
			t.Errorf("the cap is warm: admitted %d, want none", got)
		}
		if got := f.admit(t, 50, "endpoint_id=closed tenant=a"); got != 50 {
			t.Errorf("fail_closed: admitted %d, want 50", got)
		}
		time.Sleep(3 * time.Second)
		r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=open tenant=a"))
		if err != nil || !r.Allowed || r.Source != rls.SourceStore {
			t.Errorf("got %+v, %v", r, err)
		}
		if got := f.admit(t, 50, "endpoint_id=open tenant=a"); got != 2 {
			t.Errorf("three seconds later: admitted %d more, want 2", got)
		}
		r, err = f.Decide(t.Context(), ask("shop", "endpoint_id=open tenant=a"))
		if err != nil || r.Reason != rls.EmergencyLocalLimit || r.Source != rls.SourceEmergency || r.RetryAfter <= 0 {
			t.Errorf("got %+v, %v", r, err)
		}
		time.Sleep(8 * time.Second)
		// What was denied had been taken from the store all the same: it errs against the caller.
		if got := f.admit(t, 1000, "endpoint_id=open tenant=a"); got != 1000-50-1-50-1 {
			t.Errorf("after: admitted %d", got)
		}
	})
}

// TestSetProcessesUnderLoad: the number changes while requests are decided.
func TestSetProcessesUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t, fleetCaps)
	f.store.fail = rls.ErrUnavailable
	var admitted atomic.Int64
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 500 {
				if r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=whole tenant=a")); err == nil && r.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	for n := range 100 {
		f.SetProcesses(1 + n%5)
	}
	callers.Wait()
	if n := admitted.Load(); n < 12 {
		t.Errorf("admitted %d", n)
	}
}
