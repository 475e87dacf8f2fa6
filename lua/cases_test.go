package lua_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

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

func window(t testing.TB, limit int64, window time.Duration) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewSlidingWindow(limit, window)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func take(key string, rule algorithms.Rule, cost int64) lua.Call {
	return lua.Call{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: cost}
}

// Lua's own conversions keep 14 digits: a stored time of 16 would lose its last two.
func TestLUA_01_all_digits_are_stored(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		largest := bucket(t, algorithms.MaxCapacity, 0, 0)
		reply := s.decide(t, take("tb", largest, 1))
		if got, want := s.get(t, "tb"), fmt.Sprintf("4503599626000000:%d", reply.Now); got != want {
			t.Errorf("token bucket: stored %q, want %q", got, want)
		}
		reply = s.decide(t, lua.Call{Key: "sw", Rule: window(t, algorithms.MaxLimit, time.Millisecond), Op: algorithms.OpCharge, Cost: 1 << 40})
		if got, want := s.get(t, "sw"), fmt.Sprintf("4294967295:0:%d", reply.Now-reply.Now%1000); got != want {
			t.Errorf("sliding window: stored %q, want %q", got, want)
		}
	})
}

// A product of 2^54 must not round: 19 999 999 µs at 1 000 000 001 µtok/s are 19 999 999 019 µtok, doubles give …020.
func TestLUA_02_products_do_not_round(t *testing.T) {
	t.Parallel()
	rule := bucket(t, 20_001, 1_000_000_001, 1_000_000)
	const now = 1_796_035_863_000_000
	before := algorithms.State{Present: true, At: now - 19_999_999}
	if got := rule.Advance(before, now).Level; got != 19_999_999_019 {
		t.Errorf("the rule refills %d µtok, want 19999999019", got)
	}
	eachServer(t, func(t *testing.T, s *server) {
		shift, reply, stored := s.atInstant(t, take("k", rule, 1), before, now)
		if want := fmt.Sprintf("%d:%d", 19_999_999_019-1_000_000, now+shift); !reply.Allowed || stored != want {
			t.Errorf("stored %q, want %q", stored, want)
		}
		year := algorithms.Micros((365 * 24 * time.Hour).Microseconds())
		fast := bucket(t, algorithms.MaxCapacity, 1_000_000_000, 1)
		idle := algorithms.State{Present: true, At: s.now(t) - year}
		s.do(t, "SET", "idle", lua.EncodeState(fast, idle))
		reply = s.decide(t, take("idle", fast, 1))
		if got, want := s.get(t, "idle"), fmt.Sprintf("4503599626000000:%d", reply.Now); got != want {
			t.Errorf("a year idle: stored %q, want full less one, %q", got, want)
		}
	})
}

// ops are one call of every kind of decision, on keys that start with prefix.
func ops(t testing.TB, prefix string) []lua.Call {
	var calls []lua.Call
	for _, rule := range []algorithms.Rule{
		bucket(t, 3, 1, 3600), bucket(t, 3, 0, 0), window(t, 3, time.Minute), window(t, 3, algorithms.MaxWindow),
	} {
		for _, op := range []algorithms.Op{algorithms.OpTake, algorithms.OpCharge, algorithms.OpPeek, algorithms.OpRefund} {
			for _, cost := range []int64{1, 3, 4} {
				key := fmt.Sprintf("%s:%v:%d:%d", prefix, rule.Kind(), len(calls), cost)
				calls = append(calls, lua.Call{Key: key, Rule: rule, Op: op, Cost: cost})
			}
		}
	}
	return calls
}

func (s *server) wantEveryKeyExpires(t *testing.T) {
	t.Helper()
	keys, err := s.client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) == 0 {
		t.Error("no keys: nothing was looked at")
	}
	for _, key := range keys {
		if ttl := s.pttl(t, key); ttl <= 0 {
			t.Errorf("%s: PTTL %d, want more than 0", key, ttl)
		}
	}
}

func TestLUA_05_every_key_expires(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for range 2 { // absent keys, then present ones
			for _, call := range ops(t, "each") {
				s.decide(t, call)
			}
			s.decide(t, ops(t, "group")...)
		}
		s.wantEveryKeyExpires(t)

		rule := bucket(t, 3, 1, 3600)
		for _, value := range []string{lua.EncodeState(rule, algorithms.State{Present: true, Level: 2_000_000, At: s.now(t)}), "foo"} {
			s.do(t, "SET", "immortal", value)
			if reply := s.decide(t, take("immortal", rule, 1)); !reply.Allowed {
				t.Fatal("the take was denied")
			}
			if ttl := s.pttl(t, "immortal"); ttl <= 0 {
				t.Errorf("%q without expiry: after a take PTTL %d, want more than 0", value, ttl)
			}
		}
	})
	// Value and expiry are one command, so no crash can come between them: kill a server that logs every write.
	for _, kind := range testserver.Kinds() {
		t.Run("crash/"+string(kind), func(t *testing.T) {
			t.Parallel()
			crashing := testserver.Start(t, kind, testserver.OnSocket(), testserver.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
			s := connect(t, crashing)
			commands := make([][]any, 1000)
			for i := range commands {
				commands[i] = s.command(t, ops(t, fmt.Sprint("crash", i))...)
			}
			written := make(chan struct{}, 1_000_000)
			go func() {
				defer close(written)
				for i := 0; s.client.Do(t.Context(), commands[i%len(commands)]...).Err() == nil; i++ {
					written <- struct{}{}
				}
			}()
			for range 10 {
				if _, ok := <-written; !ok {
					t.Fatal("the server answered no ten commands")
				}
			}
			crashing.Kill()
			for range written { // until the writer has met the dead server
			}
			if err := crashing.Restart(); err != nil {
				t.Fatal(err)
			}
			// A new client: the old one may answer with the refusal it met while the server was away.
			connect(t, crashing).wantEveryKeyExpires(t)
		})
	}
}

// Too short an expiry resets a bucket early, too long a one fills memory.
func TestLUA_06_expiry_covers_what_is_remembered(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		between := func(what string, lo, hi time.Duration) {
			t.Helper()
			if got := time.Duration(s.pttl(t, what)) * time.Millisecond; got < lo || got > hi {
				t.Errorf("%s: expires in %v, want %v to %v", what, got, lo, hi)
			}
		}
		const slow = 10 * time.Second // a test machine may be
		hourly := bucket(t, 10, 1, 3600)
		for range 10 {
			s.decide(t, take("hourly", hourly, 1))
		}
		between("hourly", 36_000*time.Second-slow, 36_001*time.Second)

		never := bucket(t, 10, 0, 0)
		s.decide(t, take("never", never, 1))
		between("never", 366*24*time.Hour-slow, 366*24*time.Hour)

		reply := s.decide(t, take("minute", window(t, 10, time.Minute), 1))
		left := time.Minute - (reply.Now % 60_000_000).Duration()
		between("minute", left+time.Minute+time.Second-slow, left+time.Minute+time.Second+time.Millisecond)

		// The fastest: PX 0 would be an error, and PEXPIRE 0 delete.
		reply = s.decide(t, take("fast", bucket(t, 1, algorithms.MaxRate, 1), 1))
		if !reply.Allowed {
			t.Error("fast: the take was denied")
		}
		between("fast", time.Millisecond, time.Second+time.Millisecond)
	})
}

// Limit N, one at a time and all at once: exactly N pass.
func TestLUA_14_exactly_the_limit_passes(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		many := redis.NewClient(&redis.Options{Network: s.Network(), Addr: s.Addr(), MaxRetries: -1, PoolSize: 20, PoolTimeout: time.Minute})
		defer many.Close()
		for _, n := range []int64{1, 10, 100} {
			for _, rule := range []algorithms.Rule{bucket(t, n, 0, 0), window(t, n, algorithms.MaxWindow)} {
				call := take(fmt.Sprintf("one:%v:%d", rule.Kind(), n), rule, 1)
				allowed := int64(0)
				for range n + 20 {
					if s.decide(t, call).Allowed {
						allowed++
					}
				}
				if allowed != n {
					t.Errorf("%v, limit %d, one at a time: %d passed", rule.Kind(), n, allowed)
				}

				call.Key = fmt.Sprintf("many:%v:%d", rule.Kind(), n)
				args := s.command(t, call)
				passed := make(chan bool, 200)
				var callers sync.WaitGroup
				for range cap(passed) {
					callers.Go(func() {
						raw, err := many.Do(t.Context(), args...).Result()
						if err != nil {
							t.Error(err)
							return
						}
						reply, err := decodeOne(raw, []lua.Call{call})
						if err != nil {
							t.Error(err)
							return
						}
						passed <- reply.Allowed
					})
				}
				callers.Wait()
				close(passed)
				allowed = 0
				for ok := range passed {
					if ok {
						allowed++
					}
				}
				if allowed != n {
					t.Errorf("%v, limit %d, 200 at once: %d passed", rule.Kind(), n, allowed)
				}
			}
		}
	})
}

// A limit of 1 admits one: the weighted estimate must not round up to deny it.
func TestLUA_15_limit_of_one_admits_the_first(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		call := take("k", window(t, 1, algorithms.MaxWindow), 1)
		if !s.decide(t, call).Allowed {
			t.Error("the first take was denied")
		}
		if s.decide(t, call).Allowed {
			t.Error("the second take was admitted")
		}
	})
}

// A denied attempt changes nothing: not the value, not its expiry, not even the time of an idle key.
func TestLUA_17_denials_change_nothing(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		tb, sw := bucket(t, 10, 1, 3600), window(t, 10, time.Hour)
		now := s.now(t)
		values := map[string]string{
			"tb": lua.EncodeState(tb, algorithms.State{Present: true, Level: 5_000_000, At: now - 1_000}),
			"sw": lua.EncodeState(sw, algorithms.State{Present: true, Level: 5, Previous: 4_000, At: now - now%3_600_000_000}),
		}
		for key, value := range values {
			s.do(t, "SET", key, value, "PX", 5_000_000)
		}
		s.do(t, "SET", "immortal", values["tb"])
		for range 20 {
			for _, group := range [][]lua.Call{
				{take("tb", tb, 6)},
				{take("sw", sw, 6)},
				{take("immortal", tb, 6)},
				{take("absent", tb, 11)},
				{take("tb", tb, 1), take("sw", sw, 6), take("absent", tb, 1)}, // one denies, nobody spends
				{{Key: "tb", Rule: tb, Op: algorithms.OpRefund, Cost: 1}, take("sw", sw, 6)},
				{take("tb", tb, 1), {Key: "sw", Rule: sw, Op: algorithms.OpPeek, Cost: 6}},
			} {
				if s.decide(t, group...).Allowed {
					t.Fatalf("%+v: admitted", group)
				}
			}
		}
		for key, value := range values {
			if got := s.get(t, key); got != value {
				t.Errorf("%s went from %q to %q", key, value, got)
			}
			if ttl := s.pttl(t, key); ttl > 5_000_000 || ttl < 4_900_000 {
				t.Errorf("%s: PTTL %d, want what was left of 5000000", key, ttl)
			}
		}
		if got, ttl := s.get(t, "immortal"), s.pttl(t, "immortal"); got != values["tb"] || ttl != -1 {
			t.Errorf("immortal: %q, PTTL %d, want it as it was, without expiry", got, ttl)
		}
		if got := s.do(t, "EXISTS", "absent"); got != int64(0) {
			t.Error("absent was written")
		}
	})
}

// TIME before a write, in a script, needs replication by effects: on by itself in every version that is supported.
func TestLUA_20_time_before_write(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		before := s.now(t)
		reply := s.decide(t, take("k", bucket(t, 2, 1, 1), 1))
		if !reply.Allowed || reply.Now < before || reply.Now > s.now(t) {
			t.Errorf("%s %s: allowed %v at %d, want an admission at the server's time", s.Kind(), s.Version(), reply.Allowed, reply.Now)
		}
	})
}

// A key that holds another type, or text, reads as absent; a denial leaves it, an admitted take overwrites it.
func TestLUA_21_foreign_values_heal(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for _, rule := range []algorithms.Rule{bucket(t, 3, 1, 3600), window(t, 3, time.Hour)} {
			for _, foreign := range [][]any{
				{"SET", "k", "foo"},
				{"SET", "k", strings.Repeat("9", 1<<20)},
				{"HSET", "k", "tokens", "3"},
				{"RPUSH", "k", "1"},
				{"SADD", "k", "1"},
				{"ZADD", "k", 1, "1"},
				{"XADD", "k", "*", "a", "b"},
				{"SETBIT", "k", 7, 1},
			} {
				s.do(t, "DEL", "k", "k2")
				s.do(t, foreign...)
				kind := s.do(t, "TYPE", "k")
				if reply := s.decide(t, take("k", rule, 4)); reply.Allowed || reply.Healed != 0 || reply.Before[0].Present {
					t.Errorf("%v %v, a take that cannot fit: %+v, want a denial, absent, nothing healed", rule.Kind(), foreign[0], reply)
				}
				if reply := s.decide(t, lua.Call{Key: "k", Rule: rule, Op: algorithms.OpRefund, Cost: 1}); reply.Healed != 0 {
					t.Errorf("%v %v, a refund: %+v, want nothing healed", rule.Kind(), foreign[0], reply)
				}
				if got := s.do(t, "TYPE", "k"); got != kind {
					t.Errorf("%v %v: a denial and a refund left a %v", rule.Kind(), foreign[0], got)
				}
				reply := s.decide(t, take("k", rule, 1), take("k2", rule, 1))
				if !reply.Allowed || reply.Healed != 1 || reply.Before[0].Present {
					t.Errorf("%v %v, a take: %+v, want admitted, absent, one healed", rule.Kind(), foreign[0], reply)
				}
				if reply := s.decide(t, take("k", rule, 1)); !reply.Allowed || reply.Healed != 0 || !reply.Before[0].Present {
					t.Errorf("%v %v, the next take: %+v, want admitted, present, nothing healed", rule.Kind(), foreign[0], reply)
				}
			}
		}
	})
}

func TestLUA_22_corrupt_values_read_as_absent(t *testing.T) {
	t.Parallel()
	const year3000 = 32_503_680_000_000_000
	eachServer(t, func(t *testing.T, s *server) {
		tb, sw := bucket(t, 3, 1, 3600), window(t, 3, time.Hour)
		now := s.now(t)
		start := now - now%sw.Window()
		for _, c := range []struct {
			rule  algorithms.Rule
			value string
		}{
			{tb, "abc:xyz"},
			{tb, fmt.Sprintf("-5:%d", now)},
			{tb, fmt.Sprintf("1e30:%d", now)},
			{tb, fmt.Sprintf("0:%d", year3000)},
			{tb, "0"},
			{tb, "0:"},
			{tb, fmt.Sprintf("0:0:%d", start)},
			{tb, fmt.Sprintf("0:%d", now+3_700_000_000)},
			{tb, fmt.Sprintf("4503599627000001:%d", now)},
			{tb, fmt.Sprintf("nan:%d", now)},
			{sw, "abc:xyz:0"},
			{sw, fmt.Sprintf("-5:0:%d", start)},
			{sw, fmt.Sprintf("1e30:0:%d", start)},
			{sw, fmt.Sprintf("3:3:%d", year3000)},
			{sw, fmt.Sprintf("3:%d", start)},
			{sw, fmt.Sprintf("3:3:%d", start+1)},
			{sw, fmt.Sprintf("3:3:%d", start+2*sw.Window())},
			{sw, fmt.Sprintf("4294967296:0:%d", start)},
		} {
			s.do(t, "SET", "k", c.value)
			reply := s.decide(t, take("k", c.rule, 3))
			if !reply.Allowed || reply.Healed != 1 || reply.Before[0].Present {
				t.Errorf("%v %q: %+v, want absent, so admitted and healed", c.rule.Kind(), c.value, reply)
			}
		}

		// Less than an hour ahead is a clock that stepped back: kept, and no refill until that time.
		ahead := algorithms.State{Present: true, Level: 1_000_000, At: now + 3_500_000_000}
		s.do(t, "SET", "k", lua.EncodeState(tb, ahead))
		reply := s.decide(t, take("k", tb, 1))
		if !reply.Allowed || reply.Before[0] != ahead || s.get(t, "k") != fmt.Sprintf("0:%d", ahead.At) {
			t.Errorf("58 minutes ahead: %+v, stored %q; want an admission that keeps the time", reply, s.get(t, "k"))
		}
		if reply := s.decide(t, take("k", tb, 1)); reply.Allowed || reply.Before[0].Level != 0 {
			t.Errorf("58 minutes ahead: %+v, want a denial, no refill", reply)
		}
	})
}

// A full server refuses the first write, so nothing is half written, and what it says surfaces.
func TestLUA_23_full_server_leaves_no_half_state(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		tb, sw := bucket(t, 3, 1, 3600), window(t, 3, time.Hour)
		s.decide(t, take("tb", tb, 1), take("sw", sw, 1))
		before := []string{s.get(t, "tb"), s.get(t, "sw")}
		s.do(t, "HSET", "foreign", "a", "b")

		s.do(t, "CONFIG", "SET", "maxmemory", 1)
		for _, calls := range [][]lua.Call{
			{take("tb", tb, 1)},
			{take("fresh", tb, 1)},
			{take("fresh", sw, 1), take("tb", tb, 1)},
			{take("sw", sw, 1), take("tb", tb, 1)},
			{take("foreign", tb, 1)},
			{{Key: "tb", Rule: tb, Op: algorithms.OpCharge, Cost: 1}},
		} {
			if reply := s.decide(t, calls...); !strings.HasPrefix(reply.Refused, "OOM ") || reply.Allowed || reply.Healed > 0 {
				t.Errorf("%+v on a full server: %+v, want its OOM error", calls, reply)
			}
		}
		// Who asks for more than there is has an answer, also in a command with those who do not.
		groups := [][]lua.Call{{take("tb", tb, 1)}, {take("sw", sw, 4)}, {take("fresh", tb, 1), take("foreign", tb, 1)}, {take("new", tb, 4)}}
		command, err := s.encoder.AppendCommand(nil, groups...)
		if err != nil {
			t.Fatal(err)
		}
		replies, err := lua.Decode(s.do(t, command...), groups...)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range replies {
			if refused := i%2 == 0; r.Allowed || refused != strings.HasPrefix(r.Refused, "OOM ") || !refused && r.Refused != "" {
				t.Errorf("group %d of %v: %+v", i, groups, r)
			}
		}
		if reply := s.decide(t, take("tb", tb, 4)); reply.Allowed {
			t.Error("a denial needs no memory and must be answered; it was admitted")
		}
		if got := []string{s.get(t, "tb"), s.get(t, "sw")}; got[0] != before[0] || got[1] != before[1] {
			t.Errorf("values went from %q to %q", before, got)
		}
		if n := s.do(t, "DBSIZE"); n != int64(3) {
			t.Errorf("%v keys, want the 3 from before", n)
		}
		s.do(t, "CONFIG", "SET", "maxmemory", 0)
		if reply := s.decide(t, take("tb", tb, 1), take("foreign", tb, 1)); !reply.Allowed || reply.Healed != 1 {
			t.Errorf("with memory again: %+v, want an admission that heals", reply)
		}
	})
}

// Charges are recorded whatever else denies; refunds are paid only when nothing does, and never create a key.
func TestGroupSemantics(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		rule := bucket(t, 10, 0, 0)
		level := func(key string) string { text, _, _ := strings.Cut(s.get(t, key), ":"); return text }
		call := func(key string, op algorithms.Op, cost int64) lua.Call {
			return lua.Call{Key: key, Rule: rule, Op: op, Cost: cost}
		}
		reset := func() {
			for _, key := range []string{"a", "b", "c", "d"} {
				s.do(t, "SET", key, lua.EncodeState(rule, algorithms.State{Present: true, Level: 5_000_000, At: s.now(t)}))
			}
			s.do(t, "DEL", "absent")
		}
		const tk, ch, pk, rf = algorithms.OpTake, algorithms.OpCharge, algorithms.OpPeek, algorithms.OpRefund
		for _, c := range []struct {
			what       string
			group      []lua.Call
			allowed    bool
			a, b, c, d string
		}{
			{"all fit", []lua.Call{call("a", tk, 5), call("b", ch, 2), call("c", pk, 5), call("d", rf, 3)}, true, "0", "3000000", "5000000", "8000000"},
			{"a take denies", []lua.Call{call("a", tk, 6), call("b", ch, 2), call("c", tk, 1), call("d", rf, 3)}, false, "5000000", "3000000", "5000000", "5000000"},
			{"a peek denies", []lua.Call{call("a", tk, 1), call("b", ch, 2), call("c", pk, 6), call("d", rf, 3)}, false, "5000000", "3000000", "5000000", "5000000"},
			{"a charge denies", []lua.Call{call("a", tk, 1), call("b", ch, 6), call("c", ch, 1), call("d", rf, 3)}, false, "5000000", "0", "4000000", "5000000"},
			{"refunds alone fit", []lua.Call{call("a", rf, 1), call("b", rf, 99), call("absent", rf, 1)}, true, "6000000", "10000000", "5000000", "5000000"},
		} {
			reset()
			reply := s.decide(t, c.group...)
			if got, want := []string{level("a"), level("b"), level("c"), level("d")}, []string{c.a, c.b, c.c, c.d}; reply.Allowed != c.allowed || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: allowed %v, levels %v; want %v, %v", c.what, reply.Allowed, got, c.allowed, want)
			}
			if s.get(t, "absent") != "" {
				t.Errorf("%s: a refund created a key", c.what)
			}
		}
	})
}

// The largest group that a command may have still runs: Lua can unpack its keys.
func TestLargestGroup(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		rule := bucket(t, 10, 0, 0)
		calls := make([]lua.Call, lua.MaxCalls)
		for i := range calls {
			calls[i] = take(fmt.Sprint("k", i), rule, 1)
		}
		if reply := s.decide(t, calls...); !reply.Allowed || len(reply.Before) != lua.MaxCalls {
			t.Errorf("allowed %v with %d states, want an admission of %d", reply.Allowed, len(reply.Before), lua.MaxCalls)
		}
		if n := s.do(t, "DBSIZE"); n != int64(lua.MaxCalls) {
			t.Errorf("%v keys, want %d", n, lua.MaxCalls)
		}
	})
}
