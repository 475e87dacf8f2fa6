package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// DefaultHeartbeatKey is where the processes that share a server are listed. No identity hashes to it.
const DefaultHeartbeatKey = "sentinel:f1:{fleet}"

// DefaultHeartbeatEvery is how often a process says that it is there.
const DefaultHeartbeatEvery = 2 * time.Second

// heartbeatsMissed is after how many heartbeats a process that is silent counts no longer, and for how long a smaller
// number of processes must be seen before it is believed: a list that was lost fills within one.
const heartbeatsMissed = 3

// beatTimeout bounds one heartbeat, unless the budget is longer.
const beatTimeout = 500 * time.Millisecond

// Loss is a way in which a server's memory turned out not to be whole.
type Loss string

// The losses.
const (
	LostAll   Loss = "empty"      // it came back without what was there, or someone emptied it
	LostLast  Loss = "older"      // it came back with an older state, as a replica that lagged or from an old file does
	ClockBack Loss = "clock_back" // its clock stands before a time that it had written
)

// Change is a way in which a server turned out to be another one. Alone, it lost nothing.
type Change string

// The changes.
const (
	ChangedRun         Change = "run_id"         // it was started again, or is another process
	ChangedReplication Change = "replication_id" // its replication history is another: a replica was promoted
)

// heart says on each server that this process is there, learns how many there are, and notices when a server's memory is
// not what it was.
//
// Each server keeps the list under a key of its own; in a cluster, one whose hash tag it happens to keep. Safe for
// concurrent use.
type heart struct {
	store   *Store
	process string // this one's name in the lists

	mu     sync.Mutex // guards what follows
	seen   map[string]sight
	counts []int // of the last heartbeats, the newest last
	told   int   // what the observer knows
}

// sight is what was last seen of the list under one key.
type sight struct {
	name string
	last algorithms.Micros
}

func newHeart(s *Store) *heart {
	return &heart{store: s, process: randomHex(), seen: make(map[string]sight)}
}

// randomHex returns 16 hexadecimal digits, the first of which is not 0.
func randomHex() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	raw[0] |= 0x10
	return hex.EncodeToString(raw[:])
}

// run beats until ctx is done, and leaves.
func (h *heart) run(ctx context.Context) {
	tick := time.NewTicker(h.store.HeartbeatEvery)
	defer tick.Stop()
	for {
		h.beatAll(ctx, heartbeatsMissed*h.store.HeartbeatEvery)
		select {
		case <-ctx.Done():
			h.beatAll(context.WithoutCancel(ctx), 0)
			return
		case <-tick.C:
		}
	}
}

// beatAll beats on every server that answers, at once.
func (h *heart) beatAll(ctx context.Context, span time.Duration) {
	var beats sync.WaitGroup
	var mu sync.Mutex
	most := 0
	for _, n := range h.store.servers.nodes() {
		key := h.store.servers.keyOn(n, h.store.HeartbeatKey)
		if key == "" || n.breaker.Probing() {
			continue
		}
		beats.Go(func() {
			list, err := h.beat(ctx, n, key, span)
			if err != nil {
				return // the next one will tell
			}
			h.judge(key, list.Found, list.Name, list.Last, list.Now)
			mu.Lock()
			defer mu.Unlock()
			most = max(most, list.Processes)
		})
	}
	beats.Wait()
	if most > 0 && span > 0 {
		h.count(most)
	}
}

func (h *heart) beat(ctx context.Context, n *node, key string, span time.Duration) (lua.List, error) {
	ctx, cancel := context.WithTimeout(ctx, max(beatTimeout, n.Budget))
	defer cancel()
	beat := redis.NewCmd(ctx, lua.Beat(key, h.process, span, randomHex())...)
	n.pipeline(ctx, []*redis.Cmd{beat})
	if redis.HasErrorPrefix(beat.Err(), "NOSCRIPT") {
		beat.SetErr(nil)
		load := redis.NewCmd(ctx, "script", "load", lua.Heartbeat().Source())
		n.pipeline(ctx, []*redis.Cmd{load, beat})
	}
	if err := beat.Err(); err != nil {
		return lua.List{}, err
	}
	return lua.DecodeList(beat.Val())
}

// judge compares what is found in a list with what was seen there last, and remembers what is there now. found is the
// list's name before the heartbeat, empty when there was no list.
func (h *heart) judge(key, found, name string, last, now algorithms.Micros) {
	h.mu.Lock()
	defer h.mu.Unlock() // until it is told: greet waits for that
	before, known := h.seen[key]
	h.seen[key] = sight{name, max(last, now)}
	switch {
	case known && found != before.name && name != before.name: // or greet has seen the new list, and told
		h.store.Observer.StateLost(LostAll)
	case known && last < before.last:
		h.store.Observer.StateLost(LostLast)
	}
	if found != "" && now < last {
		h.store.Observer.StateLost(ClockBack)
	}
}

// count takes note of a number of processes. A larger one is believed at once, a smaller one when it lasts.
func (h *heart) count(n int) {
	h.mu.Lock()
	h.counts = append(h.counts, n)
	if len(h.counts) > heartbeatsMissed {
		h.counts = h.counts[1:]
	}
	most := 0
	for _, c := range h.counts {
		most = max(most, c)
	}
	news := most != h.told
	h.told = most
	h.mu.Unlock()
	if news {
		h.store.Observer.Processes(most)
	}
}

// greet looks at the list on a new connection, before anything else is asked on it: a server that was away may have come
// back with less. What goes wrong with the question itself is left to the next one.
func (h *heart) greet(ctx context.Context, n *node, cn *redis.Conn) error {
	key := h.store.servers.keyOn(n, h.store.HeartbeatKey)
	h.mu.Lock()
	before, known := h.seen[key]
	h.mu.Unlock()
	if !known {
		return nil
	}
	values, err := cn.MGet(ctx, key).Result()
	if err != nil || len(values) != 1 {
		if err != nil && !isReply(err) {
			return err
		}
		return nil
	}
	name, last, _ := lua.ReadList(values[0])
	lost := Loss("")
	switch {
	case name != before.name:
		lost = LostAll
	case last < before.last:
		lost = LostLast
	}
	if lost == "" {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[key] == before { // of several connections at once one tells, and the others wait until it has
		delete(h.seen, key) // what is there now is the next heartbeat's to see
		h.store.Observer.StateLost(lost)
	}
	return nil
}

// taggedKeys is how many keys are tried for one that a server of a cluster keeps. With a slot in a hundred it is missed
// never.
const taggedKeys = 4096

// tagged returns the i-th key like key in another slot: {fleet} becomes {fleet1}.
func tagged(key string, i int) string {
	if i == 0 {
		return key
	}
	return strings.Replace(key, "}", fmt.Sprintf("%d}", i), 1)
}

// identity is what INFO says about which server one is talking to.
type identity struct{ run, replication string }

// recognise tells the observer when a server is another one than it was. What INFO does not say is not judged.
func (n *node) recognise(now identity) {
	n.answered.Store(true)
	before := n.identity.Swap(&now)
	if before == nil {
		return
	}
	if before.run != "" && now.run != "" && before.run != now.run {
		n.Observer.ServerChanged(n.addr, ChangedRun)
	}
	if before.replication != "" && now.replication != "" && before.replication != now.replication {
		n.Observer.ServerChanged(n.addr, ChangedReplication)
	}
}
