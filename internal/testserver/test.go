package testserver

import (
	"errors"
	"os"
	"testing"
)

// Start starts a store server for one test and stops it when the test ends; its output is shown when the test failed.
// Without the program the test is skipped, or fails where CI=true.
func Start(t testing.TB, kind Kind, opts ...Option) *Server {
	t.Helper()
	s, err := Run(t.Context(), kind, opts...)
	need(t, err)
	end(t, s.Process, s.Stop)
	return s
}

// StartEnvoy starts Envoy for one test and stops it when the test ends, as Start does.
func StartEnvoy(t testing.TB, bootstrap string) *Envoy {
	t.Helper()
	e, err := RunEnvoy(t.Context(), bootstrap)
	need(t, err)
	end(t, e.Process, e.Stop)
	return e
}

// SkipUnlessCI skips a test that lacks something it needs, or fails it where CI=true: there nothing may be missing.
func SkipUnlessCI(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func need(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrMissing) {
		SkipUnlessCI(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func end(t testing.TB, p *Process, stop func()) {
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.name, p.Log())
		}
	})
}
