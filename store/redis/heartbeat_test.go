package redis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

const beat = 50 * time.Millisecond

func beating(url string, seen *observer) redis.Config {
	return redis.Config{
		URL: url, Budget: plenty, Observer: seen, HeartbeatKey: redis.DefaultHeartbeatKey, HeartbeatEvery: beat,
		ProbeEvery: beat, Breaker: rls.BreakerConfig{Quarantine: 100 * time.Millisecond},
	}
}

// TestProcesses: each process learns how many there are, at once when they become more, in a while when they become fewer.
// The last number stays when the server goes.
func TestProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen [3]observer
		var stops []func()
		for i := range seen {
			_, stop := start(t, beating(server.URL(), &seen[i]))
			stops = append(stops, stop)
			defer stop()
		}
		for i := range seen {
			eventually(t, "three are seen", func() bool { return seen[i].processes.Load() == 3 })
		}
		stops[0]() // it leaves
		client := raw(t, server)
		eventually(t, "it is off the list", func() bool {
			return strings.Count(client.Get(t.Context(), redis.DefaultHeartbeatKey).Val(), "=") == 2
		})
		eventually(t, "two are seen", func() bool { return seen[1].processes.Load() == 2 && seen[2].processes.Load() == 2 })
		if ttl := client.PTTL(t.Context(), redis.DefaultHeartbeatKey).Val(); ttl < 365*24*time.Hour {
			t.Errorf("the list expires in %v", ttl)
		}
		server.Kill()
		time.Sleep(5 * beat)
		if n := seen[1].processes.Load(); n != 2 {
			t.Errorf("%d processes without a server, want the last number", n)
		}
		if n := seen[1].noted(string(redis.LostAll)) + seen[1].noted(string(redis.LostLast)); n > 0 {
			t.Errorf("%d losses", n)
		}
	})
}

// TestRF_24_lostState: a server that comes back with less is noticed before anything is decided on it, whichever way it
// lost what it had, and the store goes on.
func TestRF_24_lostState(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen observer
		store := open(t, beating(server.URL(), &seen))
		must(t, store.Probe(t.Context()))
		rule := never(t, 10)
		spend := func() {
			t.Helper()
			eventually(t, "an answer", func() bool { return decide(store, plenty, take("k", rule)).Err == nil })
		}
		client := raw(t, server)
		beats := func(n int) {
			t.Helper()
			for range n {
				before := client.Get(t.Context(), redis.DefaultHeartbeatKey).Val()
				eventually(t, "a heartbeat", func() bool {
					now := client.Get(t.Context(), redis.DefaultHeartbeatKey).Val()
					return now != "" && now != before
				})
			}
		}
		check := func(what string, want map[string]int) {
			t.Helper()
			for note, n := range want {
				if got := seen.noted(note); got != n {
					t.Errorf("%s: %s was noted %d times, want %d", what, note, got, n)
				}
			}
		}
		beats(2)
		spend()
		check("at first", map[string]int{"empty": 0, "older": 0, "run_id": 0})

		must(t, client.Save(t.Context()).Err())
		beats(2)
		server.Kill()
		must(t, server.Restart())
		if a := decide(store, plenty, take("k", rule)); a.Err == nil && seen.noted("older") == 0 {
			t.Error("decided before the loss was noticed")
		}
		spend()
		eventually(t, "the older state is noticed", func() bool { return seen.noted("older") == 1 && seen.noted("run_id") == 1 })
		check("restarted with old data", map[string]int{"empty": 0})
		beats(2)

		must(t, client.FlushAll(t.Context()).Err())
		eventually(t, "the flush is noticed", func() bool { return seen.noted("empty") == 1 })
		spend()
	})
}

// TestRestartedEmpty: every bucket is full again, which is what was asked for by a server without persistence, and it is
// told.
func TestRestartedEmpty(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen observer
		store := open(t, beating(server.URL(), &seen))
		must(t, store.Probe(t.Context()))
		rule := never(t, 3)
		eventually(t, "a heartbeat", func() bool { return seen.processes.Load() == 1 })
		admitted := 0
		for range 10 {
			if answers(t, store, take("k", rule)).Allowed {
				admitted++
			}
		}
		must(t, server.Restart())
		eventually(t, "it answers again", func() bool {
			a := decide(store, plenty, take("k", rule))
			if a.Err == nil && seen.noted("empty") == 0 {
				t.Error("decided before the loss was noticed")
			}
			if a.Allowed {
				admitted++
			}
			return a.Err == nil
		})
		for range 10 {
			if answers(t, store, take("k", rule)).Allowed {
				admitted++
			}
		}
		if admitted != 6 {
			t.Errorf("admitted %d, want one more burst of 3", admitted)
		}
		eventually(t, "the other process is noticed", func() bool { return seen.noted("run_id") == 1 })
		if n := seen.noted("empty"); n != 1 {
			t.Errorf("the loss was noted %d times", n)
		}
	})
}

// TestClockStepsBack: the list tells a time that the server has not reached.
func TestClockStepsBack(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen observer
		open(t, beating(server.URL(), &seen))
		eventually(t, "a heartbeat", func() bool { return seen.processes.Load() == 1 })
		client := raw(t, server)
		name, _, _ := strings.Cut(client.Get(t.Context(), redis.DefaultHeartbeatKey).Val(), " ")
		ahead := fmt.Sprintf("%s %d", name, time.Now().Add(time.Minute).UnixMicro())
		must(t, client.Set(t.Context(), redis.DefaultHeartbeatKey, ahead, 0).Err())
		eventually(t, "it is noticed", func() bool { return seen.noted("clock_back") > 0 })
		if seen.noted("empty")+seen.noted("older") > 0 {
			t.Error("a loss was noted")
		}
	})
}

// TestHeartbeatOfSentinelAndCluster: after a failover the list is on the new master, and a promoted replica is told.
func TestHeartbeatOfCluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartCluster(t, testserver.Valkey)
	var seen [2]observer
	for i := range seen {
		store := open(t, beating(c.URL(), &seen[i]))
		must(t, store.Probe(t.Context()))
	}
	for i := range seen {
		eventually(t, "two are seen", func() bool { return seen[i].processes.Load() == 2 })
	}
	lists := func() (n int) {
		for _, m := range c.Masters {
			keys, err := raw(t, m).Keys(t.Context(), "sentinel:f1:*").Result()
			must(t, err)
			n += len(keys)
		}
		return n
	}
	eventually(t, "each master keeps a list", func() bool { return lists() == 3 })
	must(t, raw(t, c.Masters[1]).FlushAll(t.Context()).Err())
	for i := range seen {
		eventually(t, "the loss of one is noticed", func() bool { return seen[i].noted("empty") > 0 })
		time.Sleep(5 * beat)
		if n := seen[i].noted("empty"); n != 1 {
			t.Errorf("%d losses were noticed", n)
		}
	}
	if seen[0].processes.Load() != 2 {
		t.Error("the number of processes was lost with one list")
	}
}
