package algorithms_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// trace is one entry of the shared step traces. Steps of the window and bucket traces have different fields; what a
// trace does not state is nil.
type trace struct {
	ID        string
	Algorithm string
	Params    struct {
		CapacityMicro int64 `json:"capacity_micro"`
		RatePerSecond int64 `json:"refill_rate_micro_per_sec"`
		Limit         int64 `json:"limit"`
		WindowMicros  int64 `json:"window_us"`
		EmissionUS    int64 `json:"emission_interval_us"`
		Burst         int64 `json:"burst"`
	}
	Steps  json.RawMessage
	Preset *struct {
		Current  int64             `json:"current"`
		Previous int64             `json:"previous"`
		Start    algorithms.Micros `json:"window_start_us"`
	}
}

type step struct {
	At           algorithms.Micros `json:"t_us"`
	Cost         int64             `json:"n"`
	Allow        bool              `json:"allow"`
	Tokens       *int64            `json:"tokens_micro_after"`
	Current      *int64            `json:"current_after"`
	Previous     *int64            `json:"previous"`
	Remaining    *int64            `json:"remaining"`
	RetryAfterUS *int64            `json:"retry_after_us"` // nil: never
	ResetAfterUS *int64            `json:"reset_after_us"`
	HeaderS      *int64            `json:"retry_after_header_s"`
}

func loadTraces(t *testing.T) map[string]trace {
	t.Helper()
	path := filepath.Join("..", "..", "shared", "cases", "traces.json")
	data, err := os.ReadFile(path)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the shared traces are required under CI=true: %v", err)
		}
		t.Skipf("no shared traces beside the project: %v", err)
	}
	var list []trace
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	byID := make(map[string]trace, len(list))
	for _, tr := range list {
		byID[tr.ID] = tr
	}
	return byID
}

// rule returns the rule of a trace, and whether this package has its algorithm. GCRA is the token bucket it equals:
// as many tokens as the burst, one per emission interval.
func (tr trace) rule(t *testing.T) (algorithms.Rule, bool) {
	t.Helper()
	var (
		rule algorithms.Rule
		err  error
	)
	switch tr.Algorithm {
	case "token_bucket":
		rule, err = bucket(tr.Params.CapacityMicro/1_000_000, tr.Params.RatePerSecond, 1_000_000)
	case "gcra":
		rule, err = bucket(tr.Params.Burst, 1_000_000, tr.Params.EmissionUS)
	case "sliding_window_counter":
		rule, err = algorithms.NewSlidingWindow(tr.Params.Limit, algorithms.Micros(tr.Params.WindowMicros).Duration())
	default:
		return rule, false
	}
	if err != nil {
		t.Fatalf("%s: %v", tr.ID, err)
	}
	return rule, true
}

func bucket(capacity, tokens, seconds int64) (algorithms.Rule, error) {
	rate, err := algorithms.NewRate(tokens, seconds)
	if err != nil {
		return algorithms.Rule{}, err
	}
	return algorithms.NewTokenBucket(capacity, rate)
}

func (tr trace) steps(t *testing.T) []step {
	t.Helper()
	raw := tr.Steps
	var named struct {
		Polls json.RawMessage `json:"exact_first_polls"`
	}
	if json.Unmarshal(raw, &named) == nil && named.Polls != nil {
		raw = named.Polls
	}
	var steps []step
	if err := json.Unmarshal(raw, &steps); err != nil {
		t.Fatalf("%s: %v", tr.ID, err)
	}
	return steps
}

func (tr trace) start() algorithms.State {
	if tr.Preset == nil {
		return algorithms.State{}
	}
	return algorithms.State{Present: true, Level: tr.Preset.Current, Previous: tr.Preset.Previous, At: tr.Preset.Start}
}

// TestTraces plays the shared step traces on the rules: every stated number of every step must be met exactly.
func TestTraces(t *testing.T) {
	t.Parallel()
	traces := loadTraces(t)
	for _, id := range []string{"TR-TB-1", "TR-TB-3", "TR-TB-4", "TR-SW-1", "TR-SW-3", "TR-GC-1", "TR-GC-2"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			tr, ok := traces[id]
			if !ok {
				t.Fatalf("no trace %s", id)
			}
			rule, ok := tr.rule(t)
			if !ok {
				t.Fatalf("no rule for %s", tr.Algorithm)
			}
			state := tr.start()
			for i, st := range tr.steps(t) {
				before := state
				var v algorithms.Verdict
				state, v = rule.Take(state, st.At, st.Cost)
				if !st.Allow && state != before {
					t.Errorf("step %d at %d: denied, but the state went from %+v to %+v", i, st.At, before, state)
				}
				st.check(t, i, v, rule.Advance(state, st.At))
			}
		})
	}
	for id, tr := range traces {
		if _, ok := tr.rule(t); !ok {
			t.Logf("%s not played: docs/algorithms.md says that %s is not an algorithm of this release", id, tr.Algorithm)
		}
	}
}

// check compares a verdict, and the state as read at the step's time, with what the trace states.
func (st step) check(t *testing.T, i int, v algorithms.Verdict, read algorithms.State) {
	t.Helper()
	if v.Allowed != st.Allow {
		t.Errorf("step %d at %d n=%d: allowed %v, want %v", i, st.At, st.Cost, v.Allowed, st.Allow)
	}
	equal := func(what string, got int64, want *int64) {
		if want != nil && got != *want {
			t.Errorf("step %d at %d n=%d: %s %d, want %d", i, st.At, st.Cost, what, got, *want)
		}
	}
	equal("tokens after", read.Level, st.Tokens)
	equal("current after", read.Level, st.Current)
	equal("previous", read.Previous, st.Previous)
	equal("remaining", v.Remaining, st.Remaining)
	equal("reset after", v.ResetAfter.Microseconds(), st.ResetAfterUS)
	if st.RetryAfterUS == nil {
		if v.RetryAfter >= 0 {
			t.Errorf("step %d at %d n=%d: retry after %v, want never", i, st.At, st.Cost, v.RetryAfter)
		}
		return
	}
	equal("retry after", v.RetryAfter.Microseconds(), st.RetryAfterUS)
	equal("retry after in whole seconds", int64((v.RetryAfter+time.Second-1)/time.Second), st.HeaderS)
}

// TestTR_TB_4_starvation polls every 50 ms for 65 000 s, in steps worth 0.8 µtok: a rule that stores its rounded level
// at each poll would never admit anything again.
func TestTR_TB_4_starvation(t *testing.T) {
	t.Parallel()
	rule, err := bucket(1, 16, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
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
