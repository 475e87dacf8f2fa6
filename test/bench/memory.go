package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Idle is the resident memory of a program that nobody has asked anything.
type Idle struct {
	Endpoints int     `json:"endpoints"`
	Seconds   float64 `json:"seconds"` // since the start
	Bytes     int64   `json:"bytes"`
}

// Full is the resident memory of a program whose memory store is full, while ever more tenants come.
type Full struct {
	Tenants    int     `json:"tenants"`       // distinct ones that have come in the end
	Buckets    int64   `json:"buckets"`       // that the store keeps in the end
	MaxBuckets int64   `json:"max_buckets"`   // that it may keep
	Filled     int64   `json:"bytes_filled"`  // the median over the first quarter of what came after it was full
	End        int64   `json:"bytes_end"`     // the median over the last quarter
	Samples    []int64 `json:"bytes_sampled"` // after each twentieth of the tenants
	Admitted   float64 `json:"admitted_share"`
}

const fullSamples = 20

// endpoints returns a policy file with n endpoints, each as an operator would write one.
func endpoints(n int) string {
	var file strings.Builder
	file.WriteString("domain: load\nendpoints:\n")
	for i := range n {
		fmt.Fprintf(&file, `  endpoint-%d:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 25/s}
    limits:
      - {algorithm: token_bucket, capacity: 100, refill: 50/s}
      - {name: everyone, scope: global, algorithm: sliding_window, limit: 5000, window: 1m}
`, i)
	}
	return file.String()
}

func (b *bench) memoryIdle(ctx context.Context, r *Report) error {
	program, err := load.Start(ctx, load.Settings{
		Binary: b.binary, Policies: endpoints(b.size.IdleEndpoints), Env: b.size.Env,
	})
	if err != nil {
		return err
	}
	defer program.Stop()
	select {
	case <-time.After(b.size.IdleFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	bytes, err := load.RSS(program.PID())
	if err != nil {
		return err
	}
	r.Idle = &Idle{b.size.IdleEndpoints, b.size.IdleFor.Seconds(), bytes}
	return nil
}

// oneEach is a policy whose buckets stay in use for half an hour once they were asked, so that the store can drop none of
// them. It admits everyone, also those who share the overflow bucket.
const oneEach = `
domain: load
endpoints:
  all:
    policy_version: 1
    fail_mode: fail_closed
    limits:
      - {algorithm: token_bucket, capacity: 2000000, refill: 1/1800s}
`

func (b *bench) memoryFull(ctx context.Context, r *Report) error {
	program, conns, stop, err := b.start(ctx, load.Settings{
		Policies: oneEach, Env: []string{fmt.Sprintf("SENTINEL_MEMORY_MAX_BUCKETS=%d", b.size.FullBuckets)},
	})
	if err != nil {
		return err
	}
	defer stop()
	full := Full{Tenants: b.size.FullTenants, MaxBuckets: int64(b.size.FullBuckets)}
	step, admitted := b.size.FullTenants/fullSamples, int64(0)
	for i := range fullSamples {
		loop := load.Closed{Callers: b.size.Callers, Deadline: deadline, Calls: uint64(step), First: uint64(i * step)}
		calls, err := loop.Run(ctx, conns, load.DistinctTenants("all"))
		if err != nil {
			return err
		}
		admitted += calls.Count(load.Allowed)
		bytes, err := load.RSS(program.PID())
		if err != nil {
			return err
		}
		full.Samples = append(full.Samples, bytes)
	}
	buckets, err := program.Metric(ctx, "sentinel_memory_store_buckets")
	if err != nil {
		return err
	}
	full.Buckets = int64(buckets)
	full.Admitted = float64(admitted) / float64(step*fullSamples)
	full.settle(b.size.FullBuckets / step)
	r.Full = &full
	return nil
}

// settle compares the first and the last quarter of the samples from the given one on, after which the store was full.
func (f *Full) settle(from int) {
	after := f.Samples[min(from, len(f.Samples)-1):]
	quarter := max(1, len(after)/4)
	f.Filled, f.End = median(after[:quarter]), median(after[len(after)-quarter:])
}

func median(bytes []int64) int64 {
	sorted := slices.Sorted(slices.Values(bytes))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
