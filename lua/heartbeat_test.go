package lua_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/lua"
)

func (s *server) beat(t *testing.T, process string, span time.Duration) lua.List {
	t.Helper()
	reply, err := s.client.Do(t.Context(), lua.Beat("list", process, span, "f00d")...).Result()
	if err != nil {
		t.Fatal(err)
	}
	l, err := lua.DecodeList(reply)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHeartbeat walks a list through its life.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		if err := s.client.ScriptLoad(t.Context(), lua.Heartbeat().Source()).Err(); err != nil {
			t.Fatal(err)
		}
		const long = time.Minute
		step := func(what string, got lua.List, found string, processes int) {
			t.Helper()
			if got.Found != found || got.Processes != processes || got.Now == 0 {
				t.Errorf("%s: %+v, want the list %q of %d", what, got, found, processes)
			}
		}
		first := s.beat(t, "a1", long)
		step("the first", first, "", 1)
		if first.Name != "f00d" || first.Last != 0 {
			t.Errorf("begun as %+v", first)
		}
		second := s.beat(t, "b2", long)
		step("another", second, "f00d", 2)
		if second.Last != first.Now {
			t.Errorf("last written at %d, want %d", second.Last, first.Now)
		}
		step("the first again", s.beat(t, "a1", long), "f00d", 2)
		step("one for a moment", s.beat(t, "c3", 20*time.Millisecond), "f00d", 3)
		time.Sleep(30 * time.Millisecond)
		step("it is forgotten", s.beat(t, "a1", long), "f00d", 2)
		step("one leaves", s.beat(t, "b2", 0), "f00d", 1)
		step("the last leaves", s.beat(t, "a1", 0), "f00d", 0)
		step("the list stays", s.beat(t, "a1", long), "f00d", 1)
		if ttl := s.client.PTTL(t.Context(), "list").Val(); ttl < 365*24*time.Hour {
			t.Errorf("it expires in %v", ttl)
		}

		// What cannot be read is none, and members from beyond an hour are none.
		for _, value := range []string{"", "x", "f00d", "f00d x", "f00d 99999999999999999 a1=1", "-1 1", "f00d -5"} {
			if err := s.client.Set(t.Context(), "list", value, 0).Err(); err != nil {
				t.Fatal(err)
			}
			if name, _, ok := lua.ReadList(value); ok {
				t.Errorf("%q reads as %q", value, name)
			}
			step(fmt.Sprintf("%q", value), s.beat(t, "a1", long), "", 1)
		}
		year3000 := time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
		value := fmt.Sprintf("beef %d b2=%d c3=%d d4=x e5=", time.Now().UnixMicro(), year3000, time.Now().Add(time.Minute).UnixMicro())
		if err := s.client.Set(t.Context(), "list", value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if name, last, ok := lua.ReadList(value); name != "beef" || last == 0 || !ok {
			t.Errorf("%q reads as %q, %d, %v", value, name, last, ok)
		}
		step("a member of the year 3000", s.beat(t, "a1", long), "beef", 2)
		if err := s.client.Del(t.Context(), "list").Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.client.RPush(t.Context(), "list", "f00d 1").Err(); err != nil {
			t.Fatal(err)
		}
		step("a value of another type", s.beat(t, "a1", long), "", 1)
	})
}

// TestHeartbeatIsBounded: a list of more processes than fit forgets some; the script never fails.
func TestHeartbeatIsBounded(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		if err := s.client.ScriptLoad(t.Context(), lua.Heartbeat().Source()).Err(); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "f00d %d", time.Now().UnixMicro())
		for i := range lua.MaxProcesses + 5 {
			fmt.Fprintf(&b, " %x=%d", i+100, time.Now().Add(time.Minute).UnixMicro())
		}
		if err := s.client.Set(t.Context(), "list", b.String(), 0).Err(); err != nil {
			t.Fatal(err)
		}
		if l := s.beat(t, "a1", time.Minute); l.Processes != lua.MaxProcesses+1 {
			t.Errorf("%d processes", l.Processes)
		}
	})
}

func TestDecodeListRefuses(t *testing.T) {
	t.Parallel()
	for _, reply := range []any{nil, 1, "", "1 2 - 0 f00d", "1 2 - 0 f00d 1 1", "1 x - 0 f00d 1", "1 2 - -1 f00d 1", "1 2 - 0 f00d x"} {
		if l, err := lua.DecodeList(reply); err == nil {
			t.Errorf("%v is read as %+v", reply, l)
		}
	}
}

// TestHeartbeatIsTidy: commands and conversions are those that the other script may use.
func TestHeartbeatIsTidy(t *testing.T) {
	t.Parallel()
	source := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(lua.Heartbeat().Source(), "")
	for _, call := range regexp.MustCompile(`redis\.\w+\('?\w*`).FindAllString(source, -1) {
		switch call {
		case "redis.call('TIME", "redis.call('MGET", "redis.call('SET":
		default:
			t.Errorf("a command that is not on the list: %s", call)
		}
	}
	if bad := regexp.MustCompile(`\btostring\b|%\.?\d*[efgG]|\b[A-Z]+_[A-Z_]+\b`).FindString(source); bad != "" {
		t.Errorf("%q", bad)
	}
}
