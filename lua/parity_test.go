package lua_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
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

// TestParity draws states relative to the server's clock, writes them into keys, runs the production script on them, one
// group or several at once, and compares its reply, what it stored and the expiry it set with what the Go rules say at the time it replied.
func TestParity(t *testing.T) {
	t.Parallel()
	for _, script := range []struct {
		name   string
		stream uint64
		groups int // of one command, at most
		calls  func(d draw) []algorithms.Kind
	}{
		{"token_bucket", 1, 1, func(draw) []algorithms.Kind { return []algorithms.Kind{algorithms.TokenBucket} }},
		{"sliding_window", 2, 1, func(draw) []algorithms.Kind { return []algorithms.Kind{algorithms.SlidingWindow} }},
		{"fixed_window", 4, 1, func(draw) []algorithms.Kind { return []algorithms.Kind{algorithms.FixedWindow} }},
		{"group", 3, 1, func(d draw) []algorithms.Kind { return d.kinds(6) }},
		{"groups", 5, 8, func(d draw) []algorithms.Kind { return d.kinds(3) }},
	} {
		t.Run(script.name, func(t *testing.T) {
			t.Parallel()
			checks, seed := parityChecks(t), paritySeed(t)
			eachServer(t, func(t *testing.T, s *server) {
				d := newDraw(seed, script.stream)
				p := parity{server: s, lag: 150, now: s.now(t)}
				mismatches, groups, denied := 0, 0, 0
				for i := range checks {
					batch := p.batch(d, i, script.groups, script.calls)
					if problem := p.check(t, batch); problem != "" {
						mismatches++
						t.Errorf("case %d: %s\n%s", i, problem, batch)
					}
					for _, c := range batch {
						groups++
						if !c.allowed {
							denied++
						}
					}
					if mismatches == 10 {
						t.Fatal("giving up after 10 mismatches")
					}
				}
				t.Logf("%s: %s %s, PARITY_SEED=%d: %d cases, %d denied (%d %%), %d mismatches",
					script.name, s.Kind(), s.Version(), seed, groups, denied, 100*denied/groups, mismatches)
				if 100*denied < 30*groups {
					t.Errorf("%d of %d cases denied, want at least 30 %%", denied, groups)
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
	allowed bool          // by the Go rules
	extra   time.Duration // how much longer it is to live
}

type parityValue struct {
	kind string        // none, string or another type's name
	text string        // of a string
	ttl  time.Duration // 0: none
}

func (c *parityCase) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "allowed %v, extra %v", c.allowed, c.extra)
	for i, call := range c.calls {
		fmt.Fprintf(&text, "\n  %+v on %s %q ttl %v", call, c.values[i].kind, c.values[i].text, c.values[i].ttl)
	}
	return text.String()
}

func (p *parity) draw(d draw, name string, kinds []algorithms.Kind) (c parityCase) {
	now := p.now + p.lag
	// A group of many is denied by one of them: most of its members fit easily, or nothing would ever be written.
	easy := len(kinds) > 1 && d.chance(60)
	for i, kind := range kinds {
		r := d.rule(kind)
		call := lua.Call{Key: fmt.Sprintf("sentinel:v1:{%s}:%d", name, i), Rule: r, Op: d.op(), Cost: d.cost(r)}
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

// kinds draws the kinds of a group of up to most buckets.
func (d draw) kinds(most int) []algorithms.Kind {
	kinds := make([]algorithms.Kind, 1+d.IntN(most))
	for i := range kinds {
		kinds[i] = algorithms.TokenBucket + algorithms.Kind(d.IntN(3))
	}
	return kinds
}

// parityBatch is what one command decides.
type parityBatch []*parityCase

func (b parityBatch) String() string {
	var text strings.Builder
	for i, c := range b {
		fmt.Fprintf(&text, "group %d: %s\n", i, c)
	}
	return text.String()
}

// batch draws a command of up to most groups. Some are like the one before but for the keys and what they hold.
func (p *parity) batch(d draw, n, most int, kinds func(d draw) []algorithms.Kind) parityBatch {
	var b parityBatch
	for i := range 1 + d.IntN(most) {
		if i > 0 && d.chance(50) {
			b = append(b, p.like(d, b[i-1], n, i))
		} else {
			c := p.draw(d, fmt.Sprintf("%d:%d", n, i), kinds(d))
			b = append(b, &c)
		}
		if i > 0 && d.chance(50) {
			b[i].share(d, b[d.IntN(i)])
		}
	}
	return b
}

// share has c ask about a key of another case of its batch, which comes before.
func (c *parityCase) share(d draw, other *parityCase) {
	key := other.calls[d.IntN(len(other.calls))].Key
	if !slices.ContainsFunc(c.calls, func(call lua.Call) bool { return call.Key == key }) {
		c.calls[d.IntN(len(c.calls))].Key = key
	}
}

// like draws a case that differs from c in its keys and their values.
func (p *parity) like(d draw, c *parityCase, n, i int) *parityCase {
	another := &parityCase{}
	for j, call := range c.calls {
		call.Key = fmt.Sprintf("sentinel:v1:{%d:%d}:%d", n, i, j)
		v := parityValue{}
		v.kind, v.text = d.value(call.Rule, p.now+p.lag, call.Cost)
		another.calls, another.values = append(another.calls, call), append(another.values, v)
	}
	return another
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

// check plays a batch in one round trip and returns what differs from the Go rules.
func (p *parity) check(t *testing.T, batch parityBatch) string {
	ctx := t.Context()
	var run *redis.Cmd
	groups, held, after := make([][]lua.Call, len(batch)), make(map[string]parityValue), make(map[string]found)
	for i, c := range batch {
		groups[i] = c.calls
	}
	jitter := time.Duration(rand.IntN(2)) * 10 * time.Minute
	command, err := lua.NewEncoder(jitter).AppendCommand(nil, groups...)
	if err != nil {
		return err.Error()
	}
	if ms, ok := command[extraAt(groups...)].(int64); ok {
		for _, c := range batch {
			c.extra = time.Duration(ms) * time.Millisecond
		}
	}
	began := time.Now()
	_, _ = p.client.Pipelined(ctx, func(q redis.Pipeliner) error { // errors are looked at one by one
		for _, c := range batch {
			for i, call := range c.calls {
				if _, ok := held[call.Key]; !ok {
					held[call.Key] = c.values[i]
					c.values[i].write(q, t, call.Key)
				}
			}
		}
		run = q.Do(ctx, command...)
		for key := range held {
			after[key] = found{q.Type(ctx, key), q.Do(ctx, "GET", key), q.Do(ctx, "PTTL", key)}
			q.Del(ctx, key)
		}
		return nil
	})
	passed := time.Since(began) + time.Millisecond // PTTL rounds
	if err := run.Err(); err != nil {
		return fmt.Sprintf("the script failed: %v", err)
	}
	replies, err := lua.Decode(run.Val(), groups...)
	if err != nil {
		return err.Error()
	}
	// The next state is drawn for the time the next script will run, or the points where decisions turn are missed.
	now := replies[0].Now
	p.lag = (7*p.lag + max(50, min(1000, now-p.now))) / 8
	p.now = now
	for i, c := range batch {
		if problem := c.compare(replies[i], held); problem != "" {
			return fmt.Sprintf("group %d: %s", i, problem)
		}
	}
	for key, want := range held {
		if problem := after[key].differs(want, want.ttl, passed); problem != "" {
			return fmt.Sprintf("key %s at %d: %s", key, now, problem)
		}
	}
	return ""
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

// compare says how the script's reply differs from the Go rules, "" if it does not, and puts what has been written into held,
// which has by key what the group found.
func (c *parityCase) compare(reply lua.Reply, held map[string]parityValue) string {
	before := make([]algorithms.State, len(c.calls))
	readable := make([]bool, len(c.calls))
	c.allowed = true
	for i, call := range c.calls {
		if v := held[call.Key]; v.kind == "string" {
			before[i], readable[i] = lua.DecodeState(call.Rule, v.text, reply.Now)
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
		if !c.writes(i, before[i], reply.Now) {
			continue
		}
		if held[call.Key].kind != "none" && !readable[i] {
			healed++
		}
		next := call.Rule.Apply(call.Op, before[i], reply.Now, call.Cost, call.Window)
		ttl := call.Rule.Expiry(next, reply.Now) + c.extra
		held[call.Key] = parityValue{kind: "string", text: lua.EncodeState(call.Rule, next), ttl: ttl}
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
