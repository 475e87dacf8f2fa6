package config

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is text that no log, dump or error may show: every way of printing or encoding it gives [redacted]. The zero
// Secret is empty.
type Secret struct {
	// A pointer, so that printing by reflection, which ignores methods of unexported fields, shows an address.
	text *string
}

var (
	_ fmt.Formatter  = Secret{}
	_ slog.LogValuer = Secret{}
)

// NewSecret returns a Secret that holds text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text}
}

// Reveal returns the text itself. The caller keeps it out of everything that people read.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Empty reports whether there is no text.
func (s Secret) Empty() bool { return s.text == nil }

// String returns [redacted].
func (s Secret) String() string { return redacted }

// Format writes [redacted] for every verb and flag.
func (s Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, redacted) }

// LogValue returns [redacted].
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns [redacted], for encoding/json and everything else that encodes text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalYAML returns [redacted].
func (s Secret) MarshalYAML() (any, error) { return redacted, nil }
