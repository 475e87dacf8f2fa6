package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/sentinel-rls/sentinel-rls/internal/admin"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	drive "github.com/sentinel-rls/sentinel-rls/test/load"
)

// reloading is a process whose policy files a test changes.
type reloading struct {
	*testing.T
	instance
	process *testserver.Process
	dir     string // of the policies
	conn    *grpc.ClientConn
}

func startReloading(t *testing.T, env ...string) *reloading {
	t.Helper()
	dir := shop(t)
	r := &reloading{T: t, dir: filepath.Join(dir, "policies")}
	r.process, r.instance = startProcess(t, append(env, "SENTINEL_SHUTDOWN_DRAIN_DELAY=0s"), "--config", filepath.Join(dir, "sentinel.yaml"))
	r.conn = dial(t, r.grpcAddr)
	return r
}

func (r *reloading) write(name, text string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

// hangup sends SIGHUP and returns what became of the files.
func (r *reloading) hangup() (outcome string) {
	r.Helper()
	before := r.outcomes()
	if err := r.process.Signal(syscall.SIGHUP); err != nil {
		r.Fatal(err)
	}
	return r.awaitOutcome(before)
}

func (r *reloading) awaitOutcome(before map[string]string) (outcome string) {
	r.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		for name, count := range r.outcomes() {
			if count != before[name] {
				return name
			}
		}
		if time.Now().After(deadline) {
			r.Fatalf("nothing became of the files in 20 s:\n%s", r.log())
		}
	}
}

func (r *reloading) outcomes() map[string]string {
	r.Helper()
	counts := map[string]string{}
	for _, name := range []string{"loaded", "unchanged", "refused"} {
		counts[name] = metric(r.T, r.instance, `sentinel_policies_reloads_total{outcome="`+name+`"}`)
	}
	return counts
}

func (r *reloading) shown() (p admin.Policies) {
	r.Helper()
	_, body := get(r.T, r.instance, "/policies")
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		r.Fatal(err)
	}
	return p
}

// admitted asks until it is over the limit and returns how often it was not.
func (r *reloading) admitted(tenant string, most int) int {
	r.Helper()
	for n := range most {
		if limited(r.T, r.conn, "shop", "orders", tenant) {
			return n
		}
	}
	return most
}

// What is served is the last good set, whatever happens to the files, and everyone who asks is told that it is stale.
func TestCFG_10_BadFilesKeepTheLastGoodSet(t *testing.T) {
	t.Parallel()
	r := startReloading(t)
	if n := r.admitted("acme", 4); n != 4 {
		t.Fatalf("%d admitted", n)
	}
	good := r.shown()
	file := filepath.Join(r.dir, "shop.yaml")
	steps := []struct {
		what    string
		change  func()
		problem string
	}{
		{"a typo", func() { r.write("shop.yaml", strings.ReplaceAll(shopPolicies, "capacity", "capacty")) }, "did you mean capacity?"},
		{"half of it", func() { r.write("shop.yaml", shopPolicies[:len(shopPolicies)/2]) }, "shop.yaml:"},
		{"an empty file", func() { r.write("shop.yaml", "") }, "shop.yaml: "},
		{"comments only", func() { r.write("shop.yaml", "# nothing\n") }, "shop.yaml: "},
		{"no file", func() { _ = os.Remove(file) }, "no policy file in this directory"},
		{"no directory", func() { _ = os.Remove(r.dir) }, "no such file or directory"},
		{"another directory in its place, without policies", func() { _ = os.MkdirAll(filepath.Join(r.dir, "nested"), 0o700) }, "no policy file in this directory"},
		{"a bad file beside the good one", func() {
			r.write("shop.yaml", strings.ReplaceAll(shopPolicies, "capacity: 10", "capacity: 20"))
			r.write("other.yaml", "domain: other\nendpoints: {}\n")
		}, "other.yaml:2: "},
		{"another algorithm for buckets that exist", func() {
			_ = os.Remove(filepath.Join(r.dir, "other.yaml"))
			r.write("shop.yaml", strings.ReplaceAll(shopPolicies, "token_bucket, capacity: 10, refill: 0", "sliding_window, limit: 10, window: 1d"))
		}, "raise policy_version above 1"},
		{"what the configuration does not fit", func() {
			r.write("shop.yaml", strings.NewReplacer("fail_mode", "identity: anonymous\n    fail_mode", "scope: tenant", "scope: client_ip", "refill: 0", "refill: 1/s").Replace(shopPolicies))
		}, "anonymous.cookie_secret_files: is required"},
	}
	for i, step := range steps {
		step.change()
		if outcome := r.hangup(); outcome != "refused" {
			t.Fatalf("%s: %s, want refused", step.what, outcome)
		}
		shown := r.shown()
		if shown.Hash != good.Hash || !shown.Loaded.Equal(good.Loaded) || !shown.Stale || !strings.Contains(strings.Join(shown.Problems, "\n"), step.problem) {
			t.Errorf("%s: /policies shows %+v, want the set of before, stale, and a problem with %q", step.what, shown, step.problem)
		}
		if code, body := get(t, r.instance, "/readyz"); code != http.StatusOK || !strings.Contains(body, `"policies_stale"`) {
			t.Errorf("%s: /readyz: %d %s, want 200 and policies_stale", step.what, code, body)
		}
		for series, want := range map[string]string{
			`sentinel_policies_reloads_total{outcome="refused"}`: fmt.Sprint(i + 1),
			"sentinel_policies_stale":                            "1",
			`sentinel_policies_info{hash="` + good.Hash + `"}`:   "1",
		} {
			if got := metric(t, r.instance, series); got != want {
				t.Errorf("%s: %s is %s, want %s", step.what, series, got, want)
			}
		}
		if !strings.Contains(r.log(), step.problem) {
			t.Errorf("%s: the log lacks %q", step.what, step.problem)
		}
		// Never allow-all, and the bucket is the one of before: ten of a tenant in all, whatever comes.
		if n := r.admitted(fmt.Sprint("tenant-", i), 20); n != 10 {
			t.Errorf("%s: %d of a new tenant admitted, want 10", step.what, n)
		}
	}
	r.write("shop.yaml", shopPolicies)
	if outcome := r.hangup(); outcome != "unchanged" {
		t.Errorf("restored: %s, want unchanged", outcome)
	}
	if shown := r.shown(); shown.Stale || len(shown.Problems) > 0 || shown.Hash != good.Hash || !shown.Loaded.Equal(good.Loaded) {
		t.Errorf("restored: /policies shows %+v", shown)
	}
	if _, body := get(t, r.instance, "/readyz"); !strings.Contains(body, `"degraded":[]`) {
		t.Errorf("restored: /readyz says %s", body)
	}
	if n := r.admitted("acme", 20); n != 6 {
		t.Errorf("%d more of acme admitted after ten bad reloads, want 6", n)
	}
}

// A reload changes what it says and nothing else.
func TestBucketsSurviveAReload(t *testing.T) {
	t.Parallel()
	r := startReloading(t)
	steps := []struct {
		what, old, new string
		want           int // of acme admitted after it
	}{
		{"four of ten are taken", "", "", 4},
		{"another endpoint beside it", "endpoints:", "endpoints:\n  other: {policy_version: 1, fail_mode: fail_closed, limits: blocked}", 3},
		{"a smaller capacity", "capacity: 10", "capacity: 2", 2},
		{"a larger one gives nothing back", "capacity: 10", "capacity: 50", 0},
		{"a new version starts afresh", "policy_version: 1\n    fail_mode", "policy_version: 2\n    fail_mode", 10},
		{"and the old version is where it was", "", "", 0},
	}
	for i, step := range steps {
		if i > 0 {
			r.write("shop.yaml", strings.Replace(shopPolicies, step.old, step.new, 1))
			if outcome := r.hangup(); outcome != "loaded" {
				t.Fatalf("%s: %s:\n%s", step.what, outcome, r.log())
			}
		}
		most := 20
		if i < 2 {
			most = step.want
		}
		if n := r.admitted("acme", most); n != step.want {
			t.Errorf("%s: %d admitted, want %d", step.what, n, step.want)
		}
	}
}

// Without a signal: a mounted ConfigMap is swapped, and its content is noticed by looking.
func TestCFG_11_SwappedConfigMapIsNoticed(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"sentinel.yaml": shopConfig, "secret": secret,
		"policies/..2026_a/rules.yaml": shopPolicies,
		"policies/..2026_b/rules.yaml": strings.ReplaceAll(shopPolicies, "capacity: 10", "capacity: 3"),
	})
	policies := filepath.Join(dir, "policies")
	for link, to := range map[string]string{"..data": "..2026_a", "rules.yaml": "..data/rules.yaml"} {
		if err := os.Symlink(to, filepath.Join(policies, link)); err != nil {
			t.Fatal(err)
		}
	}
	process, in := startProcess(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"))
	r := &reloading{T: t, instance: in, process: process, dir: policies, conn: dial(t, in.grpcAddr)}
	if n := r.admitted("acme", 20); n != 10 {
		t.Fatalf("%d admitted, want 10", n)
	}
	if shown := r.shown(); !slices.Equal(shown.Domains, []string{"shop"}) || len(shown.Files) != 1 {
		t.Errorf("/policies shows %+v, want one file and one domain", shown)
	}
	before := r.outcomes()
	if err := os.Symlink("..2026_b", filepath.Join(policies, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(policies, "..data_tmp"), filepath.Join(policies, "..data")); err != nil {
		t.Fatal(err)
	}
	if outcome := r.awaitOutcome(before); outcome != "loaded" {
		t.Fatalf("swapped: %s:\n%s", outcome, r.log())
	}
	if n := r.admitted("globex", 20); n != 3 {
		t.Errorf("%d admitted after the swap, want 3", n)
	}
	time.Sleep(3 * time.Second) // another look or two
	if got := r.outcomes(); got["loaded"] != "1" || got["unchanged"] != "0" || got["refused"] != "0" {
		t.Errorf("one swap became %v", got)
	}
}

// Hangups while there is nothing to reload end nothing.
func TestHangupWithoutPolicyFiles(t *testing.T) {
	t.Parallel()
	process, in := startProcess(t, nil)
	if err := process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, ok := logRecord(in.log(), "nothing to reload: no policy files are configured"); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the hangup is not answered:\n%s", in.log())
		}
	}
}

// reloadEnv names how long TestReloadUnderLoad lasts; `make reload` sets it to a minute.
const reloadEnv = "RELOAD_FOR"

// 500 requests a second while the policies change every 100 ms, every seventh time for the worse: no call fails, and a
// bucket that no change concerns admits exactly its capacity.
func TestReloadUnderLoad(t *testing.T) {
	const rate, every, capacity = 500, 100 * time.Millisecond, 300
	// Deadlines and budgets are nothing to measure with the race detector beside other tests.
	lasts, deadline, env := 2*time.Second, 10*time.Second, []string{"SENTINEL_REDIS_BUDGET=5s"}
	if text := os.Getenv(reloadEnv); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		deadline, env = 200*time.Millisecond, nil
	}
	policies := func(i int) string {
		return fmt.Sprintf(`
domain: load
endpoints:
  exact: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: %d, refill: 0}]}
  changing: {policy_version: %d, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: %d, refill: 1000000/s}]}
`, capacity, i+1, 1_000_000+i)
	}
	dir := files(t, map[string]string{"sentinel.yaml": shopConfig, "secret": secret, "policies/load.yaml": policies(0)})
	process, in := startProcess(t, env, "--config", filepath.Join(dir, "sentinel.yaml"))
	conns, err := drive.Dial(t.Context(), in.grpcAddr, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()

	exactly, err := drive.RateLimitQuestion("exact", 1)
	if err != nil {
		t.Fatal(err)
	}
	freely, err := drive.RateLimitQuestion("changing", 50)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "policies", "load.yaml")
	open := drive.Open{Rate: rate / 2, Deadline: deadline, MaxInFlight: 1000}
	beside := open
	beside.Phases = []drive.Phase{{Calls: int(rate / 2 * lasts.Seconds())}}
	for i := range int(lasts / every) {
		open.Phases = append(open.Phases, drive.Phase{Calls: int(rate / 2 * every.Seconds()), Before: func() error {
			text := policies(i + 1)
			if i%7 == 3 {
				text = text[:len(text)/2]
			}
			if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
				return err
			}
			if err := os.Rename(file+".new", file); err != nil {
				return err
			}
			return process.Signal(syscall.SIGHUP)
		}})
	}
	var reports, staying []*drive.Report
	both, ctx := errgroup.WithContext(t.Context())
	both.Go(func() (err error) { reports, err = open.Run(ctx, conns, freely); return err })
	both.Go(func() (err error) { staying, err = beside.Run(ctx, conns, exactly); return err })
	if err := both.Wait(); err != nil {
		t.Fatal(err)
	}
	var calls, changing, refused int64
	var slowest time.Duration
	for _, r := range reports {
		changing += r.Count(drive.Allowed)
		refused += r.Count(drive.Denied)
	}
	exact := staying[0].Count(drive.Allowed)
	for i, r := range append(reports, staying...) {
		calls += r.Calls()
		slowest = max(slowest, r.Latency.Max())
		if r.Count(drive.Failed) > 0 || r.Count(drive.Late) > 0 {
			t.Errorf("after reload %d: %d calls failed, %d were late: %v", i, r.Count(drive.Failed), r.Count(drive.Late), r.Err())
		}
	}
	if exact != capacity || refused != 0 || changing == 0 {
		t.Errorf("%d admitted of the bucket that stays, %d of those that change, %d refused of these; want %d, all, none",
			exact, changing, refused, capacity)
	}
	loads := metric(t, in, `sentinel_policies_reloads_total{outcome="loaded"}`)
	refusals := metric(t, in, `sentinel_policies_reloads_total{outcome="refused"}`)
	if loads == "0" || refusals == "0" {
		t.Errorf("%s reloads and %s refusals, want both", loads, refusals)
	}
	t.Logf("%d calls in %v, 0 errors, the slowest %v; policies loaded %s times, refused %s times", calls, lasts, slowest, loads, refusals)
}
