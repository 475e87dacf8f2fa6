package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestIDsInNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		want []string
	}{
		{"TestLUA_02_exact_refill", []string{"LUA-02"}},
		{"TestTokenBucket/LUA-02_exact_refill", []string{"LUA-02"}},
		{"TestTraces/TR-TB-1_on_valkey", []string{"TR-TB-1"}},
		{"TestTR_SW_3", []string{"TR-SW-3"}},
		{"TestHD_05_and_EA_11", []string{"HD-05", "EA-11"}},
		{"TestHD_05_EA_11", []string{"HD-05", "EA-11"}},
		{"TestLUA_02_parent/sub", nil},   // the parent says it
		{"TestUTF_8", []string{"UTF-8"}}, // no case has that id
		{"TestSHA256-42", nil},
		{"TestCFG_011", nil},
		{"TestPlain", nil},
	} {
		if got := idsIn(tt.name); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	events := strings.Join([]string{
		`{"Action":"run","Package":"m/lua","Test":"TestLUA_01_a"}`,
		`{"Action":"pass","Package":"m/lua","Test":"TestLUA_01_a"}`,
		`{"Action":"skip","Package":"m/memory","Test":"TestConformance/LUA-01_a"}`,
		`{"Action":"skip","Package":"m/lua","Test":"TestLUA_02_b"}`,
		`{"Action":"output","Package":"m/lua","Test":"TestX/LUA-04_c","Output":"got 1, want 2\n"}`,
		`{"Action":"fail","Package":"m/lua","Test":"TestX/LUA-04_c"}`,
		`{"Action":"pass","Package":"m/envoy","Test":"TestLUA_06_e"}`,
		`{"Action":"fail","Package":"m/lua"}`,
	}, "\n")
	var progress, out strings.Builder
	results, err := collect(strings.NewReader(events), &progress)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(progress.String(), "got 1, want 2\n") || !strings.Contains(progress.String(), "fail m/lua\n") {
		t.Errorf("progress does not say what failed:\n%s", &progress)
	}
	problems := report(&out, []string{"LUA-01", "LUA-02", "LUA-04", "LUA-05", "LUA-06", "LUA-11"},
		map[string]string{"LUA-06": "told twice", "LUA-11": "waits for the sliding log"}, results)

	wantOut := `LUA-01   pass lua.TestLUA_01_a
LUA-01   skip memory.TestConformance/LUA-01_a
LUA-02   skip lua.TestLUA_02_b
LUA-04   fail lua.TestX/LUA-04_c
LUA-05   MISSING
LUA-06   pass envoy.TestLUA_06_e
LUA-11   -    waits for the sliding log

6 cases: 4 tested, 1 explained, 1 missing
`
	if out.String() != wantOut {
		t.Errorf("report:\n%s\nwant:\n%s", &out, wantOut)
	}
	wantProblems := []string{
		"LUA-02: no test passed",
		"LUA-04: failed: lua.TestX/LUA-04_c",
		"LUA-04: no test passed",
		"LUA-05 has no test and no line in docs/cases.md",
		"LUA-06 has a test: remove its line from docs/cases.md",
	}
	if !slices.Equal(problems, wantProblems) {
		t.Errorf("problems %q, want %q", problems, wantProblems)
	}
}

func TestBrokenInput(t *testing.T) {
	t.Parallel()
	if _, err := collect(strings.NewReader("not json"), io.Discard); err == nil {
		t.Error("collect read what is no JSON")
	}
	for content, read := range map[string]func(string) error{
		`{"id": "LUA-01", "area": "lua"}`: func(name string) error { _, err := readCases(name); return err }, // lacks the single ones
		`{"id": `:                         func(name string) error { _, err := readCases(name); return err },
		"- LUA-01: a\n- LUA-01: b\n":      func(name string) error { _, err := readReasons(name); return err },
	} {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if read(name) == nil {
			t.Errorf("%q was read without an error", content)
		}
	}
}

// The documentation's own lines are readable: a line that looks like one but is not would hide a case.
func TestDocumentedReasons(t *testing.T) {
	t.Parallel()
	reasons, err := readReasons("../../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count("\n"+string(data), "\n- "); lines != len(reasons) || lines == 0 {
		t.Errorf("docs/cases.md has %d list items, %d of them reasons", lines, len(reasons))
	}
}
