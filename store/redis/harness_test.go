package redis_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
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

// open returns a running store. The test fails when it does not stop in time.
func open(t testing.TB, cfg redis.Config) *redis.Store {
	t.Helper()
	store, stop := start(t, cfg)
	t.Cleanup(stop)
	return store
}

func start(t testing.TB, cfg redis.Config) (*redis.Store, func()) {
	t.Helper()
	store, err := redis.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	budgets.Store(store, cmp.Or(cfg.Budget, redis.DefaultBudget))
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- store.Run(ctx) }()
	return store, sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-stopped:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the store does not stop")
		}
	})
}

// budgets is the budget of each store, for answers.
var budgets sync.Map

// onEach runs a test on a server of its own of each kind.
func onEach(t *testing.T, run func(t *testing.T, server *testserver.Server), opts ...testserver.Option) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			run(t, testserver.Start(t, kind, opts...))
		})
	}
}

// raw is a client of the server that is not the store.
func raw(t testing.TB, server *testserver.Server) *goredis.Client {
	t.Helper()
	client := server.Client()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// backend is storetest.Server.
type backend struct {
	*testserver.Server
	client *goredis.Client
}

func (b backend) Read(t testing.TB, key string) (string, time.Duration, bool) {
	t.Helper()
	return readKey(t, b.client, key)
}

func readKey(t testing.TB, client goredis.UniversalClient, key string) (string, time.Duration, bool) {
	t.Helper()
	value, err := client.Get(t.Context(), key).Result()
	if errors.Is(err, goredis.Nil) {
		return "", 0, false
	}
	must(t, err)
	ttl, err := client.PTTL(t.Context(), key).Result()
	must(t, err)
	return value, ttl, true
}

func (b backend) Write(t testing.TB, key, value string, ttl time.Duration) {
	t.Helper()
	must(t, b.client.Set(t.Context(), key, value, ttl).Err())
}

func (b backend) WriteList(t testing.TB, key string) {
	t.Helper()
	writeList(t, b.client, key)
}

func writeList(t testing.TB, client goredis.UniversalClient, key string) {
	t.Helper()
	must(t, client.Del(t.Context(), key).Err())
	must(t, client.RPush(t.Context(), key, "1:2", "3").Err())
}

func (b backend) Keys(t testing.TB) int {
	t.Helper()
	n, err := b.client.DBSize(t.Context()).Result()
	must(t, err)
	return int(n)
}

func (b backend) SetFull(t testing.TB, full bool) {
	t.Helper()
	limit := "0"
	if full {
		limit = "1"
	}
	must(t, b.client.ConfigSet(t.Context(), "maxmemory", limit).Err())
}

func (b backend) SetFrozen(t testing.TB, frozen bool) {
	t.Helper()
	if frozen {
		must(t, b.Freeze())
	} else {
		must(t, b.Thaw())
	}
}

// calls returns how often the server ran a command.
func calls(t testing.TB, client *goredis.Client, command string) int {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "commandstats").Result()
	must(t, err)
	var n int
	_, _ = fmt.Sscanf(info["Commandstats"]["cmdstat_"+command], "calls=%d", &n) // absent: never
	return n
}

// observer counts what it is told.
type observer struct {
	trips, failed, groups, largest atomic.Int64
	loads, queueFull, connections  atomic.Int64
	undone, leftSpent, processes   atomic.Int64

	mu     sync.Mutex // guards notes
	notes  map[string]int
	fault  atomic.Pointer[redis.ConfigFault]
	faults atomic.Int64
}

func (o *observer) RoundTrip(groups int, _ time.Duration, ok bool) {
	o.trips.Add(1)
	o.groups.Add(int64(groups))
	for {
		largest := o.largest.Load()
		if int64(groups) <= largest || o.largest.CompareAndSwap(largest, int64(groups)) {
			break
		}
	}
	if !ok {
		o.failed.Add(1)
	}
}
func (o *observer) Processes(n int)           { o.processes.Store(int64(n)) }
func (o *observer) StateLost(loss redis.Loss) { o.note(string(loss)) }
func (o *observer) ServerChanged(_ string, c redis.Change) {
	o.note(string(c))
}

// note counts what was told of the server itself.
func (o *observer) note(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.notes == nil {
		o.notes = make(map[string]int)
	}
	o.notes[what]++
}

func (o *observer) noted(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notes[what]
}

// notedWith counts the notes that begin as given and, unless they are only that, hold one of the reasons.
func (o *observer) notedWith(begin string, reasons ...string) (times int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for note, n := range o.notes {
		named := slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(note, reason) })
		if strings.HasPrefix(note, begin) && (note == begin || named) {
			times += n
		}
	}
	return times
}

func (o *observer) BreakerChanged(_, _, to string, cause error) {
	if to == "open" {
		o.note(fmt.Sprint("open: ", cause))
	}
}

func (o *observer) Failing(_ string, cause error) {
	if cause == nil {
		o.note("answers again")
	} else {
		o.note("fails: " + cause.Error())
	}
}
func (o *observer) ScriptLoaded()        { o.loads.Add(1) }
func (o *observer) QueueFull()           { o.queueFull.Add(1) }
func (o *observer) Connections(open int) { o.connections.Store(int64(open)) }
func (o *observer) Undone(ok bool) {
	if ok {
		o.undone.Add(1)
	} else {
		o.leftSpent.Add(1)
	}
}

func (o *observer) ConfigFault(f *redis.ConfigFault) {
	o.faults.Add(1)
	o.fault.Store(f)
}

func never(t testing.TB, capacity int64) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewTokenBucket(capacity, algorithms.Rate{})
	must(t, err)
	return rule
}

func take(key string, rule algorithms.Rule) rls.Group {
	return rls.Group{{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: 1}}
}

// decide asks for one group with a deadline.
func decide(store *redis.Store, timeout time.Duration, group rls.Group) rls.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return store.Decide(ctx, []rls.Group{group})[0]
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// as returns the URL with another user.
func as(t testing.TB, server *testserver.Server, user, password string) string {
	t.Helper()
	u, err := url.Parse(server.URL())
	must(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
