package descriptors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// maxDepth bounds nesting. The native language needs 8 levels.
const maxDepth = 64

// The resolved tags that the reader tells apart.
const (
	nullTag  = "!!null"
	textTag  = "!!str"
	intTag   = "!!int"
	boolTag  = "!!bool"
	mergeTag = "!!merge"
)

// source is one file being read.
type source struct {
	file     File
	index    int // among the files given
	problems *problems
}

func (s *source) report(line int, at *place, problem, hint string) {
	s.problems.add(s.index, &PolicyError{s.file.Name, line, at.String(), problem, hint})
}

// place is a YAML path, kept as a chain so that only problems pay for its text. nil is the root.
type place struct {
	up   *place
	step string
}

var plainStep = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (p *place) key(name string) *place {
	if !plainStep.MatchString(name) {
		name = quote(name)
	}
	if p != nil {
		name = "." + name
	}
	return &place{p, name}
}

func (p *place) item(i int) *place { return &place{p, "[" + strconv.Itoa(i) + "]"} }

// String returns the path as endpoints."orders.create".limits[0]; the root is empty.
func (p *place) String() string {
	if p == nil {
		return ""
	}
	return p.up.String() + p.step
}

// value is a node and where it stands.
type value struct {
	*yaml.Node
	at *place
}

// trees parses the text of one file: exactly one document, whose root is a mapping. Of a file with several it returns them
// all, so that their own problems are told too.
func (s *source) trees(text []byte) (roots []value) {
	// AliasNone: this reader never follows an alias, so counting what it would expand to is not needed.
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(
		loaderlimits.New(loaderlimits.DepthValue(maxDepth), loaderlimits.AliasNone())))
	if err != nil {
		s.report(0, nil, err.Error(), "")
		return nil
	}
	for documents := 1; ; documents++ {
		var doc yaml.Node
		err := loader.Load(&doc)
		switch {
		case errors.Is(err, io.EOF) && documents == 1:
			s.report(0, nil, "the file is empty", "a policy file holds domain and endpoints")
			return nil
		case errors.Is(err, io.EOF):
			return roots
		case err != nil:
			s.reportYAML(err)
			return roots
		case documents == 2:
			s.report(doc.Line, nil, "a second document", "one document per file: one domain may stand in several files")
		}
		root := value{doc.Content[0], nil}
		if root.Kind == yaml.MappingNode {
			roots = append(roots, root)
		} else if documents == 1 {
			s.checkNode(root)
			s.wrongType(root, "a mapping with domain and endpoints")
		}
	}
}

func (s *source) reportYAML(err error) {
	line, problem := 0, err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		line, problem = e.Mark.Line, e.Message
	}
	if len(problem) > 200 {
		problem = strings.ToValidUTF8(problem[:200], "") + "..."
	}
	s.report(line, nil, "not YAML: "+problem, "look for indentation, a bracket or a quote, here or in the lines above")
}

// checkTree reports what a native file may not hold anywhere: anchors, aliases, merge keys, tags, keys that are not
// text, and the same key twice. Each lets a file mean something else than it seems to say.
func (s *source) checkTree(v value) {
	s.checkNode(v)
	switch v.Kind {
	case yaml.MappingNode:
		s.checkKeys(v)
	case yaml.SequenceNode:
		for i, n := range v.Content {
			s.checkTree(value{n, v.at.item(i)})
		}
	}
}

func (s *source) checkNode(v value) {
	switch {
	case v.Kind == yaml.AliasNode:
		s.report(v.Line, v.at, fmt.Sprintf("the alias *%s", printable(v.Value)), "aliases are not used here: write the value itself")
	case v.Anchor != "":
		s.report(v.Line, v.at, fmt.Sprintf("the anchor &%s", printable(v.Anchor)), "anchors are not used here: remove it")
	}
	if v.tagged() {
		s.report(v.Line, v.at, "the tag "+printable(v.Tag), "tags are not used here: remove it")
	}
}

func (s *source) checkKeys(v value) {
	first := make(map[string]int, len(v.Content)/2)
	for i := 0; i+1 < len(v.Content); i += 2 {
		key, child := v.Content[i], v.Content[i+1]
		at := v.at.key(key.Value)
		if !s.checkKey(value{key, at}) {
			continue
		}
		if line, twice := first[key.Value]; twice {
			s.report(key.Line, at, "the key stands twice", fmt.Sprintf("remove one: the first is in line %d", line))
			continue
		}
		first[key.Value] = key.Line
		s.checkTree(value{child, at})
	}
}

func (s *source) checkKey(key value) bool {
	s.checkNode(key)
	switch {
	case key.reported():
		return false
	case key.Kind != yaml.ScalarNode:
		s.report(key.Line, key.at, "a key that is not text", "write the key as plain text")
	case key.Tag == mergeTag:
		s.report(key.Line, key.at, "a merge key", "merge keys are not used here: write the values themselves")
	case !key.isText():
		s.report(key.Line, key.at, fmt.Sprintf("the key %s is not text to every reader", printable(key.Value)),
			"quote it: "+quote(key.Value))
	default:
		return true
	}
	return false
}

// tagged reports an explicit tag; "!" alone is one that the library does not mark as such.
func (v value) tagged() bool { return v.Style&yaml.TaggedStyle != 0 || v.Tag == "!" }

// reported is true for nodes that checkNode has reported, whose value therefore says nothing.
func (v value) reported() bool { return v.Kind == yaml.AliasNode || v.tagged() }

func (v value) quoted() bool {
	return v.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
}

// elsewhere matches plain scalars that are text in YAML 1.2 and something else in YAML 1.1, which other tools still
// read: booleans, and numbers with a base, underscores or sixties.
var elsewhere = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|` +
	`[-+]?0b[01_]+|[-+]?0o[0-7_]+|[-+]?0x[0-9a-f_]+|` +
	`[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)$`)

func (v value) isText() bool {
	return v.Kind == yaml.ScalarNode && v.Tag == textTag && (v.quoted() || !elsewhere.MatchString(v.Value))
}

func (v value) isNull() bool { return v.Kind == yaml.ScalarNode && v.Tag == nullTag }

// describe names what stands in the file, for a message. It is never asked about a missing value.
func (v value) describe() string {
	switch {
	case v.Kind == yaml.MappingNode:
		return "a mapping"
	case v.Kind == yaml.SequenceNode:
		return "a list"
	case v.Tag == textTag:
		return "the text " + quote(v.Value)
	}
	return printable(v.Value)
}

func (s *source) wrongType(v value, want string) {
	if v.reported() {
		return
	}
	if v.isNull() {
		s.report(v.Line, v.at, "no value", "it must be "+want)
		return
	}
	s.report(v.Line, v.at, v.describe()+" is not "+want, "")
}

// fields is a mapping with a fixed set of keys.
type fields struct {
	*source
	value
	byKey map[string]value
}

// mapping reads v as a mapping that has no other keys than known.
func (s *source) mapping(v value, known []string) (fields, bool) {
	f := fields{s, v, nil}
	if v.Kind != yaml.MappingNode {
		s.wrongType(v, "a mapping")
		return f, false
	}
	f.byKey = make(map[string]value, len(v.Content)/2)
	for key, child := range v.entries() {
		if !slices.Contains(known, key.Value) {
			s.report(key.Line, key.at, "unknown key", pick(key.Value, known))
			continue
		}
		f.byKey[key.Value] = child
	}
	return f, true
}

// entries yields the pairs of a mapping that checkKeys found good, each key once.
func (v value) entries() func(yield func(key, child value) bool) {
	return func(yield func(key, child value) bool) {
		seen := make(map[string]bool, len(v.Content)/2)
		for i := 0; i+1 < len(v.Content); i += 2 {
			at := v.at.key(v.Content[i].Value)
			key := value{v.Content[i], at}
			if key.reported() || !key.isText() || seen[key.Value] {
				continue
			}
			seen[key.Value] = true
			if !yield(key, value{v.Content[i+1], at}) {
				return
			}
		}
	}
}

// optional returns the value of a key, if it is there.
func (f fields) optional(key string) (value, bool) {
	v, ok := f.byKey[key]
	return v, ok
}

// required returns the value of a key and reports when it is missing.
func (f fields) required(key, hint string) (value, bool) {
	v, ok := f.byKey[key]
	if !ok {
		f.report(f.Line, f.at.key(key), "missing", hint)
	}
	return v, ok
}

// text reads v as text.
func (s *source) text(v value) (string, bool) {
	switch {
	case v.isText():
		return v.Value, true
	case v.Kind == yaml.ScalarNode && !v.isNull() && !v.reported():
		s.report(v.Line, v.at, printable(v.Value)+" is not text to every reader", "quote it: "+quote(v.Value))
	default:
		s.wrongType(v, "text")
	}
	return "", false
}

var (
	decimal = regexp.MustCompile(`^(?:0|-?[1-9][0-9]*)$`)
	numeric = regexp.MustCompile(`^[-+]?\.?[0-9]`)
)

// integer reads v as a plain decimal integer in least..most. One rule for YAML and JSON: digits without leading zero,
// plus sign, base, underscore, dot or exponent, which YAML 1.1, YAML 1.2 and JSON read in different ways.
func (s *source) integer(v value, least, most int64) (int64, bool) {
	switch {
	case v.Kind != yaml.ScalarNode || v.isNull() || v.reported():
		s.wrongType(v, "an integer")
		return 0, false
	case v.quoted() && decimal.MatchString(v.Value):
		s.report(v.Line, v.at, fmt.Sprintf("the text %s is not an integer", quote(v.Value)), "remove the quotes")
		return 0, false
	case !v.quoted() && numeric.MatchString(v.Value) && !decimal.MatchString(v.Value):
		s.report(v.Line, v.at, printable(v.Value)+" is not a plain decimal integer",
			"write digits only, as 10 or 1000: no leading zero, sign, base, underscore, dot or exponent")
		return 0, false
	case v.quoted() || !decimal.MatchString(v.Value):
		s.wrongType(v, "an integer")
		return 0, false
	}
	n, err := strconv.ParseInt(v.Value, 10, 64)
	if err != nil || n < least || n > most {
		s.report(v.Line, v.at, fmt.Sprintf("%s is out of range", printable(v.Value)), fmt.Sprintf("it must be in %d..%d", least, most))
		return 0, false
	}
	return n, true
}

// boolean reads v as true or false, in these letters.
func (s *source) boolean(v value) (bool, bool) {
	if v.Kind == yaml.ScalarNode && v.Tag == boolTag && (v.Value == "true" || v.Value == "false") {
		return v.Value == "true", true
	}
	s.wrongType(v, "true or false")
	return false, false
}

// list reads v as a list; want describes it.
func (s *source) list(v value, want string) ([]value, bool) {
	if v.Kind != yaml.SequenceNode {
		s.wrongType(v, want)
		return nil, false
	}
	items := make([]value, len(v.Content))
	for i, n := range v.Content {
		items[i] = value{n, v.at.item(i)}
	}
	return items, true
}

// word reads v as one of the names of an enumeration, and returns its place among them. A value without a word has an
// empty name.
func word[E ~uint8](s *source, v value, names []string) (E, bool) {
	text, ok := s.text(v)
	if !ok {
		return 0, false
	}
	if i := slices.Index(names, text); i >= 0 && text != "" {
		return E(i), true
	}
	s.report(v.Line, v.at, "unknown word "+quote(text), pick(text, names))
	return 0, false
}
