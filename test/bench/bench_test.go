package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"maps"
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

var update = flag.Bool("update", false, "write testdata/report.md instead of comparing it")

func TestMain(m *testing.M) {
	load.ServeBareIfAsked()
	os.Exit(m.Run())
}

// need skips a test that lacks a program.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, name := range programs {
		if _, err := testserver.Find(name); err != nil {
			testserver.SkipUnlessCI(t, "%v", err)
		}
	}
}

// A short run of every measure on real servers: what is asked is admitted by the store, once for each call, and
// everything that a figure is made of has been read. How fast it is, is not judged here.
func TestEveryMeasure(t *testing.T) {
	t.Parallel()
	need(t, "redis-server", "envoy")
	report, err := runBench(t.Context(), Size{
		Pairs: 2, Window: 100 * time.Millisecond, WarmUp: 50 * time.Millisecond, Callers: 4, Conns: 2, Tenants: 50,
		IdleFor: 100 * time.Millisecond, IdleEndpoints: 100, FullTenants: 2000, FullBuckets: 200, TokenCalls: 1000,
		ScaleEndpoints: 1000, ScaleTenants: 2000, OpenFor: 500 * time.Millisecond, OverloadFor: time.Second,
		Env: []string{"SENTINEL_REDIS_BUDGET=900ms"}, // a pause on a busy machine is no failure
	}, regexp.MustCompile(""), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]*Row)
	for i := range report.Rows {
		m := &report.Rows[i]
		rows[m.Name] = m
		positive := map[string]Spread{
			"ratio": m.Ratio, "p99 ratio": m.P99, "rate": m.Ours.PerSecond, "p50": m.Ours.P50, "p99": m.Ours.P99,
			"base rate": m.Base.PerSecond, "base p50": m.Base.P50, "base p99": m.Base.P99,
		}
		if m.Store != nil && m.Name != "rls_denied" {
			positive["Redis' processor time"] = m.Store.CPU
			// A call that is sent in one window may reach Redis in the next, and heartbeats are scripts, too.
			least := m.Ours.PerSecond.Min * report.Seconds // calls in a window
			if s := m.Store.Scripts; s.Min <= 0 || s.Max > 1.05+5/least {
				t.Errorf("%s: %v scripts for a call, want 1 at most", m.Name, s)
			}
			if c := m.Store.Commands; c.Min < 0.95-5/least {
				t.Errorf("%s: %v commands for a call, want a write at least", m.Name, c)
			}
		}
		for what, s := range positive {
			if s.Min <= 0 || s.Median < s.Min || s.Max < s.Median {
				t.Errorf("%s: %s is %v", m.Name, what, s)
			}
		}
		allowedOdd := 0.0
		if m.Name == "rls_denied" {
			allowedOdd = 0.5 // a call a minute is admitted
		}
		if m.Ours.Odd.Max > allowedOdd || m.Base.Odd.Max > 0 {
			t.Errorf("%s: %v ended otherwise than meant, of its base %v, want none", m.Name, m.Ours.Odd, m.Base.Odd)
		}
		if m.Rounds != 2 {
			t.Errorf("%s: %d rounds, want 2", m.Name, m.Rounds)
		}
	}
	want := []string{"authz_redis", "authz_uncached", "envoy", "groups_2", "groups_4", "groups_8", "rls_denied", "rls_memory", "rls_redis", "scale_endpoints", "scale_tenants"}
	if got := slices.Sorted(maps.Keys(rows)); !slices.Equal(got, want) {
		t.Fatalf("measured %q, want %q", got, want)
	}
	if tuned := rows["rls_redis"].Tuned; tuned == nil || tuned.Ratio.Min <= 0 || tuned.PerSecond.Min <= 0 || tuned.Odd.Max > 0 {
		t.Errorf("against the bare server with our settings: %+v", tuned)
	}
	if denied := rows["rls_denied"]; denied.KeyCalls == nil || denied.Store.Scripts.Max > 0.5 {
		t.Errorf("a hot key that is denied: %v store calls a second, %v scripts a call", denied.KeyCalls, denied.Store.Scripts)
	}
	if i := report.Idle; i == nil || i.Bytes < 1<<20 || mib(i.Bytes) >= 48 {
		t.Errorf("idle memory %+v, want some, under 48 MiB", i)
	}
	if c := report.Tokens; c == nil || c.Ratio.Min <= 0 || c.RS256.Min <= 0 || c.HS256.Min <= 0 || c.Odd > 0 {
		t.Errorf("tokens %+v, want processor time for both kinds, and every call admitted", c)
	}
	if o := report.Open; o == nil || o.TooBusy == "" && (o.Rate <= 0 || o.Base.Calls == 0 || o.Ours.Calls != o.Base.Calls || o.Ours.P999 < o.Ours.P50) {
		t.Errorf("open loop %+v", o)
	}
	if o := report.Overload; o == nil || o.TooBusy == "" && (o.Rate <= o.Capacity || o.Calls == 0 || o.ByStore+o.Locally != 1 || o.Admitted > o.Bound) {
		t.Errorf("overload %+v", o)
	}
	f := report.Full
	if f == nil || f.Buckets != 200 || f.Admitted < 0.99 || len(f.Samples) != 20 || slices.Min(f.Samples) < 1<<20 {
		t.Errorf("full memory store %+v, want 200 buckets, all admitted, 20 samples", f)
	}
	var figures []string
	for _, f := range report.Figures {
		figures = append(figures, f.Name)
	}
	for _, m := range marks {
		if !slices.Contains(figures, m.figure) {
			t.Errorf("no figure %s among %q", m.figure, figures)
		}
	}
}

func TestProfile(t *testing.T) {
	t.Parallel()
	need(t, "redis-server")
	dir := filepath.Join(t.TempDir(), "profile")
	size := Size{Callers: 4, Conns: 2, Tenants: 50, WarmUp: 50 * time.Millisecond, ProfileFor: time.Second}
	if err := profile(t.Context(), size, dir, t.Output()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rls_redis.cpu.pprof", "rls_redis.allocs.pprof", "authz_redis.cpu.pprof", "authz_redis.allocs.pprof"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
			t.Errorf("%s: %d bytes, %v, want a compressed profile", name, len(text), err)
		}
	}
}

// The gate, in short: every figure that has a floor is held to it, whatever comes of it.
func TestGate(t *testing.T) {
	t.Parallel()
	need(t, "redis-server", "envoy")
	size := Size{
		Pairs: 1, Window: 100 * time.Millisecond, WarmUp: 50 * time.Millisecond, Callers: 4, Conns: 2, Tenants: 50, Quick: true,
		Env: []string{"SENTINEL_REDIS_BUDGET=900ms"},
	}
	report, err := runGate(t.Context(), size, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range marks {
		i := slices.IndexFunc(report.Figures, func(f Figure) bool { return f.Name == m.figure })
		switch {
		case m.floor == 0 && i >= 0:
			t.Errorf("%s has no floor and is held", m.figure)
		case m.floor > 0 && i < 0:
			t.Errorf("%s is not held", m.figure)
		case m.floor > 0 && (*report.Figures[i].Reach != m.floor || report.Figures[i].Verdict == goalMissed):
			t.Errorf("%+v, want it held to %v", report.Figures[i], m.floor)
		}
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

func TestFullSettle(t *testing.T) {
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
		f.settle(tt.from)
		if f.Filled != tt.filled || f.End != tt.end {
			t.Errorf("%s: from %d to %d", tt.name, f.Filled, f.End)
		}
		r := &Report{Full: &f}
		f.Admitted = 1
		if figures := r.figures(); len(figures) != 1 || (figures[0].Verdict == missed) != tt.grew {
			t.Errorf("%s: %+v", tt.name, figures)
		}
	}
}

// sample is a report whose every number can be told from the others.
func sample() *Report {
	of := func(v float64) Spread { return Spread{v, v * 0.9, v * 1.1} }
	r := &Report{
		Schema: "sentinel.bench/1", Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		Machine: load.Machine{Processor: "Some CPU", Cores: 2, Kernel: "Linux 6.1", Go: "go1.26", LoadAverage: "0.05"},
		Store:   "redis 7.0.15", Size: fullSize(), Seconds: 2,
		Rows: []Row{
			{
				Name: "rls_redis", Against: bareServer, Ratio: of(0.72), P99: of(1.2), CPUBeyond: of(4), CPURatio: of(1.25),
				Base:  Server{PerSecond: of(40000), P50: of(1500), P99: of(4000), CPU: of(20)},
				Ours:  Server{PerSecond: of(28000), P50: of(2100), P99: of(4500), CPU: of(25), Others: of(0.02)},
				Tuned: &Tuned{Ratio: of(0.55), Server: Server{PerSecond: of(50000), CPU: of(15)}},
				Store: &StoreIO{CPU: of(10), Scripts: of(1), Commands: of(4)}, Rounds: 5, Repeated: 1,
			},
			{
				Name: "rls_memory", Against: bareServer, Ratio: of(0.9), P99: of(1.1),
				Base: Server{PerSecond: of(41000), P50: of(1400), P99: of(3900), CPU: of(21)},
				Ours: Server{PerSecond: of(36900), P50: of(1600), P99: of(4100), CPU: of(23)}, Rounds: 5,
			},
		},
		Tokens: &Tokens{Calls: 200_000, Kept: 1000, Ratio: of(1.05), RS256: of(42), HS256: of(40)},
		Idle:   &Idle{Endpoints: 100, Seconds: 10, Bytes: 24 << 20},
		Full: &Full{
			Tenants: 1_000_000, Buckets: 200_000, MaxBuckets: 200_000, Filled: 100 << 20, End: 101 << 20, Admitted: 1,
		},
	}
	r.Figures = r.figures()
	return r
}

func TestFiguresAreJudged(t *testing.T) {
	t.Parallel()
	if missed := sample().missed(); missed != nil {
		t.Errorf("a good report misses %q", missed)
	}
	for _, tt := range []struct {
		spoil   func(*Report)
		figure  string
		verdict Verdict
		line    string
	}{
		{func(r *Report) { r.Rows[0].Ratio.Median = 0.69 }, "rls_redis.ratio", missed, "rls_redis.ratio is 0.69, not ≥ 0.70"},
		{func(*Report) {}, "rls_redis.ratio", goalMissed, ""},
		{func(r *Report) { r.Rows[0].Ratio.Median = 0.76 }, "rls_redis.ratio", reached, ""},
		{func(*Report) {}, "rls_redis.tuned", printed, ""},
		{func(r *Report) { r.Rows[0].P99.Median = 1.4 }, "rls_redis.p99", missed, "rls_redis.p99 is 1.40, not ≤ 1.30"},
		{func(r *Report) { r.Rows[0].CPUBeyond.Median = 6 }, "rls_redis.cpu", goalMissed, ""},
		{func(r *Report) { r.Rows[0].Store.CPU.Median = 11.5 }, "rls_redis.redis_cpu", goalMissed, ""},
		{func(r *Report) { r.Rows[1].Ours.Odd = Spread{0.3, 0, 0.5} }, "rls_memory.ratio", void, "rls_memory.ratio is void: up to 50.00 % of the calls"},
		{func(r *Report) { r.Rows[1].Base.Odd = Spread{0.06, 0, 0.25} }, "rls_memory.ratio", void, "rls_memory.ratio is void: up to 25.00 % of the calls"},
		{func(r *Report) { r.Rows[0].Ours.Odd = Spread{0.001, 0, 0.02} }, "rls_redis.ratio", notJudged, ""},
		{func(r *Report) { r.Rows[0].Disturbed, r.Rows[0].Ours.Odd.Max = true, 0.5 }, "rls_redis.ratio", notJudged, ""},
		{func(r *Report) { r.Tokens.Ratio.Median = 1.2 }, "token_cache.ratio", missed, "token_cache.ratio is 1.20, not ≤ 1.15"},
		{func(r *Report) { r.Tokens.Odd = 0.5 }, "token_cache.ratio", void, "token_cache.ratio is void: 50.00 % of the calls"},
		{func(r *Report) { r.Idle.Bytes = 49 << 20 }, "memory_idle.mib", missed, "memory_idle.mib is 49.0, not ≤ 48.0"},
		{func(r *Report) { r.Full.End = 106 << 20 }, "memory_full.growth", missed, "memory_full.growth is 1.060, not ≤ 1.050"},
		{func(r *Report) { r.Full.Buckets = 1 }, "memory_full.growth", void, "memory_full.growth is void: the store kept 1 of 200000 buckets"},
		{func(r *Report) { r.Full.Admitted = 0.5 }, "memory_full.growth", void, "memory_full.growth is void: only 50.00 % of the calls"},
	} {
		r := sample()
		tt.spoil(r)
		r.Figures = r.figures()
		i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == tt.figure })
		if got := r.Figures[i].Verdict; got != tt.verdict {
			t.Errorf("%s is %q, want %q", tt.figure, got, tt.verdict)
		}
		lines := r.missed()
		if (tt.line == "") != (lines == nil) || tt.line != "" && !strings.HasPrefix(lines[0], tt.line) {
			t.Errorf("missed %q, want %q", lines, tt.line)
		}
		var text bytes.Buffer
		r.print(&text)
		if !strings.Contains(text.String(), string(tt.verdict)) {
			t.Errorf("%s: printed\n%s", tt.figure, &text)
		}
	}
}

// Floors are below what must be reached, and hold figures that miss that.
func TestFloors(t *testing.T) {
	t.Parallel()
	for _, m := range marks {
		if m.floor > 0 && (m.atMost || m.floor >= m.reach) {
			t.Errorf("%s: floor %v, reach %v", m.figure, m.floor, m.reach)
		}
	}
	r := sample()
	for _, tt := range []struct {
		ratio     float64
		disturbed bool
		verdict   Verdict
	}{{0.75, false, reached}, {0.55, false, reached}, {0.4, false, missed}, {0.4, true, notJudged}} {
		r.Rows[0].Ratio.Median, r.Rows[0].Disturbed = tt.ratio, tt.disturbed
		held := gated(r.figures())
		if len(held) != 1 || held[0].Name != "rls_redis.ratio" || held[0].Verdict != tt.verdict || *held[0].Reach != 0.48 {
			t.Errorf("%v: %+v, want %s", tt, held, tt.verdict)
		}
	}
}

func TestReportTable(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	sample().print(&got)
	if *update {
		if err := os.WriteFile("testdata/report.md", got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/report.md")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("testdata/report.md differs; got\n%s", &got)
	}
}

func TestDisturbedRoundsAreRepeated(t *testing.T) {
	t.Parallel()
	const noisy, calm = 0.2, 0.05
	for _, tt := range []struct {
		others    []float64 // of each round in turn
		played    int
		repeated  int
		disturbed bool
		kept      []float64
	}{
		{[]float64{calm, calm, calm}, 3, 0, false, []float64{calm, calm, calm}},
		{[]float64{calm, noisy, calm, calm}, 4, 1, false, []float64{calm, calm, calm}},
		{[]float64{noisy, noisy, calm, noisy, calm}, 5, 2, true, []float64{calm, calm, noisy}},
		{[]float64{noisy, noisy, noisy, noisy, noisy}, 5, 2, true, []float64{noisy, noisy, noisy}},
	} {
		played := 0
		r, err := inRounds(3, 2, func(n int) ([]window, error) {
			played++
			return []window{{}, {others: tt.others[n]}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var kept []float64
		for _, w := range r.windows(1) {
			kept = append(kept, w.others)
		}
		if played != tt.played || r.repeated != tt.repeated || r.disturbed != tt.disturbed || !slices.Equal(kept, tt.kept) {
			t.Errorf("%v: %d played, %d repeated, disturbed %v, kept %v", tt.others, played, r.repeated, r.disturbed, kept)
		}
	}
	broken := errors.New("broken")
	if _, err := inRounds(3, 2, func(int) ([]window, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the round", err)
	}
}

// The page and the plot are what the committed figures generate, and nobody has edited them since.
func TestPublishedPageIsGenerated(t *testing.T) {
	t.Parallel()
	const docs = "../../docs/"
	r, err := readJSON(docs + publishedJSON)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	page, err := os.ReadFile(docs + publishedPage)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, publishedPage), page, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := publish(dir, r); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{publishedJSON, publishedPage, publishedPlot} {
		committed, err := os.ReadFile(docs + name)
		if err != nil {
			t.Fatal(err)
		}
		generated, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(committed, generated) {
			t.Errorf("docs/%s is not what docs/%s generates: go run ./test/bench -from docs/%[2]s -write", name, publishedJSON)
		}
	}
	if _, err := replaceGenerated([]byte("# A page\n"), r); err == nil {
		t.Error("a page without the marks is accepted")
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	t.Parallel()
	svg := plot(sample().Figures)
	d := xml.NewDecoder(bytes.NewReader(svg))
	bars := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "rect" {
			bars++
		}
	}
	if want := 5; bars != want { // ratios, not µs or MiB
		t.Errorf("%d bars, want %d in\n%s", bars, want, svg)
	}
	if !bytes.Contains(svg, []byte(">rls_redis.ratio</text>")) || bytes.Contains(svg, []byte("%!")) {
		t.Errorf("plotted\n%s", svg)
	}
}

func TestOpenLoopIsHeldToTheBareServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		bare, ours, failed int64
		others             float64
		verdict            Verdict
	}{
		{0, 0, 0, 0, reached},
		{3, 3, 0, 0, reached},
		{3, 4, 0, 0, missed},
		{0, 1, 0, 0.5, notJudged},
		{3, 3, 1, 0, void},
	} {
		o := &OpenLoop{Base: OpenSide{Calls: 1000, Late: tt.bare}, Ours: OpenSide{Calls: 1000, Late: tt.ours, Failed: tt.failed}, Others: tt.others}
		if f := o.figures()[0]; f.Name != "open_loop.late" || f.Verdict != tt.verdict {
			t.Errorf("%+v: %+v", tt, f)
		}
	}
}

// A server that is as far from itself as one with much from one with little says nothing of the difference.
func TestScaleIsHeldToTheNoise(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ratio, noise float64
		verdict      Verdict
	}{{1.05, 1.02, reached}, {1.12, 1.02, missed}, {1.12, 1.15, reached}, {1.2, 1.15, missed}} {
		row := Row{Name: "scale_tenants", CPURatio: *alone(tt.ratio), Noise: alone(tt.noise)}
		if f := row.figures()[0]; f.Verdict != tt.verdict {
			t.Errorf("%+v: %+v", tt, f)
		}
	}
}

func TestReportTellsOfOtherWork(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Rows[1].Base.Others = Spread{0.05, 0, 0.4}
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
	got, err := readJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	// Written in seconds elsewhere, or not at all.
	s := &want.Size
	s.Window, s.WarmUp, s.IdleFor, s.OpenFor, s.OverloadFor, s.ProfileFor = 0, 0, 0, 0, 0, 0
	if !reflect.DeepEqual(got, want) {
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
		{[]string{"-h"}, exitOK, "rls_redis, rls_memory, rls_denied, authz, groups, envoy, scale"},
		{[]string{"-nonsense"}, exitUsage, "not defined: -nonsense"},
		{[]string{"-run", "("}, exitUsage, "missing closing )"},
		{[]string{"-pairs", "0"}, exitUsage, "must be positive"},
		{[]string{"-seconds", "-1"}, exitUsage, "must be positive"},
		{[]string{"-open-for", "0s"}, exitUsage, "must be positive"},
		{[]string{"-write", "-run", "rls_redis"}, exitUsage, "leave -run and -gate out"},
		{[]string{"rls_redis"}, exitUsage, "no arguments"},
		{[]string{"-from", "testdata/absent.json"}, exitFailed, "absent.json"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), tt.args, &stdout, &stderr)
		if code != tt.code || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
			t.Errorf("%q: code %d, %q, want %d and %q", tt.args, code, &stderr, tt.code, tt.want)
		}
	}
}

// A generator that is late itself says nothing about the server.
func TestGeneratorThatIsLateItself(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		given []Figure
		which string
		want  Verdict
	}{
		{"overload", (&Overload{DeadlineMS: 20, OpenSide: OpenSide{Lag: 25_000}, InTime: 0.3}).figures(), "overload.in_time", notJudged},
		{"overload of a server", (&Overload{DeadlineMS: 20, OpenSide: OpenSide{Lag: 5_000}, InTime: 0.3}).figures(), "overload.in_time", missed},
		{"open loop", (&OpenLoop{DeadlineMS: 20, Ours: OpenSide{Lag: 25_000, Calls: 9, Late: 1}}).figures(), "open_loop.late", notJudged},
		{"at the bare server", (&OpenLoop{DeadlineMS: 20, Base: OpenSide{Lag: 25_000, Calls: 9}}).figures(), "open_loop.late", notJudged},
		{"open loop of a server", (&OpenLoop{DeadlineMS: 20, Base: OpenSide{Calls: 9}, Ours: OpenSide{Calls: 9, Late: 1}}).figures(), "open_loop.late", missed},
	} {
		i := slices.IndexFunc(tt.given, func(f Figure) bool { return f.Name == tt.which })
		if got := tt.given[i].Verdict; got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
