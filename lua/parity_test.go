package lua_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// parityChecks is the number of cases per test and server: $PARITY_CHECKS, 300 without it.
func parityChecks(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("PARITY_CHECKS"), "300"))
	if err != nil || n < 1 {
		t.Fatalf("PARITY_CHECKS=%q: must be a positive number", os.Getenv("PARITY_CHECKS"))
	}
	return n
}

// paritySeed is $PARITY_SEED, a new one for the whole run without it.
func paritySeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("PARITY_SEED")
	if text == "" {
		return newSeed()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("PARITY_SEED=%q: must be a number", text)
	}
	return seed
}

var newSeed = sync.OnceValue(func() uint64 { return rand.Uint64N(1_000_000_000) })

// TestParity draws states relative to the server's clock, writes them into keys, runs the production script on them and
// compares its reply, what it stored and the expiry it set with what the Go rules say at the time it replied.
func TestParity(t *testing.T) {
	t.Parallel()
	for _, script := range []struct {
		name   string
		stream uint64
		calls  func(d draw) []algorithms.Kind
	}{
		{"token_bucket", 1, func(draw) []algorithms.Kind { return []algorithms.Kind{algorithms.TokenBucket} }},
		{"sliding_window", 2, func(draw) []algorithms.Kind { return []algorithms.Kind{algorithms.SlidingWindow} }},
		{"fixed_window", 4, func(draw) []algorithms.Kind { return []algorithms.Kind{algorithms.FixedWindow} }},
		{"group", 3, func(d draw) []algorithms.Kind {
			kinds := make([]algorithms.Kind, 1+d.IntN(6))
			for i := range kinds {
				kinds[i] = algorithms.TokenBucket + algorithms.Kind(d.IntN(3))
			}
			return kinds
		}},
	} {
		t.Run(script.name, func(t *testing.T) {
			t.Parallel()
			checks, seed := parityChecks(t), paritySeed(t)
			eachServer(t, func(t *testing.T, s *server) {
				d := newDraw(seed, script.stream)
				p := parity{server: s, lag: 150, now: s.now(t)}
				mismatches, denied := 0, 0
				for i := range checks {
					c := p.draw(d, i, script.calls(d))
					problem := p.check(t, &c)
					if problem != "" {
						mismatches++
						t.Errorf("case %d: %s\n%s", i, problem, c)
					}
					if !c.allowed {
						denied++
					}
					if mismatches == 10 {
						t.Fatal("giving up after 10 mismatches")
					}
				}
				t.Logf("%s: %s %s, PARITY_SEED=%d: %d cases, %d denied (%d %%), %d mismatches",
					script.name, s.Kind(), s.Version(), seed, checks, denied, 100*denied/checks, mismatches)
				if 100*denied < 30*checks {
					t.Errorf("%d of %d cases denied, want at least 30 %%", denied, checks)
				}
			})
		})
	}
}

// parity runs drawn cases on one server.
type parity struct {
	*server
	now algorithms.Micros // the server's clock at the last reply
	lag algorithms.Micros // from there to the next script's time, about
}

// parityCase is one group and what its keys hold.
type parityCase struct {
	calls   []lua.Call
	values  []parityValue
	jitter  time.Duration // of what is written
	allowed bool          // by the Go rules
	extra   time.Duration // how much longer it is to live
}

type parityValue struct {
	kind string        // none, string or another type's name
	text string        // of a string
	ttl  time.Duration // 0: none
}

func (c parityCase) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "allowed %v, extra %v", c.allowed, c.extra)
	for i, call := range c.calls {
		fmt.Fprintf(&text, "\n  %+v on %s %q ttl %v", call, c.values[i].kind, c.values[i].text, c.values[i].ttl)
	}
	return text.String()
}

func (p *parity) draw(d draw, n int, kinds []algorithms.Kind) parityCase {
	now := p.now + p.lag
	c := parityCase{jitter: time.Duration(n%3/2) * 10 * time.Minute}
	// A group of many is denied by one of them: most of its members fit easily, or nothing would ever be written.
	easy := len(kinds) > 1 && d.chance(60)
	for i, kind := range kinds {
		r := d.rule(kind)
		call := lua.Call{Key: fmt.Sprintf("sentinel:v1:{%d}:%d", n, i), Rule: r, Op: d.op(), Cost: d.cost(r)}
		v := parityValue{}
		v.kind, v.text = d.value(r, now, call.Cost)
		if easy && d.chance(85) {
			call.Cost = d.span(1, max(1, r.Limit()/4))
			if v.kind == "string" && d.chance(80) {
				v.kind, v.text = "none", ""
			}
		}
		if call.Op == algorithms.OpRefund {
			call.Window = d.window(r, now)
		}
		if v.kind != "none" && d.chance(70) {
			v.ttl = time.Duration(d.span(60_000, 600_000_000)) * time.Millisecond
		}
		c.calls, c.values = append(c.calls, call), append(c.values, v)
	}
	return c
}

func (d draw) op() algorithms.Op {
	switch n := d.IntN(100); {
	case n < 65:
		return algorithms.OpTake
	case n < 78:
		return algorithms.OpCharge
	case n < 90:
		return algorithms.OpPeek
	}
	return algorithms.OpRefund
}

// found is what a key held after the script.
type found struct {
	kind *redis.StatusCmd
	dump *redis.Cmd // GET; an error where the value is no string
	pttl *redis.Cmd
}

// check plays c in one round trip and returns what differs from the Go rules.
func (p *parity) check(t *testing.T, c *parityCase) string {
	ctx := t.Context()
	var run *redis.Cmd
	after := make([]found, len(c.calls))
	command, err := lua.NewEncoder(c.jitter).AppendCommand(nil, c.calls)
	if err != nil {
		return err.Error()
	}
	if all := 3 + 7*len(c.calls); len(command) > all {
		ms, _ := command[all].(int64)
		c.extra = time.Duration(ms) * time.Millisecond
	}
	began := time.Now()
	_, _ = p.client.Pipelined(ctx, func(q redis.Pipeliner) error { // errors are looked at one by one
		for i, call := range c.calls {
			c.values[i].write(q, t, call.Key)
		}
		run = q.Do(ctx, command...)
		for i, call := range c.calls {
			after[i] = found{q.Type(ctx, call.Key), q.Do(ctx, "GET", call.Key), q.Do(ctx, "PTTL", call.Key)}
			q.Del(ctx, call.Key)
		}
		return nil
	})
	passed := time.Since(began) + time.Millisecond // PTTL rounds
	if err := run.Err(); err != nil {
		return fmt.Sprintf("the script failed: %v", err)
	}
	reply, err := lua.Decode(run.Val(), c.calls)
	if err != nil {
		return err.Error()
	}
	// The next state is drawn for the time the next script will run, or the points where decisions turn are missed.
	p.lag = (7*p.lag + max(50, min(1000, reply.Now-p.now))) / 8
	p.now = reply.Now
	return c.compare(reply, after, passed)
}

func (v parityValue) write(q redis.Pipeliner, t *testing.T, key string) {
	ctx := t.Context()
	switch v.kind {
	case "none":
		return
	case "string":
		q.Set(ctx, key, v.text, 0)
	case "hash":
		q.HSet(ctx, key, "level", "5")
	case "list":
		q.RPush(ctx, key, "5:6")
	case "set":
		q.SAdd(ctx, key, "5:6")
	case "zset":
		q.ZAdd(ctx, key, redis.Z{Score: 5, Member: "6"})
	}
	if v.ttl > 0 {
		q.PExpire(ctx, key, v.ttl)
	}
}

// compare says how the script's doing differs from the Go rules, "" if it does not.
func (c *parityCase) compare(reply lua.Reply, after []found, passed time.Duration) string {
	before := make([]algorithms.State, len(c.calls))
	readable := make([]bool, len(c.calls))
	c.allowed = true
	for i, call := range c.calls {
		if c.values[i].kind == "string" {
			before[i], readable[i] = lua.DecodeState(call.Rule, c.values[i].text, reply.Now)
		}
		if reply.Before[i] != before[i] {
			return fmt.Sprintf("key %d at %d: the script went by %+v, want %+v", i, reply.Now, reply.Before[i], before[i])
		}
		c.allowed = c.allowed && call.Rule.Verdict(call.Op, before[i], reply.Now, call.Cost).Allowed
	}
	if reply.Allowed != c.allowed {
		return fmt.Sprintf("at %d: the script said allowed %v", reply.Now, reply.Allowed)
	}
	healed := 0
	for i, call := range c.calls {
		want, ttl := c.values[i], c.values[i].ttl
		if c.writes(i, before[i], reply.Now) {
			next := call.Rule.Apply(call.Op, before[i], reply.Now, call.Cost, call.Window)
			want, ttl = parityValue{kind: "string", text: lua.EncodeState(call.Rule, next)}, call.Rule.Expiry(next, reply.Now)+c.extra
			if c.values[i].kind != "none" && !readable[i] {
				healed++
			}
		}
		if problem := after[i].differs(want, ttl, passed); problem != "" {
			return fmt.Sprintf("key %d at %d: %s", i, reply.Now, problem)
		}
	}
	if reply.Healed != healed {
		return fmt.Sprintf("at %d: the script healed %d, want %d", reply.Now, reply.Healed, healed)
	}
	return ""
}

// writes says whether the script has to write bucket i.
func (c *parityCase) writes(i int, before algorithms.State, now algorithms.Micros) bool {
	call := c.calls[i]
	switch call.Op {
	case algorithms.OpCharge:
		return true
	case algorithms.OpTake:
		return c.allowed || call.Rule.Counting() && !call.Rule.Fits(before, now, call.Cost)
	case algorithms.OpRefund:
		start, w := call.Rule.Advance(before, now).At, call.Rule.Window()
		gone := w > 0 && call.Window != 0 && call.Window != start &&
			(call.Window != start-w || call.Rule.Kind() == algorithms.FixedWindow)
		return c.allowed && before.Present && !gone
	}
	return false
}

func (f found) differs(want parityValue, ttl, passed time.Duration) string {
	if got := f.kind.Val(); got != want.kind {
		return fmt.Sprintf("holds a %s, want a %s", got, want.kind)
	}
	if got, _ := f.dump.Val().(string); want.kind == "string" && got != want.text {
		return fmt.Sprintf("holds %q, want %q", got, want.text)
	}
	left, _ := f.pttl.Val().(int64)
	switch got := time.Duration(left) * time.Millisecond; {
	case want.kind == "none":
	case ttl == 0 && left != -1:
		return fmt.Sprintf("expires in %v, want no expiry", got)
	case ttl != 0 && (got > ttl || got < ttl-passed):
		return fmt.Sprintf("expires in %v, want %v less at most %v", got, ttl, passed)
	}
	return ""
}
