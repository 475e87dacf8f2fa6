// Package e2e asks sentinel-rls through a real Envoy, as clients do.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/story"
)

// patience is what Envoy waits for an answer here: tests of other packages run at the same time.
const patience = 5 * time.Second

// binary is the program under test.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "sentinel-rls")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/sentinel-rls")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building sentinel-rls:", err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// start starts a stack for one test. Without a program it needs the test is skipped, or fails where CI=true.
func start(t *testing.T, o story.Options) *story.Stack {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Envoy")
	}
	o.Binary, o.Patience = binary, patience
	s, err := story.Start(t.Context(), o)
	if errors.Is(err, testserver.ErrMissing) {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Log(s.Logs())
		}
	})
	return s
}

// TestStory is the demo, step by step, on each store.
func TestStory(t *testing.T) {
	t.Parallel()
	for _, kind := range append(testserver.Kinds(), "") {
		name := string(kind)
		if kind == "" {
			name = "memory"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, story.Options{Store: kind})
			for _, step := range story.Steps() {
				t.Run(step.Name, func(t *testing.T) {
					if step.Outage && s.Store == nil {
						t.Skip("no store to kill")
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if got, ok := s.Play(ctx, step); !ok {
						t.Errorf("\nexpected %s\ngot      %s", step.Expected, got)
					}
				})
			}
		})
	}
}

// A step fails when Envoy had to do without sentinel's answer, even where the client got what was expected.
func TestStepFailsWhenNobodyAnswered(t *testing.T) {
	t.Parallel()
	s := start(t, story.Options{})
	s.Sentinel.Kill()
	got, ok := s.Play(t.Context(), story.Step{
		Name:     "ext_authz refuses by itself",
		Expected: "503",
		Play: func(ctx context.Context, s *story.Stack) (string, error) {
			r, err := s.Get(ctx, "/v1/catalog", s.Token("acme"))
			if err != nil {
				return "", err
			}
			return r.String(), nil
		},
	})
	if ok || !strings.Contains(got, "503; and Envoy counted cluster.upstream.ext_authz.error +1") {
		t.Errorf("got %q, passed %v; want a failure that names the counter", got, ok)
	}
}
