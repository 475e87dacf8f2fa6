package rls_test

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
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

// policiesOf is a set of three policies, of which only what is asked of has an emergency cap, or is there at all.
func policiesOf(orders, tenant, dropIn string) string {
	text := "domain: shop\nendpoints:\n  pay: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}\n"
	if orders != "" {
		text += "  orders: {policy_version: 1, " + orders + ", limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]" + tenant + "}\n"
	}
	return text + "---\ndomain: files\ndescriptors: [{key: other, rate_limit: {unit: hour, requests_per_unit: 9}}" + dropIn + "]\n"
}

// TestCapsOutliveTheirPolicies: however policies come and go during an outage, a cap never starts afresh: no more is
// admitted than its largest capacity and its largest refill over the time.
func TestCapsOutliveTheirPolicies(t *testing.T) {
	const capacity, seconds = 20, 60
	orders := rapid.SampledFrom([]string{
		"", "fail_mode: fail_closed",
		"fail_mode: fail_open, emergency: {capacity: 20, refill: 1/10s}", "fail_mode: fail_open, emergency: {capacity: 15, refill: 1/20s}",
		"fail_mode: fail_open, emergency: {capacity: 20, refill: 1/10s, per_key: {capacity: 20, refill: 1/10s}}",
	})
	tenants := rapid.SampledFrom([]string{"", ", tenants: {acme: {mode: enforce}}"})
	dropIns := rapid.SampledFrom([]string{
		"", ", {key: a.b, emergency: {capacity: 20, refill: 1/10s}, rate_limit: {unit: hour, requests_per_unit: 1000}}",
		", {key: a.b, rate_limit: {unit: hour, requests_per_unit: 0}}",
	})
	rapid.Check(t, func(rt *rapid.T) {
		var sets []string
		for range seconds {
			sets = append(sets, policiesOf(orders.Draw(rt, "orders"), tenants.Draw(rt, "tenants"), dropIns.Draw(rt, "files")))
		}
		synctest.Test(t, func(t *testing.T) {
			d := newDropIn(t, basic)
			d.store.fail = rls.ErrUnavailable
			admitted := map[string]int{}
			for _, text := range sets {
				native, files, _ := strings.Cut(text, "---\n")
				set, err := descriptors.Parse([]descriptors.File{{Name: "a.yaml", Data: []byte(native)}, {Name: "b.yaml", Data: []byte(files)}}, descriptors.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Use(set); err != nil {
					t.Fatal(err)
				}
				for range 7 {
					for what, r := range map[string]rls.Request{
						"orders": ask("shop", "endpoint_id=orders tenant=acme"), "files": ask("files", "a.b=x"),
					} {
						res, err := d.Decide(t.Context(), r)
						if err != nil {
							t.Fatal(err)
						}
						if res.Allowed && res.Source == rls.SourceEmergency {
							admitted[what]++
						}
					}
				}
				time.Sleep(time.Second)
			}
			for what, n := range admitted {
				if most := capacity + seconds/10; n > most {
					rt.Errorf("%s: %d admitted, the cap is %d", what, n, most)
				}
			}
		})
	})
}

// TestRetiredCapsAreBounded: what is kept of policies that are gone is bounded in number and time.
func TestRetiredCapsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, policy("first"))
		f.store.fail = rls.ErrUnavailable
		admits := func(endpoint string) int { return f.admit(t, 3, "endpoint_id="+endpoint+" tenant=a") }
		use := func(endpoint string) {
			t.Helper()
			if err := f.Use(parse(t, policy(endpoint))); err != nil {
				t.Fatal(err)
			}
		}
		if n := admits("first"); n != 2 {
			t.Fatalf("admitted %d of a cap of 2", n)
		}
		use("last")
		use("first")
		if n := admits("first"); n != 0 {
			t.Errorf("a policy that came back brought %d admissions", n)
		}
		use("last")
		time.Sleep(rls.RetiredCapsAge + time.Second)
		use("other")
		use("first")
		if n := admits("first"); n != 2 {
			t.Errorf("after a day: admitted %d, want a fresh cap's 2", n)
		}
		for i := range rls.MaxRetiredCaps + 1 {
			use(fmt.Sprint("e", i))
			admits(fmt.Sprint("e", i))
			time.Sleep(time.Millisecond)
		}
		use("last")
		for endpoint, want := range map[string]int{"first": 2, "e1": 0, fmt.Sprint("e", rls.MaxRetiredCaps): 0} {
			use(endpoint)
			if n := admits(endpoint); n != want {
				t.Errorf("%s: admitted %d, want %d", endpoint, n, want)
			}
		}
	})
}

// policy is a set of one policy, whose cap never refills.
func policy(endpoint string) string {
	return "domain: shop\nendpoints:\n  " + endpoint + ": {policy_version: 1, fail_mode: fail_open, emergency: {capacity: 2, refill: 0}, " +
		"limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]}\n"
}
