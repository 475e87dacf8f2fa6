package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// all decides groups in one call.
func all(store *redis.Store, groups ...rls.Group) []rls.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), plenty)
	defer cancel()
	return store.Decide(ctx, groups)
}

// TestGroupsShareACommand: groups are decided by one run of the script, in order, also where they share keys, once the server
// has said that it is no cluster.
func TestGroupsShareACommand(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty})
		rule := never(t, 2)
		runs := func(groups ...rls.Group) (n int, allowed string) {
			before := calls(t, client, "evalsha")
			for i, a := range all(store, groups...) {
				if a.Err != nil {
					t.Fatalf("group %d: %v", i, a.Err)
				}
				allowed += map[bool]string{true: "y", false: "n"}[a.Allowed]
			}
			return calls(t, client, "evalsha") - before, allowed
		}
		different := []rls.Group{take("a", rule), append(take("b", rule), take("c", rule)...), take("d", rule)}
		if n, allowed := runs(different...); n < len(different) || allowed != "yyy" {
			t.Errorf("before it said so: %d runs, %s", n, allowed)
		}
		must(t, store.Probe(t.Context()))
		charge := func(op algorithms.Op, cost int64) rls.Group {
			return rls.Group{{Key: "l", Rule: rule, Op: op, Cost: cost}}
		}
		both := append(take("f", rule), take("spent", never(t, 1))...)
		for what, step := range map[string]struct {
			groups  []rls.Group
			allowed string
		}{
			"different keys":          {different, "yyy"},
			"one of a group is spent": {[]rls.Group{take("e", rule), both, both, take("f", rule), take("f", rule)}, "yynyn"},
			"one key":                 {[]rls.Group{take("g", rule), take("g", rule), take("g", rule)}, "yyn"},
			"keys that come back":     {[]rls.Group{take("h", rule), take("i", rule), append(take("h", rule), take("i", rule)...), take("h", rule)}, "yyyn"},
			"a key of two algorithms": {[]rls.Group{take("k", rule), take("k", hourly(t)), take("k", rule), take("k", rule), take("k", rule)}, "yyyyn"},
			"what is given back":      {[]rls.Group{charge(algorithms.OpCharge, 2), take("l", rule), charge(algorithms.OpRefund, 1), take("l", rule), take("l", rule)}, "ynyyn"},
		} {
			if n, allowed := runs(step.groups...); n != 1 || allowed != step.allowed {
				t.Errorf("%s: %d runs, %s; want 1, %s", what, n, allowed, step.allowed)
			}
		}
		if n, allowed := runs(append(different, different...)...); n != 1 || allowed != "nnnnnn" {
			t.Errorf("spent: %d runs, %s", n, allowed)
		}
	})
}

func hourly(t *testing.T) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewSlidingWindow(2, algorithms.MaxWindow)
	must(t, err)
	return rule
}

// TestManyCallersShareCommands: exactly what the buckets hold is admitted, however callers come together.
func TestManyCallersShareCommands(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty})
		must(t, store.Probe(t.Context()))
		const keys, capacity, callers, asks = 10, 30, 50, 20
		before := calls(t, client, "evalsha")
		rule := never(t, capacity)
		var mu sync.Mutex
		admitted := make(map[string]int)
		var running sync.WaitGroup
		for caller := range callers {
			running.Go(func() {
				for i := range asks {
					key := fmt.Sprint((caller*7 + i) % keys)
					a := decide(store, plenty, take(key, rule))
					if a.Err != nil {
						t.Error(a.Err)
					} else if a.Allowed {
						mu.Lock()
						admitted[key]++
						mu.Unlock()
					}
				}
			})
		}
		running.Wait()
		for key, n := range admitted {
			if n != capacity {
				t.Errorf("key %s: %d admitted, want %d", key, n, capacity)
			}
		}
		if n := calls(t, client, "evalsha") - before; len(admitted) != keys || n >= callers*asks {
			t.Errorf("%d keys, %d runs of the script for %d groups", len(admitted), n, callers*asks)
		}
	})
}

// TestNeighboursOfARefusedWrite: a server that may not write still says who is over the limit, also to those whose command is
// another's, too.
func TestNeighboursOfARefusedWrite(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty})
		must(t, store.Probe(t.Context()))
		rule := never(t, 1)
		answers(t, store, take("spent", rule))
		must(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
		peek := rls.Group{{Key: "fresh", Rule: rule, Op: algorithms.OpPeek, Cost: 1}}
		before := calls(t, client, "evalsha")
		got := all(store, take("spent", rule), take("a", rule), append(take("b", rule), take("c", rule)...), peek)
		if n := calls(t, client, "evalsha") - before; n != 1 {
			t.Errorf("%d runs of the script, want 1", n)
		}
		for i, a := range got {
			refused := i == 1 || i == 2
			switch {
			case refused && (!errors.Is(a.Err, rls.ErrStore) || !strings.Contains(a.Err.Error(), "OOM")):
				t.Errorf("group %d: got %+v, want OOM", i, a)
			case !refused && (a.Err != nil || a.Allowed != (i == 3)):
				t.Errorf("group %d: got %+v", i, a)
			}
		}
		must(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
		if n, err := client.Exists(t.Context(), "a", "b", "c").Result(); err != nil || n > 0 {
			t.Errorf("%d of the refused are there, %v", n, err)
		}
	})
}
