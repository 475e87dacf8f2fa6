// Package traces reads the step traces of the algorithms from the shared folder beside the project, for the tests of the
// rules and of the scripts.
package traces

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Trace is one entry of the shared step traces. Steps of the window and bucket traces have different fields; what a
// trace does not state is nil.
type Trace struct {
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
	RawSteps json.RawMessage `json:"steps"`
	Preset   *struct {
		Current  int64             `json:"current"`
		Previous int64             `json:"previous"`
		Start    algorithms.Micros `json:"window_start_us"`
	}
}

// Step is one take of a trace, and what must come of it.
type Step struct {
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

// Load reads the shared traces, by id. Without the shared folder the test is skipped, or fails where CI=true.
func Load(t testing.TB) map[string]Trace {
	t.Helper()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "..", "shared", "cases", "traces.json")
	data, err := os.ReadFile(path)
	if err != nil {
		testserver.SkipUnlessCI(t, "no shared traces beside the project: %v", err)
	}
	var list []Trace
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	byID := make(map[string]Trace, len(list))
	for _, tr := range list {
		byID[tr.ID] = tr
	}
	return byID
}

// Rule returns the rule of a trace, and whether package algorithms has its algorithm. GCRA is the token bucket it equals:
// as many tokens as the burst, one per emission interval.
func (tr Trace) Rule(t testing.TB) (algorithms.Rule, bool) {
	t.Helper()
	var (
		rule algorithms.Rule
		err  error
	)
	switch tr.Algorithm {
	case "token_bucket":
		rule, err = newBucket(tr.Params.CapacityMicro/1_000_000, tr.Params.RatePerSecond, 1_000_000)
	case "gcra":
		rule, err = newBucket(tr.Params.Burst, 1_000_000, tr.Params.EmissionUS)
	case "sliding_window_counter":
		rule, err = algorithms.NewSlidingWindow(tr.Params.Limit, algorithms.Micros(tr.Params.WindowMicros).Duration())
	case "fixed_window":
		rule, err = algorithms.NewFixedWindow(tr.Params.Limit, algorithms.Micros(tr.Params.WindowMicros).Duration())
	default:
		return rule, false
	}
	if err != nil {
		t.Fatalf("%s: %v", tr.ID, err)
	}
	return rule, true
}

func newBucket(capacity, tokens, seconds int64) (algorithms.Rule, error) {
	rate, err := algorithms.NewRate(tokens, seconds)
	if err != nil {
		return algorithms.Rule{}, err
	}
	return algorithms.NewTokenBucket(capacity, rate)
}

// Steps returns the steps; of a trace that compares two models, those of the exact one.
func (tr Trace) Steps(t testing.TB) []Step {
	t.Helper()
	raw := tr.RawSteps
	var named struct {
		Polls json.RawMessage `json:"exact_first_polls"`
	}
	if json.Unmarshal(raw, &named) == nil && named.Polls != nil {
		raw = named.Polls
	}
	var steps []Step
	if err := json.Unmarshal(raw, &steps); err != nil {
		t.Fatalf("%s: %v", tr.ID, err)
	}
	return steps
}

// Start returns the state before the first step.
func (tr Trace) Start() algorithms.State {
	if tr.Preset == nil {
		return algorithms.State{}
	}
	return algorithms.State{Present: true, Level: tr.Preset.Current, Previous: tr.Preset.Previous, At: tr.Preset.Start}
}

// Check compares a verdict, and the state as read at the step's time, with what the trace states.
func (st Step) Check(t testing.TB, i int, v algorithms.Verdict, read algorithms.State) {
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
