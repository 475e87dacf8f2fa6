package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mark is what a figure is held to. A bound of 0 is none.
type mark struct {
	figure string // measure.figure
	what   string
	digits int     // after the point
	atMost bool    // the bounds are the most, not the least
	reach  float64 // missing it fails -check
	goal   float64 // missing it is said
	floor  float64 // of -gate: about three quarters of what was measured, so that it does not depend on the machine
}

// marks are the figures in the order of the report.
var marks = []mark{
	{figure: "rls_redis.ratio", what: "calls/s, of the bare server's", digits: 2, reach: 0.70, goal: 0.75, floor: 0.48},
	{figure: "rls_redis.p99", what: "p99, of the bare server's", digits: 2, atMost: true, reach: 1.3},
	{figure: "rls_redis.tuned", what: "calls/s, of a bare server's with our GC and gRPC settings", digits: 2},
	{figure: "rls_redis.cpu", what: "server CPU µs/call beyond the bare server's", digits: 1, atMost: true, goal: 5},
	{figure: "rls_redis.redis_cpu", what: "Redis CPU µs/call", digits: 1, atMost: true, goal: 11},
	{figure: "rls_memory.ratio", what: "calls/s, of the bare server's", digits: 2},
	{figure: "rls_denied.ratio", what: "calls/s, of the bare server's", digits: 2, reach: 0.90, floor: 0.70},
	{figure: "rls_denied.key_calls", what: "store calls/s about the one key", digits: 2, atMost: true, reach: 1},
	{figure: "authz_redis.ratio", what: "Checks/s, of the bare server's; tokens kept", digits: 2, reach: 0.70, floor: 0.50},
	{figure: "authz_uncached.ratio", what: "Checks/s, of the bare server's; each token verified anew", digits: 2},
	{figure: "groups_2.ratio", what: "calls/s, of those with one limit", digits: 2, reach: 0.90, floor: 0.68},
	{figure: "groups_4.ratio", what: "calls/s, of those with one limit", digits: 2, reach: 0.72, floor: 0.54},
	{figure: "groups_8.ratio", what: "calls/s, of those with one limit", digits: 2, reach: 0.53, floor: 0.40},
	{figure: "envoy.ratio", what: "requests/s through Envoy, of those through one that asks the bare server", digits: 2, reach: 0.85, floor: 0.65},
	{figure: "scale_endpoints.cpu_ratio", what: "server CPU/call with 10 000 endpoints, of that with 10", digits: 2, atMost: true, reach: 1.10},
	{figure: "scale_tenants.cpu_ratio", what: "server CPU/call with 1 000 000 tenants, of that with 1 000", digits: 2, atMost: true, reach: 1.10},
	{figure: "open_loop.late", what: "answers after 20 ms, of 1 000; at most the bare server's", digits: 3, atMost: true},
	{figure: "open_loop.p999", what: "p99.9 in ms at half capacity, from when a call was due", digits: 1, atMost: true},
	{figure: "overload.in_time", what: "share answered within 20 ms", digits: 2, reach: 0.80},
	{figure: "overload.by_store", what: "share of the decisions that are Redis'; the rest are local", digits: 2},
	{figure: "overload.admitted", what: "admitted locally, of the emergency cap's bound", digits: 2, atMost: true, reach: 1},
	{figure: "token_cache.ratio", what: "CPU of a Check with a kept RS256 token, of one with a kept HS256 token", digits: 2, atMost: true, reach: 1.15},
	{figure: "memory_idle.mib", what: "MiB resident, 10 s after the start", digits: 1, atMost: true, reach: 48},
	{figure: "memory_full.growth", what: "MiB resident after 1 000 000 tenants, of just after the memory store was full", digits: 3, atMost: true, reach: 1.05},
}

// Figure is one number of a report, and what became of its marks.
type Figure struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Value   Spread   `json:"value"`
	AtMost  bool     `json:"at_most,omitempty"` // the bounds are the most, not the least
	Reach   *float64 `json:"reach,omitempty"`
	Goal    *float64 `json:"goal,omitempty"`
	Digits  int      `json:"digits"` // after the point, where it is printed
	Verdict Verdict  `json:"verdict"`
	Why     string   `json:"why,omitempty"` // the verdict is void or notJudged
}

// Verdict is what became of a figure's marks.
type Verdict string

// The verdicts.
const (
	printed    Verdict = "printed"     // it has no marks
	reached    Verdict = "reached"     // all
	goalMissed Verdict = "goal missed" // but what must be reached is
	missed     Verdict = "missed"
	void       Verdict = "void"       // the calls did not end as meant
	notJudged  Verdict = "not judged" // other work disturbed the measure, or a pause of the machine made calls late
)

func (f *Figure) meets(bound *float64) bool {
	switch {
	case bound == nil:
		return true
	case f.AtMost:
		return f.Value.Median <= *bound
	}
	return f.Value.Median >= *bound
}

// judge sets the verdict. why is why the measure is void or not to be judged, if it is.
func (f *Figure) judge(verdict Verdict, why string) {
	switch {
	case verdict != "":
		f.Verdict, f.Why = verdict, why
	case f.Reach == nil && f.Goal == nil:
		f.Verdict = printed
	case !f.meets(f.Reach):
		f.Verdict = missed
	case !f.meets(f.Goal):
		f.Verdict = goalMissed
	default:
		f.Verdict = reached
	}
}

// bound returns a bound in words, "–" for none.
func (f *Figure) bound(value *float64) string {
	if value == nil {
		return "–"
	}
	sign := "≥"
	if f.AtMost {
		sign = "≤"
	}
	return sign + " " + f.text(*value)
}

func (f *Figure) text(value float64) string { return strconv.FormatFloat(value, 'f', f.Digits, 64) }

// line says a figure in words.
func (f *Figure) line() string {
	switch f.Verdict {
	case missed:
		return fmt.Sprintf("%s is %s, not %s", f.Name, f.text(f.Value.Median), f.bound(f.Reach))
	case void, notJudged:
		return fmt.Sprintf("%s is %s: %s", f.Name, f.Verdict, f.Why)
	}
	return fmt.Sprintf("%s is %s: %s", f.Name, f.text(f.Value.Median), f.Verdict)
}

// figures returns those of the values of a measure that have a place among marks.
func figures(measure string, values map[string]*Spread, verdict Verdict, why string) (figures []Figure) {
	for _, m := range marks {
		of, name, _ := strings.Cut(m.figure, ".")
		value := values[name]
		if of != measure || value == nil {
			continue
		}
		f := Figure{Name: m.figure, What: m.what, Value: *value, AtMost: m.atMost, Digits: m.digits}
		f.Reach, f.Goal = optional(m.reach), optional(m.goal)
		f.judge(verdict, why)
		figures = append(figures, f)
	}
	return figures
}

func optional(bound float64) *float64 {
	if bound == 0 {
		return nil
	}
	return &bound
}

// figures returns the figures of a row that have a place among marks.
func (row *Row) figures() []Figure {
	values := map[string]*Spread{"ratio": &row.Ratio, "p99": &row.P99, "cpu": &row.CPUBeyond, "cpu_ratio": &row.CPURatio, "key_calls": row.KeyCalls}
	if row.Tuned != nil {
		values["tuned"] = &row.Tuned.Ratio
	}
	if row.Store != nil {
		values["redis_cpu"] = &row.Store.CPU
	}
	verdict, why := row.fitness()
	all := figures(row.Name, values, verdict, why)
	for i := range all {
		// More than the mark is the server's doing only where it is more than a server differs from itself.
		if r := all[i].Reach; row.Noise != nil && r != nil {
			widest := max(*r, row.Noise.Max, 1/max(0.1, row.Noise.Min))
			all[i].Reach = &widest
			all[i].judge(verdict, why)
		}
	}
	return all
}

// fitness says whether a row may be judged, and why not.
func (row *Row) fitness() (Verdict, string) {
	if row.Disturbed {
		return notJudged, fmt.Sprintf("other work took up to %.0f %% of the machine", 100*max(row.Base.Others.Max, row.Ours.Others.Max))
	}
	odd := max(row.Base.Odd.Max, row.Ours.Odd.Max)
	why := fmt.Sprintf("up to %.2f %% of the calls did not end as meant", 100*odd)
	switch {
	case max(row.Base.Odd.Median, row.Ours.Odd.Median) > voidOdd:
		return void, why
	case odd > maxOdd:
		return notJudged, why
	}
	return "", ""
}

// gated returns the figures that have a floor, held to it.
func gated(figures []Figure) (held []Figure) {
	for _, f := range figures {
		i := slices.IndexFunc(marks, func(m mark) bool { return m.figure == f.Name })
		if i < 0 || marks[i].floor == 0 {
			continue
		}
		verdict := f.Verdict
		f.Reach, f.Goal = &marks[i].floor, nil
		if verdict != void && verdict != notJudged {
			verdict = ""
		}
		f.judge(verdict, f.Why)
		held = append(held, f)
	}
	return held
}
