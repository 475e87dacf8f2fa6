package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// plenty is the deadline of calls that are to succeed.
const plenty = 5 * time.Second

// answers is the answer of a call that is to succeed, however busy the machine is.
func answers(t testing.TB, store *redis.Store, group rls.Group) rls.Answer {
	t.Helper()
	if budget, _ := budgets.Load(store); budget.(time.Duration) < time.Second {
		t.Errorf("a busy machine outlasts a budget of %v: a call that is to succeed needs a longer one", budget)
	}
	a := decide(store, plenty, group)
	must(t, a.Err)
	return a
}

// TestRF_12_and_RF_17_frozenServer: callers come back in time, the breaker sees round trips and not callers, one probe at a
// time asks whether the server is back, whoever gives up on it.
func TestRF_12_and_RF_17_frozenServer(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen observer
		var mu sync.Mutex
		var changes []string
		const quarantine = 300 * time.Millisecond
		store := open(t, redis.Config{URL: server.URL(), Observer: &seen, Breaker: rls.BreakerConfig{
			Quarantine: quarantine,
			OnChange: func(from, to string) {
				mu.Lock()
				defer mu.Unlock()
				changes = append(changes, from+" "+to)
			},
		}})
		group := take("k", never(t, 1_000_000))
		eventually(t, "a first answer within the budget", func() bool { return decide(store, plenty, group).Err == nil })
		failed := seen.failed.Load()

		must(t, server.Freeze())
		// 40 callers in a closed loop: many more calls fail than round trips.
		var timeouts, spared, open atomic.Int64
		var callers sync.WaitGroup
		for range 40 {
			callers.Go(func() {
				for range 1000 {
					a := decide(store, 20*time.Millisecond, group)
					switch {
					case errors.Is(a.Err, rls.ErrTimeout):
						timeouts.Add(1)
					case errors.Is(a.Err, rls.ErrUnavailable) && errors.Is(a.Err, redis.ErrNotSent):
						spared.Add(1) // from waiting for workers that ask a server which failed the last time
						time.Sleep(time.Millisecond)
					case errors.Is(a.Err, rls.ErrCircuitOpen):
						if !errors.Is(a.Err, redis.ErrNotSent) {
							t.Errorf("got %v, want ErrNotSent", a.Err)
						}
						open.Add(1)
						return
					default:
						t.Errorf("got %+v of a frozen server", a)
					}
				}
			})
		}
		callers.Wait()
		if trips := seen.failed.Load() - failed; trips < 5 || trips > 6 { // the sixth was under way on the other worker
			t.Errorf("the breaker opened after %d failed round trips, want 5", trips)
		}
		if open.Load() != 40 || timeouts.Load() < 5 || spared.Load() == 0 {
			t.Errorf("%d callers ended at the open breaker; %d calls timed out, %d were spared it",
				open.Load(), timeouts.Load(), spared.Load())
		}
		if !slices.Contains(store.Degraded(), redis.DegradedBreaker) || !slices.Contains(store.Degraded(), redis.DegradedDown) {
			t.Errorf("degraded: %v", store.Degraded())
		}

		// Half-open, and still frozen: one of 500 is the probe.
		time.Sleep(quarantine + 20*time.Millisecond)
		trips, groups, probes := seen.trips.Load(), seen.groups.Load(), atomic.Int64{}
		start := make(chan struct{})
		for range 500 {
			callers.Go(func() {
				<-start
				a := decide(store, 20*time.Millisecond, group)
				switch {
				case errors.Is(a.Err, redis.ErrNotSent): // the breaker refuses it, or this machine was too busy
				case errors.Is(a.Err, rls.ErrTimeout):
					probes.Add(1)
				default:
					t.Errorf("half-open: got %+v", a)
				}
			})
		}
		close(start)
		callers.Wait()
		eventually(t, "the probe ends", func() bool { return seen.trips.Load() == trips+1 })
		if sent := seen.groups.Load() - groups; probes.Load() != 1 || sent != 1 {
			t.Errorf("half-open: %d callers probed, %d calls were sent, want 1", probes.Load(), sent)
		}

		must(t, server.Thaw())
		eventually(t, "the breaker closes", func() bool {
			return decide(store, plenty, group).Err == nil && store.BreakerState() == "closed" && len(store.Degraded()) == 0
		})
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"closed open", "open half-open", "half-open open"}; !slices.Equal(changes[:min(3, len(changes))], want) {
			t.Errorf("the breaker went through %q, want %q first", changes, want)
		}
	})
}

// TestAbandonedCallIsNeverSent: the server counts what it ran.
func TestAbandonedCallIsNeverSent(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty, Workers: 1})
		rule := never(t, 1000)
		answers(t, store, take("k", rule))
		ran := calls(t, client, "evalsha")

		must(t, server.Freeze())
		// One call that waits occupies the worker.
		first := make(chan rls.Answer)
		go func() { first <- decide(store, plenty, take("k", rule)) }()
		time.Sleep(100 * time.Millisecond)

		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() {
				wait := 50 * time.Millisecond
				if i%2 == 0 {
					wait = plenty
				}
				ctx, cancel := context.WithTimeout(context.Background(), wait)
				defer cancel()
				time.AfterFunc(100*time.Millisecond, cancel) // who still waits hangs up
				a := store.Decide(ctx, []rls.Group{take("k", rule), take("l", rule)})
				for _, a := range a {
					if !errors.Is(a.Err, rls.ErrTimeout) || !errors.Is(a.Err, redis.ErrNotSent) {
						t.Errorf("got %+v, want ErrTimeout and ErrNotSent", a)
					}
				}
			})
		}
		callers.Wait()
		must(t, server.Thaw())
		if a := <-first; a.Err != nil || !a.Allowed {
			t.Errorf("the call that was sent got %+v", a)
		}
		a := answers(t, store, take("k", rule))
		if left := rule.Peek(a.Before[0], a.Now, 1).Remaining; left != 998 {
			t.Errorf("%d left, want 998: an abandoned call was sent", left)
		}
		if got := calls(t, client, "evalsha") - ran; got != 2 {
			t.Errorf("the server ran %d scripts, want 2", got)
		}
	})
}

// TestSentCallThatIsLate: the outcome is unknown, and that is what the error says.
func TestSentCallThatIsLate(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	var seen observer
	const budget = 4 * time.Second
	store := open(t, redis.Config{URL: server.URL(), Budget: budget, Observer: &seen})
	rule := never(t, 10)
	answers(t, store, take("k", rule))
	must(t, server.Freeze())
	start := time.Now()
	a := decide(store, 50*time.Millisecond, take("k", rule))
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v", took)
	}
	if !errors.Is(a.Err, rls.ErrTimeout) || errors.Is(a.Err, redis.ErrNotSent) {
		t.Errorf("got %v, want ErrTimeout without ErrNotSent", a.Err)
	}
	// When its last caller is gone, the worker does not wait for the whole budget.
	eventually(t, "the round trip is given up", func() bool { return seen.failed.Load() == 1 })
	if took := time.Since(start); took > budget*3/4 {
		t.Errorf("the round trip took %v", took)
	}

	// Without a deadline the budget holds.
	short := open(t, redis.Config{URL: server.URL(), Budget: 50 * time.Millisecond})
	start = time.Now()
	if a := short.Decide(context.Background(), []rls.Group{take("k", rule)})[0]; !errors.Is(a.Err, rls.ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", a.Err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v", took)
	}
}

// TestImpatientCallersOfHealthyServer: callers with less time left than a healthy server takes give up, and the breaker
// stays closed: the server answers within its budget.
func TestImpatientCallersOfHealthyServer(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	proxy, err := testserver.NewProxy(t.Context(), server.Addr())
	must(t, err)
	t.Cleanup(proxy.Close)
	var seen observer
	store := open(t, redis.Config{URL: "redis://" + proxy.Addr(), Budget: 2 * time.Second, Observer: &seen})
	rule := never(t, 100)
	answers(t, store, take("k", rule))
	proxy.SetDelay(func() time.Duration { return 100 * time.Millisecond })
	for range 2 * rls.DefaultFailures {
		if a := decide(store, 30*time.Millisecond, take("k", rule)); !errors.Is(a.Err, rls.ErrTimeout) {
			t.Fatalf("got %+v, want ErrTimeout", a)
		}
	}
	if failed := seen.failed.Load(); failed > 0 || store.BreakerState() != "closed" {
		t.Errorf("%d round trips to a healthy server failed, and the breaker is %s", failed, store.BreakerState())
	}
}

// TestQueueFull: who finds no place is told at once.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	var seen observer
	store := open(t, redis.Config{URL: server.URL(), Budget: plenty, Workers: 1, Queue: 3, Observer: &seen})
	rule := never(t, 10)
	answers(t, store, take("k", rule))
	must(t, server.Freeze())
	waiting := make(chan rls.Answer, 4)
	for i := range 4 { // one on the way, three in the queue
		go func() { waiting <- decide(store, plenty, take(fmt.Sprint("waits", i), rule)) }()
		time.Sleep(50 * time.Millisecond)
	}
	start := time.Now()
	a := decide(store, plenty, take("k", rule))
	if took := time.Since(start); took > plenty/2 {
		t.Errorf("took %v", took)
	}
	if !errors.Is(a.Err, rls.ErrUnavailable) || !errors.Is(a.Err, redis.ErrNotSent) || seen.queueFull.Load() != 1 {
		t.Errorf("got %v (%d seen), want ErrUnavailable and ErrNotSent", a.Err, seen.queueFull.Load())
	}
	must(t, server.Thaw())
	for range 4 {
		if a := <-waiting; a.Err != nil || !a.Allowed {
			t.Errorf("a call that waited got %+v", a)
		}
	}
	if seen.largest.Load() != 3 || store.BreakerState() != "closed" {
		t.Errorf("largest batch %d, want the 3 that waited; breaker %s", seen.largest.Load(), store.BreakerState())
	}
}

// TestKilledAndRestarted: refused at once, the breaker opens, and the store comes back with the server, which has
// forgotten the script.
func TestKilledAndRestarted(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen observer
		store := open(t, redis.Config{
			URL: server.URL(), Budget: time.Second, Observer: &seen,
			Breaker: rls.BreakerConfig{Quarantine: 100 * time.Millisecond},
		})
		rule := never(t, 10)
		answers(t, store, take("k", rule))
		if seen.loads.Load() != 1 || seen.connections.Load() != 1 {
			t.Errorf("%d loads, %d connections, want 1, 1", seen.loads.Load(), seen.connections.Load())
		}
		server.Kill()
		for i := range 5 {
			start := time.Now()
			a := decide(store, plenty, take("k", rule))
			if took := time.Since(start); !errors.Is(a.Err, rls.ErrUnavailable) || took > 500*time.Millisecond {
				t.Errorf("call %d: got %v after %v, want ErrUnavailable at once", i, a.Err, took)
			}
		}
		if a := decide(store, plenty, take("k", rule)); !errors.Is(a.Err, rls.ErrCircuitOpen) {
			t.Errorf("got %v, want ErrCircuitOpen", a.Err)
		}
		if seen.connections.Load() != 0 {
			t.Errorf("%d connections to a killed server", seen.connections.Load())
		}
		must(t, server.Restart())
		eventually(t, "the store comes back", func() bool {
			a := decide(store, plenty, take("k", rule))
			return a.Err == nil && a.Allowed && !a.Before[0].Present
		})
		if seen.loads.Load() != 2 || store.BreakerState() != "closed" {
			t.Errorf("%d script loads, want 2; breaker %s", seen.loads.Load(), store.BreakerState())
		}
		for what, want := range map[string]int{"fails: ": 1, "open: ": 1, "answers again": 1} {
			if got := seen.notedWith(what, "refused", "EOF", "reset", "broken pipe"); got != want {
				t.Errorf("%d times %q was told with a reason, want %d: %v", got, what, want, seen.notes)
			}
		}
	})
}

// TestRestartedBetweenCalls: a connection that the server closed while it idled costs no call.
func TestRestartedBetweenCalls(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	store := open(t, redis.Config{URL: server.URL(), Budget: plenty})
	rule := never(t, 10)
	for range 3 {
		if a := answers(t, store, take("k", rule)); a.Before[0].Present {
			t.Errorf("state %+v of a restarted server", a.Before[0])
		}
		must(t, server.Restart())
	}
}

// TestScriptFlushUnderLoad: a take that the server refused as unknown was not run, so it is tried again, and nothing is
// taken twice.
func TestScriptFlushUnderLoad(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		var seen observer
		client := raw(t, server)
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty, Observer: &seen})
		const capacity = 1500
		rule := never(t, capacity)
		stop := make(chan struct{})
		var flusher, callers sync.WaitGroup
		flusher.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(3 * time.Millisecond):
					if err := client.ScriptFlush(context.Background()).Err(); err != nil {
						t.Error(err)
					}
				}
			}
		})
		var admitted atomic.Int64
		for range 20 {
			callers.Go(func() {
				for range 100 {
					a := decide(store, plenty, take("k", rule))
					// Flushed between the load and the retry: then it was not run either.
					if a.Err != nil && !goredis.HasErrorPrefix(a.Err, "NOSCRIPT") {
						t.Error(a.Err)
					}
					if a.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		close(stop)
		flusher.Wait()
		if got := admitted.Load(); got != capacity {
			t.Errorf("admitted %d, want %d", got, capacity)
		}
		if seen.loads.Load() < 2 {
			t.Errorf("the script was loaded %d times: the flush missed the load", seen.loads.Load())
		}
	})
}

// TestConnectionsCutUnderLoad: an outcome that is unknown is never tried again, so no more is spent than was admitted or
// failed.
func TestConnectionsCutUnderLoad(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty, Breaker: rls.BreakerConfig{Failures: 10_000}})
		const capacity = 100_000
		rule := never(t, capacity)
		var admitted, failed atomic.Int64
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				for range 100 {
					a := decide(store, plenty, take("k", rule))
					switch {
					case a.Err == nil && a.Allowed:
						admitted.Add(1)
					case errors.Is(a.Err, rls.ErrUnavailable):
						failed.Add(1)
					default:
						t.Errorf("got %+v", a)
					}
				}
			})
		}
		for range 20 {
			must(t, client.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
			time.Sleep(5 * time.Millisecond)
		}
		callers.Wait()
		a := answers(t, store, take("k", rule))
		spent := capacity - rule.Peek(a.Before[0], a.Now, 1).Remaining
		if spent < admitted.Load() || spent > admitted.Load()+failed.Load() {
			t.Errorf("spent %d of %d admitted and %d failed", spent, admitted.Load(), failed.Load())
		}
		if admitted.Load()+failed.Load() != 2000 {
			t.Errorf("%d admitted, %d failed, want 2000 in all", admitted.Load(), failed.Load())
		}
	})
}

// TestNeighbours: a group that the server refuses fails alone, in its call, in its batch and for the breaker.
func TestNeighbours(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		must(t, client.Do(t.Context(), "acl", "setuser", "limited", "on", ">secret", "+@all", "~ok*").Err())
		store := open(t, redis.Config{URL: as(t, server, "limited", "secret"), Budget: plenty, ProbeKey: "ok-probe"})
		rule := never(t, 100)
		for i := range 20 {
			if i == 10 {
				must(t, store.Probe(t.Context())) // from now on they share a command
			}
			ctx, cancel := context.WithTimeout(context.Background(), plenty)
			got := store.Decide(ctx, []rls.Group{take("ok1", rule), take("no", rule), append(take("ok2", rule), take("no", rule)...), take("ok3", rule)})
			cancel()
			for j, wantErr := range []bool{false, true, true, false} {
				if a := got[j]; wantErr != errors.Is(a.Err, rls.ErrStore) || !wantErr && !a.Allowed {
					t.Fatalf("call %d, group %d: got %+v", i, j, a)
				}
			}
		}
		if state := store.BreakerState(); state != "closed" {
			t.Errorf("breaker %s", state)
		}
		// When nothing is answered, it is the server that fails.
		for range 5 {
			if a := decide(store, plenty, take("no", rule)); !errors.Is(a.Err, rls.ErrStore) {
				t.Errorf("got %v, want ErrStore", a.Err)
			}
		}
		if state := store.BreakerState(); state != "open" {
			t.Errorf("breaker %s, want open", state)
		}
	})
}

// TestServerStates brings a server into the states whose replies have a class, and back.
func TestServerStates(t *testing.T) {
	do := func(args ...any) func(*testing.T, *goredis.Client) {
		return func(t *testing.T, c *goredis.Client) {
			t.Helper()
			must(t, c.Do(t.Context(), args...).Err())
		}
	}
	for name, state := range map[string]struct {
		enter, leave []func(*testing.T, *goredis.Client)
		want         error
		text         string
	}{
		"read-only replica": {
			enter: []func(*testing.T, *goredis.Client){do("replicaof", "127.0.0.1", "1")},
			leave: []func(*testing.T, *goredis.Client){do("replicaof", "no", "one")},
			want:  rls.ErrUnavailable, text: "READONLY",
		},
		"replica without its master": {
			enter: []func(*testing.T, *goredis.Client){do("config", "set", "replica-serve-stale-data", "no"), do("replicaof", "127.0.0.1", "1")},
			leave: []func(*testing.T, *goredis.Client){do("replicaof", "no", "one")},
			want:  rls.ErrUnavailable, text: "MASTERDOWN",
		},
		"RF-07 too few replicas": {
			enter: []func(*testing.T, *goredis.Client){do("config", "set", "min-replicas-to-write", "1")},
			leave: []func(*testing.T, *goredis.Client){do("config", "set", "min-replicas-to-write", "0")},
			want:  rls.ErrUnavailable, text: "NOREPLICAS",
		},
		"RF-07 cannot save": {
			// The dump is written and cannot take its name, which a directory has.
			enter: []func(*testing.T, *goredis.Client){
				func(t *testing.T, c *goredis.Client) {
					t.Helper()
					dir, err := c.ConfigGet(t.Context(), "dir").Result()
					must(t, err)
					must(t, os.MkdirAll(filepath.Join(dir["dir"], "dump.rdb", "x"), 0o700))
				},
				do("config", "set", "save", "3600 1"), do("bgsave"),
				func(t *testing.T, c *goredis.Client) {
					t.Helper()
					eventually(t, "saving fails", func() bool {
						info, err := c.Info(t.Context(), "persistence").Result()
						return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
					})
				},
			},
			leave: []func(*testing.T, *goredis.Client){do("config", "set", "save", "")},
			want:  rls.ErrStore, text: "MISCONF",
		},
		"RF-05 loading": {
			enter: []func(*testing.T, *goredis.Client){
				func(t *testing.T, c *goredis.Client) {
					t.Helper()
					for i := range 2000 {
						must(t, c.Set(t.Context(), fmt.Sprint("filler", i), "x", 0).Err())
					}
				},
				do("config", "set", "key-load-delay", "1000"), do("config", "set", "loading-process-events-interval-bytes", "1024"),
				func(t *testing.T, c *goredis.Client) {
					t.Helper()
					go c.Do(context.Background(), "debug", "reload")
					eventually(t, "it loads", func() bool { return goredis.HasErrorPrefix(c.Ping(t.Context()).Err(), "LOADING") })
				},
			},
			want: rls.ErrUnavailable, text: "LOADING",
		},
		"RF-06 out of memory": {
			enter: []func(*testing.T, *goredis.Client){do("config", "set", "maxmemory", "1")},
			leave: []func(*testing.T, *goredis.Client){do("config", "set", "maxmemory", "0")},
			want:  rls.ErrStore, text: "OOM",
		},
		"RF-08 busy with a script": {
			enter: []func(*testing.T, *goredis.Client){do("config", "set", "lua-time-limit", "1"), func(_ *testing.T, c *goredis.Client) {
				go c.Eval(context.Background(), "while true do end", nil)
				time.Sleep(100 * time.Millisecond)
			}},
			leave: []func(*testing.T, *goredis.Client){do("script", "kill")},
			want:  rls.ErrUnavailable, text: "BUSY",
		},
		"no more clients": {
			enter: []func(*testing.T, *goredis.Client){do("config", "set", "maxclients", "1"), do("client", "kill", "type", "normal", "skipme", "yes")},
			leave: []func(*testing.T, *goredis.Client){do("config", "set", "maxclients", "100")},
			want:  rls.ErrUnavailable, // the reply, or the reset that follows it, by a race
		},
		"RF-25 commands taken away": {
			enter: []func(*testing.T, *goredis.Client){do("acl", "setuser", "limited", "-evalsha")},
			leave: []func(*testing.T, *goredis.Client){do("acl", "setuser", "limited", "+evalsha")},
			want:  rls.ErrStore, text: "NOPERM",
		},
		"RF-10 password changed": {
			enter: []func(*testing.T, *goredis.Client){do("acl", "setuser", "limited", "<secret", ">other"), do("client", "kill", "user", "limited")},
			leave: []func(*testing.T, *goredis.Client){do("acl", "setuser", "limited", ">secret")},
			want:  rls.ErrStore, text: "WRONGPASS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, server *testserver.Server) {
				client := raw(t, server)
				must(t, client.Do(t.Context(), "acl", "setuser", "limited", "on", ">secret", "+@all", "~*").Err())
				var seen observer
				store := open(t, redis.Config{
					URL: as(t, server, "limited", "secret"), Budget: time.Second, Breaker: rls.BreakerConfig{Failures: 1000}, Observer: &seen,
				})
				rule := never(t, 1000)
				answers(t, store, take("k", rule))
				for _, enter := range state.enter {
					enter(t, client)
				}
				const asked = 3
				loaded := seen.loads.Load()
				for range asked {
					a := decide(store, plenty, take("k", rule))
					if !errors.Is(a.Err, state.want) || !contains(a.Err, state.text) {
						t.Fatalf("got %v, want %v with %q", a.Err, state.want, state.text)
					}
				}
				if n := seen.loads.Load() - loaded; n > asked {
					t.Errorf("the script was loaded %d times for %d calls", n, asked)
				}
				if got := store.Degraded(); !slices.Equal(got, []string{redis.DegradedDown}) {
					t.Errorf("degraded: %v", got)
				}
				for _, leave := range state.leave {
					leave(t, client)
				}
				eventually(t, "it is over", func() bool { return decide(store, plenty, take("k", rule)).Err == nil })
				if got := store.Degraded(); len(got) > 0 {
					t.Errorf("degraded: %v", got)
				}
			}, testserver.WithArgs("--enable-debug-command", "yes"))
		})
	}
}

// TestReadOnlyDropsConnections: behind the name there may be another server by now. The first command of the batch is
// answered, since it writes nothing: the connection must go all the same.
func TestReadOnlyDropsConnections(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		var seen observer
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty, Observer: &seen})
		rule := never(t, 10)
		answers(t, store, take("k", rule))
		must(t, client.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err())
		ctx, cancel := context.WithTimeout(context.Background(), plenty)
		defer cancel()
		peek := rls.Group{{Key: "k", Rule: rule, Op: algorithms.OpPeek, Cost: 1}}
		got := store.Decide(ctx, []rls.Group{peek, take("k", rule)})
		if got[0].Err != nil || !errors.Is(got[1].Err, rls.ErrUnavailable) {
			t.Fatalf("got %+v", got)
		}
		if n := seen.connections.Load(); n != 0 {
			t.Errorf("%d connections are still open", n)
		}
		must(t, client.Do(t.Context(), "replicaof", "no", "one").Err())
		answers(t, store, take("k", rule))
	})
}

// TestScriptMayNotBeLoaded: the error says why, not that the script is unknown.
func TestScriptMayNotBeLoaded(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		must(t, raw(t, server).Do(t.Context(), "acl", "setuser", "u", "on", ">secret", "+@all", "-script", "~*").Err())
		store := open(t, redis.Config{URL: as(t, server, "u", "secret"), Budget: plenty})
		if a := decide(store, plenty, take("k", never(t, 10))); !errors.Is(a.Err, rls.ErrStore) || !contains(a.Err, "NOPERM") {
			t.Errorf("got %v, want NOPERM", a.Err)
		}
	})
}

// TestAnswersOfAnotherServer: half an answer counts for those who have theirs and for nobody else, and what the script
// cannot have said is no answer. The server does not say that it is no cluster, so that each group is a command of its own.
func TestAnswersOfAnotherServer(t *testing.T) {
	t.Parallel()
	good := "+1796050784 906104 1 -\r\n"
	for name, c := range map[string]struct {
		says string
		want [2]error
		ok   bool // for the breaker
	}{
		"answers both":                      {good + good, [2]error{nil, nil}, true},
		"answers one and closes":            {good, [2]error{nil, rls.ErrUnavailable}, false},
		"answers half and closes":           {good + good[:10], [2]error{nil, rls.ErrUnavailable}, false},
		"RF-13 answers half a string":       {good + "$23\r\n1796050784 90", [2]error{nil, rls.ErrUnavailable}, false},
		"answers half an array":             {good + "*2\r\n:1\r\n", [2]error{nil, rls.ErrUnavailable}, false},
		"answers with an empty string":      {good + "$0\r\n\r\n", [2]error{nil, rls.ErrStore}, true},
		"answers without a status":          {good + "+1796050784 906104\r\n", [2]error{nil, rls.ErrStore}, true},
		"answers with a number":             {good + ":1\r\n", [2]error{nil, rls.ErrStore}, true},
		"answers with nothing":              {"$-1\r\n" + good, [2]error{rls.ErrStore, nil}, true},
		"LUA-04 answers with a short array": {good + "*1\r\n:1\r\n", [2]error{nil, rls.ErrStore}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen observer
			// The handshake is refused, as by a server of old: the store goes on without.
			store := open(t, redis.Config{URL: "redis://" + listen(t, "-ERR unknown command\r\n", c.says), Budget: plenty, Observer: &seen})
			ctx, cancel := context.WithTimeout(context.Background(), plenty)
			defer cancel()
			rule := never(t, 10)
			for i, a := range store.Decide(ctx, []rls.Group{take("k", rule), take("l", rule)}) {
				if !errors.Is(a.Err, c.want[i]) || a.Allowed != (c.want[i] == nil) {
					t.Errorf("group %d: got %+v, want %v", i, a, c.want[i])
				}
			}
			eventually(t, "the round trip is over", func() bool { return seen.trips.Load() == 1 })
			if ok := seen.failed.Load() == 0; ok != c.ok {
				t.Errorf("the breaker was told %v, want %v", ok, c.ok)
			}
		})
	}
}

// TestStop: what is on its way is answered, what waits is told, what comes later is refused, and nothing is left behind.
func TestStop(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	var seen observer
	store, stop := start(t, redis.Config{URL: server.URL(), Budget: plenty, Workers: 1, Observer: &seen})
	rule := never(t, 10)
	answers(t, store, take("k", rule))
	must(t, server.Freeze())
	onTheWay, waiting := make(chan rls.Answer, 1), make(chan rls.Answer, 1)
	go func() { onTheWay <- decide(store, plenty, take("k", rule)) }()
	time.Sleep(100 * time.Millisecond)
	go func() { waiting <- decide(store, plenty, take("k", rule)) }()
	time.Sleep(100 * time.Millisecond)
	time.AfterFunc(100*time.Millisecond, func() {
		if err := server.Thaw(); err != nil {
			t.Error(err)
		}
	})
	stop()
	if a := <-onTheWay; a.Err != nil || !a.Allowed {
		t.Errorf("on the way: got %+v", a)
	}
	if a := <-waiting; a.Err != nil && (!errors.Is(a.Err, rls.ErrUnavailable) || !errors.Is(a.Err, redis.ErrNotSent)) {
		t.Errorf("waiting: got %+v", a)
	}
	begin := time.Now()
	a := decide(store, plenty, take("k", rule))
	if !errors.Is(a.Err, rls.ErrUnavailable) || !errors.Is(a.Err, redis.ErrNotSent) || time.Since(begin) > plenty/2 {
		t.Errorf("after the stop: got %+v after %v", a, time.Since(begin))
	}
	if n := seen.connections.Load(); n != 0 {
		t.Errorf("%d connections are still open", n)
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Valkey, testserver.OnSocket())
	store := open(t, redis.Config{URL: server.URL(), Budget: plenty})
	rule := never(t, 2)
	for _, want := range []bool{true, true, false} {
		if a := answers(t, store, take("k", rule)); a.Allowed != want {
			t.Errorf("got %+v", a)
		}
	}
}
