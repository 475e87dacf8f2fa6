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

// JWT-17: the flood in its short form: few tokens, and deadlines and a store budget so long that a busy machine keeps them.
// The full form, at Envoy's own deadlines, is `make flood`.
func TestJWT_17_Flood(t *testing.T) {
	if _, err := testserver.Find("redis-server"); err != nil {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	o := options{
		Runs: 3, For: time.Second, Forged: 300, Valid: 50,
		Deadline: time.Second, Budget: 500 * time.Millisecond, Allowance: 10,
	}
	s, err := newStage(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var rows []Row
	for i := range o.Runs {
		row, err := s.flood(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		if row.Forged+row.Missed != 300 || row.Forged < 150 || row.Valid != 50 {
			t.Errorf("%+v: not every call is accounted for, or hardly one was answered", row)
		}
		rows = append(rows, row)
	}
	printRows(t.Output(), rows)
	if failures := judge(rows, o); len(failures) > 0 {
		t.Error(strings.Join(failures, "; "))
	}
	if n := s.issuer.fetches.Load(); n == 0 {
		t.Error("the keys were never fetched: nothing was shown")
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	good := Row{Forged: 100, Fetches: 1, Valid: 100, Late: 3, BareLate: 3}
	with := func(change func(*Row)) Row {
		r := good
		change(&r)
		return r
	}
	late := with(func(r *Row) { r.Late = 4 })
	busy := with(func(r *Row) { r.Late, r.BareLate = 90, 50 })
	for _, tt := range []struct {
		name string
		rows []Row
		want []string
	}{
		{"good", []Row{good, good, good}, nil},
		{"late once", []Row{good, late, good}, nil},
		{"late twice", []Row{late, good, late}, []string{"valid callers got more late answers than from the bare server in 2 of 3 runs"}},
		{"void twice", []Row{busy, good, busy}, []string{"the machine is too busy to judge lateness: the bare server was late in 2 of 3 runs"}},
		{"void once, late once", []Row{busy, good, late}, []string{"valid callers got more late answers than from the bare server in 1 of 2 runs"}},
		{"void once", []Row{busy, good, good}, nil},
		{"accepted", []Row{with(func(r *Row) { r.Accepted = 1 })}, []string{"run 1: 1 forged tokens were accepted"}},
		{"two fetches", []Row{good, with(func(r *Row) { r.Fetches = 2 })}, []string{"run 2: the keys were fetched 2 times"}},
		{"store commands", []Row{with(func(r *Row) { r.Commands = 7 })}, []string{"run 1: forged tokens cost 7 store commands"}},
		{"denied", []Row{with(func(r *Row) { r.Denied = 2 })}, []string{"run 1: 2 valid calls were denied"}},
		{"failed", []Row{with(func(r *Row) { r.Failed = 2 })}, []string{"run 1: 2 valid calls failed"}},
	} {
		if got := judge(tt.rows, options{}); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := judge([]Row{late}, options{Allowance: 1}); got != nil {
		t.Errorf("late by what is allowed: %q", got)
	}
}

func TestForgedTokensDiffer(t *testing.T) {
	t.Parallel()
	forge := forger("a.b.c")
	one, two := forge(1), forge(2)
	if one == two || strings.Count(one, ".") != 2 || !strings.Contains(one, ".b.") {
		t.Errorf("%s and %s", one, two)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, exitOK, "forged tokens a second (default 10000)"},
		{[]string{"-nonsense"}, exitUsage, "not defined: -nonsense"},
		{[]string{"-runs", "0"}, exitUsage, "-runs must be at least 1"},
		{[]string{"x"}, exitUsage, "no arguments"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), tt.args, &stdout, &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: code %d, %q, want %d and %q", tt.args, code, &stderr, tt.code, tt.want)
		}
	}
}
