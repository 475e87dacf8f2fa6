package descriptors_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// keepOneBucket reports whether two rules may keep one bucket: each reads what the other wrote, and neither refills it
// for the other. Windows of two limits keep one count.
func keepOneBucket(a, b algorithms.Rule) bool {
	if a.Kind() == algorithms.TokenBucket {
		return a == b
	}
	return a.Kind() == b.Kind() && a.Window() == b.Window()
}

// TestOneKeyIsOneBucket: whatever tenants' replacements say, limits that meet in one key keep one bucket in it.
func TestOneKeyIsOneBucket(t *testing.T) {
	t.Parallel()
	rules := rapid.SampledFrom([]string{
		"algorithm: token_bucket, capacity: 10, refill: 1/s", "algorithm: token_bucket, capacity: 20, refill: 1/s",
		"algorithm: sliding_window, limit: 10, window: 1m", "algorithm: sliding_window, limit: 20, window: 1m",
		"algorithm: fixed_window, limit: 10, window: 1m",
	})
	scopes := rapid.SampledFrom([]string{"tenant", "user", "client_ip", "global"})
	name := rapid.SampledFrom([]string{"", "acme", "umbrella", "other"})
	good := 0
	rapid.Check(t, func(t *rapid.T) {
		one, two := scopes.Draw(t, "one"), scopes.Draw(t, "two")
		limits := func() string {
			return fmt.Sprintf("[{name: one, scope: %s, %s}, {name: two, scope: %s, %s}]", one, rules.Draw(t, "rule"), two, rules.Draw(t, "rule"))
		}
		text := endpoint(fmt.Sprintf("policy_version: 1, fail_mode: fail_closed, limits: %s, tenants: {acme: {limits: %s}, umbrella: {limits: %s}}",
			limits(), limits(), limits()))
		set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, descriptors.Options{})
		if err != nil {
			return // what may not share is refused
		}
		good++
		own, _ := set.Endpoint("a")
		kept := make(map[string]algorithms.Rule)
		for range 20 {
			who := descriptors.Subject{
				Tenant:   name.Draw(t, "tenant"),
				User:     rapid.SampledFrom([]string{"", "ann"}).Draw(t, "user"),
				ClientIP: rapid.SampledFrom([]string{"", "192.0.2.1"}).Draw(t, "address"),
			}
			p := own.For(who.Tenant)
			for i := range p.Limits {
				key, _ := p.Limits[i].Key(&who)
				if other, met := kept[key]; met && !keepOneBucket(other, p.Limits[i].Rule) {
					t.Fatalf("%s\nthe key %s is kept by %v and by %v", text, key, other, p.Limits[i].Rule)
				}
				kept[key] = p.Limits[i].Rule
			}
		}
	})
	if good == 0 {
		t.Error("every drawn policy was refused")
	}
}

// TestOneDropInKeyIsOneBucket: two descriptors that meet in one key are under one limit of the file. A limit in a request
// meets only counting windows of its own length.
func TestOneDropInKeyIsOneBucket(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"a", "a_b", "b", "a_b_a", "b_a"})
	value := rapid.SampledFrom([]string{"", "a", "b", "a_b", "a*", "*", "b_*"})
	rule := rapid.SampledFrom([]string{
		"", "rate_limit: {unit: hour, requests_per_unit: 1}", "rate_limit: {unit: hour, requests_per_unit: 2}",
		"all_or_nothing: true, rate_limit: {unit: hour, requests_per_unit: 3}",
		"rate_limit: [{unit: hour, requests_per_unit: 4}, {unit: hour, requests_per_unit: 5}]",
		"rate_limit: {unit: hour, requests_per_unit: 6, algorithm: token_bucket, burst: 9}",
		"rate_limit: {unit: hour, requests_per_unit: 7, algorithm: sliding_window}",
	})
	var node func(depth int) *rapid.Generator[string]
	node = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			parts := []string{"key: " + word.Draw(t, "key")}
			if v := value.Draw(t, "value"); v != "" {
				parts = append(parts, "value: '"+v+"'")
				if strings.Contains(v, "*") && rapid.Bool().Draw(t, "shared") {
					parts = append(parts, "share_threshold: true")
				}
			}
			if r := rule.Draw(t, "rule"); r != "" {
				parts = append(parts, r)
			}
			if depth > 0 {
				below := rapid.SliceOfN(node(depth-1), 0, 3).Draw(t, "below")
				parts = append(parts, "descriptors: ["+strings.Join(below, ", ")+"]")
			}
			return "{" + strings.Join(parts, ", ") + "}"
		})
	}
	entry := rapid.Custom(func(t *rapid.T) descriptors.Entry {
		return descriptors.Entry{Key: word.Draw(t, "key"), Value: rapid.SampledFrom([]string{"", "a", "b", "a_b", "a*", "b_a", "aa"}).Draw(t, "value")}
	})
	good, met := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := "domain: shop\ndescriptors: [" + strings.Join(rapid.SliceOfN(node(1), 1, 4).Draw(t, "nodes"), ", ") + "]\n"
		set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, descriptors.Options{})
		if err != nil {
			return
		}
		good++
		domain, _ := set.DropIn("shop")
		kept := make(map[string]*descriptors.DropInLimit)
		requests := rapid.SliceOfN(rapid.SliceOfN(entry, 1, 2), 2, 20).Draw(t, "requests")
		for _, entries := range requests {
			var m descriptors.Match
			if !domain.Match(entries, &m) {
				continue
			}
			for i := range m.Rule.Limits {
				l, key := &m.Rule.Limits[i], m.Key(i)
				other, shared := kept[key]
				if shared {
					met++
				}
				if shared && other != l {
					t.Fatalf("%s\n%v: the key %s is kept by %v and by %v", text, entries, key, other.Rule, l.Rule)
				}
				kept[key] = l
			}
		}
		for _, entries := range requests {
			var m descriptors.Match
			domain.Match(entries, &m)
			m.Override()
			if l, shared := kept[m.OverrideKey(descriptors.Hour, 1)]; shared && (l.Rule.Kind() != algorithms.FixedWindow || l.Unit != descriptors.Hour) {
				t.Fatalf("%s\n%v: a limit per hour in the request meets %v", text, entries, l.Rule)
			}
		}
	})
	if good == 0 || met == 0 {
		t.Errorf("%d files were good, %d times two descriptors met", good, met)
	}
}
