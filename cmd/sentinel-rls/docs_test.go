package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// Relative links of the pages that this package's maintainers write lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "CHANGELOG.md", "docs/cli.md", "docs/metrics.md"} {
		for _, m := range link.FindAllStringSubmatch(document(t, page), -1) {
			target := filepath.Join("..", "..", filepath.Dir(page), m[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// The README's policy is one that loads.
func TestReadmePolicyIsValid(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)```yaml\n(domain: .*?)```").FindAllStringSubmatch(document(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md shows no policy")
	}
	for _, block := range blocks {
		if _, err := descriptors.Parse([]descriptors.File{{Name: "README.md", Data: []byte(block[1])}}, descriptors.Options{}); err != nil {
			t.Error(err)
		}
	}
}

// The commands that the README tells people to type exist.
func TestReadmeCommandsExist(t *testing.T) {
	t.Parallel()
	makefile := document(t, "Makefile")
	targets := regexp.MustCompile(`(?m)^make ([a-z]+)`).FindAllStringSubmatch(document(t, "README.md"), -1)
	if len(targets) < 3 {
		t.Fatalf("README.md tells %d commands, want demo, run and test", len(targets))
	}
	for _, m := range targets {
		if !strings.Contains(makefile, "\n"+m[1]+": ") {
			t.Errorf("README.md says make %s, the Makefile has no such target", m[1])
		}
	}
}
