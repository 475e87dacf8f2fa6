package main

import (
	"bytes"
	"os"
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

// Every drill in its short form: few calls, and deadlines and a store budget so long that a busy machine keeps them. The
// full form, at Envoy's own deadlines, is `make chaos`.
func TestDrills(t *testing.T) {
	if _, err := testserver.Find("redis-server"); err != nil {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	o := options{
		Runs: 3, Calls: 200, Rate: 200,
		Deadline: 200 * time.Millisecond, Budget: 100 * time.Millisecond, Quarantine: time.Second,
		Allowance: 10, // without guard or breaker it would be 40, the calls of one deadline
	}
	s, err := newStage(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, d := range drills {
		t.Run(d.name, func(t *testing.T) {
			var rows []Row
			for range o.Runs {
				row, err := d.run(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				if row.Calls != int64(o.Calls) || row.InTime+row.Late+row.Errors < row.Calls || row.Bound <= 0 {
					t.Errorf("%+v: not every call is accounted for", row)
				}
				// Else the drill would have shown nothing: the calls ask for several times what may be admitted.
				if row.Admitted < row.Bound/4 || row.Calls < 2*row.Bound {
					t.Errorf("%+v: the load does not reach the bound", row)
				}
				rows = append(rows, row)
			}
			failures := judge(rows, o)
			printDrill(t.Output(), d, rows, failures)
			if len(failures) > 0 {
				t.Error(strings.Join(failures, "; "))
			}
		})
	}
}

func TestFrozenPlan(t *testing.T) {
	t.Parallel()
	p := planFrozen(10_000, 8_000)
	want := frozenPlan{leadIn: 1000, tenants: 100, capacity: 5, emergencyCapacity: 200, emergencyRefill: 400}
	if p != want {
		t.Errorf("plan %+v, want %+v", p, want)
	}
	if got := p.bound(1500 * time.Millisecond); got != 500+200+600 {
		t.Errorf("bound after 1.5 s is %d, want 1300", got)
	}
	// The least run still has calls, tenants and a cap.
	if p := planFrozen(minCalls, 1); p.leadIn < 1 || p.tenants < 1 || p.emergencyCapacity < 1 || p.emergencyRefill < 1 {
		t.Errorf("the least plan is %+v", p)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	o := options{Quarantine: 2 * time.Second}
	good := Row{Calls: 100, InTime: 97, Late: 3, BareLate: 3, Admitted: 10, Bound: 10, Recovery: 3 * time.Second}
	with := func(change func(*Row)) Row {
		r := good
		change(&r)
		return r
	}
	late := with(func(r *Row) { r.Late = 4 })
	slow := with(func(r *Row) { r.Recovery = 3*time.Second + 1 })
	never := with(func(r *Row) { r.Recovery = -1 })
	wrong := with(func(r *Row) { r.Errors = 1 })
	over := with(func(r *Row) { r.Admitted = 12 })
	for _, tt := range []struct {
		name string
		rows []Row
		want []string
	}{
		{"good", []Row{good, good, good}, nil},
		{"late once", []Row{good, late, good}, nil},
		{"late twice", []Row{late, good, late}, []string{"more late answers than the bare server in 2 of 3 runs"}},
		{"late in the only run", []Row{late}, []string{"more late answers than the bare server in 1 of 1 runs"}},
		{"slow once", []Row{slow, good, good}, nil},
		{"slow and never", []Row{slow, never, good}, []string{"not back to full accuracy within 3s in 2 of 3 runs"}},
		{"an error", []Row{good, good, wrong}, []string{"run 3: 1 errors reached the caller"}},
		{"beyond the bound", []Row{over, good, good}, []string{"run 1: 2 admissions beyond the bound"}},
	} {
		if got := judge(tt.rows, o); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	o.Allowance = 1
	if got := judge([]Row{late, late, late}, o); got != nil {
		t.Errorf("late by what is allowed: %q", got)
	}
}

func TestPrintDrill(t *testing.T) {
	t.Parallel()
	rows := []Row{
		{
			Calls: 10000, InTime: 9998, Late: 2, BareLate: 5, P99: 16500 * time.Microsecond, BareP99: 1200 * time.Microsecond,
			Lag: 300 * time.Microsecond, Admitted: 1100, Bound: 1200, Recovery: 1840 * time.Millisecond,
		},
		{Calls: 10000, InTime: 9999, Errors: 1, Admitted: 1300, Bound: 1200, Recovery: -1},
	}
	const want = `
frozen: what happens.

| run | calls | in time | late | bare late | p99 ms | bare | sent within ms | errors | admitted | bound | over-admission | full accuracy after s |
|-----|-------|---------|------|-----------|--------|------|----------------|--------|----------|-------|----------------|-----------------------|
| 1   | 10000 | 9998    | 2    | 5         | 16.5   | 1.2  | 0.3            | 0      | 1100     | 1200  | 0              | 1.84                  |
| 2   | 10000 | 9999    | 0    | 0         | 0.0    | 0.0  | 0.0            | 1      | 1300     | 1200  | 100            | never                 |

frozen: FAILED: too bad
`
	var got bytes.Buffer
	printDrill(&got, drill{name: "frozen", what: "what happens"}, rows, []string{"too bad"})
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, exitOK, "of frozen; empty: all"},
		{[]string{"-nonsense"}, exitUsage, "not defined: -nonsense"},
		{[]string{"-drill", "tornado"}, exitUsage, `there is no drill "tornado"; there are: frozen`},
		{[]string{"-runs", "0"}, exitUsage, "-runs must be at least 1"},
		{[]string{"-calls", "99"}, exitUsage, "-calls at least 100"},
		{[]string{"-rate", "-1"}, exitUsage, "-rate not negative"},
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
