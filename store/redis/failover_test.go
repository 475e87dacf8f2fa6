package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// TestFailover: the master is killed, its replica takes over, and the store follows, with the buckets as the replica has
// them.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			set := testserver.StartSentinelSet(t, kind)
			store := open(t, redis.Config{
				URL: set.URL(), Budget: time.Second, Breaker: rls.BreakerConfig{Quarantine: 100 * time.Millisecond},
			})
			must(t, store.Probe(t.Context()))
			rule := never(t, 1000)
			for range 10 {
				answers(t, store, take("k", rule))
			}
			eventually(t, "the replica has everything", func() bool { return offsetsAgree(t, set.Master, set.Replica) })
			set.Master.Kill()
			if a := decide(store, plenty, take("k", rule)); a.Err == nil {
				t.Errorf("got %+v of a dead master", a)
			}
			eventually(t, "the store follows", func() bool { return decide(store, plenty, take("k", rule)).Err == nil })
			a := answers(t, store, take("k", rule))
			if left := rule.Peek(a.Before[0], a.Now, 1).Remaining; left > 990 {
				t.Errorf("%d left of 1000: takes were forgotten", left)
			}
			if n := calls(t, raw(t, set.Replica), "evalsha"); n == 0 {
				t.Error("the promoted replica ran no script")
			}
		})
	}
}

// TestFailoverWithoutDeath: a master that still takes writes although its place was given away is left.
func TestFailoverWithoutDeath(t *testing.T) {
	t.Parallel()
	set := testserver.StartSentinelSet(t, testserver.Redis)
	var seen observer
	store := open(t, redis.Config{
		URL: set.URL(), Budget: time.Second, Observer: &seen, Breaker: rls.BreakerConfig{Quarantine: 100 * time.Millisecond},
	})
	rule := never(t, 1000)
	answers(t, store, take("k", rule))
	old, replica := raw(t, set.Master), raw(t, set.Replica)

	sentinel := goredis.NewSentinelClient(&goredis.Options{Addr: set.Sentinels[0].Addr()})
	defer sentinel.Close()
	must(t, sentinel.Failover(t.Context(), testserver.MasterName).Err())
	eventually(t, "the replica is promoted", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "role:master")
	})
	// The sentinels leave the old master alone for another eight seconds.
	if !strings.Contains(old.Info(t.Context(), "replication").Val(), "role:master") {
		t.Error("the old master takes no writes any more: the test shows nothing")
	}
	eventually(t, "the store is with the new master", func() bool {
		before := calls(t, replica, "evalsha")
		return decide(store, plenty, take("k", rule)).Err == nil && calls(t, replica, "evalsha") > before
	})
}

// TestProbeOfSentinel: what is wrong with the sentinels is told apart from what is wrong with the master.
func TestProbeOfSentinel(t *testing.T) {
	t.Parallel()
	set := testserver.StartSentinelSet(t, testserver.Valkey)
	fault := func(cfg redis.Config) string {
		t.Helper()
		cfg.Budget = plenty
		err := open(t, cfg).Probe(t.Context())
		f, ok := errors.AsType[*redis.ConfigFault](err)
		if !ok {
			t.Fatalf("got %v, want a fault", err)
		}
		return f.Error()
	}
	if f := fault(redis.Config{URL: strings.Replace(set.URL(), testserver.MasterName, "other", 1)}); !strings.Contains(f, "no such master") {
		t.Errorf("unknown master: %s", f)
	}
	if f := fault(redis.Config{URL: "redis://" + set.Sentinels[0].Addr()}); !strings.Contains(f, "redis+sentinel://") {
		t.Errorf("a sentinel as the server: %s", f)
	}
	password := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(password, []byte("wrong"), 0o600))
	if f := fault(redis.Config{URL: set.URL(), SentinelUsername: "u", SentinelPasswordFile: password}); !strings.Contains(f, "redis.sentinel.password_file") {
		t.Errorf("wrong password for the sentinels: %s", f)
	}
	if f := fault(redis.Config{URL: set.URL(), Username: "u", PasswordFile: password}); !strings.Contains(f, "redis.password_file") {
		t.Errorf("wrong password for the master: %s", f)
	}
	// Two of three sentinels away, and the one that is left is enough to find the master.
	set.Sentinels[0].Kill()
	must(t, set.Sentinels[1].Freeze())
	store := open(t, redis.Config{URL: set.URL(), Budget: plenty})
	must(t, store.Probe(t.Context()))
	set.Sentinels[2].Kill()
	late := open(t, redis.Config{URL: set.URL(), Budget: plenty})
	if err := late.Probe(t.Context()); !errors.Is(err, rls.ErrUnavailable) && !errors.Is(err, rls.ErrTimeout) {
		t.Errorf("no sentinel: %v", err)
	}
}

// TestRF_10_passwordChangedUnderLoad: the file is read for each connection, so nothing but what was on a connection that
// the server closed notices.
func TestRF_10_passwordChangedUnderLoad(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		leastUser(t, client)
		file := filepath.Join(t.TempDir(), "password")
		must(t, os.WriteFile(file, []byte("secret"), 0o600))
		store := open(t, redis.Config{
			URL: server.URL(), Username: "least", PasswordFile: file, Budget: plenty, Breaker: rls.BreakerConfig{Failures: 1000},
		})
		rule := never(t, 1_000_000)
		stop := make(chan struct{})
		var callers sync.WaitGroup
		var answered, cut atomic.Int64
		for range 8 {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					switch a := decide(store, plenty, take("k", rule)); {
					case a.Err == nil:
						answered.Add(1)
					case errors.Is(a.Err, rls.ErrUnavailable):
						cut.Add(1)
					default:
						t.Error(a.Err)
						return
					}
				}
			})
		}
		for i := range 10 {
			was, is := "secret", fmt.Sprint("secret", i)
			if i > 0 {
				was = fmt.Sprint("secret", i-1)
			}
			must(t, client.Do(t.Context(), "acl", "setuser", "least", ">"+is).Err())
			must(t, os.WriteFile(file+".new", []byte(is), 0o600))
			must(t, os.Rename(file+".new", file))
			time.Sleep(100 * time.Millisecond) // a connection that read the old one is through
			must(t, client.Do(t.Context(), "acl", "setuser", "least", "<"+was).Err())
			must(t, client.Do(t.Context(), "client", "kill", "user", "least").Err())
			time.Sleep(10 * time.Millisecond)
		}
		close(stop)
		callers.Wait()
		if answered.Load() == 0 || store.BreakerState() != "closed" {
			t.Errorf("%d answered, %d cut off, breaker %s", answered.Load(), cut.Load(), store.BreakerState())
		}
	})
}

// TestRF_14_nameMovesToAnotherAddress: the old address swallows everything; new connections use the new one within one
// quarantine, and those to the old one are gone.
func TestRF_14_nameMovesToAnotherAddress(t *testing.T) { //nolint:paralleltest // it replaces the resolver
	server := testserver.Start(t, testserver.Redis)
	_, port, _ := net.SplitHostPort(server.Addr())
	// The old address: everything is accepted, nothing answered.
	hole, err := net.Listen("tcp", "127.0.0.2:"+port)
	must(t, err)
	defer hole.Close()

	var address atomic.Pointer[[4]byte]
	address.Store(&[4]byte{127, 0, 0, 1})
	resolver := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: nameServer(t, &address)}
	defer func() { net.DefaultResolver = resolver }()

	const quarantine = 200 * time.Millisecond
	var seen observer
	store, stop := start(t, redis.Config{
		URL: "redis://store.test:" + port, Budget: 100 * time.Millisecond, Observer: &seen,
		Breaker: rls.BreakerConfig{Quarantine: quarantine},
	})
	defer stop()
	rule := never(t, 100)
	eventually(t, "an answer", func() bool { return decide(store, plenty, take("k", rule)).Err == nil })

	must(t, server.Freeze()) // the connections that are open
	address.Store(&[4]byte{127, 0, 0, 2})
	eventually(t, "the breaker opens", func() bool {
		return decide(store, plenty, take("k", rule)).Err != nil && store.BreakerState() == "open"
	})
	must(t, server.Thaw())
	address.Store(&[4]byte{127, 0, 0, 1})
	moved := time.Now()
	eventually(t, "an answer", func() bool { return decide(store, plenty, take("k", rule)).Err == nil })
	if took := time.Since(moved); took > quarantine+time.Second {
		t.Errorf("the new address was used after %v", took)
	}
	if n := seen.connections.Load(); n > 2 {
		t.Errorf("%d connections", n)
	}
}

// nameServer answers every question for an address with the current one.
func nameServer(t *testing.T, address *atomic.Pointer[[4]byte]) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			for {
				var size [2]byte // over a stream, messages have a length
				if _, err := readFull(theirs, size[:]); err != nil {
					return
				}
				question := make([]byte, int(size[0])<<8|int(size[1]))
				if _, err := readFull(theirs, question); err != nil {
					return
				}
				answer, err := nameAnswer(question, *address.Load())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := theirs.Write(append([]byte{byte(len(answer) >> 8), byte(len(answer))}, answer...)); err != nil {
					return
				}
			}
		}()
		return ours, nil
	}
}

func readFull(c net.Conn, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = c.Read(b[n:])
		n += m
	}
	return n, err
}

func nameAnswer(question []byte, address [4]byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	m.Response, m.Authoritative = true, true
	m.Additionals = nil
	for _, q := range m.Questions {
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 0},
				Body:   &dnsmessage.AResource{A: address},
			})
		}
	}
	return m.Pack()
}
