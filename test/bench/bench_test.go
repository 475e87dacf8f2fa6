package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

func TestMain(m *testing.M) {
	load.ServeBareIfAsked()
	os.Exit(m.Run())
}

// A short run of every measure on real servers: what is asked is admitted by the store, once for each call, and
// everything that a figure is made of has been read. How fast it is, is not judged here.
func TestEveryMeasure(t *testing.T) {
	t.Parallel()
	if _, err := testserver.Find("redis-server"); err != nil {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	report, err := runBench(t.Context(), Size{
		Pairs: 2, Window: 200 * time.Millisecond, WarmUp: 50 * time.Millisecond, Callers: 4, Conns: 2, Tenants: 50,
		IdleFor: 100 * time.Millisecond, IdleEndpoints: 100, FullTenants: 4000, FullBuckets: 200, TokenCalls: 2000,
		Env: []string{"SENTINEL_REDIS_BUDGET=900ms"}, // a pause on a busy machine is no failure
	}, regexp.MustCompile(""), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var measured []string
	for _, m := range report.Throughput {
		measured = append(measured, m.Name)
		positive := map[string]Spread{
			"ratio": m.Ratio, "rate": m.Ours.PerSecond, "p50": m.Ours.P50, "p99": m.Ours.P99,
			"bare rate": m.Bare.PerSecond, "bare p50": m.Bare.P50, "bare p99": m.Bare.P99,
		}
		if m.Store != nil {
			positive["Redis' processor time"] = m.Store.CPU
			// A call that is sent in one window may reach Redis in the next.
			if s := m.Store.Scripts; s.Min < 0.95 || s.Max > 1.05 {
				t.Errorf("%s: %v scripts for a call, want 1", m.Name, s)
			}
			if c := m.Store.Commands; c.Min < 3 {
				t.Errorf("%s: %v commands for a call, want the script, a read and a write", m.Name, c)
			}
		}
		for what, s := range positive {
			if s.Min <= 0 || s.Median < s.Min || s.Max < s.Median {
				t.Errorf("%s: %s is %v", m.Name, what, s)
			}
		}
		if m.Ours.Denied.Max > 0 || m.Bare.Denied.Max > 0 {
			t.Errorf("%s: denied %v, by the bare server %v, want none", m.Name, m.Ours.Denied, m.Bare.Denied)
		}
	}
	if want := []string{"rls_redis", "rls_memory", "authz_redis"}; !slices.Equal(measured, want) {
		t.Errorf("measured %q, want %q", measured, want)
	}
	if i := report.Idle; i == nil || i.Bytes < 1<<20 || i.Bytes >= i.Limit {
		t.Errorf("idle memory %+v, want some, under 48 MiB", i)
	}
	if c := report.Tokens; c == nil || c.Ratio.Min <= 0 || c.RS256.Min <= 0 || c.HS256.Min <= 0 || c.Odd > 0 {
		t.Errorf("tokens %+v, want processor time for both kinds, and every call admitted", c)
	}
	f := report.Full
	if f == nil || f.Buckets != 200 || f.Admitted < 0.99 || len(f.Samples) != 20 || slices.Min(f.Samples) < 1<<20 {
		t.Errorf("full memory store %+v, want 200 buckets, all admitted, 20 samples", f)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{4, 1}, Spread{2.5, 1, 4}},
		{[]float64{5, 1, 9, 2, 8}, Spread{5, 1, 9}},
	} {
		if got := spreadOf(tt.values); got != tt.want {
			t.Errorf("spreadOf(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestFullJudge(t *testing.T) {
	t.Parallel()
	const m = 1 << 20
	for _, tt := range []struct {
		name        string
		samples     []int64
		from        int
		filled, end int64
		grew        bool
	}{
		{"breathes", []int64{10 * m, 50 * m, 80 * m, 82 * m, 79 * m, 81 * m, 80 * m, 82 * m, 80 * m, 82 * m}, 2, 81 * m, 81 * m, false},
		{"grows", []int64{10 * m, 50 * m, 80 * m, 82 * m, 84 * m, 86 * m, 88 * m, 90 * m, 92 * m, 94 * m}, 2, 81 * m, 93 * m, true},
		{"one sample", []int64{7 * m}, 5, 7 * m, 7 * m, false},
	} {
		f := Full{Samples: tt.samples}
		f.judge(tt.from)
		if f.Filled != tt.filled || f.End != tt.end || f.End >= f.Limit != tt.grew {
			t.Errorf("%s: from %d to %d under %d", tt.name, f.Filled, f.End, f.Limit)
		}
	}
}

// sample is a report whose every number can be told from the others.
func sample() *Report {
	of := func(v float64) Spread { return Spread{v, v * 0.9, v * 1.1} }
	return &Report{
		Schema: "sentinel.bench/1", Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		Machine: load.Machine{Processor: "Some CPU", Cores: 2, Kernel: "Linux 6.1", Go: "go1.26", LoadAverage: "0.05"},
		Store:   "redis 7.0.15", Size: fullSize(), Seconds: 2,
		Throughput: []Throughput{
			{
				Name: "rls_redis", Ratio: of(0.7), Floor: 0.5,
				Bare:  Server{PerSecond: of(40000), P50: of(1500), P99: of(4000), CPU: of(20)},
				Ours:  Server{PerSecond: of(28000), P50: of(2100), P99: of(4500), CPU: of(25), Others: of(0.02)},
				Store: &StoreIO{CPU: of(10), Scripts: of(1), Commands: of(4)},
			},
			{
				Name: "rls_memory", Ratio: of(0.9),
				Bare: Server{PerSecond: of(41000), P50: of(1400), P99: of(3900), CPU: of(21)},
				Ours: Server{PerSecond: of(36900), P50: of(1600), P99: of(4100), CPU: of(23)},
			},
		},
		Tokens: &Tokens{Calls: 200_000, Kept: 1000, Ratio: of(1.05), Limit: tokensLimit, RS256: of(42), HS256: of(40)},
		Idle:   &Idle{Endpoints: 100, Seconds: 10, Bytes: 24 << 20, Limit: idleLimit},
		Full: &Full{
			Tenants: 1_000_000, Buckets: 200_000, MaxBuckets: 200_000,
			Filled: 100 << 20, End: 101 << 20, Limit: 105 << 20, Admitted: 1,
		},
	}
}

func TestReportMissed(t *testing.T) {
	t.Parallel()
	if missed := sample().missed(); missed != nil {
		t.Errorf("a good report misses %q", missed)
	}
	for _, tt := range []struct {
		spoil func(*Report)
		want  string
	}{
		{func(r *Report) { r.Throughput[0].Ratio.Median = 0.49 }, "rls_redis is 0.49 of the bare server, not 0.50"},
		{func(r *Report) { r.Throughput[1].Ours.Denied.Max = 0.5 }, "rls_memory: up to 50.00 % of the sentinel-rls's calls"},
		{func(r *Report) { r.Throughput[1].Bare.Lost.Max = 0.25 }, "rls_memory: up to 25.00 % of the bare server's calls"},
		{func(r *Report) { r.Tokens.Ratio.Median = 1.2 }, "token_cache: an RS256 token costs 1.20 of an HS256 one, not 1.15"},
		{func(r *Report) { r.Tokens.Odd = 0.5 }, "token_cache: 50.00 % of the calls"},
		{func(r *Report) { r.Idle.Bytes = idleLimit }, "memory_idle is 48.0 MiB, not under 48"},
		{func(r *Report) { r.Full.End = r.Full.Limit }, "memory_full grew from 100.0 to 105.0 MiB"},
		{func(r *Report) { r.Full.Buckets = 1 }, "memory_full: the store kept 1 of 200000 buckets"},
		{func(r *Report) { r.Full.Admitted = 0.5 }, "memory_full: only 50.00 % of the calls"},
	} {
		r := sample()
		tt.spoil(r)
		var text bytes.Buffer
		r.print(&text)
		missed := r.missed()
		if len(missed) != 1 || !strings.HasPrefix(missed[0], tt.want) || !strings.Contains(text.String(), "MISSED: "+tt.want) {
			t.Errorf("missed %q, want %q; printed\n%s", missed, tt.want, &text)
		}
	}
}

func TestReportTable(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	sample().print(&got)
	want, err := os.ReadFile("testdata/report.md")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("testdata/report.md differs; got\n%s", &got)
	}
}

func TestReportTellsOfOtherWork(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Throughput[1].Bare.Others = Spread{0.05, 0, 0.4}
	var text bytes.Buffer
	r.print(&text)
	if got := text.String(); !strings.Contains(got, "up to 40 % of") || !strings.Contains(got, "That is too much") {
		t.Errorf("printed\n%s", got)
	}
}

func TestReportJSON(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report.json")
	want := sample()
	if err := writeJSON(file, want); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want.Size.Window, want.Size.WarmUp, want.Size.IdleFor = 0, 0, 0 // written in seconds elsewhere, or not at all
	if !reflect.DeepEqual(&got, want) {
		t.Errorf("read back %+v\nwant %+v", got, want)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, exitOK, "rls_redis, rls_memory, authz_redis, token_cache, memory_idle, memory_full"},
		{[]string{"-nonsense"}, exitUsage, "not defined: -nonsense"},
		{[]string{"-run", "("}, exitUsage, "missing closing )"},
		{[]string{"-pairs", "0"}, exitUsage, "must be positive"},
		{[]string{"-seconds", "-1"}, exitUsage, "must be positive"},
		{[]string{"rls_redis"}, exitUsage, "no arguments"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), tt.args, &stdout, &stderr)
		if code != tt.code || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
			t.Errorf("%q: code %d, %q, want %d and %q", tt.args, code, &stderr, tt.code, tt.want)
		}
	}
}
