package main

import (
	"runtime/debug"
	"slices"
	"strings"
)

// gcPercent is how much the heap may grow before the collector runs. What lives is small and what a call allocates is
// garbage at once, so Go's 100 has the collector run some two hundred times a second under load, at 6 µs a call.
const gcPercent = 400

// tuneCollector sets gcPercent unless GOGC says otherwise. GOMEMLIMIT is Go's own and still bounds the whole.
func tuneCollector(variables []string) {
	if !slices.ContainsFunc(variables, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
}
