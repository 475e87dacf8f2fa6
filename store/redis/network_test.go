package redis_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// behindProxy returns a store that reaches a server through a proxy. Its breaker never opens, unless cfg says so.
func behindProxy(t *testing.T, server *testserver.Server, cfg redis.Config) (*redis.Store, *testserver.Proxy) {
	t.Helper()
	proxy, err := testserver.NewProxy(t.Context(), server.Addr())
	must(t, err)
	t.Cleanup(proxy.Close)
	if cfg.Breaker.Failures == 0 {
		cfg.Breaker.Failures = 1_000_000
	}
	cfg.URL = "redis://" + proxy.Addr()
	store := open(t, cfg)
	eventually(t, "a first answer within the budget", func() bool { return decide(store, plenty, take("first", never(t, 1))).Err == nil })
	return store, proxy
}

// sometimesLate is a third of the replies that come after the budget, and the others in time.
func sometimesLate() time.Duration {
	if rand.IntN(3) > 0 {
		return 0
	}
	return 30*time.Millisecond + time.Duration(rand.IntN(30))*time.Millisecond
}

// TestRF_03_oneCallForEachDecision: what came late or was lost on the way is not sent again, by nobody: the server runs no
// script more than decisions were sent, and a caller waits for one budget, not for several.
func TestRF_03_oneCallForEachDecision(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		store, proxy := behindProxy(t, server, redis.Config{ProbeEvery: time.Hour})
		const capacity = 100_000
		rule := never(t, capacity)
		admitted, unknown, sent := 0, 0, 0
		ran := calls(t, client, "evalsha")
		for _, way := range []struct {
			wrong, right func()
		}{
			{func() { proxy.SetDelay(sometimesLate) }, func() { proxy.SetDelay(nil) }},
			{func() { proxy.SetCut(200) }, func() { proxy.SetCut(0) }},
		} {
			way.wrong()
			for range 100 {
				start := time.Now()
				a := decide(store, plenty, take("k", rule))
				if took := time.Since(start); took > plenty { // the budget is 20 ms, and this machine may be busy
					t.Errorf("a decision took %v", took)
				}
				switch {
				case a.Err == nil:
					admitted++
					sent++
				case !errors.Is(a.Err, redis.ErrNotSent):
					unknown++
					sent++
				}
			}
			way.right()
		}
		if admitted == 0 || unknown == 0 {
			t.Fatalf("%d admitted, %d lost: nothing was tried", admitted, unknown)
		}
		if n := calls(t, client, "evalsha") - ran; n > sent {
			t.Errorf("the server ran %d scripts for %d decisions", n, sent)
		}
		var a rls.Answer
		eventually(t, "all is well", func() bool {
			a = decide(store, plenty, rls.Group{{Key: "k", Rule: rule, Op: algorithms.OpPeek, Cost: 1}})
			return a.Err == nil
		})
		if spent := capacity - int(rule.Peek(a.Before[0], a.Now, 1).Remaining); spent < admitted || spent > admitted+unknown {
			t.Errorf("%d spent, by %d admitted and %d of which nobody knows", spent, admitted, unknown)
		}
	})
}

// TestRF_13_nobodyGetsAnothersReply: replies come around the deadline, some before and some after. A bucket that is empty
// never admits and one that is full never denies, whoever was asked about on the connection before.
func TestRF_13_nobodyGetsAnothersReply(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		const budget = 100 * time.Millisecond // a busy machine keeps it now and then
		store, proxy := behindProxy(t, server, redis.Config{Budget: budget})
		empty, full := never(t, 1), never(t, 1_000_000_000)
		eventually(t, "the bucket is used up", func() bool {
			a := decide(store, plenty, take("empty", empty))
			return a.Err == nil && !a.Allowed
		})
		proxy.SetDelay(func() time.Duration {
			if rand.IntN(3) > 0 {
				return 0
			}
			return budget*9/10 + rand.N(budget)
		})
		const enough = 100 // of each outcome
		var denied, admitted, late atomic.Int64
		tried := func() bool { return min(denied.Load(), admitted.Load(), late.Load()) >= enough }
		var callers sync.WaitGroup
		stop := time.Now().Add(time.Minute)
		for i := range 40 {
			callers.Go(func() {
				for !tried() && time.Now().Before(stop) {
					key, rule := "full", full
					if i%2 == 0 {
						key, rule = "empty", empty
					}
					switch a := decide(store, budget, take(key, rule)); {
					case errors.Is(a.Err, redis.ErrNotSent): // nothing was tried
						time.Sleep(budget / 20)
					case a.Err != nil:
						late.Add(1)
					case a.Allowed != (key == "full"):
						t.Errorf("%s: allowed %v", key, a.Allowed)
					case a.Allowed:
						admitted.Add(1)
					default:
						denied.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if !tried() {
			t.Errorf("%d denied, %d admitted, %d late: too little was tried", denied.Load(), admitted.Load(), late.Load())
		}
	})
}

// TestRF_12_peerVanishes: while everything is swallowed and nothing closed, callers get their answers, and connections and
// dials stay few; when that is over, hundreds of callers do not all dial.
func TestRF_12_peerVanishes(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		const (
			quarantine = 300 * time.Millisecond
			failures   = 5
		)
		var seen observer
		store, proxy := behindProxy(t, server, redis.Config{
			Observer: &seen, Breaker: rls.BreakerConfig{Failures: failures, Quarantine: quarantine},
		})
		rule := never(t, 1_000_000_000)
		var most atomic.Int64
		crowd := func(until func() bool) {
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() {
					for !until() {
						start := time.Now()
						_ = decide(store, 20*time.Millisecond, take("k", rule))
						if took := time.Since(start); took > plenty {
							t.Errorf("a caller waited for %v", took)
						}
						if n := seen.connections.Load(); n > most.Load() {
							most.Store(n)
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			callers.Wait()
		}
		dials, start := proxy.Dials(), time.Now()
		proxy.SetHole(true)
		crowd(func() bool { return time.Since(start) > 2*time.Second })
		// Each failure costs one connection, and so does each probe; another was under way.
		allowed := failures + 1 + int(time.Since(start)/quarantine) + 1
		if n := proxy.Dials() - dials; n > allowed || n < 2 {
			t.Errorf("%d dials while the server was away, want 2 to %d", n, allowed)
		}

		dials, start = proxy.Dials(), time.Now()
		proxy.SetHole(false)
		crowd(func() bool { return store.BreakerState() == "closed" || time.Since(start) > quarantine+2*plenty })
		if took := time.Since(start); took > quarantine+plenty {
			t.Errorf("back after %v", took)
		}
		start = time.Now()
		crowd(func() bool { return time.Since(start) > 300*time.Millisecond })
		// Each worker needs one, and on a busy machine a few come too late; 200 would be a herd.
		if n := proxy.Dials() - dials; n > 4*failures {
			t.Errorf("%d dials by 200 callers when the server was back", n)
		}
		if n := most.Load(); n > redis.DefaultWorkers+1 { // a probe of the configuration has one, too
			t.Errorf("%d connections at most", n)
		}
	})
}
