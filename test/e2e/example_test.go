package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// The ports that the files of examples/ name. They are started unchanged, so one at a time on a machine.
const (
	exampleUpstream = "127.0.0.1:10090"
	exampleGRPC     = "127.0.0.1:8091"
)

// example is an Envoy file of examples/envoy with the sentinel-rls and the upstream that it names.
type example struct {
	url      string // of Envoy's listener
	admin    string // of sentinel-rls
	sentinel *testserver.Process
	envoy    *testserver.Envoy
	requests atomic.Int64 // that reached the upstream
}

// startExample starts an Envoy file of examples/envoy as it is, with a configuration of examples/identity as it is.
func startExample(t *testing.T, envoyFile, config string, env ...string) *example {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Envoy")
	}
	if _, err := testserver.Find("envoy"); errors.Is(err, testserver.ErrMissing) {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	alone(t)
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	e := &example{}
	listener := listen(t, exampleUpstream)
	upstream := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(e.answer)}}
	upstream.Start()
	t.Cleanup(upstream.Close)

	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	e.admin = testserver.LoopbackAddr(port)
	if e.sentinel, err = testserver.Exec("sentinel-rls", binary, []string{
		"serve", "--config", filepath.Join(root, "examples", "identity", config), "--admin", e.admin,
	}, env); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.sentinel.Kill()
		if t.Failed() {
			t.Logf("sentinel-rls:\n%s", e.sentinel.Log())
		}
	})
	await(t, "sentinel-rls to listen", func() bool {
		conn, err := net.Dial("tcp", exampleGRPC)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	bootstrap, err := os.ReadFile(filepath.Join(root, "examples", "envoy", envoyFile))
	if err != nil {
		t.Fatal(err)
	}
	e.envoy = testserver.StartEnvoy(t, string(bootstrap))
	addr, err := e.envoy.Addr("ingress")
	if err != nil {
		t.Fatal(err)
	}
	e.url = "http://" + addr
	return e
}

// alone waits until no other test on this machine has the ports of the examples.
func alone(t *testing.T) {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "sentinel-rls-examples.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() }) // which gives it back; cleanups run last in, first out
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// listen listens on a port that a stopped process may still hold for a moment.
func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	await(t, addr+" to be free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	return l
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// answer is the upstream: it says what it saw, and sets two cookies of its own.
func (e *example) answer(w http.ResponseWriter, r *http.Request) {
	e.requests.Add(1)
	w.Header().Add("set-cookie", "session=1; Path=/")
	w.Header().Add("set-cookie", "theme=dark; Path=/")
	_ = json.NewEncoder(w).Encode(r.Header)
}

// reply is an answer that came through Envoy.
type reply struct {
	status int
	header http.Header
	body   string
	seen   http.Header // what the upstream saw; nil when it was not asked
}

func (r reply) String() string {
	return strings.TrimSpace(fmt.Sprint(r.status, " ", r.header.Get("X-Sentinel-Reason")))
}

// client asks from one address. All its connections are new.
type client struct {
	t    *testing.T
	http http.Client
}

// from returns a client at a loopback address.
func from(t *testing.T, address string) *client {
	return through(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		return d.DialContext(ctx, network, addr)
	})
}

func through(t *testing.T, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *client {
	return &client{t, http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// get asks with headers given as name and value in turns, each as a line of its own, spelled as it is.
func (c *client) get(target string, headers ...string) reply {
	c.t.Helper()
	r, err := c.try(target, headers...)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *client) try(target string, headers ...string) (reply, error) {
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, target, nil)
	if err != nil {
		return reply{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{status: resp.StatusCode, header: resp.Header, body: string(body)}
	if resp.StatusCode == http.StatusOK {
		_ = json.Unmarshal(body, &r.seen)
	}
	return r, nil
}

// proxy is an HTTP proxy before Envoy that connects from 127.0.0.2 and appends to X-Forwarded-For whom it saw. The client
// that it returns asks it from an address.
func proxy(t *testing.T, e *example, address string) *client {
	t.Helper()
	target, err := url.Parse(e.url)
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			r.SetXForwarded()
			r.Out.Header.Del("X-Forwarded-Host")
		},
		Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true},
	})
	t.Cleanup(server.Close)
	return through(t, func(ctx context.Context, network, _ string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		return d.DialContext(ctx, network, strings.TrimPrefix(server.URL, "http://"))
	})
}

// balanced returns a client at an address behind a load balancer that connects from balancer and writes the PROXY line.
func balanced(t *testing.T, balancer, address string) *client {
	return through(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(balancer)}}
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		family, here := "TCP4", "127.0.0.1"
		if strings.Contains(address, ":") {
			family, here = "TCP6", "::1"
		}
		_, err = fmt.Fprintf(conn, "PROXY %s %s %s 40000 10013\r\n", family, address, here)
		return conn, err
	})
}

// token returns a token of the examples' issuer, with more claims as name and value in turns.
func exampleToken(t *testing.T, tenant, subject string, more ...any) string {
	t.Helper()
	secret, err := os.ReadFile("../../examples/identity/jwt-secret")
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.MapClaims{
		"iss": "https://id.example.com", "sub": subject, "org": map[string]any{"id": tenant}, "exp": time.Now().Add(time.Hour).Unix(),
	}
	for i := 0; i < len(more); i += 2 {
		claims[more[i].(string)] = more[i+1]
	}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(strings.TrimSuffix(string(secret), "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// metric returns the sum of a metric's series of sentinel-rls that hold a text.
func (e *example) metric(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	resp, err := http.Get("http://" + e.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if metric, labels, _ := strings.Cut(series, "{"); metric == name && strings.Contains(labels, label) {
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}
