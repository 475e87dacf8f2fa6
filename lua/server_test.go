package lua_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// server is a real server that knows the script, and one connection to it.
type server struct {
	*testserver.Server
	client  *redis.Client
	encoder *lua.Encoder
}

// eachServer runs a test on Redis and on Valkey, each started for it alone.
func eachServer(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, startServer(t, kind))
		})
	}
}

func startServer(t *testing.T, kind testserver.Kind) *server {
	t.Helper()
	return connect(t, testserver.Start(t, kind, testserver.OnSocket()))
}

// connect connects to a server and has it load the script.
func connect(t *testing.T, running *testserver.Server) *server {
	t.Helper()
	s := &server{Server: running, encoder: lua.NewEncoder(0)}
	s.client = redis.NewClient(&redis.Options{
		Network: s.Network(), Addr: s.Addr(), MaxRetries: -1, PoolSize: 1,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, PoolTimeout: 10 * time.Second,
	})
	t.Cleanup(func() { _ = s.client.Close() })
	digest, err := s.client.ScriptLoad(t.Context(), lua.Group().Source()).Result()
	if err != nil {
		t.Fatal(err)
	}
	if want := lua.Group().SHA1(); digest != want {
		t.Fatalf("the server's digest of the script is %s, ours %s", digest, want)
	}
	return s
}

func (s *server) command(t *testing.T, calls ...lua.Call) []any {
	t.Helper()
	args, err := s.encoder.AppendCommand(nil, calls)
	if err != nil {
		t.Fatal(err)
	}
	return args
}

// decodeOne decodes the reply about one group.
func decodeOne(reply any, calls []lua.Call) (lua.Reply, error) {
	replies, err := lua.Decode(reply, calls)
	if err != nil {
		return lua.Reply{}, err
	}
	return replies[0], nil
}

// decide runs the production script.
func (s *server) decide(t *testing.T, calls ...lua.Call) lua.Reply {
	t.Helper()
	raw, err := s.client.Do(t.Context(), s.command(t, calls...)...).Result()
	if err != nil {
		t.Fatalf("%+v: %v", calls, err)
	}
	reply, err := decodeOne(raw, calls)
	if err != nil {
		t.Fatalf("%+v: %v", calls, err)
	}
	return reply
}

func (s *server) now(t *testing.T) algorithms.Micros {
	t.Helper()
	now, err := s.client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return algorithms.Micros(now.UnixMicro())
}

func (s *server) do(t *testing.T, args ...any) any {
	t.Helper()
	v, err := s.client.Do(t.Context(), args...).Result()
	if err != nil && err != redis.Nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// get returns a string value; "" when there is none.
func (s *server) get(t *testing.T, key string) string {
	t.Helper()
	v, _ := s.do(t, "GET", key).(string)
	return v
}

// pttl is the time to live in ms: -1 without expiry, -2 without key.
func (s *server) pttl(t *testing.T, key string) int64 {
	t.Helper()
	v, _ := s.do(t, "PTTL", key).(int64)
	return v
}

// atInstant seeds key so that the script finds the state before at exactly the time now of its own clock, which both
// may be moved together by any whole number of microseconds, and returns what it replied and stored. The server's
// clock cannot be set, so the state is seeded for a moment just ahead until the script happens to run in it.
func (s *server) atInstant(t *testing.T, c lua.Call, before algorithms.State, now algorithms.Micros) (algorithms.Micros, lua.Reply, string) {
	t.Helper()
	ctx := t.Context()
	planned, lag := s.now(t), algorithms.Micros(100)
	for range 100_000 {
		planned += lag
		shift := planned - now
		var run *redis.Cmd
		var stored *redis.StringCmd
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, c.Key)
			if before.Present {
				seeded := before
				seeded.At += shift
				p.Set(ctx, c.Key, lua.EncodeState(c.Rule, seeded), time.Hour)
			}
			run = p.Do(ctx, s.command(t, c)...)
			stored = p.Get(ctx, c.Key)
			return nil
		})
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		reply, err := decodeOne(run.Val(), []lua.Call{c})
		if err != nil {
			t.Fatal(err)
		}
		if reply.Now == planned {
			return shift, reply, stored.Val()
		}
		// Half way to what the lag turned out to be: it varies from try to try.
		lag = max(1, lag+(reply.Now-planned)/2)
		planned = reply.Now
	}
	t.Fatal("the script never ran in the microsecond it was seeded for")
	return 0, lua.Reply{}, ""
}
