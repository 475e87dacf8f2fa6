package containers

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	binary   = "/usr/local/bin/sentinel-rls"
	maxImage = 25 << 20 // bytes, uncompressed
)

func TestImageIsSmallAndDeclaresItself(t *testing.T) {
	docker := engine(t)
	image, err := docker.ImageInspect(t.Context(), imageUnderTest())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %.1f MiB", imageUnderTest(), float64(image.Size)/(1<<20))
	if image.Size >= maxImage {
		t.Errorf("the image has %d bytes, not under %d", image.Size, maxImage)
	}
	if got := image.Config.User; got != "65532:65532" {
		t.Errorf("it runs as %q, not as a numbered user without rights", got)
	}
	if h := image.Config.Healthcheck; h == nil || !slices.Equal(h.Test, []string{"CMD", binary, "healthcheck"}) {
		t.Errorf("HEALTHCHECK %+v, want the binary's own healthcheck without a shell", h)
	}
}

// The image holds the binary and the TLS roots: no shell, no package manager, no secret, nothing to patch.
func TestImageHoldsNothingElse(t *testing.T) {
	t.Parallel()
	docker := engine(t)
	c := run(t, imageUnderTest(), testcontainers.WithNoStart())
	export, err := docker.ContainerExport(t.Context(), c.GetContainerID(), client.ContainerExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer export.Close()
	var got []string
	for files := tar.NewReader(export); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if file.Typeflag == tar.TypeReg && file.Size > 0 { // the engine adds empty ones to mount over
			got = append(got, file.Name)
		}
	}
	slices.Sort(got)
	if want := []string{"etc/ssl/certs/ca-certificates.crt", strings.TrimPrefix(binary, "/")}; !slices.Equal(got, want) {
		t.Errorf("the image holds %q, want %q", got, want)
	}
}

// Whoever can run a command in a container must not be able to make tokens there.
func TestImageLeavesDevelopmentCommandsOut(t *testing.T) {
	t.Parallel()
	docker := engine(t)
	c := run(t, imageUnderTest(), testcontainers.WithCmd("dev", "token"),
		testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(startTimeout)))
	state, err := docker.ContainerInspect(t.Context(), c.GetContainerID(), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const usage = 2
	if code := state.Container.State.ExitCode; code != usage {
		t.Errorf("`dev token` ended with %d, want %d: it is no command\n%s", code, usage, output(c))
	}
}

// With a read-only root, without capabilities, as a user of no name: it serves, says so, and stops in good order.
func TestContainerServesAndStops(t *testing.T) {
	t.Parallel()
	docker := engine(t)
	begun := time.Now()
	c := start(t, testcontainers.WithEnv(map[string]string{"SENTINEL_SHUTDOWN_DRAIN_DELAY": "3s"}))
	t.Logf("healthy by its own HEALTHCHECK %.1f s after `docker run`", time.Since(begun).Seconds())

	t.Run("healthcheck says yes", func(t *testing.T) {
		if code, text := exec(t, c, binary, "healthcheck"); code != 0 {
			t.Errorf("exit code %d, want 0: %s", code, text)
		}
	})
	t.Run("healthcheck says no where nothing listens", func(t *testing.T) {
		code, text := exec(t, c, binary, "healthcheck", "--grpc", "127.0.0.1:1")
		if code != 1 {
			t.Errorf("exit code %d, want 1: %s", code, text)
		}
		t.Log(strings.TrimSpace(text))
	})
	t.Run("limits", func(t *testing.T) {
		conn := dial(t, endpoint(t, c, portGRPC))
		denied := 0
		for range 20 { // the built-in endpoint: five, and one more each second
			if answer := ask(t, conn, "demo", "demo", "alice"); !answer.allowed {
				denied++
			}
		}
		if denied == 0 || denied > 15 {
			t.Errorf("20 calls at once: %d over limit, want 1 to 15", denied)
		}
	})
	t.Run("metrics are for everyone, diagnostics are not", func(t *testing.T) {
		admin := "http://" + endpoint(t, c, portAdmin)
		for path, want := range map[string]int{
			"/metrics": http.StatusOK, "/readyz": http.StatusOK,
			"/policies": http.StatusUnauthorized, "/debug/pprof/": http.StatusUnauthorized,
		} {
			if got := get(t, admin+path, nil).status; got != want {
				t.Errorf("GET %s: %d, want %d", path, got, want)
			}
		}
	})
	t.Run("SIGTERM", func(t *testing.T) {
		id := c.GetContainerID()
		if _, err := docker.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "TERM"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "healthcheck says no while it drains", func() bool {
			code, _ := exec(t, c, binary, "healthcheck")
			return code == 1
		})
		ended := docker.ContainerWait(t.Context(), id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case end := <-ended.Result:
			if end.StatusCode != 0 {
				t.Errorf("exit code %d, want 0", end.StatusCode)
			}
		case err := <-ended.Error:
			t.Error(err)
		case <-time.After(startTimeout):
			t.Errorf("it still runs after %v", startTimeout)
		}
	})
}
