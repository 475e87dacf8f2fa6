package descriptors

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// Change is one difference between two policy sets, and what it means to those it concerns.
type Change struct {
	Domain   string `json:"domain"`
	Endpoint string `json:"endpoint,omitempty"` // of a native domain
	Entries  string `json:"entries,omitempty"`  // of a drop-in domain: descriptors like this
	Whom     string `json:"whom"`
	What     string `json:"what"` // endpoint, limit, capacity, fail_mode, …
	Limit    string `json:"limit,omitempty"`
	Old      string `json:"old,omitempty"`
	New      string `json:"new,omitempty"`

	// Loosens is how much more may pass than before, Tightens how much less. A limit whose burst grows while its rate
	// falls does both.
	Loosens  Share `json:"loosens"`
	Tightens Share `json:"tightens"`

	// StoreAway: it matters only while the store cannot answer.
	StoreAway bool `json:"store_away,omitempty"`
	// Fresh: every bucket concerned starts afresh, so that each caller has its full burst once more.
	Fresh bool `json:"fresh_buckets,omitempty"`

	File string `json:"file"` // of the new set; of the old one for what is gone
	Line int    `json:"line"`
}

// Share is a part of what was before: 0.2 is 20 %, 0 is nothing, Unbounded is more than a number says.
type Share float64

// Unbounded is the share of a change that no number measures, as a limit that is gone.
var Unbounded = Share(math.Inf(1))

// MarshalJSON writes the share in percent, or the word unbounded.
func (s Share) MarshalJSON() ([]byte, error) {
	if s == Unbounded {
		return []byte(`"unbounded"`), nil
	}
	return json.Marshal(math.Round(float64(s)*1e6) / 1e4)
}

// String returns the share as people write it; empty for nothing.
func (s Share) String() string {
	switch {
	case s == 0:
		return ""
	case s == Unbounded:
		return "without a measure"
	}
	return fmt.Sprintf("by %.4g %%", float64(s)*100)
}

// String returns the change on one line.
func (c Change) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d: %s", c.File, c.Line, c.Domain)
	for _, part := range []string{c.Endpoint, c.Entries} {
		if part != "" {
			b.WriteString(" " + part)
		}
	}
	if c.Whom != "" && c.Whom != everyone {
		b.WriteString(", " + c.Whom)
	}
	b.WriteString(": " + c.What)
	if c.Limit != "" {
		b.WriteString(" " + c.Limit)
	}
	switch {
	case c.Old == "":
		b.WriteString(": " + c.New)
	case c.New == "":
		b.WriteString(", was " + c.Old)
	default:
		b.WriteString(": " + c.Old + " -> " + c.New)
	}
	var effects []string
	if c.Loosens != 0 {
		effects = append(effects, strings.TrimSpace("loosens "+c.Loosens.String()))
	}
	if c.Tightens != 0 {
		effects = append(effects, strings.TrimSpace("tightens "+c.Tightens.String()))
	}
	if c.Fresh {
		effects = append(effects, "every bucket starts afresh")
	}
	if len(effects) > 0 {
		b.WriteString("; " + strings.Join(effects, ", "))
	}
	if c.StoreAway {
		b.WriteString(", while the store is away")
	}
	return b.String()
}

const everyone = "everyone"

// Diff returns what changes when next takes the place of prev, and for whom: native endpoints by id, then drop-in domains
// by name. What is not named by a set is taken to be answered by the default settings: an unknown domain is admitted, an
// unknown endpoint is refused.
func Diff(prev, next *Set) []Change {
	d := differ{prev: prev, next: next}
	for _, id := range either(prev.endpoints, next.endpoints) {
		d.endpoint(prev.endpoints[id], next.endpoints[id])
	}
	for _, name := range either(prev.dropIns, next.dropIns) {
		d.dropIn(name)
	}
	return d.changes
}

func either[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

type differ struct {
	prev, next *Set
	changes    []Change
}

// endpoint compares the policies of one endpoint; nil: the set has none.
func (d *differ) endpoint(old, p *Policy) {
	switch {
	case old == nil:
		d.changes = append(d.changes, d.added(p))
	case p == nil:
		d.changes = append(d.changes, d.removed(old))
	case old.Domain != p.Domain:
		d.changes = append(d.changes, d.removed(old), d.added(p))
	default:
		d.policies(old, p)
	}
}

// knows reports whether a set names a domain.
func (s *Set) knows(domain string) bool {
	_, native := s.domains[domain]
	_, dropIn := s.dropIns[domain]
	return native || dropIn
}

// fallback returns what answers in a set for an endpoint that it does not have.
func (s *Set) fallback(domain string) (answer string, limited bool) {
	if d, ok := s.domains[domain]; ok {
		if p, ok := d.endpoints[DefaultEndpoint]; ok {
			return fmt.Sprintf("answered by the endpoint default (%s:%d)", p.File, p.Line), true
		}
	}
	if s.knows(domain) {
		return "unknown, refused", false
	}
	return "of an unknown domain, admitted", false
}

func (d *differ) added(p *Policy) Change {
	c := Change{
		Domain: p.Domain, Endpoint: p.Endpoint, Whom: everyone, What: "endpoint added",
		New: p.Text().String(), File: p.File, Line: p.Line,
	}
	var defaults bool
	c.Old, defaults = d.prev.fallback(p.Domain)
	c.Loosens, c.Tightens = appears(defaults, d.prev.knows(p.Domain))
	return c
}

func (d *differ) removed(old *Policy) Change {
	c := Change{
		Domain: old.Domain, Endpoint: old.Endpoint, Whom: everyone, What: "endpoint removed",
		Old: old.Text().String(), File: old.File, Line: old.Line,
	}
	var defaults bool
	c.New, defaults = d.next.fallback(old.Domain)
	c.Tightens, c.Loosens = appears(defaults, d.next.knows(old.Domain))
	return c
}

// appears says what an endpoint does that appears beside what answered before it: the default policy, which may have been
// stricter or not; a refusal; or an admission.
func appears(defaults, refused bool) (loosens, tightens Share) {
	switch {
	case defaults:
		return Unbounded, Unbounded
	case refused:
		return Unbounded, 0
	}
	return 0, Unbounded
}

// policies compares two policies of one endpoint, for everyone and for each tenant with a replacement.
func (d *differ) policies(old, p *Policy) {
	base := compare(old, p)
	own := make(map[string][]Change)
	except := make([][]string, len(base)) // the tenants that a change does not concern
	tenants := eitherTenants(old, p)[1:]
	for _, tenant := range tenants {
		changes := compare(old.For(tenant), p.For(tenant))
		for i := range base {
			if !slices.ContainsFunc(changes, base[i].same) {
				except[i] = append(except[i], tenant)
			}
		}
		own[tenant] = slices.DeleteFunc(changes, func(c Change) bool { return slices.ContainsFunc(base, c.same) })
	}
	for i, c := range base {
		c.Whom = whom(except[i])
		d.changes = append(d.changes, c)
	}
	for _, tenant := range tenants {
		for _, c := range own[tenant] {
			c.Whom = "tenant " + quote(tenant)
			d.changes = append(d.changes, c)
		}
	}
}

// whom names everyone but some tenants.
func whom(except []string) string {
	const most = 3
	switch n := len(except); {
	case n == 0:
		return everyone
	case n > most:
		return fmt.Sprintf("everyone but %d tenants with replacements", n)
	}
	quoted := make([]string, len(except))
	for i, tenant := range except {
		quoted[i] = quote(tenant)
	}
	return "everyone but tenant " + strings.Join(quoted, ", ")
}

// same reports whether two changes say the same, to whomever.
func (c Change) same(o Change) bool {
	return c.What == o.What && c.Limit == o.Limit && c.Old == o.Old && c.New == o.New
}

// comparison collects the changes of one policy.
type comparison struct {
	at      Change // where
	changes []Change
}

// compare returns what changes from one policy to another.
func compare(old, p *Policy) []Change {
	c := comparison{at: Change{Domain: p.Domain, Endpoint: p.Endpoint, File: p.File, Line: p.Line}}
	if old.Version != p.Version {
		c.add(Change{What: "policy_version", Old: fmt.Sprint(old.Version), New: fmt.Sprint(p.Version), Fresh: true})
	}
	c.word("identity", old.Identity.String(), p.Identity.String(), old.Identity == TenantJWT)
	c.word("mode", old.Mode.String(), p.Mode.String(), old.Mode == Enforce)
	c.word("count", fmt.Sprint(old.Count), fmt.Sprint(p.Count), old.Count)
	c.scopes(old.RequiredScopes, p.RequiredScopes)
	c.limits(old, p)
	c.failure(old, p)
	return c.changes
}

func (c *comparison) add(ch Change) {
	ch.Domain, ch.Endpoint, ch.Entries = c.at.Domain, c.at.Endpoint, c.at.Entries
	if ch.File == "" {
		ch.File, ch.Line = c.at.File, c.at.Line
	}
	c.changes = append(c.changes, ch)
}

// word compares a word or switch of which one is the stricter.
func (c *comparison) word(what, old, now string, oldIsStricter bool) {
	if old != now {
		c.add(stricter(Change{What: what, Old: old, New: now}, oldIsStricter))
	}
}

// stricter gives a change the direction away from the stricter side.
func stricter(ch Change, oldIsStricter bool) Change {
	if oldIsStricter {
		ch.Loosens = Unbounded
	} else {
		ch.Tightens = Unbounded
	}
	return ch
}

func (c *comparison) scopes(old, now []string) {
	lacks := func(from, in []string) bool {
		return slices.ContainsFunc(from, func(s string) bool { return !slices.Contains(in, s) })
	}
	ch := Change{What: "required_scopes", Old: listed(old), New: listed(now)}
	if lacks(old, now) {
		ch.Loosens = Unbounded
	}
	if lacks(now, old) {
		ch.Tightens = Unbounded
	}
	if ch.Loosens+ch.Tightens > 0 {
		c.add(ch)
	}
}

func listed(words []string) string { return cmp.Or(strings.Join(words, " "), "none") }

// limits compares what two policies count.
func (c *comparison) limits(old, p *Policy) {
	if old.Verdict != Limited || p.Verdict != Limited {
		rank := map[Verdict]int{Blocked: 0, Limited: 1, Unlimited: 2}
		c.word("limits", old.Verdict.String(), p.Verdict.String(), rank[old.Verdict] < rank[p.Verdict])
		return
	}
	find := func(limits []Limit, l *Limit) int {
		return slices.IndexFunc(limits, func(o Limit) bool { return o.Scope == l.Scope && o.Name == l.Name })
	}
	for i := range old.Limits {
		if l := &old.Limits[i]; find(p.Limits, l) < 0 {
			c.add(Change{What: "limit removed", Limit: l.label(), Old: l.Text().String(), Loosens: Unbounded, File: l.File, Line: l.Line})
		}
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		if j := find(old.Limits, l); j >= 0 {
			c.limit(&old.Limits[j], l)
			continue
		}
		c.add(Change{What: "limit added", Limit: l.label(), New: l.Text().String(), Tightens: Unbounded, File: l.File, Line: l.Line})
	}
}

// limit compares two limits of one name and scope.
func (c *comparison) limit(old, l *Limit) {
	add := func(ch Change) {
		ch.Limit, ch.File, ch.Line = l.label(), l.File, l.Line
		c.add(ch)
	}
	if old.Rule != l.Rule {
		ch := Change{What: "limit", Old: ruleText(old.Rule).String(), New: ruleText(l.Rule).String()}
		ch.Loosens, ch.Tightens = between(capOf(old.Rule), capOf(l.Rule))
		add(ch)
	}
	if old.MaxCost != l.MaxCost {
		ch := Change{What: "max_cost of limit", Old: fmt.Sprint(old.MaxCost), New: fmt.Sprint(l.MaxCost)}
		ch.Loosens, ch.Tightens = shares(big.NewRat(l.MaxCost, old.MaxCost))
		add(ch)
	}
	if old.ChargeAfter != l.ChargeAfter {
		add(stricter(Change{What: "charge of limit", Old: old.Text().Charge, New: l.Text().Charge}, l.ChargeAfter))
	}
	if old.Refunds != l.Refunds {
		add(stricter(Change{What: "refunds of limit", Old: fmt.Sprint(old.Refunds), New: fmt.Sprint(l.Refunds)}, l.Refunds))
	}
}

// failure compares what two policies do while the store cannot answer.
func (c *comparison) failure(old, p *Policy) {
	if old.FailMode != p.FailMode {
		ch := stricter(Change{What: "fail_mode", Old: failureText(old), New: failureText(p), StoreAway: true}, old.FailMode == FailClosed)
		c.add(ch)
		return
	}
	if p.FailMode == FailOpen {
		c.emergency(old.Emergency, p.Emergency)
	}
}

func failureText(p *Policy) string {
	if p.FailMode == FailOpen {
		return p.FailMode.String() + ", " + p.Emergency.Bound()
	}
	return p.FailMode.String()
}

func (c *comparison) emergency(old, now Emergency) {
	ch := Change{What: "emergency", Old: emergencyText(old), New: emergencyText(now), StoreAway: true}
	if ch.Old == ch.New {
		return
	}
	ch.Loosens, ch.Tightens = between(old.part(old.Bucket), now.part(now.Bucket))
	switch {
	case old.PerKey == nil && now.PerKey != nil:
		ch.Tightens = Unbounded
	case old.PerKey != nil && now.PerKey == nil:
		ch.Loosens = Unbounded
	case old.PerKey != nil:
		loosens, tightens := between(old.part(*old.PerKey), now.part(*now.PerKey))
		ch.Loosens, ch.Tightens = max(ch.Loosens, loosens), max(ch.Tightens, tightens)
	}
	c.add(ch)
}

// part is what one process admits of a bucket, when there are no more than there are at least.
func (e Emergency) part(b Bucket) admits {
	a := capOfBucket(b)
	if e.Fleet {
		n := new(big.Rat).SetInt64(max(1, e.MinProcesses))
		a.burst.Quo(a.burst, n)
		a.rate.Quo(a.rate, n)
	}
	return a
}

func emergencyText(e Emergency) string {
	text := fmt.Sprintf("capacity %d, refill %s", e.Capacity, rateText(e.Refill))
	if e.PerKey != nil {
		text += fmt.Sprintf(", per_key capacity %d, refill %s", e.PerKey.Capacity, rateText(e.PerKey.Refill))
	}
	if e.Fleet {
		text += fmt.Sprintf(", across the fleet of at least %d", e.MinProcesses)
	}
	return text
}

// admits is what a limit lets through: at once, and over time in cost units per second.
type admits struct{ burst, rate *big.Rat }

func capOf(r algorithms.Rule) admits {
	a := admits{burst: new(big.Rat).SetInt64(r.Limit()), rate: new(big.Rat)}
	if r.Kind() == algorithms.TokenBucket {
		if r.Refill().Tokens > 0 {
			a.rate.SetFrac64(r.Refill().Tokens, r.Refill().Seconds)
		}
		return a
	}
	a.rate.SetFrac64(r.Limit(), int64(r.Window()))
	a.rate.Mul(a.rate, big.NewRat(1_000_000, 1))
	return a
}

func capOfBucket(b Bucket) admits {
	a := admits{burst: new(big.Rat).SetInt64(b.Capacity), rate: new(big.Rat)}
	if b.Refill.Tokens > 0 {
		a.rate.SetFrac64(b.Refill.Tokens, b.Refill.Seconds)
	}
	return a
}

// between says by how much a change loosens and tightens: the larger of what it does to burst and rate.
func between(old, now admits) (loosens, tightens Share) {
	for _, pair := range [][2]*big.Rat{{old.burst, now.burst}, {old.rate, now.rate}} {
		before, after := pair[0], pair[1]
		switch {
		case before.Sign() == 0 && after.Sign() > 0:
			loosens = Unbounded
		case before.Sign() > 0:
			more, less := shares(new(big.Rat).Quo(after, before))
			loosens, tightens = max(loosens, more), max(tightens, less)
		}
	}
	return loosens, tightens
}

// shares splits a ratio of new to old. The arithmetic is exact until the share itself, so that 10 % is 0.1 and no more.
func shares(ratio *big.Rat) (more, less Share) {
	one := big.NewRat(1, 1)
	if ratio.Cmp(one) >= 0 {
		f, _ := new(big.Rat).Sub(ratio, one).Float64()
		return Share(f), 0
	}
	f, _ := new(big.Rat).Sub(one, ratio).Float64()
	return 0, Share(f)
}
