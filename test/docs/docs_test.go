package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// page is one page of the manual.
type page struct {
	name string // as docs/policies.md
	text string
}

// pages returns every page: the manual, the decisions, and the pages of the project's root.
func pages(t *testing.T) (all []page) {
	t.Helper()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(names), err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			short, err := filepath.Rel(root, name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page{filepath.ToSlash(short), string(text)})
		}
	}
	return all
}

var yamlBlock = regexp.MustCompile("(?ms)^```ya?ml\n(.*?)^```$")

// Every YAML block is what it looks like, and is loaded as that: policies, rules of envoyproxy/ratelimit, the process
// configuration, or a part of an Envoy configuration, whose every field must exist.
func TestEveryYAMLBlockLoads(t *testing.T) {
	t.Parallel()
	loaded := map[string]int{}
	for _, p := range pages(t) {
		begun := len(regexp.MustCompile("(?m)^```ya?ml").FindAllString(p.text, -1))
		blocks := yamlBlock.FindAllStringSubmatch(p.text, -1)
		if len(blocks) != begun {
			t.Errorf("%s: %d YAML blocks read, %d begin", p.name, len(blocks), begun)
		}
		for _, b := range blocks {
			kind, err := load(t, b[1])
			if err != nil {
				t.Errorf("%s: %v\n%s", p.name, err, b[1])
			}
			loaded[kind]++
		}
	}
	for _, kind := range []string{"policies", "rules", "configuration", "Envoy"} {
		if loaded[kind] == 0 {
			t.Errorf("no block was loaded as %s: %v", kind, loaded)
		}
	}
	t.Logf("loaded: %v", loaded)
}

func load(t *testing.T, text string) (kind string, err error) {
	t.Helper()
	var v any
	if err := yaml.Load([]byte(text), &v); err != nil {
		return "", err
	}
	top, _ := v.(map[string]any)
	has := func(key string) bool { _, ok := top[key]; return ok }
	switch {
	case has("domain") && (has("endpoints") || has("descriptors")):
		kind = "policies"
		if has("descriptors") {
			kind = "rules"
		}
		_, err := descriptors.Parse([]descriptors.File{{Name: kind, Data: []byte(text)}}, descriptors.Options{})
		return kind, err
	case top != nil && isConfiguration(top):
		return "configuration", loadConfiguration(t, text)
	case has("services"):
		return "compose", nil // docker compose reads it: test/containers
	}
	return "Envoy", loadEnvoy(t, v)
}

// isConfiguration reports whether every key is one of the process configuration's.
func isConfiguration(top map[string]any) bool {
	known := map[string]bool{}
	for field := range reflect.TypeFor[config.Config]().Fields() {
		known[field.Tag.Get("yaml")] = true
	}
	for key := range top {
		if !known[key] {
			return false
		}
	}
	return true
}

var secretFile = regexp.MustCompile(`/run/secrets/[A-Za-z0-9._-]+`)

// loadConfiguration loads the text with secrets where it says they are, but below a directory of the test.
func loadConfiguration(t *testing.T, text string) error {
	t.Helper()
	dir := t.TempDir()
	for i, name := range secretFile.FindAllString(text, -1) {
		here := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(here, []byte(strings.Repeat(string(rune('a'+i)), 64)), 0o600); err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, name, filepath.ToSlash(here))
	}
	file := filepath.Join(dir, "sentinel.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := config.Load(file, nil)
	return err
}

// loadEnvoy has Envoy itself check a bootstrap that holds the fragment in its place. It refuses fields that do not exist.
func loadEnvoy(t *testing.T, v any) error {
	t.Helper()
	envoy, err := testserver.Find("envoy")
	if err != nil {
		if os.Getenv("CI") == "true" {
			return err
		}
		t.Logf("not checked: %v", err)
		return nil
	}
	b := bootstrap{
		route:   map[string]any{"match": map[string]any{"prefix": "/"}, "route": map[string]any{"cluster": "upstream"}},
		routes:  map[string]any{"name": "local"},
		manager: map[string]any{"stat_prefix": "http"},
		cluster: map[string]any{"name": "sentinel", "type": "STATIC"},
	}
	if err := b.put(v); err != nil {
		return err
	}
	text, err := json.Marshal(b.all())
	if err != nil {
		return err
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	if out, err := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "--log-level", "error", "-c", file).CombinedOutput(); err != nil {
		return fmt.Errorf("envoy: %w\n%s", err, out)
	}
	return nil
}

// bootstrap is the smallest one that has a place for each kind of fragment.
type bootstrap struct {
	route, routes, manager, cluster map[string]any

	others  []any // routes before route
	filters []any
}

// put puts a fragment into its place.
func (b *bootstrap) put(v any) error {
	switch v := v.(type) {
	case []any:
		first, _ := v[0].(map[string]any)
		switch {
		case first["match"] != nil:
			b.others = v
		case first["typed_config"] != nil:
			b.filters = v
		default:
			b.route["route"].(map[string]any)["rate_limits"] = []any{map[string]any{"actions": v}}
		}
	case map[string]any:
		into := b.routes
		switch {
		case v["http_filters"] != nil:
			b.filters, into = v["http_filters"].([]any), nil
		case v["typed_per_filter_config"] != nil:
			into = b.route
		case v["load_assignment"] != nil:
			into = b.cluster
		}
		for key, value := range v {
			if into != nil {
				into[key] = value
			}
		}
		if into == nil && len(v) > 1 {
			return errors.New("http_filters beside something else")
		}
	default:
		return fmt.Errorf("%T is no part of an Envoy configuration", v)
	}
	return nil
}

func (b *bootstrap) all() map[string]any {
	const extensions = "type.googleapis.com/envoy.extensions."
	b.routes["virtual_hosts"] = []any{map[string]any{"name": "all", "domains": []any{"*"}, "routes": append(b.others, b.route)}}
	b.manager["@type"] = extensions + "filters.network.http_connection_manager.v3.HttpConnectionManager"
	b.manager["route_config"] = b.routes
	b.manager["http_filters"] = append(b.filters, map[string]any{
		"name": "envoy.filters.http.router", "typed_config": map[string]any{"@type": extensions + "filters.http.router.v3.Router"},
	})
	return map[string]any{"static_resources": map[string]any{
		"listeners": []any{map[string]any{
			"name":    "http",
			"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 10000}},
			"filter_chains": []any{map[string]any{"filters": []any{map[string]any{
				"name": "envoy.filters.network.http_connection_manager", "typed_config": b.manager,
			}}}},
		}},
		"clusters": []any{b.cluster, map[string]any{"name": "upstream", "type": "STATIC"}},
	}}
}

var metricName = regexp.MustCompile(`\bsentinel_[a-z_]+[a-z]\b`)

// Metrics that the pages speak of exist.
func TestEveryMetricExists(t *testing.T) {
	t.Parallel()
	var known []string
	all := pages(t)
	for _, p := range all {
		if p.name == "docs/metrics.md" { // which a test of its own holds to the registry
			for _, m := range regexp.MustCompile("(?m)^\\| `(sentinel_[a-z_]+)").FindAllStringSubmatch(p.text, -1) {
				known = append(known, m[1])
			}
		}
	}
	others := []string{"sentinel_anon_id", "sentinel_rls"} // a cookie, and the Go import's name in prose
	for _, p := range all {
		for _, name := range metricName.FindAllString(p.text, -1) {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !slices.Contains(known, name) && !slices.Contains(known, base) && !slices.Contains(others, name) {
				t.Errorf("%s speaks of %s, which docs/metrics.md does not list", p.name, name)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]*)?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
)

// Links lead to files that are there, and to headings that they have.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(p.text, ""), -1) {
			target := filepath.Join(root, filepath.Dir(p.name), m[1])
			if m[1] == "" {
				target = filepath.Join(root, p.name)
			}
			info, err := os.Stat(target)
			if err != nil {
				t.Errorf("%s links to %s: %v", p.name, m[1], err)
				continue
			}
			if m[2] == "" || info.IsDir() || filepath.Ext(target) != ".md" {
				continue
			}
			text, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(anchors(string(text)), m[2][1:]) {
				t.Errorf("%s links to %s%s, which has no such heading", p.name, m[1], m[2])
			}
		}
	}
}

// anchors returns the names by which a page's headings are linked to, as forges make them.
func anchors(text string) (names []string) {
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := strings.ToLower(strings.NewReplacer("`", "", "**", "").Replace(m[1]))
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
