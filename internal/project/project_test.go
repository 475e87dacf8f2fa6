package project

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The README's test command stands between two marks, so that readers, this test and .ci/run mean the same one.
func TestReadmeTestCommandIsWhatCIRuns(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile("(?s)<!-- test command -->\\s*```sh\\n(.*?)\\n```").FindStringSubmatch(read(t, "README.md"))
	if m == nil {
		t.Fatal("README.md has no sh block after <!-- test command -->")
	}
	if command := m[1]; !strings.Contains(read(t, ".ci/run"), "\n"+command+"\n") {
		t.Errorf(".ci/run does not run the README's test command %q", command)
	}
}

// Tracked text may not name the machine it was written on, nor package registries: builds take those from the environment.
func TestFilesNameNoMachine(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	foreign := regexp.MustCompile(`/(?:work|root|home/\w+)/\w|(?:^|[^\w.])(?:pypi|files\.pythonhosted|proxy\.golang|registry\.npmjs|deb\.debian)\.(?:org|com)`)
	for name := range strings.SplitSeq(string(bytes.TrimRight(out, "\x00")), "\x00") {
		if name == "internal/project/project_test.go" {
			continue
		}
		data, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			continue // removed, not yet committed
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if m := foreign.Find(line); m != nil {
				t.Errorf("%s:%d names %q", name, i+1, m)
			}
		}
	}
}
