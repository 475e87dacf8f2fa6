package identity

import (
	"sync"
	"time"
)

// tokenCache keeps verified tokens, so that a client that sends one token a thousand times has it verified once.
//
// An entry is found by the SHA-256 of the whole token as it was sent, so the cache says of a token exactly what verifying
// it would say: another spelling of a token that decodes to the same bytes has another digest, finds nothing, and is
// refused by the verification it gets. Only tokens that verified come in, so forged ones push nothing out.
//
// It has two generations. The younger takes what is new or asked for; when it is full it becomes the older one, and the
// former older one is dropped whole: no list to keep in order, no goroutine, and never more than the configured number.
// Safe for concurrent use.
type tokenCache struct {
	shards [cacheShards]cacheShard
	each   int // entries of one generation of one shard
}

const (
	cacheShards    = 64
	maxCacheTokens = 1_000_000

	// maxCachedBytes is the most text that one entry may hold: a token with a long list of scopes is verified each time,
	// so that a full cache has a known size.
	maxCachedBytes = 1 << 10
)

type digest = [32]byte

type cacheShard struct {
	mu             sync.Mutex // guards both
	younger, older map[digest]*verified
}

// verified is what the verification of one token gave. Immutable.
type verified struct {
	id          Identity
	from, until time.Time // when the token is valid, leeway included
	source      KeySource
	keys        *Keys // the keys that source had: with others, the token is verified again
}

func newTokenCache(tokens int) *tokenCache {
	return &tokenCache{each: max(1, tokens/(2*cacheShards))}
}

// get returns the identity of a token that is kept and still good: valid at now, and its issuer's keys the same.
func (c *tokenCache) get(d *digest, now time.Time) (Identity, bool) {
	s := &c.shards[d[0]%cacheShards]
	s.mu.Lock()
	v, young := s.younger[*d]
	if !young {
		if v = s.older[*d]; v != nil {
			delete(s.older, *d)
			c.insert(s, d, v)
		}
	}
	s.mu.Unlock()
	if v == nil || now.Before(v.from) || !now.Before(v.until) || v.source.Keys() != v.keys {
		return Identity{}, false
	}
	return v.id, true
}

// put keeps a verified token in place of what was kept of it.
func (c *tokenCache) put(d *digest, v *verified) {
	n := len(v.id.Tenant) + len(v.id.Subject) + len(v.id.Plan)
	for _, scope := range v.id.Scopes {
		n += len(scope) + 16
	}
	if n > maxCachedBytes {
		return
	}
	s := &c.shards[d[0]%cacheShards]
	s.mu.Lock()
	delete(s.older, *d)
	c.insert(s, d, v)
	s.mu.Unlock()
}

// insert is called with the shard's lock held.
func (c *tokenCache) insert(s *cacheShard, d *digest, v *verified) {
	if _, known := s.younger[*d]; !known && len(s.younger) >= c.each {
		s.older, s.younger = s.younger, nil
	}
	if s.younger == nil {
		s.younger = make(map[digest]*verified)
	}
	s.younger[*d] = v
}

// len returns how many tokens are kept.
func (c *tokenCache) len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.younger) + len(s.older)
		s.mu.Unlock()
	}
	return n
}
