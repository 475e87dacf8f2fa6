package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/golang-jwt/jwt/v5"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// The test binary is the program too: under the name sentinel-rls, which is on PATH while tests run, it is main. So the
// processes that tests start are the code under test, with the race detector when that is on.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"sentinel-rls": main})
}

// leakChecked fails a run of tests that leaves goroutines behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// buffer is an output that can be read while it is written.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// logRecord returns the first JSON record with a message.
func logRecord(log, msg string) (map[string]any, bool) {
	for line := range strings.Lines(log) {
		record := map[string]any{}
		if json.Unmarshal([]byte(line), &record) == nil && record["msg"] == msg {
			return record, true
		}
	}
	return nil, false
}

const ephemeral = "127.0.0.1:0"

// instance is a running sentinel-rls.
type instance struct {
	grpcAddr, adminAddr string
	log                 func() string
}

// awaitServing returns the instance once its log says that it serves.
func awaitServing(t *testing.T, log func() string, ended <-chan struct{}) instance {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if record, ok := logRecord(log(), "serving"); ok {
			return instance{grpcAddr: record["grpc"].(string), adminAddr: record["admin"].(string), log: log}
		}
		select {
		case <-ended:
			t.Fatalf("it ended before it served:\n%s", log())
		case <-deadline:
			t.Fatalf("it does not serve after 20 s:\n%s", log())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// inProcess is the program run in this process.
type inProcess struct {
	instance
	stdout buffer
	stop   func() int // like SIGTERM; returns the exit code
}

// serve runs `sentinel-rls serve` with args in this process, on free ports, until the test ends.
func serve(t *testing.T, env []string, args ...string) *inProcess {
	t.Helper()
	p := &inProcess{}
	var stderr buffer
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	code := 0
	args = append([]string{"serve", "--grpc", ephemeral, "--admin", ephemeral}, args...)
	env = append([]string{"SENTINEL_SHUTDOWN_DRAIN_DELAY=0s", "SENTINEL_SHUTDOWN_GRACE=1s"}, env...)
	go func() {
		defer close(ended)
		code = run(ctx, args, env, &p.stdout, &stderr)
	}()
	p.stop = func() int {
		cancel(fmt.Errorf("the test stops it"))
		<-ended
		return code
	}
	t.Cleanup(func() { p.stop() })
	p.instance = awaitServing(t, stderr.String, ended)
	return p
}

// startProcess runs `sentinel-rls serve` with args as a process of its own, on free ports, until the test ends.
func startProcess(t *testing.T, env []string, args ...string) (*testserver.Process, instance) {
	t.Helper()
	path, err := exec.LookPath("sentinel-rls")
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"serve", "--grpc", ephemeral, "--admin", ephemeral}, args...)
	p, err := testserver.Exec("sentinel-rls", path, args, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("output of sentinel-rls:\n%s", p.Log())
		}
	})
	return p, awaitServing(t, p.Log, p.Done())
}

// dial connects to an instance until the test ends.
func dial(t *testing.T, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// files writes files into a directory of the test and returns it.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range contents {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// secret is the HMAC secret of the tests' tokens.
const secret = "a test secret of at least 32 bytes"

// token returns a signed token whose tenant is sub.
func token(t *testing.T, sub string) string {
	t.Helper()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject: sub, ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// checkRequest is what Envoy's ext_authz filter sends for a route with that endpoint id.
func checkRequest(endpoint, bearer string) *authv3.CheckRequest {
	http := &authv3.AttributeContext_HttpRequest{Method: "GET", Path: "/", Host: "shop.example"}
	if bearer != "" {
		http.HeaderMap = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "authorization", RawValue: []byte("Bearer " + bearer)}}}
	}
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request:           &authv3.AttributeContext_Request{Http: http},
		ContextExtensions: map[string]string{"endpoint_id": endpoint},
	}}
}

// limitRequest is what Envoy's ratelimit filter sends.
func limitRequest(domain, endpoint, tenant string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "endpoint_id", Value: endpoint}, {Key: "tenant", Value: tenant}},
	}}}
}

// check asks ext_authz and returns the HTTP status that the client would see; 200 when it passes.
func check(t *testing.T, conn *grpc.ClientConn, endpoint, bearer string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := authv3.NewAuthorizationClient(conn).Check(ctx, checkRequest(endpoint, bearer))
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	if denied := resp.GetDeniedResponse(); denied != nil {
		return int(denied.GetStatus().GetCode())
	}
	return http.StatusOK
}

// limited asks RateLimitService and returns whether it said OVER_LIMIT.
func limited(t *testing.T, conn *grpc.ClientConn, domain, endpoint, tenant string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, limitRequest(domain, endpoint, tenant))
	if err != nil {
		t.Fatalf("ShouldRateLimit: %v", err)
	}
	return resp.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
}

// get asks the admin server.
func get(t *testing.T, in instance, path string) (code int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + in.adminAddr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// metric returns the value of one series; "absent" when there is none.
func metric(t *testing.T, in instance, series string) string {
	t.Helper()
	_, body := get(t, in, "/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), series+" "); ok {
			return value
		}
	}
	return "absent"
}

// runToTheEnd runs the program as a process that ends by itself and returns its exit code and output.
func runToTheEnd(t *testing.T, env []string, args ...string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sentinel-rls", args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended || ctx.Err() != nil {
		t.Fatalf("sentinel-rls %v: %v\n%s", args, err, out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
