package lua_test

import (
	"slices"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/traces"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// TestTraces plays the shared step traces on real servers, each step's state seeded by itself.
//
// Bucket traces run on the production script at exactly the traced moment. Window traces cannot: windows stand on the
// server's clock, and the traced offset in one comes around once a minute. They run twice instead: the script's function
// at the traced moment, exactly, and the production script in the server's current window, compared with the Go rule.
func TestTraces(t *testing.T) {
	t.Parallel()
	all := traces.Load(t)
	eachServer(t, func(t *testing.T, s *server) {
		for _, id := range []string{"TR-TB-1", "TR-TB-3", "TR-TB-4", "TR-SW-1", "TR-SW-3", "TR-FW-1", "TR-FW-3", "TR-GC-1", "TR-GC-2"} {
			t.Run(id, func(t *testing.T) {
				tr, ok := all[id]
				if !ok {
					t.Fatalf("no trace %s", id)
				}
				s.playTrace(t, tr)
			})
		}
	})
}

func (s *server) playTrace(t *testing.T, tr traces.Trace) {
	rule, ok := tr.Rule(t)
	if !ok {
		t.Fatalf("no rule for %s", tr.Algorithm)
	}
	before := tr.Start()
	for i, st := range tr.Steps(t) {
		call := lua.Call{Key: "sentinel:v1:{trace}:" + tr.ID, Rule: rule, Op: algorithms.OpTake, Cost: st.Cost}
		after, verdict := rule.Take(before, st.At, st.Cost)
		st.Check(t, i, verdict, rule.Advance(after, st.At))
		if rule.Kind() == algorithms.TokenBucket {
			s.playAtInstant(t, i, st, call, before, after)
		} else {
			s.playWindow(t, i, st, call, before)
		}
		before = after
	}
}

func (s *server) playAtInstant(t *testing.T, i int, st traces.Step, call lua.Call, before, after algorithms.State) {
	t.Helper()
	shift, reply, stored := s.atInstant(t, call, before, st.At)
	if reply.Allowed != st.Allow {
		t.Errorf("step %d at %d: the script said allowed %v, want %v", i, st.At, reply.Allowed, st.Allow)
	}
	verdict := call.Rule.Verdict(call.Op, reply.Before[0], reply.Now, call.Cost)
	if after.Present {
		after.At += shift
	}
	st.Check(t, i, verdict, call.Rule.Advance(after, reply.Now))
	want := ""
	if after.Present {
		want = lua.EncodeState(call.Rule, after)
	}
	if stored != want {
		t.Errorf("step %d at %d: stored %q, want %q", i, st.At, stored, want)
	}
}

func (s *server) playWindow(t *testing.T, i int, st traces.Step, call lua.Call, before algorithms.State) {
	t.Helper()
	exact := functionCase{call: call, now: st.At}
	if before.Present {
		exact.present, exact.stored = true, lua.EncodeState(call.Rule, before)
	}
	if got, want := s.runFunctions(t, []functionCase{exact})[0], exact.want(); got != want {
		t.Errorf("step %d at %d: the function said %q, want %q", i, st.At, got, want)
	} else if allowed := got[:4] == "fits"; allowed != st.Allow {
		t.Errorf("step %d at %d: the function said allowed %v, want %v", i, st.At, allowed, st.Allow)
	}

	p := parity{server: s, now: s.now(t)}
	live := parityCase{calls: []lua.Call{call}, values: []parityValue{{kind: "none"}}}
	if before.Present {
		w := call.Rule.Window()
		seeded := before
		seeded.At = p.now - p.now%w - (st.At - st.At%w - before.At) // as many windows back as traced
		live.values[0] = parityValue{kind: "string", text: lua.EncodeState(call.Rule, seeded)}
	}
	if problem := p.check(t, parityBatch{&live}); problem != "" {
		t.Errorf("step %d: %s\n%s", i, problem, &live)
	}
}

// TestLUA_09_clock_steps_back is trace TR-TB-3 on the production script: while the clock stands before the stored time
// nothing drains, nothing refills, and the stored time is kept.
func TestLUA_09_clock_steps_back(t *testing.T) {
	t.Parallel()
	tr := traces.Load(t)["TR-TB-3"]
	rule, _ := tr.Rule(t)
	steps := tr.Steps(t)
	back := slices.IndexFunc(steps, func(st traces.Step) bool { return st.At < steps[0].At })
	if back < 0 {
		t.Fatal("no step of the trace goes back")
	}
	eachServer(t, func(t *testing.T, s *server) {
		empty := algorithms.State{Present: true, At: steps[0].At}
		half := algorithms.State{Present: true, Level: 1_500_000, At: steps[0].At}
		call := lua.Call{Key: "k", Rule: rule, Op: algorithms.OpTake, Cost: 1}

		shift, reply, stored := s.atInstant(t, call, empty, steps[back].At)
		empty.At += shift
		if reply.Allowed || stored != lua.EncodeState(rule, empty) {
			t.Errorf("empty, clock 10 s behind: allowed %v, stored %q; want a denial that changes nothing", reply.Allowed, stored)
		}
		if v := rule.Peek(reply.Before[0], reply.Now, 1); v.RetryAfter.Microseconds() != *steps[back].RetryAfterUS {
			t.Errorf("empty, clock 10 s behind: retry after %v, want %d µs", v.RetryAfter, *steps[back].RetryAfterUS)
		}

		shift, reply, stored = s.atInstant(t, call, half, steps[back].At)
		half.At += shift
		half.Level = 500_000
		if !reply.Allowed || stored != lua.EncodeState(rule, half) {
			t.Errorf("half full, clock 10 s behind: allowed %v, stored %q; want an admission that keeps the later time", reply.Allowed, stored)
		}
	})
}
