package rls

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// overCacheEntryBytes is about what one entry of an overCache costs.
const overCacheEntryBytes = 256

const overCacheShards = 16

// overCache remembers counting windows that are over limit until they end, so that the store is spared the hits that
// cannot change the answer: LOCAL_CACHE_SIZE_IN_BYTES. What it keeps is the count, not the answer: a limit that is raised
// in mid-window counts at once. Bounded; when it is full the older half goes.
type overCache struct {
	seed   maphash.Seed
	shards [overCacheShards]overShard
}

type overShard struct {
	mu         sync.Mutex
	half       int // entries per generation
	young, old map[string]overEntry
}

// overEntry is a window as a store's answer showed it.
type overEntry struct {
	count int64
	end   algorithms.Micros // of the window, by the store's clock
	at    algorithms.Micros // the store's clock when it answered
	sent  time.Duration     // this process's clock before that
}

func newOverCache(bytes int) *overCache {
	c := &overCache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].half = max(1, bytes/overCacheEntryBytes/overCacheShards/2)
		c.shards[i].young = make(map[string]overEntry)
	}
	return c
}

func (c *overCache) shard(key string) *overShard {
	return &c.shards[maphash.String(c.seed, key)%overCacheShards]
}

// over reports whether a window is over a limit, and how long at most until it ends. now is this process's clock.
func (c *overCache) over(key string, limit int64, now time.Duration) (left time.Duration, ok bool) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.young[key]
	if !ok {
		if e, ok = s.old[key]; !ok {
			return 0, false
		}
	}
	// The store's clock may run up to 0.1 % faster than this one.
	passed := algorithms.Micros((now - e.sent).Microseconds() + 1)
	if e.at+passed+passed/1000 >= e.end {
		delete(s.young, key)
		delete(s.old, key)
		return 0, false
	}
	return (e.end - e.at - passed).Duration(), e.count > limit
}

// learn keeps a window that is over limit.
func (c *overCache) learn(key string, e overEntry) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.young) >= s.half {
		s.old, s.young = s.young, make(map[string]overEntry, s.half)
	}
	s.young[key] = e
}

// forget drops a window that someone gave back to.
func (c *overCache) forget(key string) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.young, key)
	delete(s.old, key)
}
