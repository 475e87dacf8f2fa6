package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completionOf returns the words that a shell offers after some; the shell is the real one.
func completionOf(t *testing.T, shell, script string, words ...string) []string {
	t.Helper()
	quoted := "'" + strings.Join(words, "' '") + "'"
	program := map[string]string{
		"bash": `source "$0"; COMP_WORDS=(` + quoted + `); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _sentinel_rls; printf '%s\n' "${COMPREPLY[@]}"`,
		"zsh": `compdef() {}; _files() {}; _describe() { print -l -- "${(@)follow}" }; source "$0"; words=(` + quoted + `); CURRENT=${#words}; ` +
			`_sentinel-rls | while read -r w; do case $w in (*:*) print -r -- "${w%%:*}" ;; (*) print -r -- "$w" ;; esac; done`,
		"fish": `source $argv[1]; complete -C "` + strings.Join(words, " ") + `" | cut -f1`,
	}[shell]
	args := map[string][]string{
		"bash": {"--norc", "-c", program, script}, "zsh": {"-f", "-c", program, script}, "fish": {"--no-config", "-c", program, script},
	}[shell]
	cmd := exec.CommandContext(t.Context(), shell, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home, "XDG_RUNTIME_DIR="+home,
		"GORACE=atexit_sleep_ms=0", "PATH="+filepath.Dir(script)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	// Not what the shell says beside it: fish warns of a lock that took a quarter of a second.
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", shell, err, out.String(), said.String())
	}
	if said.Len() > 0 {
		t.Logf("%s says: %s", shell, said.String())
	}
	offered := strings.Fields(out.String())
	last := words[len(words)-1]
	offered = slices.DeleteFunc(offered, func(w string) bool { return !strings.HasPrefix(w, last) }) // zsh filters later
	slices.Sort(offered)
	return offered
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			var script, stderr bytes.Buffer
			if code := run(t.Context(), []string{"completion", shell}, nil, &script, &stderr); code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr.String())
			}
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here to try the script in", shell)
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "script")
			if err := os.WriteFile(file, script.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable() // by this name it is the program
			if err == nil {
				err = os.Symlink(self, filepath.Join(dir, "sentinel-rls"))
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				words []string
				want  []string
			}{
				{[]string{"sentinel-rls", "he"}, []string{"healthcheck"}},
				{[]string{"sentinel-rls", "v"}, []string{"validate", "version"}},
				{[]string{"sentinel-rls", "diff", "--a"}, []string{"--allow"}},
				{[]string{"sentinel-rls", "diff", "old", "new", "--a"}, []string{"--allow"}},
				{[]string{"sentinel-rls", "explain", "--to"}, []string{"--token-file"}},
				{[]string{"sentinel-rls", "explain", "--hel"}, []string{"--help"}},
				{[]string{"sentinel-rls", "explain", "--endpoint=x", "+", "--to"}, []string{"--token-file"}},
				{[]string{"sentinel-rls", "completion", "b"}, []string{"bash"}},
				{[]string{"sentinel-rls", "compat", ""}, []string{"check", "serve"}},
				{[]string{"sentinel-rls", "dev", "t"}, []string{"token"}},
				{[]string{"sentinel-rls", "dev", "token", "--tt"}, []string{"--ttl"}},
			} {
				if got := completionOf(t, shell, file, c.words...); !slices.Equal(got, c.want) {
					t.Errorf("%q offers %q, want %q", c.words, got, c.want)
				}
			}
		})
	}
}
