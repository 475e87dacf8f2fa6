// Demo plays the story of package story and then, unless -once, stays up for a person with curl.
//
// It exits with 0 when every step got what was expected, and with 1 otherwise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/story"
)

func main() {
	binary := flag.String("binary", "bin/sentinel-rls", "the program, as make build makes it")
	once := flag.Bool("once", false, "exit after the story")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, *binary, *once, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, binary string, once bool, stdout, stderr io.Writer) int {
	kind := store()
	if kind == "" {
		fmt.Fprintln(stdout, "!!! Neither redis-server nor valkey-server: limits are kept in the program's memory, and the outage is not played.")
	}
	stack, err := story.Start(ctx, story.Options{Binary: binary, Store: kind, FixedPorts: true})
	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
		return 1
	}
	defer stack.Stop()
	introduce(stdout, stack)

	passed, failed := play(ctx, stdout, stack)
	if failed > 0 {
		fmt.Fprintln(stderr, stack.Logs())
	}
	fmt.Fprintf(stdout, "\n%d passed, %d failed\n", passed, failed)
	if failed > 0 || ctx.Err() != nil {
		return 1
	}
	if !once {
		invite(stdout, stack)
		<-ctx.Done()
	}
	return 0
}

// store returns the kind of store server that can be had; empty when there is none.
func store() testserver.Kind {
	for _, kind := range testserver.Kinds() {
		if _, err := testserver.Find(string(kind) + "-server"); !errors.Is(err, testserver.ErrMissing) {
			return kind
		}
	}
	return ""
}

func introduce(w io.Writer, s *story.Stack) {
	buckets := "memory"
	if s.Store != nil {
		buckets = fmt.Sprintf("%s %s at %s", s.Store.Kind(), s.Store.Version(), s.Store.Addr())
	}
	fmt.Fprintf(w, "client → Envoy %s → upstream %s\n           ↓\n        sentinel-rls %s → %s\n",
		s.URL, s.Upstream.Addr, s.Sentinel.GRPCAddr, buckets)
}

func play(ctx context.Context, w io.Writer, s *story.Stack) (passed, failed int) {
	for i, step := range story.Steps() {
		if ctx.Err() != nil {
			return passed, failed
		}
		fmt.Fprintf(w, "\n%2d. %s\n    expected  %s\n", i+1, step.Name, step.Expected)
		if step.Outage && s.Store == nil {
			fmt.Fprintln(w, "    not played: there is no Redis to kill")
			continue
		}
		got, ok := s.Play(ctx, step)
		fmt.Fprintf(w, "    got       %s\n", got)
		if ok {
			passed++
		} else {
			failed++
			fmt.Fprintln(w, "    FAILED")
		}
	}
	return passed, failed
}

func invite(w io.Writer, s *story.Stack) {
	fmt.Fprintf(w, `
Everything stays up until Ctrl-C. Each tenant may create three orders at once, and one more every three seconds:

  TOKEN=%s
  curl -i -H "Authorization: Bearer $TOKEN" %s/v1/orders      # counted by ext_authz
  curl -i -H "Authorization: Bearer $TOKEN" %s/v1/search      # counted by the ratelimit filter
  curl -i %s/v1/orders                                        # no token

  OTHER=%s
  curl -i -H "Authorization: Bearer $OTHER" %s/v1/orders      # another tenant

  curl -s %s/metrics | grep ^sentinel_
  curl -s http://%s/stats | grep -E 'ext_authz|ratelimit'
`, s.Token("initech"), s.URL, s.URL, s.URL, s.Token("umbrella"), s.URL, s.Sentinel.AdminURL, s.Envoy.Admin())
}
