package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Log formats.
const (
	FormatJSON = "json" // one JSON object a line
	FormatText = "text" // key=value, for a terminal
)

// NewLogger returns a logger that writes to w, one Write per record. Durations are numbers of seconds.
func NewLogger(w io.Writer, format string, level slog.Level) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: seconds}
	switch format {
	case FormatJSON:
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	case FormatText:
		return slog.New(slog.NewTextHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q is neither %s nor %s", format, FormatJSON, FormatText)
}

// seconds shows durations in the unit that metrics use; slog's JSON would show nanoseconds.
func seconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(float64(a.Value.Duration()) / float64(time.Second))
	}
	return a
}

// ErrLogFull means that a line was lost because too many were waiting.
var ErrLogFull = errors.New("log queue is full")

// Writer keeps whoever logs from waiting for whoever reads the log: a stderr that nobody drains would otherwise stop
// requests, and the breaker while it changes state. Lines wait in a bounded queue for Run; a line that finds the queue
// full is lost and counted. After Run has returned, lines are written at once. Safe for concurrent use.
type Writer struct {
	out   io.Writer
	queue chan []byte
	lost  atomic.Uint64

	mode   sync.RWMutex // guards direct; held for reading while a line is queued, so that Run's last look misses none
	direct bool
	outMu  sync.Mutex // held around each write to out
}

// NewWriter returns a Writer over out in whose queue at most lines wait.
func NewWriter(out io.Writer, lines int) *Writer {
	return &Writer{out: out, queue: make(chan []byte, lines)}
}

// Write queues one line. The error is ErrLogFull, or after Run that of the underlying writer.
func (w *Writer) Write(line []byte) (int, error) {
	w.mode.RLock()
	defer w.mode.RUnlock()
	if w.direct {
		return w.write(line)
	}
	select {
	case w.queue <- bytes.Clone(line):
		return len(line), nil
	default:
		w.lost.Add(1)
		return 0, ErrLogFull
	}
}

// Lost returns how many lines found the queue full.
func (w *Writer) Lost() uint64 { return w.lost.Load() }

// Run writes until ctx is done, then what is queued by then. Errors of the underlying writer are ignored: the log is
// where they would go. One Run per Writer.
func (w *Writer) Run(ctx context.Context) error {
	for {
		select {
		case line := <-w.queue:
			_, _ = w.write(line)
		case <-ctx.Done():
			w.drain() // outside the lock: when out is stuck, later lines must still not wait
			w.mode.Lock()
			w.direct = true
			w.mode.Unlock()
			w.drain()
			return nil
		}
	}
}

func (w *Writer) drain() {
	for {
		select {
		case line := <-w.queue:
			_, _ = w.write(line)
		default:
			return
		}
	}
}

func (w *Writer) write(line []byte) (int, error) {
	w.outMu.Lock()
	defer w.outMu.Unlock()
	return w.out.Write(line)
}
