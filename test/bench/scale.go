package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// named returns the names of n endpoints, and policy files that have them and admit everyone, with buckets that stay for an
// hour.
func named(n int) (names, files []string) {
	const perFile = 2000 // a file may hold 1 MiB
	for names := range slices.Chunk(numbered(n), perFile) {
		var file strings.Builder
		file.WriteString("domain: load\nendpoints:\n")
		for _, name := range names {
			fmt.Fprintf(&file, `  %s:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 0}
    limits:
      - {algorithm: token_bucket, capacity: 1000000, refill: 1/3600s}
`, name)
		}
		files = append(files, file.String())
	}
	return numbered(n), files
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("endpoint-%d", i)
	}
	return names
}

// scale measures what a call costs the server when there is little and when there is much: endpoints, then tenants.
func (b *bench) scale(ctx context.Context, r *Report) error {
	few, many := b.size.ScaleEndpoints/1000, b.size.ScaleEndpoints
	err := b.scaled(ctx, r, "scale_endpoints", fmt.Sprintf("%d endpoints", few), [2]extent{{few, 1000}, {many, 1000}})
	if err != nil {
		return err
	}
	few, many = b.size.ScaleTenants/1000, b.size.ScaleTenants
	err = b.scaled(ctx, r, "scale_tenants", fmt.Sprintf("%d tenants", few), [2]extent{{1, few}, {1, many}})
	if err != nil {
		return err
	}
	return b.client.FlushAll(ctx).Err() // a million buckets
}

// extent is how much there is.
type extent struct{ endpoints, tenants int }

// scaled has four entrants: the program with little, the program with much, and the bare server twice, which tells how much
// of the difference is noise. Before, a program that is asked about many tenants is asked about each once.
func (b *bench) scaled(ctx context.Context, r *Report, name, against string, extents [2]extent) error {
	var entrants []entrant
	for _, x := range extents {
		endpoints, files := named(x.endpoints)
		ask := load.RateLimitAmong(endpoints, x.tenants)
		e, stop, err := b.enter(ctx, load.Settings{Policies: files[0], More: files[1:], Store: b.store}, ask)
		if err != nil {
			return err
		}
		defer stop()
		if x.endpoints == 1 {
			all := load.Closed{Callers: b.size.Callers, Deadline: deadline, Calls: uint64(x.tenants)}
			if _, err := all.Run(ctx, e.conns, load.DistinctTenants(endpoints[0])); err != nil {
				return err
			}
		}
		entrants = append(entrants, e)
	}
	bare := b.barely(entrants[0].ask)
	race, err := b.race(ctx, entrants[0], entrants[1], bare, bare)
	if err != nil {
		return err
	}
	row := race.row(name, against, 0, 1)
	row.Store = race.store(1)
	noise := race.against(3, 2, cpuRatio)
	row.Noise = &noise
	r.Rows = append(r.Rows, row)
	return nil
}
