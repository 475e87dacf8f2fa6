// Package paths reaches every row of the path table in docs/failure-modes.md on a real Redis, through both gRPC services.
package paths

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

const policies = `
domain: shop
endpoints:
  open:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 0}
    limits: [{algorithm: token_bucket, capacity: 2, refill: 0}]
    tenants:
      free: {limits: unlimited}
      evil: {limits: blocked}
  closed:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 2, refill: 0}]
    tenants:
      free: {limits: unlimited}
      evil: {limits: blocked}
`

// outcome is what one request came to, as the table tells it.
type outcome struct {
	reason rls.Reason
	source rls.Source
	class  rls.Class
}

func (o outcome) String() string {
	return fmt.Sprintf("%s, source %s, class %q", o.reason, o.source, o.class)
}

// The outcomes of a store that cannot answer, for a policy that fails open: its cap of 1 admits one request.
func emergency(class rls.Class) []outcome {
	return []outcome{
		{rls.Allowed, rls.SourceEmergency, class},
		{rls.EmergencyLocalLimit, rls.SourceEmergency, class},
	}
}

func closed(reason rls.Reason, class rls.Class) []outcome {
	return []outcome{{reason, rls.SourceNone, class}, {reason, rls.SourceNone, class}}
}

func store(reasons ...rls.Reason) (o []outcome) {
	for _, r := range reasons {
		o = append(o, outcome{r, rls.SourceStore, ""})
	}
	return o
}

var remembered = []outcome{{rls.RateLimited, rls.SourceDenyCache, ""}, {rls.RateLimited, rls.SourceDenyCache, ""}}

func local(reason rls.Reason) []outcome { return []outcome{{reason, rls.SourceNone, ""}} }

// row is one row of the table: how it is reached, and what then happens to requests one after another.
type row struct {
	number  int
	name    string
	tenant  string
	hits    uint32
	within  time.Duration // what is left of the caller's deadline on arrival; 0: enough
	store   redis.Config  // changes to the store
	denies  bool          // denials are remembered
	reach   func(t *testing.T, s *stand)
	open    []outcome
	closed  []outcome
	breaker string // the breaker afterwards
}

func rows() []row {
	const quarantine = 300 * time.Millisecond
	frozen := redis.Config{Budget: 100 * time.Millisecond}
	eager := rls.BreakerConfig{Failures: 1, Quarantine: quarantine}
	return []row{
		{
			number: 1, name: "every limit fits",
			open: store(rls.Allowed, rls.Allowed), closed: store(rls.Allowed, rls.Allowed), breaker: "closed",
		},
		{
			number: 2, name: "a limit denies",
			reach: func(t *testing.T, s *stand) { s.ask(t); s.ask(t) },
			open:  store(rls.RateLimited), closed: store(rls.RateLimited), breaker: "closed",
		},
		{number: 3, name: "unlimited", tenant: "free", open: local(rls.Allowed), closed: local(rls.Allowed), breaker: "closed"},
		{number: 4, name: "blocked", tenant: "evil", open: local(rls.RateLimited), closed: local(rls.RateLimited), breaker: "closed"},
		{number: 4, name: "a cost above max_cost", hits: 2, open: local(rls.RateLimited), closed: local(rls.RateLimited), breaker: "closed"},
		{
			number: 5, name: "frozen", store: frozen,
			reach: func(t *testing.T, s *stand) { s.freeze(t) },
			open:  emergency(rls.ClassTimeout), closed: closed(rls.FailClosed, rls.ClassTimeout), breaker: "closed",
		},
		{
			number: 5, name: "frozen, five in a row", store: frozen,
			reach: func(t *testing.T, s *stand) { s.freeze(t) },
			open:  slices.Concat(emergency(rls.ClassTimeout), emergency(rls.ClassTimeout)[1:], emergency(rls.ClassTimeout)[1:], emergency(rls.ClassTimeout)[1:]),
			closed: slices.Concat(
				closed(rls.FailClosed, rls.ClassTimeout), closed(rls.FailClosed, rls.ClassTimeout), closed(rls.FailClosed, rls.ClassTimeout)[:1]),
			breaker: "open",
		},
		{
			number: 6, name: "refused",
			reach: func(_ *testing.T, s *stand) { s.server.Kill() },
			open:  emergency(rls.ClassUnavailable), closed: closed(rls.FailClosed, rls.ClassUnavailable), breaker: "closed",
		},
		{
			number: 6, name: "read-only", store: redis.Config{Breaker: rls.BreakerConfig{Failures: 2, Quarantine: time.Hour}},
			reach: func(t *testing.T, s *stand) { s.admin(t, "REPLICAOF", "127.0.0.1", "1") },
			open:  emergency(rls.ClassUnavailable), closed: closed(rls.FailClosed, rls.ClassUnavailable), breaker: "open",
		},
		{
			number: 7, name: "out of memory", store: redis.Config{Breaker: rls.BreakerConfig{Failures: 2, Quarantine: time.Hour}},
			reach: func(t *testing.T, s *stand) { s.admin(t, "CONFIG", "SET", "maxmemory", "1") },
			open:  emergency(rls.ClassError), closed: closed(rls.FailClosed, rls.ClassError), breaker: "open",
		},
		{
			number: 7, name: "no right to the script",
			reach: func(t *testing.T, s *stand) { s.admin(t, "ACL", "SETUSER", "default", "-evalsha", "-script") },
			open:  emergency(rls.ClassError), closed: closed(rls.FailClosed, rls.ClassError), breaker: "closed",
		},
		{
			number: 8, name: "the queue is full",
			store: redis.Config{Workers: 1, Queue: 1, Budget: 5 * time.Second},
			reach: func(t *testing.T, s *stand) { s.freeze(t); s.fill(t) },
			open:  emergency(rls.ClassUnavailable), closed: closed(rls.FailClosed, rls.ClassUnavailable), breaker: "closed",
		},
		{
			number: 9, name: "too little time on arrival", within: 1900 * time.Microsecond,
			open: emergency(rls.ClassTimeout), closed: closed(rls.FailClosed, rls.ClassTimeout), breaker: "closed",
		},
		{
			number: 10, name: "breaker open", store: redis.Config{Breaker: rls.BreakerConfig{Failures: 1, Quarantine: time.Hour}},
			reach: func(t *testing.T, s *stand) { s.open(t) },
			open:  emergency(""), closed: closed(rls.CircuitOpen, ""), breaker: "open",
		},
		{
			number: 11, name: "a probe that succeeds", store: redis.Config{Breaker: eager},
			reach: func(t *testing.T, s *stand) { s.open(t); s.restart(t); time.Sleep(quarantine + 10*time.Millisecond) },
			open:  store(rls.Allowed, rls.Allowed, rls.RateLimited), closed: store(rls.Allowed, rls.Allowed, rls.RateLimited), breaker: "closed",
		},
		{
			number: 12, name: "a probe that fails", store: redis.Config{Breaker: eager},
			reach: func(t *testing.T, s *stand) { s.open(t); time.Sleep(quarantine + 10*time.Millisecond) },
			open:  emergency(rls.ClassUnavailable)[:1], closed: closed(rls.FailClosed, rls.ClassUnavailable)[:1], breaker: "open",
		},
		{
			number: 13, name: "beside the probe", store: redis.Config{Budget: 5 * time.Second, Breaker: eager},
			reach: func(t *testing.T, s *stand) {
				s.open(t)
				s.restart(t)
				s.freeze(t)
				time.Sleep(quarantine + 10*time.Millisecond)
				s.hang(t, settled()) // asking for the state makes an open breaker half-open, before there is a probe
			},
			open: emergency(""), closed: closed(rls.CircuitOpen, ""), breaker: "half-open",
		},
		{
			number: 14, name: "a denial that is remembered", denies: true,
			reach: func(t *testing.T, s *stand) { s.ask(t); s.ask(t); s.ask(t); s.freeze(t) },
			open:  remembered, closed: remembered, breaker: "closed",
		},
	}
}

// TestEveryRow plays each row with both services and both fail modes.
func TestEveryRow(t *testing.T) {
	documented := tableRows(t)
	for _, r := range rows() {
		documented[r.number] = true
		for _, service := range []rls.Service{rls.ServiceRateLimit, rls.ServiceAuthz} {
			if r.hits > 1 && service == rls.ServiceAuthz {
				continue // a Check always costs 1
			}
			for endpoint, want := range map[string][]outcome{"open": r.open, "closed": r.closed} {
				t.Run(fmt.Sprintf("%d %s/%s/%s", r.number, r.name, service, endpoint), func(t *testing.T) {
					t.Parallel()
					s := newStand(t, r, service, endpoint)
					if r.reach != nil {
						r.reach(t, s)
					}
					for i, w := range want {
						if got := s.ask(t); got != w {
							t.Errorf("request %d: %s; want %s", i+1, got, w)
						}
					}
					s.awaitBreaker(t, r.breaker)
				})
			}
		}
	}
	for number, reached := range documented {
		if !reached {
			t.Errorf("row %d of docs/failure-modes.md has no test", number)
		}
	}
}

// awaitBreaker waits for a state of the breaker: a caller is answered a moment before the round trip is given up.
func (s *stand) awaitBreaker(t *testing.T, want string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for s.store.BreakerState() != want {
		if time.Now().After(deadline) {
			t.Fatalf("breaker %s, want %s", s.store.BreakerState(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

// tableRows returns the numbers of the documented rows.
func tableRows(t *testing.T) map[int]bool {
	t.Helper()
	rows := map[int]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(readDoc(t), -1) {
		n, _ := strconv.Atoi(m[1])
		rows[n] = false
	}
	if len(rows) == 0 {
		t.Fatal("no path table in docs/failure-modes.md")
	}
	return rows
}

// stand is one sentinel over one Redis, asked through one service about one endpoint.
type stand struct {
	server   *testserver.Server
	store    *redis.Store
	service  rls.Service
	endpoint string
	row      row
	rls      rlsv3.RateLimitServiceClient
	authz    authv3.AuthorizationClient
	token    string

	mu   sync.Mutex
	last outcome // as the engine saw the last request
	seen int
}

func newStand(t *testing.T, r row, service rls.Service, endpoint string) *stand {
	t.Helper()
	s := &stand{server: testserver.Start(t, testserver.Redis), service: service, endpoint: endpoint, row: r}
	cfg := r.store
	cfg.URL = s.server.URL()
	if cfg.Budget == 0 {
		cfg.Budget = 3 * time.Second // nothing here is about speed
	}
	cfg.ProbeEvery = time.Hour
	var err error
	if s.store, err = redis.New(cfg); err != nil {
		t.Fatal(err)
	}
	background(t, s.store.Run)

	secret := []byte(strings.Repeat("s", 32))
	key, err := identity.NewHMACKey("HS256", "", identity.Secret(secret))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := identity.NewKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	identities, err := identity.New(identity.Config{
		Issuers: []identity.Issuer{{Algorithms: []string{"HS256"}, Keys: []identity.KeySource{keys}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.token, err = jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": s.tenant(), "exp": time.Now().Add(time.Hour).Unix()}).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	recorder := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	var decides rls.Store = s.store
	if r.denies {
		decides = rls.NewDenyCache(s.store, rls.DenyCacheConfig{MaxAge: time.Minute})
	}
	engine, err := rls.New(rls.Config{
		Store: decides, Identifier: identities, Recorder: recorder, BreakerState: s.store.BreakerState, StoreBudget: cfg.Budget,
	})
	if err != nil {
		t.Fatal(err)
	}
	set, err := descriptors.Parse([]descriptors.File{{Name: "policies.yaml", Data: []byte(policies)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Use(set); err != nil {
		t.Fatal(err)
	}
	s.serve(t, watched{engine, s}, recorder)
	return s
}

func (s *stand) tenant() string {
	if s.row.tenant != "" {
		return s.row.tenant
	}
	return "acme"
}

// watched notes what the engine answers, which the wire does not show in full, and shortens the time that it has.
type watched struct {
	*rls.Engine
	s *stand
}

func (w watched) arrive(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.s.row.within == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, w.s.row.within)
}

func (w watched) Decide(ctx context.Context, r rls.Request) (rls.Result, error) {
	ctx, cancel := w.arrive(ctx)
	defer cancel()
	res, err := w.Engine.Decide(ctx, r)
	w.s.note(res)
	return res, err
}

func (w watched) Check(ctx context.Context, r rls.CheckRequest) rls.CheckResult {
	ctx, cancel := w.arrive(ctx)
	defer cancel()
	res := w.Engine.Check(ctx, r)
	w.s.note(res.Result)
	return res
}

func (s *stand) note(r rls.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = outcome{r.Reason, r.Source, r.Class}
	s.seen++
}

func (s *stand) noted() (outcome, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.seen
}

func (s *stand) serve(t *testing.T, engine envoy.Engine, recorder envoy.Recorder) {
	t.Helper()
	server, err := envoy.NewServer(envoy.Config{Engine: engine, Recorder: recorder, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = server.Shutdown(canceled()) })
		defer stop()
		return server.Serve(l)
	})
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.Connect()
	s.rls, s.authz = rlsv3.NewRateLimitServiceClient(conn), authv3.NewAuthorizationClient(conn)
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// background runs f until the test ends, and waits for it.
func background(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// ask sends one request and returns what came of it. The answer on the wire must say the same.
func (s *stand) ask(t *testing.T) outcome {
	t.Helper()
	_, before := s.noted()
	allowed, reason, err := s.call(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last, seen := s.noted()
	if seen != before+1 {
		t.Fatalf("the engine saw %d requests, want 1", seen-before)
	}
	if allowed != (last.reason == rls.Allowed) || !allowed && reason != string(last.reason) {
		t.Errorf("on the wire: allowed %v, reason %q; the engine: %s", allowed, reason, last)
	}
	return last
}

func (s *stand) call(ctx context.Context) (allowed bool, reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if s.service == rls.ServiceRateLimit {
		resp, err := s.rls.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
			Domain: "shop", HitsAddend: s.row.hits,
			Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
				{Key: "endpoint_id", Value: s.endpoint}, {Key: "tenant", Value: s.tenant()},
			}}},
		})
		return resp.GetOverallCode() == rlsv3.RateLimitResponse_OK, reasonIn(resp.GetResponseHeadersToAdd()), err
	}
	resp, err := s.authz.Check(ctx, &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		ContextExtensions: map[string]string{"endpoint_id": s.endpoint},
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Headers: map[string]string{"authorization": "Bearer " + s.token},
		}},
	}})
	denied := resp.GetDeniedResponse()
	var headers []*corev3.HeaderValue
	for _, h := range denied.GetHeaders() {
		headers = append(headers, h.GetHeader())
	}
	return resp.GetStatus().GetCode() == int32(codes.OK), reasonIn(headers), err
}

func reasonIn(headers []*corev3.HeaderValue) string {
	for _, h := range headers {
		if h.GetKey() == "x-sentinel-reason" {
			return h.GetValue()
		}
	}
	return ""
}

// group is a call to the store about a bucket of no endpoint.
func group(t *testing.T) []rls.Group {
	t.Helper()
	rule, err := algorithms.NewTokenBucket(1000, algorithms.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	return []rls.Group{{{Key: "sentinel:test:{beside}", Rule: rule, Op: algorithms.OpTake, Cost: 1}}}
}

// open makes a call that fails, which opens an eager breaker and spends no emergency cap.
func (s *stand) open(t *testing.T) {
	t.Helper()
	s.server.Kill()
	if err := s.store.Decide(t.Context(), group(t))[0].Err; err == nil {
		t.Fatal("a killed server answered")
	}
	s.awaitBreaker(t, "open")
}

// hang makes a call in the background that gets no answer, and returns once reached holds.
func (s *stand) hang(t *testing.T, reached func() bool) {
	t.Helper()
	g := group(t)
	background(t, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		s.store.Decide(ctx, g)
		return nil
	})
	for deadline := time.Now().Add(5 * time.Second); !reached(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the call in the background did not get where it should")
		}
	}
}

// fill has the only worker wait for the server and the only place in the queue taken.
func (s *stand) fill(t *testing.T) {
	t.Helper()
	s.hang(t, settled())
	s.hang(t, settled())
}

// settled holds once a call that was made before must have got where nothing shows it.
func settled() func() bool {
	start := time.Now()
	return func() bool { return time.Since(start) > 200*time.Millisecond }
}

func (s *stand) freeze(t *testing.T) {
	t.Helper()
	if err := s.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.server.Thaw() })
}

func (s *stand) restart(t *testing.T) {
	t.Helper()
	if err := s.server.Restart(); err != nil {
		t.Fatal(err)
	}
}

// admin sends an administrator's command.
func (s *stand) admin(t *testing.T, args ...any) {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: s.server.Addr(), MaxRetries: -1})
	defer client.Close()
	if err := client.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func readDoc(t *testing.T) string {
	t.Helper()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "failure-modes.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
