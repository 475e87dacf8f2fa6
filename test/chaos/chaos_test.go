package main

import (
	"bytes"
	"os"
	"path/filepath"
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

// Every drill in its short form: few calls, and deadlines and a store budget so long that a busy machine keeps them. The full
// form, at Envoy's own deadlines, is `make chaos`.
func TestDrills(t *testing.T) {
	for _, kind := range testserver.Kinds() {
		if _, err := testserver.Find(string(kind) + "-server"); err != nil {
			testserver.SkipUnlessCI(t, "%v", err)
		}
	}
	o := options{
		Runs: 1, Kinds: testserver.Kinds(), Calls: 200, Rate: 200, Short: true,
		Deadline: 200 * time.Millisecond, Budget: 100 * time.Millisecond, Quarantine: time.Second,
		Allowance: 10, // without guard or breaker it would be 40, the calls of one deadline
	}
	s, err := newStage(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	for i, d := range drills {
		t.Run(strings.TrimSpace(strings.ReplaceAll(d.cases, ",", "")+" "+d.name), func(t *testing.T) {
			t.Parallel()
			var rows []Row
			var v verdict
			// A row fails in more than half of the runs that say anything; more of them tell where one did.
			for len(rows) == 0 || len(rows) < 5 && len(v.failures) > 0 {
				row, err := d.hold(t.Context(), s, o.Kinds[i%len(o.Kinds)])
				if err != nil {
					t.Fatal(err)
				}
				if row.Calls == 0 || row.Admitted == 0 || row.InTime+row.Late+row.Errors < row.Calls {
					t.Errorf("%+v: not every call is accounted for", row)
				}
				rows = append(rows, row)
				v = judge(d, rows, o)
			}
			printDrill(t.Output(), d, rows, v)
			if len(v.failures) > 0 {
				t.Error(strings.Join(v.failures, "; "))
			}
		})
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	o := options{Calls: 10_000, Rate: 8_000}
	for _, tt := range []struct {
		name  string
		fault fault
		want  plan
		rate  float64
	}{
		{
			"by calls",
			fault{},
			plan{leadIn: 1000, calls: 10_000, tenants: 100, capacity: 5, emergencyCapacity: 200, emergencyRefill: 400},
			8_000,
		},
		{
			"by time, at a rate of its own",
			fault{lasts: 5 * time.Second, rate: 4_000},
			plan{leadIn: 2000, calls: 20_000, tenants: 200, capacity: 5, emergencyCapacity: 400, emergencyRefill: 200},
			4_000,
		},
		{
			"buckets that are not empty yet",
			fault{wet: true},
			plan{leadIn: 1000, calls: 10_000, tenants: 100, capacity: 15, emergencyCapacity: 200, emergencyRefill: 400},
			8_000,
		},
		{
			"a program that dies",
			fault{dies: true},
			plan{leadIn: 1000, calls: 10_000, after: 1000, tenants: 100, capacity: 5, emergencyCapacity: 200, emergencyRefill: 400},
			8_000,
		},
	} {
		if p, rate := tt.fault.plan(o); p != tt.want || rate != tt.rate {
			t.Errorf("%s: %+v at %v, want %+v at %v", tt.name, p, rate, tt.want, tt.rate)
		}
	}
	p, _ := (&fault{lasts: time.Minute, short: time.Second}).plan(options{Rate: 200, Short: true})
	if p.calls != 200 {
		t.Errorf("the short form has %d calls, want 200", p.calls)
	}
	// Every drill asks for more than twice what may be admitted while it lasts, in both forms and in the least.
	for _, d := range drills {
		for _, o := range []options{o, {Calls: 200, Rate: 200, Short: true}, {Calls: minCalls, Rate: 100}} {
			p, rate := d.fault.plan(o)
			lasts := time.Duration(float64(p.leadIn+p.calls+p.after) / rate * float64(time.Second))
			most := p.held()*int64(1+d.fault.losses) + p.emergency(lasts, 1)
			if most < 1 || int64(p.leadIn+p.calls) < 2*most {
				t.Errorf("%s: %+v admits %d in %v", d.name, p, most, lasts)
			}
		}
	}
	if held, emergency := p.held(), p.emergency(1500*time.Millisecond, 2); held != 10 || emergency != 2*(4+15) {
		t.Errorf("%+v: holds %d, emergency %d in 1.5 s", p, held, emergency)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	o := options{Quarantine: 2 * time.Second, Deadline: 20 * time.Millisecond}
	good := Row{
		Calls: 100, InTime: 97, Late: 3, BareLate: 3, Admitted: 10, Bound: 10, Over: 5, Loss: 5, Recovery: 3 * time.Second,
		Goroutines: Levels{100, 1124, 110}, Memory: Levels{10 << 20, 42 << 20, 11 << 20},
	}
	with := func(change func(*Row)) Row {
		r := good
		change(&r)
		return r
	}
	late := with(func(r *Row) { r.Late = 4 })
	held := with(func(r *Row) { r.Late, r.Sent = 50, 20*time.Millisecond+1 })
	busy := with(func(r *Row) { r.Late, r.BareLate = 50, 6 })
	slow := with(func(r *Row) { r.Recovery = 3*time.Second + 1 })
	never := with(func(r *Row) { r.Recovery = -1 })
	wrong := with(func(r *Row) { r.Errors = 1 })
	beyond := with(func(r *Row) { r.Admitted = 11 })
	lost := with(func(r *Row) { r.Over = 6 })
	crowd := with(func(r *Row) { r.Goroutines.Peak = 1125 })
	left := with(func(r *Row) { r.Goroutines.After = 111 })
	fat := with(func(r *Row) { r.Memory.Peak++ })
	vain := with(func(r *Row) { r.Vain = true })
	stays := with(func(r *Row) { r.Memory.After++ })
	for _, tt := range []struct {
		name string
		rows []Row
		want []string
	}{
		{"good", []Row{good, good, good}, []string{"passed"}},
		{"late once", []Row{good, late, good}, []string{"passed"}},
		{"late twice", []Row{late, good, late}, []string{"FAILED: more late answers than the bare server in run 1, 3 of 3"}},
		{"late in the only run", []Row{late}, []string{"FAILED: more late answers than the bare server in run 1 of 1"}},
		{
			"void once",
			[]Row{good, busy, good},
			[]string{"passed, but that run 2 of 3 says nothing about lateness: the bare server or the generator was late"},
		},
		{
			"void twice, for either reason",
			[]Row{busy, held, good},
			[]string{"VOID: the machine is too busy to judge lateness: the bare server or the generator was late in run 1, 2 of 3"},
		},
		{"void once, late once", []Row{late, busy, good}, []string{"FAILED: more late answers than the bare server in run 1 of 3"}},
		{
			"void twice, late once",
			[]Row{busy, busy, late},
			[]string{"VOID: the machine is too busy to judge lateness: the bare server or the generator was late in run 1, 2 of 3"},
		},
		{
			"void, and wrong", []Row{busy, busy, wrong}, []string{
				"FAILED: errors reached the caller in run 3 of 3",
				"VOID: the machine is too busy to judge lateness: the bare server or the generator was late in run 1, 2 of 3",
			},
		},
		{"slow once", []Row{slow, good, good}, []string{"passed"}},
		{"slow and never", []Row{slow, never, good}, []string{"FAILED: not back to full accuracy within 3s in run 1, 2 of 3"}},
		{"an error", []Row{good, good, wrong}, []string{"FAILED: errors reached the caller in run 3 of 3"}},
		{"beyond the bound", []Row{beyond, good, good}, []string{"FAILED: admissions passed the bound in run 1 of 3"}},
		{"beyond what was lost", []Row{good, lost, good}, []string{"FAILED: the store admitted more than its buckets held in run 2 of 3"}},
		{"in vain once", []Row{vain, good, good}, []string{"passed"}},
		{"in vain", []Row{vain, vain, good}, []string{"FAILED: no call failed with class REDIS_ERROR in run 1, 2 of 3"}},
		{"goroutines", []Row{crowd, crowd, left}, []string{"FAILED: too many goroutines in run 1, 2 of 3"}},
		{"goroutines that stay", []Row{left, crowd, left}, []string{"FAILED: goroutines are left in run 1, 3 of 3"}},
		{"memory", []Row{fat, fat, stays}, []string{"FAILED: too much memory in run 1, 2 of 3"}},
		{"memory that stays", []Row{stays, stays, fat}, []string{"FAILED: memory is left in run 1, 2 of 3"}},
	} {
		v := judge(drill{fault: fault{class: refused}}, tt.rows, o)
		if got := v.lines(len(tt.rows)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if passes := strings.HasPrefix(tt.want[0], "passed"); v.passed() != passes || (v.mark() == "") != passes {
			t.Errorf("%s: passed %v, mark %q", tt.name, v.passed(), v.mark())
		}
	}
	demanding := drill{fault: fault{inTime: 0.98}}
	if got := judge(demanding, []Row{good, good, busy}, o).failures; len(got) != 1 || !strings.HasPrefix(got[0], "fewer than 98 % of the calls in time in run 1, 2") {
		t.Errorf("too few in time: %q", got)
	}
	o.Allowance = 1
	if got := judge(drill{}, []Row{late, late, late}, o); !got.passed() {
		t.Errorf("late by what is allowed: %q", got.failures)
	}
}

func TestMiddle(t *testing.T) {
	t.Parallel()
	row := func(late, bare int64) Row { return Row{Calls: 100, Late: late, BareLate: bare} }
	for _, tt := range []struct{ rows, want []Row }{
		{[]Row{row(3, 0), row(1, 0), row(2, 1)}, []Row{row(1, 0), row(2, 1)}},
		{[]Row{row(9, 6), row(1, 0), row(9, 7)}, []Row{row(1, 0)}},
		{[]Row{row(9, 6)}, []Row{row(9, 6)}},
	} {
		if got := middle(tt.rows, time.Second); !slices.Contains(tt.want, got) {
			t.Errorf("of %+v: %+v", tt.rows, got)
		}
	}
}

func TestPrintDrill(t *testing.T) {
	t.Parallel()
	rows := []Row{
		{
			Server: "redis", Calls: 10000, InTime: 9998, Late: 2, BareLate: 5,
			P99: 16500 * time.Microsecond, BareP99: 1200 * time.Microsecond, Sent: 300 * time.Microsecond,
			Admitted: 1100, Bound: 1200, Lag: -1, Recovery: 1840 * time.Millisecond,
			Goroutines: Levels{40, 200, 41}, Memory: Levels{8 << 20, 9 << 20, 8<<20 + 1<<19},
		},
		{Server: "valkey", Calls: 10000, InTime: 9999, Errors: 1, Admitted: 1300, Bound: 1200, Over: 3, Loss: 500, Lag: 1500 * time.Microsecond, Recovery: -1},
	}
	want := [][]string{
		{
			"run", "server", "calls", "in time", "late", "bare late", "p99 ms", "bare", "sent within ms", "errors", "admitted", "bound",
			"over-admission", "explained", "replica's lag ms", "full accuracy after s", "goroutines", "memory MiB",
		},
		{"1", "redis", "10000", "9998", "2", "5", "16.5", "1.2", "0.3", "0", "1100", "1200", "0", "0", "-", "1.84", "40 / 200 / 41", "8.0 / 9.0 / 8.5"},
		{"2", "valkey", "10000", "9999", "0", "0", "0.0", "0.0", "0.0", "1", "1300", "1200", "3", "500", "1.5", "never", "0 / 0 / 0", "0.0 / 0.0 / 0.0"},
	}
	var got bytes.Buffer
	printDrill(&got, drill{name: "frozen", what: "what happens"}, rows, verdict{failures: []string{"too bad"}})
	text := got.String()
	if !strings.HasPrefix(text, "\nfrozen: what happens.\n\n|") || !strings.HasSuffix(text, "|\n\nfrozen: FAILED: too bad\n") {
		t.Errorf("got\n%s", text)
	}
	for i, line := range regexp.MustCompile(`(?m)^\| (?:run|\d) .*$`).FindAllString(text, -1) {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		if !slices.Equal(cells, want[i]) {
			t.Errorf("line %d: %q, want %q", i, cells, want[i])
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, exitOK, "of killed, frozen, "},
		{[]string{"-nonsense"}, exitUsage, "not defined: -nonsense"},
		{[]string{"-drill", "tornado"}, exitUsage, `there is no drill "tornado"; there are: killed, frozen, `},
		{[]string{"-runs", "0"}, exitUsage, "-runs must be at least 1"},
		{[]string{"-calls", "99"}, exitUsage, "-calls at least 100"},
		{[]string{"-rate", "-1"}, exitUsage, "-rate not negative"},
		{[]string{"-server", "memcached"}, exitUsage, `-server must be redis, valkey or both, not "memcached"`},
		{[]string{"-drill", "frozen", "-write", "x"}, exitUsage, "-write is for all drills"},
		{[]string{"frozen"}, exitUsage, "no arguments"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), tt.args, &stdout, &stderr)
		if code != tt.code || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
			t.Errorf("%q: code %d, %q, want %d and %q", tt.args, code, &stderr, tt.code, tt.want)
		}
	}
	if all, err := choose(""); len(all) != len(drills) || err != nil {
		t.Errorf("no name chooses %d drills, %v, want all", len(all), err)
	}
}

// The manual's table has the drills that there are, in their order, and says of each what it is and what came of it.
func TestManualHasEveryDrill(t *testing.T) {
	t.Parallel()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "failure-modes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(text), manualBegin)
	part, _, ends := strings.Cut(rest, manualEnd)
	if !begins || !ends {
		t.Fatal("docs/failure-modes.md has no marks for the table of drills")
	}
	var described, held []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` +\\| ([^|]+) \\| ([^|]*) \\|$").FindAllStringSubmatch(part, -1) {
		described = append(described, m[1])
		i := slices.IndexFunc(drills, func(d drill) bool { return d.name == m[1] })
		if i < 0 || strings.TrimSpace(m[2]) != drills[i].what || strings.TrimSpace(m[3]) != drills[i].cases {
			t.Errorf("%s is described as %q, %q", m[1], m[2], m[3])
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\| ([a-z0-9-]+)(?: \((?:failed|void)\))? +\| (?:redis|valkey) `).FindAllStringSubmatch(part, -1) {
		held = append(held, m[1])
	}
	if want := names(); !slices.Equal(described, want) || !slices.Equal(held, want) {
		t.Errorf("the manual describes %q and has held %q, want %q: write it anew with -write", described, held, want)
	}
}

func TestWriteManual(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "manual.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Before.\n" + manualBegin + "stale text\n" + manualEnd + "After.\n")
	if err := writeManual(file, "A machine.", [][]string{{"drill", "calls"}, {"frozen", "7"}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if !strings.HasPrefix(got, "Before.\n"+manualBegin) || !strings.HasSuffix(got, manualEnd+"After.\n") || strings.Contains(got, "stale text") {
		t.Errorf("got\n%s", got)
	}
	for _, want := range []string{"| `frozen` | Redis is stopped", "\nA machine.\n", "| frozen | 7 "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	write("No marks.\n")
	if err := writeManual(file, "", [][]string{{"drill"}}); err == nil || !strings.Contains(err.Error(), "has no marks") {
		t.Errorf("without marks: %v", err)
	}
}
