package envoy

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth bounds the walk's recursion. A map entry is a level of its own here and not always one for the decoder, whose
// limit is half of this, so the walk never gives up on a message that the decoder would take.
const maxDepth = 2 * protowire.DefaultRecursionLimit

// repair returns the encoding b of a proto3 message with each byte of its strings that is not UTF-8 replaced by U+FFFD,
// in nested messages and maps too. False: the strings are fine, or b is no encoding at all.
//
// U+FFFD is longer than what it replaces, so the length of every enclosing message changes. A first pass finds the
// lengths, a second writes: linear in b, however deeply its messages are nested.
func repair(b []byte, message protoreflect.MessageDescriptor) ([]byte, bool) {
	var m measure
	size, ok := m.message(b, message, 0)
	if !ok || !m.broken {
		return nil, false
	}
	w := writer{out: make([]byte, 0, size), sizes: m.sizes}
	w.message(b, message)
	return w.out, true
}

// measure is the first pass.
type measure struct {
	sizes  []int // of each nested message after the repair, in the order in which they begin
	broken bool  // some string is not UTF-8
}

// message returns the size of b after the repair. False: b is no encoding of a message.
func (m *measure) message(b []byte, message protoreflect.MessageDescriptor, depth int) (size int, ok bool) {
	if depth > maxDepth {
		return 0, false
	}
	for len(b) > 0 {
		var f field
		if f, b, ok = nextField(b, message); !ok {
			return 0, false
		}
		switch f.content {
		case opaque:
			size += len(f.tag) + len(f.value)
		case text:
			n := repairedLen(f.payload)
			m.broken = m.broken || n != len(f.payload)
			size += len(f.tag) + protowire.SizeBytes(n)
		case nested:
			at := len(m.sizes)
			m.sizes = append(m.sizes, 0)
			n, ok := m.message(f.payload, f.message, depth+1)
			if !ok {
				return 0, false
			}
			m.sizes[at] = n
			size += len(f.tag) + protowire.SizeBytes(n)
		}
	}
	return size, true
}

// writer is the second pass, over bytes that the first one has walked.
type writer struct {
	out   []byte
	sizes []int // of the nested messages to come
}

func (w *writer) message(b []byte, message protoreflect.MessageDescriptor) {
	for len(b) > 0 {
		var f field
		f, b, _ = nextField(b, message)
		w.out = append(w.out, f.tag...)
		switch f.content {
		case opaque:
			w.out = append(w.out, f.value...)
		case text:
			w.out = protowire.AppendVarint(w.out, uint64(repairedLen(f.payload)))
			w.out = appendRepaired(w.out, f.payload)
		case nested:
			w.out = protowire.AppendVarint(w.out, uint64(w.sizes[0]))
			w.sizes = w.sizes[1:]
			w.message(f.payload, f.message)
		}
	}
}

// count takes the nested messages and texts in b from left. False: there are more.
func count(b []byte, message protoreflect.MessageDescriptor, depth int, left *int) bool {
	for len(b) > 0 && depth <= maxDepth {
		f, rest, ok := nextField(b, message)
		if !ok {
			return true
		}
		if b = rest; f.content == opaque {
			continue
		}
		if *left--; *left < 0 || f.content == nested && !count(f.payload, f.message, depth+1, left) {
			return false
		}
	}
	return true
}

// content says what the bytes of a field are.
type content uint8

const (
	opaque content = iota // copied as it is: a number, bytes, a group, an unknown field, a field of another wire type
	text
	nested // a message, or one entry of a map
)

// field is one field of an encoded message.
type field struct {
	tag, value []byte // value: with the length before it
	content    content
	payload    []byte                         // text, nested: without the length
	message    protoreflect.MessageDescriptor // nested
}

// nextField returns the first field of b and what follows it. Like the decoder it goes by the wire: a string field that
// was encoded as a number is an unknown field. False: b does not begin with a field.
func nextField(b []byte, message protoreflect.MessageDescriptor) (f field, rest []byte, ok bool) {
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return field{}, nil, false
	}
	value := protowire.ConsumeFieldValue(num, typ, b[tag:])
	if value < 0 {
		return field{}, nil, false
	}
	f = field{tag: b[:tag], value: b[tag : tag+value]}
	fd := message.Fields().ByNumber(num)
	if fd != nil && typ == protowire.BytesType {
		switch fd.Kind() {
		case protoreflect.StringKind:
			f.content = text
		case protoreflect.MessageKind:
			f.content, f.message = nested, fd.Message()
		}
		f.payload, _ = protowire.ConsumeBytes(f.value)
	}
	return f, b[tag+value:], true
}

// repairedLen returns the length of appendRepaired's addition. It equals len(s) only if s is UTF-8, since a replaced byte
// becomes three.
func repairedLen(s []byte) (n int) {
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		n += utf8.RuneLen(r)
		s = s[size:]
	}
	return n
}

func appendRepaired(dst, s []byte) []byte {
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		dst = utf8.AppendRune(dst, r)
		s = s[size:]
	}
	return dst
}
