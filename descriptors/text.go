package descriptors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxFileBytes is the most that one policy file may hold: what a Kubernetes ConfigMap can, some 3 000 endpoints. The
// YAML library needs up to 600 times a file's size to read one that is nothing but brackets.
const MaxFileBytes = 1 << 20

const utf8BOM = "\xef\xbb\xbf"

// checkText reports what no policy file may hold as bytes, before any of it is parsed, and returns the text without its
// byte order mark. A reader cannot see the difference between these characters and a space, or nothing: what an
// operator reads must be what the parser reads.
func (s *source) checkText(data []byte) ([]byte, bool) {
	if len(data) > MaxFileBytes {
		s.report(0, nil, fmt.Sprintf("the file holds %d bytes, more than %d", len(data), MaxFileBytes),
			"split it: one domain may stand in several files")
		return nil, false
	}
	if name, ok := otherEncoding(data); ok {
		s.report(0, nil, "the file is "+name, "save it as UTF-8")
		return nil, false
	}
	text, marked := bytes.CutPrefix(data, []byte(utf8BOM))
	if isJSON := strings.HasSuffix(strings.ToLower(s.file.Name), ".json"); isJSON && !s.checkJSON(text, marked) {
		return nil, false
	}
	return text, s.checkCharacters(text)
}

// otherEncoding recognises UTF-16 and UTF-32 by their marks, or by the zero bytes beside the first character.
func otherEncoding(data []byte) (string, bool) {
	has := func(prefix string) bool { return bytes.HasPrefix(data, []byte(prefix)) }
	switch {
	case has("\xff\xfe\x00\x00"), has("\x00\x00\xfe\xff"), has("\x00\x00\x00"):
		return "UTF-32", true
	case has("\xff\xfe"), has("\xfe\xff"), len(data) > 1 && (data[0] == 0) != (data[1] == 0):
		return "UTF-16", true
	}
	return "", false
}

// checkCharacters reports at most one character per line.
func (s *source) checkCharacters(text []byte) bool {
	good, line, reported := true, 1, 0
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if problem, hint := strange(text[i:], r, size); problem != "" && reported < line {
			s.report(line, nil, problem, hint)
			good, reported = false, line
		}
		if r == '\n' {
			line++
		}
		i += size
	}
	return good
}

// strange says what is wrong with the character at the start of text; empty: nothing.
func strange(text []byte, r rune, size int) (problem, hint string) {
	switch {
	case r >= ' ' && r <= '~', r == '\n':
		return "", ""
	case r == utf8.RuneError && size <= 1:
		return fmt.Sprintf("byte 0x%02x is not UTF-8", text[0]), "save the file as UTF-8"
	case r == '\t':
		return "a tab", "use spaces"
	case r == '\r' && len(text) > 1 && text[1] == '\n':
		return "", ""
	case unicode.IsControl(r):
		return fmt.Sprintf("control character %U", r), "remove it"
	case invisible(r):
		return fmt.Sprintf("invisible character %U", r), "use a plain space, or remove it"
	}
	return "", ""
}

// invisible reports characters that look like a space or like nothing, and those that reorder what a reader sees.
func invisible(r rune) bool {
	return r != ' ' && unicode.In(r, unicode.Zs, unicode.Zl, unicode.Zp, unicode.Cf)
}

// checkJSON holds a .json file to JSON's own grammar, which YAML's includes almost: YAML would let a trailing comma pass.
func (s *source) checkJSON(text []byte, marked bool) bool {
	if marked {
		s.report(1, nil, "a byte order mark in a JSON file", "save it as UTF-8 without BOM (RFC 8259, 8.1)")
		return false
	}
	var whole json.RawMessage
	err := json.Unmarshal(text, &whole)
	if err == nil {
		return true
	}
	line := 0
	if at, ok := errors.AsType[*json.SyntaxError](err); ok {
		line = 1 + bytes.Count(text[:min(at.Offset, int64(len(text)))], []byte("\n"))
	}
	s.report(line, nil, "not JSON: "+strings.TrimPrefix(err.Error(), "json: "), "mend it, or name the file .yaml")
	return false
}
