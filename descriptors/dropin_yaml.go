package descriptors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// leastExpanded is the number of nodes that any file may have read by way of aliases, and a quarter of its bytes more: a
// few lines of aliases can stand for billions.
const leastExpanded = 50_000

// looseSource reads a file as the service does that the drop-in stands in for: YAML 1.1, of which it takes more than is
// good. What it accepts and its author probably did not mean is a warning.
type looseSource struct {
	*source
	warnings *problems

	expanded int // nodes read by way of aliases
	open     []*yaml.Node
}

func (s *looseSource) warn(line int, at *place, problem, hint string) {
	s.warnings.add(s.index, &PolicyError{s.file.Name, line, at.String(), problem, hint})
}

// firstDocument is what a file begins with.
type firstDocument struct {
	loader *yaml.Loader // for what follows
	doc    yaml.Node    // zero: there is none
}

// load parses the first document of a file.
func (s *source) load() (*firstDocument, error) {
	// AliasNone: no reader here lets the library follow an alias.
	loader, err := yaml.NewLoader(bytes.NewReader(s.file.Data), yaml.WithPlugin(
		loaderlimits.New(loaderlimits.DepthValue(maxDepth), loaderlimits.AliasNone())))
	if err != nil {
		return nil, err
	}
	first := &firstDocument{loader: loader}
	if err := loader.Load(&first.doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return first, nil
}

// dropInDocument returns the first document of a file whose keys say that it is in the drop-in language, else nil.
func (s *source) dropInDocument() *firstDocument {
	if len(s.file.Data) > MaxDropInFileBytes || !bytes.Contains(s.file.Data, []byte("descriptors")) {
		return nil
	}
	first, err := s.load()
	if err != nil || first.doc.Kind == 0 {
		return nil // the native reader says what is wrong
	}
	root := value{first.doc.Content[0], nil}
	_, ours := root.lookUp("endpoints")
	_, theirs := root.lookUp("descriptors")
	if ours || !theirs {
		return nil
	}
	return first
}

// looseTree returns the root of the first document, which is read unless it was already. No document, or one that is
// null, is an empty mapping.
func (s *looseSource) looseTree(first *firstDocument) (value, bool) {
	if len(s.file.Data) > MaxDropInFileBytes {
		s.report(0, nil, fmt.Sprintf("the file holds %d bytes, more than %d", len(s.file.Data), MaxDropInFileBytes),
			"split it: with MERGE_DOMAIN_CONFIG one domain may stand in several files")
		return value{}, false
	}
	if first == nil {
		var err error
		if first, err = s.load(); err != nil {
			s.reportYAML(err)
			return value{}, false
		}
	}
	empty := value{&yaml.Node{Kind: yaml.MappingNode, Line: 1}, nil}
	if first.doc.Kind == 0 {
		return empty, true
	}
	var second yaml.Node
	if err := first.loader.Load(&second); err == nil {
		s.warn(second.Line, nil, "everything after the first document is ignored", "put it into a file of its own")
	} else if !errors.Is(err, io.EOF) {
		s.warn(0, nil, "everything after the first document is ignored, and is not YAML", "remove it")
	}
	root := value{first.doc.Content[0], nil}
	if s.isNothing(root) {
		return empty, true
	}
	if root.Kind != yaml.MappingNode {
		s.wrongLoose(root, "a mapping with domain and descriptors")
		return value{}, false
	}
	return root, true
}

// follow returns what an alias stands for. done must be called when it has been read. False: it cannot be followed.
func (s *looseSource) follow(v value) (target value, done func(), ok bool) {
	done = func() {}
	if len(s.open) > 0 && !s.expand(v, 1) {
		return v, done, false
	}
	if v.Kind != yaml.AliasNode {
		return v, done, true
	}
	if slices.Contains(s.open, v.Alias) {
		s.report(v.Line, v.at, fmt.Sprintf("the alias *%s stands within what it stands for", printable(v.Value)), "remove it")
		return v, done, false
	}
	s.open = append(s.open, v.Alias)
	return value{v.Alias, v.at}, func() { s.open = s.open[:len(s.open)-1] }, true
}

// expand counts nodes that are read by way of aliases. False: there are too many.
func (s *looseSource) expand(v value, nodes int) bool {
	most := leastExpanded + len(s.file.Data)/4
	if s.expanded > most {
		return false
	}
	if s.expanded += nodes; s.expanded > most {
		s.report(v.Line, v.at, "excessive aliasing", fmt.Sprintf("aliases stand for more than %d nodes: write fewer", most))
		return false
	}
	return true
}

// pair is one key of a mapping, and its value.
type pair struct{ key, value value }

// pairs returns the pairs of a mapping whose keys are text: merge keys merged, and of a key that stands twice the last.
// own keys win over merged ones.
func (s *looseSource) pairs(v value) []pair {
	var all, merged []pair
	at := make(map[string]int, len(v.Content)/2)
	for i := 0; i+1 < len(v.Content); i += 2 {
		key := value{v.Content[i], v.at.key(v.Content[i].Value)}
		child := value{v.Content[i+1], key.at}
		if key.Kind == yaml.ScalarNode && !key.quoted() && !key.tagged() && key.Value == "<<" {
			merged = append(merged, s.merge(child)...)
			continue
		}
		if !s.isKey(key) {
			continue
		}
		if j, twice := at[key.Value]; twice {
			s.warn(key.Line, key.at, "the key stands twice, and the last one counts",
				fmt.Sprintf("remove one: the first is in line %d", all[j].key.Line))
			all[j] = pair{key, child}
			continue
		}
		at[key.Value] = len(all)
		all = append(all, pair{key, child})
	}
	for _, p := range merged {
		if _, own := at[p.key.Value]; !own {
			at[p.key.Value] = len(all)
			all = append(all, p)
		}
	}
	return all
}

// isKey reports keys that are not text. A key that is an alias is none here.
func (s *looseSource) isKey(key value) bool {
	if key.Kind == yaml.ScalarNode && s.resolve(key).kind == looseText {
		return true
	}
	s.report(key.Line, key.at, "a key that is not text", "write the key as plain text")
	return false
}

// merge returns the pairs that a merge key adds: of a mapping, or of each mapping in a list, the first wins.
func (s *looseSource) merge(v value) []pair {
	v, done, ok := s.follow(v)
	defer done()
	switch {
	case !ok, !s.expand(v, len(v.Content)):
		return nil
	case v.Kind == yaml.MappingNode:
		return s.pairs(v)
	case v.Kind == yaml.SequenceNode:
		var all []pair
		for i, n := range v.Content {
			item := value{n, v.at.item(i)}
			if n.Kind == yaml.SequenceNode {
				s.report(n.Line, item.at, "a merge key over a list of lists", "merge mappings")
				continue
			}
			all = append(all, s.merge(item)...)
		}
		return all
	}
	s.report(v.Line, v.at, "a merge key over "+v.describe(), "merge a mapping, or a list of mappings")
	return nil
}

// looseKind is what YAML 1.1 takes a scalar for.
type looseKind uint8

const (
	looseText looseKind = iota
	looseNull
	looseBool
	looseInt   // within an int64
	looseFloat // a float, or an integer beyond
	looseOther // a tag that does not fit, or has no place here
)

// scalar is a resolved scalar. Its text is the node's Value.
type scalar struct {
	kind looseKind
	yes  bool
	n    int64
	date bool // looseText: a date to other readers
}

var (
	looseNulls  = []string{"", "~", "null", "Null", "NULL"}
	looseTrues  = []string{"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
	looseFalses = []string{"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
	looseFloats = regexp.MustCompile(`^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
	looseDates  = regexp.MustCompile(`^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?$`)
)

// resolve reads a scalar as YAML 1.1 does, in which 010 is eight and on is true.
func (s *looseSource) resolve(v value) scalar {
	if v.tagged() {
		return resolveTagged(v.Tag, v.Value)
	}
	if v.quoted() {
		return scalar{}
	}
	return resolvePlain(v.Value)
}

// resolveTagged reads a scalar by its tag. A tag that nobody knows makes it text.
func resolveTagged(tag, text string) scalar {
	plain := resolvePlain(text)
	want, known := map[string]looseKind{"!!int": looseInt, "!!bool": looseBool, "!!null": looseNull}[tag]
	switch {
	case tag == "!!float" || tag == "!!binary" || known && plain.kind != want:
		return scalar{kind: looseOther}
	case known:
		return plain
	}
	return scalar{}
}

func resolvePlain(text string) scalar {
	switch {
	case slices.Contains(looseNulls, text):
		return scalar{kind: looseNull}
	case slices.Contains(looseTrues, text):
		return scalar{kind: looseBool, yes: true}
	case slices.Contains(looseFalses, text):
		return scalar{kind: looseBool}
	case !strings.ContainsRune("+-.0123456789", rune(text[0])):
		return scalar{}
	case looseDates.MatchString(text):
		return scalar{date: true}
	}
	plain := strings.ReplaceAll(text, "_", "")
	if n, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return scalar{kind: looseInt, n: n}
	}
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil || looseFloats.MatchString(plain) {
		return scalar{kind: looseFloat}
	}
	return scalar{}
}

// looseString reads v as text. A number or boolean becomes the text that stands there; null is the empty text.
func (s *looseSource) looseString(v value) (string, bool) {
	v, done, ok := s.follow(v)
	defer done()
	if !ok {
		return "", false
	}
	if v.Kind != yaml.ScalarNode {
		s.wrongLoose(v, "text")
		return "", false
	}
	switch r := s.resolve(v); r.kind {
	case looseNull:
		s.warn(v.Line, v.at, "no value: it counts as not there", "remove the key, or give it a value")
		return "", true
	case looseBool:
		if len(v.Value) == 1 { // y and n are text to most readers
			break
		}
		s.warn(v.Line, v.at, fmt.Sprintf("%s is a boolean to some readers, and the text %s here", printable(v.Value), quote(v.Value)), "quote it: "+quote(v.Value))
	case looseInt:
		if strconv.FormatInt(r.n, 10) != v.Value {
			s.warn(v.Line, v.at, fmt.Sprintf("%s is the number %d to some readers, and the text %s here", printable(v.Value), r.n, quote(v.Value)), "quote it: "+quote(v.Value))
		}
	case looseFloat, looseOther:
		s.wrongLoose(v, "text")
		return "", false
	case looseText:
		if r.date {
			s.warn(v.Line, v.at, fmt.Sprintf("%s is a date to some readers, and text here", printable(v.Value)), "quote it: "+quote(v.Value))
		}
	}
	return v.Value, true
}

// looseBoolean reads v as a boolean in any of the words of YAML 1.1; null is false.
func (s *looseSource) looseBoolean(v value) bool {
	v, done, ok := s.follow(v)
	defer done()
	if !ok {
		return false
	}
	if v.Kind == yaml.ScalarNode {
		switch r := s.resolve(v); r.kind {
		case looseBool:
			return r.yes
		case looseNull:
			s.warn(v.Line, v.at, "no value: it counts as false", "write true or false")
			return false
		}
	}
	s.wrongLoose(v, "true or false")
	return false
}

// isNothing reports whether v is a null, which counts as a missing value.
func (s *looseSource) isNothing(v value) bool {
	return v.Kind == yaml.ScalarNode && s.resolve(v).kind == looseNull
}

// looseInteger reads v as an integer in least..most; null is 0.
func (s *looseSource) looseInteger(v value, least, most int64) (n int64, ok bool) {
	v, done, ok := s.follow(v)
	defer done()
	if !ok {
		return 0, false
	}
	var r scalar
	if v.Kind == yaml.ScalarNode {
		r = s.resolve(v)
	}
	switch {
	case r.kind == looseNull && least <= 0:
		s.warn(v.Line, v.at, "no value: it counts as 0", "write a number")
		return 0, true
	case r.kind != looseInt:
		s.wrongLoose(v, "an integer")
		return 0, false
	case r.n < least || r.n > most:
		s.report(v.Line, v.at, printable(v.Value)+" is out of range", fmt.Sprintf("it must be in %d..%d", least, most))
		return 0, false
	}
	if strconv.FormatInt(r.n, 10) != v.Value {
		s.warn(v.Line, v.at, fmt.Sprintf("%s means %d here, and may mean something else to other readers", printable(v.Value), r.n), fmt.Sprintf("write %d", r.n))
	}
	return r.n, true
}

// wrongLoose reports a value of another type, and how to write what was probably meant.
func (s *looseSource) wrongLoose(v value, want string) {
	if v.Kind == yaml.ScalarNode && want == "text" {
		s.report(v.Line, v.at, printable(v.Value)+" is not text", "quote it: "+quote(v.Value))
		return
	}
	hint := ""
	if v.Kind == yaml.ScalarNode && v.quoted() && resolvePlain(v.Value).kind != looseText {
		hint = "remove the quotes"
	}
	what := v.describe()
	if v.Kind == yaml.ScalarNode && v.quoted() {
		what = "the text " + quote(v.Value)
	}
	s.report(v.Line, v.at, what+" is not "+want, hint)
}

// looseList returns the items of a list; null is an empty one. Each must be a mapping.
func (s *looseSource) looseList(v value, want string) []value {
	if s.isNothing(v) {
		return nil
	}
	if v.Kind != yaml.SequenceNode {
		s.wrongLoose(v, want)
		return nil
	}
	items := make([]value, 0, len(v.Content))
	for i, n := range v.Content {
		items = append(items, value{n, v.at.item(i)})
	}
	return items
}

// looseFields is a mapping of the drop-in language.
type looseFields struct {
	value
	byKey map[string]value
}

// has returns the value of a key.
func (f looseFields) has(key string) (value, bool) {
	v, ok := f.byKey[key]
	return v, ok
}

// looseMapping reads v as a mapping. A key that is unknown everywhere is refused. One that belongs elsewhere is ignored
// with a warning, as the service does it that the files are for; one of our own extensions is refused in a wrong place.
func (s *looseSource) looseMapping(v value, own []string) (looseFields, bool) {
	f := looseFields{v, nil}
	if v.Kind != yaml.MappingNode {
		s.wrongLoose(v, "a mapping")
		return f, false
	}
	pairs := s.pairs(v)
	f.byKey = make(map[string]value, len(pairs))
	for _, p := range pairs {
		name := p.key.Value
		switch {
		case slices.Contains(own, name):
			f.byKey[name] = p.value
		case slices.Contains(dropInKeys, name):
			s.warn(p.key.Line, p.key.at, fmt.Sprintf("%s has no meaning here and is ignored", name), "it belongs "+dropInPlace(name))
			if name != "metadata" {
				s.misplaced(p.value)
			}
		case slices.Contains(extensionKeys, name):
			s.report(p.key.Line, p.key.at, name+" does not belong here", "it belongs "+dropInPlace(name))
		default:
			hint := pick(name, own)
			if w := nearest(name, dropInKeys); w != "" {
				hint = fmt.Sprintf("did you mean %s?", w)
			}
			s.report(p.key.Line, p.key.at, "unknown key", hint)
		}
	}
	return f, true
}

// misplaced reads what is ignored, as far as the service checks it: keys, and types of no use anywhere.
func (s *looseSource) misplaced(v value) {
	v, done, ok := s.follow(v)
	defer done()
	switch {
	case !ok:
	case v.Kind == yaml.MappingNode:
		for _, p := range s.pairs(v) {
			if !slices.Contains(dropInKeys, p.key.Value) {
				s.report(p.key.Line, p.key.at, "unknown key", pick(p.key.Value, dropInKeys))
			}
			s.misplaced(p.value)
		}
	case v.Kind == yaml.SequenceNode:
		for i, n := range v.Content {
			item := value{n, v.at.item(i)}
			target, done, ok := s.follow(item)
			if ok && target.Kind != yaml.MappingNode {
				s.wrongLoose(target, "a mapping")
			} else if ok {
				s.misplaced(target)
			}
			done()
		}
	default:
		if k := s.resolve(v).kind; k == looseFloat || k == looseOther {
			s.wrongLoose(v, "text")
		}
	}
}

// free reads any value as encoding/json would have it.
func (s *looseSource) free(v value) any {
	v, done, ok := s.follow(v)
	defer done()
	if !ok {
		return nil
	}
	switch v.Kind {
	case yaml.MappingNode:
		return s.freeMap(v)
	case yaml.SequenceNode:
		list := make([]any, len(v.Content))
		for i, n := range v.Content {
			list[i] = s.free(value{n, v.at.item(i)})
		}
		return list
	}
	switch r := s.resolve(v); r.kind {
	case looseNull:
		return nil
	case looseBool:
		return r.yes
	case looseInt:
		return float64(r.n)
	case looseFloat:
		f, err := strconv.ParseFloat(strings.ReplaceAll(v.Value, "_", ""), 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			s.report(v.Line, v.at, printable(v.Value)+" is not a finite number", "quote it: "+quote(v.Value))
			return nil
		}
		return f
	case looseOther:
		s.report(v.Line, v.at, "the tag "+printable(v.Tag), "remove it")
		return nil
	}
	return v.Value
}

// freeMap reads a mapping whose keys may be any scalar; all of them become text.
func (s *looseSource) freeMap(v value) map[string]any {
	m := make(map[string]any, len(v.Content)/2)
	for i := 0; i+1 < len(v.Content); i += 2 {
		key := value{v.Content[i], v.at.key(v.Content[i].Value)}
		if key.Kind != yaml.ScalarNode {
			s.report(key.Line, key.at, "a key that is not text", "write the key as plain text")
			continue
		}
		if key.Value == "<<" && !key.quoted() {
			s.report(key.Line, key.at, "a merge key in metadata", "write the values themselves")
			continue
		}
		if s.resolve(key).kind != looseText {
			s.warn(key.Line, key.at, fmt.Sprintf("the key %s becomes the text %s", printable(key.Value), quote(key.Value)), "quote it: "+quote(key.Value))
		}
		m[key.Value] = s.free(value{v.Content[i+1], key.at})
	}
	return m
}
