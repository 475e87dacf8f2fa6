package identity

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is the bytes of a key. Every way of printing or encoding it gives [redacted].
type Secret []byte

var (
	_ fmt.Formatter  = Secret{}
	_ slog.LogValuer = Secret{}
)

const redacted = "[redacted]"

// Format writes [redacted] for every verb and flag.
func (Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, redacted) }

// LogValue returns [redacted].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns [redacted].
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
