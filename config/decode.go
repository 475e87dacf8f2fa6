package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// spec is what a struct field's tags say.
type spec struct {
	key  string   // the YAML key; empty: no key sets this field
	enum []string // the values allowed; empty: any
	path bool     // a file name
}

func specOf(f reflect.StructField) spec {
	s := spec{key: f.Tag.Get("yaml"), path: f.Tag.Get("kind") == "path"}
	if s.key == "-" {
		s.key = ""
	}
	if enum := f.Tag.Get("enum"); enum != "" {
		s.enum = strings.Split(enum, ",")
	}
	return s
}

var durationType = reflect.TypeFor[time.Duration]()

// decodeStruct reads a mapping into v, which keeps what the mapping does not name.
func (l *loader) decodeStruct(v reflect.Value, n *yaml.Node, path string, o origin) {
	o = o.at(n)
	if !l.plain(n, path, o) {
		return
	}
	if n.Kind != yaml.MappingNode {
		l.fail(o, path, "must be a mapping of settings, not "+describe(n), "")
		return
	}
	l.set(path, o)
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := o.at(key)
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			l.fail(at, path, "has a key that is not plain text", "aliases, merge keys and structured keys are not supported")
			continue
		}
		child := join(path, key.Value)
		if line, dup := seen[key.Value]; dup {
			l.fail(at, child, fmt.Sprintf("is set twice, first in line %d", line), "keep one")
			continue
		}
		seen[key.Value] = key.Line
		field, s, ok := fieldByKey(v, key.Value)
		if !ok {
			l.fail(at, child, "is no setting", l.hintForKey(v.Type(), path, key.Value))
			continue
		}
		l.decode(field, s, value, child, o)
	}
}

// decode reads one node of any kind into v.
func (l *loader) decode(v reflect.Value, s spec, n *yaml.Node, path string, o origin) {
	switch {
	case v.Kind() == reflect.Struct:
		l.decodeStruct(v, n, path, o)
	case v.Kind() == reflect.Slice:
		l.decodeList(v, s, n, path, o)
	default:
		l.decodeScalar(v, s, n, path, o)
	}
}

// decodeList reads a sequence into v, replacing what it held.
func (l *loader) decodeList(v reflect.Value, s spec, n *yaml.Node, path string, o origin) {
	o = o.at(n)
	if !l.plain(n, path, o) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		hint := ""
		if n.Kind == yaml.ScalarNode {
			hint = "write [" + clip(n.Value) + "]"
		}
		l.fail(o, path, "must be a list, not "+describe(n), hint)
		return
	}
	l.set(path, o)
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		if d, ok := list.Index(i).Addr().Interface().(interface{ setDefaults() }); ok {
			d.setDefaults()
		}
		l.decode(list.Index(i), s, item, fmt.Sprintf("%s[%d]", path, i), o)
	}
	v.Set(list)
}

// decodeScalar reads a scalar into v, whose type must be the one that YAML gives the scalar.
func (l *loader) decodeScalar(v reflect.Value, s spec, n *yaml.Node, path string, o origin) {
	o = o.at(n)
	if !l.plain(n, path, o) {
		return
	}
	want, tag := "text", "!!str"
	switch {
	case v.Type() == durationType:
		want = "a time with its unit, as 20ms or 30s"
	case v.Kind() == reflect.Bool:
		want, tag = "true or false", "!!bool"
	case v.CanInt():
		want, tag = "a whole number", "!!int"
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != tag {
		hint := ""
		if n.Kind == yaml.ScalarNode && want == "text" {
			hint = fmt.Sprintf("quote it: %q", n.Value)
		}
		l.fail(o, path, "must be "+want+", not "+describe(n), hint)
		return
	}
	l.decodeText(v, s, n.Value, path, o)
}

// plain refuses what YAML offers beyond plain values: nothing, aliases, anchors and tags.
func (l *loader) plain(n *yaml.Node, path string, o origin) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		l.fail(o, path, "uses an anchor or alias", "write the value itself")
	case n.Style&yaml.TaggedStyle != 0:
		l.fail(o, path, "has a tag", "remove "+n.Tag)
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		l.fail(o, path, "has no value", "give one, or remove the key to get the default")
	default:
		return true
	}
	return false
}

// describe names what a node holds, without its text where that could be long.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.ShortTag() == "!!str" {
		return "text"
	}
	return "the " + strings.TrimPrefix(n.ShortTag(), "!!") + " " + clip(n.Value)
}

func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// decodeTexts sets a list from the texts of its items.
func (l *loader) decodeTexts(f leaf, texts []string, o origin) {
	l.set(f.path, o)
	list := reflect.MakeSlice(f.value.Type(), len(texts), len(texts))
	for i, text := range texts {
		l.decodeText(list.Index(i), f.spec, text, fmt.Sprintf("%s[%d]", f.path, i), o)
	}
	f.value.Set(list)
}

// decimal is how whole numbers are written. What YAML 1.1 and 1.2 read differently (010, 1_000, 0x10) is not among it.
var decimal = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// decodeText sets a scalar from its text.
func (l *loader) decodeText(v reflect.Value, s spec, text, path string, o origin) {
	l.set(path, o)
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			l.fail(o, path, fmt.Sprintf("must be a time with its unit, not %q", clip(text)), "as 20ms, 30s or 1h30m")
			return
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			l.fail(o, path, fmt.Sprintf("must be true or false, not %q", clip(text)), "")
			return
		}
		v.SetBool(text == "true")
	case v.CanInt():
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil || !decimal.MatchString(text) || v.OverflowInt(i) {
			l.fail(o, path, fmt.Sprintf("must be a whole number in decimal digits, not %q", clip(text)), "")
			return
		}
		v.SetInt(i)
	case v.Kind() == reflect.String:
		l.decodeString(v, s, text, path, o)
	default:
		l.fail(o, path, "cannot be given as one text", "")
	}
}

func (l *loader) decodeString(v reflect.Value, s spec, text, path string, o origin) {
	bad := strings.ToValidUTF8(text, "") != text || strings.ContainsFunc(text, unicode.IsControl)
	switch {
	case bad:
		l.fail(o, path, "must be UTF-8 text without control characters", "")
		return
	case len(s.enum) > 0 && !slices.Contains(s.enum, text):
		l.fail(o, path, fmt.Sprintf("must be one of %s, not %q", strings.Join(s.enum, ", "), clip(text)), didYouMean(text, s.enum))
		return
	case s.path && text != "" && o.dir != "" && !filepath.IsAbs(text):
		text = filepath.Join(o.dir, text)
	}
	v.SetString(text)
}
