package config

import (
	"iter"
	"reflect"
	"strings"
)

// leaf is a field that holds a value rather than further settings.
type leaf struct {
	path  string
	value reflect.Value
	spec  spec
}

// leaves yields every leaf of c in the order of the struct.
func leaves(c *Config) iter.Seq[leaf] {
	return func(yield func(leaf) bool) { walk(reflect.ValueOf(c).Elem(), "", yield) }
}

func walk(v reflect.Value, path string, yield func(leaf) bool) bool {
	for f, field := range v.Fields() {
		if f.Anonymous {
			if !walk(field, path, yield) {
				return false
			}
			continue
		}
		s := specOf(f)
		if s.key == "" {
			continue
		}
		child := join(path, s.key)
		if field.Kind() == reflect.Struct {
			if !walk(field, child, yield) {
				return false
			}
		} else if !yield(leaf{path: child, value: field, spec: s}) {
			return false
		}
	}
	return true
}

func leafAt(c *Config, path string) (leaf, bool) {
	for f := range leaves(c) {
		if f.path == path {
			return f, true
		}
	}
	return leaf{}, false
}

// fieldByKey returns the field of struct v that the YAML key sets. Fields of an embedded struct stand beside v's own.
func fieldByKey(v reflect.Value, key string) (reflect.Value, spec, bool) {
	for f, field := range v.Fields() {
		if f.Anonymous {
			if inner, s, ok := fieldByKey(field, key); ok {
				return inner, s, true
			}
		}
		if s := specOf(f); s.key != "" && s.key == key {
			return field, s, true
		}
	}
	return reflect.Value{}, spec{}, false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// hintForKey names the setting that an unknown key of the struct t probably meant: a similar key beside it, a longer one
// (password_file for password), or the same key elsewhere.
func (l *loader) hintForKey(t reflect.Type, path, key string) string {
	siblings := keysOf(t)
	if near := Nearest(key, siblings); near != "" {
		return "did you mean " + join(path, near) + "?"
	}
	for _, longer := range siblings {
		if strings.HasPrefix(longer, key+"_") {
			return "did you mean " + join(path, longer) + "?"
		}
	}
	for f := range leaves(&l.cfg) {
		if f.path == key || strings.HasSuffix(f.path, "."+key) {
			return "did you mean " + f.path + "?"
		}
	}
	return "known here: " + strings.Join(siblings, ", ")
}

// keysOf returns the keys that set fields of the struct t.
func keysOf(t reflect.Type) (keys []string) {
	for f := range t.Fields() {
		if f.Anonymous {
			keys = append(keys, keysOf(f.Type)...)
		} else if s := specOf(f); s.key != "" {
			keys = append(keys, s.key)
		}
	}
	return keys
}

func didYouMean(text string, known []string) string {
	if near := Nearest(text, known); near != "" {
		return "did you mean " + near + "?"
	}
	return ""
}

// Nearest returns the known word that text probably misspells, or nothing.
func Nearest(text string, known []string) string {
	const longest = 64 // no setting is longer; it bounds the work on a key that someone else wrote
	if len(text) > longest {
		return ""
	}
	best, least := "", max(2, len(text)/3)+1
	for _, word := range known {
		if d := distance(strings.ToLower(text), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance counts the bytes to insert, delete, replace or swap with their neighbour to turn a into b.
func distance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
