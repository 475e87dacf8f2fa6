package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sentinel-rls/sentinel-rls"

// The rule: imports point inward, pure <- engine <- adapters <- cmd, and an adapter never imports another adapter.
// allowed lists, for each package inside the rule, everything outside the standard library that it may import: packages
// of this module by their path in it, others by the path of their module. Tests are free.
var allowed = map[string][]string{
	// Pure.
	"algorithms":  {},
	"descriptors": {"algorithms", "go.yaml.in/yaml/v4"},
	"lua":         {"algorithms"},
	"identity":    {"github.com/golang-jwt/jwt/v5"},
	// Adapter of identity: the keys that issuers publish.
	"identity/jwks": {"identity"},
	// Engine.
	"rls": {"algorithms", "descriptors", "identity", "github.com/sony/gobreaker/v2"},
	// Adapters.
	"store/memory":    {"rls", "algorithms"},
	"store/redis":     {"rls", "algorithms", "lua", "github.com/redis/go-redis/v9"},
	"store/storetest": {"rls", "algorithms", "pgregory.net/rapid"}, // tests alone import it
	"envoy": {
		"rls", "identity", "github.com/envoyproxy/go-control-plane", "google.golang.org/grpc",
		"google.golang.org/protobuf", "google.golang.org/genproto/googleapis/rpc",
	},
	"xds": {
		"descriptors", "github.com/envoyproxy/go-control-plane", "google.golang.org/grpc", "google.golang.org/protobuf",
		"google.golang.org/genproto/googleapis/rpc",
	},
	"config": {"go.yaml.in/yaml/v4"},
}

// Packages under these are outside the rule: they may import what they need, and nothing above imports them.
var outside = []string{"internal/", "cmd/", "test/", "examples/"}

// What pure packages and the engine may not import although the standard library has it: they do no I/O.
var (
	pure   = []string{"algorithms", "descriptors", "lua", "identity", "rls"}
	impure = []string{"net", "net/http", "os", "os/exec", "os/signal", "syscall"}
)

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

// violations returns one line for each import against the rule. standard says whether an import path is the standard
// library's.
func violations(pkgs []pkg, standard func(string) bool) []string {
	var found []string
	for _, p := range pkgs {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.ContainsFunc(outside, func(prefix string) bool { return strings.HasPrefix(path+"/", prefix) }) {
			continue
		}
		may, ok := allowed[path]
		if !ok {
			found = append(found, path+" has no place in the import rule: give it one in internal/project/importrule_test.go")
			continue
		}
		for _, imp := range p.Imports {
			switch {
			case standard(imp):
				if slices.Contains(pure, path) && slices.Contains(impure, imp) {
					found = append(found, fmt.Sprintf("%s does no I/O and may not import %s", path, imp))
				}
			case !slices.ContainsFunc(may, func(m string) bool { return covers(m, imp) }):
				found = append(found, fmt.Sprintf("%s may not import %s", path, strings.TrimPrefix(imp, module+"/")))
			}
		}
	}
	return found
}

// covers says whether an entry of the rule allows an import: a package of this module exactly, another module with all
// its packages.
func covers(entry, imp string) bool {
	if own, ok := strings.CutPrefix(imp, module+"/"); ok {
		return entry == own
	}
	return imp == entry || strings.HasPrefix(imp, entry+"/")
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Standard"}, args...)...)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestImportsPointInward(t *testing.T) {
	t.Parallel()
	std := make(map[string]bool)
	var own []pkg
	for _, p := range list(t, "-deps", "./...") {
		std[p.ImportPath] = p.Standard
		if strings.HasPrefix(p.ImportPath, module+"/") {
			own = append(own, p)
		}
	}
	for _, v := range violations(own, func(path string) bool { return std[path] }) {
		t.Error(v)
	}
}

// What only tests need must not be linked into the program.
func TestProgramLinksNoTestCode(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "-deps", "./cmd/...") {
		switch p.ImportPath {
		case "testing", module + "/internal/testserver", module + "/store/storetest", "pgregory.net/rapid":
			t.Errorf("the program links %s", p.ImportPath)
		}
	}
}

func TestRuleFindsViolations(t *testing.T) {
	t.Parallel()
	standard := func(path string) bool { return !strings.Contains(path, ".") }
	for _, tt := range []struct {
		path, imp string
		want      string
	}{
		{"rls", module + "/descriptors", ""},
		{"store/redis", "github.com/redis/go-redis/v9/maintnotifications", ""},
		{"cmd/sentinel-rls", module + "/store/redis", ""},
		{"algorithms", "time", ""},
		{"rls", module + "/store/redis", "rls may not import store/redis"},
		{"store/redis", module + "/store/memory", "store/redis may not import store/memory"},
		{"envoy", module + "/config", "envoy may not import config"},
		{"envoy", module + "/internal/telemetry", "envoy may not import internal/telemetry"},
		{"descriptors", "go.yaml.in/yaml/v4x", "descriptors may not import go.yaml.in/yaml/v4x"},
		{"lua", "github.com/redis/go-redis/v9", "lua may not import github.com/redis/go-redis/v9"},
		{"identity", "net/http", "identity does no I/O and may not import net/http"},
		{"util", "time", "util has no place in the import rule: give it one in internal/project/importrule_test.go"},
	} {
		got := violations([]pkg{{ImportPath: module + "/" + tt.path, Imports: []string{tt.imp}}}, standard)
		if strings.Join(got, "\n") != tt.want {
			t.Errorf("%s imports %s: %q, want %q", tt.path, tt.imp, got, tt.want)
		}
	}
}
