// Cases runs every test and prints, for each fault case of the shared list that the project answers for, the tests whose
// names carry its id with their results, or the line of docs/cases.md that says why it does not apply or comes later.
//
// It exits with 1 when a case has neither, when a test of one failed or none passed, or when the tests could not run.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The cases that the project answers for: whole areas, and single ones of other areas.
var (
	areas = []string{
		"cluster", "config", "cookie", "ext_authz", "headers", "ip", "jwt", "lua", "metrics", "perf", "redis-failure", "rls", "xds",
	}
	single = []string{
		"DP-02", "DP-03", "DP-05",
		"EA-01", "EA-05", "EA-10", "EA-13", "EA-15",
		"RLS-24",
		"SEC-03", "SEC-04", "SEC-05",
	}
)

func main() {
	list := flag.String("cases", "../shared/cases/cases.jsonl", "the shared list of fault cases")
	docs := flag.String("docs", "docs/cases.md", "reasons for cases without a test")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, *list, *docs, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, list, docs string, stdout, stderr io.Writer) int {
	required, err := readCases(list)
	if err != nil {
		fmt.Fprintln(stderr, "cases:", err)
		return 1
	}
	reasons, err := readReasons(docs)
	if err != nil {
		fmt.Fprintln(stderr, "cases:", err)
		return 1
	}
	results, testErr := runTests(ctx, stderr)
	problems := report(stdout, required, reasons, results)
	if testErr != nil {
		problems = append(problems, testErr.Error())
	}
	for _, p := range problems {
		fmt.Fprintln(stderr, "cases:", p)
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}

// readCases returns the ids of the cases that the project answers for.
func readCases(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ids []string
	for dec := json.NewDecoder(f); dec.More(); {
		var c struct{ ID, Area string }
		if err := dec.Decode(&c); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if slices.Contains(areas, c.Area) || slices.Contains(single, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	for _, id := range single {
		if !slices.Contains(ids, id) {
			return nil, fmt.Errorf("%s has no case %s", name, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

var reasonLine = regexp.MustCompile(`^- ([A-Z]+(?:-[A-Z]+)?-\d+): (.+)$`)

// readReasons returns the reasons for cases without a test, by id.
func readReasons(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	reasons := make(map[string]string)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		m := reasonLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		if reasons[m[1]] != "" {
			return nil, fmt.Errorf("%s gives two reasons for %s", name, m[1])
		}
		reasons[m[1]] = m[2]
	}
	return reasons, lines.Err()
}

// result is how one test ended.
type result struct {
	test   string // package and name
	action string // pass, fail or skip
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// runTests runs every test and returns the results of those that carry ids, by id. The error says that a package failed.
func runTests(ctx context.Context, progress io.Writer) (map[string][]result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "./...")
	cmd.Stderr = progress
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	results, err := collect(out, progress)
	if err != nil {
		return results, err
	}
	if err := cmd.Wait(); err != nil {
		return results, fmt.Errorf("go test: %w", err)
	}
	return results, nil
}

// collect reads go test -json, tells progress how each package ended and what failed tests said.
func collect(r io.Reader, progress io.Writer) (map[string][]result, error) {
	results := make(map[string][]result)
	output := make(map[string]*strings.Builder) // of tests that still run
	for dec := json.NewDecoder(r); ; {
		var e event
		if err := dec.Decode(&e); err == io.EOF {
			return results, nil
		} else if err != nil {
			return results, fmt.Errorf("reading go test -json: %w", err)
		}
		key := e.Package + "\x00" + e.Test
		switch e.Action {
		case "output", "build-output":
			if output[key] == nil {
				output[key] = new(strings.Builder)
			}
			output[key].WriteString(e.Output)
		case "build-fail", "fail":
			if output[key] != nil {
				fmt.Fprint(progress, output[key])
			}
			fallthrough
		case "pass", "skip":
			delete(output, key)
			if e.Test == "" {
				fmt.Fprintln(progress, e.Action, e.Package)
			}
			for _, id := range idsIn(e.Test) {
				results[id] = append(results[id], result{path.Base(e.Package) + "." + e.Test, e.Action})
			}
		}
	}
}

var idPattern = regexp.MustCompile(`(?:^|[^A-Z0-9])(TR[-_][A-Z]+|[A-Z]{2,3})[-_](\d{1,2})(?:[^0-9]|$)`)

// idsIn returns the ids that a test's own name carries, not those of its parents: TestLUA_02_… or …/LUA-02_….
func idsIn(test string) []string {
	// Overlapping matches count: two ids may share the mark between them.
	var ids []string
	own := test[strings.LastIndexByte(test, '/')+1:]
	for {
		m := idPattern.FindStringSubmatchIndex(own)
		if m == nil {
			return ids
		}
		ids = append(ids, strings.ReplaceAll(own[m[2]:m[3]], "_", "-")+"-"+own[m[4]:m[5]])
		own = own[m[5]:]
	}
}

// report prints a line for each test of each case, and returns what is wrong.
func report(w io.Writer, required []string, reasons map[string]string, results map[string][]result) []string {
	var problems []string
	counts := map[string]int{}
	for _, id := range required {
		tests := results[id]
		reason := reasons[id]
		switch {
		case len(tests) > 0:
			counts["tested"]++
		case reason != "":
			counts["explained"]++
			fmt.Fprintf(w, "%-8s -    %s\n", id, reason)
		default:
			fmt.Fprintf(w, "%-8s MISSING\n", id)
			problems = append(problems, id+" has no test and no line in docs/cases.md")
		}
		slices.SortFunc(tests, func(a, b result) int { return strings.Compare(a.test, b.test) })
		passed := false
		for _, t := range tests {
			fmt.Fprintf(w, "%-8s %s %s\n", id, t.action, t.test)
			passed = passed || t.action == "pass"
			if t.action == "fail" {
				problems = append(problems, fmt.Sprintf("%s: failed: %s", id, t.test))
			}
		}
		// One that is skipped beside one that passed does not apply: a store without a server to fill, for example.
		if len(tests) > 0 && !passed {
			problems = append(problems, id+": no test passed")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(reasons)) {
		if len(results[id]) > 0 {
			problems = append(problems, id+" has a test: remove its line from docs/cases.md")
		}
	}
	fmt.Fprintf(w, "\n%d cases: %d tested, %d explained, %d missing\n",
		len(required), counts["tested"], counts["explained"], len(required)-counts["tested"]-counts["explained"])
	return problems
}
