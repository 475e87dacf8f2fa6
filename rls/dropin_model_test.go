package rls_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// modelNode is one descriptor of a file, as a person reads it.
type modelNode struct {
	key, value                      string
	limit                           int64 // < 0: no rate_limit
	name                            string
	replaces                        []string
	unlimited, shadow, quota, share bool
	nodes                           []*modelNode
}

func (n *modelNode) write(text *strings.Builder, indent string) {
	line := func(format string, args ...any) { fmt.Fprintf(text, indent+format+"\n", args...) }
	line("- key: %s", n.key)
	indent += "  "
	if n.value != "" {
		line("value: %q", n.value)
	}
	for i, word := range []string{"shadow_mode", "quota_mode", "share_threshold"} {
		if []bool{n.shadow, n.quota, n.share}[i] {
			line("%s: true", word)
		}
	}
	if n.unlimited || n.limit >= 0 {
		line("rate_limit:")
		if n.unlimited {
			line("  unlimited: true")
		} else {
			line("  unit: hour\n%s  requests_per_unit: %d", indent, n.limit)
		}
		if n.name != "" {
			line("  name: %s", n.name)
		}
		for i, other := range n.replaces {
			if i == 0 {
				line("  replaces:")
			}
			line("    - name: %s", other)
		}
	}
	writeNodes(text, n.nodes, indent)
}

func writeNodes(text *strings.Builder, nodes []*modelNode, indent string) {
	if len(nodes) > 0 {
		fmt.Fprintf(text, "%sdescriptors:\n", indent)
	}
	for _, n := range nodes {
		n.write(text, indent+"  ")
	}
}

// drawNodes draws a level and what is below it. No two nodes of a level have the same key and value.
func drawNodes(t *rapid.T, depth int) (nodes []*modelNode) {
	seen := make(map[string]bool)
	for range rapid.IntRange(1, 5).Draw(t, "nodes") {
		n := &modelNode{
			key:   rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
			value: rapid.SampledFrom([]string{"", "", "x", "xy", "x*", "*y", "*", "x*y*"}).Draw(t, "value"),
			limit: rapid.Int64Range(-1, 5).Draw(t, "limit"),
		}
		if seen[n.key+n.value] {
			continue
		}
		seen[n.key+n.value] = true
		flag := func(word string) bool { return rapid.IntRange(0, 4).Draw(t, word) == 0 }
		n.unlimited = n.limit >= 0 && flag("unlimited")
		n.shadow, n.quota = flag("shadow"), flag("quota")
		n.share = strings.Contains(n.value, "*") && flag("share")
		if n.limit >= 0 {
			n.name = rapid.SampledFrom([]string{"", "one", "two"}).Draw(t, "name")
			for _, other := range []string{"one", "two"} {
				if other != n.name && flag("replaces") {
					n.replaces = append(n.replaces, other)
				}
			}
		}
		if depth > 0 && flag("below") {
			n.nodes = drawNodes(t, depth-1)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// fits is what * means.
func fits(pattern, text string) bool {
	star := strings.IndexByte(pattern, '*')
	if star < 0 {
		return pattern == text
	}
	if !strings.HasPrefix(text, pattern[:star]) {
		return false
	}
	for i := star; i <= len(text); i++ {
		if fits(pattern[star+1:], text[i:]) {
			return true
		}
	}
	return false
}

// find returns the node that an entry meets.
func find(nodes []*modelNode, e descriptors.Entry) *modelNode {
	for _, same := range []func(n *modelNode) bool{
		func(n *modelNode) bool { return n.value == e.Value && e.Value != "" },
		func(n *modelNode) bool { return strings.Contains(n.value, "*") && fits(n.value, e.Value) },
		func(n *modelNode) bool { return n.value == "" },
	} {
		for _, n := range nodes {
			if n.key == e.Key && same(n) {
				return n
			}
		}
	}
	return nil
}

// model answers as the rules of the language read, one after the other.
type model struct {
	nodes      []*modelNode
	allQuota   bool
	counts     map[string]int64
	overLimits int // how many were seen
}

func (m *model) answer(r *rls.Request) (text string) {
	type asked struct {
		limit         int64
		name, counter string
		node          *modelNode
	}
	all := make([]asked, len(r.Descriptors))
	replaced := make(map[string]bool)
	for i, d := range r.Descriptors {
		a := &all[i]
		a.limit = -1
		if d.Override {
			a.limit, a.counter = int64(d.Limit.PerUnit), fmt.Sprint(d.Entries)
			continue
		}
		nodes, path := m.nodes, make([]string, 0, len(d.Entries))
		for _, e := range d.Entries {
			a.node = find(nodes, e)
			if a.node == nil {
				break
			}
			nodes = a.node.nodes
			if a.node.share {
				path = append(path, "pattern "+a.node.key+a.node.value)
			} else {
				path = append(path, fmt.Sprint(e))
			}
		}
		if a.node == nil || a.node.limit < 0 {
			a.node = nil
			continue
		}
		a.limit, a.name, a.counter = a.node.limit, a.node.name, "["+strings.Join(path, " ")+"]"
		for _, name := range a.node.replaces {
			replaced[name] = true
		}
	}
	over, quotas, quotasOver := false, 0, 0
	for i, d := range r.Descriptors {
		a := &all[i]
		gone := a.node != nil && !a.node.unlimited && a.name != "" && replaced[a.name]
		isQuota := m.allQuota || a.node != nil && a.node.quota && !gone
		code := "ok"
		switch {
		case a.node != nil && a.node.unlimited:
			text += fmt.Sprintf(" [ok %d]", uint32(math.MaxUint32))
			continue
		case a.limit < 0 || gone:
			text += " [ok 0]"
		default:
			n, peek := max(1, r.Hits), false
			if d.HasHits {
				n, peek = d.Hits, d.Hits == 0
			}
			if !peek {
				m.counts[a.counter] += int64(n)
			}
			left := a.limit - m.counts[a.counter]
			if left < 0 && (a.node == nil || !a.node.shadow) {
				code = "over"
			}
			if a.name != "" {
				a.name = " " + a.name
			}
			text += fmt.Sprintf(" [%s %d of %d/hour%s 537s]", code, max(0, left), a.limit, a.name)
		}
		switch {
		case isQuota:
			quotas++
			if code == "over" {
				quotasOver++
			}
		case code == "over":
			over = true
		}
	}
	if over || quotas > 0 && quotas == quotasOver {
		m.overLimits++
		return "OVER" + text
	}
	return "OK" + text
}

func drawRequest(t *rapid.T) rls.Request {
	r := rls.Request{Domain: "shop", Hits: rapid.Uint64Range(0, 3).Draw(t, "request's hits")}
	for range rapid.IntRange(1, 4).Draw(t, "descriptors") {
		var d rls.Descriptor
		for range rapid.IntRange(0, 2).Draw(t, "entries") + rapid.IntRange(0, 1).Draw(t, "one more") {
			d.Entries = append(d.Entries, descriptors.Entry{
				Key:   rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"),
				Value: rapid.SampledFrom([]string{"", "x", "xy", "xzy", "y", "z", "x*"}).Draw(t, "value"),
			})
		}
		if d.HasHits = rapid.IntRange(0, 3).Draw(t, "own hits") == 0; d.HasHits {
			d.Hits = rapid.Uint64Range(0, 4).Draw(t, "hits")
		}
		if len(d.Entries) > 0 && rapid.IntRange(0, 5).Draw(t, "override") == 0 {
			hour, _ := rls.UnitNamed("hour")
			d.Override, d.Limit = true, rls.LimitOverride{PerUnit: uint32(rapid.IntRange(0, 9).Draw(t, "limit")), Unit: hour, Multiplier: 1}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// TestDropInModel draws files and requests, and compares each answer with what the rules of the language say when they
// are read one by one: matching, replacing, counting, peeking, limits of requests, shadow and quota modes. The local cache
// changes none of it where no request brings limits of its own.
func TestDropInModel(t *testing.T) {
	t.Parallel()
	overLimits := 0
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{nodes: drawNodes(rt, 2), allQuota: rapid.IntRange(0, 5).Draw(rt, "quota everywhere") == 0, counts: make(map[string]int64)}
		var file strings.Builder
		file.WriteString("domain: shop\n")
		writeNodes(&file, m.nodes, "")
		cached := rapid.Bool().Draw(rt, "cache")
		d := newDropIn(t, file.String(), func(c *rls.Config) {
			c.DropIn.Quota = m.allQuota
			if cached {
				c.DropIn.LocalCacheBytes = 1 << 20
			}
		})
		for range rapid.IntRange(1, 20).Draw(rt, "requests") {
			r := drawRequest(rt)
			if cached {
				r.Descriptors = slices.DeleteFunc(r.Descriptors, func(d rls.Descriptor) bool { return d.Override })
			}
			if len(r.Descriptors) == 0 {
				continue
			}
			want := m.answer(&r)
			if got := words(d.ask(t, r)); got != want {
				rt.Fatalf("%s\n%+v\n got %s\nwant %s", file.String(), r, got, want)
			}
		}
		overLimits += m.overLimits
	})
	if overLimits < 20 {
		t.Errorf("%d answers were over limit: little was shown", overLimits)
	}
}
