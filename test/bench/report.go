package main

import (
	"fmt"
	"io"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Report is everything that was measured.
type Report struct {
	Schema   string       `json:"schema"` // sentinel.bench/1
	Time     time.Time    `json:"time"`
	Machine  load.Machine `json:"machine"`
	Store    string       `json:"store"` // kind and version
	Size     Size         `json:"size"`
	Seconds  float64      `json:"window_seconds"`
	Open     *OpenLoop    `json:"open_loop,omitzero"`
	Overload *Overload    `json:"overload,omitzero"`
	Rows     []Row        `json:"rows,omitempty"`
	Tokens   *Tokens      `json:"token_cache,omitzero"`
	Idle     *Idle        `json:"memory_idle,omitzero"`
	Full     *Full        `json:"memory_full,omitzero"`
	Figures  []Figure     `json:"figures"`
}

func newReport(size Size, store *testserver.Server) *Report {
	return &Report{
		Schema: "sentinel.bench/1", Time: time.Now().UTC().Truncate(time.Second), Machine: load.ThisMachine(),
		Store: string(store.Kind()) + " " + store.Version(), Size: size, Seconds: size.Window.Seconds(),
	}
}

// maxOdd is the share of calls that may be denied, late or failed where all were meant to be admitted.
const maxOdd = 0.001

// voidOdd is the share from which on, in half of the windows, it is not the machine that pauses: a server that denies looks
// fast.
const voidOdd = 0.05

// maxOthers is the share of the machine that other work may take before the figures are more about it than about us.
const maxOthers = 0.1

// figures returns the figures of every measure, in the order of the marks.
func (r *Report) figures() (all []Figure) {
	for i := range r.Rows {
		all = append(all, r.Rows[i].figures()...)
	}
	if r.Open != nil {
		all = append(all, r.Open.figures()...)
	}
	if r.Overload != nil {
		all = append(all, r.Overload.figures()...)
	}
	if t := r.Tokens; t != nil {
		verdict, why := Verdict(""), ""
		if t.Odd > maxOdd {
			verdict, why = void, fmt.Sprintf("%.2f %% of the calls were not admitted in time", 100*t.Odd)
		}
		all = append(all, figures("token_cache", map[string]*Spread{"ratio": &t.Ratio}, verdict, why)...)
	}
	if i := r.Idle; i != nil {
		all = append(all, figures("memory_idle", map[string]*Spread{"mib": alone(mib(i.Bytes))}, "", "")...)
	}
	if f := r.Full; f != nil {
		verdict, why := Verdict(""), ""
		switch {
		case f.Buckets != f.MaxBuckets:
			verdict, why = void, fmt.Sprintf("the store kept %d of %d buckets: it was not full", f.Buckets, f.MaxBuckets)
		case f.Admitted < 1-maxOdd:
			verdict, why = void, fmt.Sprintf("only %.2f %% of the calls were admitted in time", 100*f.Admitted)
		}
		growth := alone(float64(f.End) / float64(max(1, f.Filled)))
		all = append(all, figures("memory_full", map[string]*Spread{"growth": growth}, verdict, why)...)
	}
	return all
}

// alone is the spread of one value.
func alone(v float64) *Spread { return &Spread{v, v, v} }

// missed returns one line for each figure that misses its mark or is void.
func (r *Report) missed() (lines []string) {
	for _, f := range r.Figures {
		if f.Verdict == missed || f.Verdict == void {
			lines = append(lines, f.line())
		}
	}
	return lines
}

// print writes the report as Markdown.
func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, load %s before the run, %s, %s, %s, %s\n",
		r.Machine.Processor, r.Machine.Cores, r.Machine.LoadAverage, r.Machine.Kernel, r.Machine.Go, r.Store, r.Time.Format(time.RFC3339))
	if len(r.Rows) > 0 {
		r.printRows(w)
	}
	if r.Open != nil {
		r.Open.print(w)
	}
	if r.Overload != nil {
		r.Overload.print(w)
	}
	if t := r.Tokens; t != nil {
		fmt.Fprintf(w, "\nProcessor time of a Check whose token is in the cache, memory store: medians of %d pairs of %d calls [least to most].\n\n", r.Size.Pairs, t.Calls)
		load.Table(w, [][]string{
			{"measure", "RS256 of HS256", "RS256 CPU µs/call", "HS256 CPU µs/call", "tokens"},
			{"token_cache", t.Ratio.text("%.2f"), t.RS256.text("%.1f"), t.HS256.text("%.1f"), fmt.Sprint(t.Kept)},
		})
	}
	if r.Idle != nil || r.Full != nil {
		r.printMemory(w)
	}
	fmt.Fprintf(w, "\nFigures, medians [least to most].\n\n")
	printFigures(w, r.Figures)
}

func printFigures(w io.Writer, all []Figure) {
	rows := [][]string{{"figure", "what", "value", "reach", "goal", "verdict"}}
	for _, f := range all {
		verdict := string(f.Verdict)
		if f.Why != "" {
			verdict += ": " + f.Why
		}
		rows = append(rows, []string{f.Name, f.What, f.Value.text(fmt.Sprintf("%%.%df", f.Digits)), f.bound(f.Reach), f.bound(f.Goal), verdict})
	}
	load.Table(w, rows)
}

func (r *Report) printRows(w io.Writer) {
	fmt.Fprintf(w, "\nThroughput: closed loop, %d callers, %d connections, %d tenants. Medians of %d pairs of %gs windows [least to most].\n\n",
		r.Size.Callers, r.Size.Conns, r.Size.Tenants, r.Size.Pairs, r.Seconds)
	rows := [][]string{{
		"measure", "against", "ratio", "calls/s", "its", "p50 ms", "its", "p99 ms", "its", "CPU µs/call", "its",
		"Redis µs/call", "scripts/call", "odd", "rounds repeated",
	}}
	others := 0.0
	for _, row := range r.Rows {
		cells := []string{
			row.Name, row.Against, row.Ratio.text("%.2f"),
			fmt.Sprintf("%.0f", row.Ours.PerSecond.Median), fmt.Sprintf("%.0f", row.Base.PerSecond.Median),
			millis(row.Ours.P50), millis(row.Base.P50), millis(row.Ours.P99), millis(row.Base.P99),
			row.Ours.CPU.text("%.1f"), row.Base.CPU.text("%.1f"),
		}
		if s := row.Store; s != nil {
			cells = append(cells, s.CPU.text("%.1f"), fmt.Sprintf("%.2f", s.Scripts.Median))
		} else {
			cells = append(cells, "–", "–")
		}
		rows = append(rows, append(cells, percent(max(row.Ours.Odd.Max, row.Base.Odd.Max)), fmt.Sprint(row.Repeated)))
		others = max(others, row.Base.Others.Max, row.Ours.Others.Max)
	}
	load.Table(w, rows)
	fmt.Fprintf(w, "\nOther work took up to %.0f %% of the machine's processor time in a window.\n", 100*others)
	if others > maxOthers {
		fmt.Fprintln(w, "That is too much: measure again on an idle machine.")
	}
}

func (r *Report) printMemory(w io.Writer) {
	fmt.Fprintf(w, "\nResident memory, memory store.\n\n")
	rows := [][]string{{"measure", "MiB", "what"}}
	if i := r.Idle; i != nil {
		rows = append(rows, []string{
			"memory_idle", fmt.Sprintf("%.1f", mib(i.Bytes)),
			fmt.Sprintf("%d endpoints, %gs after the start, asked nothing", i.Endpoints, i.Seconds),
		})
	}
	if f := r.Full; f != nil {
		rows = append(rows, []string{
			"memory_full", fmt.Sprintf("%.1f", mib(f.End)),
			fmt.Sprintf("after %d distinct tenants, %d of %d buckets kept; just after it was full: %.1f",
				f.Tenants, f.Buckets, f.MaxBuckets, mib(f.Filled)),
		})
	}
	load.Table(w, rows)
}

// text is the median and, in brackets, the spread.
func (s Spread) text(format string) string {
	return fmt.Sprintf(format+" ["+format+"–"+format+"]", s.Median, s.Min, s.Max)
}

func millis(s Spread) string       { return fmt.Sprintf("%.2f", s.Median/1000) }
func percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }
func mib(bytes int64) float64      { return float64(bytes) / (1 << 20) }
