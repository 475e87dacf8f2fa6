package redis_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// commands are what the store needs, as ACL rules.
const commands = "+evalsha +script|load +mget +set +time +info"

// TestProbe: every fault of the configuration is found, and its message says which it is and how to mend it.
func TestProbe(t *testing.T) {
	user := func(rules string) []string {
		return append(strings.Fields("acl setuser u on >secret"), strings.Fields(rules)...)
	}
	for name, c := range map[string]struct {
		do     []string // on the server before
		user   string   // and its password; empty: the default user
		config redis.Config
		path   string   // of the URL
		want   []string // parts of the fault; none: no fault
	}{
		"fit":                  {},
		"fit, least user":      {do: user("~sentinel:* " + commands), user: "u:secret"},
		"evicts":               {do: []string{"config", "set", "maxmemory-policy", "allkeys-lru"}, want: []string{"allkeys-lru", "noeviction"}},
		"evicts, assumed not":  {do: []string{"config", "set", "maxmemory-policy", "volatile-ttl"}, config: redis.Config{AssumeNoeviction: true}, want: []string{"volatile-ttl"}},
		"INFO denied":          {do: user("~* +@all -info"), user: "u:secret", want: []string{"cannot be read", "redis.assume_noeviction"}},
		"INFO denied, assumed": {do: user("~* +@all -info"), user: "u:secret", config: redis.Config{AssumeNoeviction: true}},
		"wrong password":       {do: user("~* +@all"), user: "u:wrong", want: []string{"WRONGPASS", "redis.password_file"}},
		"no such user":         {user: "nobody:secret", want: []string{"WRONGPASS", "redis.username"}},
		"no password":          {do: []string{"config", "set", "requirepass", "secret"}, want: []string{"NOAUTH", "redis.password_file"}},
		"SELECT denied":        {do: user("~* +@all -select"), user: "u:secret", path: "/1", want: []string{"'select'", "+select"}},
		"EVALSHA denied":       {do: user("~* +@all -evalsha"), user: "u:secret", want: []string{"evalsha", "+evalsha"}},
		"SCRIPT LOAD denied":   {do: user("~* +@all -script"), user: "u:secret", want: []string{"script", "+script|load"}},
		"MGET denied":          {do: user("~* +@all -mget"), user: "u:secret", want: []string{"refuses a command", "+mget"}},
		"SET denied":           {do: user("~* +@all -set"), user: "u:secret", want: []string{"refuses a command", "+set"}},
		"TIME denied":          {do: user("~* +@all -time"), user: "u:secret", want: []string{"refuses a command", "+time"}},
		"keys denied":          {do: user("~other:* +@all"), user: "u:secret", want: []string{"refuses a command", "its keys"}},
		"keys with a prefix":   {do: user("~prod:* +@all"), user: "u:secret", config: redis.Config{ProbeKey: "prod:" + redis.DefaultProbeKey}},
		"no such database":     {path: "/9999", want: []string{"database", "redis.url"}},
		"another database":     {path: "/3"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, server *testserver.Server) {
				if client := raw(t, server); len(c.do) > 0 {
					must(t, client.Do(t.Context(), toAny(c.do)...).Err())
				}
				cfg := c.config
				cfg.URL, cfg.Budget = server.URL(), plenty
				if name, password, ok := strings.Cut(c.user, ":"); ok {
					cfg.URL = as(t, server, name, password)
				}
				cfg.URL += c.path
				err := open(t, cfg).Probe(t.Context())
				fault, found := errors.AsType[*redis.ConfigFault](err)
				if found != (len(c.want) > 0) || !found && err != nil {
					t.Fatalf("got %v, want a fault with %q", err, c.want)
				}
				for _, part := range c.want {
					if !strings.Contains(fault.Error(), part) {
						t.Errorf("%q does not say %q", fault, part)
					}
				}
				if found && (fault.Problem == "" || fault.Mend == "" || strings.Contains(fault.Error(), "secret")) {
					t.Errorf("%q", fault)
				}
			})
		})
	}
}

func toAny(words []string) []any {
	out := make([]any, len(words))
	for i, word := range words {
		out[i] = word
	}
	return out
}

// TestProbeOfClusterNode: its slots would answer MOVED to most keys.
func TestProbeOfClusterNode(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		err := open(t, redis.Config{URL: server.URL(), Budget: plenty}).Probe(t.Context())
		if fault, ok := errors.AsType[*redis.ConfigFault](err); !ok || !strings.Contains(fault.Error(), "cluster mode") {
			t.Fatalf("got %v, want a fault about cluster mode", err)
		}
	}, testserver.WithArgs("--cluster-enabled", "yes"))
}

// TestProbeIsNoFault: what passes by itself is no fault of the configuration.
func TestProbeIsNoFault(t *testing.T) {
	t.Parallel()
	probe := func(t *testing.T, cfg redis.Config) error {
		t.Helper()
		err := open(t, cfg).Probe(t.Context())
		if _, ok := errors.AsType[*redis.ConfigFault](err); ok || err == nil {
			t.Fatalf("got %v, want an error that is no fault", err)
		}
		return err
	}
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis)
		server.Kill()
		if err := probe(t, redis.Config{URL: server.URL()}); !errors.Is(err, rls.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	})
	t.Run("frozen", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis)
		must(t, server.Freeze())
		if err := probe(t, redis.Config{URL: server.URL()}); !errors.Is(err, rls.ErrTimeout) {
			t.Errorf("got %v, want ErrTimeout", err)
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis, testserver.WithArgs("--maxmemory", "1"))
		if err := probe(t, redis.Config{URL: server.URL(), Budget: plenty}); !errors.Is(err, rls.ErrStore) {
			t.Errorf("got %v, want ErrStore", err)
		}
	})
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis, testserver.WithArgs("--replicaof", "127.0.0.1", "1"))
		if err := probe(t, redis.Config{URL: server.URL(), Budget: plenty}); !errors.Is(err, rls.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	})
	for name, says := range map[string]string{"closes": "", "speaks HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "says nothing of sense": "$-5\r\n*-7\r\n"} {
		t.Run("server that "+name, func(t *testing.T) {
			t.Parallel()
			err := probe(t, redis.Config{URL: "redis://" + listen(t, says), Budget: plenty})
			if !errors.Is(err, rls.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
		})
	}
}

// listen returns the address of a server that says one thing after each thing it hears, and closes after the last.
func listen(t *testing.T, says ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			for _, text := range says {
				_, _ = c.Read(make([]byte, 64<<10))
				_, _ = io.WriteString(c, text)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestDP_05_identityCommandsAreOptional: the store works for a user who may not introduce himself, and does not try.
func TestDP_05_identityCommandsAreOptional(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		must(t, client.Do(t.Context(), toAny(strings.Fields("acl setuser u on >secret ~* -@all +select "+commands))...).Err())
		store := open(t, redis.Config{URL: as(t, server, "u", "secret") + "/2", Budget: plenty})
		must(t, store.Probe(t.Context()))
		rule := never(t, 2)
		for _, want := range []bool{true, true, false} {
			if a := answers(t, store, take("k", rule)); a.Allowed != want {
				t.Errorf("got %+v", a)
			}
		}
		stats, err := client.Info(t.Context(), "commandstats").Result()
		must(t, err)
		if strings.Contains(stats, "setinfo") || strings.Contains(stats, "setname") {
			t.Errorf("identity commands were sent: %s", stats)
		}
	})
}

// TestFaultFoundLater: a server that comes to evict keys fails every call until that is mended.
func TestFaultFoundLater(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		var seen observer
		store := open(t, redis.Config{URL: server.URL(), Budget: plenty, ProbeEvery: 10 * time.Millisecond, Observer: &seen})
		rule := never(t, 10)
		answers(t, store, take("k", rule))

		must(t, client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
		eventually(t, "the fault is found", func() bool { return seen.fault.Load() != nil })
		a := decide(store, plenty, take("k", rule))
		if !errors.Is(a.Err, rls.ErrStore) || !errors.Is(a.Err, redis.ErrNotSent) || !contains(a.Err, "allkeys-lru") {
			t.Errorf("got %v, want ErrStore about allkeys-lru", a.Err)
		}
		if !slices.Contains(store.Degraded(), redis.DegradedConfig) || store.BreakerState() != "closed" {
			t.Errorf("degraded %v, breaker %s", store.Degraded(), store.BreakerState())
		}
		// While the server cannot be asked, what is known stays.
		server.Kill()
		eventually(t, "the server is missed", func() bool { return slices.Contains(store.Degraded(), redis.DegradedDown) })
		if a := decide(store, plenty, take("k", rule)); !errors.Is(a.Err, rls.ErrStore) {
			t.Errorf("got %v, want ErrStore", a.Err)
		}
		must(t, server.Restart()) // with its first configuration
		eventually(t, "the fault is gone", func() bool { return seen.fault.Load() == nil })
		answers(t, store, take("k", rule))
		if got := store.Degraded(); len(got) > 0 || seen.faults.Load() != 2 {
			t.Errorf("degraded %v; told of %d changes, want 2", got, seen.faults.Load())
		}
	})
}

// TestServerComesLater: without a server the store starts, and finds it once it is there, without a call.
func TestServerComesLater(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Valkey)
	server.Kill()
	store := open(t, redis.Config{URL: server.URL(), Budget: plenty, ProbeEvery: 10 * time.Millisecond})
	eventually(t, "the server is missed", func() bool { return slices.Equal(store.Degraded(), []string{redis.DegradedDown}) })
	must(t, server.Restart())
	eventually(t, "the server is found", func() bool { return len(store.Degraded()) == 0 })
	answers(t, store, take("k", never(t, 1)))
}

// TestStartup: a server that was never there is probed ever more seldom, and for a bounded time; one that was is not.
func TestStartup(t *testing.T) {
	t.Parallel()
	t.Run("it gives up", func(t *testing.T) {
		t.Parallel()
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		must(t, err)
		var probes atomic.Int32
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				probes.Add(1)
				_ = c.Close() // as one that starts and fails does
			}
		}()
		defer l.Close()
		store, err := redis.New(redis.Config{
			URL: "redis://" + l.Addr().String(), Budget: plenty, ProbeEvery: time.Hour,
			Startup: redis.Startup{Every: 10 * time.Millisecond, Most: 320 * time.Millisecond, Bound: 2 * time.Second},
		})
		must(t, err)
		began := time.Now()
		err = store.Run(t.Context())
		if !errors.Is(err, redis.ErrNoServer) || !contains(err, "for 2s: "+l.Addr().String()) || time.Since(began) < 2*time.Second {
			t.Errorf("Run = %v after %v, want ErrNoServer and the cause", err, time.Since(began))
		}
		// Waits of 10, 20, 40, 80, 160 and then 320 ms: 5, and as many as fit into the rest, and one at the end.
		if n := probes.Load(); n < 2 || n > 5+6+1 {
			t.Errorf("%d probes in 2 s, want 12", n)
		}
	})
	t.Run("it was there once", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis)
		store, err := redis.New(redis.Config{
			URL: server.URL(), Budget: plenty, ProbeEvery: time.Hour, Startup: redis.Startup{Bound: time.Nanosecond},
		})
		must(t, err)
		must(t, store.Probe(t.Context()))
		server.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := store.Run(ctx); err != nil {
			t.Errorf("Run = %v, want it to wait for ever", err)
		}
	})
	t.Run("it answered calls, and no probe", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis)
		store, err := redis.New(redis.Config{
			URL: server.URL(), Budget: plenty, Startup: redis.Startup{Every: 2 * time.Second, Bound: 2 * time.Second},
		})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		stopped := make(chan error, 1)
		go func() { stopped <- store.Run(ctx) }()
		answered := decide(store, plenty, take("k", never(t, 1)))
		server.Kill()
		if err := <-stopped; answered.Err != nil || err != nil {
			t.Errorf("Run = %v after a call that was answered (%v), want it to wait for ever", err, answered.Err)
		}
	})
	t.Run("it comes unfit", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis, testserver.WithArgs("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
		store := open(t, redis.Config{
			URL: server.URL(), Budget: plenty, ProbeEvery: time.Hour, Startup: redis.Startup{Every: 10 * time.Millisecond},
		})
		eventually(t, "the fault is found", func() bool { return slices.Contains(store.Degraded(), redis.DegradedConfig) })
		must(t, raw(t, server).ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
		eventually(t, "the fault is gone", func() bool { return len(store.Degraded()) == 0 })
	})
	t.Run("a cluster that does not come", func(t *testing.T) {
		t.Parallel()
		store, err := redis.New(redis.Config{
			URL: "redis+cluster://127.0.0.1:1", Budget: plenty, Startup: redis.Startup{Every: 10 * time.Millisecond, Bound: 50 * time.Millisecond},
		})
		must(t, err)
		if err := store.Run(t.Context()); !errors.Is(err, redis.ErrNoServer) || !contains(err, "127.0.0.1:1") {
			t.Errorf("Run = %v, want ErrNoServer and the cause", err)
		}
	})
	t.Run("it comes later", func(t *testing.T) {
		t.Parallel()
		server := testserver.Start(t, testserver.Redis)
		server.Kill()
		store := open(t, redis.Config{
			URL: server.URL(), Budget: plenty, ProbeEvery: time.Hour,
			Startup: redis.Startup{Every: 10 * time.Millisecond, Most: 20 * time.Millisecond, Bound: time.Hour},
		})
		eventually(t, "the server is missed", func() bool { return len(store.Degraded()) > 0 })
		must(t, server.Restart())
		eventually(t, "the server is found", func() bool { return len(store.Degraded()) == 0 })
		answers(t, store, take("k", never(t, 1)))
	})
}

// TestExpiryJitter: keys live on for a while, and nothing else changes.
func TestExpiryJitter(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.Server) {
		client := raw(t, server)
		plain := open(t, redis.Config{URL: server.URL(), Budget: plenty})
		jittered := open(t, redis.Config{URL: server.URL(), Budget: plenty, ExpiryJitter: time.Hour})
		rule, err := algorithms.NewCountingWindow(2, time.Second)
		must(t, err)
		longest := time.Duration(0)
		const keys = 20
		key := func(i int) string { return fmt.Sprint("sentinel:d1:{k}:", i) }
		for i := range keys {
			answers(t, jittered, take(key(i), rule))
			_, ttl, ok := readKey(t, client, key(i))
			if !ok || ttl > time.Hour+2*time.Second {
				t.Fatalf("%s: there %t, expires in %v", key(i), ok, ttl)
			}
			longest = max(longest, ttl)
		}
		if longest < 5*time.Minute { // twenty times in the first twelfth
			t.Errorf("the longest of %d keys expires in %v", keys, longest)
		}
		time.Sleep(1100 * time.Millisecond) // the window is over, although the keys live
		left := 0
		for i := range keys {
			for _, store := range []*redis.Store{plain, jittered} {
				a := answers(t, store, rls.Group{{Key: key(i), Rule: rule, Op: algorithms.OpPeek, Cost: 1}})
				if a.Before[0].Present {
					left++
				}
				if in := rule.Advance(a.Before[0], a.Now); in.Level != 0 {
					t.Errorf("%s in the next window: %+v", key(i), in)
				}
			}
		}
		if left < keys {
			t.Errorf("of %d keys %d are left: nothing was shown", 2*keys, left)
		}
	})
}

// TestPasswordFile: it is read for every connection.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	client := raw(t, server)
	setUser := func(rules ...string) {
		must(t, client.Do(t.Context(), toAny(append([]string{"acl", "setuser", "u", "on", "~*", "+@all"}, rules...))...).Err())
	}
	setUser(">first")
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) { must(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("first\n")
	store := open(t, redis.Config{URL: server.URL(), Username: "u", PasswordFile: file, Budget: plenty})
	rule := never(t, 100)
	answers(t, store, take("k", rule))

	setUser("resetpass", ">second")
	must(t, client.Do(t.Context(), "client", "kill", "user", "u").Err())
	if a := decide(store, plenty, take("k", rule)); !errors.Is(a.Err, rls.ErrStore) || !contains(a.Err, "WRONGPASS") {
		t.Errorf("got %v, want WRONGPASS", a.Err)
	}
	write("second\r\n")
	answers(t, store, take("k", rule))

	must(t, os.Remove(file))
	must(t, client.Do(t.Context(), "client", "kill", "user", "u").Err())
	if a := decide(store, plenty, take("k", rule)); !errors.Is(a.Err, rls.ErrUnavailable) || !contains(a.Err, file) {
		t.Errorf("got %v, want ErrUnavailable with the file's name", a.Err)
	}
	if fault, ok := errors.AsType[*redis.ConfigFault](store.Probe(t.Context())); !ok || !strings.Contains(fault.Error(), file) {
		t.Errorf("got %v, want a fault with the file's name", fault)
	}
	write("second")
	answers(t, store, take("k", rule))
}

// TestTLS: through a TLS front before the server. A certificate that nobody vouches for is refused.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	front := httptest.NewUnstartedServer(nil) // only its certificate, for 127.0.0.1, is of use
	front.StartTLS()
	defer front.Close()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: front.TLS.Certificates})
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go join(c, server.Addr())
		}
	}()
	trusted := x509.NewCertPool()
	trusted.AddCert(front.Certificate())

	store := open(t, redis.Config{URL: "rediss://" + l.Addr().String(), TLS: &tls.Config{RootCAs: trusted}, Budget: plenty})
	must(t, store.Probe(t.Context()))
	rule := never(t, 1000)
	for range 100 {
		answers(t, store, take("k", rule))
	}
	stranger := open(t, redis.Config{URL: "rediss://" + l.Addr().String(), Budget: plenty})
	eventually(t, "the certificate is refused", func() bool {
		a := decide(stranger, plenty, take("k", rule))
		return errors.Is(a.Err, rls.ErrUnavailable) && contains(a.Err, "certificate")
	})
	plain := open(t, redis.Config{URL: "redis://" + l.Addr().String(), Budget: time.Second})
	if a := decide(plain, plenty, take("k", rule)); a.Err == nil {
		t.Errorf("got %+v without TLS", a)
	}
}

// TestDialTimeout: a server whose handshake takes longer than our own bound is reached when more time is given.
func TestDialTimeout(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis)
	front := httptest.NewUnstartedServer(nil)
	front.StartTLS()
	defer front.Close()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	var fronts sync.WaitGroup
	t.Cleanup(func() { l.Close(); fronts.Wait() }) // the stores are closed before that
	fronts.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fronts.Go(func() {
				time.Sleep(redis.DefaultDialTimeout * 3 / 2)
				join(tls.Server(c, &tls.Config{Certificates: front.TLS.Certificates}), server.Addr())
			})
		}
	})
	trusted := x509.NewCertPool()
	trusted.AddCert(front.Certificate())
	cfg := redis.Config{URL: "rediss://" + l.Addr().String(), TLS: &tls.Config{RootCAs: trusted}, Budget: 900 * time.Millisecond, ProbeEvery: time.Hour}
	impatient := open(t, cfg)
	cfg.DialTimeout = 20 * time.Second
	patient := open(t, cfg)
	eventually(t, "the patient one answers", func() bool { return decide(patient, plenty, take("k", never(t, 1000))).Err == nil })
	if a := decide(impatient, plenty, take("k", never(t, 1000))); a.Err == nil {
		t.Error("the other one answers too: nothing was shown")
	}
}

// join copies between a connection and a server until either ends.
func join(c net.Conn, addr string) {
	defer c.Close()
	up, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer up.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.Close()
	}()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	<-done
}

// TestNewRefuses: faults of the configuration itself, without a word of a password.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, []byte("\n"), 0o600))
	url := func(u string) redis.Config { return redis.Config{URL: u} }
	for want, cfgs := range map[string][]redis.Config{
		"no URL":            {{}},
		"malformed":         {url("redis://:secret@host:port"), url("redis://user:secret@%zz"), url("\x00://host")},
		"another scheme":    {url("http://user:secret@host"), url("host:6379"), url("sentinel://host")},
		"no host":           {url("redis://"), url("redis://:6379"), url("redis:///1")},
		"no socket":         {url("unix://run/redis.sock"), url("unix://")},
		"has options":       {url("redis://host?max_retries=3"), url("redis://host/?a=%zz"), url("rediss://secret@host?skip_verify=true"), url("unix:///s?db=1&pool_size=9"), url("redis://host#secret")},
		"no database":       {url("redis://host/one"), url("redis://host/-1"), url("redis://host/1/2"), url("redis://host/01"), url("unix:///s?db=x")},
		"several hosts":     {url("redis://a,b"), url("rediss://user:secret@a:1,b:2")},
		"more than 64":      {url("redis+cluster://" + strings.Repeat("a,", 64) + "b")},
		"twice":             {url("redis+cluster://a,b,a:6379"), url("redis+sentinel://a:26379,a/m")},
		"not in the form":   {url("redis+sentinel://a,,b/m"), url("redis+cluster://a,:1"), url("redis+cluster://a,b c")},
		"no master":         {url("redis+sentinel://a,b"), url("rediss+sentinel://a/"), url("redis+sentinel://a//1")},
		"names a database":  {url("redis+cluster://a/1"), url("rediss+cluster://a,b/x")},
		"for sentinels":     {{URL: "redis://host", SentinelUsername: "u"}, {URL: "redis+cluster://host", SentinelPasswordFile: "probe.go"}},
		"budget":            {{URL: "redis://host", Budget: -1}},
		"dial timeout":      {{URL: "redis://host", DialTimeout: -1}},
		"workers":           {{URL: "redis://host", Workers: -1}},
		"queue":             {{URL: "redis://host", Queue: -1}},
		"at the start":      {{URL: "redis://host", Startup: redis.Startup{Every: -1}}, {URL: "redis://host", Startup: redis.Startup{Bound: -1}}},
		"expiry jitter":     {{URL: "redis://host", ExpiryJitter: -1}},
		"probe":             {{URL: "redis://host", ProbeEvery: -1}},
		"password file":     {{URL: "redis://host", PasswordFile: "/does/not/exist"}},
		"is empty":          {{URL: "redis://host", PasswordFile: empty}},
		"TLS is configured": {{URL: "redis://host", TLS: &tls.Config{MinVersion: tls.VersionTLS12}}},
	} {
		for _, cfg := range cfgs {
			store, err := redis.New(cfg)
			if store != nil || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: got %v, want an error with %q", cfg.URL, err, want)
			}
		}
	}
	_, err := redis.New(redis.Config{URL: "redis://host", Budget: -1, Workers: -1})
	if !contains(err, "budget") || !contains(err, "workers") {
		t.Errorf("got %v, want both faults", err)
	}
	for _, u := range []string{
		"redis://host", "redis://host:6379", "redis://host/", "redis://host/3", "redis://user:secret@host:6379/0", "redis://:secret@[::1]:6379",
		"rediss://host:6380", "unix:///run/redis.sock", "unix:///run/redis.sock?db=3",
	} {
		if _, err := redis.New(url(u)); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
}
