package redis_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
	"github.com/sentinel-rls/sentinel-rls/store/storetest"
)

// certain is a configuration under which no outcome is unknown, however busy the machine is, and which writes no key of
// its own, since the suite counts them.
func certain(url string) redis.Config {
	return redis.Config{
		URL: url, Budget: plenty, Breaker: rls.BreakerConfig{Failures: 1000}, ProbeEvery: time.Hour,
	}
}

// leastUser makes the user of docs/redis.md, with the password secret, for keys of any name: the suite has its own.
func leastUser(t testing.TB, client goredis.UniversalClient, extra ...string) {
	t.Helper()
	manual, err := os.ReadFile("../../docs/redis.md")
	must(t, err)
	_, rule, ok := strings.Cut(string(manual), "\nACL SETUSER sentinel-rls on >PASSWORD ")
	if !ok {
		t.Fatal("docs/redis.md names no user")
	}
	rule, _, _ = strings.Cut(rule, "\n")
	if !strings.HasSuffix(rule, commands+" ~sentinel:*") {
		t.Fatalf("docs/redis.md gives the user %q, want %q", rule, commands)
	}
	words := append(strings.Fields("acl setuser least on >secret "+rule), extra...)
	must(t, client.Do(t.Context(), toAny(append(words, "~*"))...).Err())
}

// TestConformanceOverTLS: a private authority, a client's certificate, and a user with no more rights than the manual asks
// for, whose password stands in a file.
func TestConformanceOverTLS(t *testing.T) {
	t.Parallel()
	certs, err := testserver.MakeCertificates(t.TempDir())
	must(t, err)
	files := redis.TLSFiles{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey}
	password := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(password, []byte("secret\n"), 0o600))
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		server := testserver.Start(t, testserver.Redis, testserver.WithTLS(certs))
		client := raw(t, server)
		leastUser(t, client)
		cfg := certain(server.URL())
		cfg.Username, cfg.PasswordFile = "least", password
		tls, err := files.Config()
		must(t, err)
		cfg.TLS = tls
		return storetest.Harness{Store: open(t, cfg), Server: backend{server, client}}
	})
}

func TestConformanceOverSocket(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		server := testserver.Start(t, testserver.Valkey, testserver.OnSocket())
		return storetest.Harness{Store: open(t, certain(server.URL())), Server: backend{server, raw(t, server)}}
	})
}

// several is storetest.Server of several servers, which subtests use one after the other.
type several struct {
	all     []*testserver.Server
	masters []*goredis.Client
	keys    goredis.UniversalClient
}

func (s several) harness(t *testing.T, turn *sync.Mutex, cfg redis.Config) storetest.Harness {
	t.Helper()
	turn.Lock()
	t.Cleanup(turn.Unlock)
	for _, m := range s.masters {
		must(t, m.FlushAll(t.Context()).Err())
	}
	store := open(t, cfg)
	must(t, store.Probe(t.Context())) // also learns the layout
	for _, m := range s.masters {
		must(t, m.FlushAll(t.Context()).Err()) // the probe's keys
	}
	return storetest.Harness{Store: store, Server: s}
}

func (s several) Read(t testing.TB, key string) (string, time.Duration, bool) {
	t.Helper()
	return readKey(t, s.keys, key)
}

func (s several) Write(t testing.TB, key, value string, ttl time.Duration) {
	t.Helper()
	must(t, s.keys.Set(t.Context(), key, value, ttl).Err())
}

func (s several) WriteList(t testing.TB, key string) {
	t.Helper()
	writeList(t, s.keys, key)
}

func (s several) Keys(t testing.TB) (n int) {
	t.Helper()
	for _, m := range s.masters {
		n += backend{client: m}.Keys(t)
	}
	return n
}

func (s several) SetFull(t testing.TB, full bool) {
	t.Helper()
	for _, m := range s.masters {
		backend{client: m}.SetFull(t, full)
	}
}

// SetFrozen freezes everyone, so that nobody takes anybody for dead.
func (s several) SetFrozen(t testing.TB, frozen bool) {
	t.Helper()
	for _, server := range s.all {
		backend{Server: server}.SetFrozen(t, frozen)
	}
}

func TestConformanceOfSentinel(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			set := testserver.StartSentinelSet(t, kind)
			master := raw(t, set.Master)
			s := several{append([]*testserver.Server{set.Master, set.Replica}, set.Sentinels...), []*goredis.Client{master}, master}
			var turn sync.Mutex
			storetest.Run(t, func(t *testing.T) storetest.Harness { return s.harness(t, &turn, certain(set.URL())) })
		})
	}
}

// TestConformanceOfCluster: the suite's keys have no hash tags, so its groups lie in several slots.
func TestConformanceOfCluster(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := testserver.StartCluster(t, kind)
			s := several{all: c.Servers(), keys: clusterClient(t, c)}
			for _, m := range c.Masters {
				s.masters = append(s.masters, raw(t, m))
			}
			var turn sync.Mutex
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				h := s.harness(t, &turn, certain(c.URL()))
				h.InSteps = true
				return h
			})
		})
	}
}

func clusterClient(t testing.TB, c *testserver.Cluster) *goredis.ClusterClient {
	t.Helper()
	var addrs []string
	for _, server := range c.Servers() {
		addrs = append(addrs, server.Addr())
	}
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: addrs, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}
