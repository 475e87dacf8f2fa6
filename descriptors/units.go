package descriptors

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// The units of refills and windows, in seconds; milliseconds are for windows alone.
var unitSeconds = map[string]int64{"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60}

var (
	refillGrammar = regexp.MustCompile(`^([1-9][0-9]*)/([1-9][0-9]*)?([smhd])$`)
	windowGrammar = regexp.MustCompile(`^([1-9][0-9]*)(ms|[smhd])$`)
)

const (
	refillForm = "write tokens per time, as 50/s, 100/m, 1/3s or 5000/d, or 0 for no refill; units: s, m, h, d"
	windowForm = "write a whole number and a unit, as 500ms, 1m, 24h or 7d; units: ms, s, m, h, d"
)

// refill reads v as a refill rate, kept as the reduced fraction tokens/seconds.
func (s *source) refill(v value) (algorithms.Rate, bool) {
	text, ok := s.scalar(v, "a refill rate")
	if !ok {
		return algorithms.Rate{}, false
	}
	if text == "0" {
		return algorithms.Rate{}, true
	}
	m := refillGrammar.FindStringSubmatch(text)
	if m == nil {
		s.report(v.Line, v.at, quote(text)+" is not a refill rate", refillForm)
		return algorithms.Rate{}, false
	}
	tokens, tokensFit := product(m[1], 1, algorithms.MaxRate)
	seconds, secondsFit := product(m[2], unitSeconds[m[3]], algorithms.MaxRate)
	if !tokensFit || !secondsFit {
		s.report(v.Line, v.at, printable(text)+" is out of range",
			fmt.Sprintf("tokens times seconds, in lowest terms, must be at most 2^52 = %d", algorithms.MaxRate))
		return algorithms.Rate{}, false
	}
	rate, err := algorithms.NewRate(tokens, seconds)
	return rate, s.ruleError(v, err)
}

// window reads v as a window.
func (s *source) window(v value) (time.Duration, bool) {
	text, ok := s.scalar(v, "a window")
	if !ok {
		return 0, false
	}
	m := windowGrammar.FindStringSubmatch(text)
	if m == nil {
		s.report(v.Line, v.at, quote(text)+" is not a window", windowForm)
		return 0, false
	}
	unit := time.Millisecond
	if m[2] != "ms" {
		unit = time.Duration(unitSeconds[m[2]]) * time.Second
	}
	window, fits := product(m[1], int64(unit), int64(algorithms.MaxWindow))
	if !fits {
		s.report(v.Line, v.at, printable(text)+" is out of range", "it must be in 1ms..3257d (2^48-1 microseconds)")
		return 0, false
	}
	return time.Duration(window), true
}

// scalar reads v as the text of a scalar, whatever YAML takes it for: the grammar of units decides.
func (s *source) scalar(v value, want string) (string, bool) {
	if v.Kind != yaml.ScalarNode || v.isNull() || v.reported() {
		s.wrongType(v, want)
		return "", false
	}
	return v.Value, true
}

// product returns digits × unit; no digits count as 1. False: above most.
func product(digits string, unit, most int64) (int64, bool) {
	if digits == "" {
		return unit, true
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > most/unit {
		return 0, false
	}
	return n * unit, true
}
