package rls_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// clockStore decides by the Go rules on a clock that the test turns, and fails on demand.
type clockStore struct {
	mu      sync.Mutex
	now     algorithms.Micros
	buckets map[string]algorithms.State
	fail    error
	calls   int
	groups  [][]rls.Group
}

func (s *clockStore) Decide(_ context.Context, groups []rls.Group) []rls.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.groups = append(s.groups, groups)
	answers := make([]rls.Answer, len(groups))
	for i, g := range groups {
		if s.fail != nil {
			answers[i].Err = s.fail
			continue
		}
		answers[i] = s.decide(g)
	}
	return answers
}

func (s *clockStore) decide(g rls.Group) rls.Answer {
	a := rls.Answer{Now: s.now, Allowed: true, Before: make([]algorithms.State, len(g))}
	seen := map[string]bool{}
	for i, t := range g {
		if seen[t.Key] {
			panic("keys of a group must be distinct: " + t.Key)
		}
		seen[t.Key] = true
		a.Before[i] = s.buckets[t.Key]
		a.Allowed = t.Rule.Verdict(t.Op, a.Before[i], s.now, t.Cost).Allowed && a.Allowed
	}
	for _, t := range g {
		if a.Allowed || t.Rule.Insists(t.Op, t.Rule.Admits(t.Op, s.buckets[t.Key], s.now, t.Cost)) {
			s.buckets[t.Key] = t.Rule.Apply(t.Op, s.buckets[t.Key], s.now, t.Cost, t.Window)
		}
	}
	return a
}

// people knows two tokens, one cookie and addresses as they are.
type people struct{}

func (people) Tenant(c identity.Credentials) (identity.Identity, error) {
	if len(c.Authorization) == 0 {
		return identity.Identity{}, fmt.Errorf("no header: %w", identity.ErrMissing)
	}
	switch tenant, ok := strings.CutPrefix(c.Authorization[0], "Bearer "); {
	case tenant == "busy":
		return identity.Identity{}, identity.ErrBusy
	case ok:
		return identity.Identity{Tenant: tenant, Subject: "user-of-" + tenant, Scopes: []string{"read"}}, nil
	}
	return identity.Identity{}, identity.ErrInvalid
}

func (people) Anonymous(c identity.Credentials) identity.Identity {
	id := identity.Identity{SetCookie: "minted"}
	if len(c.Cookies) > 0 {
		id.Cookie, id.SetCookie = c.Cookies[0], ""
	}
	if len(c.ClientAddress) > 0 {
		id.Address = c.ClientAddress[0]
	}
	return id
}

func (people) Cookie(value string) (string, bool) {
	return strings.CutPrefix(value, "good-")
}

func (people) Address(text string) (string, bool) { return text, strings.Contains(text, ".") }

// notebook counts what the engine records.
type notebook struct {
	mu      sync.Mutex
	counts  map[string]int
	denials []rls.Denial
	refused []rls.Refused
	bounds  map[string][2]float64 // the last stated emergency bound of each endpoint
	spent   map[string]int64      // what emergency admissions cost
}

func (n *notebook) spend(endpoint string, cost int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.spent == nil {
		n.spent = map[string]int64{}
	}
	n.spent[endpoint] += cost
}

func (n *notebook) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.counts == nil {
		n.counts = map[string]int{}
	}
	n.counts[fmt.Sprintf(format, args...)]++
}

// take returns what was recorded since the last call.
func (n *notebook) take() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.counts
	n.counts = nil
	return c
}

func (n *notebook) Endpoint(id string) rls.EndpointRecorder { return page{n, id} }
func (n *notebook) StoreFailure(c rls.Class)                { n.add("store failure %s", c) }
func (n *notebook) UnknownEndpoint(s rls.Service)           { n.add("unknown endpoint %s", s) }
func (n *notebook) UnknownDomain(s rls.Service)             { n.add("unknown domain %s", s) }

func (n *notebook) Unauthenticated(r rls.Refused) {
	n.add("unauthenticated %s", r.Service)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = append(n.refused, r)
}

func (n *notebook) Ignored(what rls.Ignored, k int) { n.add("ignored %d %s", k, what) }
func (n *notebook) RequestRefused(b rls.Bound)      { n.add("refused %s", b) }
func (n *notebook) Healed(k int)                    { n.add("healed %d", k) }
func (n *notebook) DenyCacheHit()                   { n.add("deny cache hit") }
func (n *notebook) ClockBehind()                    { n.add("clock behind") }
func (n *notebook) Denied(d rls.Denial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.denials = append(n.denials, d)
}

type page struct {
	n  *notebook
	id string
}

func (p page) Decision(r rls.Reason, _ time.Duration) { p.n.add("%s %s", p.id, r) }
func (p page) EmergencyAdmission()                    { p.n.add("%s emergency admission", p.id) }
func (p page) EmergencySpent(cost int64)              { p.n.spend(p.id, cost) }
func (p page) ShadowDenial()                          { p.n.add("%s shadow denial", p.id) }
func (p page) CostRefused()                           { p.n.add("%s cost refused", p.id) }
func (p page) EmergencyBound(capacity, refill float64) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.n.bounds == nil {
		p.n.bounds = map[string][2]float64{}
	}
	p.n.bounds[p.id] = [2]float64{capacity, refill}
}

type fixture struct {
	*rls.Engine
	store *clockStore
	notes *notebook
}

func newFixture(t *testing.T, policies string, change ...func(*rls.Config)) *fixture {
	t.Helper()
	f := &fixture{
		store: &clockStore{now: 1_800_000_000_000_000, buckets: map[string]algorithms.State{}},
		notes: &notebook{},
	}
	cfg := rls.Config{Store: f.store, Identifier: people{}, Recorder: f.notes}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if f.Engine, err = rls.New(cfg); err != nil {
		t.Fatal(err)
	}
	if err := f.Use(parse(t, policies)); err != nil {
		t.Fatal(err)
	}
	return f
}

func parse(t *testing.T, policies string) *descriptors.Set {
	t.Helper()
	set, err := descriptors.Parse([]descriptors.File{{Name: "policies.yaml", Data: []byte(policies)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// line renders a result for step tables: verdict, reason, source, retry and each status.
func line(r rls.Result) string {
	verdict := "deny"
	if r.Allowed {
		verdict = "allow"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s %s", verdict, r.Reason, r.Source)
	if !r.Allowed {
		s.WriteString(" retry=" + wait(r.RetryAfter))
	}
	for _, st := range r.Statuses {
		code, name := "ok", "-"
		if st.OverLimit {
			code = "over"
		}
		if st.Limit != nil {
			name = fmt.Sprintf("%s:%d", st.Limit.Name, st.Remaining)
		}
		fmt.Fprintf(&s, " [%s %s %s]", code, name, wait(st.Reset))
	}
	return s.String()
}

func wait(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return d.String()
}

// desc builds a descriptor from key=value words; hits=N, negative and override are its other fields.
func desc(words string) rls.Descriptor {
	var d rls.Descriptor
	for w := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "hits":
			d.HasHits = true
			fmt.Sscan(value, &d.Hits)
		case "negative":
			d.Negative = true
		case "override":
			d.Override = true
		default:
			d.Entries = append(d.Entries, rls.Entry{Key: key, Value: value})
		}
	}
	return d
}

func ask(domain string, words ...string) rls.Request {
	r := rls.Request{Domain: domain}
	for _, w := range words {
		r.Descriptors = append(r.Descriptors, desc(w))
	}
	return r
}

// step is one request and what must come back; between steps the clock may move.
type step struct {
	after time.Duration
	words []string
	want  string
	notes map[string]int
}

func (f *fixture) play(t *testing.T, steps []step) {
	t.Helper()
	f.notes.take()
	for i, s := range steps {
		f.store.now += algorithms.Micros(s.after.Microseconds())
		r, err := f.Decide(t.Context(), ask("shop", s.words...))
		if err != nil {
			t.Fatalf("step %d %q: %v", i, s.words, err)
		}
		if got := line(r); got != s.want {
			t.Errorf("step %d %q:\n got %s\nwant %s", i, s.words, got, s.want)
		}
		notes := f.notes.take()
		if s.notes != nil && !maps.Equal(notes, s.notes) {
			t.Errorf("step %d %q: recorded %v, want %v", i, s.words, notes, s.notes)
		}
	}
}

const shop = `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 2, refill: 0}
    limits:
      - {algorithm: token_bucket, capacity: 5, refill: 1/s, max_cost: 5}
      - {name: all, scope: global, algorithm: token_bucket, capacity: 8, refill: 0, max_cost: 8}
    tenants:
      gold: {limits: [{algorithm: token_bucket, capacity: 50, refill: 1/s, max_cost: 50}]}
      free: {limits: unlimited}
      evil: {limits: blocked}
  pay:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
  watch:
    policy_version: 1
    mode: shadow
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
  report:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 10, refill: 0}
    limits: [{algorithm: token_bucket, capacity: 10, refill: 1/s, max_cost: 10, charge: after}]
  refunds:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 10, refill: 0}
    limits: [{algorithm: token_bucket, capacity: 3, refill: 0, refunds: true, max_cost: 3}]
  login:
    policy_version: 1
    identity: anonymous
    fail_mode: fail_open
    emergency: {capacity: 10, refill: 0}
    limits:
      - {scope: cookie, algorithm: token_bucket, capacity: 1, refill: 1/s}
      - {name: address, scope: client_ip, algorithm: token_bucket, capacity: 2, refill: 1/s}
`

// TestGroupIsAllOrNothing follows a tenant and everybody sharing one limit.
func TestGroupIsAllOrNothing(t *testing.T) {
	f := newFixture(t, shop)
	f.play(t, []step{
		{words: []string{"endpoint_id=orders tenant=a hits=4"}, want: "allow ALLOWED store [ok orders:1 4s]", notes: map[string]int{"orders ALLOWED": 1}},
		{words: []string{"endpoint_id=orders tenant=b hits=3"}, want: "allow ALLOWED store [ok orders:all:1 never]"},
		// a's own bucket would fit one more second from now, the shared one never: both stay as they are.
		{words: []string{"endpoint_id=orders tenant=a hits=2"}, want: "deny RATE_LIMITED store retry=never [over orders:all:1 never]", notes: map[string]int{"orders RATE_LIMITED": 1}},
		{words: []string{"endpoint_id=orders tenant=a hits=1"}, want: "allow ALLOWED store [ok orders:0 5s]"},
		{after: 5 * time.Second, words: []string{"endpoint_id=orders tenant=a hits=5"}, want: "deny RATE_LIMITED store retry=never [over orders:all:0 never]"},
		{words: []string{"endpoint_id=orders tenant=gold hits=50"}, want: "allow ALLOWED store [ok orders:0 50s]"},
		{words: []string{"endpoint_id=orders tenant=gold"}, want: "deny RATE_LIMITED store retry=1s [over orders:0 50s]"},
		{after: time.Second - time.Microsecond, words: []string{"endpoint_id=orders tenant=gold"}, want: "deny RATE_LIMITED store retry=1µs [over orders:0 49.000001s]"},
		{after: time.Microsecond, words: []string{"endpoint_id=orders tenant=gold"}, want: "allow ALLOWED store [ok orders:0 50s]"},
		{words: []string{"endpoint_id=orders tenant=free hits=1000"}, want: "allow ALLOWED none [ok - never]", notes: map[string]int{"orders ALLOWED": 1}},
		{words: []string{"endpoint_id=orders tenant=evil"}, want: "deny RATE_LIMITED none retry=never [over - never]", notes: map[string]int{"orders RATE_LIMITED": 1}},
	})
}

// TestDescriptors covers what a request may hold beside plain hits.
func TestDescriptors(t *testing.T) {
	t.Run("RLS-03 a descriptor's hits_addend wins over the request's", func(t *testing.T) {
		f := newFixture(t, shop)
		r := ask("shop", "endpoint_id=orders tenant=a", "endpoint_id=orders tenant=b hits=2")
		r.Hits = 5
		got, err := f.Decide(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if want := "allow ALLOWED store [ok orders:0 5s] [ok orders:all:1 never]"; line(got) != want {
			t.Errorf("got %s, want %s", line(got), want)
		}
	})
	t.Run("one bucket twice is decided by the sum", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=orders tenant=a hits=3", "endpoint_id=orders tenant=a hits=3"}, want: "deny RATE_LIMITED none retry=never [over orders:0 never] [over orders:0 never]"},
			{words: []string{"endpoint_id=orders tenant=a hits=3", "endpoint_id=orders tenant=a hits=2"}, want: "allow ALLOWED store [ok orders:0 5s] [ok orders:0 5s]"},
		})
	})
	t.Run("many buckets in one request", func(t *testing.T) {
		f := newFixture(t, shop)
		words, want := []string{}, "allow ALLOWED store"
		for i := range 20 {
			words = append(words, fmt.Sprintf("endpoint_id=refunds tenant=t%d", i))
		}
		words = append(words, words...) // each twice: one take of 2
		f.play(t, []step{{words: words, want: want + strings.Repeat(" [ok refunds:1 never]", 40)}})
		if n := len(f.store.groups[0][0]); n != 20 {
			t.Errorf("%d takes in the group, want 20", n)
		}
	})
	t.Run("RLS-04 RLS-05 a cost above max_cost is refused before any arithmetic", func(t *testing.T) {
		f := newFixture(t, shop)
		over := "deny RATE_LIMITED none retry=never [over orders:0 never]"
		for _, hits := range []string{"4294967295", "9223372036854775807", "9223372036854775808", "18446744073709551615", "6"} {
			f.play(t, []step{{words: []string{"endpoint_id=orders tenant=a hits=" + hits}, want: over, notes: map[string]int{"orders cost refused": 1, "orders RATE_LIMITED": 1}}})
		}
		if f.store.calls != 0 {
			t.Errorf("%d store calls for costs that can never fit, want 0", f.store.calls)
		}
		f.play(t, []step{{words: []string{"endpoint_id=orders tenant=a"}, want: "allow ALLOWED store [ok orders:4 1s]"}})
	})
	t.Run("an explicit 0 is a peek", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=pay tenant=a hits=0"}, want: "allow ALLOWED store [ok pay:1 0s]"},
			{words: []string{"endpoint_id=pay tenant=a"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay tenant=a hits=0"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never]"},
			// A peek that says no denies the group: nothing is spent from the other bucket.
			{words: []string{"endpoint_id=pay tenant=a hits=0", "endpoint_id=orders tenant=a hits=5"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never] [ok orders:5 0s]"},
		})
	})
	t.Run("RLS-13 a denied request spends nothing", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=pay tenant=a", "endpoint_id=orders tenant=a"}, want: "allow ALLOWED store [ok pay:0 never] [ok orders:4 1s]"},
			{words: []string{"endpoint_id=pay tenant=a", "endpoint_id=orders tenant=a"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never] [ok orders:4 1s]", notes: map[string]int{"pay RATE_LIMITED": 1, "orders RATE_LIMITED": 1}},
			{words: []string{"endpoint_id=orders tenant=a hits=4"}, want: "allow ALLOWED store [ok orders:0 5s]"},
		})
	})
	t.Run("RLS-06 an override of the caller's is ignored and counted", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{{
			words: []string{"endpoint_id=pay tenant=a plan=gold override"}, want: "allow ALLOWED store [ok pay:0 never]",
			notes: map[string]int{"ignored 1 override": 1, "ignored 1 entry": 1, "pay ALLOWED": 1},
		}})
	})
	t.Run("RLS-09 a descriptor without entries asks nothing", func(t *testing.T) {
		f := newFixture(t, shop)
		f.play(t, []step{
			{words: []string{""}, want: "allow ALLOWED none [ok - never]", notes: map[string]int{"ignored 1 empty": 1}},
			{words: []string{"", "endpoint_id=pay tenant=a"}, want: "allow ALLOWED store [ok - never] [ok pay:0 never]"},
		})
	})
	t.Run("RLS-26 case and Unicode are significant", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=pay tenant=Gold"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay tenant=gold"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay tenant=\u00e9"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay tenant=e\u0301"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"Endpoint_ID=pay tenant=gold"}, want: "deny UNKNOWN_ENDPOINT none retry=never [over - never]"},
		})
	})
	t.Run("an entry that stands twice with two values names nobody", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=pay tenant=a tenant=b"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never]"}, // the same {unknown} bucket
			{words: []string{"endpoint_id=pay tenant=a tenant=a"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay endpoint_id=orders tenant=a"}, want: "deny UNKNOWN_ENDPOINT none retry=never [over - never]"},
		})
	})
	t.Run("charge after the fact", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=report tenant=a hits=0"}, want: "allow ALLOWED store [ok report:10 0s]"},
			{words: []string{"endpoint_id=report tenant=a hits=7"}, want: "allow ALLOWED store [ok report:3 7s]"},
			// It was used already, so it is recorded although it does not fit; the bucket stands at 0.
			{words: []string{"endpoint_id=report tenant=a hits=7"}, want: "deny RATE_LIMITED store retry=1s [over report:0 10s]"},
			{words: []string{"endpoint_id=report tenant=a hits=0"}, want: "deny RATE_LIMITED store retry=1s [over report:0 10s]"},
			{after: time.Second, words: []string{"endpoint_id=report tenant=a hits=0"}, want: "allow ALLOWED store [ok report:1 9s]"},
			// Charges apply whatever else denies.
			{after: 9 * time.Second, words: []string{"endpoint_id=report tenant=a hits=4", "endpoint_id=nowhere"}, want: "deny UNKNOWN_ENDPOINT store retry=never [ok report:6 4s] [over - never]"},
			{words: []string{"endpoint_id=report tenant=a hits=0"}, want: "allow ALLOWED store [ok report:6 4s]"},
			// More than max_cost counts as max_cost.
			{words: []string{"endpoint_id=report tenant=b hits=18446744073709551615"}, want: "allow ALLOWED store [ok report:0 10s]"},
		})
	})
	t.Run("refunds where the limit has them", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=refunds tenant=a hits=3"}, want: "allow ALLOWED store [ok refunds:0 never]"},
			{words: []string{"endpoint_id=refunds tenant=a hits=2 negative"}, want: "allow ALLOWED store [ok refunds:2 never]"},
			{words: []string{"endpoint_id=refunds tenant=a hits=3"}, want: "deny RATE_LIMITED store retry=never [over refunds:2 never]"},
			// Dropped when its group is denied.
			{words: []string{"endpoint_id=refunds tenant=a negative", "endpoint_id=nowhere"}, want: "deny UNKNOWN_ENDPOINT none retry=never [ok - never] [over - never]"},
			{words: []string{"endpoint_id=refunds tenant=a hits=99 negative"}, want: "allow ALLOWED store [ok refunds:3 0s]"},
			{words: []string{"endpoint_id=pay tenant=a hits=1 negative"}, want: "allow ALLOWED none [ok - never]", notes: map[string]int{"ignored 1 refund": 1, "pay ALLOWED": 1}},
		})
	})
	t.Run("a shadow policy counts and never denies", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=watch tenant=a"}, want: "allow ALLOWED none [ok watch:0 never]", notes: map[string]int{"watch ALLOWED": 1}},
			{words: []string{"endpoint_id=watch tenant=a"}, want: "allow ALLOWED none [ok watch:0 never]", notes: map[string]int{"watch ALLOWED": 1, "watch shadow denial": 1}},
			// It spends whatever the others answer.
			{words: []string{"endpoint_id=watch tenant=b", "endpoint_id=nowhere"}, want: "deny UNKNOWN_ENDPOINT none retry=never [ok watch:0 never] [over - never]"},
			{words: []string{"endpoint_id=watch tenant=b", "endpoint_id=pay tenant=b"}, want: "allow ALLOWED store [ok watch:0 never] [ok pay:0 never]", notes: map[string]int{"watch ALLOWED": 1, "watch shadow denial": 1, "pay ALLOWED": 1}},
		})
	})
	t.Run("cookie and address", func(t *testing.T) {
		newFixture(t, shop).play(t, []step{
			{words: []string{"endpoint_id=login cookie=good-1 remote_address=192.0.2.1"}, want: "allow ALLOWED store [ok login:0 1s]"},
			{words: []string{"endpoint_id=login cookie=good-2 remote_address=192.0.2.1"}, want: "allow ALLOWED store [ok login:0 1s]"},
			{words: []string{"endpoint_id=login cookie=good-3 remote_address=192.0.2.1"}, want: "deny RATE_LIMITED store retry=1s [over login:address:0 2s]"},
			{words: []string{"endpoint_id=login cookie=forged remote_address=192.0.2.2"}, want: "allow ALLOWED store [ok login:address:1 1s]"},
			{words: []string{"endpoint_id=login masked_remote_address=192.0.2.3 remote_address=192.0.2.2"}, want: "allow ALLOWED store [ok login:address:0 2s]"},
			{words: []string{"endpoint_id=login remote_address=garbage"}, want: "allow ALLOWED store [ok login:address:1 1s]"},
			{words: []string{"endpoint_id=login"}, want: "allow ALLOWED store [ok login:address:0 2s]"}, // the same {unknown} bucket
		})
	})
}

// TestUnknown covers domains and endpoints that no policy names.
func TestUnknown(t *testing.T) {
	f := newFixture(t, shop)
	f.play(t, []step{
		{words: []string{"endpoint_id=nowhere tenant=a"}, want: "deny UNKNOWN_ENDPOINT none retry=never [over - never]", notes: map[string]int{"unknown endpoint ratelimit": 1}},
		{words: []string{"tenant=a"}, want: "deny UNKNOWN_ENDPOINT none retry=never [over - never]"},
		{words: []string{"endpoint_id=orders tenant=a", "tenant=a"}, want: "deny UNKNOWN_ENDPOINT none retry=never [ok - never] [over - never]"},
	})
	if f.store.calls != 0 {
		t.Errorf("%d store calls, want none", f.store.calls)
	}
	r, err := f.Decide(t.Context(), ask("elsewhere", "a=b", "c=d"))
	if err != nil || line(r) != "allow UNKNOWN_DOMAIN none [ok - never] [ok - never]" {
		t.Errorf("unknown domain: %s, %v", line(r), err)
	}
	for _, bad := range []rls.Request{{}, {Domain: "shop"}, {Descriptors: []rls.Descriptor{desc("a=b")}}} {
		if _, err := f.Decide(t.Context(), bad); !errors.Is(err, rls.ErrInvalidRequest) {
			t.Errorf("Decide(%+v) = %v, want ErrInvalidRequest", bad, err)
		}
	}

	lenient := newFixture(t, shop, func(c *rls.Config) { c.OKUnknownEndpoint, c.DenyUnknownDomain = true, true })
	lenient.play(t, []step{{words: []string{"endpoint_id=nowhere", "endpoint_id=pay tenant=a"}, want: "allow ALLOWED store [ok - never] [ok pay:0 never]"}})
	if r, _ := lenient.Decide(t.Context(), ask("elsewhere", "a=b")); line(r) != "deny UNKNOWN_DOMAIN none retry=never [over - never]" {
		t.Errorf("unknown_domain: over_limit: %s", line(r))
	}

	byDefault := newFixture(t, shop+`
  default:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`)
	byDefault.play(t, []step{
		{words: []string{"endpoint_id=nowhere tenant=a"}, want: "allow ALLOWED store [ok default:0 never]", notes: map[string]int{"default ALLOWED": 1}},
		{words: []string{"endpoint_id=elsewhere tenant=a"}, want: "deny RATE_LIMITED store retry=never [over default:0 never]"},
		{words: []string{"tenant=a"}, want: "deny RATE_LIMITED store retry=never [over default:0 never]"},
	})
}

// TestBounds sends more than one request may hold.
func TestBounds(t *testing.T) {
	f := newFixture(t, shop)
	many := make([]string, 5000)
	for i := range many {
		many[i] = "endpoint_id=pay tenant=a"
	}
	long := rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{{Entries: slices.Repeat([]rls.Entry{{Key: "a", Value: "b"}}, 33)}}}
	for _, c := range []struct {
		name  string
		bound string
		r     rls.Request
	}{
		{"RLS-24 5000 descriptors", "descriptors", ask("shop", many...)},
		{"33 entries", "entries", long},
		{"a long key", "key", ask("shop", strings.Repeat("k", 257)+"=v")},
		{"a long value", "value", ask("shop", "k="+strings.Repeat("v", 8193))},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := f.Decide(t.Context(), c.r)
			if err != nil || r.Allowed || r.Reason != rls.InvalidRequest || len(r.Statuses) != len(c.r.Descriptors) {
				t.Errorf("got %v %v with %d statuses, %v", r.Allowed, r.Reason, len(r.Statuses), err)
			}
			if want := map[string]int{"refused " + c.bound: 1}; !maps.Equal(f.notes.take(), want) {
				t.Errorf("want %v recorded", want)
			}
		})
	}
	if f.store.calls != 0 {
		t.Errorf("%d store calls, want none", f.store.calls)
	}
}

// TestPF_05_LongValuesCostWhatTheBoundCosts: a value above the bound is refused by its length. No key is made of it.
func TestPF_05_LongValuesCostWhatTheBoundCosts(t *testing.T) {
	f := newFixture(t, shop)
	// The least of some runs: what the runtime and earlier tests leave behind allocates, too.
	refusal := func(r rls.Request) float64 {
		least := math.Inf(1)
		for range 5 {
			least = min(least, testing.AllocsPerRun(10, func() {
				if result, err := f.Decide(t.Context(), r); err != nil || result.Reason != rls.InvalidRequest {
					t.Errorf("got %v, %v", result.Reason, err)
				}
			}))
		}
		return least
	}
	for name, descriptor := range map[string]string{
		"value": "endpoint_id=orders tenant=%s", "endpoint": "endpoint_id=%s tenant=a", "key": "endpoint_id=orders %s=a",
	} {
		short := ask("shop", fmt.Sprintf(descriptor, strings.Repeat("v", 8193)))
		long := ask("shop", fmt.Sprintf(descriptor, strings.Repeat("v", 1<<20)))
		if above, far := refusal(short), refusal(long); far > above || far > 10 {
			t.Errorf("%s: %v allocations for 1 MiB, %v just above the bound", name, far, above)
		}
	}
	if f.store.calls != 0 {
		t.Errorf("%d store calls, want none", f.store.calls)
	}
}

// TestStoreFails walks both fail modes through each failure, alone and mixed.
func TestStoreFails(t *testing.T) {
	f := newFixture(t, shop)
	for _, c := range []struct {
		err    error
		class  rls.Class
		closed string
	}{
		{fmt.Errorf("dial: %w", rls.ErrUnavailable), rls.ClassUnavailable, "FAIL_CLOSED"},
		{rls.ErrTimeout, rls.ClassTimeout, "FAIL_CLOSED"},
		{rls.ErrStore, rls.ClassError, "FAIL_CLOSED"},
		{rls.ErrCircuitOpen, "", "CIRCUIT_OPEN"},
	} {
		f.store.fail = c.err
		r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=pay tenant=a", "endpoint_id=report tenant=a"))
		if want := "deny " + c.closed + " none retry=never [over - never] [ok - never]"; err != nil || line(r) != want || r.Class != c.class {
			t.Errorf("%v: %s class %q, want %s class %q", c.err, line(r), r.Class, want, c.class)
		}
		want := map[string]int{"pay " + c.closed: 1, "report " + c.closed: 1}
		if c.class != "" {
			want["store failure "+string(c.class)] = 1
		}
		if got := f.notes.take(); !maps.Equal(got, want) {
			t.Errorf("%v: recorded %v, want %v", c.err, got, want)
		}
	}
	// The emergency caps decide all or nothing: orders has 2, report 10, each charged once per request.
	f.play(t, []step{
		{words: []string{"endpoint_id=orders tenant=a", "endpoint_id=report tenant=a hits=4"}, want: "allow ALLOWED emergency [ok - never] [ok - never]", notes: map[string]int{"orders ALLOWED": 1, "report ALLOWED": 1, "orders emergency admission": 1, "report emergency admission": 1}},
		{words: []string{"endpoint_id=orders tenant=a hits=2", "endpoint_id=refunds tenant=a"}, want: "deny EMERGENCY_LOCAL_LIMIT emergency retry=never [over - never] [ok - never]", notes: map[string]int{"orders EMERGENCY_LOCAL_LIMIT": 1, "refunds EMERGENCY_LOCAL_LIMIT": 1}},
		{words: []string{"endpoint_id=orders tenant=gold"}, want: "allow ALLOWED emergency [ok - never]"}, // a replacement without a cap shares the endpoint's
		{words: []string{"endpoint_id=orders tenant=b"}, want: "deny EMERGENCY_LOCAL_LIMIT emergency retry=never [over - never]"},
		{words: []string{"endpoint_id=report tenant=b hits=7"}, want: "deny EMERGENCY_LOCAL_LIMIT emergency retry=never [over - never]"}, // a charge takes it to 0
		{words: []string{"endpoint_id=report tenant=b hits=0"}, want: "deny EMERGENCY_LOCAL_LIMIT emergency retry=never [over - never]"},
		{words: []string{"endpoint_id=refunds tenant=b negative"}, want: "allow ALLOWED emergency [ok - never]"},
		{words: []string{"endpoint_id=watch tenant=b"}, want: "allow ALLOWED none [ok - never]"},
		{words: []string{"endpoint_id=orders tenant=free"}, want: "allow ALLOWED none [ok - never]"},
		{words: []string{"endpoint_id=orders tenant=evil"}, want: "deny RATE_LIMITED none retry=never [over - never]"},
		{words: []string{"endpoint_id=nowhere", "endpoint_id=report tenant=a"}, want: "deny UNKNOWN_ENDPOINT none retry=never [over - never] [ok - never]"},
	})
}

// TestEmergencyIsWarm: what was admitted while the store answered is gone from the cap when it stops.
func TestEmergencyIsWarm(t *testing.T) {
	f := newFixture(t, shop)
	f.play(t, []step{
		{words: []string{"endpoint_id=refunds tenant=a hits=3"}, want: "allow ALLOWED store [ok refunds:0 never]"},
		{words: []string{"endpoint_id=refunds tenant=b hits=3"}, want: "allow ALLOWED store [ok refunds:0 never]"},
		{words: []string{"endpoint_id=refunds tenant=c hits=3"}, want: "allow ALLOWED store [ok refunds:0 never]"},
		{words: []string{"endpoint_id=refunds tenant=c hits=3"}, want: "deny RATE_LIMITED store retry=never [over refunds:0 never]"},
	})
	f.store.fail = rls.ErrUnavailable
	outage := []step{
		{words: []string{"endpoint_id=refunds tenant=d"}, want: "allow ALLOWED emergency [ok - never]"}, // the tenth of ten
		{words: []string{"endpoint_id=refunds tenant=d"}, want: "deny EMERGENCY_LOCAL_LIMIT emergency retry=never [over - never]"},
	}
	f.play(t, outage)
	// Neither a moment of health nor a reload gives a fresh burst.
	f.store.fail = nil
	f.play(t, []step{{words: []string{"endpoint_id=refunds tenant=e"}, want: "allow ALLOWED store [ok refunds:2 never]"}})
	f.store.fail = rls.ErrUnavailable
	f.play(t, outage[1:])
	if err := f.Use(parse(t, strings.Replace(shop, "emergency: {capacity: 10, refill: 0}", "emergency: {capacity: 11, refill: 0}", -1))); err != nil {
		t.Fatal(err)
	}
	f.play(t, outage[1:])
	if err := f.Use(parse(t, shop)); err != nil {
		t.Fatal(err)
	}
	f.play(t, outage[1:])
}

const shares = `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 100000, refill: 0, per_key: {capacity: 2, refill: 0}}
    limits: [{algorithm: token_bucket, capacity: 1000, refill: 0}]
`

// TestEmergencyShares: no caller gets more than its share, and beyond the table all callers share one.
func TestEmergencyShares(t *testing.T) {
	f := newFixture(t, shares)
	f.store.fail = rls.ErrUnavailable
	admitted := func(tenant string) bool {
		r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=orders tenant="+tenant))
		if err != nil {
			t.Fatal(err)
		}
		return r.Allowed
	}
	for i := range 3 {
		if got, want := admitted("greedy"), i < 2; got != want {
			t.Errorf("call %d of one caller: admitted %v, want %v", i, got, want)
		}
	}
	for i := range rls.MaxEmergencyShares - 1 {
		if !admitted(fmt.Sprint("t", i)) {
			t.Fatalf("caller %d: denied its first call", i)
		}
	}
	var late int
	for i := range 10 {
		if admitted(fmt.Sprint("late", i)) {
			late++
		}
	}
	if late != 2 {
		t.Errorf("%d of 10 callers beyond the table admitted, want the 2 of the share they have together", late)
	}
	if admitted("greedy") {
		t.Error("a share in use was dropped and refilled")
	}
}

// TestCheck walks ext_authz: policy, identity, limits.
func TestCheck(t *testing.T) {
	f := newFixture(t, shop+`
  scoped:
    policy_version: 1
    fail_mode: fail_closed
    required_scopes: [read, write]
    limits: unlimited
  outside:
    policy_version: 1
    fail_mode: fail_closed
    count: false
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`)
	bearer := func(tenant string) identity.Credentials {
		return identity.Credentials{Authorization: []string{"Bearer " + tenant}}
	}
	visitor := func(cookie, address string) identity.Credentials {
		c := identity.Credentials{ClientAddress: []string{address}}
		if cookie != "" {
			c.Cookies = []string{cookie}
		}
		return c
	}
	for i, s := range []struct {
		endpoint string
		who      identity.Credentials
		want     string
		notes    map[string]int
	}{
		{"orders", identity.Credentials{}, "deny UNAUTHENTICATED none retry=never", map[string]int{"unauthenticated ext_authz": 1}},
		{"orders", identity.Credentials{Authorization: []string{"Basic x"}}, "deny UNAUTHENTICATED none retry=never", nil},
		{"orders", bearer("busy"), "deny IDENTITY_UNAVAILABLE none retry=never", nil},
		{"nowhere", identity.Credentials{}, "deny UNAUTHENTICATED none retry=never", map[string]int{"unauthenticated ext_authz": 1, "unknown endpoint ext_authz": 1}},
		{"nowhere", bearer("a"), "deny UNKNOWN_ENDPOINT none retry=never", nil},
		{"", bearer("a"), "deny UNKNOWN_ENDPOINT none retry=never", nil},
		{"scoped", bearer("a"), "deny INSUFFICIENT_SCOPE none retry=never", map[string]int{}},
		{"orders", bearer("a"), "allow ALLOWED store [ok orders:4 1s]", map[string]int{"orders ALLOWED": 1}},
		{"orders", bearer("free"), "allow ALLOWED none [ok - never]", nil},
		{"orders", bearer("evil"), "deny RATE_LIMITED none retry=never [over - never]", map[string]int{"orders RATE_LIMITED": 1}},
		{"pay", bearer("a"), "allow ALLOWED store [ok pay:0 never]", nil},
		{"pay", bearer("a"), "deny RATE_LIMITED store retry=never [over pay:0 never]", nil},
		{"outside", bearer("a"), "allow ALLOWED none [ok - never]", map[string]int{}},
		{"outside", bearer("a"), "allow ALLOWED none [ok - never]", map[string]int{}},
		{"report", bearer("a"), "allow ALLOWED store [ok report:10 0s]", nil}, // a peek: only a report charges
		{"login", visitor("1", "192.0.2.1"), "allow ALLOWED store [ok login:0 1s]", nil},
		{"login", visitor("1", "192.0.2.1"), "deny RATE_LIMITED store retry=1s [over login:0 1s]", nil},
		{"login", visitor("", "192.0.2.1"), "allow ALLOWED store [ok login:address:0 2s]", nil},
		{"login", visitor("", "192.0.2.1"), "deny RATE_LIMITED store retry=1s [over login:address:0 2s]", nil},
	} {
		f.notes.take()
		r := f.Check(t.Context(), rls.CheckRequest{EndpointID: s.endpoint, Credentials: s.who})
		if line(r.Result) != s.want {
			t.Errorf("step %d, %s:\n got %s\nwant %s", i, s.endpoint, line(r.Result), s.want)
		}
		if got := f.notes.take(); s.notes != nil && !maps.Equal(got, s.notes) {
			t.Errorf("step %d, %s: recorded %v, want %v", i, s.endpoint, got, s.notes)
		}
		if len(r.DecisionID) != 32 {
			t.Errorf("step %d: decision id %q", i, r.DecisionID)
		}
	}
	r := f.Check(t.Context(), rls.CheckRequest{EndpointID: "orders", Credentials: identity.Credentials{Authorization: []string{"Basic x"}}})
	if !r.InvalidToken {
		t.Error("a credential that was presented and is unusable must be told apart from none")
	}
}

// TestDenialIsLogged compares the record of one denial with the contract.
func TestDenialIsLogged(t *testing.T) {
	f := newFixture(t, shop, func(c *rls.Config) { c.BreakerState = func() string { return "closed" } })
	f.Check(t.Context(), rls.CheckRequest{EndpointID: "pay", Credentials: identity.Credentials{Authorization: []string{"Bearer a"}}})
	r := f.Check(t.Context(), rls.CheckRequest{EndpointID: "pay", Credentials: identity.Credentials{Authorization: []string{"Bearer a"}}})
	if len(f.notes.denials) != 1 {
		t.Fatalf("%d denial records, want 1", len(f.notes.denials))
	}
	got := f.notes.denials[0]
	got.Latency = 0
	want := rls.Denial{
		Service: rls.ServiceAuthz, Domain: "shop", EndpointID: "pay", Policy: "pay", IdentityMode: "tenant_jwt",
		IdentityHash: "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", // sha256("a")
		Reason:       rls.RateLimited, Source: rls.SourceStore, DecisionID: r.DecisionID, BreakerState: "closed",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("denial (-want +got):\n%s", d)
	}
}

// TestDeniedFromMemory: the engine says where a denial came from, and a reload forgets it.
func TestDeniedFromMemory(t *testing.T) {
	f := newFixture(t, shop, func(c *rls.Config) { c.DenyCache = &rls.DenyCacheConfig{MaxAge: time.Hour} })
	f.play(t, []step{
		{words: []string{"endpoint_id=pay tenant=a"}, want: "allow ALLOWED store [ok pay:0 never]"},
		{words: []string{"endpoint_id=pay tenant=a"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never]"},
		{words: []string{"endpoint_id=pay tenant=a"}, want: "deny RATE_LIMITED deny_cache retry=never [over pay:0 never]", notes: map[string]int{"pay RATE_LIMITED": 1, "deny cache hit": 1}},
		{words: []string{"endpoint_id=pay tenant=a hits=0"}, want: "deny RATE_LIMITED deny_cache retry=never [over pay:0 never]"},
		{words: []string{"endpoint_id=refunds tenant=a hits=3"}, want: "allow ALLOWED store [ok refunds:0 never]"},
		{words: []string{"endpoint_id=refunds tenant=a"}, want: "deny RATE_LIMITED store retry=never [over refunds:0 never]"},
		{words: []string{"endpoint_id=refunds tenant=a"}, want: "deny RATE_LIMITED store retry=never [over refunds:0 never]"},
	})
	if err := f.Use(parse(t, shop)); err != nil {
		t.Fatal(err)
	}
	f.play(t, []step{{words: []string{"endpoint_id=pay tenant=a"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never]"}})
}

// TestRefusedFromMemoryBesideShadow: one request, stale in memory for its enforced and for its shadow policy, is answered by
// the store and not by waiting for itself.
func TestRefusedFromMemoryBesideShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(time.Millisecond, time.Millisecond)
		f := newFixture(t, `
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 0}
    limits: [{name: all, scope: global, algorithm: token_bucket, capacity: 1, refill: 0}]
    tenants:
      quiet: {mode: shadow}
`, func(c *rls.Config) { c.Store, c.DenyCache = store, &rls.DenyCacheConfig{} })
		decide := func() string {
			r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=orders tenant=a", "endpoint_id=orders tenant=quiet"))
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%v %s", r.Reason, r.Source)
		}
		decide()
		for range 5 {
			time.Sleep(2 * time.Second)
			start := time.Now()
			if got := decide(); got != "RATE_LIMITED store" {
				t.Errorf("%s after %v, want the store's denial", got, time.Since(start))
			}
		}
	})
}

// TestTakesOfOneRequest asks for more buckets than a group may have: refused and counted, not passed to the fail mode.
func TestTakesOfOneRequest(t *testing.T) {
	limits := make([]string, 20)
	for i := range limits {
		limits[i] = fmt.Sprintf("      - {name: l%d, algorithm: token_bucket, capacity: 1, refill: 0}", i)
	}
	f := newFixture(t, `
domain: shop
endpoints:
  wide:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1000, refill: 0}
    limits:
`+strings.Join(limits, "\n"))
	words := make([]string, 64)
	for i := range words {
		words[i] = fmt.Sprintf("endpoint_id=wide tenant=t%d", i)
	}
	r, err := f.Decide(t.Context(), ask("shop", words...))
	if err != nil || r.Allowed || r.Reason != rls.InvalidRequest || f.store.calls != 0 {
		t.Errorf("%v %s, %d store calls, %v; want a refusal before the store", r.Allowed, r.Reason, f.store.calls, err)
	}
	if want := map[string]int{"refused takes": 1}; !maps.Equal(f.notes.take(), want) {
		t.Errorf("want %v recorded", want)
	}
	r, err = f.Decide(t.Context(), ask("shop", words[:50]...))
	if err != nil || !r.Allowed {
		t.Errorf("1000 takes: %s, %v; want an admission", r.Reason, err)
	}
}

// TestEmergencySharesOfEveryCaller: a second descriptor does not hide behind the share of the first.
func TestEmergencySharesOfEveryCaller(t *testing.T) {
	f := newFixture(t, shares)
	f.store.fail = rls.ErrUnavailable
	admitted := 0
	for i := range 20 {
		r, err := f.Decide(t.Context(), ask("shop", fmt.Sprintf("endpoint_id=orders tenant=new%d", i), "endpoint_id=orders tenant=greedy"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Allowed {
			admitted++
		}
	}
	if admitted != 2 {
		t.Errorf("admitted %d times, want the 2 of its share", admitted)
	}
}

// TestTenantsOnOneWindow: what everyone shares is one count. A tenant whose replacement has a larger limit passes while
// others no longer do, and what it spends counts for them; a denial that is remembered for one is none for the other.
func TestTenantsOnOneWindow(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window"} {
		t.Run(algorithm, func(t *testing.T) {
			policies := strings.ReplaceAll(`
domain: shop
endpoints:
  orders:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{scope: global, algorithm: ALGORITHM, limit: 3, window: 1h}]
    tenants:
      gold: {limits: [{scope: global, algorithm: ALGORITHM, limit: 5, window: 1h}]}
`, "ALGORITHM", algorithm)
			f := newFixture(t, policies, func(c *rls.Config) { c.DenyCache = &rls.DenyCacheConfig{} })
			admitted := func(tenant string, want ...bool) {
				t.Helper()
				for i, w := range want {
					r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=orders tenant="+tenant))
					if err != nil || r.Allowed != w {
						t.Errorf("request %d of %s: %s, %v; want admitted %v", i+1, tenant, line(r), err, w)
					}
				}
			}
			admitted("any", true, true, true, false, false)
			admitted("gold", true)
			admitted("any", false)
			admitted("gold", true, false, false)
			admitted("any", false)
			// Descriptors of both in one request are held to the stricter limit, by their sum.
			f = newFixture(t, policies)
			r, err := f.Decide(t.Context(), ask("shop", "endpoint_id=orders tenant=any", "endpoint_id=orders tenant=gold", "endpoint_id=orders tenant=gold"))
			if err != nil || !r.Allowed {
				t.Errorf("three together: %s, %v", line(r), err)
			}
			admitted("any", false)
			admitted("gold", true, true, false)
		})
	}
}
