package lua

import (
	"strconv"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// maxStateLength is the length in bytes up to which a stored value is looked at. What the scripts write has at most 38.
const maxStateLength = 64

// EncodeState returns s, which must be present, as the scripts store it for rule r:
//
//	token bucket    "level:at"                  µtok, µs
//	sliding window  "current:previous:start"    hits, hits, µs
//	fixed window    "w:count:start"             hits, µs
func EncodeState(r algorithms.Rule, s algorithms.State) string {
	text := make([]byte, 0, maxStateLength)
	if r.Kind() == algorithms.FixedWindow {
		text = append(text, fixedWindowMark...)
	}
	text = strconv.AppendInt(text, s.Level, 10)
	if r.Kind() == algorithms.SlidingWindow {
		text = append(text, ':')
		text = strconv.AppendInt(text, s.Previous, 10)
	}
	text = append(text, ':')
	return string(strconv.AppendInt(text, int64(s.At), 10))
}

// DecodeState reads a stored value. It is false, and the state absent, for a value that the scripts cannot read at now:
// another shape, or one that r.Valid refuses.
func DecodeState(r algorithms.Rule, text string, now algorithms.Micros) (algorithms.State, bool) {
	if len(text) > maxStateLength {
		return algorithms.State{}, false
	}
	if r.Kind() == algorithms.FixedWindow {
		var marked bool
		if text, marked = strings.CutPrefix(text, fixedWindowMark); !marked {
			return algorithms.State{}, false
		}
	}
	var fields [3]int64
	n := 0
	for more := true; more; n++ {
		var field string
		field, text, more = strings.Cut(text, ":")
		if n == len(fields) {
			return algorithms.State{}, false
		}
		var ok bool
		if fields[n], ok = decimal(field); !ok {
			return algorithms.State{}, false
		}
	}
	var s algorithms.State
	switch {
	case n == 2 && r.Kind() != algorithms.SlidingWindow:
		s = algorithms.State{Present: true, Level: fields[0], At: algorithms.Micros(fields[1])}
	case n == 3 && r.Kind() == algorithms.SlidingWindow:
		s = algorithms.State{Present: true, Level: fields[0], Previous: fields[1], At: algorithms.Micros(fields[2])}
	}
	if !s.Present || !r.Valid(s, now) {
		return algorithms.State{}, false
	}
	return s, true
}

// fixedWindowMark begins a fixed window's value, so that no algorithm reads another's.
const fixedWindowMark = "w:"

// maxDecimal is beyond every number that a state may hold, and beyond 2^53, up to which the scripts read digits exactly.
const maxDecimal = 1 << 59

// decimal reads one or more digits; a larger number reads as maxDecimal.
func decimal(text string) (int64, bool) {
	var n int64
	for i := range len(text) {
		c := text[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), maxDecimal)
	}
	return n, text != ""
}
