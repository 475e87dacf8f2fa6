package config

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzLoad: whatever file, variable and flag hold, there is a whole configuration or problems that say where they are;
// and a configuration that was accepted is accepted again from what it says.
func FuzzLoad(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte, path, value string) {
		const file = "sentinel.yaml"
		for _, read := range []func(*loader){
			func(*loader) {},
			func(l *loader) { l.readEnvironment([]string{EnvName(path) + "=" + value}) },
			func(l *loader) { l.readFlags([]Override{{Flag: "--flag", Path: path, Values: []string{value}}}) },
		} {
			l := newLoader()
			l.readDocument(data, origin{source: file})
			read(l)
			l.validate()
			if len(l.problems) > 0 {
				checkProblems(t, errors.Join(l.problems...), file, linesOf(data))
				continue
			}
			var said []string
			for f := range leaves(&l.cfg) {
				said = append(said, EnvName(f.path)+"="+envText(f))
			}
			if strings.ContainsAny(strings.Join(said, ""), ",[\"") {
				continue // a comma within a list's item needs quotes
			}
			again := newLoader()
			again.readEnvironment(said)
			again.validate()
			if len(again.problems) > 0 {
				t.Errorf("accepted, but not again from the environment: %v\n%q", again.problems, said)
			}
		}
	})
}

// linesOf returns how many lines YAML may count in data, and one for its end.
func linesOf(data []byte) int {
	lines := 2
	for _, r := range string(data) {
		if strings.ContainsRune("\n\r\u0085\u2028\u2029", r) {
			lines++
		}
	}
	return lines
}

func checkProblems(t *testing.T, err error, file string, lines int) {
	t.Helper()
	problems := Problems(err)
	if len(problems) == 0 {
		t.Fatalf("an error without problems: %v", err)
	}
	for _, p := range problems {
		ok := p.Text != "" && p.Line >= 0 && p.Line <= lines && (p.Line == 0 || p.Source == file)
		if !ok || !utf8.ValidString(p.Text) {
			t.Errorf("problem %+v", *p)
		}
	}
}
