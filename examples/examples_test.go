// Package examples_test holds the examples to what their comments promise, without an engine to run them on: test/containers
// does that.
package examples_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// files returns the paths under a directory that match a pattern of their base name, at least one.
func files(t *testing.T, dir, pattern string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if ok, _ := filepath.Match(pattern, filepath.Base(path)); ok && err == nil && !entry.IsDir() {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s under %s: %v", pattern, dir, err)
	}
	return found
}

// Every process configuration loads, with the policies and secrets that it names.
func TestConfigurationsLoad(t *testing.T) {
	t.Parallel()
	for _, file := range files(t, ".", "sentinel.yaml") {
		cfg, warnings, err := config.Load(file, nil)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v %v", file, warnings, err)
			continue
		}
		policies, err := policyfile.Read(cfg.Policies)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		set, err := descriptors.Parse(policies, descriptors.Options{KeyPrefix: cfg.Redis.KeyPrefix})
		if err != nil || len(set.Policies()) == 0 {
			t.Errorf("%s: %v", file, err)
			continue
		}
		tokens, anonymous := false, false
		for _, p := range set.Policies() {
			tokens = tokens || p.Identity == descriptors.TenantJWT
			anonymous = anonymous || p.Identity == descriptors.Anonymous
		}
		if err := cfg.CheckIdentities(tokens, anonymous); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A real Envoy accepts every bootstrap.
func TestEnvoyAcceptsTheBootstraps(t *testing.T) {
	t.Parallel()
	envoy, err := testserver.Find("envoy")
	if err != nil {
		testserver.SkipUnlessCI(t, "%v", err)
	}
	for _, file := range slices.Concat(files(t, "envoy", "*.yaml"), files(t, "compose/envoy", "*.yaml")) {
		out, err := exec.Command(envoy, "--mode", "validate", "--log-level", "error", "--config-path", file).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// The route of an endpoint is worth nothing when no policy has its id.
func TestComposeRoutesAndPoliciesFit(t *testing.T) {
	t.Parallel()
	policies, err := policyfile.Read([]string{"compose/sentinel/policies"})
	if err != nil {
		t.Fatal(err)
	}
	set, err := descriptors.Parse(policies, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	routed := map[string]bool{"unlisted": true} // an id without a policy, on purpose
	for _, m := range regexp.MustCompile(`endpoint_id: ([\w.]+) `).FindAllSubmatch(read(t, "compose/envoy/envoy.yaml"), -1) {
		id := string(m[1])
		if _, ok := set.Endpoint(id); !ok && id != "unlisted" {
			t.Errorf("envoy.yaml routes to the endpoint %s, which has no policy", id)
		}
		routed[id] = true
	}
	for _, p := range set.Policies() {
		if !routed[p.Endpoint] {
			t.Errorf("no route of envoy.yaml leads to the endpoint %s", p.Endpoint)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// service is what a compose file says of one container.
type service struct {
	Image       string              `yaml:"image"`
	PullPolicy  string              `yaml:"pull_policy"`
	ReadOnly    bool                `yaml:"read_only"`
	Privileged  bool                `yaml:"privileged"`
	CapDrop     []string            `yaml:"cap_drop"`
	CapAdd      []string            `yaml:"cap_add"`
	SecurityOpt []string            `yaml:"security_opt"`
	Ports       []string            `yaml:"ports"`
	Volumes     []string            `yaml:"volumes"`
	Networks    []string            `yaml:"networks"`
	Healthcheck map[string]any      `yaml:"healthcheck"`
	DependsOn   map[string]struct { // by service
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
}

// Nobody in the compose file has a right that it does not need, and nobody on another machine reaches it.
func TestComposeIsHardened(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]service        `yaml:"services"`
		Networks map[string]map[string]any `yaml:"networks"`
	}
	if err := yaml.Unmarshal(read(t, "docker-compose.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Services) != 4 {
		t.Fatalf("%d services, want 4", len(file.Services))
	}
	for name, s := range file.Services {
		if !s.ReadOnly || s.Privileged || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.CapAdd) > 0 ||
			!slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
			t.Errorf("%s has rights that it does not need: %+v", name, s)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to other machines", name, port)
			}
		}
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, err := os.Stat(source); err != nil || !strings.HasSuffix(volume, ":ro") {
				t.Errorf("%s: volume %s: must exist and be read-only: %v", name, volume, err)
			}
		}
		if s.Healthcheck == nil {
			t.Errorf("%s has no health check", name)
		}
		for other, d := range s.DependsOn {
			if d.Condition != "service_healthy" {
				t.Errorf("%s starts after %s is %s, want service_healthy", name, other, d.Condition)
			}
		}
		if !strings.HasPrefix(s.Image, "${IMAGE_") || !strings.HasPrefix(s.PullPolicy, "${IMAGE_") {
			t.Errorf("%s: image %s and pull policy %s cannot be set from outside", name, s.Image, s.PullPolicy)
		}
	}
	if redis := file.Services["redis"]; !slices.Equal(redis.Networks, []string{"store"}) || file.Networks["store"]["internal"] != true {
		t.Errorf("Redis has no password, so it must be on an internal network of its own: %v %v", redis.Networks, file.Networks)
	}
}
