package main

import (
	"slices"
	"strconv"
)

// Row is what one server answers in a closed loop, beside another one.
type Row struct {
	Name      string `json:"name"`
	Against   string `json:"against"`   // what base is
	Ratio     Spread `json:"ratio"`     // calls a second, of the base's in the same round
	P99       Spread `json:"p99_ratio"` // of the base's p99
	CPUBeyond Spread `json:"cpu_us_beyond"`
	CPURatio  Spread `json:"cpu_ratio"`
	Base      Server `json:"base"`
	Ours      Server `json:"ours"`
	// Tuned is the bare server with the settings that sentinel-rls gives its own gRPC server and collector.
	Tuned *Tuned   `json:"tuned,omitzero"`
	Store *StoreIO `json:"store,omitzero"` // what Redis did for one call; absent with the memory store
	// KeyCalls are the store calls a second about the one key that all calls are about. The first of a window is left out:
	// it belongs to the time before.
	KeyCalls *Spread `json:"key_calls_per_second,omitzero"`
	// Noise is the CPURatio of a server with itself in the same rounds.
	Noise *Spread `json:"noise,omitzero"`

	Rounds    int  `json:"rounds"`
	Repeated  int  `json:"rounds_repeated"` // since other work disturbed them
	Disturbed bool `json:"disturbed"`       // too many to repeat them all
}

// Tuned is a Row's second base.
type Tuned struct {
	Ratio Spread `json:"ratio"` // our calls a second, of its
	Server
}

// Server is one side of a Row.
type Server struct {
	PerSecond Spread `json:"calls_per_second"`
	P50       Spread `json:"p50_us"`
	P99       Spread `json:"p99_us"`
	CPU       Spread `json:"cpu_us_per_call"` // by the kernel's accounting
	Odd       Spread `json:"odd_share"`       // calls that were late, failed, or were not answered as meant
	Others    Spread `json:"others_share"`    // of the machine's processor time, used by what has no part in the measure
}

// StoreIO is what Redis did for one call.
type StoreIO struct {
	CPU      Spread `json:"cpu_us"`
	Scripts  Spread `json:"scripts"`
	Commands Spread `json:"commands"` // the scripts and the commands in them
}

// Spread is the median of some windows, with the least and the most, to five digits.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{rounded((sorted[(n-1)/2] + sorted[n/2]) / 2), rounded(sorted[0]), rounded(sorted[n-1])}
}

func rounded(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64) // what was just written is a number
	return r
}

// spread is the spread of one value over windows.
func spread(windows []window, value func(window) float64) Spread {
	values := make([]float64, len(windows))
	for i, w := range windows {
		values[i] = value(w)
	}
	return spreadOf(values)
}

// row compares two entrants of a race.
func (r *race) row(name, against string, base, ours int) Row {
	return Row{
		Name: name, Against: against,
		Ratio: r.against(ours, base, rateRatio), P99: r.against(ours, base, p99Ratio),
		CPUBeyond: r.against(ours, base, cpuBeyond), CPURatio: r.against(ours, base, cpuRatio),
		Base: r.server(base), Ours: r.server(ours),
		Rounds: len(r.rounds), Repeated: r.repeated, Disturbed: r.disturbed,
	}
}

func (r *race) server(entrant int) Server {
	windows := r.windows(entrant)
	return Server{
		PerSecond: spread(windows, func(w window) float64 { return w.calls.Rate() }),
		P50:       spread(windows, func(w window) float64 { return micros(w.calls.Latency.Quantile(0.5)) }),
		P99:       spread(windows, window.p99),
		CPU:       spread(windows, window.cpuPerCall),
		Odd:       spread(windows, func(w window) float64 { return w.odd }),
		Others:    spread(windows, func(w window) float64 { return w.others }),
	}
}

func (r *race) store(entrant int) *StoreIO {
	windows := r.windows(entrant)
	return &StoreIO{
		CPU:      spread(windows, func(w window) float64 { return w.perCall(micros(w.store.CPU)) }),
		Scripts:  spread(windows, func(w window) float64 { return w.perCall(float64(w.store.Scripts)) }),
		Commands: spread(windows, func(w window) float64 { return w.perCall(float64(w.store.Commands)) }),
	}
}
