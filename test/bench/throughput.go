package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

const bareServer = "the bare server"

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
      - {algorithm: token_bucket, capacity: 10000000, refill: 1/60s}
`

// barely is the bare server, asked something.
func (b *bench) barely(ask load.Ask) entrant {
	return entrant{server: b.bare.Process, conns: b.bareConns, ask: ask, means: load.Allowed}
}

// rlsRedis has three entrants: the bare server, the program, and the bare server with the program's own settings.
func (b *bench) rlsRedis(ctx context.Context, r *Report) error {
	ask := load.RateLimit("all", b.size.Tenants)
	ours, stop, err := b.enter(ctx, load.Settings{Policies: admitAll, Store: b.store}, ask)
	if err != nil {
		return err
	}
	defer stop()
	entrants := []entrant{b.barely(ask), ours}
	if !b.size.Quick {
		tuned, err := load.StartTunedBare(ctx)
		if err != nil {
			return err
		}
		defer tuned.Kill()
		conns, err := load.Dial(ctx, tuned.Addr(), b.size.Conns)
		if err != nil {
			return err
		}
		defer conns.Close()
		entrants = append(entrants, entrant{server: tuned.Process, conns: conns, ask: ask, means: load.Allowed})
	}
	race, err := b.race(ctx, entrants...)
	if err != nil {
		return err
	}
	row := race.row("rls_redis", bareServer, 0, 1)
	row.Store = race.store(1)
	if len(entrants) > 2 {
		row.Tuned = &Tuned{race.against(1, 2, rateRatio), race.server(2)}
	}
	r.Rows = append(r.Rows, row)
	return nil
}

func (b *bench) rlsMemory(ctx context.Context, r *Report) error {
	ask := load.RateLimit("all", b.size.Tenants)
	ours, stop, err := b.enter(ctx, load.Settings{Policies: admitAll}, ask)
	if err != nil {
		return err
	}
	defer stop()
	race, err := b.race(ctx, b.barely(ask), ours)
	if err != nil {
		return err
	}
	r.Rows = append(r.Rows, race.row("rls_memory", bareServer, 0, 1))
	return nil
}

// hot has one bucket that admits a call a minute.
const hot = `
domain: load
endpoints:
  hot:
    policy_version: 1
    fail_mode: fail_closed
    limits:
      - {algorithm: token_bucket, capacity: 1, refill: 1/60s}
`

// rlsDenied asks about one tenant that is far over its limit.
func (b *bench) rlsDenied(ctx context.Context, r *Report) error {
	program, conns, stop, err := b.start(ctx, load.Settings{Policies: hot, Store: b.store})
	if err != nil {
		return err
	}
	defer stop()
	ask := load.RateLimit("hot", 1)
	// Groups, not commands: the process' heartbeat is a script with the same commands.
	count := func() (float64, error) { return program.Metric(ctx, "sentinel_store_batch_groups") }
	ours := entrant{server: program.Process, conns: conns, ask: ask, means: load.Denied, count: count}
	race, err := b.race(ctx, b.barely(ask), ours)
	if err != nil {
		return err
	}
	row := race.row("rls_denied", bareServer, 0, 1)
	row.Store = race.store(1)
	calls := spread(race.windows(1), func(w window) float64 { return max(0, w.counted-1) / w.calls.Elapsed.Seconds() })
	row.KeyCalls = &calls
	r.Rows = append(r.Rows, row)
	return nil
}

// authz has three entrants: the bare server, the program, and the program that keeps no verified token. All get the same
// RS256 tokens.
func (b *bench) authz(ctx context.Context, r *Report) error {
	settings, ask, forget, err := b.checks()
	if err != nil {
		return err
	}
	defer forget()
	cached, stop, err := b.enter(ctx, settings, ask)
	if err != nil {
		return err
	}
	defer stop()
	entrants, rows := []entrant{b.barely(ask), cached}, []string{"authz_redis"}
	if !b.size.Quick {
		settings.Env = append(settings.Env, "SENTINEL_JWT_CACHE_TOKENS=0")
		uncached, stop, err := b.enter(ctx, settings, ask)
		if err != nil {
			return err
		}
		defer stop()
		entrants, rows = append(entrants, uncached), append(rows, "authz_uncached")
	}
	if err := b.verifyAll(ctx, cached); err != nil {
		return err
	}
	race, err := b.race(ctx, entrants...)
	if err != nil {
		return err
	}
	for i, name := range rows {
		row := race.row(name, bareServer, 0, 1+i)
		row.Store = race.store(1 + i)
		r.Rows = append(r.Rows, row)
	}
	return nil
}

// checks is a program with keys in a directory of its own, which forget removes, and Checks with RS256 tokens that they sign.
func (b *bench) checks() (settings load.Settings, ask load.Ask, forget func(), err error) {
	dir, err := os.MkdirTemp("", "tokens")
	if err != nil {
		return settings, nil, nil, err
	}
	forget = func() { _ = os.RemoveAll(dir) }
	signers, env, err := tokenKeys(dir)
	if err == nil {
		ask, err = signers[0].ask(b.size.tokens())
	}
	if err != nil {
		forget()
		return settings, nil, nil, err
	}
	return load.Settings{Policies: admitAll, Store: b.store, Env: env}, ask, forget, nil
}

// verifyAll has each token verified, so that it is kept.
func (b *bench) verifyAll(ctx context.Context, e entrant) error {
	loop := load.Closed{Callers: b.size.Callers, Deadline: 10 * deadline, Calls: 20 * uint64(b.size.tokens())}
	_, err := loop.Run(ctx, e.conns, e.ask)
	return err
}

// several has endpoints named by how many limits they have. Those of one tenant are on one slot.
func several(counts []int) string {
	var file strings.Builder
	file.WriteString("domain: load\nendpoints:\n")
	for _, n := range counts {
		fmt.Fprintf(&file, "  limits-%d:\n    policy_version: 1\n    fail_mode: fail_open\n    emergency: {capacity: 1, refill: 0}\n    limits:\n", n)
		for i := range n {
			fmt.Fprintf(&file, "      - {name: limit-%d, algorithm: token_bucket, capacity: 10000000, refill: 1/60s}\n", i)
		}
	}
	return file.String()
}

// groups has one program asked about endpoints with one, two, four and eight limits.
func (b *bench) groups(ctx context.Context, r *Report) error {
	counts := []int{1, 2, 4, 8}
	program, conns, stop, err := b.start(ctx, load.Settings{Policies: several(counts), Store: b.store})
	if err != nil {
		return err
	}
	defer stop()
	entrants := make([]entrant, len(counts))
	for i, n := range counts {
		ask := load.RateLimit(fmt.Sprintf("limits-%d", n), b.size.Tenants)
		entrants[i] = entrant{server: program.Process, conns: conns, ask: ask, means: load.Allowed}
	}
	race, err := b.race(ctx, entrants...)
	if err != nil {
		return err
	}
	for i, n := range counts[1:] {
		row := race.row(fmt.Sprintf("groups_%d", n), "one limit", 0, 1+i)
		row.Store = race.store(1 + i)
		r.Rows = append(r.Rows, row)
	}
	return nil
}

// enter starts the program as an entrant whose every call is meant to be admitted. stop ends it.
func (b *bench) enter(ctx context.Context, s load.Settings, ask load.Ask) (e entrant, stop func(), err error) {
	program, conns, stop, err := b.start(ctx, s)
	if err != nil {
		return e, nil, err
	}
	return entrant{server: program.Process, conns: conns, ask: ask, means: load.Allowed}, stop, nil
}

// start starts the program and connects to it. stop ends both.
func (b *bench) start(ctx context.Context, s load.Settings) (p *load.Program, conns load.Conns, stop func(), err error) {
	s.Binary, s.Env = b.binary, append(append([]string(nil), b.size.Env...), s.Env...)
	if p, err = load.Start(ctx, s); err != nil {
		return nil, nil, nil, err
	}
	if conns, err = load.Dial(ctx, p.Addr(), b.size.Conns); err != nil {
		p.Stop()
		return nil, nil, nil, err
	}
	return p, conns, func() { conns.Close(); p.Stop() }, nil
}
