package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// deniedWritesNothing: neither value nor expiry, also of buckets that would have been made.
func deniedWritesNothing(t *testing.T, store rls.Store, server Server) {
	tokens, hits, never := bucket(t, 10, 1), window(t, 10, time.Hour), full(t, 1)
	allows(t, store, true, take("tokens", tokens, 9), take("hits", hits, 9), take("never", never, 1))
	keys := []string{"tokens", "hits", "never"}
	type stored struct {
		value            string
		earliest, latest time.Time // that it can expire at
	}
	read := func(key string) stored {
		start := time.Now()
		value, ttl, ok := server.Read(t, key)
		if !ok {
			t.Fatalf("%s is gone", key)
		}
		return stored{value, start.Add(ttl), time.Now().Add(ttl)}
	}
	before := map[string]stored{}
	for _, key := range keys {
		before[key] = read(key)
	}
	// Long enough that an expiry set again would show.
	time.Sleep(100 * time.Millisecond)
	for i, denied := range []rls.Group{
		{take("tokens", tokens, 5)},
		{take("hits", hits, 5)},
		{take("never", never, 1)},
		{take("tokens", tokens, 1), take("hits", hits, 1), take("never", never, 1)},
		{take("fresh", tokens, 1), take("never", never, 1)},
		{take("fresh", tokens, 11)},
		{with(algorithms.OpPeek, take("never", never, 1)), with(algorithms.OpPeek, take("fresh", hits, 1))},
		{with(algorithms.OpRefund, take("hits", hits, 1)), with(algorithms.OpPeek, take("never", never, 1))},
	} {
		allows(t, store, false, denied...)
		for _, key := range keys {
			was, is := before[key], read(key)
			if is.value != was.value || is.earliest.Sub(was.latest) > 20*time.Millisecond {
				t.Fatalf("denied group %d: %s was %+v, is %+v", i, key, was, is)
			}
		}
	}
	allows(t, store, true, with(algorithms.OpPeek, take("fresh", tokens, 1)))
	allows(t, store, true, with(algorithms.OpRefund, take("fresh", tokens, 1)))
	if n := server.Keys(t); n != len(keys) {
		t.Fatalf("%d keys, want %d", n, len(keys))
	}
}

func everyKeyExpires(t *testing.T, store rls.Store, server Server) {
	for i, c := range []struct {
		take     rls.Take
		min, max time.Duration
	}{
		{take("tokens", bucket(t, 10, 1), 10), 9 * time.Second, 11 * time.Second},
		{take("hits", window(t, 10, time.Hour), 1), time.Hour - time.Second, 2*time.Hour + time.Second},
		{take("never", full(t, 10), 1), 365 * 24 * time.Hour, 366 * 24 * time.Hour},
		{with(algorithms.OpCharge, take("charged", bucket(t, 10, 1), 20)), 9 * time.Second, 11 * time.Second},
	} {
		ask(t, store, c.take)
		value, ttl, ok := server.Read(t, c.take.Key)
		if !ok || ttl < c.min || ttl > c.max {
			t.Errorf("case %d: %q lives for %v (found %v), want %v to %v", i, value, ttl, ok, c.min, c.max)
		}
		// One that lost its expiry gets it back at its next write, not at a denial.
		server.Write(t, c.take.Key, value, 0)
		allows(t, store, false, take(c.take.Key, c.take.Rule, 100))
		if _, ttl, _ := server.Read(t, c.take.Key); ttl >= 0 {
			t.Errorf("case %d: a denied take set an expiry of %v", i, ttl)
		}
		ask(t, store, with(algorithms.OpCharge, take(c.take.Key, c.take.Rule, 1)))
		if _, ttl, _ := server.Read(t, c.take.Key); ttl < c.min || ttl > c.max {
			t.Errorf("case %d: lives for %v after the next write, want %v to %v", i, ttl, c.min, c.max)
		}
	}
}

// unreadableValue: it reads as absent, the next admitted take overwrites it, and the answer says so. More shapes are
// drawn in the parity tests of the scripts.
func unreadableValue(t *testing.T, store rls.Store, server Server) {
	tokens, hits := bucket(t, 10, 1), window(t, 10, time.Hour)
	year3000 := time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	list := func(key string) { server.WriteList(t, key) }
	value := func(v string) func(string) {
		return func(key string) { server.Write(t, key, v, time.Hour) }
	}
	for i, c := range []struct {
		rule  algorithms.Rule
		write func(key string)
	}{
		{tokens, list},
		{tokens, value("foo")},
		{tokens, value("")},
		{tokens, value("5")},
		{tokens, value("abc:xyz")},
		{tokens, value(fmt.Sprintf("-5:%d", time.Now().UnixMicro()))},
		{tokens, value("1e30:1")},
		{tokens, value(fmt.Sprintf("0:%d", year3000))},
		{tokens, value("1:2:3600000000")}, // a window's
		{hits, list},
		{hits, value("foo")},
		{hits, value("1:2")},              // a bucket's
		{hits, value("1:2:3600000001")},   // off the grid
		{hits, value("4294967296:0:0")},   // more hits than fit
		{hits, value("9:9:3600000000:9")}, // a field too many
	} {
		key := fmt.Sprint("k", i)
		c.write(key)
		// A denied take and a peek leave it there.
		a := allows(t, store, false, take(key, c.rule, 11))
		if a.Before[0].Present || a.Healed != 0 {
			t.Errorf("case %d: denied take found %+v, healed %d", i, a.Before[0], a.Healed)
		}
		if a = allows(t, store, true, with(algorithms.OpPeek, take(key, c.rule, 10))); a.Healed != 0 {
			t.Errorf("case %d: a peek healed", i)
		}
		other := take(key+" beside", c.rule, 1)
		a = allows(t, store, true, other, take(key, c.rule, 4))
		if a.Before[1].Present || a.Healed != 1 {
			t.Errorf("case %d: admitted take found %+v, healed %d, want absent, 1", i, a.Before[1], a.Healed)
		}
		a = allows(t, store, true, take(key, c.rule, 4))
		if !a.Before[0].Present || a.Healed != 0 {
			t.Errorf("case %d: after healing found %+v, healed %d", i, a.Before[0], a.Healed)
		}
		if _, ttl, ok := server.Read(t, key); !ok || ttl <= 0 {
			t.Errorf("case %d: after healing lives for %v (found %v)", i, ttl, ok)
		}
	}
}

// outOfMemory: a write that the server refuses is a failure of the store and leaves nothing half done.
func outOfMemory(t *testing.T, store rls.Store, server Server) {
	tokens, hits, used := bucket(t, 10, 1), window(t, 10, time.Hour), full(t, 1)
	allows(t, store, true, take("tokens", tokens, 4), take("hits", hits, 4), take("used", used, 1))
	keys := []string{"tokens", "hits", "used"}
	var before []string
	for _, key := range keys {
		value, _, _ := server.Read(t, key)
		before = append(before, value)
	}
	server.SetFull(t, true)
	for i, group := range []rls.Group{
		{take("tokens", tokens, 1)},
		{take("hits", hits, 1)},
		{take("fresh", tokens, 1)},
		{take("fresh", hits, 1), take("tokens", tokens, 1), take("hits", hits, 1)},
		{with(algorithms.OpCharge, take("tokens", tokens, 20))},
	} {
		if a := decide(t, store, group)[0]; !errors.Is(a.Err, rls.ErrStore) {
			t.Errorf("group %d: got %+v, want ErrStore", i, a)
		}
	}
	server.SetFull(t, false)
	for i, key := range keys {
		if value, ttl, ok := server.Read(t, key); value != before[i] || !ok || ttl <= 0 {
			t.Errorf("%s was %q, is %q for %v", key, before[i], value, ttl)
		}
	}
	if n := server.Keys(t); n != len(keys) {
		t.Errorf("%d keys, want %d", n, len(keys))
	}
	allows(t, store, true, take("tokens", tokens, 1), take("hits", hits, 1), take("fresh", tokens, 1))
}

func frozenServer(t *testing.T, store rls.Store, server Server) {
	rule := full(t, 1000)
	allows(t, store, true, take("k", rule, 1))
	server.SetFrozen(t, true)
	defer server.SetFrozen(t, false)
	const callers, deadline, late = 20, 50 * time.Millisecond, 400 * time.Millisecond // a busy machine's pause is not ours
	concurrently(callers, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		start := time.Now()
		a := store.Decide(ctx, []rls.Group{{take("k", rule, 1)}})[0]
		if took := time.Since(start); took > late {
			t.Errorf("answered after %v with a deadline of %v", took, deadline)
		}
		if !errors.Is(a.Err, rls.ErrTimeout) && !errors.Is(a.Err, rls.ErrCircuitOpen) {
			t.Errorf("got %+v, want ErrTimeout or ErrCircuitOpen", a)
		}
	})
}
