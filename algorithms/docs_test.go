package algorithms_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// TestDocsStories plays the tables of docs/algorithms.md. A comment before each names its rule and where it starts:
//
//	<!-- story: token_bucket CAPACITY N/Ss [STORED] -->
//	<!-- story: sliding_window LIMIT WINDOW [STORED] -->
func TestDocsStories(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	const opening = "<!-- story: "
	var (
		rule    algorithms.Rule
		state   algorithms.State
		playing bool
		played  int
	)
	for i, line := range strings.Split(string(page), "\n") {
		switch {
		case strings.HasPrefix(line, opening):
			rule, state = storyStart(t, strings.Fields(strings.TrimSuffix(strings.TrimPrefix(line, opening), " -->")))
			playing = true
		case !strings.HasPrefix(line, "|"):
			playing = false
		case playing && line[2] >= '0' && line[2] <= '9':
			var got string
			state, got = storyRow(t, rule, state, line)
			if got != line {
				t.Errorf("line %d:\n got %s\nwant %s", i+1, got, line)
			}
			played++
		}
	}
	if played < 20 {
		t.Errorf("played %d rows, want the page's 20 and more", played)
	}
}

func storyStart(t *testing.T, words []string) (algorithms.Rule, algorithms.State) {
	t.Helper()
	limit := number(t, words[1])
	var rule algorithms.Rule
	var err error
	if words[0] == "token_bucket" {
		tokens, seconds, _ := strings.Cut(strings.TrimSuffix(words[2], "s"), "/")
		rule = bucket(t, limit, number(t, tokens), number(t, seconds))
	} else {
		length, parseErr := time.ParseDuration(words[2])
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		build := algorithms.NewSlidingWindow
		if words[0] == "fixed_window" {
			build = algorithms.NewFixedWindow
		}
		if rule, err = build(limit, length); err != nil {
			t.Fatal(err)
		}
	}
	if len(words) == 3 {
		return rule, algorithms.State{}
	}
	state, ok := lua.DecodeState(rule, words[3], 1<<51)
	if !ok {
		t.Fatalf("%q is no state of %v", words[3], rule.Kind())
	}
	return rule, state
}

// storyRow plays the time, op and cost of a row and returns the state after and the row as it must read.
func storyRow(t *testing.T, rule algorithms.Rule, s algorithms.State, row string) (algorithms.State, string) {
	t.Helper()
	cells := strings.Split(row, "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	now, cost := algorithms.Micros(number(t, cells[1])), number(t, cells[3])
	op, ok := map[string]algorithms.Op{"take": tk, "charge": ch, "peek": pk, "refund": rf}[cells[2]]
	if !ok {
		t.Fatalf("%q is no op", cells[2])
	}
	v := rule.Verdict(op, s, now, cost)
	s = rule.Apply(op, s, now, cost, 0)
	answer := map[bool]string{true: "fits", false: "denied"}[v.Allowed]
	return s, fmt.Sprintf("| %d | %s | %d | %s | %d | %s | %s | %s |",
		now, cells[2], cost, answer, v.Remaining, wait(v.RetryAfter), wait(v.ResetAfter), lua.EncodeState(rule, s))
}

func wait(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return strconv.FormatInt(d.Microseconds(), 10)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
