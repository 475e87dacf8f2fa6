package identity

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseObject(t *testing.T) {
	t.Parallel()
	got, ok := parseObject([]byte(" { \"a\" :\t[1, {\"b\":\"}\\\"\"}] ,\"\\u0063\":-1.5e3,\"d\":\"\",\n\"e\":{},\"f\":null,\"\":true } "), 6)
	if !ok {
		t.Fatal("refused")
	}
	want := object{
		{"a", json.RawMessage(`[1, {"b":"}\""}]`)},
		{"c", json.RawMessage(`-1.5e3`)},
		{"d", json.RawMessage(`""`)},
		{"e", json.RawMessage(`{}`)},
		{"f", json.RawMessage(`null`)},
		{"", json.RawMessage(`true`)},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(member{})); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct{ name, data string }{
		{"nothing", ``},
		{"null", `null`},
		{"an array", `[]`},
		{"text", `"{}"`},
		{"a second object", `{}{}`},
		{"a name twice", `{"a":1,"a":1}`},
		{"a name twice by escape", `{"a":1,"\u0061":1}`},
		{"two names that decode to one", `{"\ud800":1}`},
		{"a comma too many", `{"a":1,}`},
		{"a byte order mark", "\xef\xbb\xbf{}"},
		{"no UTF-8", "{\"a\":\"\xff\"}"},
		{"more members than allowed", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}`},
	} {
		if got, ok := parseObject([]byte(tt.data), 6); ok {
			t.Errorf("%s: got %v", tt.name, got)
		}
	}
}

// value draws a JSON value.
func value(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(),
		rapid.Int64().AsAny(),
		rapid.SampledFrom([]string{"", "}", "]", `"`, `\`, `\"`, "{", "[", ",", ":", "é", "\u2028", "<", "\n"}).AsAny(),
		rapid.StringOf(rapid.RuneFrom([]rune(`ab"\{}[],: é`))).AsAny(),
	}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	return rapid.OneOf(append(scalars,
		rapid.SliceOfN(value(depth-1), 0, 4).AsAny(),
		rapid.MapOfN(rapid.StringN(0, 3, -1), value(depth-1), 0, 4).AsAny())...)
}

// TestParseObjectAgreesWithEncodingJSON: on objects without pitfalls both see the same members.
func TestParseObjectAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringOf(rapid.RuneFrom([]rune(`abé"\{}:,`)))
		in := rapid.MapOfN(name, value(3), 0, 8).Draw(rt, "object")
		data, err := json.Marshal(in)
		if err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "indented") {
			var b bytes.Buffer
			if err := json.Indent(&b, data, "\t", " "); err != nil {
				rt.Fatal(err)
			}
			data = b.Bytes()
		}
		agree(rt, data)
	})
}

// agree compares parseObject, which must accept data, with encoding/json.
func agree(tb rapid.TB, data []byte) {
	tb.Helper()
	got, ok := parseObject(data, len(data))
	var want map[string]json.RawMessage
	err := json.Unmarshal(data, &want)
	if !ok || err != nil {
		tb.Fatalf("%q: accepted %v, encoding/json says %v", data, ok, err)
	}
	for _, m := range got {
		if !bytes.Equal(m.value, want[m.name]) {
			tb.Errorf("%q: member %q is %q, want %q", data, m.name, m.value, want[m.name])
		}
	}
	if len(got) != len(want) {
		tb.Errorf("%q: %d members, want %v", data, len(got), slices.Collect(maps.Keys(want)))
	}
}

func FuzzObject(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		o, ok := parseObject(data, len(data))
		if !ok {
			return
		}
		agree(t, data)
		for _, m := range o {
			if s, ok := text(m.value); ok {
				var want string
				if err := json.Unmarshal(m.value, &want); err != nil || s != want {
					t.Errorf("%q: text %q, want %q (%v)", m.value, s, want, err)
				}
			}
			if _, ok := o.at([]string{m.name}); !ok {
				t.Errorf("%q: no member at %q", data, m.name)
			}
			_, _ = textOrList(m.value)
			_, _ = numericDate(m.value)
		}
	})
}

// TestUnknownKeysCostTheSame: for a key id that no shared secret has there is a secret to try all the same, and it
// verifies nothing.
func TestUnknownKeysCostTheSame(t *testing.T) {
	t.Parallel()
	v, err := newVerifier(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range algorithms {
		decoy, ok := v.decoys[a.name]
		if ok != (a.least > 0) {
			t.Errorf("%s: a decoy: %v", a.name, ok)
		}
		if ok && (decoy.method.Alg() != a.name || decoy.verify("text", make([]byte, 64))) {
			t.Errorf("%s: the decoy is for %s, or verified", a.name, decoy.method.Alg())
		}
	}
}

// TestFind: which keys a token is tried with.
func TestFind(t *testing.T) {
	t.Parallel()
	key := func(algorithm, id string) Key {
		k, err := NewHMACKey(algorithm, id, bytes.Repeat([]byte("k"), 64))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, tt := range []struct {
		set              []Key
		algorithm, keyID string
		found            int
		named            bool
	}{
		{[]Key{key("HS256", "a"), key("HS512", "b")}, "HS256", "a", 1, true},
		{[]Key{key("HS256", "a"), key("HS512", "b")}, "HS512", "b", 1, true},
		{[]Key{key("HS256", "a"), key("HS512", "b")}, "HS256", "b", 0, false},
		{[]Key{key("HS256", "a"), key("HS512", "b")}, "HS256", "", 0, false},
		{[]Key{key("HS256", "a"), key("HS512", "b")}, "HS384", "a", 0, false},
		{[]Key{key("HS256", "a")}, "HS256", "", 0, false},
		{[]Key{key("HS256", ""), key("HS256", ""), key("HS256", "a")}, "HS256", "x", 2, false},
		{[]Key{key("HS256", ""), key("HS256", ""), key("HS256", "a")}, "HS256", "a", 1, true},
		{nil, "HS256", "a", 0, false},
	} {
		s, err := NewKeys(tt.set...)
		if err != nil {
			t.Fatal(err)
		}
		found, named := s.find(tt.algorithm, tt.keyID)
		if len(found) != tt.found || named != tt.named {
			t.Errorf("%v, %s %q: %d keys, named %v; want %d, %v", s.Names(), tt.algorithm, tt.keyID, len(found), named, tt.found, tt.named)
		}
	}
}
