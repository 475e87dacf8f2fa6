//go:build !nodev

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	leaves := leafCommands(newCommandLine(io.Discard).Command, "")
	b.WriteString("| command | |\n|---|---|\n")
	for _, c := range leaves {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.words, strings.ReplaceAll(c.words, " ", "-"), c.ShortDescription)
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

func section(b *strings.Builder, c leafCommand) {
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n\n%s\n\n%s", c.words, usage(c), c.ShortDescription, helpText(strings.ReplaceAll(c.words, " ", "-")))
	var rows []string
	for _, a := range c.Args() {
		rows = append(rows, fmt.Sprintf("| `%s` | | %s |", a.Name, cell(a.Description)))
	}
	for _, o := range c.Options() {
		value, standard := "", " "
		if o.ValueName != "" {
			value = " " + o.ValueName
		}
		switch {
		case o.Required:
			standard = " required "
		case len(o.Default) > 0:
			standard = " `" + o.Default[0] + "` "
		}
		rows = append(rows, fmt.Sprintf("| `--%s%s` |%s| %s |", o.LongName, value, standard, cell(o.Description)))
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| | default | |\n|---|---|---|\n%s\n", strings.Join(rows, "\n"))
	}
}

// usage returns how a command is written: the second line of its help.
func usage(c leafCommand) string {
	var stdout strings.Builder
	run(context.Background(), append(strings.Fields(c.words), "--help"), nil, &stdout, io.Discard)
	line := strings.Split(stdout.String(), "\n")[1]
	return strings.TrimSpace(strings.Replace(line, "[OPTIONS] ", "", 1)) // of the program itself, which are --help
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
