package admin_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "correct-horse-battery"

var loadedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func config(token string, health *admin.Health) admin.Config {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sentinel_test", Help: "x"}, func() float64 { return 42 }))
	return admin.Config{
		Gatherer: reg, Health: health, Token: token, Log: slog.New(slog.DiscardHandler),
		Denied: func() telemetry.Denied {
			return telemetry.Denied{Since: loadedAt, Denials: 2, Pairs: []telemetry.DeniedCount{{IdentityHash: "aa", EndpointID: "orders", AtLeast: 1, AtMost: 2}}}
		},
		Policies: func() *admin.Policies {
			return &admin.Policies{
				Hash: "abc", Loaded: loadedAt, Files: []string{"shop.yaml"}, Domains: []string{"shop"},
				Endpoints: []admin.Endpoint{{ID: "orders", Domain: "shop", Version: 3, Identity: "tenant_jwt", FailMode: "fail_open", Mode: "enforce", Tenants: 1}},
			}
		},
	}
}

func loaded() *admin.Health {
	h := admin.NewHealth(nil)
	h.Loaded()
	return h
}

// ask makes one request as if from peer.
func ask(s *admin.Server, peer, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = peer
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

const (
	here  = "127.0.0.1:40000"
	there = "192.0.2.7:40000"
)

func TestReadyzFollowsTheProcess(t *testing.T) {
	t.Parallel()
	var degraded []string
	health := admin.NewHealth(func() []string { return degraded })
	var told []bool
	health.Follow(func(ready bool) { told = append(told, ready) })
	s := admin.New(config("", health))

	step := func(what string, code int, body string) {
		t.Helper()
		w := ask(s, there, "/readyz")
		if w.Code != code || strings.TrimSpace(w.Body.String()) != body {
			t.Errorf("%s: /readyz says %d %s, want %d %s", what, w.Code, w.Body, code, body)
		}
		if w := ask(s, there, "/healthz"); w.Code != http.StatusOK {
			t.Errorf("%s: /healthz says %d, want 200", what, w.Code)
		}
	}
	step("before the first policy set", 503, `{"status":"starting","degraded":[]}`)
	health.Loaded()
	step("with policies", 200, `{"status":"ready","degraded":[]}`)
	degraded = []string{"redis_down"}
	step("Redis away", 200, `{"status":"ready","degraded":["redis_down"]}`)
	degraded = append(degraded, "breaker_open")
	step("Redis away for longer", 200, `{"status":"ready","degraded":["redis_down","breaker_open"]}`)
	health.Loaded()
	health.Stopping()
	step("stopping", 503, `{"status":"stopping","degraded":["redis_down","breaker_open"]}`)
	health.Loaded() // a reload while stopping does not take it back
	step("still stopping", 503, `{"status":"stopping","degraded":["redis_down","breaker_open"]}`)

	if want := []bool{false, true, false}; !slices.Equal(told, want) {
		t.Errorf("followers were told %v, want %v: each change once", told, want)
	}
}

func TestMetricsAreOpen(t *testing.T) {
	t.Parallel()
	w := ask(admin.New(config("", loaded())), there, "/metrics")
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "sentinel_test 42") {
		t.Errorf("/metrics: %d\n%s", w.Code, w.Body)
	}
}

func TestPoliciesShowTheActiveSet(t *testing.T) {
	t.Parallel()
	cfg := config("", loaded())
	w := ask(admin.New(cfg), here, "http://127.0.0.1:9091/policies")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("/policies: %d, %v", w.Code, w.Header())
	}
	want := `{"hash":"abc","loaded":"2026-01-02T03:04:05Z","files":["shop.yaml"],"domains":["shop"],"endpoints":[` +
		`{"id":"orders","domain":"shop","policy_version":3,"identity":"tenant_jwt","fail_mode":"fail_open","mode":"enforce","tenants":1}],"stale":false,` +
		`"denied":{"since":"2026-01-02T03:04:05Z","denials":2,"error":0,"pairs":[{"identity_hash":"aa","endpoint_id":"orders","at_least":1,"at_most":2}],"callers":null,"endpoints":null}}`
	if got := strings.TrimSpace(w.Body.String()); got != want {
		t.Errorf("/policies\n%s\nwant\n%s", got, want)
	}
	cfg.Policies = func() *admin.Policies { return nil }
	if w := ask(admin.New(cfg), here, "http://127.0.0.1:9091/policies"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("/policies before the first set: %d, want 503", w.Code)
	}
}

// Who may see policies and profiles. A caller is on this machine only when the connection, the Host and the absence of a
// proxy's headers agree.
func TestPoliciesAndProfilesAreGuarded(t *testing.T) {
	t.Parallel()
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(name, value) }
	}
	for name, c := range map[string]struct {
		token  string
		peer   string
		host   string
		change []func(*http.Request)
		want   int
	}{
		"loopback":                         {peer: here, host: "127.0.0.1:9091", want: 200},
		"loopback by name":                 {peer: here, host: "LocalHost:9091", want: 200},
		"loopback, IPv6":                   {peer: "[::1]:40000", host: "[::1]:9091", want: 200},
		"loopback, IPv6 without port":      {peer: "[::1]:40000", host: "[::1]", want: 200},
		"loopback, mapped":                 {peer: "[::ffff:127.0.0.1]:40000", host: "127.0.0.1", want: 200},
		"loopback, although there is one":  {token: token, peer: here, host: "127.0.0.1:9091", want: 200},
		"elsewhere":                        {peer: there, host: "127.0.0.1:9091", want: 401},
		"elsewhere, claims loopback":       {peer: there, host: "localhost", change: []func(*http.Request){header("X-Forwarded-For", "127.0.0.1")}, want: 401},
		"a page in the operator's browser": {peer: here, host: "evil.example:9091", want: 401},
		"a proxy on this machine":          {peer: here, host: "localhost:9091", change: []func(*http.Request){header("X-Forwarded-For", "192.0.2.1")}, want: 401},
		"a proxy with Forwarded":           {peer: here, host: "localhost:9091", change: []func(*http.Request){header("Forwarded", "for=192.0.2.1")}, want: 401},
		"no peer address":                  {peer: "@", host: "localhost", want: 401},
		"token":                            {token: token, peer: there, host: "sentinel:9091", change: []func(*http.Request){header("Authorization", "Bearer "+token)}, want: 200},
		"wrong token":                      {token: token, peer: there, host: "sentinel:9091", change: []func(*http.Request){header("Authorization", "Bearer "+token+"x")}, want: 401},
		"token without scheme":             {token: token, peer: there, host: "sentinel:9091", change: []func(*http.Request){header("Authorization", token)}, want: 401},
		"no token given":                   {token: token, peer: there, host: "sentinel:9091", want: 401},
		"empty token where none is set":    {peer: there, host: "sentinel:9091", change: []func(*http.Request){header("Authorization", "Bearer ")}, want: 401},
		"some token where none is set":     {peer: there, host: "sentinel:9091", change: []func(*http.Request){header("Authorization", "Bearer x")}, want: 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := admin.New(config(c.token, loaded()))
			host := func(r *http.Request) { r.Host = c.host }
			for _, path := range []string{"/policies", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
				if w := ask(s, c.peer, path, append(c.change, host)...); w.Code != c.want {
					t.Errorf("%s: %d, want %d", path, w.Code, c.want)
				}
			}
		})
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	s := admin.New(config("", loaded()))
	if w := ask(s, here, "/"); w.Code != http.StatusNotFound {
		t.Errorf("/: %d, want 404", w.Code)
	}
	if w := ask(s, here, "/readyz", func(r *http.Request) { r.Method = http.MethodPost }); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST /readyz: %d, want 405", w.Code)
	}
	if w := ask(s, here, "/readyz", func(r *http.Request) { r.Method = http.MethodHead }); w.Code != http.StatusOK {
		t.Errorf("HEAD /readyz: %d, want 200", w.Code)
	}
}

// serve runs a server on a real listener; stop ends it and returns Run's error.
func serve(t *testing.T, s *admin.Server) (addr string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	return l.Addr().String(), func() error {
		cancel()
		return <-done
	}
}

func TestRunServesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	addr, stop := serve(t, admin.New(config("", loaded())))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + addr + "/policies")
	if err != nil {
		t.Fatal(err)
	}
	var p admin.Policies
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Hash != "abc" {
		t.Errorf("/policies on a real connection: %+v, %v", p, err)
	}
	resp.Body.Close()

	// A header beyond the bound is refused by the server itself.
	req, _ := http.NewRequest(http.MethodGet, "http://"+addr+"/healthz", nil)
	req.Header.Set("X-Big", strings.Repeat("a", 64<<10))
	resp, err = client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("64 KiB of headers: %d, want 431", resp.StatusCode)
	}

	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if _, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
		t.Error("the port still accepts after Run returned")
	}
}

// A profile that is being taken does not hold up the stop for longer than its second.
func TestStopEndsAProfileInFlight(t *testing.T) {
	t.Parallel()
	addr, stop := serve(t, admin.New(config("", loaded())))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	req, _ := http.NewRequest(http.MethodGet, "http://"+addr+"/debug/pprof/trace?seconds=30", nil)
	began := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		resp, err := client.Do(req)
		close(began)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	select {
	case <-began: // the headers came with the first bytes of the trace
	case <-time.After(10 * time.Second):
		t.Fatal("no trace within 10 s")
	}
	start := time.Now()
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the stop took %v", took)
	}
	<-ended
}

func TestRunReportsAFailingListener(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := admin.New(config("", loaded())).Run(t.Context(), l); err == nil {
		t.Error("Run on a closed listener returned nil")
	}
}
