package redis_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// arena is a cluster with a store on it.
type arena struct {
	*testserver.Cluster
	raw   *goredis.ClusterClient
	store *redis.Store
	seen  *observer
}

func newArena(t *testing.T, kind testserver.Kind, cfg redis.Config, opts ...testserver.Option) *arena {
	t.Helper()
	a := &arena{Cluster: testserver.StartCluster(t, kind, opts...), seen: new(observer)}
	a.raw = clusterClient(t, a.Cluster)
	cfg.URL, cfg.Observer = a.URL(), a.seen
	a.store = open(t, cfg)
	must(t, a.store.Probe(t.Context()))
	return a
}

var (
	both       = testserver.Kinds()
	redisOnly  = []testserver.Kind{testserver.Redis}
	valkeyOnly = []testserver.Kind{testserver.Valkey}
)

// onCluster runs a test on a cluster of each of some kinds: six servers are much for a test in which they do not differ.
func onCluster(
	t *testing.T, kinds []testserver.Kind, cfg redis.Config, run func(t *testing.T, a *arena), opts ...testserver.Option,
) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			run(t, newArena(t, kind, cfg, opts...))
		})
	}
}

// master returns which master keeps the slot of a key now, and its client.
func (a *arena) master(t *testing.T, key string) (*testserver.Server, *goredis.Client) {
	t.Helper()
	client, err := a.raw.MasterForKey(t.Context(), key)
	must(t, err)
	for _, s := range a.Servers() {
		if s.Addr() == client.Options().Addr {
			return s, client
		}
	}
	t.Fatalf("nobody keeps %q", key)
	return nil, nil
}

// keysOf returns one key for each of n slots of the i-th master, which together start the cluster.
func (a *arena) keysOf(t *testing.T, i, n int) (keys []string) {
	t.Helper()
	for tag := 0; len(keys) < n; tag++ {
		key := fmt.Sprintf("sentinel:v1:{t%d}:e:1", tag)
		if s, _ := a.master(t, key); s == a.Masters[i] {
			keys = append(keys, key)
		}
	}
	return keys
}

// slotMove is a slot on its way from one master to another.
type slotMove struct {
	slot         int64
	from, to     *goredis.Client
	fromID, toID string
	toAddr       []string
}

// open lets the slot of a key leave for another master.
func (a *arena) open(t *testing.T, key string, to *testserver.Server) *slotMove {
	t.Helper()
	_, from := a.master(t, key)
	m := &slotMove{from: from, to: raw(t, to), toAddr: strings.Split(to.Addr(), ":")}
	var err error
	m.slot, err = from.ClusterKeySlot(t.Context(), key).Result()
	must(t, err)
	m.fromID, err = m.from.ClusterMyID(t.Context()).Result()
	must(t, err)
	m.toID, err = m.to.ClusterMyID(t.Context()).Result()
	must(t, err)
	must(t, m.to.Do(t.Context(), "cluster", "setslot", m.slot, "importing", m.fromID).Err())
	must(t, m.from.Do(t.Context(), "cluster", "setslot", m.slot, "migrating", m.toID).Err())
	return m
}

func (m *slotMove) migrate(t *testing.T, keys ...string) {
	t.Helper()
	args := []any{"migrate", m.toAddr[0], m.toAddr[1], "", 0, 5000, "keys"}
	for _, key := range keys {
		args = append(args, key)
	}
	must(t, m.from.Do(t.Context(), args...).Err())
}

// close moves what keys are left, and then the slot itself.
func (m *slotMove) close(t *testing.T) {
	t.Helper()
	for {
		keys, err := m.from.ClusterGetKeysInSlot(t.Context(), int(m.slot), 100).Result()
		must(t, err)
		if len(keys) == 0 {
			break
		}
		m.migrate(t, keys...)
	}
	must(t, m.to.Do(t.Context(), "cluster", "setslot", m.slot, "node", m.toID).Err())
	must(t, m.from.Do(t.Context(), "cluster", "setslot", m.slot, "node", m.toID).Err())
}

// TestCL_04_resharding: slots move under load to a server that does not know the script, and every bucket counts right
// to the unit.
func TestCL_04_resharding(t *testing.T) {
	cfg := redis.Config{Budget: plenty, Breaker: rls.BreakerConfig{Failures: 1000}}
	onCluster(t, both, cfg, func(t *testing.T, a *arena) {
		const slots, capacity = 30, 40
		keys := a.keysOf(t, 0, slots)
		rule := never(t, capacity)
		target := raw(t, a.Masters[1])
		must(t, target.ScriptFlush(t.Context()).Err())

		admitted := make([]atomic.Int64, slots)
		stop := make(chan struct{})
		var callers sync.WaitGroup
		for caller := range 8 {
			callers.Go(func() {
				for i := caller; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					got := decide(a.store, plenty, take(keys[i%slots], rule))
					if got.Err != nil {
						t.Errorf("%s: %v", keys[i%slots], got.Err)
					}
					if got.Allowed {
						admitted[i%slots].Add(1)
					}
				}
			})
		}
		for _, key := range keys {
			move := a.open(t, key, a.Masters[1])
			time.Sleep(5 * time.Millisecond)
			move.close(t)
		}
		for _, key := range keys {
			eventually(t, "the bucket is used up", func() bool { return !decide(a.store, plenty, take(key, rule)).Allowed })
		}
		close(stop)
		callers.Wait()
		for i, key := range keys {
			if n, err := target.Exists(t.Context(), key).Result(); n != 1 || err != nil {
				t.Errorf("%s did not move: %v", key, err)
			}
			// One may have been admitted by the loop just above.
			if n := admitted[i].Load(); n > capacity || n < capacity-20 {
				t.Errorf("%s: admitted %d of %d", key, n, capacity)
			}
			if got := answers(t, a.store, rls.Group{{Key: key, Rule: rule, Op: algorithms.OpPeek, Cost: 1}}); got.Before[0].Level != 0 {
				t.Errorf("%s: %d left", key, got.Before[0].Level)
			}
		}
		if a.store.BreakerState() != "closed" || a.seen.failed.Load() > 0 {
			t.Errorf("breaker %s, %d failed round trips", a.store.BreakerState(), a.seen.failed.Load())
		}
	})
}

// TestCL_05_halfMovedGroup: of two keys of one slot, one has moved: TRYAGAIN would last as long as the move. Each is
// decided where it is.
func TestCL_05_halfMovedGroup(t *testing.T) {
	onCluster(t, both, redis.Config{Budget: plenty}, func(t *testing.T, a *arena) {
		first := a.keysOf(t, 0, 1)[0]
		second := first + ":second"
		rule := never(t, 10)
		pair := append(take(first, rule), take(second, rule)...)
		step := func(what string, wantFirst, wantSecond int64) {
			t.Helper()
			got := answers(t, a.store, pair)
			for i, want := range []int64{wantFirst, wantSecond} {
				if left := rule.Peek(got.Before[i], got.Clock(i), 1).Remaining; left != want || !got.Allowed {
					t.Fatalf("%s: allowed %v, bucket %d had %d left, want %d", what, got.Allowed, i, left, want)
				}
			}
		}
		step("before", 10, 10)
		move := a.open(t, first, a.Masters[2])
		step("on its way, both here", 9, 9)
		move.migrate(t, first)
		if err := move.from.Get(t.Context(), second).Err(); err != nil {
			t.Fatal(err)
		}
		step("one moved", 8, 8)
		fresh := append(take(first, rule), take(first+":fresh", rule)...) // a bucket that is nowhere yet
		if got := answers(t, a.store, fresh); !got.Allowed || got.Before[1].Present {
			t.Fatalf("with a new bucket: %+v", got)
		}
		move.migrate(t, second)
		step("both moved", 6, 7)
		move.close(t)
		step("after", 5, 6)
		if a.store.BreakerState() != "closed" {
			t.Error("the breaker opened")
		}
	})
}

// TestCL_07_promotedReplica: it has the buckets and not the script.
func TestCL_07_promotedReplica(t *testing.T) {
	onCluster(t, both, redis.Config{Budget: plenty, ProbeEvery: 100 * time.Millisecond}, func(t *testing.T, a *arena) {
		key := a.keysOf(t, 0, 1)[0]
		rule := never(t, 1000)
		for range 10 {
			answers(t, a.store, take(key, rule))
		}
		loads := a.seen.loads.Load()
		replica := raw(t, a.Replicas[0])
		eventually(t, "the replica has everything", func() bool {
			return replica.Wait(t.Context(), 0, 0).Err() != nil || offsetsAgree(t, a.Masters[0], a.Replicas[0])
		})
		must(t, replica.ClusterFailover(t.Context()).Err())
		eventually(t, "the replica is promoted", func() bool {
			decide(a.store, plenty, take(key, rule))
			return strings.Contains(replica.Info(t.Context(), "replication").Val(), "role:master")
		})
		got := answers(t, a.store, take(key, rule))
		if left := rule.Peek(got.Before[0], got.Now, 1).Remaining; left > 990 {
			t.Errorf("%d left of 1000: takes were forgotten", left)
		}
		if a.seen.loads.Load() == loads {
			t.Error("no script was loaded")
		}
		eventually(t, "the layout is known", func() bool { return len(a.store.Degraded()) == 0 && a.store.BreakerState() == "closed" })
	})
}

func offsetsAgree(t *testing.T, master, replica *testserver.Server) bool {
	t.Helper()
	offset := func(s *testserver.Server, field string) (n string) {
		for line := range strings.Lines(raw(t, s).Info(t.Context(), "replication").Val()) {
			if v, ok := strings.CutPrefix(line, field+":"); ok {
				n = v
			}
		}
		return n
	}
	return offset(master, "master_repl_offset") == offset(replica, "slave_repl_offset")
}

// TestRF_09_partialOutage: the servers that live keep counting; the breaker is the dead one's own.
func TestRF_09_partialOutage(t *testing.T) {
	cfg := redis.Config{Budget: time.Second, Breaker: rls.BreakerConfig{Quarantine: time.Hour}}
	onCluster(t, redisOnly, cfg, func(t *testing.T, a *arena) {
		dead, alive, moved := a.keysOf(t, 0, 1)[0], a.keysOf(t, 1, 1)[0], a.keysOf(t, 2, 1)[0]
		rule := never(t, 1000)
		a.Replicas[0].Kill()
		a.Masters[0].Kill()
		// A slot that nobody serves, of a server that lives.
		_, third := a.master(t, moved)
		slot := third.ClusterKeySlot(t.Context(), moved).Val()
		must(t, third.ClusterDelSlots(t.Context(), int(slot)).Err())
		for i := range 50 {
			if got := decide(a.store, plenty, take(alive, rule)); got.Err != nil || !got.Allowed {
				t.Fatalf("alive: %+v", got)
			}
			got := decide(a.store, plenty, take(dead, rule))
			if !errors.Is(got.Err, rls.ErrUnavailable) && !errors.Is(got.Err, rls.ErrCircuitOpen) || i > 10 && !errors.Is(got.Err, rls.ErrCircuitOpen) {
				t.Fatalf("dead, call %d: %+v", i, got)
			}
			if got := decide(a.store, plenty, take(moved, rule)); !errors.Is(got.Err, rls.ErrUnavailable) {
				t.Fatalf("of no server: %+v", got)
			}
			// A group of both: nothing is taken.
			if got := decide(a.store, plenty, append(take(alive, rule), take(dead, rule)...)); got.Err == nil {
				t.Fatalf("both: %+v", got)
			}
		}
		got := answers(t, a.store, take(alive, rule))
		if left := rule.Peek(got.Before[0], got.Now, 1).Remaining; left != 950 {
			t.Errorf("%d left, want 950", left)
		}
		if a.store.BreakerState() != "open" {
			t.Errorf("breaker %s", a.store.BreakerState())
		}
	}, testserver.WithArgs("--cluster-require-full-coverage", "no"))
}

// TestCL_03_severalSlots: one tenant's limits lie in one slot, a cookie's and its address's in two. When the second of two
// slots denies or fails, what the first gave is given back, in its window.
func TestCL_03_severalSlots(t *testing.T) {
	onCluster(t, valkeyOnly, redis.Config{Budget: plenty, Breaker: rls.BreakerConfig{Failures: 1000}}, func(t *testing.T, a *arena) {
		first, second := a.keysOf(t, 0, 1)[0], a.keysOf(t, 1, 1)[0]
		if first > second { // takes go in the order of the keys
			first, second = second, first
		}
		hits, err := algorithms.NewSlidingWindow(10, time.Hour)
		must(t, err)
		rule := never(t, 10)
		group := rls.Group{
			{Key: second, Rule: rule, Op: algorithms.OpTake, Cost: 1},
			{Key: first, Rule: hits, Op: algorithms.OpTake, Cost: 3},
		}
		if got := answers(t, a.store, group); !got.Allowed {
			t.Fatalf("got %+v", got)
		}
		left := func(what string, wantHits, wantTokens int64) {
			t.Helper()
			got := answers(t, a.store, rls.Group{
				{Key: first, Rule: hits, Op: algorithms.OpPeek, Cost: 1}, {Key: second, Rule: rule, Op: algorithms.OpPeek, Cost: 1},
			})
			h, n := hits.Peek(got.Before[0], got.Clock(0), 1).Remaining, rule.Peek(got.Before[1], got.Clock(1), 1).Remaining
			if h != wantHits || n != wantTokens {
				t.Errorf("%s: %d hits and %d tokens left, want %d and %d", what, h, n, wantHits, wantTokens)
			}
		}
		left("admitted", 7, 9)

		// The look finds that the second denies: nothing is taken at all.
		big := append(rls.Group{}, group...)
		big[0].Cost = 10
		if got := answers(t, a.store, big); got.Allowed || got.Before[1].Level != 3 {
			t.Errorf("got %+v", got)
		}
		left("denied", 7, 9)
		if n := a.seen.undone.Load(); n != 0 {
			t.Errorf("%d undone: something was taken", n)
		}

		// The second cannot write: the take fails after the first has given.
		_, client := a.master(t, second)
		backend{client: client}.SetFull(t, true)
		if got := decide(a.store, plenty, group); !errors.Is(got.Err, rls.ErrStore) {
			t.Errorf("got %+v", got)
		}
		eventually(t, "the take is undone", func() bool { return a.seen.undone.Load() == 1 })
		backend{client: client}.SetFull(t, false)
		left("failed", 7, 9)

		// The second does not answer even the look: nothing is taken.
		must(t, client.Do(t.Context(), "client", "pause", 200, "write").Err())
		if got := decide(a.store, 100*time.Millisecond, group); !errors.Is(got.Err, rls.ErrTimeout) {
			t.Errorf("got %+v", got)
		}
		time.Sleep(200 * time.Millisecond)
		left("paused", 7, 9)
		if n := a.seen.undone.Load() + a.seen.leftSpent.Load(); n != 1 {
			t.Errorf("%d undone", n)
		}
	})
}

// TestSpreadNeverAdmitsTooMuch: groups over three slots race with takes of each bucket alone, while servers fail and
// connections break. What a bucket gave is at most its limit, and nothing is held back once all is quiet.
func TestSpreadNeverAdmitsTooMuch(t *testing.T) {
	onCluster(t, redisOnly, redis.Config{Budget: 200 * time.Millisecond, Breaker: rls.BreakerConfig{Failures: 1000}}, func(t *testing.T, a *arena) {
		keys := []string{a.keysOf(t, 0, 1)[0], a.keysOf(t, 1, 1)[0], a.keysOf(t, 2, 1)[0]}
		rules := []algorithms.Rule{never(t, 300), never(t, 200), never(t, 250)}
		var group rls.Group
		for i, key := range keys {
			group = append(group, take(key, rules[i])...)
		}
		admitted := make([]atomic.Int64, len(keys))
		unknown := make([]atomic.Int64, len(keys))
		var callers sync.WaitGroup
		for caller := range 30 {
			callers.Go(func() {
				for i := range 40 {
					which := (caller + i) % 4
					asked := group
					if which < 3 {
						asked = group[which : which+1]
					}
					got := decide(a.store, 200*time.Millisecond, asked)
					for j := range keys {
						if which < 3 && which != j {
							continue
						}
						switch {
						case got.Err != nil && !errors.Is(got.Err, redis.ErrNotSent):
							unknown[j].Add(1)
						case got.Allowed:
							admitted[j].Add(1)
						}
					}
				}
			})
		}
		for i := range 10 {
			_, client := a.master(t, keys[i%3])
			_ = client.ClientKillByFilter(t.Context(), "type", "normal", "skipme", "yes").Err()
			time.Sleep(5 * time.Millisecond)
			backend{client: client}.SetFull(t, i%2 == 0)
		}
		for i := range keys {
			_, client := a.master(t, keys[i])
			backend{client: client}.SetFull(t, false)
		}
		callers.Wait()
		eventually(t, "undone", func() bool { return a.store.BreakerState() == "closed" })
		time.Sleep(300 * time.Millisecond) // what is being given back takes a budget at most
		for j, key := range keys {
			var got rls.Answer
			eventually(t, "what is left", func() bool {
				got = decide(a.store, plenty, rls.Group{{Key: key, Rule: rules[j], Op: algorithms.OpPeek, Cost: 1}})
				return got.Err == nil
			})
			spent := rules[j].Limit() - rules[j].Peek(got.Before[0], got.Now, 1).Remaining
			if n := admitted[j].Load(); n > rules[j].Limit() || spent < n || spent > n+unknown[j].Load() {
				t.Errorf("bucket %d of %d: admitted %d, spent %d, unknown %d", j, rules[j].Limit(), n, spent, unknown[j].Load())
			}
		}
	})
}

// TestCL_08_mastersAlone: there is no way to have a script run by a replica.
func TestCL_08_mastersAlone(t *testing.T) {
	for _, option := range []string{"read_only=true", "route_by_latency=true", "route_randomly=true"} {
		if _, err := redis.New(redis.Config{URL: "redis+cluster://127.0.0.1:7000?" + option}); err == nil {
			t.Errorf("%s was taken", option)
		}
	}
	onCluster(t, valkeyOnly, redis.Config{Budget: plenty}, func(t *testing.T, a *arena) {
		for i := range 100 {
			answers(t, a.store, take(fmt.Sprint("k", i), never(t, 10)))
		}
		if n, err := a.store.Unlink(t.Context(), "k0", "k1", "k2", "none"); n != 3 || err != nil {
			t.Errorf("%d removed, %v", n, err)
		}
		for _, s := range a.Replicas {
			if n := calls(t, raw(t, s), "evalsha"); n > 0 {
				t.Errorf("a replica ran %d scripts", n)
			}
		}
	})
}

// TestProbeOfCluster: faults are found on each server, and the rights of the manual are enough.
func TestProbeOfCluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartCluster(t, testserver.Redis)
	for _, s := range c.Servers() {
		leastUser(t, raw(t, s), "+cluster|slots", "+asking")
	}
	password := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(password, []byte("secret"), 0o600))
	store := open(t, redis.Config{URL: c.URL(), Username: "least", PasswordFile: password, Budget: plenty})
	must(t, store.Probe(t.Context()))
	answers(t, store, append(take("a", never(t, 2)), take("b", never(t, 2))...))

	must(t, raw(t, c.Masters[1]).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	fault, ok := errors.AsType[*redis.ConfigFault](store.Probe(t.Context()))
	if !ok || !strings.HasPrefix(fault.Problem, c.Masters[1].Addr()+": ") || !strings.Contains(fault.Problem, "allkeys-lru") {
		t.Errorf("got %v", fault)
	}

	single := testserver.Start(t, testserver.Redis)
	err := open(t, redis.Config{URL: "redis+cluster://" + single.Addr(), Budget: plenty}).Probe(t.Context())
	if fault, ok := errors.AsType[*redis.ConfigFault](err); !ok || !strings.Contains(fault.Error(), "does not run in cluster mode") {
		t.Errorf("got %v", err)
	}
}
