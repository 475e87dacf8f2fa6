package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

var (
	shellBlock = regexp.MustCompile("(?ms)^```(?:sh|bash|console)\n(.*?)^```$")
	makeTarget = regexp.MustCompile("(?m)(?:^|`)make ([a-z-]+)")
	ownFile    = regexp.MustCompile(`(?:^|[\s="'(])((?:examples|docs|test|config|cmd)/[A-Za-z0-9_./-]*[A-Za-z0-9_])`)

	// What talks to the stack of examples/docker-compose.yaml, or to a Docker engine: test/containers runs that.
	needsContainers = regexp.MustCompile(`\bdocker |http://127\.0\.0\.1:(10000|9091)`)
	// Whole programs of this project, which run for minutes: CI and people run them.
	needsMake = regexp.MustCompile(`(?m)^make `)
)

// Every block of commands that needs no more than a built program runs, in a copy of the project's examples, and ends well.
func TestShellBlocksRun(t *testing.T) {
	t.Parallel()
	binary := build(t)
	ran := 0
	for _, p := range pages(t) {
		for _, b := range shellBlock.FindAllStringSubmatch(p.text, -1) {
			if needsContainers.MatchString(b[1]) || needsMake.MatchString(b[1]) {
				continue
			}
			ran++
			if out, err := runBlock(t, binary, b[1]); err != nil {
				t.Errorf("%s: %v\n%s\n%s", p.name, err, b[1], out)
			}
		}
	}
	if ran < 2 {
		t.Errorf("%d blocks ran, want those of README.md and docs/operations.md", ran)
	}
}

// build builds the program as bin/sentinel-rls of a new directory.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "bin", "sentinel-rls")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/sentinel-rls")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// runBlock runs commands where bin, examples and two sets of policies are, and waits until what they left in the background
// serves, to end it.
func runBlock(t *testing.T, binary, commands string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"policies", "policies.next"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS("../../examples/demo/policies")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(binary), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	script := `exec 2>errors; trap 'kill $(jobs -p) 2>/dev/null || :; wait; cat errors' EXIT
` + commands + `
[ -z "$(jobs -p)" ] || until grep -q '"msg":"serving"' errors; do kill -0 $(jobs -p) && sleep 0.05; done
`
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"SENTINEL_GRPC_ADDRESS=127.0.0.1:0", "SENTINEL_ADMIN_ADDRESS=127.0.0.1:0", "SENTINEL_SHUTDOWN_DRAIN_DELAY=0s")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Whatever commands name is there: targets of make, and files of the project. Commands and flags of the program are for
// cmd/sentinel-rls to check.
func TestWhatCommandsNameIsThere(t *testing.T) {
	t.Parallel()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets, files := 0, 0
	for _, p := range pages(t) {
		for _, m := range makeTarget.FindAllStringSubmatch(p.text, -1) {
			targets++
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(m[1]) + `:`).Match(makefile) {
				t.Errorf("%s says make %s, which the Makefile does not have", p.name, m[1])
			}
		}
		for _, b := range shellBlock.FindAllStringSubmatch(p.text, -1) {
			for _, m := range ownFile.FindAllStringSubmatch(b[1], -1) {
				files++
				if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
					t.Errorf("%s: a command names %s: %v", p.name, m[1], err)
				}
			}
		}
	}
	if targets < 20 || files < 5 {
		t.Errorf("only %d targets and %d files were found: the patterns miss them", targets, files)
	}
}
