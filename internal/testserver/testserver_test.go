package testserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// say sends one inline command and returns the first line of the answer, or the error.
func say(s *Server, command string, timeout time.Duration) (string, error) {
	conn, err := net.DialTimeout(s.Network(), s.Addr(), timeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	line, _, _ := strings.Cut(string(buf[:n]), "\r\n")
	return line, err
}

func TestServerLives(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		for name, opts := range map[string][]Option{"port": nil, "socket": {OnSocket()}} {
			t.Run(string(kind)+" on a "+name, func(t *testing.T) {
				t.Parallel()
				s := Start(t, kind, opts...)
				if s.Kind() != kind || !strings.Contains(s.Version(), ".") || !strings.HasSuffix(s.URL(), s.Addr()) {
					t.Errorf("kind %q, version %q, URL %q, address %q", s.Kind(), s.Version(), s.URL(), s.Addr())
				}
				step := func(command, want string) {
					t.Helper()
					if got, err := say(s, command, 5*time.Second); err != nil || got != want {
						t.Fatalf("%s: %q, %v; want %q", command, got, err, want)
					}
				}
				step("SET a 1", "+OK")

				if err := s.Freeze(); err != nil {
					t.Fatal(err)
				}
				if got, err := say(s, "PING", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("a frozen server answered %q, %v", got, err)
				}
				if err := s.Thaw(); err != nil {
					t.Fatal(err)
				}
				step("EXISTS a", ":1")

				s.Kill()
				if got, err := say(s, "PING", time.Second); err == nil {
					t.Fatalf("a killed server answered %q", got)
				}
				if err := s.Restart(); err != nil {
					t.Fatal(err)
				}
				step("EXISTS a", ":0") // nothing was kept

				if err := s.Freeze(); err != nil {
					t.Fatal(err)
				}
				s.Stop() // a frozen server stops too
				if _, err := os.Stat(s.Dir()); !os.IsNotExist(err) {
					t.Errorf("Stop left %s behind: %v", s.Dir(), err)
				}
				s.Stop()
			})
		}
	}
}

func TestServerPassword(t *testing.T) {
	t.Parallel()
	s := Start(t, Valkey, WithPassword("secret"))
	if got, err := say(s, "PING", 5*time.Second); err != nil || !strings.HasPrefix(got, "-NOAUTH") {
		t.Errorf("PING without the password: %q, %v", got, err)
	}
	if want := "redis://:secret@" + s.Addr(); s.URL() != want {
		t.Errorf("URL %q, want %q", s.URL(), want)
	}
	if got, err := say(s, "AUTH secret", 5*time.Second); err != nil || got != "+OK" {
		t.Errorf("AUTH: %q, %v", got, err)
	}
}

// A start that cannot succeed fails with the server's own words, and leaves nothing behind (goleak in TestMain).
func TestServerRefuses(t *testing.T) {
	t.Parallel()
	first := Start(t, Valkey)
	_, port, _ := net.SplitHostPort(first.Addr())
	taken, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		opt  Option
		want string
	}{
		{"unknown argument", WithArgs("--no-such-setting", "1"), "no-such-setting"},
		{"port that the caller chose is taken", OnPort(taken), "Address already in use"},
	} {
		s, err := Run(t.Context(), Valkey, tt.opt)
		if err == nil {
			s.Stop()
			t.Errorf("%s: started", tt.name)
		} else if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error lacks %q: %v", tt.name, tt.want, err)
		}
	}
}

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	if _, err := Run(t.Context(), Kind("no-such")); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "make tools") {
		t.Errorf("error %v, want ErrMissing with the way to mend it", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := Run(ctx, Valkey); err == nil {
		s.Stop()
		t.Error("started although its context was done")
	}
}

func TestEnvoyLives(t *testing.T) {
	t.Parallel()
	e := StartEnvoy(t, `
static_resources:
  listeners:
  - name: front
    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - { name: all, domains: ["*"], routes: [ { match: { prefix: / }, direct_response: { status: 204 } } ] }
          http_filters:
          - name: router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
`)
	addr, err := e.Addr("front")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("status %s", resp.Status)
	}
	if n, err := e.Stat("http.front.downstream_rq_2xx"); err != nil || n != 1 {
		t.Errorf("downstream_rq_2xx = %d, %v; want 1", n, err)
	}
	if n, err := e.Stat("no.such.counter"); err != nil || n != 0 {
		t.Errorf("no.such.counter = %d, %v; want 0", n, err)
	}
	if _, err := e.Addr("back"); err == nil {
		t.Error("an unknown listener has an address")
	}
}

func TestEnvoyRefusesBootstrap(t *testing.T) {
	t.Parallel()
	e, err := RunEnvoy(t.Context(), "static_resources: { no_such_field: 1 }")
	if err == nil {
		e.Stop()
		t.Fatal("started")
	}
	if !strings.Contains(err.Error(), "no_such_field") {
		t.Errorf("the error does not hold Envoy's complaint: %v", err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	var l tail
	line := strings.Repeat("x", 1023) + "\n"
	for range 1000 {
		_, _ = io.WriteString(&l, line)
	}
	_, _ = io.WriteString(&l, "the end")
	if got := l.String(); len(got) != tailBytes || !strings.HasSuffix(got, "\nthe end") || cap(l.buf) > 4*tailBytes {
		t.Errorf("%d bytes (capacity %d), ending in %q", len(got), cap(l.buf), got[len(got)-10:])
	}
}
