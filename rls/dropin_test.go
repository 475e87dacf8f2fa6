package rls_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// counters keeps the counters of rules as "name counter".
type counters struct {
	mu     sync.Mutex
	totals map[string]uint64
	names  int
}

func (c *counters) add(name string, n uint64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.totals == nil {
		c.totals = map[string]uint64{}
	}
	c.totals[name] += n
}

func (c *counters) take() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.totals
	c.totals = nil
	return t
}

func (c *counters) Rule(name rls.RuleName) rls.RuleRecorder {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names++
	return ruleCounters{c, name.String()}
}
func (c *counters) GlobalShadow() { c.add("global_shadow_mode", 1) }
func (c *counters) RedisError()   { c.add("redis_error", 1) }
func (c *counters) ServiceError() { c.add("service_error", 1) }

type ruleCounters struct {
	c    *counters
	name string
}

func (r ruleCounters) Count(n rls.RuleCounts) {
	r.c.add(r.name+" total_hits", n.TotalHits)
	r.c.add(r.name+" over_limit", n.OverLimit)
	r.c.add(r.name+" near_limit", n.NearLimit)
	r.c.add(r.name+" over_limit_with_local_cache", n.OverLimitWithLocalCache)
	r.c.add(r.name+" within_limit", n.WithinLimit)
	r.c.add(r.name+" shadow_mode", n.ShadowMode)
}

// dropIn is an engine over drop-in files, on a clock that the test turns.
type dropIn struct {
	*fixture

	local  *clockStore // the fallback
	counts *counters
}

func newDropIn(t *testing.T, file string, change ...func(*rls.Config)) *dropIn {
	t.Helper()
	d := &dropIn{
		local:  &clockStore{now: start, buckets: map[string]algorithms.State{}},
		counts: &counters{},
	}
	d.fixture = newFixture(t, file, append([]func(*rls.Config){func(c *rls.Config) {
		c.DropIn.Fallback, c.DropIn.Recorder = d.local, d.counts
	}}, change...)...)
	d.store.now = start
	return d
}

// start is 2026-11-30 10:51:03 UTC, a Monday.
const start algorithms.Micros = 1_796_035_863_000_000

func (d *dropIn) ask(t *testing.T, r rls.Request) rls.Result {
	t.Helper()
	res, err := d.Decide(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// words renders a result: the overall code, and for each status code, remaining, limit and whole seconds to the reset.
func words(r rls.Result) string {
	text := "OK"
	if !r.Allowed {
		text = "OVER"
	}
	for _, s := range r.Statuses {
		code := "ok"
		if s.OverLimit {
			code = "over"
		}
		text += fmt.Sprintf(" [%s %d", code, s.Remaining)
		if s.Limit != nil {
			text += fmt.Sprintf(" of %d/%v", s.Limit.PerUnit, s.Limit.Unit)
			if s.Limit.Multiplier > 1 {
				text += fmt.Sprintf("x%d", s.Limit.Multiplier)
			}
			if s.Limit.Name != "" {
				text += " " + s.Limit.Name
			}
			text += fmt.Sprintf(" %.0fs", math.Ceil(s.Reset.Seconds()))
		} else if s.Reset >= 0 {
			text += " a reset without a limit"
		}
		text += "]"
	}
	return text
}

// plays asks line by line and compares: "descriptor; descriptor -> answer", or "... *N -> answer" for the N-th of N times.
func (d *dropIn) plays(t *testing.T, domain, script string) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(script), "\n") {
		line = strings.TrimSpace(line)
		asked, want, _ := strings.Cut(line, " -> ")
		times := 1
		if before, after, ok := strings.Cut(asked, " *"); ok {
			asked = before
			fmt.Sscan(after, &times)
		}
		var got string
		for range times {
			got = words(d.ask(t, ask(domain, strings.Split(asked, ";")...)))
		}
		if got != want {
			t.Errorf("line %d %q:\n got %s\nwant %s", i+1, asked, got, want)
		}
	}
}

const basic = `
domain: shop
descriptors:
  - key: plan
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: ten
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: three
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: none
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: sh
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: api
    value: v1
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 3}
  - key: path
    value: /img*
    rate_limit: {unit: hour, requests_per_unit: 4}
  - key: path
    value: /img/big*
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: path
    value: /img/exact
    rate_limit: {unit: hour, requests_per_unit: 8}
  - key: a
    value: b_c
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: base
    rate_limit: {name: base, unit: hour, requests_per_unit: 1}
  - key: over
    rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: base}]}
  - key: wk
    rate_limit: {unit: week, requests_per_unit: 5}
  - key: mo
    rate_limit: {unit: month, requests_per_unit: 5}
  - key: yr
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: free
    rate_limit: {unlimited: true}
`

func TestRLS_01_request_hits_of_0_are_1(t *testing.T) {
	t.Parallel()
	newDropIn(t, basic).plays(t, "shop", `
		plan=h0 -> OK [ok 1 of 2/hour 537s]
		plan=h0 -> OK [ok 0 of 2/hour 537s]
		plan=h0 -> OVER [over 0 of 2/hour 537s]
		plan=h0 hits=0 -> OVER [over 0 of 2/hour 537s]
		plan=h1 hits=0 -> OK [ok 2 of 2/hour 537s]
		plan=h1 hits=2 -> OK [ok 0 of 2/hour 537s]
		plan=h1 hits=0 -> OK [ok 0 of 2/hour 537s]
		none=x hits=0 -> OK [ok 0 of 0/hour 537s]
		none=x -> OVER [over 0 of 0/hour 537s]
		none=x hits=0 -> OVER [over 0 of 0/hour 537s]`)
}

func TestRLS_03_a_descriptors_hits_win(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	r := ask("shop", "ten=A", "ten=B hits=2")
	r.Hits = 5
	if got, want := words(d.ask(t, r)), "OK [ok 5 of 10/hour 537s] [ok 8 of 10/hour 537s]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRLS_04_the_largest_request_hits(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	r := ask("shop", "plan=a")
	for _, r.Hits = range []uint64{math.MaxUint32, 1} {
		if got, want := words(d.ask(t, r)), "OVER [over 0 of 2/hour 537s]"; got != want {
			t.Errorf("hits %d: got %s, want %s", r.Hits, got, want)
		}
	}
}

func TestRLS_05_hits_saturate(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	for _, hits := range []uint64{1 << 63, 1<<63 - 1, 1, math.MaxUint64} {
		r := ask("shop", "plan=a")
		r.Descriptors[0].HasHits, r.Descriptors[0].Hits = true, hits
		if got, want := words(d.ask(t, r)), "OVER [over 0 of 2/hour 537s]"; got != want {
			t.Errorf("hits %d: got %s, want %s", hits, got, want)
		}
	}
	for key, s := range d.store.buckets {
		if s.Level != algorithms.MaxCount {
			t.Errorf("%s holds %d, want %d", key, s.Level, algorithms.MaxCount)
		}
	}
}

// override asks with a limit of the request's own.
func override(words string, perUnit uint32, unit rls.Unit, multiplier int64) rls.Request {
	r := ask("shop", words)
	r.Descriptors[0].Override = true
	r.Descriptors[0].Limit = rls.LimitOverride{PerUnit: perUnit, Unit: unit, Multiplier: multiplier}
	return r
}

func TestRLS_06_overrides_that_make_no_sense(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	for i, r := range []rls.Request{
		override("plan=gold", 1, 0, 1), override("plan=gold", 1, descriptors.Hour, 0), override("plan=silver", 1, descriptors.Year, 1<<40),
	} {
		d.notes.take()
		if got, want := words(d.ask(t, r)), fmt.Sprintf("OK [ok %d of 2/hour 537s]", []int{1, 0, 1}[i]); got != want {
			t.Errorf("%d: got %s, want the configured limit: %s", i, got, want)
		}
		if got := d.notes.take(); got["ignored 1 override"] != 1 {
			t.Errorf("%d: recorded %v", i, got)
		}
	}
	d.plays(t, "shop", "plan=gold -> OVER [over 0 of 2/hour 537s]")
}

func TestOverridesCountAsAsked(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	for _, step := range []struct {
		r    rls.Request
		want string
	}{
		{ask("shop", "plan=a"), "OK [ok 1 of 2/hour 537s]"},
		// The same counter, another limit.
		{override("plan=a", 7, descriptors.Hour, 1), "OK [ok 5 of 7/hour 537s]"},
		{ask("shop", "plan=a"), "OVER [over 0 of 2/hour 537s]"},
		// Another unit or multiplier is another counter.
		{override("plan=a", 7, descriptors.Minute, 1), "OK [ok 6 of 7/minute 57s]"},
		{override("plan=a", 7, descriptors.Minute, 5), "OK [ok 6 of 7/minutex5 237s]"},
		// No rule needed, and rules of other kinds make way.
		{override("nobody=a", 1, descriptors.Day, 1), "OK [ok 0 of 1/day 47337s]"},
		{override("nobody=a", 1, descriptors.Day, 1), "OVER [over 0 of 1/day 47337s]"},
		{override("free=a", 0, descriptors.Day, 1), "OVER [over 0 of 0/day 47337s]"},
		{override("sh=a", 0, descriptors.Day, 1), "OVER [over 0 of 0/day 47337s]"},
	} {
		if got := words(d.ask(t, step.r)); got != step.want {
			t.Errorf("%+v:\n got %s\nwant %s", step.r.Descriptors, got, step.want)
		}
	}
	r := override("plan=a", 1, descriptors.Day, 1)
	r.Domain = "nope"
	if got := words(d.ask(t, r)); got != "OK [ok 0]" {
		t.Errorf("an unknown domain: %s", got)
	}
}

func TestRLS_07_no_domain(t *testing.T) {
	t.Parallel()
	text := func(err error) string {
		if e, ok := errors.AsType[*rls.DropInError](err); ok {
			return e.Text
		}
		return fmt.Sprint("not that service's: ", err)
	}
	for _, c := range []struct {
		compat bool
		r      rls.Request
		want   string
	}{
		{true, ask("", "plan=gold"), "rate limit domain must not be empty"},
		{true, ask("shop"), "rate limit descriptor list must not be empty"},
		{true, ask("nope"), "rate limit descriptor list must not be empty"},
		{true, ask(""), "rate limit domain must not be empty"},
		{false, ask("shop"), "rate limit descriptor list must not be empty"},
		{false, ask("", "plan=gold"), "not that service's: invalid request"},
	} {
		d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.Compat = c.compat })
		_, err := d.Decide(t.Context(), c.r)
		if got := text(err); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
		if d.store.calls > 0 {
			t.Errorf("%+v: the store was asked", c)
		}
	}
	engine, err := rls.New(rls.Config{Store: &clockStore{}, Identifier: people{}, Recorder: &notebook{}, DropIn: rls.DropInConfig{Compat: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Decide(t.Context(), ask("shop", "plan=gold")); text(err) != "no rate limit configuration loaded" {
		t.Errorf("before any policies: %v", err)
	}
}

func TestRLS_09_no_entries(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	for want, r := range map[string]rls.Request{
		"OK [ok 0]":                       ask("shop", ""),
		"OK [ok 0] [ok 1 of 2/hour 537s]": ask("shop", "", "plan=a"),
	} {
		if got := words(d.ask(t, r)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	r := override("", 0, descriptors.Hour, 1)
	if got := words(d.ask(t, r)); got != "OK [ok 0]" || len(d.store.buckets) != 1 {
		t.Errorf("with an override: %s, buckets %v", got, d.store.buckets)
	}
}

// Key and value are joined where a rule is looked up, as by the service that is stood in for, so both of these are the
// rule's; and a rule's own value has one bucket however a request splits it.
func TestRLS_11_joined_key_and_value(t *testing.T) {
	t.Parallel()
	newDropIn(t, basic).plays(t, "shop", `
		a_b=c -> OK [ok 1 of 2/hour 537s]
		a=b_c -> OK [ok 0 of 2/hour 537s]
		a_b=c -> OVER [over 0 of 2/hour 537s]`)
	// But no value that a caller picks reaches the bucket of another descriptor.
	d := newDropIn(t, `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 9}
    descriptors:
      - key: endpoint
        rate_limit: {unit: hour, requests_per_unit: 9}
`)
	d.plays(t, "shop", `
		tenant=alice endpoint=pay -> OK [ok 8 of 9/hour 537s]
		tenant=alice_endpoint_pay -> OK [ok 8 of 9/hour 537s]
		tenant=alice_endpoint endpoint=pay -> OK [ok 8 of 9/hour 537s]`)
}

const broadAndNarrow = `
domain: shop
all_or_nothing: %v
descriptors:
  - key: plan
    rate_limit: {unit: hour, requests_per_unit: 7}
    descriptors:
      - key: special
        rate_limit: {unit: hour, requests_per_unit: 5}
`

func TestRLS_13_what_denied_requests_cost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		together bool
		stop     bool
		want     string
	}{
		{"as the service does it", false, false, "plan=a -> OVER [over 0 of 7/hour 537s]"},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", false, true, "plan=a -> OK [ok 1 of 7/hour 537s]\nplan=a -> OK [ok 0 of 7/hour 537s]\nplan=a -> OVER [over 0 of 7/hour 537s]"},
		{"all_or_nothing", true, false, "plan=a -> OK [ok 1 of 7/hour 537s]\nplan=a -> OK [ok 0 of 7/hour 537s]\nplan=a -> OVER [over 0 of 7/hour 537s]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDropIn(t, fmt.Sprintf(broadAndNarrow, c.together), func(cfg *rls.Config) { cfg.DropIn.StopWhenOver = c.stop })
			d.plays(t, "shop", "plan=a special=x;plan=a *5 -> OK [ok 0 of 5/hour 537s] [ok 2 of 7/hour 537s]")
			for range 2 {
				if got := d.ask(t, ask("shop", "plan=a special=x", "plan=a")); got.Allowed || got.Statuses[1].OverLimit {
					t.Errorf("got %s, want the narrow rule to deny", words(got))
				}
			}
			d.plays(t, "shop", c.want)
			counted := int64(0)
			for _, s := range d.store.buckets {
				counted = max(counted, s.Level)
			}
			if want := map[bool]int64{true: 7, false: 8}[c.together]; counted != want {
				t.Errorf("counted %d, want %d: denied requests cost nothing only where all or nothing is", counted, want)
			}
		})
	}
}

func TestRLS_14_depth_must_match(t *testing.T) {
	t.Parallel()
	newDropIn(t, basic).plays(t, "shop", `
		api=v1 -> OK [ok 0]
		api=v1 user=bob x=y -> OK [ok 0]
		user=bob api=v1 -> OK [ok 0]
		api=v2 user=bob -> OK [ok 0]
		api=v1 user=bob -> OK [ok 2 of 3/hour 537s]`)
}

func TestRLS_16_patterns_in_file_order(t *testing.T) {
	t.Parallel()
	newDropIn(t, basic).plays(t, "shop", `
		path=/img/a -> OK [ok 3 of 4/hour 537s]
		path=/img/bigger -> OK [ok 3 of 4/hour 537s]
		path=/img/exact -> OK [ok 7 of 8/hour 537s]
		path=/other -> OK [ok 0]`)
}

func TestRLS_19_replaces(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	d.plays(t, "shop", `
		base=1 -> OK [ok 0 of 1/hour base 537s]
		base=1 -> OVER [over 0 of 1/hour base 537s]
		base=1;over=1 -> OK [ok 0] [ok 2 of 3/hour 537s]
		over=1;base=1 -> OK [ok 1 of 3/hour 537s] [ok 0]`)
	d.counts.take()
	d.plays(t, "shop", "base=2;over=1 -> OK [ok 0] [ok 0 of 3/hour 537s]\nbase=2;over=1 -> OVER [ok 0] [over 0 of 3/hour 537s]")
	if got := d.counts.take(); got["shop.base total_hits"] != 0 || got["shop.over total_hits"] != 2 {
		t.Errorf("counted %v", got)
	}
}

func TestRLS_20_shadow_rules_count(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]int{"without local cache": 0, "with local cache": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.LocalCacheBytes = bytes })
			d.plays(t, "shop", "sh=1 *3 -> OK [ok 0 of 1/hour 537s]")
			want := map[string]uint64{"shop.sh total_hits": 3, "shop.sh over_limit": 2, "shop.sh shadow_mode": 2, "shop.sh within_limit": 1, "shop.sh near_limit": 1}
			if bytes > 0 {
				want["shop.sh over_limit_with_local_cache"] = 1
			}
			if got := d.counts.take(); !maps.Equal(got, want) {
				t.Errorf("counted %v, want %v", got, want)
			}
			if notes := d.notes.take(); notes["drop-in:shop shadow denial"] != 2 || notes["drop-in:shop ALLOWED"] != 3 {
				t.Errorf("recorded %v", notes)
			}
		})
	}
}

func TestRLS_21_unknown_domains(t *testing.T) {
	t.Parallel()
	for _, compat := range []bool{false, true} {
		d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.Compat = compat })
		names := d.counts.names
		for i := range 1000 {
			if got := words(d.ask(t, ask(fmt.Sprint("other", i), "plan=a"))); got != "OK [ok 0]" {
				t.Fatal(got)
			}
		}
		if got := d.notes.take(); got["unknown domain ratelimit"] != 1000 || len(got) != 1 || d.counts.names != names || d.store.calls > 0 {
			t.Errorf("recorded %v, %d new names", got, d.counts.names-names)
		}
	}
}

func TestRLS_23_weeks_months_and_years(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	d.plays(t, "shop", `
		wk=1 -> OK [ok 4 of 5/week 220137s]
		mo=1 -> OK [ok 4 of 5/month 220137s]
		yr=1 -> OK [ok 4 of 5/year 1516137s]`)
	starts := map[algorithms.Micros]bool{}
	for _, s := range d.store.buckets {
		starts[s.At/1_000_000] = true
	}
	for _, want := range []algorithms.Micros{1_795_651_200, 1_793_664_000} {
		if !starts[want] {
			t.Errorf("windows start at %v, want %d too", slices.Collect(maps.Keys(starts)), want)
		}
	}
}

func TestRLS_24_what_a_request_may_hold(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	for name, r := range map[string]rls.Request{
		"descriptors": ask("shop", slices.Repeat([]string{"plan=a"}, 5000)...),
		"value":       ask("shop", "plan="+strings.Repeat("v", 5<<20)),
		"key":         ask("shop", strings.Repeat("k", 5<<20)+"=v"),
		"entries":     ask("shop", strings.Repeat("plan=a ", 33)),
	} {
		began := time.Now()
		res := d.ask(t, r)
		if res.Allowed || res.Reason != rls.InvalidRequest || !res.Plain || len(res.Statuses) != len(r.Descriptors) {
			t.Errorf("%s: %v %s", name, res.Allowed, res.Reason)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: refused after %v", name, took)
		}
		if got := d.notes.take(); got["refused "+name] != 1 {
			t.Errorf("%s: recorded %v", name, got)
		}
	}
	if d.store.calls > 0 {
		t.Error("the store was asked")
	}
}

func TestRLS_24_what_the_rules_of_a_request_may_ask(t *testing.T) {
	t.Parallel()
	limits := slices.Repeat([]string{"{unit: hour, requests_per_unit: 1}"}, descriptors.MaxNodeLimits)
	for _, together := range []bool{false, true} {
		d := newDropIn(t, fmt.Sprintf("domain: shop\nall_or_nothing: %v\ndescriptors: [{key: k, fail_mode: error, rate_limit: [%s]}]\n", together, strings.Join(limits, ", ")))
		var words []string
		for i := range 64 {
			words = append(words, fmt.Sprint("k=", i))
		}
		res := d.ask(t, ask("shop", words...))
		if res.Allowed || res.Reason != rls.InvalidRequest || !res.Plain || len(res.Statuses) != len(words) || d.store.calls > 0 {
			t.Errorf("together %v: %v %s, %d store calls", together, res.Allowed, res.Reason, d.store.calls)
		}
		if got := d.notes.take(); got["refused takes"] != 1 {
			t.Errorf("together %v: recorded %v", together, got)
		}
		if res := d.ask(t, ask("shop", words[:rls.MaxTakes/descriptors.MaxNodeLimits]...)); !res.Allowed {
			t.Errorf("together %v: %s", together, words[:1])
		}
	}
}

// Rules whose names read alike have each a cap of its own, also after a reload.
func TestCapsOfRulesThatReadAlike(t *testing.T) {
	t.Parallel()
	const alike = `
domain: shop
descriptors:
  - {key: a.b, emergency: {capacity: 2, refill: 0}, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: a, descriptors: [{key: b, emergency: {capacity: 2, refill: 0}, rate_limit: {unit: hour, requests_per_unit: 100}}]}
`
	d := newDropIn(t, alike)
	if err := d.Use(parse(t, alike)); err != nil {
		t.Fatal(err)
	}
	d.store.fail = rls.ErrUnavailable
	d.plays(t, "shop", `
		a.b=x *2 -> OK [ok 0 of 100/hour 1s]
		a=x b=x *2 -> OK [ok 0 of 100/hour 1s]
		a=x b=x -> OVER [over 0 of 100/hour 1s]`)
}

func TestRLS_26_no_folding(t *testing.T) {
	t.Parallel()
	newDropIn(t, basic).plays(t, "shop", `
		Plan=gold -> OK [ok 0]
		plan=gold -> OK [ok 1 of 2/hour 537s]
		plan=Gold -> OK [ok 1 of 2/hour 537s]
		plan=é -> OK [ok 1 of 2/hour 537s]
		plan=`+"e\u0301"+` -> OK [ok 1 of 2/hour 537s]`)
}

func TestMT_04_near_limit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		script string
		want   map[string]uint64
	}{
		{"ten=a *10 -> OK [ok 0 of 10/hour 537s]", map[string]uint64{"shop.ten total_hits": 10, "shop.ten within_limit": 10, "shop.ten near_limit": 2}},
		{"ten=a hits=10 -> OK [ok 0 of 10/hour 537s]", map[string]uint64{"shop.ten total_hits": 10, "shop.ten within_limit": 10, "shop.ten near_limit": 2}},
		{"three=a *3 -> OK [ok 0 of 3/hour 537s]", map[string]uint64{"shop.three total_hits": 3, "shop.three within_limit": 3, "shop.three near_limit": 1}},
		// What lies above the limit is over it, the rest near or within.
		{"ten=a hits=15 -> OVER [over 0 of 10/hour 537s]", map[string]uint64{"shop.ten total_hits": 15, "shop.ten over_limit": 5, "shop.ten near_limit": 2}},
		{
			"ten=a *9 -> OK [ok 1 of 10/hour 537s]\nten=a hits=5 -> OVER [over 0 of 10/hour 537s]\nten=a hits=5 -> OVER [over 0 of 10/hour 537s]",
			map[string]uint64{"shop.ten total_hits": 19, "shop.ten within_limit": 9, "shop.ten near_limit": 2, "shop.ten over_limit": 9},
		},
		{"ten=a hits=0 -> OK [ok 10 of 10/hour 537s]", nil},
	} {
		d := newDropIn(t, basic)
		d.plays(t, "shop", c.script)
		if got := d.counts.take(); !maps.Equal(got, c.want) {
			t.Errorf("%s: counted %v, want %v", c.script, got, c.want)
		}
	}
}

func TestTheSameDescriptorTwiceCountsTwice(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	d.plays(t, "shop", `
		plan=a;plan=a -> OK [ok 1 of 2/hour 537s] [ok 0 of 2/hour 537s]
		plan=b;plan=b;plan=b -> OVER [ok 1 of 2/hour 537s] [ok 0 of 2/hour 537s] [over 0 of 2/hour 537s]
		plan=b -> OVER [over 0 of 2/hour 537s]`)
	for _, mode := range []func(*rls.Config){
		func(cfg *rls.Config) { cfg.DropIn.StopWhenOver = true },
		func(*rls.Config) {},
	} {
		d := newDropIn(t, strings.Replace(basic, "domain: shop", "domain: shop\nall_or_nothing: true", 1), mode)
		d.plays(t, "shop", `
			plan=a;plan=a -> OK [ok 1 of 2/hour 537s] [ok 0 of 2/hour 537s]
			plan=b;plan=b;plan=b -> OVER [ok 2 of 2/hour 537s] [ok 1 of 2/hour 537s] [over 0 of 2/hour 537s]`)
	}
}

func TestWindowsTurnOver(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic)
	d.plays(t, "shop", "plan=a *3 -> OVER [over 0 of 2/hour 537s]")
	d.store.now += 536_999_999
	d.plays(t, "shop", "plan=a -> OVER [over 0 of 2/hour 1s]")
	d.store.now++
	d.plays(t, "shop", "plan=a -> OK [ok 1 of 2/hour 3600s]")
}

const quotas = `
domain: shop
descriptors:
  - key: svc
    value: s1
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
    metadata: {pick: {name: s1, first: true}, list: [1, x]}
  - key: svc
    value: s2
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
    metadata: {pick: {name: s2, second: 1.5}}
  - key: hard
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 100}
    metadata: {lost: true}
  - key: free
    rate_limit: {unlimited: true}
`

func TestQuotaMode(t *testing.T) {
	t.Parallel()
	newDropIn(t, quotas).plays(t, "shop", `
		svc=s1;svc=s2 -> OK [ok 0 of 1/hour 537s] [ok 1 of 2/hour 537s]
		svc=s1;svc=s2 -> OK [over 0 of 1/hour 537s] [ok 0 of 2/hour 537s]
		svc=s1;svc=s2 -> OVER [over 0 of 1/hour 537s] [over 0 of 2/hour 537s]
		svc=s1;svc=s2;free=x -> OVER [over 0 of 1/hour 537s] [over 0 of 2/hour 537s] [ok 4294967295]
		svc=s1;svc=s2;other=x -> OVER [over 0 of 1/hour 537s] [over 0 of 2/hour 537s] [ok 0]
		svc=s1;hard=x -> OVER [over 0 of 1/hour 537s] [ok 0 of 1/hour 537s]
		hard=x -> OVER [over 0 of 1/hour 537s]`)
	// QUOTA_MODE makes each descriptor one, also those that match nothing.
	newDropIn(t, quotas, func(cfg *rls.Config) { cfg.DropIn.Quota = true }).plays(t, "shop", `
		hard=x -> OK [ok 0 of 1/hour 537s]
		hard=x;other=x -> OK [over 0 of 1/hour 537s] [ok 0]
		hard=x;free=x -> OVER [over 0 of 1/hour 537s] [ok 4294967295]
		hard=x -> OVER [over 0 of 1/hour 537s]`)
}

func TestShadowMode(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, quotas, func(cfg *rls.Config) { cfg.DropIn.Shadow = true })
	d.plays(t, "shop", `
		hard=x -> OK [ok 0 of 1/hour 537s]
		hard=x -> OK [over 0 of 1/hour 537s]`)
	if got := d.counts.take(); got["global_shadow_mode"] != 1 || got["shop.hard over_limit"] != 1 {
		t.Errorf("counted %v", got)
	}
}

func TestDynamicMetadata(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, quotas, func(cfg *rls.Config) { cfg.DropIn.DynamicMetadata, cfg.DropIn.Compat = true, true })
	r := ask("shop", "svc=s1", "svc=s2 hits=1", "detailed=x", "other=y a=b")
	r.Hits = 1
	asked := []any{
		map[string]any{"entries": []any{"svc=s1"}},
		map[string]any{"entries": []any{"svc=s2"}, "hitsAddend": 1.0},
		map[string]any{"entries": []any{"detailed=x"}},
		map[string]any{"entries": []any{"other=y", "a=b"}},
	}
	want := map[string]any{
		"domain": "shop", "hitsAddend": 1.0, "descriptors": asked,
		"metadata": map[string]any{"pick": map[string]any{"name": "s1", "first": true, "second": 1.5}, "list": []any{1.0, "x"}},
	}
	for _, passed := range []any{want["metadata"], map[string]any{"pick": map[string]any{"name": "s2", "second": 1.5}}, nil} {
		want["metadata"] = passed
		if passed == nil {
			delete(want, "metadata")
		}
		if diff := cmp.Diff(want, d.ask(t, r).Metadata); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
	}
	r = override("svc=s1", 5, descriptors.Hour, 1)
	r.Domain = "nope"
	want = map[string]any{"domain": "nope", "descriptors": []any{
		map[string]any{"entries": []any{"svc=s1"}, "limit": "requests_per_unit:5 unit:HOUR"},
	}}
	if diff := cmp.Diff(want, d.ask(t, r).Metadata); diff != "" {
		t.Errorf("an unknown domain (-want +got):\n%s", diff)
	}
	if m := newDropIn(t, quotas).ask(t, r).Metadata; m != nil {
		t.Errorf("not asked for: %v", m)
	}
}

func TestLimitHeaders(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, quotas, func(cfg *rls.Config) { cfg.DropIn.Headers = &rls.LimitHeaders{Reset: "x-reset"} })
	headers := func(words ...string) string {
		var text []string
		for _, h := range d.ask(t, ask("shop", words...)).Headers {
			text = append(text, h.Name+"="+h.Value)
		}
		return strings.Join(text, " ")
	}
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"other=x"}, ""},
		{[]string{"free=x"}, ""},
		{[]string{"svc=s2", "detailed=x"}, "RateLimit-Limit=2 RateLimit-Remaining=1 x-reset=537"},
		{[]string{"detailed=x", "svc=s2"}, "RateLimit-Limit=2 RateLimit-Remaining=0 x-reset=537"},
		// The last one that is over takes over; a quota that is over does not.
		{[]string{"hard=x", "svc=s2", "detailed=x"}, "RateLimit-Limit=1 RateLimit-Remaining=0 x-reset=537"},
		{[]string{"svc=s2", "detailed=x"}, "RateLimit-Limit=2 RateLimit-Remaining=0 x-reset=537"},
		{[]string{"detailed=x hits=1000", "hard=x"}, "RateLimit-Limit=1 RateLimit-Remaining=0 x-reset=537"},
		{[]string{"hard=x", "detailed=x hits=1000"}, "RateLimit-Limit=100 RateLimit-Remaining=0 x-reset=537"},
	} {
		if got := headers(c.words...); got != c.want {
			t.Errorf("%q: %q, want %q", c.words, got, c.want)
		}
	}
}

// A refund gives hits back in the current window, is always OK, and is forgotten by no cache.
func TestRefunds(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.LocalCacheBytes = 1 << 20 })
	d.plays(t, "shop", `
		plan=a *4 -> OVER [over 0 of 2/hour 537s]
		plan=a hits=1 negative -> OK [ok 0 of 2/hour 537s]
		plan=a hits=2 negative -> OK [ok 2 of 2/hour 537s]
		plan=a hits=9 negative -> OK [ok 2 of 2/hour 537s]
		plan=a -> OK [ok 1 of 2/hour 537s]`)
}

// What is known to be over limit is answered without the store until its window ends, and a limit that is raised in
// mid-window counts at once.
func TestLocalCache(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.LocalCacheBytes = 1 << 20 })
	d.plays(t, "shop", "plan=a *3 -> OVER [over 0 of 2/hour 537s]")
	calls := d.store.calls
	d.plays(t, "shop", "plan=a -> OVER [over 0 of 2/hour 537s]")
	if d.store.calls != calls {
		t.Error("the store was asked about a bucket that is known to be over")
	}
	if got := d.ask(t, ask("shop", "plan=a", "plan=b")); got.Source != rls.SourceStore || words(got) != "OVER [over 0 of 2/hour 537s] [ok 1 of 2/hour 537s]" {
		t.Errorf("%s from %s", words(got), got.Source)
	}
	if got := d.ask(t, ask("shop", "plan=a")).Source; got != rls.SourceDenyCache {
		t.Errorf("source %s", got)
	}
	if err := d.Use(parse(t, strings.Replace(basic, "requests_per_unit: 2}", "requests_per_unit: 5}", 1))); err != nil {
		t.Fatal(err)
	}
	d.plays(t, "shop", "plan=a -> OK [ok 1 of 5/hour 537s]")
}

// What is known to be over limit is not believed beyond the end of its window.
func TestPF_04_LocalCacheEndsWithItsWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.LocalCacheBytes = 1 << 20 })
		pass := func(by time.Duration) {
			time.Sleep(by)
			d.store.now += algorithms.Micros(by.Microseconds())
		}
		d.plays(t, "shop", "plan=a *3 -> OVER [over 0 of 2/hour 537s]")
		calls := d.store.calls
		pass(536 * time.Second)
		d.plays(t, "shop", "plan=a -> OVER [over 0 of 2/hour 1s]")
		if d.store.calls != calls {
			t.Error("the store was asked about a bucket that is known to be over")
		}
		pass(time.Second)
		d.plays(t, "shop", "plan=a *2 -> OK [ok 0 of 2/hour 3600s]")
	})
}

func TestStopWithTheLocalCache(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.DropIn.LocalCacheBytes, cfg.DropIn.StopWhenOver = 1<<20, true })
	d.plays(t, "shop", `
		plan=a *3 -> OVER [over 0 of 2/hour 537s]
		plan=a;ten=a -> OVER [over 0 of 2/hour 537s] [ok 10 of 10/hour 537s]
		ten=a -> OK [ok 9 of 10/hour 537s]`)
}

const failing = `
domain: shop
descriptors:
  - key: own
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: open
    fail_mode: fail_open
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: cap
    emergency: {capacity: 2, refill: 0}
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: closed
    fail_mode: fail_closed
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: error
    fail_mode: error
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: sh
    shadow_mode: true
    fail_mode: fail_closed
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: one
    all_or_nothing: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: many
    all_or_nothing: true
    rate_limit: {unit: hour, requests_per_unit: 9}
`

// While the store cannot answer, each rule does what its fail_mode says.
func TestFailModes(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, failing)
	d.plays(t, "shop", "own=a *2 -> OK [ok 0 of 2/hour 537s]\ncap=a -> OK [ok 99 of 100/hour 537s]")
	d.store.fail = fmt.Errorf("%w: connection refused", rls.ErrUnavailable)
	for _, c := range []struct {
		words  []string
		want   string
		reason rls.Reason
		source rls.Source
	}{
		// In this process the limit starts anew: at most it once more for each process.
		{[]string{"own=a"}, "OK [ok 1 of 2/hour 537s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"own=a"}, "OK [ok 0 of 2/hour 537s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"own=a"}, "OVER [over 0 of 2/hour 537s]", rls.EmergencyLocalLimit, rls.SourceEmergency},
		{[]string{"own=b"}, "OK [ok 1 of 2/hour 537s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"open=a"}, "OK [ok 0 of 1/hour 537s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"open=a"}, "OVER [over 0 of 1/hour 537s]", rls.EmergencyLocalLimit, rls.SourceEmergency},
		// The cap is one for the rule, and warm: one hit went into it before.
		{[]string{"cap=b"}, "OK [ok 0 of 100/hour 1s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"cap=c"}, "OVER [over 0 of 100/hour 1s]", rls.EmergencyLocalLimit, rls.SourceEmergency},
		{[]string{"closed=a"}, "OVER [over 0 of 100/hour 1s]", rls.FailClosed, rls.SourceEmergency},
		{[]string{"closed=a", "own=c"}, "OVER [over 0 of 100/hour 1s] [ok 1 of 2/hour 537s]", rls.FailClosed, rls.SourceEmergency},
		{[]string{"sh=a"}, "OK [ok 0 of 100/hour 1s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"one=a", "many=a"}, "OK [ok 0 of 1/hour 537s] [ok 8 of 9/hour 537s]", rls.Allowed, rls.SourceEmergency},
		{[]string{"one=a", "many=a"}, "OVER [over 0 of 1/hour 537s] [ok 8 of 9/hour 537s]", rls.EmergencyLocalLimit, rls.SourceEmergency},
		{[]string{"other=x"}, "OK [ok 0]", rls.Allowed, rls.SourceNone},
	} {
		d.notes.take()
		res := d.ask(t, ask("shop", c.words...))
		if got := words(res); got != c.want || res.Reason != c.reason || res.Source != c.source {
			t.Errorf("%q: %s, %s from %s\nwant %s, %s from %s", c.words, got, res.Reason, res.Source, c.want, c.reason, c.source)
		}
		notes := d.notes.take()
		if c.source == rls.SourceEmergency && (res.Class != rls.ClassUnavailable || notes["store failure REDIS_UNAVAILABLE"] != 1 || notes["drop-in:shop "+string(c.reason)] != 1) {
			t.Errorf("%q: class %s, recorded %v", c.words, res.Class, notes)
		}
		if emergency := notes["drop-in:shop emergency admission"] == 1; emergency != (res.Allowed && c.source == rls.SourceEmergency) {
			t.Errorf("%q: recorded %v", c.words, notes)
		}
	}
	d.counts.take()
	if _, err := d.Decide(t.Context(), ask("shop", "own=d", "error=a")); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("fail_mode: error gives %v", err)
	} else if _, ok := errors.AsType[*rls.DropInError](err); !ok || d.counts.take()["redis_error"] != 1 {
		t.Errorf("%T, not counted as redis_error", err)
	}
	d.store.fail = rls.ErrCircuitOpen
	if res := d.ask(t, ask("shop", "closed=a")); res.Reason != rls.CircuitOpen || res.Class != "" {
		t.Errorf("breaker open: %s, class %q", res.Reason, res.Class)
	}
	// What was never counted is over limit as a whole, however many hits it brings.
	d.counts.take()
	for _, words := range []string{"closed=a hits=150", "cap=b hits=150"} {
		if res := d.ask(t, ask("shop", words)); res.Allowed {
			t.Errorf("%s is admitted", words)
		}
		key, _, _ := strings.Cut(words, "=")
		if got := d.counts.take(); got["shop."+key+" over_limit"] != 150 || got["shop."+key+" near_limit"] != 0 || got["shop."+key+" total_hits"] != 150 {
			t.Errorf("%s: counted %v", words, got)
		}
	}
	d.store.fail = nil
	d.plays(t, "shop", "own=a -> OVER [over 0 of 2/hour 537s]\nerror=a -> OK [ok 99 of 100/hour 537s]\nclosed=a -> OK [ok 99 of 100/hour 537s]")
}

// An emergency cap is charged once for each descriptor, however many limits its rule has, and what is shown to remain is
// what is left after that, of the caller's share where it is less.
func TestEmergencyCapShowsWhatIsLeft(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, `
domain: shop
descriptors:
  - {key: cap, emergency: {capacity: 9, refill: 0}, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: low, emergency: {capacity: 9, refill: 0}, rate_limit: {unit: hour, requests_per_unit: 2}}
  - key: two
    emergency: {capacity: 4, refill: 0}
    rate_limit: [{unit: hour, requests_per_unit: 100}, {unit: day, requests_per_unit: 1000}]
  - key: share
    emergency: {capacity: 9, refill: 0, per_key: {capacity: 2, refill: 0}}
    rate_limit: {unit: hour, requests_per_unit: 100}
`)
	d.store.fail = rls.ErrUnavailable
	d.plays(t, "shop", `
		cap=a -> OK [ok 8 of 100/hour 1s]
		cap=b hits=3 -> OK [ok 5 of 100/hour 1s]
		cap=b hits=0 -> OK [ok 5 of 100/hour 1s]
		cap=a;cap=a -> OK [ok 4 of 100/hour 1s] [ok 3 of 100/hour 1s]
		cap=a hits=4 -> OVER [over 3 of 100/hour 1s]
		cap=a hits=3 -> OK [ok 0 of 100/hour 1s]
		cap=a -> OVER [over 0 of 100/hour 1s]
		low=a -> OK [ok 2 of 2/hour 1s]
		two=a -> OK [ok 3 of 100/hour 1s]
		two=a hits=3 -> OK [ok 0 of 100/hour 1s]
		two=a -> OVER [over 0 of 100/hour 1s]
		share=a -> OK [ok 1 of 100/hour 1s]
		share=a -> OK [ok 0 of 100/hour 1s]
		share=a -> OVER [over 0 of 100/hour 1s]
		share=b -> OK [ok 1 of 100/hour 1s]`)
}

// A limit that nobody can count any more lets nobody in.
func TestNoFallbackLeft(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, failing)
	d.store.fail, d.local.fail = rls.ErrTimeout, rls.ErrUnavailable
	if res := d.ask(t, ask("shop", "own=a")); res.Allowed || res.Reason != rls.EmergencyLocalLimit || res.Class != rls.ClassTimeout {
		t.Errorf("%s, %s, class %s", words(res), res.Reason, res.Class)
	}
	engine, err := rls.New(rls.Config{Store: d.store, Identifier: people{}, Recorder: d.notes})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Use(parse(t, basic)); err == nil {
		t.Error("drop-in domains without a fallback were taken")
	}
}

func TestListsOfLimitsAndAlgorithms(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, `
domain: shop
descriptors:
  - key: two
    rate_limit:
      - {name: fast, unit: minute, requests_per_unit: 2}
      - {unit: hour, requests_per_unit: 3}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 60, burst: 2}
  - key: sliding
    rate_limit: {algorithm: sliding_window, unit: second, unit_multiplier: 30, requests_per_unit: 2}
  - key: drops
    rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: fast}]}
`)
	d.plays(t, "shop", `
		two=a -> OK [ok 1 of 2/minute fast 57s]
		two=a -> OK [ok 0 of 2/minute fast 57s]
		two=a -> OVER [over 0 of 2/minute fast 57s]
		two=a -> OVER [over 0 of 3/hour 537s]
		two=b;drops=x -> OK [ok 2 of 3/hour 537s] [ok 8 of 9/hour 537s]
		bucket=a -> OK [ok 1 of 60/minute 1s]
		bucket=a -> OK [ok 0 of 60/minute 2s]
		bucket=a -> OVER [over 0 of 60/minute 2s]
		sliding=a *2 -> OK [ok 0 of 2/secondx30 57s]
		sliding=a -> OVER [over 0 of 2/secondx30 57s]`)
	if got := d.ask(t, ask("shop", "two=a")).RetryAfter; got != 537*time.Second {
		t.Errorf("retry after %v, want the longest", got)
	}
	d.store.now += 1_000_000
	d.plays(t, "shop", "bucket=a -> OK [ok 0 of 60/minute 2s]")
}

func TestStatisticsNameValuesWhereAsked(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, `
domain: shop
descriptors:
  - key: plan
    value: gold
    descriptors:
      - key: user
        detailed_metric: true
        rate_limit: {unit: hour, requests_per_unit: 9}
  - key: route
    value_to_metric: true
    descriptors:
      - key: ip
        rate_limit: {unit: hour, requests_per_unit: 9}
  - key: file
    value: a*
    share_threshold: true
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: file
    value: b*
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: file
    value: c*
    rate_limit: {unit: hour, requests_per_unit: 9}
`, func(cfg *rls.Config) { cfg.DropIn.MaxStats = 4 })
	name := func(words string) string {
		d.counts.take()
		d.ask(t, ask("shop", words))
		for counter := range d.counts.take() {
			if name, ok := strings.CutSuffix(counter, " total_hits"); ok {
				return name
			}
		}
		return ""
	}
	for _, c := range []struct{ words, want string }{
		{"plan=gold user=bob", "shop.plan_gold.user_bob"},
		{"route=/a ip=1.2.3.4", "shop.route_/a.ip"},
		{"file=a1", "shop.file_a*"},
		{"file=b1", "shop.file_b1"},
		{"file=c1", "shop.file_c*"},
		{"plan=gold user=eve", "shop.plan_gold.user_eve"},
		// Beyond the bound new values count under the rule's own name, known ones go on.
		{"plan=gold user=mal", "shop.plan_gold.user"},
		{"plan=gold user=bob", "shop.plan_gold.user_bob"},
		{"file=b2", "shop.file_b*"},
	} {
		if got := name(c.words); got != c.want {
			t.Errorf("%q counts as %q, want %q", c.words, got, c.want)
		}
	}
	d.ask(t, override("x=y", 1, descriptors.Hour, 1))
	if got := d.counts.take(); got["shop.override total_hits"] != 1 {
		t.Errorf("an override beyond the bound: %v", got)
	}
	d = newDropIn(t, basic)
	d.ask(t, override("x=y z=1", 1, descriptors.Hour, 1))
	if got := d.counts.take(); got["shop.x_y.z_1 total_hits"] != 1 {
		t.Errorf("an override: %v", got)
	}
	d.ask(t, override("x="+strings.Repeat("y", 1000), 1, descriptors.Hour, 1))
	if got := d.counts.take(); got["shop.override total_hits"] != 1 {
		t.Errorf("a long name: %v", got)
	}
}

// forgetful answers as if every bucket were new.
type forgetful struct{}

func (forgetful) Decide(_ context.Context, groups []rls.Group) []rls.Answer {
	answers := make([]rls.Answer, len(groups))
	for i := range groups {
		answers[i] = rls.Answer{Now: start, Before: make([]algorithms.State, len(groups[i])), Allowed: true}
	}
	return answers
}

// silent is a Recorder that keeps nothing.
type silent struct{ rls.Recorder }

func (silent) Endpoint(string) rls.EndpointRecorder       { return silentEndpoint{} }
func (silent) Denied(rls.Denial)                          {}
func (silentEndpoint) Decision(rls.Reason, time.Duration) {}
func (silentEndpoint) EmergencySpent(int64)               {}
func (silentEndpoint) EmergencyBound(float64, float64)    {}

type silentEndpoint struct{ rls.EndpointRecorder }

func TestAMillionValuesTakeNoMemory(t *testing.T) {
	counts := &counters{}
	engine, err := rls.New(rls.Config{Store: forgetful{}, Identifier: people{}, Recorder: silent{}, DropIn: rls.DropInConfig{
		Fallback: forgetful{}, Recorder: counts, LocalCacheBytes: 1 << 20,
	}})
	if err != nil {
		t.Fatal(err)
	}
	err = engine.Use(parse(t, `
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 0}
`))
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	more := 1_000_000
	if testing.Short() || raceDetector {
		more = 100_000
	}
	values := 0
	send := func(most int) {
		for ; values < most; values++ {
			r := rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{{Entries: []rls.Entry{{Key: "user", Value: strconv.Itoa(values)}}}}}
			if _, err := engine.Decide(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(50_000) // by now everything that is bounded is full
	before := heap()
	send(50_000 + more)
	if after := heap(); after > before+(2<<20) {
		t.Errorf("%d values took the heap from %d to %d bytes", more, before, after)
	}
	runtime.KeepAlive(engine)
	if counts.names > rls.DefaultMaxStats+2 {
		t.Errorf("%d statistics", counts.names)
	}
}

func TestDropInDenialIsLogged(t *testing.T) {
	t.Parallel()
	d := newDropIn(t, basic, func(cfg *rls.Config) { cfg.BreakerState = func() string { return "closed" } })
	d.plays(t, "shop", "plan=secret *3 -> OVER [over 0 of 2/hour 537s]")
	if len(d.notes.denials) != 1 {
		t.Fatalf("%d denials", len(d.notes.denials))
	}
	got := d.notes.denials[0]
	if got.Latency <= 0 || len(got.DecisionID) != 32 || len(got.IdentityHash) != 64 {
		t.Errorf("latency %v, id %q, hash %q", got.Latency, got.DecisionID, got.IdentityHash)
	}
	got.Latency, got.DecisionID, got.IdentityHash = 0, "", ""
	want := rls.Denial{
		Service: rls.ServiceRateLimit, Domain: "shop", EndpointID: "drop-in:shop", Policy: "shop.plan", IdentityMode: "descriptor",
		Reason: rls.RateLimited, Source: rls.SourceStore, BreakerState: "closed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("denial (-want +got):\n%s", diff)
	}
}
