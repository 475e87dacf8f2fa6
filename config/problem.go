package config

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	Source string // the file's name, "environment" or "flag"; empty: a default that does not fit the rest
	Line   int    // of the file, from 1; 0 when there is none
	Name   string // the environment variable or flag; empty for the file
	Path   string // the YAML path, as redis.url or jwt.keys[1].kid; empty when it concerns the whole file
	Text   string // what is wrong
	Hint   string // how to mend it; may be empty
}

// Error returns the problem on one line: place, path, what, hint.
func (p *Problem) Error() string {
	var b strings.Builder
	switch {
	case p.Name != "":
		fmt.Fprintf(&b, "%s %s: ", p.Source, p.Name)
	case p.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", p.Source, p.Line)
	case p.Source != "":
		fmt.Fprintf(&b, "%s: ", p.Source)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.Text)
	if p.Hint != "" {
		fmt.Fprintf(&b, " (%s)", p.Hint)
	}
	return b.String()
}

// Warning is something in the environment that is not wrong but has no effect.
type Warning struct {
	Name string // the environment variable
	Text string // what is odd about it, with the nearest known name
}

// String returns the warning on one line.
func (w Warning) String() string { return "environment " + w.Name + ": " + w.Text }

// Problems returns the problems that an error of this package joins, in the order they were found.
func Problems(err error) []*Problem {
	if p, ok := errors.AsType[*Problem](err); ok && error(p) == err {
		return []*Problem{p}
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var all []*Problem
	for _, e := range joined.Unwrap() {
		all = append(all, Problems(e)...)
	}
	return all
}
