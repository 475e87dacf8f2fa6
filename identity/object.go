package identity

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// object is a JSON object: its members in order, names exactly as written. encoding/json would match names by case
// folding, let the last duplicate win and turn invalid UTF-8 into U+FFFD; each is a way to make two readers of one token
// see two callers.
type object []member

type member struct {
	name  string
	value json.RawMessage
}

// parseObject reads one JSON object, and nothing after it. False: it is none, a name stands twice, it has more than most
// members (which bounds the search for duplicates), or it is not UTF-8.
func parseObject(data []byte, most int) (object, bool) {
	if !utf8.Valid(data) || !json.Valid(data) {
		return nil, false
	}
	rest := skipSpace(data)
	if rest[0] != '{' {
		return nil, false
	}
	// data is valid JSON from here on, which is what lets the scanner below be this simple.
	o := make(object, 0, 8)
	for rest = skipSpace(rest[1:]); rest[0] != '}'; {
		end := endOfValue(rest)
		name, ok := text(rest[:end])
		if !ok || o.has(name) || len(o) == most {
			return nil, false
		}
		rest = skipSpace(skipSpace(rest[end:])[1:]) // the colon
		end = endOfValue(rest)
		o = append(o, member{name, rest[:end]})
		if rest = skipSpace(rest[end:]); rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
	}
	return o, true
}

func (o object) has(name string) bool {
	_, found := o.get(name)
	return found
}

// get returns the member of exactly that name.
func (o object) get(name string) (json.RawMessage, bool) {
	for _, m := range o {
		if m.name == name {
			return m.value, true
		}
	}
	return nil, false
}

// at follows path through nested objects.
func (o object) at(path []string) (json.RawMessage, bool) {
	value, found := o.get(path[0])
	for _, name := range path[1:] {
		if !found {
			return nil, false
		}
		inner, ok := parseObject(value, maxClaims)
		if !ok {
			return nil, false
		}
		value, found = inner.get(name)
	}
	return value, found
}

// text returns the text of a JSON string. False: value is no string, or it holds U+FFFD, which is what an escaped half
// of a surrogate pair decodes to; two texts would become one.
func text(value json.RawMessage) (string, bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", false
	}
	s := string(value[1 : len(value)-1])
	if bytes.IndexByte(value, '\\') >= 0 {
		if err := json.Unmarshal(value, &s); err != nil {
			return "", false
		}
	}
	return s, !containsReplacement(s)
}

func containsReplacement(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError {
			return true
		}
	}
	return false
}

// endOfValue returns the length of the JSON value that valid JSON starts with.
func endOfValue(data []byte) int {
	switch data[0] {
	case '"':
		return endOfString(data)
	case '{', '[':
		return endOfNested(data)
	}
	if i := bytes.IndexAny(data, ",]} \t\r\n"); i >= 0 {
		return i
	}
	return len(data)
}

func endOfString(data []byte) int {
	for i := 1; ; i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

func endOfNested(data []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch data[i] {
		case '"':
			i += endOfString(data[i:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}

func skipSpace(data []byte) []byte { return bytes.TrimLeft(data, " \t\r\n") }
