package dropin

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// profiles say how the service's settings in each profile's environment read here.
var profiles = map[string]rls.DropInConfig{
	"default":         {},
	"stop":            {StopWhenOver: true},
	"stop-localcache": {StopWhenOver: true, LocalCacheBytes: 1_000_000},
	"headers":         {Headers: &rls.LimitHeaders{}},
}

// TestConformance plays every scenario of each profile, and the default ones also with a local cache: the answers are the
// same.
func TestConformance(t *testing.T) {
	t.Parallel()
	dir := Folder(t)
	names := map[string]string{"default with a local cache": "default"}
	for name := range profiles {
		names[name] = name
	}
	for name, profile := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := profiles[profile]
			if name != profile {
				cfg.LocalCacheBytes = 1_000_000
			}
			eachStore(t, func(t *testing.T, store rls.Store) {
				client := serve(t, store, cfg, dir)
				for _, s := range Scenarios(t, profile) {
					t.Run(s.Name, func(t *testing.T) {
						unique := fmt.Sprintf("u%d", time.Now().UnixNano())
						for i, st := range s.Steps {
							for range max(1, st.Repeat) {
								st.play(t, i, client, unique)
							}
						}
					})
				}
			})
		})
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestStoreGoesAway: when the server is gone, a rule without fail_mode goes on with its own limit in the process.
func TestStoreGoesAway(t *testing.T) {
	t.Parallel()
	dir := Folder(t)
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			client := serve(t, open(t, server, 500*time.Millisecond), rls.DropInConfig{}, dir)
			three := func(remaining ...uint32) {
				t.Helper()
				for _, want := range remaining {
					st := Step{Domain: "cf-match", Descriptors: [][][2]string{{{"notshared", "files/$U"}}}}
					resp, err := client.ShouldRateLimit(t.Context(), st.Request("away"))
					if err != nil {
						t.Fatal(err)
					}
					if got := resp.GetStatuses()[0].GetLimitRemaining(); got != want || resp.GetOverallCode() != rlsv3.RateLimitResponse_OK {
						t.Errorf("%v, want %d left", resp, want)
					}
				}
			}
			over := func() {
				t.Helper()
				st := Step{Domain: "cf-match", Descriptors: [][][2]string{{{"notshared", "files/$U"}}}, Want: Want{Overall: "OVER_LIMIT"}}
				st.play(t, 0, client, "away")
			}
			three(2, 1)
			server.Stop()
			three(2, 1, 0)
			over()
		})
	}
}

// eachStore runs a test over the memory store and over each real server.
func eachStore(t *testing.T, test func(t *testing.T, store rls.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, newMemory(t)) })
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			test(t, open(t, testserver.Start(t, kind), 5*time.Second))
		})
	}
}

// open opens a store on a server until the test ends.
func open(t *testing.T, server *testserver.Server, budget time.Duration) *redis.Store {
	t.Helper()
	store, err := redis.New(redis.Config{URL: server.URL(), Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return store
}

func newMemory(t *testing.T) rls.Store {
	t.Helper()
	store, err := memory.New(memory.Config{MaxBuckets: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// nobody identifies no one: drop-in domains know no identities.
type nobody struct{}

func (nobody) Tenant(identity.Credentials) (identity.Identity, error) {
	return identity.Identity{}, identity.ErrMissing
}
func (nobody) Anonymous(identity.Credentials) identity.Identity { return identity.Identity{} }
func (nobody) Cookie(string) (string, bool)                     { return "", false }
func (nobody) Address(text string) (string, bool) {
	_, err := netip.ParseAddr(text)
	return text, err == nil
}

// serve answers for the files of dir/config until the test ends.
func serve(t *testing.T, store rls.Store, cfg rls.DropInConfig, dir string) rlsv3.RateLimitServiceClient {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "config", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("files %v: %v", paths, err)
	}
	files := make([]descriptors.File, len(paths))
	for i, path := range paths {
		files[i] = descriptors.File{Name: filepath.Base(path), Data: []byte(read(t, path))}
	}
	set, err := descriptors.Parse(files, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Compat, cfg.Fallback = true, newMemory(t)
	recorder := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	engine, err := rls.New(rls.Config{
		Store: store, Identifier: nobody{}, Recorder: recorder, DropIn: cfg,
		StoreBudget: 5 * time.Second, NoDeadline: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Use(set); err != nil {
		t.Fatal(err)
	}
	server, err := envoy.NewServer(envoy.Config{Engine: engine, Recorder: recorder, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return rlsv3.NewRateLimitServiceClient(conn)
}

func (st *Step) play(t *testing.T, i int, client rlsv3.RateLimitServiceClient, unique string) {
	t.Helper()
	resp, err := client.ShouldRateLimit(t.Context(), st.Request(unique))
	if st.Want.GRPC != "" {
		if got := status.Convert(err); got.Code().String() != st.Want.GRPC || got.Message() != st.Want.Message {
			t.Fatalf("step %d: got %v, want %s %q", i, err, st.Want.GRPC, st.Want.Message)
		}
		return
	}
	if err != nil {
		t.Fatalf("step %d: %v", i, err)
	}
	if got := resp.GetOverallCode().String(); got != st.Want.Overall {
		t.Fatalf("step %d: overall %s, want %s: %v", i, got, st.Want.Overall, resp)
	}
	for j := range st.Want.Status {
		if j >= len(resp.GetStatuses()) {
			t.Fatalf("step %d: %d statuses", i, len(resp.GetStatuses()))
		}
		if problem := st.Want.Status[j].differs(resp.GetStatuses()[j]); problem != "" {
			t.Fatalf("step %d, status %d: %s: %v", i, j, problem, resp)
		}
	}
	if st.Want.Headers == nil {
		return
	}
	if len(resp.GetResponseHeadersToAdd()) != len(st.Want.Headers) {
		t.Fatalf("step %d: headers %v, want %v", i, resp.GetResponseHeadersToAdd(), st.Want.Headers)
	}
	for _, h := range resp.GetResponseHeadersToAdd() {
		if want, ok := st.Want.Headers[h.GetKey()]; !ok || want != "any" && h.GetValue() != want {
			t.Errorf("step %d: header %v, want %q", i, h, want)
		}
	}
}

func (w *WantStatus) differs(got *rlsv3.RateLimitResponse_DescriptorStatus) string {
	remaining := w.Remaining
	if remaining == "" {
		remaining = "0"
	}
	limit := got.GetCurrentLimit()
	switch {
	case got.GetCode().String() != w.Code:
		return "code, want " + w.Code
	case remaining != "any" && fmt.Sprint(got.GetLimitRemaining()) != remaining:
		return "remaining, want " + remaining
	case (limit == nil) != (w.PerUnit == nil) || (got.GetDurationUntilReset() == nil) != (w.PerUnit == nil):
		return "limit or reset is there, or is not"
	case limit == nil:
		return ""
	case limit.GetRequestsPerUnit() != *w.PerUnit || limit.GetUnit().String() != w.Unit || limit.GetName() != w.Name:
		return fmt.Sprintf("limit, want %d/%s %q", *w.PerUnit, w.Unit, w.Name)
	}
	unit, _ := rls.UnitNamed(w.Unit)
	length := int64(unit.Length() / time.Second)
	left := length - time.Now().Unix()%length
	if d := left - got.GetDurationUntilReset().GetSeconds(); (d > 1 || d < -1) && left != length {
		return fmt.Sprintf("reset, want about %d s", left)
	}
	return ""
}
