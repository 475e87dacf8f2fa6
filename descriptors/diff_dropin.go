package descriptors

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// anyOther stands for every value that a file does not name.
const anyOther = "(any)"

// dropIn compares a drop-in domain by asking both sets about each descriptor that either of them names, so that what only
// exempts, and what is covered by something more general, is seen as a request would see it.
func (d *differ) dropIn(name string) {
	old, now := d.prev.dropIns[name], d.next.dropIns[name]
	paths := make(map[string][]Entry)
	for _, domain := range []*DropIn{old, now} {
		if domain != nil {
			collect(&domain.root, nil, paths)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(paths)) {
		d.descriptor(name, old, now, paths[key])
	}
}

// collect adds the entries that lead to each node below l.
func collect(l *level, above []Entry, paths map[string][]Entry) {
	for _, n := range l.byName {
		here := append(slices.Clip(above), Entry{n.key, sample(n)})
		paths[entriesText(here)] = here
		if n.next != nil {
			collect(n.next, here, paths)
		}
	}
}

// sample returns a value that the node is meant for.
func sample(n *node) string {
	if n.value == "" {
		return anyOther
	}
	if n.pattern != nil {
		return strings.ReplaceAll(n.value, "*", anyOther)
	}
	return n.value
}

func entriesText(entries []Entry) string {
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = fmt.Sprintf("%s=%s", e.Key, e.Value)
	}
	return strings.Join(parts, " ")
}

// descriptor compares what two domains do with one descriptor; nil: the set does not have the domain.
func (d *differ) descriptor(name string, old, now *DropIn, entries []Entry) {
	before, after := ruleFor(old, entries), ruleFor(now, entries)
	c := comparison{at: Change{Domain: name, Entries: entriesText(entries), Whom: everyone}}
	switch {
	case before.rule == nil && after.rule == nil:
		return
	case before.rule == nil:
		r := after.rule
		c.at.File, c.at.Line = r.File, r.Line
		c.add(Change{What: "rule added", New: ruleLine(r), Tightens: unless(r.Unlimited || r.Shadow)})
	case after.rule == nil:
		r := before.rule
		c.at.File, c.at.Line = r.File, r.Line
		c.add(Change{What: "rule removed", Old: ruleLine(r), Loosens: unless(r.Unlimited || r.Shadow)})
	default:
		c.at.File, c.at.Line = after.rule.File, after.rule.Line
		c.rules(before, after)
	}
	for _, ch := range c.changes {
		ch.Whom = everyone
		d.changes = append(d.changes, ch)
	}
}

// unless is Unbounded, or nothing where a rule denies nobody.
func unless(harmless bool) Share {
	if harmless {
		return 0
	}
	return Unbounded
}

// found is the rule that a descriptor meets, and which of its entries share their bucket with other values.
type found struct {
	rule   *DropInRule
	shared []bool
}

func ruleFor(d *DropIn, entries []Entry) found {
	if d == nil {
		return found{}
	}
	var m Match
	d.Match(entries, &m)
	f := found{rule: m.Rule}
	for _, n := range m.path {
		f.shared = append(f.shared, n.share)
	}
	return f
}

func ruleLine(r *DropInRule) string {
	t := r.Text()
	var limits []string
	for _, l := range t.Limits {
		limits = append(limits, l.String())
	}
	return strings.Join(append(limits, t.String()), "; ")
}

// rules compares two rules that one descriptor meets.
func (c *comparison) rules(before, after found) {
	old, r := before.rule, after.rule
	c.word("shadow_mode", fmt.Sprint(old.Shadow), fmt.Sprint(r.Shadow), !old.Shadow)
	c.word("quota_mode", fmt.Sprint(old.Quota), fmt.Sprint(r.Quota), !old.Quota)
	c.word("all_or_nothing", fmt.Sprint(old.AllOrNothing), fmt.Sprint(r.AllOrNothing), !old.AllOrNothing)
	if !slices.Equal(before.shared, after.shared) {
		// One bucket for all values is the stricter.
		c.word("share_threshold", fmt.Sprint(before.shared), fmt.Sprint(after.shared), slices.Contains(before.shared, true))
	}
	if old.Unlimited || r.Unlimited {
		c.word("rate_limit", ruleLine(old), ruleLine(r), !old.Unlimited)
	} else {
		c.dropInLimits(old, r)
	}
	switch {
	case old.FailMode != r.FailMode || (old.Emergency == nil) != (r.Emergency == nil):
		rank := map[RuleFailMode]int{FailDeny: 0, FailLocal: 1, FailAnswer: 2}
		ch := Change{What: "fail_mode", Old: ruleFailureText(old), New: ruleFailureText(r), StoreAway: true}
		if old.FailMode == r.FailMode {
			ch.Loosens, ch.Tightens = Unbounded, Unbounded // a cap for all instead of each caller's own limit, or back
		} else {
			ch = stricter(ch, rank[old.FailMode] < rank[r.FailMode])
		}
		c.add(ch)
	case r.Emergency != nil:
		c.emergency(*old.Emergency, *r.Emergency)
	}
}

func ruleFailureText(r *DropInRule) string {
	text := ruleFailModeNames[r.FailMode]
	if r.Emergency != nil {
		text += ", " + r.Emergency.Bound()
	}
	return text
}

// dropInLimits compares the limits of two rules by their places.
func (c *comparison) dropInLimits(old, r *DropInRule) {
	for i := range max(len(old.Limits), len(r.Limits)) {
		switch {
		case i >= len(r.Limits):
			c.add(Change{What: "limit removed", Limit: ordinal(i), Old: old.Limits[i].Text().String(), Loosens: Unbounded})
		case i >= len(old.Limits):
			c.add(Change{What: "limit added", Limit: ordinal(i), New: r.Limits[i].Text().String(), Tightens: Unbounded})
		default:
			c.dropInLimit(i, &old.Limits[i], &r.Limits[i])
		}
	}
}

func (c *comparison) dropInLimit(i int, old, l *DropInLimit) {
	before, after := old.Text(), l.Text()
	if old.Name != l.Name || !slices.Equal(old.Replaces, l.Replaces) {
		// Which of a request's limits apply depends on its other descriptors: it may be more of them or fewer.
		c.add(Change{
			What: "name and replaces of limit", Limit: ordinal(i),
			Old: nameText(old), New: nameText(l), Loosens: Unbounded, Tightens: Unbounded,
		})
	}
	before.Name, before.Replaces, after.Name, after.Replaces = "", nil, "", nil
	if before.String() == after.String() {
		return
	}
	ch := Change{What: "limit", Limit: ordinal(i), Old: before.String(), New: after.String()}
	ch.Loosens, ch.Tightens = between(capOf(old.Rule), capOf(l.Rule))
	c.add(ch)
}

func nameText(l *DropInLimit) string {
	text := "no name"
	if l.Name != "" {
		text = quote(l.Name)
	}
	if len(l.Replaces) > 0 {
		text += ", replaces " + strings.Join(l.Replaces, " ")
	}
	return text
}

func ordinal(i int) string { return fmt.Sprintf("number %d", i+1) }
