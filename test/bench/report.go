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
	Schema     string       `json:"schema"` // sentinel.bench/1
	Time       time.Time    `json:"time"`
	Machine    load.Machine `json:"machine"`
	Store      string       `json:"store"` // kind and version
	Size       Size         `json:"size"`
	Seconds    float64      `json:"window_seconds"`
	Throughput []Throughput `json:"throughput,omitempty"`
	Tokens     *Tokens      `json:"token_cache,omitzero"`
	Idle       *Idle        `json:"memory_idle,omitzero"`
	Full       *Full        `json:"memory_full,omitzero"`
}

func newReport(size Size, store *testserver.Server) *Report {
	return &Report{
		Schema: "sentinel.bench/1", Time: time.Now().UTC().Truncate(time.Second), Machine: load.ThisMachine(),
		Store: string(store.Kind()) + " " + store.Version(), Size: size, Seconds: size.Window.Seconds(),
	}
}

// maxOdd is the share of calls that may be denied, late or failed where all were meant to be admitted.
const maxOdd = 0.001

// maxOthers is the share of the machine that other work may take before the figures are more about it than about us.
const maxOthers = 0.1

// missed returns one line for each figure that misses its mark.
func (r *Report) missed() (lines []string) {
	for _, t := range r.Throughput {
		if t.Ratio.Median < t.Floor {
			lines = append(lines, fmt.Sprintf("%s is %.2f of the bare server, not %.2f", t.Name, t.Ratio.Median, t.Floor))
		}
		for name, s := range map[string]Server{"bare server": t.Bare, "sentinel-rls": t.Ours} {
			if odd := s.Denied.Max + s.Lost.Max; odd > maxOdd {
				lines = append(lines, fmt.Sprintf("%s: up to %.2f %% of the %s's calls were not admitted in time: the row is void",
					t.Name, 100*odd, name))
			}
		}
	}
	if t := r.Tokens; t != nil {
		if t.Ratio.Median > t.Limit {
			lines = append(lines, fmt.Sprintf("token_cache: an RS256 token costs %.2f of an HS256 one, not %.2f", t.Ratio.Median, t.Limit))
		}
		if t.Odd > maxOdd {
			lines = append(lines, fmt.Sprintf("token_cache: %.2f %% of the calls were not admitted in time: the row is void", 100*t.Odd))
		}
	}
	if i := r.Idle; i != nil && i.Bytes >= i.Limit {
		lines = append(lines, fmt.Sprintf("memory_idle is %.1f MiB, not under %.0f", mib(i.Bytes), mib(i.Limit)))
	}
	if f := r.Full; f != nil {
		if f.End >= f.Limit {
			lines = append(lines, fmt.Sprintf("memory_full grew from %.1f to %.1f MiB", mib(f.Filled), mib(f.End)))
		}
		if f.Buckets != f.MaxBuckets {
			lines = append(lines, fmt.Sprintf("memory_full: the store kept %d of %d buckets: it was not full", f.Buckets, f.MaxBuckets))
		}
		if f.Admitted < 1-maxOdd {
			lines = append(lines, fmt.Sprintf("memory_full: only %.2f %% of the calls were admitted in time", 100*f.Admitted))
		}
	}
	return lines
}

// print writes the report as Markdown.
func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, load %s before the run, %s, %s, %s, %s\n",
		r.Machine.Processor, r.Machine.Cores, r.Machine.LoadAverage, r.Machine.Kernel, r.Machine.Go, r.Store, r.Time.Format(time.RFC3339))
	if len(r.Throughput) > 0 {
		r.printThroughput(w)
	}
	if t := r.Tokens; t != nil {
		fmt.Fprintf(w, "\nProcessor time of a Check whose token is in the cache, memory store: medians of %d pairs of %d calls [least to most].\n\n", r.Size.Pairs, t.Calls)
		load.Table(w, [][]string{
			{"measure", "RS256 of HS256", "at most", "RS256 CPU µs/call", "HS256 CPU µs/call", "tokens"},
			{"token_cache", t.Ratio.text("%.2f"), fmt.Sprintf("%.2f", t.Limit), t.RS256.text("%.1f"), t.HS256.text("%.1f"), fmt.Sprint(t.Kept)},
		})
	}
	if r.Idle != nil || r.Full != nil {
		r.printMemory(w)
	}
	for _, line := range r.missed() {
		fmt.Fprintf(w, "\nMISSED: %s\n", line)
	}
}

func (r *Report) printThroughput(w io.Writer) {
	fmt.Fprintf(w, "\nThroughput: closed loop, %d callers, %d connections, %d tenants, every call meant to be admitted.\n"+
		"Medians of %d pairs of %gs windows [least to most]; \"of bare\" is against the bare server at Go defaults.\n\n",
		r.Size.Callers, r.Size.Conns, r.Size.Tenants, r.Size.Pairs, r.Seconds)
	rows := [][]string{{
		"measure", "of bare", "floor", "calls/s", "bare", "p50 ms", "bare", "p99 ms", "bare", "CPU µs/call", "bare",
		"Redis µs/call", "scripts/call", "denied", "late or failed",
	}}
	for _, t := range r.Throughput {
		floor, store := "–", []string{"–", "–"}
		if t.Floor > 0 {
			floor = fmt.Sprintf("%.2f", t.Floor)
		}
		if s := t.Store; s != nil {
			store = []string{s.CPU.text("%.1f"), fmt.Sprintf("%.2f", s.Scripts.Median)}
		}
		rows = append(rows, append(append([]string{
			t.Name, t.Ratio.text("%.2f"), floor,
			fmt.Sprintf("%.0f", t.Ours.PerSecond.Median), fmt.Sprintf("%.0f", t.Bare.PerSecond.Median),
			millis(t.Ours.P50), millis(t.Bare.P50), millis(t.Ours.P99), millis(t.Bare.P99),
			t.Ours.CPU.text("%.1f"), t.Bare.CPU.text("%.1f"),
		}, store...), percent(t.Ours.Denied), percent(t.Ours.Lost)))
	}
	load.Table(w, rows)
	others := 0.0
	for _, t := range r.Throughput {
		others = max(others, t.Bare.Others.Max, t.Ours.Others.Max)
	}
	fmt.Fprintf(w, "\nOther work took up to %.0f %% of the machine's processor time in a window.\n", 100*others)
	if others > maxOthers {
		fmt.Fprintln(w, "That is too much: measure again on an idle machine.")
	}
}

func (r *Report) printMemory(w io.Writer) {
	fmt.Fprintf(w, "\nResident memory, memory store.\n\n")
	rows := [][]string{{"measure", "MiB", "under", "what"}}
	if i := r.Idle; i != nil {
		rows = append(rows, []string{
			"memory_idle", fmt.Sprintf("%.1f", mib(i.Bytes)), fmt.Sprintf("%.0f", mib(i.Limit)),
			fmt.Sprintf("%d endpoints, %gs after the start, asked nothing", i.Endpoints, i.Seconds),
		})
	}
	if f := r.Full; f != nil {
		rows = append(rows, []string{
			"memory_full", fmt.Sprintf("%.1f", mib(f.End)), fmt.Sprintf("%.1f", mib(f.Limit)),
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

func millis(s Spread) string  { return fmt.Sprintf("%.2f", s.Median/1000) }
func percent(s Spread) string { return fmt.Sprintf("%.3g %%", 100*s.Max) }
func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
