package rls_test

import (
	"fmt"
	"maps"
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
	allQuota   bool // QUOTA_MODE
	stop       bool // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	cached     bool // LOCAL_CACHE_SIZE_IN_BYTES
	counts     map[string]int64
	told       map[string]uint64
	known      map[string]bool // counters that an answer showed to be over limit
	overLimits int             // how many were seen
}

// modelAsk is one descriptor of a request.
type modelAsk struct {
	node    *modelNode // nil: none that limits
	limit   int64      // < 0: none applies
	counter string
	levels  []string // of its statistic
	hits    int64    // 0: it only asks
	refund  bool     // and they are given back
	over    bool     // its limit is exceeded
}

// resolve finds what limits each descriptor, and drops those that others replace.
func (m *model) resolve(r *rls.Request) []modelAsk {
	all, replaced := make([]modelAsk, len(r.Descriptors)), make(map[string]bool)
	for i, d := range r.Descriptors {
		a := &all[i]
		if a.hits = int64(max(1, r.Hits)); d.HasHits {
			a.hits = int64(d.Hits)
		}
		a.refund = d.Negative && a.hits > 0
		if d.Override {
			a.limit, a.counter = int64(d.Limit.PerUnit), fmt.Sprint(d.Entries)
			for _, e := range d.Entries {
				a.levels = append(a.levels, strings.TrimSuffix(e.Key+"_"+e.Value, "_"))
			}
			continue
		}
		nodes, path := m.nodes, make([]string, 0, len(d.Entries))
		for _, e := range d.Entries {
			if a.node = find(nodes, e); a.node == nil {
				break
			}
			nodes = a.node.nodes
			a.levels = append(a.levels, strings.TrimSuffix(a.node.key+"_"+a.node.value, "_"))
			if a.node.share {
				path = append(path, "pattern "+a.node.key+a.node.value)
			} else {
				path = append(path, fmt.Sprint(e))
			}
		}
		if a.node == nil || a.node.limit < 0 {
			a.node, a.limit = nil, -1
			continue
		}
		a.limit, a.counter = a.node.limit, "["+strings.Join(path, " ")+"]"
		for _, name := range a.node.replaces {
			replaced[name] = true
		}
	}
	for i := range all {
		a := &all[i]
		switch {
		case a.node != nil && a.node.unlimited:
			a.limit = -1
		case a.node != nil && replaced[a.node.name]:
			a.node, a.limit = nil, -1
		}
	}
	return all
}

// count adds the hits, and notes who is over limit.
func (m *model) count(all []modelAsk) {
	stopped := false
	if m.stop && m.cached {
		// What the process knows to be over limit spares the others the question: they only ask.
		knows := func(a modelAsk) bool { return a.limit >= 0 && m.known[a.counter] }
		if slices.ContainsFunc(all, knows) {
			for i := range all {
				all[i].hits = 0
			}
		}
	}
	for i := range all {
		a := &all[i]
		stopped = stopped || m.stop && a.limit >= 0 && !a.refund && m.counts[a.counter]+a.hits > a.limit
	}
	for i := range all {
		a := &all[i]
		switch {
		case a.limit < 0:
			continue
		case a.refund:
			m.counts[a.counter] = max(0, m.counts[a.counter]-a.hits)
			continue
		}
		a.over = m.counts[a.counter]+a.hits > a.limit
		m.tell(a)
		if a.over || !stopped {
			m.counts[a.counter] += a.hits
		}
		m.known[a.counter] = m.known[a.counter] || a.over
	}
}

// tell counts what the statistics say of one descriptor: hits above the limit are over it, those above four fifths of it
// near it, and those of an answer that is over limit are not within it.
func (m *model) tell(a *modelAsk) {
	count := func(what string, n int64) {
		if n > 0 {
			m.told["shop."+strings.Join(a.levels, ".")+" "+what] += uint64(n)
		}
	}
	count("total_hits", a.hits)
	for n := m.counts[a.counter] + 1; n <= m.counts[a.counter]+a.hits; n++ {
		switch {
		case n > a.limit:
			count("over_limit", 1)
			if a.node != nil && a.node.shadow {
				count("shadow_mode", 1)
			}
		case n > a.limit*4/5:
			count("near_limit", 1)
		}
	}
	if !a.over {
		count("within_limit", a.hits)
	}
}

// countsTwice reports whether two descriptors have one counter: with STOP these are judged by their sum, which is ours.
func countsTwice(all []modelAsk) bool {
	seen := make(map[string]bool)
	return slices.ContainsFunc(all, func(a modelAsk) bool {
		twice := a.limit >= 0 && seen[a.counter]
		seen[a.counter] = true
		return twice
	})
}

// answer counts and renders; the remaining numbers are those after each descriptor's own hits.
func (m *model) answer(all []modelAsk) string {
	var text strings.Builder
	over, quotas, quotasOver := false, 0, 0
	// One by one: the same counter twice counts twice, in order.
	step := 1
	if m.stop {
		step = len(all)
	}
	for from := 0; from < len(all); from += step {
		m.count(all[from : from+step])
		for i := from; i < from+step; i++ {
			a := &all[i]
			denies := a.over && (a.node == nil || !a.node.shadow)
			switch {
			case a.node != nil && a.node.unlimited:
				fmt.Fprintf(&text, " [ok %d]", uint32(math.MaxUint32))
				continue
			case a.limit < 0:
				text.WriteString(" [ok 0]")
			default:
				code, name := "ok", ""
				if denies {
					code = "over"
				}
				if a.node != nil && a.node.name != "" {
					name = " " + a.node.name
				}
				fmt.Fprintf(&text, " [%s %d of %d/hour%s 537s]", code, max(0, a.limit-m.counts[a.counter]), a.limit, name)
			}
			switch {
			case m.allQuota || a.node != nil && a.node.quota:
				quotas++
				if denies {
					quotasOver++
				}
			case denies:
				over = true
			}
		}
	}
	if over || quotas > 0 && quotas == quotasOver {
		m.overLimits++
		return "OVER" + text.String()
	}
	return "OK" + text.String()
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
		d.Negative = rapid.IntRange(0, 7).Draw(t, "negative") == 0
		if len(d.Entries) > 0 && rapid.IntRange(0, 5).Draw(t, "override") == 0 {
			hour, _ := rls.UnitNamed("hour")
			d.Override, d.Limit = true, rls.LimitOverride{PerUnit: uint32(rapid.IntRange(0, 9).Draw(t, "limit")), Unit: hour, Multiplier: 1}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// TestDropInModel draws files and requests, and compares each answer with what the rules of the language say when they
// are read one by one: matching, merging, replacing, counting, peeking, giving back, limits of requests, shadow, quota and
// stop modes. The local cache changes none of it where no request brings limits of its own or gives back.
func TestDropInModel(t *testing.T) {
	t.Parallel()
	overLimits := 0
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			nodes: drawNodes(rt, 2), counts: make(map[string]int64), known: make(map[string]bool), told: make(map[string]uint64), cached: rapid.Bool().Draw(rt, "cache"),
			allQuota: rapid.IntRange(0, 5).Draw(rt, "quota everywhere") == 0, stop: rapid.IntRange(0, 2).Draw(rt, "stop") == 0,
		}
		files := filesOf(m.nodes, rapid.IntRange(0, len(m.nodes)).Draw(rt, "in the first file"))
		set, err := descriptors.Parse(files, descriptors.Options{DropIn: descriptors.DropInOptions{MergeDomains: true}})
		if err != nil {
			rt.Fatal(err)
		}
		d := newDropIn(t, "domain: shop\ndescriptors: []", func(c *rls.Config) {
			c.DropIn.Quota, c.DropIn.StopWhenOver = m.allQuota, m.stop
			if m.cached {
				c.DropIn.LocalCacheBytes = 1 << 20
			}
		})
		if err := d.Use(set); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 20).Draw(rt, "requests") {
			r := drawRequest(rt)
			if m.cached {
				r.Descriptors = slices.DeleteFunc(r.Descriptors, func(d rls.Descriptor) bool { return d.Override || d.Negative })
			}
			asks := m.resolve(&r)
			if len(asks) == 0 || m.stop && countsTwice(asks) {
				continue
			}
			want := m.answer(asks)
			if got := words(d.ask(t, r)); got != want {
				rt.Fatalf("%s%s\n%+v\n got %s\nwant %s", files[0].Data, files[1].Data, r, got, want)
			}
		}
		if told := d.counts.take(); !m.cached && !m.stop && !maps.Equal(told, m.told) {
			rt.Fatalf("%s%s\ncounted %v\nwant    %v", files[0].Data, files[1].Data, told, m.told)
		}
		overLimits += m.overLimits
	})
	if overLimits < 20 {
		t.Errorf("%d answers were over limit: little was shown", overLimits)
	}
}

// filesOf writes the first nodes into one file of the domain and the others into a second.
func filesOf(nodes []*modelNode, first int) []descriptors.File {
	var files []descriptors.File
	for i, part := range [][]*modelNode{nodes[:first], nodes[first:]} {
		var text strings.Builder
		text.WriteString("domain: shop\n")
		if len(part) == 0 {
			text.WriteString("descriptors: []\n")
		}
		writeNodes(&text, part, "")
		files = append(files, descriptors.File{Name: fmt.Sprint(i, ".yaml"), Data: []byte(text.String())})
	}
	return files
}
