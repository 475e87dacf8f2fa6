//go:build !nodev

package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

//go:generate go test -run ^TestManualIsCurrent$ -update .

var update = flag.Bool("update", false, "write docs/cli.md instead of comparing it")

// docs/cli.md is made of the commands, their help and the exit codes.
func TestManualIsCurrent(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "cli.md")
	want := cliManual()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("docs/cli.md is not current (%v): run go generate ./cmd/sentinel-rls", err)
	}
}

func cliManual() string {
	var b strings.Builder
	b.WriteString("# Command line\n\n<!-- Made from the program by: go generate ./cmd/sentinel-rls -->\n\n")
	leaves := leafCommands(newParser(io.Discard, io.Discard, func(int) {}).Model.Node)
	b.WriteString("| command | |\n|---|---|\n")
	for _, c := range leaves {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", name(c), strings.ReplaceAll(name(c), " ", "-"), c.Help)
	}
	b.WriteString("\n`--help` after any of them says what stands here.\n")
	for _, c := range leaves {
		section(&b, c)
	}
	b.WriteString("\n## Exit codes\n\n| code | meaning |\n|---|---|\n")
	for _, code := range slices.Sorted(maps.Keys(exitMeanings)) {
		fmt.Fprintf(&b, "| %d | %s |\n", code, exitMeanings[code])
	}
	b.WriteString("\n" + helpText("admin"))
	return b.String()
}

// name returns a command without the program's name.
func name(c *kong.Node) string { return strings.TrimPrefix(c.FullPath(), "sentinel-rls ") }

func section(b *strings.Builder, c *kong.Node) {
	fmt.Fprintf(b, "\n## %s\n\n```\nsentinel-rls %s\n```\n\n%s\n\n%s", name(c), c.Summary(), c.Help, c.Detail)
	var rows []string
	for _, p := range c.Positional {
		rows = append(rows, fmt.Sprintf("| `%s` | | %s |", p.Summary(), cell(p.Help)))
	}
	for _, f := range c.Flags {
		value := f.FormatPlaceHolder()
		if f.IsBool() {
			value = ""
		}
		if value != "" && !f.HasDefault {
			value = " " + strings.TrimSuffix(value, ",...")
		}
		standard := " "
		if f.HasDefault {
			value, standard = " "+strings.ToUpper(f.Value.Target.Type().Name()), " `"+f.Default+"` "
		}
		if f.Required {
			standard = " required "
		}
		rows = append(rows, fmt.Sprintf("| `--%s%s` |%s| %s |", f.Name, value, standard, cell(f.Help)))
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| | default | |\n|---|---|---|\n%s\n", strings.Join(rows, "\n"))
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
