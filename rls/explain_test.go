package rls_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// unhash puts the identities of these tests where their hashes stand.
func unhash(text string) string {
	for _, identity := range []string{"acme", "gold", "free", "evil", "anon:cookie:c", "anon:ip:10.0.0.1", "global:shop"} {
		text = strings.ReplaceAll(text, fmt.Sprintf("%x", sha256.Sum256([]byte(identity))), identity)
	}
	return text
}

// explained renders what an explanation says, a line for each ask and limit.
func explained(x rls.Explanation) []string {
	lines := []string{fmt.Sprintf("%s known=%v %s", x.Domain, x.Known, x.Refusal)}
	for _, a := range x.Asks {
		line := "nothing"
		switch {
		case a.Policy != nil:
			line = fmt.Sprintf("policy %s tenant=%s line=%d", a.Policy.Endpoint, a.Policy.Tenant, a.Policy.Line)
		case a.Rule != nil:
			line = fmt.Sprintf("rule %s line=%d", strings.Join(a.Rule.Levels, "."), a.Rule.Line)
		}
		if a.IdentifyOnly {
			line += " identifies"
		}
		if a.Replaced {
			line += " replaced"
		}
		lines = append(lines, fmt.Sprintf("%s caller=%s %s", line, unhash(a.CallerHash), a.Refusal))
		for _, l := range a.Limits {
			lines = append(lines, fmt.Sprintf("  %s op=%d cost=%d over=%v native=%v dropin=%v", unhash(l.Key), l.Op, l.Cost, l.Over, l.Native != nil, l.DropIn != nil))
		}
	}
	return lines
}

func TestExplainSaysWhatIsAsked(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shop)
	for _, c := range []struct {
		domain string
		words  []string
		want   []string
		notes  map[string]int
	}{
		{"shop", []string{"endpoint_id=orders tenant=acme color=red hits=3"}, []string{
			"shop known=true ",
			"policy orders tenant= line=4 caller=acme ",
			"  sentinel:v1:{acme}:orders:1 op=1 cost=3 over=false native=true dropin=false",
			"  sentinel:v2:{global:shop}:orders:1:all op=1 cost=3 over=false native=true dropin=false",
		}, map[string]int{"ignored 1 entry": 1}},
		{"shop", []string{"endpoint_id=orders tenant=gold", "endpoint_id=orders tenant=free", "endpoint_id=orders tenant=evil", "endpoint_id=orders"}, []string{
			"shop known=true ",
			"policy orders tenant=gold line=12 caller=gold ",
			"  sentinel:v1:{gold}:orders:1 op=1 cost=1 over=false native=true dropin=false",
			"policy orders tenant=free line=13 caller=free ",
			"policy orders tenant=evil line=14 caller=evil RATE_LIMITED",
			"policy orders tenant= line=4 caller= ",
			"  sentinel:v1:{unknown}:orders:1 op=1 cost=1 over=false native=true dropin=false",
			"  sentinel:v2:{global:shop}:orders:1:all op=1 cost=1 over=false native=true dropin=false",
		}, nil},
		{"shop", []string{"endpoint_id=pay tenant=acme hits=2"}, []string{
			"shop known=true ",
			"policy pay tenant= line=15 caller=acme ",
			"  sentinel:v1:{acme}:pay:1 op=1 cost=2 over=true native=true dropin=false",
		}, map[string]int{"pay cost refused": 1}},
		{"shop", []string{"endpoint_id=login cookie=good-c remote_address=10.0.0.1", "endpoint_id=login cookie=bad"}, []string{
			"shop known=true ",
			"policy login tenant= line=34 caller=anon:cookie:c ",
			"  sentinel:v2:{anon:cookie:c}:login:1 op=1 cost=1 over=false native=true dropin=false",
			"  sentinel:v2:{anon:ip:10.0.0.1}:login:1:address op=1 cost=1 over=false native=true dropin=false",
			"policy login tenant= line=34 caller= ",
			"  sentinel:v2:{unknown}:login:1:address op=1 cost=1 over=false native=true dropin=false",
		}, nil},
		{"shop", []string{"endpoint_id=nowhere tenant=acme"}, []string{
			"shop known=true ", "nothing caller= UNKNOWN_ENDPOINT",
		}, map[string]int{"unknown endpoint ratelimit": 1}},
		{"elsewhere", []string{"a=b"}, []string{"elsewhere known=false UNKNOWN_DOMAIN"}, nil},
		{"shop", []string{"endpoint_id=" + strings.Repeat("x", 9000)}, []string{"shop known=true INVALID_REQUEST"}, map[string]int{"refused value": 1}},
	} {
		f.notes.take()
		x, err := f.Explain(ask(c.domain, c.words...))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, explained(x)); d != "" {
			t.Errorf("%q (-want +got):\n%s", c.words, d)
		}
		if notes := f.notes.take(); !maps.Equal(notes, c.notes) {
			t.Errorf("%q: noted %v, want %v", c.words, notes, c.notes)
		}
	}
	if f.store.calls > 0 {
		t.Errorf("the store was asked %d times", f.store.calls)
	}
	for _, r := range []rls.Request{{Domain: "shop"}, ask("", "a=b")} {
		if _, err := f.Explain(r); !errors.Is(err, rls.ErrInvalidRequest) {
			t.Errorf("Explain(%+v) = %v, want ErrInvalidRequest", r, err)
		}
	}
}

func TestExplainCheckSaysWhatIsAsked(t *testing.T) {
	t.Parallel()
	f := newFixture(t, strings.Replace(shop, "  pay:\n", "  pay:\n    required_scopes: [write]\n", 1)+`
  passive:
    policy_version: 1
    count: false
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`)
	for _, c := range []struct {
		endpoint string
		who      descriptors.Subject
		want     []string
	}{
		{"orders", descriptors.Subject{Tenant: "gold"}, []string{
			"shop known=true ",
			"policy orders tenant=gold line=12 caller=gold ",
			"  sentinel:v1:{gold}:orders:1 op=1 cost=1 over=false native=true dropin=false",
		}},
		{"report", descriptors.Subject{Tenant: "gold"}, []string{
			"shop known=true ",
			"policy report tenant= line=25 caller=gold ",
			"  sentinel:v1:{gold}:report:1 op=3 cost=1 over=false native=true dropin=false",
		}},
		{"pay", descriptors.Subject{Tenant: "gold"}, []string{
			"shop known=true INSUFFICIENT_SCOPE",
			"policy pay tenant= line=15 caller=gold ",
			"  sentinel:v1:{gold}:pay:1 op=1 cost=1 over=false native=true dropin=false",
		}},
		{"passive", descriptors.Subject{Tenant: "gold"}, []string{
			"shop known=true ", "policy passive tenant= line=44 identifies caller=gold ",
		}},
		{"nowhere", descriptors.Subject{Tenant: "gold"}, []string{" known=false UNKNOWN_ENDPOINT"}},
	} {
		got := explained(f.ExplainCheck(c.endpoint, c.who, nil))
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.endpoint, d)
		}
	}
}

// What a preview answers is what the store then answers, it changes nothing, and what is explained is what is asked.
func TestPreviewForesees(t *testing.T) {
	t.Parallel()
	const mesh = `
domain: mesh
descriptors:
  - {key: plan, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: both, all_or_nothing: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	words := rapid.Custom(func(t *rapid.T) string {
		w := rapid.SampledFrom([]string{
			"endpoint_id=orders tenant=a", "endpoint_id=orders tenant=b", "endpoint_id=pay tenant=a", "endpoint_id=watch tenant=a",
			"endpoint_id=report tenant=a", "endpoint_id=refunds tenant=a", "endpoint_id=login cookie=good-x remote_address=1.1",
			"endpoint_id=none",
		}).Draw(t, "native")
		if rapid.Bool().Draw(t, "costly") {
			w += fmt.Sprintf(" hits=%d", rapid.IntRange(0, 6).Draw(t, "hits"))
		}
		if rapid.IntRange(0, 4).Draw(t, "negative") == 0 {
			w += " negative"
		}
		return w
	})
	entries := rapid.SampledFrom([]string{"plan=x", "plan=y", "both=x", "both=x hits=2", "shadow=x", "plan=x hits=0", "none=x"})
	rapid.Check(t, func(rt *rapid.T) {
		store := &clockStore{now: 1_800_000_000_000_000, buckets: map[string]algorithms.State{}}
		set, err := descriptors.Parse([]descriptors.File{
			{Name: "shop.yaml", Data: []byte(shop)}, {Name: "mesh.yaml", Data: []byte(mesh)},
		}, descriptors.Options{})
		if err != nil {
			rt.Fatal(err)
		}
		engine := func(s rls.Store) *rls.Engine {
			e, err := rls.New(rls.Config{Store: s, Identifier: people{}, Recorder: &notebook{}, DropIn: rls.DropInConfig{Fallback: store}})
			if err == nil {
				err = e.Use(set)
			}
			if err != nil {
				rt.Fatal(err)
			}
			return e
		}
		real := engine(store)
		for range rapid.IntRange(1, 12).Draw(rt, "requests") {
			store.now += algorithms.Micros(rapid.Int64Range(0, 3_000_000).Draw(rt, "later"))
			r := ask("shop", rapid.SliceOfN(words, 1, 3).Draw(rt, "descriptors")...)
			if rapid.Bool().Draw(rt, "drop-in") {
				r = ask("mesh", rapid.SliceOfN(entries, 1, 3).Draw(rt, "descriptors")...)
			}
			maps.DeleteFunc(store.buckets, func(_ string, s algorithms.State) bool { return !s.Present })
			before := maps.Clone(store.buckets)
			foreseen, err := engine(rls.NewPreview(store)).Decide(t.Context(), r)
			if err != nil {
				rt.Fatal(err)
			}
			maps.DeleteFunc(store.buckets, func(_ string, s algorithms.State) bool { return !s.Present })
			if !maps.Equal(before, store.buckets) {
				rt.Fatalf("%+v: a preview changed %v to %v", r, before, store.buckets)
			}
			x, err := real.Explain(r)
			if err != nil {
				rt.Fatal(err)
			}
			store.groups = nil
			came, err := real.Decide(t.Context(), r)
			if err != nil {
				rt.Fatal(err)
			}
			if line(foreseen) != line(came) {
				rt.Fatalf("%+v: foreseen %s, came %s", r, line(foreseen), line(came))
			}
			told := map[string]bool{}
			for _, a := range x.Asks {
				for _, l := range a.Limits {
					told[l.Key] = true
				}
			}
			for _, groups := range store.groups {
				for _, take := range slices.Concat(groups...) {
					if !told[take.Key] {
						rt.Fatalf("%+v: %s was asked for and not explained", r, take.Key)
					}
				}
			}
		}
	})
}

// A preview of a store that does not answer does not answer.
func TestPreviewOfAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	store := &clockStore{fail: fmt.Errorf("%w: refused", rls.ErrUnavailable)}
	rule, err := algorithms.NewTokenBucket(1, algorithms.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	p := rls.NewPreview(store)
	group := []rls.Group{{{Key: "k", Rule: rule, Op: algorithms.OpTake, Cost: 1}}}
	if a := p.Decide(t.Context(), group); !errors.Is(a[0].Err, rls.ErrUnavailable) {
		t.Errorf("Decide = %+v, want what the store said", a)
	}
	if _, ok := p.Seen("k"); ok {
		t.Error("it has seen a bucket that nobody showed")
	}
	store.fail, store.buckets, store.now = nil, map[string]algorithms.State{}, algorithms.Micros(time.Hour.Microseconds())
	if a := p.Decide(t.Context(), group); a[0].Err != nil || !a[0].Allowed {
		t.Errorf("Decide = %+v once the store is back", a)
	}
	if s, ok := p.Seen("k"); !ok || s.Before.Present || s.Now != store.now {
		t.Errorf("Seen = %+v, %v, want an absent bucket at the store's time", s, ok)
	}
}
