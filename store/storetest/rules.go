package storetest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// agreesWithTheRules draws calls and follows every bucket with the pure rules: each answer must be what the rules say
// about the states it reports, and each state what the rules left there.
func agreesWithTheRules(t *testing.T, h Harness) {
	short := 10 * time.Millisecond
	if h.InSteps {
		short = time.Hour
	}
	rules := []algorithms.Rule{
		full(t, 5), bucket(t, 3, 100), bucket(t, 1_000_000, 1_000_000), window(t, 4, 10*time.Millisecond),
		window(t, 1, time.Millisecond), window(t, 100, time.Hour),
		must(t)(algorithms.NewFixedWindow(4, 10*time.Millisecond)), must(t)(algorithms.NewCountingWindow(4, short)),
		must(t)(algorithms.NewCountingWindow(3, time.Hour)),
	}
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		m := model{}
		ops := []algorithms.Op{algorithms.OpTake, algorithms.OpTake, algorithms.OpCharge, algorithms.OpPeek, algorithms.OpRefund}
		for range rapid.IntRange(1, 12).Draw(t, "calls") {
			groups := make([]rls.Group, rapid.IntRange(1, 3).Draw(t, "groups"))
			for i := range groups {
				for j, rule := range rules {
					if len(groups[i]) > 0 && rapid.IntRange(0, 2).Draw(t, "in the group") > 0 {
						continue
					}
					groups[i] = append(groups[i], rls.Take{
						Key:    fmt.Sprint("run", run, "rule", j),
						Rule:   rule,
						Op:     rapid.SampledFrom(ops).Draw(t, "op"),
						Cost:   rapid.Int64Range(1, 5).Draw(t, "cost"),
						Window: m.window(fmt.Sprint("run", run, "rule", j), rapid.IntRange(-3, 1).Draw(t, "window")),
					})
				}
			}
			for i, a := range decide(t, h.Store, groups...) {
				mustAnswer(t, a, len(groups[i]))
				if a.Healed != 0 {
					t.Fatalf("healed %d values of its own", a.Healed)
				}
				m.check(t, groups[i], a)
			}
			if rapid.IntRange(0, 4).Draw(t, "pause") == 0 {
				time.Sleep(time.Duration(rapid.IntRange(0, 15_000).Draw(t, "µs")) * time.Microsecond)
			}
		}
	})
}

// model is what the rules say each bucket holds.
type model map[string]algorithms.State

// window names the window of a key that lies n before the one last written; 0 for n > 0.
func (m model) window(key string, n int) algorithms.Micros {
	if n > 0 {
		return 0
	}
	return m[key].At + algorithms.Micros(n)*10_000
}

func (m model) check(t *rapid.T, group rls.Group, a rls.Answer) {
	t.Helper()
	allowed := true
	for i, take := range group {
		stored, before, now := m[take.Key], a.Before[i], a.Clock(i)
		gone := !before.Present && take.Rule.Untouched(stored, now) // expired, or dropped because it is full
		if before != stored && !gone {
			t.Fatalf("take %+v at %d: found %+v, want %+v", take, now, before, stored)
		}
		allowed = allowed && take.Rule.Admits(take.Op, before, now, take.Cost)
	}
	if a.Allowed != allowed {
		t.Fatalf("group %+v at %d before %+v: allowed %v, want %v", group, a.Now, a.Before, a.Allowed, allowed)
	}
	for i, take := range group {
		before, now := a.Before[i], a.Clock(i)
		m[take.Key] = before
		if allowed || take.Rule.Insists(take.Op, take.Rule.Admits(take.Op, before, now, take.Cost)) {
			m[take.Key] = take.Rule.Apply(take.Op, before, now, take.Cost, take.Window)
		}
	}
}
