package run_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/run"
)

// diary is what happened, in order.
type diary struct {
	mu    sync.Mutex
	began time.Time
	lines []string
}

func (d *diary) note(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, time.Since(d.began).String()+" "+what)
}

// part runs until it is stopped and then takes a while.
func (d *diary) part(name string, stopTakes time.Duration) run.Part {
	return run.Part{Name: name, Run: func(ctx context.Context) error {
		d.note(name + " started")
		<-ctx.Done()
		time.Sleep(stopTakes)
		d.note(name + " stopped")
		return ctx.Err()
	}}
}

var errSignal = errors.New("terminated")

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// An hour of service, then a signal: listeners, workers and sinks stop one after the other, each waited for.
func TestTiersStopInOrderAfterASignal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{began: time.Now()}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Hour, func() { cancel(errSignal) })
		err := run.Tiers(
			ctx, discard(),
			run.Tier{Name: "listeners", Bound: 10 * time.Second, Parts: []run.Part{d.part("grpc", 3*time.Second), d.part("other", time.Second)}},
			run.Tier{Name: "workers", Bound: 10 * time.Second, Parts: []run.Part{d.part("store", 2*time.Second)}},
			run.Tier{Name: "sinks", Bound: 10 * time.Second, Parts: []run.Part{d.part("denials", 0)}},
		)
		if err != nil {
			t.Errorf("a clean stop returned %v", err)
		}
		slices.Sort(d.lines[:4]) // they start together
		want := []string{
			"0s denials started", "0s grpc started", "0s other started", "0s store started",
			"1h0m1s other stopped", "1h0m3s grpc stopped", "1h0m5s store stopped", "1h0m5s denials stopped",
		}
		if !slices.Equal(d.lines, want) {
			t.Errorf("diary:\n%s\nwant:\n%s", strings.Join(d.lines, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestAnyPartsReturnStopsEverything(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	for name, part := range map[string]struct {
		run  func(context.Context) error
		want []error
		text string
	}{
		"with an error":    {func(context.Context) error { return broken }, []error{broken, run.ErrEnded}, "worker: ended by itself: disk on fire"},
		"without an error": {func(context.Context) error { return nil }, []error{run.ErrEnded}, "worker: ended by itself"},
		"with a panic":     {func(context.Context) error { panic("no such thing") }, nil, "worker: panic: no such thing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &diary{began: time.Now()}
				err := run.Tiers(
					t.Context(), discard(),
					run.Tier{Name: "listeners", Bound: time.Minute, Parts: []run.Part{d.part("grpc", time.Second)}},
					run.Tier{Name: "workers", Bound: time.Minute, Parts: []run.Part{{Name: "worker", Run: func(ctx context.Context) error {
						time.Sleep(time.Minute)
						return part.run(ctx)
					}}}},
					run.Tier{Name: "sinks", Bound: time.Minute, Parts: []run.Part{d.part("denials", time.Second)}},
				)
				if err == nil || err.Error() != part.text {
					t.Errorf("error %q, want %q", err, part.text)
				}
				for _, want := range part.want {
					if !errors.Is(err, want) {
						t.Errorf("error %v does not wrap %v", err, want)
					}
				}
				want := []string{"1m1s grpc stopped", "1m2s denials stopped"}
				if got := d.lines[2:]; !slices.Equal(got, want) {
					t.Errorf("stops %v, want %v", got, want)
				}
			})
		})
	}
}

func TestAPanicLeavesItsStackInTheLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run.Tiers(t.Context(), slog.New(slog.NewTextHandler(&out, nil)),
		run.Tier{Name: "workers", Bound: time.Minute, Parts: []run.Part{{Name: "worker", Run: func(context.Context) error { panic("boom") }}}})
	if err == nil {
		t.Error("a panic is no clean stop")
	}
	for _, want := range []string{"part=worker", "panic=boom", "run_test.go"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, out.String())
		}
	}
}

// A tier that hangs costs its bound and no more, and the tiers behind it still stop.
func TestAStuckTierIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{began: time.Now()}
		release := make(chan struct{})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errSignal) })
		err := run.Tiers(
			ctx, discard(),
			run.Tier{Name: "listeners", Bound: 10 * time.Second, Parts: []run.Part{{Name: "grpc", Run: func(context.Context) error {
				<-release
				return nil
			}}}},
			run.Tier{Name: "sinks", Bound: 10 * time.Second, Parts: []run.Part{d.part("denials", time.Second)}},
		)
		close(release)
		if !errors.Is(err, run.ErrStuck) || err.Error() != "listeners: did not stop in time: 10s" {
			t.Errorf("error %v, want one that says which tier was stuck", err)
		}
		if want := "1m11s denials stopped"; d.lines[1] != want {
			t.Errorf("diary ends with %q, want %q", d.lines[1], want)
		}
	})
}

// What fails while stopping is reported, all of it; a part that returns its context's error stopped cleanly.
func TestErrorsWhileStoppingAreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errSignal) })
		failing := func(name string) run.Part {
			return run.Part{Name: name, Run: func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("flush refused")
			}}
		}
		err := run.Tiers(
			ctx, discard(),
			run.Tier{Name: "workers", Bound: time.Second, Parts: []run.Part{failing("a"), failing("b")}},
			run.Tier{Name: "sinks", Bound: time.Second, Parts: []run.Part{failing("c")}},
		)
		if err == nil || err.Error() != "a: flush refused\nb: flush refused\nc: flush refused" {
			t.Errorf("error %q, want the three of them", err)
		}
	})
}
