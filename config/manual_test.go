package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

//go:generate go test -run ^TestManualIsCurrent$ -update .

var update = flag.Bool("update", false, "write docs/config.md instead of comparing it")

const manualFile = "../docs/config.md"

// TestManualIsCurrent compares docs/config.md with the doc comments and defaults it is made from.
func TestManualIsCurrent(t *testing.T) {
	want := manual(t)
	if *update {
		if err := os.WriteFile(manualFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(manualFile)
	if err != nil || string(got) != want {
		t.Errorf("docs/config.md is not current (%v): run go generate ./config", err)
	}
}

const manualHead = `# Process configuration

<!-- Made from the doc comments in config/config.go by: go generate ./config -->

What a running sentinel-rls is told once, at start. Policies are files of their own, named under ` + "`policies`" + `.

- A value comes from, strongest first: a flag, the environment, the file given with ` + "`--config`" + `, the default.
- The file is YAML (JSON is YAML too), and strict: unknown and repeated keys, keys without a value, a second document,
  aliases and wrong types are refused. Every problem is reported at once, with file, line, path and a way to mend it.
- Numbers are decimal digits. Times carry their unit: ` + "`20ms`, `30s`, `1h30m`" + `.
- The environment variable of a setting is ` + "`SENTINEL_`" + ` and its path in upper case, with ` + "`_`" + ` for the dots. A list is
  written with commas, or as a YAML list in brackets. An empty variable is an empty value, not an absent one. A
  ` + "`SENTINEL_`" + ` variable that sets nothing is logged with the nearest name that would; those that Kubernetes makes for a
  service called sentinel are ignored, and so is everything that starts with ` + "`SENTINEL_RLS_`" + `, another product's prefix.
- Secrets are never written here: a setting ending in ` + "`_file` or `_files`" + ` names the file that holds one. One newline at its
  end is cut off. It is read at start; no log, error or dump shows it.
- A relative path in the file is relative to the file's directory; in a flag or the environment, to the working directory.
`

func manual(t *testing.T) string {
	t.Helper()
	def := Default()
	m := &manualWriter{docs: fieldDocs(t)}
	m.WriteString(manualHead)
	m.section(t, reflect.ValueOf(def), "", 2)
	return m.String()
}

type manualWriter struct {
	strings.Builder
	docs map[string]string // by Type.Field
}

func (m *manualWriter) section(t *testing.T, v reflect.Value, path string, level int) {
	t.Helper()
	for f, field := range v.Fields() {
		if f.Anonymous {
			m.section(t, field, path, level)
			continue
		}
		s := specOf(f)
		if s.key == "" {
			continue
		}
		name := v.Type().Name() + "." + f.Name
		doc := m.docs[name]
		if doc == "" {
			t.Errorf("%s has no doc comment", name)
		}
		child := join(path, s.key)
		fmt.Fprintf(m, "\n%s %s\n\n%s\n", strings.Repeat("#", level), child, doc)
		elem := field.Type()
		switch {
		case field.Kind() == reflect.Struct:
			m.section(t, field, child, level+1)
			continue
		case field.Kind() == reflect.Slice && elem.Elem().Kind() == reflect.Struct:
			if !strings.Contains(child, "[]") { // a list within an item of a list has no variable
				fmt.Fprintf(m, "\nDefault: none. Environment: `%s`\n", EnvName(child))
			}
			m.section(t, reflect.Zero(elem.Elem()), child+"[]", level+1)
			continue
		case strings.Contains(child, "[]"):
			continue // an item has neither default nor variable
		}
		fmt.Fprintf(m, "\nDefault: %s. Environment: `%s`\n", defaultText(field), EnvName(child))
	}
}

// Every environment variable that the pages name sets something.
func TestDocumentedVariablesExist(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	cfg := Default()
	for f := range leaves(&cfg) {
		known[EnvName(f.path)] = true
	}
	found := map[string]bool{}
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(SENTINEL_[^`= ]*[^_`= ])[`= ]").FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
			if !known[m[1]] {
				t.Errorf("%s names %s, which sets nothing", page, m[1])
			}
		}
	}
	for name := range known {
		if !found[name] {
			t.Errorf("no page names %s", name)
		}
	}
}

func defaultText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return "`" + short(x) + "`"
	case []string:
		if len(x) == 0 {
			return "none"
		}
		return "`[" + strings.Join(x, ", ") + "]`"
	}
	if v.IsZero() && v.Kind() == reflect.String {
		return "empty"
	}
	return fmt.Sprintf("`%v`", v)
}

// fieldDocs returns the doc comment of every struct field of the package, as one paragraph.
func fieldDocs(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	docs := map[string]string{}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			typ, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			for _, f := range typ.Type.(*ast.StructType).Fields.List {
				if len(f.Names) == 0 {
					continue // embedded: its own fields are documented
				}
				docs[typ.Name.Name+"."+f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
	}
	return docs
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n# sentinel.yaml\n(.*?)^```$")

// TestDocumentedConfigurations loads every block of the documentation that shows a configuration file. The secret files
// it names need not exist.
func TestDocumentedConfigurations(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil && page != "../README.md" {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllSubmatch(text, -1) {
			found++
			_, _, err := Load(writeFile(t, t.TempDir(), "sentinel.yaml", string(block[1])), nil)
			for _, p := range Problems(err) {
				if !strings.Contains(p.Text, "no such file or directory") {
					t.Errorf("%s: %v", page, p)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page shows a configuration")
	}
}
