package containers

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"
)

// Where gRPC and the admin server listen in the image.
const (
	portGRPC  = "8081/tcp"
	portAdmin = "9091/tcp"
)

const (
	startTimeout = 60 * time.Second
	soon         = 10 * time.Second // by then what recovers has recovered
	poll         = 20 * time.Millisecond
)

// testcontainers-go tells of every step that it takes; what a test has to say would drown.
func TestMain(m *testing.M) {
	log.SetDefault(log.NewNoopLogger())
	os.Exit(m.Run())
}

func imageUnderTest() string { return cmp.Or(os.Getenv("IMAGE_SENTINEL"), "sentinel-rls:dev") }
func imageRedis() string     { return cmp.Or(os.Getenv("IMAGE_REDIS"), "redis:7.4-alpine") }

// skip skips a test that lacks something it needs, or fails it where REQUIRE_CONTAINERS is set.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_CONTAINERS") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// engine returns a client of the Docker engine. Without one, or without the image under test, the test is skipped.
func engine(t *testing.T) *client.Client {
	t.Helper()
	provider, err := testcontainers.ProviderDocker.GetProvider()
	if err == nil {
		defer provider.Close()
		err = provider.Health(t.Context())
	}
	if err != nil {
		skip(t, "no Docker engine answers: %v", err)
	}
	docker, err := testcontainers.NewDockerClientWithOpts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { docker.Close() })
	if _, err := docker.ImageInspect(t.Context(), imageUnderTest()); err != nil {
		skip(t, "the image under test is missing (make image): %v", err)
	}
	return docker.Client
}

// hardened takes from a container everything that sentinel-rls can do without.
func hardened(h *container.HostConfig) {
	h.ReadonlyRootfs = true
	h.CapDrop = []string{"ALL"}
	h.SecurityOpt = []string{"no-new-privileges:true"}
}

// start starts a hardened container of the image under test and returns once its own HEALTHCHECK says that it is healthy.
func start(t *testing.T, options ...testcontainers.ContainerCustomizer) *testcontainers.DockerContainer {
	t.Helper()
	options = append([]testcontainers.ContainerCustomizer{
		testcontainers.WithExposedPorts(portGRPC, portAdmin),
		testcontainers.WithHostConfigModifier(hardened),
		testcontainers.WithConfigModifier(func(c *container.Config) {
			c.Healthcheck = &container.HealthConfig{Interval: time.Second} // the image's own, asked more often
		}),
		testcontainers.WithWaitStrategy(wait.ForHealthCheck().WithStartupTimeout(startTimeout)),
	}, options...)
	return run(t, imageUnderTest(), options...)
}

func run(t *testing.T, image string, options ...testcontainers.ContainerCustomizer) *testcontainers.DockerContainer {
	t.Helper()
	c, err := testcontainers.Run(t.Context(), image, options...)
	testcontainers.CleanupContainer(t, c, testcontainers.StopTimeout(0))
	if err != nil {
		t.Fatalf("%v\n%s", err, output(c))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of %s:\n%s", image, output(c))
		}
	})
	return c
}

// output returns what a container printed.
func output(c *testcontainers.DockerContainer) string {
	if c == nil {
		return ""
	}
	logs, err := c.Logs(context.Background())
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	text, _ := io.ReadAll(logs)
	return string(text)
}

// exec runs a command in a container and returns its exit code and what it printed.
func exec(t *testing.T, c *testcontainers.DockerContainer, command ...string) (code int, text string) {
	t.Helper()
	code, out, err := c.Exec(t.Context(), command, tcexec.Multiplexed())
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	printed, err := io.ReadAll(out)
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	return code, string(printed)
}

// endpoint returns the host:port under which this machine reaches a container's port.
func endpoint(t *testing.T, c *testcontainers.DockerContainer, port string) string {
	t.Helper()
	address, err := c.PortEndpoint(t.Context(), port, "")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// eventually returns once ok is true; what names what is waited for.
func eventually(t *testing.T, what string, ok func() bool) (took time.Duration) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(poll) {
		if ok() {
			return time.Since(begun)
		}
		if time.Since(begun) > soon {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// write writes files that every user may read into a directory that a container can mount, and returns its path.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// mount shows a directory of this machine to a container, read-only.
func mount(dir, place string) testcontainers.CustomizeRequestOption {
	return testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
		hardened(h)
		h.Binds = []string{fmt.Sprintf("%s:%s:ro", dir, place)}
	})
}
