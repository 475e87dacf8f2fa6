// Package story plays the demo: what sentinel-rls promises, seen by an HTTP client through a real Envoy.
//
// A Stack is everything that runs: an upstream, Redis or Valkey, the program itself and Envoy, on the configuration in
// examples/. Steps are the story. The demo prints them, the end-to-end suite has a test for each.
package story

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Options say what a Stack is made of.
type Options struct {
	// Binary is the path of sentinel-rls.
	Binary string
	// Store is the server that keeps the buckets; empty: the program's own memory.
	Store testserver.Kind
	// FixedPorts uses the ports that examples/ and the README name, where they are free. Otherwise any free ports.
	FixedPorts bool
	// Patience, where not 0, replaces Envoy's two filter timeouts and the store budget, so that a machine that does other
	// things at the same time does not change the story.
	Patience time.Duration
	// Bootstrap, where not nil, changes Envoy's bootstrap before it starts.
	Bootstrap func(yaml string) string
}

// Stack is everything that runs. Its parts may be frozen, killed and restarted.
type Stack struct {
	Upstream *Upstream
	Store    *testserver.Server // nil: memory
	Sentinel *Sentinel
	Envoy    *testserver.Envoy

	URL string // of Envoy's listener, where clients go

	client *http.Client
	secret []byte
}

// Ports that examples/ and the README name.
const (
	portIngress  = 10000
	portUpstream = 18090
	portGRPC     = 8081
	portAdmin    = 9091
	portStore    = 16379
)

// Start starts everything and returns once requests are answered. ctx bounds the start; Stop ends it all.
func Start(ctx context.Context, o Options) (_ *Stack, err error) {
	s := &Stack{client: &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	root, err := testserver.Root()
	if err != nil {
		return nil, err
	}
	if s.secret, err = os.ReadFile(filepath.Join(root, "examples", "demo", "jwt-secret")); err != nil {
		return nil, err
	}
	s.secret = []byte(strings.TrimSuffix(string(s.secret), "\n"))

	if s.Upstream, err = startUpstream(o.port(portUpstream)); err != nil {
		return nil, err
	}
	if o.Store != "" {
		if s.Store, err = testserver.Run(ctx, o.Store, testserver.OnPort(o.port(portStore))); err != nil {
			return nil, err
		}
	}
	if s.Sentinel, err = startSentinel(ctx, o, s.Store); err != nil {
		return nil, err
	}
	return s, s.startEnvoy(ctx, root, o)
}

// port returns the port to use for one whose documented number is fixed; 0 leaves the choice to whoever listens.
func (o Options) port(fixed int) int {
	if !o.FixedPorts {
		return 0
	}
	l, err := net.Listen("tcp", testserver.LoopbackAddr(fixed))
	if err != nil {
		return 0
	}
	l.Close()
	return fixed
}

func (s *Stack) startEnvoy(ctx context.Context, root string, o Options) error {
	data, err := os.ReadFile(filepath.Join(root, "examples", "envoy", "envoy.yaml"))
	if err != nil {
		return err
	}
	bootstrap := string(data)
	replace := func(old, replacement string, want int) {
		if n := strings.Count(bootstrap, old); n != want {
			err = errors.Join(err, fmt.Errorf("examples/envoy/envoy.yaml has %q %d times, not %d", old, n, want))
		}
		bootstrap = strings.ReplaceAll(bootstrap, old, replacement)
	}
	port := func(fixed int, addr string) {
		_, actual, _ := net.SplitHostPort(addr)
		replace(fmt.Sprintf("port_value: %d }", fixed), fmt.Sprintf("port_value: %s }", actual), 1)
	}
	port(portIngress, testserver.LoopbackAddr(o.port(portIngress)))
	port(portUpstream, s.Upstream.Addr)
	port(portGRPC, s.Sentinel.GRPCAddr)
	if o.Patience > 0 {
		replace("timeout: 0.25s", "timeout: "+strconv.FormatFloat(o.Patience.Seconds(), 'f', 3, 64)+"s", 3)
	}
	if err != nil {
		return err
	}
	if o.Bootstrap != nil {
		bootstrap = o.Bootstrap(bootstrap)
	}
	if s.Envoy, err = testserver.RunEnvoy(ctx, bootstrap); err != nil {
		return err
	}
	addr, err := s.Envoy.Addr("ingress")
	if err != nil {
		return err
	}
	s.URL = "http://" + addr
	return s.awaitAnswers(ctx)
}

// awaitAnswers returns once Envoy holds sentinel-rls for healthy: until the first health check it sends it nothing.
func (s *Stack) awaitAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if n, err := s.Envoy.Stat("cluster.sentinel.membership_healthy"); err == nil && n == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("envoy does not hold sentinel-rls for healthy: %w\n%s", ctx.Err(), s.Envoy.Log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Another starts one more sentinel-rls on the same store and configuration, which Envoy knows nothing of. The caller
// kills it before the stack stops.
func (s *Stack) Another(ctx context.Context, o Options) (*Sentinel, error) {
	return startSentinel(ctx, o, s.Store)
}

// Stop ends everything. Stopping a stack that is stopped or did not start is legal.
func (s *Stack) Stop() {
	if s.Envoy != nil {
		s.Envoy.Stop()
	}
	if s.Sentinel != nil {
		s.Sentinel.Kill()
	}
	if s.Store != nil {
		s.Store.Stop()
	}
	if s.Upstream != nil {
		s.Upstream.stop()
	}
	s.client.CloseIdleConnections()
}

// Logs returns the end of what the program and Envoy printed.
func (s *Stack) Logs() string {
	var b strings.Builder
	if s.Sentinel != nil {
		fmt.Fprintf(&b, "sentinel-rls:\n%s\n", s.Sentinel.Log())
	}
	if s.Envoy != nil {
		fmt.Fprintf(&b, "envoy:\n%s\n", s.Envoy.Log())
	}
	return b.String()
}
