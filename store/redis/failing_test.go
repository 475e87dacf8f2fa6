package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// quiet is an error that says nothing.
type quiet struct{ error }

func (quiet) Error() string   { return "" }
func (q quiet) Unwrap() error { return q.error }

// A log shows why a server fails, and nothing that the server repeats of what it was sent.
func TestReasonsAreLegible(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"dial tcp 127.0.0.1:6379: connect: connection refused", "dial tcp 127.0.0.1:6379: connect: connection refused"},
		{"ERR unknown command `HELLO`, with args beginning with: `3` `AUTH` `me` `hunter2`", "ERR unknown command `HELLO`"},
		{"one\ntwo", "one"},
		{"a\xffb", "ab"},
		{strings.Repeat("x", 400), strings.Repeat("x", maxReason) + "..."},
	} {
		got := legible(fmt.Errorf("%s%w", c.text, quiet{rls.ErrTimeout}))
		if got.Error() != c.want || !errors.Is(got, rls.ErrTimeout) {
			t.Errorf("%q is told as %q, want %q and the same class", c.text, got, c.want)
		}
	}
}
