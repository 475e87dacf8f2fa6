package policyfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
)

func write(t *testing.T, path, data string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadTakesFilesAndWhatADirectoryShows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yaml"), "b")
	write(t, filepath.Join(dir, "a.json"), "a")
	write(t, filepath.Join(dir, "c.yml"), "c")
	write(t, filepath.Join(dir, "README.txt"), "no policy")
	write(t, filepath.Join(dir, "old.yaml.bak"), "no policy")
	write(t, filepath.Join(dir, ".hidden.yaml"), "no policy")
	write(t, filepath.Join(dir, "below", "d.yaml"), "not recursive")
	write(t, filepath.Join(dir, "folder.yaml", "e.yaml"), "not recursive")
	alone := write(t, filepath.Join(t.TempDir(), "alone.conf"), "alone")

	got, err := policyfile.Read([]string{alone, dir + "/", filepath.Join(dir, "b.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	want := []descriptors.File{
		{Name: alone, Data: []byte("alone")},
		{Name: filepath.Join(dir, "a.json"), Data: []byte("a")},
		{Name: filepath.Join(dir, "b.yaml"), Data: []byte("b")},
		{Name: filepath.Join(dir, "c.yml"), Data: []byte("c")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// A mounted ConfigMap: every visible file is a link into ..data, which is a link to a dated directory.
func TestReadTakesAMountedConfigMapOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "..2026_11_30_12_00_00.1", "shop.yaml"), "shop")
	for link, to := range map[string]string{"..data": "..2026_11_30_12_00_00.1", "shop.yaml": "..data/shop.yaml"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := policyfile.Read([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	want := []descriptors.File{{Name: filepath.Join(dir, "shop.yaml"), Data: []byte("shop")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestReadReportsEveryPathInOneLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop.yaml")
	if err := os.Symlink("loop.yaml", loop); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "mounted", "dangling.yaml")
	write(t, filepath.Join(dir, "mounted", "good.yaml"), "good")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	large := write(t, filepath.Join(dir, "large.yaml"), strings.Repeat("#", descriptors.MaxDropInFileBytes+1))
	missing := filepath.Join(dir, "missing.yaml")

	files, err := policyfile.Read([]string{missing, empty, pipe, loop, filepath.Dir(dangling), large})
	if err == nil || files != nil {
		t.Fatalf("Read = %v, %v; want no files and an error", files, err)
	}
	want := []string{
		missing + ": no such file or directory; name an existing file or directory",
		empty + ": no policy file in this directory; add a *.yaml, *.yml or *.json file, or name another path",
		pipe + ": not a regular file; name a policy file",
		loop + ": too many levels of symbolic links; check its permissions",
		dangling + ": no such file or directory; name an existing file or directory",
		large + ": more than 8388608 bytes; split it: one domain may stand in several files",
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestReadReportsWhatItMayNotOpen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may open everything")
	}
	path := write(t, filepath.Join(t.TempDir(), "secret.yaml"), "x")
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	_, err := policyfile.Read([]string{path})
	if want := path + ": permission denied; check its permissions"; err == nil || err.Error() != want {
		t.Errorf("Read = %v; want %s", err, want)
	}
}

func TestReadOfALargestFile(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "full.yaml"), strings.Repeat("#", descriptors.MaxDropInFileBytes))
	files, err := policyfile.Read([]string{path})
	if err != nil || len(files) != 1 || len(files[0].Data) != descriptors.MaxDropInFileBytes {
		t.Errorf("Read = %d files, %v; want the whole file", len(files), err)
	}
}

func TestReadOfTooMuchInAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 9 {
		path := write(t, filepath.Join(dir, string(rune('a'+i))+".yaml"), "")
		if err := os.Truncate(path, descriptors.MaxDropInFileBytes); err != nil {
			t.Fatal(err)
		}
	}
	files, err := policyfile.Read([]string{dir})
	want := filepath.Join(dir, "i.yaml") + ": the policy files up to this one hold more than 67108864 bytes together; name fewer"
	if files != nil || err == nil || err.Error() != want {
		t.Errorf("Read = %d files, %v; want %s", len(files), err, want)
	}
	if err := os.Remove(filepath.Join(dir, "i.yaml")); err != nil {
		t.Fatal(err)
	}
	if files, err := policyfile.Read([]string{dir}); len(files) != 8 || err != nil {
		t.Errorf("Read of as much as is allowed = %d files, %v", len(files), err)
	}
}

func TestReadOfNothing(t *testing.T) {
	t.Parallel()
	if files, err := policyfile.Read(nil); files != nil || err != nil {
		t.Errorf("Read(nil) = %v, %v; want nothing: descriptors.Parse refuses an empty list", files, err)
	}
}
