package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// The marks between which the manual's table stands.
const (
	manualBegin = "<!-- drills: begin (made by go run ./test/chaos -write docs/failure-modes.md) -->\n"
	manualEnd   = "<!-- drills: end -->\n"
)

// writeManual puts what each drill is, and the table of what came of them, between the marks of a file.
func writeManual(file, where string, table [][]string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), manualBegin)
	_, after, ended := strings.Cut(rest, manualEnd)
	if !found || !ended {
		return fmt.Errorf("%s has no marks for the table of drills", file)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s\n| drill | what happens | cases |\n|---|---|---|\n", before, manualBegin)
	for _, d := range drills {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.name, d.what, d.cases)
	}
	fmt.Fprintf(&b, "\n%s\n\n", where)
	load.Table(&b, table)
	fmt.Fprintf(&b, "\n%s%s", manualEnd, after)
	return os.WriteFile(file, b.Bytes(), 0o644)
}
