package algorithms_test

import (
	"testing"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/traces"
)

// TestTraces plays the shared step traces on the rules: every stated number of every step must be met exactly.
func TestTraces(t *testing.T) {
	t.Parallel()
	all := traces.Load(t)
	for _, id := range []string{"TR-TB-1", "TR-TB-3", "TR-TB-4", "TR-SW-1", "TR-SW-3", "TR-FW-1", "TR-FW-3", "TR-GC-1", "TR-GC-2"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			tr, ok := all[id]
			if !ok {
				t.Fatalf("no trace %s", id)
			}
			rule, ok := tr.Rule(t)
			if !ok {
				t.Fatalf("no rule for %s", tr.Algorithm)
			}
			state := tr.Start()
			for i, st := range tr.Steps(t) {
				before := state
				var v algorithms.Verdict
				state, v = rule.Take(state, st.At, st.Cost)
				if !st.Allow && state != before {
					t.Errorf("step %d at %d: denied, but the state went from %+v to %+v", i, st.At, before, state)
				}
				st.Check(t, i, v, rule.Advance(state, st.At))
			}
		})
	}
	for id, tr := range all {
		if _, ok := tr.Rule(t); !ok {
			t.Logf("%s not played: docs/algorithms.md says that %s is not an algorithm of this release", id, tr.Algorithm)
		}
	}
}

// TestTR_TB_4_starvation polls every 50 ms for 65 000 s, in steps worth 0.8 µtok: a rule that stores its rounded level
// at each poll would never admit anything again.
func TestTR_TB_4_starvation(t *testing.T) {
	t.Parallel()
	rule := bucket(t, 1, 16, 1_000_000)
	var state algorithms.State
	state, _ = rule.Take(state, 0, 1)
	var admitted []algorithms.Micros
	for now := algorithms.Micros(50_000); now <= 65_000_000_000; now += 50_000 {
		var v algorithms.Verdict
		if state, v = rule.Take(state, now, 1); v.Allowed {
			admitted = append(admitted, now)
		}
	}
	if len(admitted) != 1 || admitted[0] != 62_500_000_000 {
		t.Errorf("admitted at %v, want once, at 62500000000", admitted)
	}
}

func bucket(t testing.TB, capacity, tokens, seconds int64) algorithms.Rule {
	t.Helper()
	rate, err := algorithms.NewRate(tokens, seconds)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := algorithms.NewTokenBucket(capacity, rate)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}
