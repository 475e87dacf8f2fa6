package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// The figures of docs/redis-sizing.md are those of the server, within what versions and table sizes differ.
func TestSizingIsAsDocumented(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		if _, err := testserver.Find(string(kind) + "-server"); err != nil {
			testserver.SkipUnlessCI(t, "%v", err)
		}
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"-keys", "8000"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	manual, err := os.ReadFile(filepath.Join("..", "..", "docs", "redis-sizing.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| ([a-z_-]+, [a-z_]+) +\| (\d+) +\| (\d+) +\| (\d+) +\|$`)
	most := map[string]int{} // documented, the larger of both servers
	keys := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(manual), -1) {
		n, _ := strconv.Atoi(m[4])
		most[m[1]], keys[m[1]] = max(most[m[1]], n), m[2]
	}
	seen := row.FindAllStringSubmatch(out.String(), -1)
	if len(seen) != 12 {
		t.Fatalf("%d rows, want 6 of each server:\n%s", len(seen), out.String())
	}
	for _, m := range seen {
		n, _ := strconv.Atoi(m[4])
		if keys[m[1]] != m[2] || float64(n) > 1.15*float64(most[m[1]]) {
			t.Errorf("%s: key %s, %d bytes; documented are %s and at most %d", m[1], m[2], n, keys[m[1]], most[m[1]])
		}
	}
}

func TestSizingUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-keys", "0"}, {"extra"}, {"-bogus"}} {
		var out, errs strings.Builder
		if code := run(t.Context(), args, &out, &errs); code != 2 {
			t.Errorf("%v: exit code %d, want 2", args, code)
		}
	}
}
