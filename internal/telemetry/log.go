package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Log formats.
const (
	FormatJSON = "json" // one JSON object a line
	FormatText = "text" // key=value, for a terminal
)

// NewLogger returns a logger that writes to w. Durations are numbers of seconds.
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
