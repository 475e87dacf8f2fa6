package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
)

// runWriter runs w; the returned function stops it and waits for its end.
func runWriter(t *testing.T, w *telemetry.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
}

func TestLoggerFormats(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.FormatJSON, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("hidden")
	log.Info("shown", "took", 1500*time.Millisecond, "bad", "a\xffb\n")
	got := records(t, out.String())
	if len(got) != 1 || got[0]["took"] != 1.5 || got[0]["bad"] != "a\uFFFDb\n" {
		t.Errorf("records %v, want one with took 1.5 and repaired text", got)
	}
	out.Reset()
	if log, err = telemetry.NewLogger(&out, telemetry.FormatText, slog.LevelDebug); err != nil {
		t.Fatal(err)
	}
	log.Debug("shown", "name", "two words")
	if !strings.Contains(out.String(), `level=DEBUG msg=shown name="two words"`) {
		t.Errorf("text log: %q", out.String())
	}
	if _, err := telemetry.NewLogger(&out, "xml", slog.LevelInfo); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("format xml: error %v, want one that names it", err)
	}
}

func TestWriterKeepsOrderThroughItsLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := telemetry.NewWriter(&out, 10)
		line := []byte("before Run\n")
		write(t, w, line)
		copy(line, "overwritten") // the caller may reuse its buffer
		stop := runWriter(t, w)
		synctest.Wait()
		write(t, w, []byte("while it runs\n"))
		synctest.Wait()
		stop()
		write(t, w, []byte("after Run\n"))
		if want := "before Run\nwhile it runs\nafter Run\n"; out.String() != want {
			t.Errorf("wrote %q, want %q", out.String(), want)
		}
	})
}

func write(t *testing.T, w *telemetry.Writer, line []byte) {
	t.Helper()
	if n, err := w.Write(line); n != len(line) || err != nil {
		t.Errorf("Write(%q) = %d, %v", line, n, err)
	}
}

func TestWriterLosesNothingThatItTookWhileItStops(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := telemetry.NewWriter(&out, 100)
	stop := runWriter(t, w)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				if _, err := fmt.Fprintf(w, "%d/%d\n", i, j); err == nil {
					mu.Lock()
					taken++
					mu.Unlock()
				} else if !errors.Is(err, telemetry.ErrLogFull) {
					t.Errorf("Write: %v", err)
				}
			}
		})
	}
	stop()
	wg.Wait()
	if got := strings.Count(out.String(), "\n"); got != taken || uint64(1600-taken) != w.Lost() {
		t.Errorf("%d lines written, %d taken, %d lost; want taken = written and 1600 in all", got, taken, w.Lost())
	}
}

// A reader that never comes back: Run stays stuck and is left behind, and whoever logs then still does not wait.
func TestWriterStuckAtTheStopHoldsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := &stuckWriter{release: make(chan struct{})}
		w := telemetry.NewWriter(stuck, 2)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		write(t, w, []byte("a\n"))
		synctest.Wait()
		cancel()
		write(t, w, []byte("b\n"))
		write(t, w, []byte("c\n"))
		if _, err := w.Write([]byte("d\n")); !errors.Is(err, telemetry.ErrLogFull) {
			t.Errorf("Write into a full queue: %v, want ErrLogFull", err)
		}
		close(stuck.release)
		<-done
		if stuck.out.String() != "a\nb\nc\n" {
			t.Errorf("wrote %q", stuck.out.String())
		}
	})
}
