package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// functionsBody runs the algorithms' functions on nine arguments a case, the time among them, which the production
// script takes from the server. So a case can stand exactly on the microsecond at which a decision turns.
const functionsBody = `
local replies = {}
for i = 1, #ARGV, 9 do
  local algorithm, present, stored, op = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4]
  local now, cost = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 5])
  local p1, p2, p3 = tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7]), tonumber(ARGV[i + 8])
  local run = algorithm == 'tb' and token_bucket or algorithm == 'sw' and sliding_window or fixed_window
  local fits, readable, value, ttl = run(present == '1' and stored, now, op, cost, p1, p2, p3, algorithm == 'cw')
  replies[#replies + 1] = (fits and 'fits ' or 'no ') .. (readable and 'read ' or 'unread ') .. (value or '-') ..
    ' ' .. (ttl and string.format('%d', ttl) or '-')
end
return replies`

// functionCase is one run of an algorithm's function.
type functionCase struct {
	call    lua.Call
	present bool
	stored  string
	now     algorithms.Micros
}

func (c functionCase) args(t *testing.T, e *lua.Encoder) []any {
	t.Helper()
	command, err := e.AppendCommand(nil, []lua.Call{c.call})
	if err != nil {
		t.Fatal(err)
	}
	a := command[len(command)-6:] // algorithm, op, cost and three parameters
	present := 0
	if c.present {
		present = 1
	}
	return []any{a[0], present, c.stored, int64(c.now), a[1], a[2], a[3], a[4], a[5]}
}

// want is what the function has to return, by the Go rules.
func (c functionCase) want() string {
	r, readable := c.call.Rule, false
	var s algorithms.State
	if c.present {
		s, readable = lua.DecodeState(r, c.stored, c.now)
	}
	group := &parityCase{calls: []lua.Call{c.call}, allowed: r.Admits(c.call.Op, s, c.now, c.call.Cost)}
	value, ttl := "-", "-"
	if group.writes(0, s, c.now) {
		next := r.Apply(c.call.Op, s, c.now, c.call.Cost, c.call.Window)
		value = lua.EncodeState(r, next)
		ttl = strconv.FormatInt(int64(r.Expiry(next, c.now)/time.Millisecond), 10)
	}
	return fmt.Sprintf("%s %s %s %s", word(group.allowed, "fits", "no"), word(readable, "read", "unread"), value, ttl)
}

func word(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// runFunctions runs the cases on the server, in order.
func (s *server) runFunctions(t *testing.T, cases []functionCase) []string {
	t.Helper()
	args := []any{"eval", lua.FunctionsScript(functionsBody), 0}
	for _, c := range cases {
		args = append(args, c.args(t, s.encoder)...)
	}
	replies, err := s.client.Do(t.Context(), args...).StringSlice()
	if err != nil {
		t.Fatal(err)
	}
	if len(replies) != len(cases) {
		t.Fatalf("%d replies for %d cases", len(replies), len(cases))
	}
	return replies
}

// TestParityFunctions compares the algorithms' functions, as the production script has them, with the Go rules where
// the script itself can be steered only roughly: exactly at the microsecond of admission and one before it, and up to
// the end of the range of times.
func TestParityFunctions(t *testing.T) {
	t.Parallel()
	for kind, stream := range map[algorithms.Kind]uint64{algorithms.TokenBucket: 11, algorithms.SlidingWindow: 12, algorithms.FixedWindow: 13} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			checks, seed := 10*parityChecks(t), paritySeed(t)
			eachServer(t, func(t *testing.T, s *server) {
				d, real := newDraw(seed, stream), s.now(t)
				denied, turning := 0, 0
				for left := checks; left > 0; left -= 500 {
					cases := make([]functionCase, min(left, 500))
					for i := range cases {
						var turns bool
						if cases[i], turns = d.functionCase(kind, real); turns {
							turning++
						}
					}
					for i, got := range s.runFunctions(t, cases) {
						if want := cases[i].want(); got != want {
							t.Fatalf("%+v:\n got %s\nwant %s", cases[i], got, want)
						}
						if strings.HasPrefix(got, "no ") {
							denied++
						}
					}
				}
				t.Logf("%v function: %s %s, PARITY_SEED=%d: %d cases, %d denied (%d %%), %d on the very microsecond, 0 mismatches",
					kind, s.Kind(), s.Version(), seed, checks, denied, 100*denied/checks, turning)
				if 100*denied < 30*checks || 100*turning < 10*checks {
					t.Errorf("%d cases: %d denied, want 30 %%; %d on the very microsecond, want 10 %%", checks, denied, turning)
				}
			})
		})
	}
}

// lastTime is the end of the range of times: 2^52 µs, less what a time may stand ahead.
const lastTime = 1<<52 - skew

// functionCase draws one case. turns: its time is the one at which a denial ends, or the one before.
func (d draw) functionCase(kind algorithms.Kind, real algorithms.Micros) (c functionCase, turns bool) {
	r := d.rule(kind)
	c = functionCase{call: lua.Call{Key: "k", Rule: r, Op: d.op(), Cost: d.cost(r)}, present: true, now: real}
	if d.chance(30) {
		c.now = algorithms.Micros(d.span(0, lastTime))
	}
	if c.call.Op == algorithms.OpRefund {
		c.call.Window = d.window(r, c.now)
	}
	if d.chance(10) {
		c.present, c.stored = d.chance(80), d.corrupt(r, c.now)
		return c, false
	}
	s := d.state(r, c.now, c.call.Cost)
	c.stored = lua.EncodeState(r, s)
	v := r.Peek(s, c.now, c.call.Cost)
	if r.Counting() && c.call.Op != algorithms.OpPeek {
		_, v = r.Take(s, c.now, c.call.Cost)
	}
	turn := c.now + algorithms.Micros(v.RetryAfter.Microseconds()) - algorithms.Micros(d.IntN(2))
	if c.call.Op == algorithms.OpRefund || v.Allowed || v.RetryAfter < 0 || int64(turn) > lastTime || d.chance(25) {
		return c, false
	}
	c.now = turn
	return c, true
}
