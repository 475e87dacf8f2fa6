package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Two starts with each store: they end, and both were measured. How fast they are is not judged here: a machine that tests
// is busy.
func TestMeasure(t *testing.T) {
	t.Parallel()
	if _, err := testserver.Find("redis-server"); err != nil {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"-n", "2"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	t.Log(stdout.String())
	for _, store := range []string{"| memory store ", "| Redis "} {
		if !strings.Contains(stdout.String(), store) {
			t.Errorf("no row %q in\n%s", store, &stdout)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var got bytes.Buffer
	report(&got, load.Machine{Processor: "Some CPU", Cores: 2, LoadAverage: "0.05", Kernel: "Linux 6.1", Go: "go1.26"}, []figure{
		{"memory store", []time.Duration{10 * ms, 20 * ms, 31 * ms, 40 * ms}}, {"Redis", []time.Duration{50 * ms}},
	})
	want := `Some CPU, 2 cores, load 0.05, Linux 6.1, go1.26

| start to SERVING | median ms | least | most | starts | under |
|------------------|-----------|-------|------|--------|-------|
| memory store     | 25.5      | 10.0  | 40.0 | 4      | 100.0 |
| Redis            | 50.0      | 50.0  | 50.0 | 1      | 100.0 |
`
	if got.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &got, want)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, 0, "starts to measure"},
		{[]string{"-nonsense"}, 2, "not defined: -nonsense"},
		{[]string{"-n", "0"}, 2, "must be positive"},
		{[]string{"more"}, 2, "no arguments"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), tt.args, &stdout, &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: code %d, %q, want %d and %q", tt.args, code, &stderr, tt.code, tt.want)
		}
	}
}
