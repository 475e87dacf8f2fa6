package envoy

import (
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHD_04_IdentityValue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"acme", "acme"},
		{"acme,inc/1:2;3=\"x\"", "acme,inc/1:2;3=\"x\""},
		{"café", "caf%C3%A9"},
		{"cafe\u0301", "cafe%CC%81"},
		{"100%", "100%25"},
		{"caf%C3%A9", "caf%25C3%25A9"}, // another tenant than café
		{" acme ", "%20acme%20"},
		{"a\r\nx-evil: 1", "a%0D%0Ax-evil:%201"},
		{"a\x00\x7f\xff", "a%00%7F%FF"},
	} {
		if got := identityValue(tt.in); got != tt.want {
			t.Errorf("identityValue(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

// Whatever a tenant is called, its header is visible ASCII and belongs to no other tenant.
func TestIdentityValueIsVisibleAndReversible(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		got := identityValue(in)
		if strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("identityValue(%q) = %q", in, got)
		}
		if back, err := url.PathUnescape(got); err != nil || back != in {
			t.Errorf("identityValue(%q) = %q, which reads as %q, %v", in, got, back, err)
		}
	})
}

func TestTextOfOurOwnIsMadeHarmless(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		if got := label(in); strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
			t.Errorf("label(%q) = %q", in, got)
		}
		if got := printable(in); strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("printable(%q) = %q", in, got)
		}
		inner := quoted(in)
		inner = inner[1 : len(inner)-1]
		if inner = strings.NewReplacer(`\\`, "", `\"`, "").Replace(inner); strings.ContainsAny(inner, `"\`) {
			t.Errorf("quoted(%q) = %q ends early", in, quoted(in))
		}
	})
}

func TestSecondsRoundUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   time.Duration
		want int64
	}{
		{0, 0},
		{time.Microsecond, 1},
		{400 * time.Millisecond, 1},
		{time.Second, 1},
		{time.Second + 1, 2},
		{90200 * time.Millisecond, 91},
		{math.MaxInt64, 9223372037},
	} {
		if got := seconds(tt.in); got != tt.want {
			t.Errorf("seconds(%v) = %d, want %d", tt.in, got, tt.want)
		}
	}
}
