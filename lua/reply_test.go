package lua_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

func twoCalls(t testing.TB) []lua.Call {
	return []lua.Call{take("a", bucket(t, 10, 1, 1), 1), take("b", window(t, 10, time.Second), 1)}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	calls := twoCalls(t)
	tb := algorithms.State{Present: true, Level: 9_000_000, At: 1_796_035_863_123_456}
	sw := algorithms.State{Present: true, Level: 3, Previous: 4, At: 1_796_035_863_000_000}
	for text, want := range map[string]lua.Reply{
		"1796035863 123456 1 9000000:1796035863123456 3:4:1796035863000000": {Now: 1_796_035_863_123_456, Before: []algorithms.State{tb, sw}, Allowed: true},
		"1796035863 123456 0 - 3:4:1796035863000000":                        {Now: 1_796_035_863_123_456, Before: []algorithms.State{{}, sw}},
		"1796035863 7 1+2 ? -":                                              {Now: 1_796_035_863_000_007, Before: []algorithms.State{{}, {}}, Allowed: true, Healed: 2},
	} {
		got, err := decodeOne(text, calls)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// A reply about several groups: the statuses of all come first, then the values of all.
func TestDecodeSeveralGroups(t *testing.T) {
	t.Parallel()
	two, one := twoCalls(t), []lua.Call{take("c", bucket(t, 10, 1, 1), 1)}
	const now = 1_796_035_863_123_456
	tb := algorithms.State{Present: true, Level: 9_000_000, At: now}
	sw := algorithms.State{Present: true, Level: 3, Previous: 4, At: 1_796_035_863_000_000}
	refusal := "OOM command not allowed"
	const text = "1796035863 123456 0 %s 1+1 - 3:4:1796035863000000 9000000:1796035863123456 ? -"
	for status, reply := range map[string]any{
		"1": fmt.Sprintf(text, "1"),
		"!": []any{fmt.Sprintf(text, "!"), refusal},
	} {
		want := []lua.Reply{
			{Now: now, Before: []algorithms.State{{}, sw}},
			{Now: now, Before: []algorithms.State{tb}, Allowed: true},
			{Now: now, Before: []algorithms.State{{}, {}}, Allowed: true, Healed: 1},
		}
		if status == "!" {
			want[1].Allowed, want[1].Refused = false, refusal
		}
		got, err := lua.Decode(reply, two, one, two)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", status, got, err, want)
		}
		for _, groups := range [][][]lua.Call{{two, one}, {two, one, one}, {two, one, two, one}, {one, two, two}, {two, two, one, one}} {
			if got, err := lua.Decode(reply, groups...); !errors.Is(err, lua.ErrReply) || got != nil {
				t.Errorf("%s, read as another command's: %+v, %v; want an ErrReply", status, got, err)
			}
		}
	}
}

// Whatever a server, a proxy or another version of the script may answer: what is not a whole reply is an error, and
// never a reply of zeros.
func TestLUA_04_malformed_replies_are_errors(t *testing.T) {
	t.Parallel()
	calls := twoCalls(t)
	for _, reply := range []any{
		nil, int64(1), 1.5,
		[]any{},
		[]any{"1796035863", "123456", "1", "-", "-"},
		map[any]any{},
		true, errors.New("x"),
		"1796035863 123456 ! - -",
		[]any{"1796035863 123456 ! - -"},
		[]any{"1796035863 123456 ! - -", ""},
		[]any{"1796035863 123456 !+1 - -", "OOM"},
		[]any{"OOM", "1796035863 123456 ! - -"},
		[]any{"1796035863 123456 ! - -", nil},
		[]any{"1796035863 123456 ! - -", "OOM", nil},
		[]any{int64(1), "OOM"},
		[]any{"1796035863 123456 ! - -", errors.New("OOM")},
		"", " ", "1796035863", "1796035863 123456", "1796035863 123456 1", "1796035863 123456 1 -",
		"1796035863 123456 1 - ", "1796035863 123456 1 - - ", "1796035863 123456 1 - - -", " 1796035863 123456 1 - -",
		"1796035863  123456 1 - -", "1796035863 123456 1 -  -", "-1 123456 1 - -", "1796035863 -1 1 - -",
		"1796035863 1000000 1 - -", "4503599628 0 1 - -", "99999999999999999999999 0 1 - -", "nan 0 1 - -", "1e9 0 1 - -",
		"1796035863 123456 2 - -", "1796035863 123456 1+ - -", "1796035863 123456 1+0 - -", "1796035863 123456 1+3 - -",
		"1796035863 123456 1+-1 - -", "1796035863 123456 1+1+1 - -", "1796035863 123456 +1 - -", "1796035863 123456 ok - -",
		"1796035863 123456 1 3:4:1796035863000000 -", "1796035863 123456 1 - 9000000:1796035863123456",
		"1796035863 123456 1 9000000: -", "1796035863 123456 1 -5:1796035863123456 -", "1796035863 123456 1 - 3:4:1796035863000001",
		"1796035863 123456 1 5:1796039463123457 -", "1796035863 123456 1 nil nil", "1796035863 123456 1 " + strings.Repeat("0", 1<<20),
	} {
		got, err := decodeOne(reply, calls)
		if !errors.Is(err, lua.ErrReply) || !reflect.DeepEqual(got, lua.Reply{}) {
			t.Errorf("%.80q: %+v, %v; want an ErrReply and no reply", fmt.Sprint(reply), got, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%.80q: the error has %d bytes", fmt.Sprint(reply), len(err.Error()))
		}
	}
}

// The server's own conversions are why: a table stops at nil, numbers lose their fraction and saturate. A reply that is
// one string is none of that.
func TestLUA_04_servers_cut_numbers_and_tables(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for script, want := range map[string]any{
			"return {1, 2.9, '2.9', nil, 5}":       []any{int64(1), int64(2), "2.9"},
			"return 1796035863123456.5":            int64(1_796_035_863_123_456),
			"return string.format('%d', 2^52 + 1)": "4503599627370497",
		} {
			got := s.do(t, "EVAL", script, 0)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, want %v", script, got, want)
			}
			if _, err := decodeOne(got, twoCalls(t)); !errors.Is(err, lua.ErrReply) {
				t.Errorf("%s: decoded with error %v, want an ErrReply", script, err)
			}
		}
	})
}

// FuzzDecode: no reply panics, and one that decodes has one readable or absent state per call, none beyond the clock.
func FuzzDecode(f *testing.F) {
	f.Add("1796035863 123456 1 9000000:1796035863123456 3:4:1796035863000000")
	f.Add("1796035863 123456 0+2 - ?")
	f.Add("1796035863 123456 1 00:00 0:0:0")
	f.Add("1796035863 123456 0 1+1 - ? 9000000:1796035863123456 -")
	f.Add("1796035863 123456 ! 1 - ? 9000000:1796035863123456 -")
	calls := twoCalls(f)
	refusal := "OOM"
	f.Fuzz(func(t *testing.T, text string) {
		for _, reply := range []any{text, []any{text, refusal}} {
			all, err := lua.Decode(reply, calls, calls)
			if err != nil && all != nil || err == nil && len(all) != 2 {
				t.Errorf("%q: %v and %d replies", text, err, len(all))
			}
			for _, r := range all {
				if _, plain := reply.(string); r.Refused != "" && (plain || r.Allowed || r.Healed > 0) {
					t.Errorf("%q: refused, %+v", text, r)
				}
			}
		}
		r, err := decodeOne(text, calls)
		if err != nil {
			return
		}
		if len(r.Before) != len(calls) || r.Now < 0 || r.Healed < 0 || r.Healed > len(calls) {
			t.Fatalf("%q: %+v", text, r)
		}
		for i, s := range r.Before {
			if !calls[i].Rule.Valid(s, r.Now) {
				t.Errorf("%q: state %d is %+v, which its rule refuses", text, i, s)
			}
		}
	})
}

// FuzzDecodeState: what decodes is valid, and its own text decodes to it again.
func FuzzDecodeState(f *testing.F) {
	for _, text := range []string{"5:6", "3:4:0", "0:0:1000000", "", ":", "::", "5:6:7:8", "99999999999999999999:0", "007:08", "-1:5"} {
		f.Add(text, int64(1_796_035_863_123_456))
	}
	rules := []algorithms.Rule{bucket(f, 10, 1, 1), window(f, 10, time.Second)}
	f.Fuzz(func(t *testing.T, text string, now int64) {
		if now < 0 || now > 1<<52 {
			return
		}
		for _, r := range rules {
			s, ok := lua.DecodeState(r, text, algorithms.Micros(now))
			if !ok {
				if s != (algorithms.State{}) {
					t.Errorf("%v %q: unreadable, but %+v", r.Kind(), text, s)
				}
				continue
			}
			if !s.Present || !r.Valid(s, algorithms.Micros(now)) {
				t.Errorf("%v %q: %+v is not valid", r.Kind(), text, s)
			}
			if again, ok := lua.DecodeState(r, lua.EncodeState(r, s), algorithms.Micros(now)); !ok || again != s {
				t.Errorf("%v %q: %+v became %+v, %v", r.Kind(), text, s, again, ok)
			}
		}
	})
}
