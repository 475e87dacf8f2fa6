package policyfile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
)

// watched is a directory with a watcher whose time is the bubble's.
type watched struct {
	*testing.T
	dir string
	now chan os.Signal

	mu      sync.Mutex
	applied []string // what was applied: file=content …, or the error
}

// take returns what was applied since the last call.
func (w *watched) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	applied := w.applied
	w.applied = nil
	return applied
}

// watch runs a watcher that looks every second and waits two seconds for contents to settle.
func watch(t *testing.T, dir string) *watched {
	t.Helper()
	w := &watched{T: t, dir: dir, now: make(chan os.Signal, 1)}
	files, err := policyfile.Read([]string{dir})
	watcher := policyfile.Watcher{
		Paths: []string{dir}, Now: w.now, Applied: files, AppliedErr: err,
		Apply: func(files []descriptors.File, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.applied = append(w.applied, text(dir, files, err))
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- watcher.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	synctest.Wait()
	return w
}

func text(dir string, files []descriptors.File, err error) string {
	var parts []string
	for _, f := range files {
		parts = append(parts, strings.TrimPrefix(f.Name, dir+"/")+"="+string(f.Data))
	}
	if err != nil {
		parts = append(parts, "error: "+strings.ReplaceAll(err.Error(), dir, "DIR"))
	}
	return strings.Join(parts, " ")
}

// pass lets time pass and says what must have been applied in it.
func (w *watched) pass(d time.Duration, want ...string) {
	w.Helper()
	time.Sleep(d)
	synctest.Wait()
	if applied := w.take(); !slices.Equal(applied, want) {
		w.Errorf("after %v applied %q, want %q", d, applied, want)
	}
}

func (w *watched) write(name, data string) { write(w.T, filepath.Join(w.dir, name), data) }

func TestCFG_12_WhatIsThereAtLast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), "one")
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, dir)
		w.pass(time.Minute)

		w.write("shop.yaml", "half of ")
		w.pass(1500 * time.Millisecond)
		w.write("shop.yaml", "half of two, and its other half")
		w.pass(2400 * time.Millisecond)
		w.pass(time.Second, "shop.yaml=half of two, and its other half")

		// An editor writes beside it and renames over it.
		w.write("shop.yaml~", "three")
		w.write(".shop.yaml.swp", "three")
		if err := os.Rename(filepath.Join(dir, "shop.yaml~"), filepath.Join(dir, "shop.yaml")); err != nil {
			t.Fatal(err)
		}
		w.pass(4*time.Second, "shop.yaml=three")

		// Modes and times are no content.
		if err := os.Chmod(filepath.Join(dir, "shop.yaml"), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, "shop.yaml"), time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)

		// A hundred edits in a second; and the same size and time as before hide nothing.
		for i := range 100 {
			w.write("shop.yaml", fmt.Sprintf("%05d", i))
			time.Sleep(10 * time.Millisecond)
		}
		if err := os.Chtimes(filepath.Join(dir, "shop.yaml"), time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		w.pass(4*time.Second, "shop.yaml=00099")

		// Changed and changed back in time: nothing happened.
		w.write("shop.yaml", "oops")
		w.pass(1500 * time.Millisecond)
		w.write("shop.yaml", "00099")
		w.pass(time.Minute)
	})
}

func TestCFG_12_OnRequestAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), "one")
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, dir)
		w.write("shop.yaml", "two")
		w.now <- syscall.SIGHUP
		w.pass(0, "shop.yaml=two")
		w.pass(time.Minute)
		w.now <- syscall.SIGHUP // nothing has changed: whoever asks is answered all the same
		w.pass(0, "shop.yaml=two")
		w.pass(time.Minute)
	})
}

// A file that is written anew at every look is not ignored for ever.
func TestCFG_12_WhatNeverSettles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), "one")
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, dir)
		for i := range 59 {
			w.write("shop.yaml", fmt.Sprint(i))
			w.pass(time.Second)
		}
		w.write("shop.yaml", "60")
		w.pass(time.Second, "shop.yaml=60")
	})
}

func TestCFG_10_WhatIsWrongIsSaidOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), "one")
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, dir)
		if err := os.Remove(filepath.Join(dir, "shop.yaml")); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute, "error: DIR: no policy file in this directory; add a *.yaml, *.yml or *.json file, or name another path")
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute, "error: DIR: no such file or directory; name an existing file or directory")
		w.write("shop.yaml", "one")
		w.pass(time.Minute, "shop.yaml=one")
	})
}

// What was wrong before it began to watch was said then.
func TestCFG_10_WhatWasWrongAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, dir)
		w.pass(time.Minute)
		w.write("shop.yaml", "one")
		w.pass(time.Minute, "shop.yaml=one")
	})
}

// A mounted ConfigMap is switched by renaming a link. The files are seen once, the change is seen once, and there is no
// moment without files.
func TestCFG_11_ConfigMapSwap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount := func(version, data string) {
		write(t, filepath.Join(dir, "..2026_"+version, "rules.yaml"), data)
		link := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink("..2026_"+version, link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("a", "one")
	if err := os.Symlink("..data/rules.yaml", filepath.Join(dir, "rules.yaml")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, dir)
		w.pass(time.Minute)
		mount("b", "two")
		if err := os.RemoveAll(filepath.Join(dir, "..2026_a")); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute, "rules.yaml=two")
		mount("c", "two") // the same content again
		w.pass(time.Minute)
	})
}

// While a directory is swapped as fast as possible, no steady read mixes two of its versions.
func TestCFG_11_NoMixOfTwoVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const files = 8
	for i := range files {
		if err := os.Symlink(fmt.Sprintf("..data/%d.yaml", i), filepath.Join(dir, fmt.Sprintf("%d.yaml", i))); err != nil {
			t.Fatal(err)
		}
		for _, version := range []string{"a", "b"} {
			write(t, filepath.Join(dir, "..2026_"+version, fmt.Sprintf("%d.yaml", i)), version)
		}
	}
	swap := func(version string) error {
		link := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink("..2026_"+version, link); err != nil {
			return err
		}
		return os.Rename(link, filepath.Join(dir, "..data"))
	}
	if err := swap("a"); err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			case <-time.After(5 * time.Millisecond):
			}
			if err := swap([]string{"b", "a"}[i%2]); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 300 {
		got, err := policyfile.ReadSteady([]string{dir})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got {
			if string(f.Data) != string(got[0].Data) {
				t.Fatalf("mixed: %s", text(dir, got, nil))
			}
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
