package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Keys live on for as long as the environment says, and the counts in them are those of their window all the same.
func TestCompatExpiryJitter(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	client := server.Client()
	t.Cleanup(func() { _ = client.Close() })
	root := files(t, map[string]string{"config/shop.yaml": "domain: shop\ndescriptors: [{key: s, rate_limit: {unit: second, requests_per_unit: 1000}}]\n"})
	for name, c := range map[string]struct {
		env         []string
		least, most time.Duration // of the longest of many
	}{
		"none": {nil, 0, 2 * time.Second},
		"day":  {[]string{"EXPIRATION_JITTER_MAX_SECONDS=86400"}, time.Hour, 24*time.Hour + 2*time.Second},
	} {
		in := compatServing(t, append(c.env, "RUNTIME_ROOT="+root, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr(), "CACHE_KEY_PREFIX="+name+":")...)
		conn := dial(t, in.grpcAddr)
		for i := range 20 {
			if got, text := limitOf(t, conn, asking("shop", "s", string(rune('a'+i)))); got != 1000 {
				t.Fatalf("%s: limit %d, %s", name, got, text)
			}
		}
		keys, err := client.Keys(t.Context(), name+":sentinel:d1:*").Result()
		if err != nil || name == "day" && len(keys) != 20 {
			t.Fatalf("%s: keys %q, %v", name, keys, err)
		}
		longest := time.Duration(0)
		for _, key := range keys {
			longest = max(longest, client.PTTL(t.Context(), key).Val())
		}
		if longest < c.least || longest > c.most {
			t.Errorf("%s: the longest of %d keys expires in %v, want %v to %v", name, len(keys), longest, c.least, c.most)
		}
	}
}

// A process that was told not to wait for ever for Redis serves while it waits, and then ends.
func TestCompatGivesUpOnRedis(t *testing.T) {
	t.Parallel()
	root := files(t, map[string]string{"config/shop.yaml": compatFile})
	there := testserver.Start(t, testserver.Redis)
	for _, c := range []struct {
		env      []string
		variable string
	}{
		{[]string{"REDIS_URL=127.0.0.1:1", "REDIS_STARTUP_MAX_ELAPSED_TIME=2s"}, "REDIS_STARTUP_MAX_ELAPSED_TIME"},
		{[]string{
			"REDIS_URL=" + there.Addr(), "REDIS_STARTUP_MAX_ELAPSED_TIME=1ns", "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp",
			"REDIS_PERSECOND_URL=127.0.0.1:1", "REDIS_PERSECOND_STARTUP_MAX_ELAPSED_TIME=2s", "REDIS_PERSECOND_STARTUP_INITIAL_INTERVAL=100ms",
			"REDIS_PERSECOND_STARTUP_MAX_INTERVAL=200ms",
		}, "REDIS_PERSECOND_STARTUP_MAX_ELAPSED_TIME"},
	} {
		began := time.Now()
		in := compatServing(t, append(c.env, "RUNTIME_ROOT="+root, "REDIS_SOCKET_TYPE=tcp", "SENTINEL_REDIS_BUDGET=100ms")...)
		if got, text := limitOf(t, dial(t, in.grpcAddr), asking("shop", "plan", "gold")); got != 10 {
			t.Errorf("while it waits: limit %d, %s", got, text)
		}
		code := in.wait()
		if code == exitOK || time.Since(began) < 2*time.Second || !strings.Contains(in.log(), "no server answered since the start, for 2s") ||
			!strings.Contains(in.log(), "raise "+c.variable) {
			t.Errorf("%s: exit code %d after %v\n%s", c.variable, code, time.Since(began), in.log())
		}
	}
}
