package identity

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func cached(keys *Keys, subject string) *verified {
	return &verified{
		id: Identity{Tenant: "t", Subject: subject}, source: keys, keys: keys,
		from: time.Unix(0, 0), until: time.Unix(100, 0),
	}
}

// However many tokens come, no more are kept than were asked for, and those in use stay.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	const tokens = 1280 // 10 of each generation in each shard
	keys, _ := NewKeys()
	c := newTokenCache(tokens)
	at := time.Unix(50, 0)
	used := sha256.Sum256([]byte("in use"))
	c.put(&used, cached(keys, "in use"))
	for i := range 100_000 {
		d := sha256.Sum256(fmt.Append(nil, i))
		c.put(&d, cached(keys, "passing"))
		if id, ok := c.get(&used, at); !ok || id.Subject != "in use" {
			t.Fatalf("a token in use was pushed out after %d others", i)
		}
	}
	if n := c.len(); n > tokens || n < tokens/2 {
		t.Errorf("%d tokens are kept, want at most %d and not far from it", n, tokens)
	}
}

// A token of long claims is not kept, so that a full cache has a known size.
func TestCacheKeepsNoLongClaims(t *testing.T) {
	t.Parallel()
	keys, _ := NewKeys()
	c := newTokenCache(100)
	v := cached(keys, "u")
	v.id.Scopes = strings.Fields(strings.Repeat("scope ", 200))
	d := sha256.Sum256([]byte("long"))
	c.put(&d, v)
	if n := c.len(); n != 0 {
		t.Errorf("%d kept", n)
	}
}

func TestCacheIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	keys, _ := NewKeys()
	c := newTokenCache(128)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				text := fmt.Sprint((i * (g + 1)) % 300)
				d := sha256.Sum256([]byte(text))
				if id, ok := c.get(&d, time.Unix(50, 0)); ok && id.Subject != text {
					t.Errorf("asked for %s, got %s", text, id.Subject)
				}
				c.put(&d, cached(keys, text))
			}
		})
	}
	wg.Wait()
}
