package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Throughput is what a server answers in a closed loop, beside the bare server.
type Throughput struct {
	Name  string   `json:"name"`
	Ratio Spread   `json:"ratio"`          // calls a second, of the bare server's in the same pair
	Floor float64  `json:"floor"`          // the least ratio that passes; 0: none yet
	Bare  Server   `json:"bare"`           // the bare server
	Ours  Server   `json:"sentinel"`       // sentinel-rls
	Store *StoreIO `json:"store,omitzero"` // what Redis did for one call; absent with the memory store
}

// Server is one side of a Throughput.
type Server struct {
	PerSecond Spread `json:"calls_per_second"`
	P50       Spread `json:"p50_us"`
	P99       Spread `json:"p99_us"`
	CPU       Spread `json:"cpu_us_per_call"` // by the kernel's accounting
	Denied    Spread `json:"denied_share"`    // no: the measure means every call to be admitted
	Lost      Spread `json:"lost_share"`      // late or failed
	Others    Spread `json:"others_share"`    // of the machine's processor time, used by what has no part in the measure
}

// StoreIO is what Redis did for one call.
type StoreIO struct {
	CPU      Spread `json:"cpu_us"`
	Scripts  Spread `json:"scripts"`
	Commands Spread `json:"commands"` // the scripts and the commands in them
}

// Spread is the median of some windows, with the least and the most.
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
	return Spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// spread is the spread of one value over windows.
func spread(windows []window, value func(window) float64) Spread {
	values := make([]float64, len(windows))
	for i, w := range windows {
		values[i] = value(w)
	}
	return spreadOf(values)
}

// admitAll is a policy that admits every call while its store answers, and hardly any when it does not: an answer that
// did not come from the store shows as a denial.
const admitAll = `
domain: load
endpoints:
  all:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 0}
    limits:
      - {algorithm: token_bucket, capacity: 1000000000, refill: 1000000/s}
`

func (b *bench) rlsRedis(ctx context.Context) error {
	return b.throughput(ctx, Throughput{Name: "rls_redis", Floor: 0.5}, b.store, b.askRateLimit)
}

func (b *bench) rlsMemory(ctx context.Context) error {
	return b.throughput(ctx, Throughput{Name: "rls_memory"}, nil, b.askRateLimit)
}

func (b *bench) authzRedis(ctx context.Context) error {
	return b.throughput(ctx, Throughput{Name: "authz_redis"}, b.store, func(p *load.Program) (load.Ask, error) {
		tokens := make([]string, b.size.Tenants)
		for i := range tokens {
			var err error
			if tokens[i], err = p.Token(load.Tenant(uint64(i))); err != nil {
				return nil, err
			}
		}
		return load.Check("all", tokens), nil
	})
}

func (b *bench) askRateLimit(*load.Program) (load.Ask, error) {
	return load.RateLimit("all", b.size.Tenants), nil
}

// throughput measures the program on a store, nil for its own memory, in pairs of windows: one on the bare server, one on
// the program, each pair in the other order. Both are asked the same.
func (b *bench) throughput(
	ctx context.Context, t Throughput, store *testserver.Server, question func(*load.Program) (load.Ask, error),
) error {
	program, conns, stop, err := b.start(ctx, load.Settings{Policies: admitAll, Store: store})
	if err != nil {
		return err
	}
	defer stop()
	ask, err := question(program)
	if err != nil {
		return err
	}
	bare := target{pid: b.bare.PID(), conns: b.bareConns}
	ours := target{pid: program.PID(), conns: conns}
	for _, t := range []target{bare, ours} {
		if _, err := b.window(ctx, t, ask, b.size.WarmUp); err != nil {
			return err
		}
	}
	var ofBare, ofOurs []window
	var ratios []float64
	for pair := range b.size.Pairs {
		var w [2]window
		order := []target{bare, ours}
		for turn := range order {
			i := (turn + pair) % 2
			if w[i], err = b.window(ctx, order[i], ask, b.size.Window); err != nil {
				return err
			}
		}
		ofBare, ofOurs = append(ofBare, w[0]), append(ofOurs, w[1])
		ratios = append(ratios, w[1].calls.Rate()/max(1, w[0].calls.Rate()))
	}
	t.Ratio, t.Bare, t.Ours = spreadOf(ratios), serverOf(ofBare), serverOf(ofOurs)
	if store != nil {
		t.Store = &StoreIO{
			CPU:      spread(ofOurs, func(w window) float64 { return w.perCall(micros(w.store.CPU)) }),
			Scripts:  spread(ofOurs, func(w window) float64 { return w.perCall(float64(w.store.Scripts)) }),
			Commands: spread(ofOurs, func(w window) float64 { return w.perCall(float64(w.store.Commands)) }),
		}
	}
	b.report.Throughput = append(b.report.Throughput, t)
	return nil
}

func serverOf(windows []window) Server {
	return Server{
		PerSecond: spread(windows, func(w window) float64 { return w.calls.Rate() }),
		P50:       spread(windows, func(w window) float64 { return micros(w.calls.Latency.Quantile(0.5)) }),
		P99:       spread(windows, func(w window) float64 { return micros(w.calls.Latency.Quantile(0.99)) }),
		CPU:       spread(windows, func(w window) float64 { return w.perCall(micros(w.cpu)) }),
		Denied:    spread(windows, func(w window) float64 { return w.calls.Share(load.Denied) }),
		Lost:      spread(windows, func(w window) float64 { return w.calls.Share(load.Late) + w.calls.Share(load.Failed) }),
		Others:    spread(windows, func(w window) float64 { return w.others }),
	}
}

// target is a server under load.
type target struct {
	pid   int
	conns load.Conns
}

// window is one run on one server and what was used for it.
type window struct {
	calls  *load.Report
	cpu    time.Duration // of the server
	store  load.RedisUsage
	others float64 // share of the machine's processor time that went elsewhere
}

func (w window) perCall(n float64) float64 { return n / float64(max(1, w.calls.Calls())) }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (b *bench) window(ctx context.Context, t target, ask load.Ask, length time.Duration) (w window, err error) {
	before, err := b.meter(ctx, t)
	if err != nil {
		return w, err
	}
	loop := load.Closed{Callers: b.size.Callers, Deadline: deadline, For: length}
	if w.calls, err = loop.Run(ctx, t.conns, ask); err != nil {
		return w, err
	}
	after, err := b.meter(ctx, t)
	if err != nil {
		return w, err
	}
	w.cpu = after.server - before.server
	w.store = after.store.Sub(before.store)
	elsewhere := (after.machine - before.machine) - (after.involved - before.involved)
	w.others = max(0, float64(elsewhere)/float64(max(1, after.there-before.there)))
	if w.calls.Answered() == 0 {
		return w, fmt.Errorf("no call of %d was answered in time: %w", w.calls.Calls(), w.calls.Err())
	}
	return w, nil
}

// meter is what had been used at one moment.
type meter struct {
	server   time.Duration
	involved time.Duration // by the server, Redis and this process together
	machine  time.Duration // by every process
	there    time.Duration // and how much there was
	store    load.RedisUsage
}

func (b *bench) meter(ctx context.Context, t target) (m meter, err error) {
	for _, pid := range []int{t.pid, b.store.PID(), os.Getpid()} {
		cpu, err := load.CPU(pid)
		if err != nil {
			return m, err
		}
		m.involved += cpu
		if pid == t.pid {
			m.server = cpu
		}
	}
	if m.machine, m.there, err = load.MachineCPU(); err != nil {
		return m, err
	}
	m.store, err = load.ReadRedisUsage(ctx, b.client)
	return m, err
}
