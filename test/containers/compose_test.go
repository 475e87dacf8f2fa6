package containers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/moby/moby/client"
)

// maxFirst429 is how long `docker compose up` to the first 429 may take with all images present.
const maxFirst429 = 60 * time.Second

// stack is examples/docker-compose.yaml, running as a project of its own on ports of its own.
type stack struct {
	docker  *client.Client
	project string
	image   string // that compose builds
	dir     string // the project's tracked files and nothing else, as a clone has them
	env     []string
	ports   *strings.Replacer // from the documented ports to those in use
	url     string            // of Envoy
}

// What a newcomer does, and then what a bad day does. The commands are the README's own.
func TestCompose(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	commands := readmeCommands(t)
	up, down := commands[:len(commands)-1], commands[len(commands)-1]

	begun := time.Now()
	printed := s.sh(t, strings.Join(up, "\n"))
	took := time.Since(begun)
	if got := statuses(printed); got != "200 200 200 200 200 429" {
		t.Fatalf("the README's commands printed %q\n%s", got, printed)
	}
	t.Logf("from `docker compose up` to the first 429 through Envoy: %.1f s", took.Seconds())
	if took >= maxFirst429 {
		t.Errorf("that is not under %v", maxFirst429)
	}

	t.Run("nobody has more rights than it needs", s.isHardened)
	t.Run("tenants", s.tenants)
	t.Run("a frozen Redis", s.frozenRedis)
	t.Run("a restarted sentinel-rls", s.restartedSentinel)
	t.Run("what the manual tries", s.manual) // a new process: its emergency caps are full
	t.Run("an edited policy", s.editedPolicy)
	t.Run("down leaves nothing", func(t *testing.T) {
		s.sh(t, down)
		if left := s.containers(t); len(left) > 0 {
			t.Errorf("%d containers are left", len(left))
		}
		networks, err := s.docker.NetworkList(t.Context(), client.NetworkListOptions{Filters: s.ours()})
		if err != nil || len(networks.Items) > 0 {
			t.Errorf("networks left: %+v, %v", networks.Items, err)
		}
	})
}

// statuses returns the HTTP statuses that curl lines of the documentation printed.
func statuses(printed string) string {
	return strings.Join(regexp.MustCompile(`(?m)^\d{3}$`).FindAllString(printed, -1), " ")
}

func newStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{docker: engine(t), project: fmt.Sprintf("sentinel-test-%d", os.Getpid()), image: imageUnderTest() + "-compose"}
	if out, err := osexec.Command("docker", "compose", "version").CombinedOutput(); err != nil {
		skip(t, "no docker compose: %v\n%s", err, out)
	}
	s.dir = clone(t)
	envoy, admin := freePort(t), freePort(t)
	s.ports = strings.NewReplacer("127.0.0.1:10000", "127.0.0.1:"+envoy, "127.0.0.1:9091", "127.0.0.1:"+admin)
	s.url = "http://127.0.0.1:" + envoy
	s.env = append(os.Environ(),
		"COMPOSE_PROJECT_NAME="+s.project, "PORT_ENVOY="+envoy, "PORT_ADMIN="+admin,
		"IMAGE_SENTINEL="+s.image,
	)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.sh(t, "docker compose -f examples/docker-compose.yaml logs --no-color --tail 50"))
		}
		s.sh(t, "docker compose -f examples/docker-compose.yaml down --volumes --timeout 1")
		_, _ = s.docker.ImageRemove(context.Background(), s.image, client.ImageRemoveOptions{}) // where it was not even built
	})
	return s
}

// clone copies the tracked files to a new directory.
func clone(t *testing.T) string {
	t.Helper()
	const root = "../.."
	git := osexec.Command("git", "ls-files", "-z")
	git.Dir = root
	list, err := git.Output()
	if err != nil || len(list) == 0 {
		t.Fatalf("git ls-files: %d bytes, %v", len(list), err)
	}
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// readmeCommands returns the lines of the README's block about compose: the last one takes everything down.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)<!-- compose commands -->\\s*```sh\\n(.*?)\\n```").FindSubmatch(data)
	if block == nil {
		t.Fatal("README.md has no sh block after <!-- compose commands -->")
	}
	lines := strings.Split(string(block[1]), "\n")
	if last := lines[len(lines)-1]; len(lines) < 3 || !strings.HasSuffix(last, " down") {
		t.Fatalf("the README's compose block does not end with `down`: %q", lines)
	}
	return lines
}

// freePort returns a loopback port that nothing listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

// sh runs documented commands on this stack's ports and returns what they printed.
func (s *stack) sh(t *testing.T, commands string) string {
	t.Helper()
	cmd := osexec.Command("bash", "-euo", "pipefail", "-c", s.ports.Replace(commands))
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", commands, err, out)
	}
	return string(out)
}

// ours selects what belongs to this stack.
func (s *stack) ours() client.Filters {
	return make(client.Filters).Add("label", "com.docker.compose.project="+s.project)
}

// containers returns the ids of this stack's containers by service.
func (s *stack) containers(t *testing.T) map[string]string {
	t.Helper()
	list, err := s.docker.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: s.ours()})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, c := range list.Items {
		ids[c.Labels["com.docker.compose.service"]] = c.ID
	}
	return ids
}

func (s *stack) isHardened(t *testing.T) {
	ids := s.containers(t)
	if len(ids) != 4 {
		t.Fatalf("containers of %d services, want 4: %v", len(ids), ids)
	}
	for service, id := range ids {
		inspected, err := s.docker.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := inspected.Container
		if !c.HostConfig.ReadonlyRootfs || strings.Join(c.HostConfig.CapDrop, " ") != "ALL" || len(c.HostConfig.CapAdd) > 0 ||
			c.HostConfig.Privileged || !strings.HasPrefix(strings.Join(c.HostConfig.SecurityOpt, " "), "no-new-privileges") {
			t.Errorf("%s: read-only root %v, capabilities -%v +%v, privileged %v, %v", service, c.HostConfig.ReadonlyRootfs,
				c.HostConfig.CapDrop, c.HostConfig.CapAdd, c.HostConfig.Privileged, c.HostConfig.SecurityOpt)
		}
		if user, _, _ := strings.Cut(c.Config.User, ":"); !regexp.MustCompile(`^[1-9]\d*$`).MatchString(user) {
			t.Errorf("%s runs as %q, not as a numbered user without rights", service, c.Config.User)
		}
		if c.State.Health == nil || c.State.Health.Status != "healthy" {
			t.Errorf("%s is not healthy: %+v", service, c.State.Health)
		}
		for port, bindings := range c.NetworkSettings.Ports {
			for _, b := range bindings {
				if !b.HostIP.IsLoopback() {
					t.Errorf("%s: port %v is open to other machines at %v", service, port, b.HostIP)
				}
			}
		}
	}
}

// token returns a bearer token of a tenant, signed with the secret in the example.
func (s *stack) token(t *testing.T, tenant string) map[string]string {
	t.Helper()
	secret, err := os.ReadFile(filepath.Join(s.dir, "examples/compose/sentinel/secrets/jwt"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": "somebody", "tenant": tenant, "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(strings.TrimSuffix(string(secret), "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"Authorization": "Bearer " + token}
}

// said is an answer in a few words: its status, why it was refused, and whether the ratelimit filter had a say.
func said(p page) string {
	words := []string{fmt.Sprint(p.status)}
	if reason := p.header.Get("X-Sentinel-Reason"); reason != "" {
		words = append(words, reason)
	}
	if p.header.Get("X-Ratelimit-Limit") != "" {
		words = append(words, "by ratelimit")
	}
	return strings.Join(words, " ")
}

// tenants has three at once for each tenant, counted by either filter, and nothing for strangers.
func (s *stack) tenants(t *testing.T) {
	for _, tt := range []struct {
		path   string
		header map[string]string
		want   string
	}{
		{"/v1/orders", nil, "401 UNAUTHENTICATED"},
		{"/v1/orders", map[string]string{"x-sentinel-tenant": "acme"}, "401 UNAUTHENTICATED"},
		{"/v1/orders", s.token(t, "acme"), "200"},
		{"/v1/orders", s.token(t, "acme"), "200"},
		{"/v1/orders", s.token(t, "acme"), "200"},
		{"/v1/orders", s.token(t, "acme"), "429 RATE_LIMITED"},
		{"/v1/orders", s.token(t, "globex"), "200"},
		{"/v1/search", s.token(t, "acme"), "200 by ratelimit"},
		{"/v1/search", s.token(t, "acme"), "200 by ratelimit"},
		{"/v1/search", s.token(t, "acme"), "200 by ratelimit"},
		{"/v1/search", s.token(t, "acme"), "429 RATE_LIMITED by ratelimit"},
		{"/nowhere", nil, "401 UNAUTHENTICATED"},
		{"/nowhere", s.token(t, "acme"), "404 UNKNOWN_ENDPOINT"},
	} {
		if got := said(get(t, s.url+tt.path, tt.header)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.path, got, tt.want)
		}
	}
	if p := get(t, s.url+"/v1/orders", s.token(t, "initech")); p.header.Get("X-Upstream-Tenant") != "initech" {
		t.Errorf("the upstream was told %q, want initech", p.header.Get("X-Upstream-Tenant"))
	}
}

// frozenRedis holds answers to Envoy's own patience, and admissions to the emergency cap.
func (s *stack) frozenRedis(t *testing.T) {
	redis := s.containers(t)["redis"]
	if _, err := s.docker.ContainerPause(t.Context(), redis, client.ContainerPauseOptions{}); err != nil {
		t.Fatal(err)
	}
	const emergencyCapacity = 3
	admitted, longest := 0, time.Duration(0)
	for range 10 {
		orders, catalog := get(t, s.url+"/v1/orders", s.token(t, "hooli")), get(t, s.url+"/v1/catalog", nil)
		if got := said(orders); got != "503 FAIL_CLOSED" && got != "503 CIRCUIT_OPEN" {
			t.Errorf("orders, which fail closed: %s", got)
		}
		switch got := said(catalog); got {
		case "200":
			admitted++
		case "429 EMERGENCY_LOCAL_LIMIT":
		default:
			t.Errorf("catalog, which fails open: %s", got)
		}
		longest = max(longest, orders.took, catalog.took)
	}
	t.Logf("20 requests answered, the slowest after %.0f ms; fail_open admitted %d of 10", longest.Seconds()*1000, admitted)
	if admitted == 0 || admitted > emergencyCapacity {
		t.Errorf("%d admitted under an emergency cap of %d", admitted, emergencyCapacity)
	}
	if longest > time.Second {
		t.Errorf("the slowest answer took %v: somebody waited for Redis", longest)
	}
	if _, err := s.docker.ContainerUnpause(t.Context(), redis, client.ContainerUnpauseOptions{}); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, "Redis decides again", func() bool { return said(get(t, s.url+"/v1/catalog", nil)) == "200" })
	t.Logf("thawed: Redis decides again after %.2f s", took.Seconds())
	if got := said(get(t, s.url+"/v1/login", nil)); got != "429 RATE_LIMITED" {
		t.Errorf("login after the outage: %s, want 429 RATE_LIMITED: its bucket was used up before", got)
	}
}

// restartedSentinel shows that a replaced process finds the buckets where the last one left them.
func (s *stack) restartedSentinel(t *testing.T) {
	begun := time.Now()
	s.sh(t, "docker compose -f examples/docker-compose.yaml restart sentinel-rls")
	eventually(t, "Envoy asks the new process", func() bool { return get(t, s.url+"/v1/login", nil).status != http.StatusServiceUnavailable })
	t.Logf("restarted in %.1f s", time.Since(begun).Seconds())
	if got := said(get(t, s.url+"/v1/login", nil)); got != "429 RATE_LIMITED" {
		t.Errorf("login after the restart: %s, want 429 RATE_LIMITED", got)
	}
}

// manual runs the blocks of docs/containers.md that say what they print.
func (s *stack) manual(t *testing.T) {
	text, err := os.ReadFile("../../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)<!-- prints: ([\\d ]+) -->\\s*```sh\\n(.*?)\\n```").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks say what they print, want 2", len(blocks))
	}
	for _, block := range blocks {
		printed := s.sh(t, string(block[2]))
		if got := statuses(printed); got != string(block[1]) {
			t.Errorf("printed %q, want %q\n%s\n%s", got, block[1], block[2], printed)
		}
	}
}

// editedPolicy shows that what an operator saves on this machine reaches the running container, and that a mistake does not.
func (s *stack) editedPolicy(t *testing.T) {
	file := filepath.Join(s.dir, "examples/compose/sentinel/policies/shop.yaml")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	save := func(old, text string) {
		t.Helper()
		after := strings.Replace(string(before), old, text, 1)
		if after == string(before) {
			t.Fatalf("shop.yaml has no %q", old)
		}
		replacement := file + "~" // as most editors save
		if err := errors.Join(os.WriteFile(replacement, []byte(after), 0o644), os.Rename(replacement, file)); err != nil {
			t.Fatal(err)
		}
	}
	save("limit: 5,", "limit: 50,")
	took := eventually(t, "the raised limit admits", func() bool { return said(get(t, s.url+"/v1/login", nil)) == "200" })
	t.Logf("the raised limit was in force after %.1f s", took.Seconds())

	save("limit: 5,", "limmit: 5,")
	admin := s.ports.Replace("http://127.0.0.1:9091")
	eventually(t, "the mistake is noticed", func() bool { return strings.Contains(get(t, admin+"/readyz", nil).body, "policies_stale") })
	if got := said(get(t, s.url+"/v1/login", nil)); got != "200" {
		t.Errorf("login with a mistake in the file: %s, want 200 by the last good policies", got)
	}
}
