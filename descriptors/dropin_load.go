package descriptors

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// The keys of the drop-in language, and of our extensions to it.
var (
	dropInKeys = []string{
		"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "name", "replaces",
		"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
	}
	extensionKeys = []string{"algorithm", "burst", "unit_multiplier", "fail_mode", "emergency", "all_or_nothing"}

	dropInRootKeys = []string{"domain", "descriptors", "all_or_nothing"}
	nodeKeys       = []string{
		"key", "value", "descriptors", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
		"share_threshold", "metadata", "fail_mode", "emergency", "all_or_nothing",
	}
	nodeLimitKeys = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst", "unit_multiplier"}
	replaceKeys   = []string{"name"}
)

// manyPatterns is the number of patterns of one level from which on a file is warned about: they are tried one by one.
const manyPatterns = 16

var ruleFailModeNames = []string{FailLocal: "fail_open", FailDeny: "fail_closed", FailAnswer: "error"}

// dropInPlace says where a key has its meaning.
func dropInPlace(key string) string {
	switch {
	case slices.Contains(nodeLimitKeys, key):
		return "into rate_limit"
	case slices.Contains(nodeKeys, key):
		return "into a descriptor, beside key"
	}
	return "to the top of the file"
}

// dropIn compiles a file of the drop-in language into b. first is what was read of it already, or nil.
func (s *looseSource) dropIn(b *builder, first *firstDocument) {
	root, ok := s.looseTree(first)
	if !ok {
		return
	}
	f, ok := s.looseMapping(root, dropInRootKeys)
	if !ok {
		return
	}
	d := &loading{looseSource: s, builder: b, domain: s.domain(f, b), tails: make(map[string]string)}
	if v, ok := f.has("all_or_nothing"); ok {
		d.together = s.looseBoolean(v)
	}
	v, ok := f.has("descriptors")
	if !ok {
		s.warn(root.Line, root.at, "no descriptors: the domain limits nothing", "add descriptors")
		return
	}
	if d.nodes(&d.domain.root, v, nil) == 0 {
		s.warn(v.Line, v.at, "no descriptors: the domain limits nothing", "add a descriptor")
	}
}

// domain returns the domain that a file is about. Without a good name it is one that nobody will see.
func (s *looseSource) domain(f looseFields, b *builder) *DropIn {
	name, at := "", f.value
	v, ok := f.has("domain")
	if ok {
		at = v
		name, ok = s.looseString(v)
		if ok && name != "" && v.Kind == yaml.ScalarNode && s.resolve(v).kind == looseInt {
			s.warn(v.Line, v.at, "the number becomes the text "+quote(name), "quote it")
		}
	} else {
		ok = true
	}
	report := func(problem, hint string) { s.report(at.Line, f.at.key("domain"), problem, hint) }
	if ok && name == "" {
		report("config file cannot have empty domain", "name the domain of Envoy's rate limit filter, as domain: shop")
	}
	if native, taken := b.set.domains[name]; taken {
		report(fmt.Sprintf("the domain %s stands in a native file too", quote(native.name)), "give one of them another domain")
	}
	d, ok := b.set.dropIns[name]
	switch {
	case !ok || name == "":
		d = &DropIn{name: name, keyHead: b.opts.KeyPrefix + "sentinel:d1:{"}
		if name != "" {
			b.set.dropIns[name] = d
		}
	case !b.opts.DropIn.MergeDomains:
		report(fmt.Sprintf("duplicate domain %s in config file", quote(name)),
			fmt.Sprintf("rename one, or set MERGE_DOMAIN_CONFIG=true: the first is in %s", d.files[0]))
	}
	d.files = append(d.files, s.file.Name)
	return d
}

// loading is one drop-in file on its way into its domain.
type loading struct {
	*looseSource
	*builder
	domain   *DropIn
	together bool // all_or_nothing for the whole file
	tails    map[string]string
}

// above is what stands above a node.
type above struct {
	up   *above
	node *node
}

// nodes reads a list of descriptors into l and returns how many there are.
func (d *loading) nodes(l *level, v value, up *above) int {
	v, done, ok := d.follow(v)
	defer done()
	if !ok {
		return 1
	}
	if v.Kind != yaml.SequenceNode && !d.isNothing(v) {
		d.wrongLoose(v, "a list of descriptors")
		return 1
	}
	items := d.looseList(v, "a list of descriptors")
	if l.byName == nil && len(items) > 0 {
		l.byName = make(map[string]*node, len(items))
	}
	for _, item := range items {
		d.node(l, item, up)
	}
	if n := len(l.wild); n > manyPatterns {
		d.warn(v.Line, v.at, fmt.Sprintf("%d patterns on one level", n), fmt.Sprintf("they are tried one by one: more than %d cost time on every request", manyPatterns))
	}
	return len(items)
}

// node reads one descriptor into l.
func (d *loading) node(l *level, v value, up *above) {
	v, done, ok := d.follow(v)
	defer done()
	if !ok {
		return
	}
	if v.Kind != yaml.MappingNode {
		d.report(v.Line, v.at, v.describe()+" is not a descriptor", "write a mapping, as - key: plan")
		return
	}
	f, _ := d.looseMapping(v, nodeKeys)
	n, named := d.named(f)
	if named && !d.place(l, f, n, up) {
		return
	}
	rule := d.rule(f, n, up)
	if rule != nil {
		rule.Index = len(d.set.rules)
		d.set.rules = append(d.set.rules, rule)
		d.domain.rules++
		n.rule, n.keyTail = rule, rule.Limits[0].keyTail
	}
	if below, ok := f.has("descriptors"); ok {
		next := new(level)
		if d.nodes(next, below, &above{up, n}) > 0 {
			n.next = next
		}
	}
}

// named reads what a descriptor matches.
func (d *loading) named(f looseFields) (n *node, ok bool) {
	n, ok = new(node), true
	if v, present := f.has("key"); present {
		n.key, ok = d.looseString(v)
	}
	if ok && n.key == "" {
		d.report(f.Line, f.at.key("key"), "descriptor has empty key", "name the key of Envoy's descriptor entry")
		ok = false
	}
	if v, present := f.has("value"); present {
		text, good := d.looseString(v)
		n.value, ok = text, ok && good
	}
	n.name = joinedName(n.key, n.value)
	n.pattern = newPattern(n.name)
	n.share, n.toMetric = d.flag(f, "share_threshold"), d.flag(f, "value_to_metric")
	if ok && n.share && n.pattern == nil {
		d.report(f.Line, f.at.key("share_threshold"), fmt.Sprintf("share_threshold can only be used with wildcard values (containing '*'), but found key %s", quote(n.name)),
			"put a * into value, or remove share_threshold")
	}
	return n, ok
}

func (d *loading) flag(f looseFields, key string) bool {
	v, present := f.has(key)
	return present && d.looseBoolean(v)
}

// place puts a node into its level. Its key and value, joined, must not stand there yet: the second one would never match.
func (d *loading) place(l *level, f looseFields, n *node, up *above) bool {
	if first, twice := l.byName[n.name]; twice {
		path := n.name
		for ; up != nil; up = up.up {
			path = up.node.name + "." + path
		}
		d.report(f.Line, f.at, fmt.Sprintf("duplicate descriptor composite key %s", quote(d.domain.name+"."+path)),
			fmt.Sprintf("the descriptor with key %s and value %s stands in its place: remove or rename one; several limits on one descriptor are a list under rate_limit",
				quote(first.key), quote(first.value)))
		return false
	}
	l.byName[n.name] = n
	if n.pattern != nil {
		l.wild = append(l.wild, n)
	}
	return true
}

// rule reads what a descriptor says about its limit; nil when it has none, as an entry that exempts.
func (d *loading) rule(f looseFields, n *node, up *above) *DropInRule {
	r := &DropInRule{
		Domain: d.domain.name, File: d.file.Name, Line: f.Line,
		Shadow: d.flag(f, "shadow_mode"), Quota: d.flag(f, "quota_mode"), detailed: d.flag(f, "detailed_metric"),
		AllOrNothing: d.together,
	}
	if v, present := f.has("all_or_nothing"); present {
		r.AllOrNothing = d.looseBoolean(v)
		if r.AllOrNothing && (r.Shadow || r.Quota) {
			d.report(v.Line, v.at, "all_or_nothing beside shadow_mode or quota_mode", "these never deny by themselves: remove one")
		}
	}
	r.AllOrNothing = r.AllOrNothing && !r.Shadow && !r.Quota
	if v, present := f.has("metadata"); present {
		r.Metadata = d.metadata(v)
	}
	d.failure(f, r)
	v, present := f.has("rate_limit")
	if !present {
		d.unused(f)
		return nil
	}
	if !d.limits(v, r) {
		return nil
	}
	r.Unlimited = len(r.Limits) == 1 && r.Limits[0].Unit == 0
	d.names(r, &above{up, n})
	return r
}

// unused reports our own settings on a descriptor without a limit, where they would do nothing.
func (d *loading) unused(f looseFields) {
	for _, key := range []string{"fail_mode", "emergency", "all_or_nothing"} {
		if v, present := f.has(key); present {
			d.report(v.Line, v.at, key+" on a descriptor without rate_limit", "remove it, or add rate_limit")
		}
	}
}

func (d *loading) metadata(v value) map[string]any {
	v, done, ok := d.follow(v)
	defer done()
	switch {
	case !ok, d.isNothing(v):
		return nil
	case v.Kind != yaml.MappingNode:
		d.wrongLoose(v, "a mapping")
		return nil
	}
	return d.freeMap(v)
}

// failure reads what a rule answers while the store cannot.
func (d *loading) failure(f looseFields, r *DropInRule) {
	if v, present := f.has("fail_mode"); present {
		r.FailMode, _ = looseWord[RuleFailMode](d.looseSource, v, ruleFailModeNames)
	}
	v, present := f.has("emergency")
	if !present {
		return
	}
	if r.FailMode != FailLocal {
		d.report(v.Line, v.at, "emergency with fail_mode: "+ruleFailModeNames[r.FailMode], "remove it, or set fail_mode: fail_open")
		return
	}
	if v.Kind == yaml.AliasNode {
		d.report(v.Line, v.at, "emergency is an alias", "write the mapping itself")
		return
	}
	d.checkTree(v) // ours alone, so it is read as strictly as a native file
	e := d.emergency(v, draft{new(Policy), true, false})
	r.Emergency = &e
}

// limits reads rate_limit: one limit, or a list of them. False: there is none.
func (d *loading) limits(v value, r *DropInRule) bool {
	v, done, ok := d.follow(v)
	defer done()
	if !ok {
		return false
	}
	if d.isNothing(v) {
		if v.Value == "Null" || v.Value == "NULL" { // the service takes these for an empty mapping
			d.report(v.Line, v.at, `invalid rate limit unit ""`, "add unit and requests_per_unit, or remove rate_limit")
			return false
		}
		d.warn(v.Line, v.at, "rate_limit without a value: there is no limit at all", "add unit and requests_per_unit, or remove rate_limit")
		return false
	}
	if v.Kind != yaml.SequenceNode {
		l, ok := d.limit(v, r, 0)
		r.Limits = []DropInLimit{l}
		return ok
	}
	if n := len(v.Content); n == 0 || n > MaxNodeLimits {
		d.report(v.Line, v.at, fmt.Sprintf("a list of %d limits", n), fmt.Sprintf("list 1 to %d", MaxNodeLimits))
		return false
	}
	for i, n := range v.Content {
		l, ok := d.limit(value{n, v.at.item(i)}, r, i)
		if ok && l.Unit == 0 && len(v.Content) > 1 {
			d.report(n.Line, v.at.item(i).key("unlimited"), "an unlimited limit in a list", "remove it: the others decide")
		}
		r.Limits = append(r.Limits, l)
	}
	return true
}

// limit reads one limit, the index-th of its node. False: it is no mapping, which is reported.
func (d *loading) limit(v value, r *DropInRule, index int) (l DropInLimit, ok bool) {
	v, done, ok := d.follow(v)
	defer done()
	if !ok {
		return l, false
	}
	f, ok := d.looseMapping(v, nodeLimitKeys)
	if !ok {
		return l, false
	}
	l.Multiplier = 1
	if v, present := f.has("name"); present {
		if l.Name, ok = d.looseString(v); ok && !domainGrammar.MatchString(l.Name) && l.Name != "" {
			d.warn(v.Line, v.at, "a name that is not 1 to 255 visible ASCII characters", "it stands in headers, where other characters become _")
		}
	}
	if v, present := f.has("replaces"); present {
		l.Replaces = d.replaces(v, l.Name)
	}
	unlimited := d.flag(f, "unlimited")
	unitName := ""
	if v, present := f.has("unit"); present {
		if unitName, ok = d.looseString(v); !ok {
			return l, true
		}
	}
	unit, known := UnitNamed(unitName)
	if unlimited {
		d.unlimited(f, known, unitName)
		return l, true
	}
	if !known {
		d.report(f.Line, f.at.key("unit"), "invalid rate limit unit "+quote(unitName), "use one of: second, minute, hour, day, week, month, year")
		return l, true
	}
	l.Unit = unit
	d.numbers(f, r, &l, index)
	return l, true
}

// unlimited checks a limit that is none.
func (d *loading) unlimited(f looseFields, unitKnown bool, unit string) {
	switch {
	case unitKnown:
		d.report(f.Line, f.at.key("unit"), "should not specify rate limit unit when unlimited", "remove unit, or unlimited")
	case unit != "":
		d.warn(f.Line, f.at.key("unit"), "a unit that is none, beside unlimited", "remove it")
	}
	if v, present := f.has("requests_per_unit"); present {
		d.looseInteger(v, 0, algorithms.MaxLimit)
		d.warn(v.Line, v.at, "unlimited wins over requests_per_unit", "remove one of them")
	}
	for _, key := range []string{"algorithm", "burst", "unit_multiplier"} {
		if v, present := f.has(key); present {
			d.report(v.Line, v.at, key+" beside unlimited", "remove one of them")
		}
	}
}

// numbers reads the numbers of a limit and makes its rule.
func (d *loading) numbers(f looseFields, r *DropInRule, l *DropInLimit, index int) {
	good := true
	if v, present := f.has("requests_per_unit"); present && !d.isNothing(v) {
		l.PerUnit, good = d.looseInteger(v, 0, algorithms.MaxLimit)
		if good && l.PerUnit == 0 {
			d.warn(v.Line, v.at, "0 denies every request", "")
		}
	} else {
		d.warn(f.Line, f.at.key("requests_per_unit"), "missing: it counts as 0, which denies every request", "write requests_per_unit, if only 0")
	}
	kind := algorithms.FixedWindow
	if v, present := f.has("algorithm"); present {
		k, ok := looseWord[algorithms.Kind](d.looseSource, v, algorithmNames)
		if kind = k; !ok {
			return
		}
	}
	if v, present := f.has("unit_multiplier"); present {
		most := int64(algorithms.MaxWindow / l.Unit.Length())
		n, ok := d.looseInteger(v, 1, most)
		if l.Multiplier = n; !ok {
			return
		}
	}
	if !good {
		return
	}
	rule, err := d.makeRule(f, r, l, kind)
	if err != nil {
		at := f.value
		if v, present := f.has("requests_per_unit"); present {
			at = v
		}
		d.report(at.Line, f.at.key("requests_per_unit"), strings.TrimPrefix(err.Error(), algorithms.ErrInvalidRule.Error()+": "), "")
		return
	}
	l.Rule, l.keyTail = rule, d.intern(keyTail(l.Unit, l.Multiplier, kind.String(), index))
}

// intern returns the one copy of a text that many rules share.
func (d *loading) intern(text string) string {
	if one, ok := d.tails[text]; ok {
		return one
	}
	d.tails[text] = text
	return text
}

// makeRule returns the rule for l. The rules of all_or_nothing spend nothing when they deny; others count every hit.
func (d *loading) makeRule(f looseFields, r *DropInRule, l *DropInLimit, kind algorithms.Kind) (algorithms.Rule, error) {
	window := l.Unit.Length() * time.Duration(l.Multiplier)
	burst, bursts := f.has("burst")
	if bursts && kind != algorithms.TokenBucket {
		d.report(burst.Line, burst.at, "burst with algorithm "+kind.String(), "burst is the capacity of a token_bucket: remove it")
	}
	switch kind {
	case algorithms.SlidingWindow:
		return algorithms.NewSlidingWindow(l.PerUnit, window)
	case algorithms.TokenBucket:
		capacity := l.PerUnit
		if bursts {
			n, ok := d.looseInteger(burst, 1, algorithms.MaxCapacity)
			if capacity = n; !ok {
				capacity = 1
			}
		}
		return algorithms.NewTokenBucket(capacity, algorithms.Rate{Tokens: l.PerUnit, Seconds: int64(window.Seconds())})
	}
	if r.AllOrNothing && l.PerUnit > 0 {
		return algorithms.NewFixedWindow(l.PerUnit, window)
	}
	return algorithms.NewCountingWindow(l.PerUnit, window)
}

// replaces reads the names of the limits that this one, of the given name, replaces.
func (d *loading) replaces(v value, own string) []string {
	v, done, ok := d.follow(v)
	defer done()
	if !ok {
		return nil
	}
	var names []string
	for _, item := range d.looseList(v, "a list of names, as replaces: [{name: base}]") {
		item, done, ok := d.follow(item)
		if ok {
			if name, ok := d.replaced(item, own); ok {
				names = append(names, name)
			}
		}
		done()
	}
	return names
}

func (d *loading) replaced(v value, own string) (name string, ok bool) {
	f, ok := d.looseMapping(v, replaceKeys)
	if !ok {
		return "", false
	}
	if v, present := f.has("name"); present {
		if name, ok = d.looseString(v); !ok {
			return "", false
		}
	}
	switch name {
	case "":
		d.report(f.Line, f.at, "should not have an empty replaces entry", "name a limit: - name: base")
	case own:
		d.report(f.Line, f.at, "replaces should not contain name of same descriptor", "remove it")
	default:
		return name, true
	}
	return "", false
}

// names computes what the rule's statistic is called.
func (d *loading) names(r *DropInRule, at *above) {
	for ; at != nil; at = at.up {
		n := at.node
		r.Levels = append(r.Levels, n.name)
		open := n.value == "" || n.pattern != nil && !n.share // the request's value is not in the name
		r.dynamic = append(r.dynamic, open && (n.toMetric || r.detailed))
	}
	slices.Reverse(r.Levels)
	slices.Reverse(r.dynamic)
	if !slices.Contains(r.dynamic, true) {
		r.dynamic = nil
	}
}

// looseWord reads v as one of the names of an enumeration of ours, and returns its place among them.
func looseWord[E ~uint8](s *looseSource, v value, names []string) (E, bool) {
	text, ok := s.looseString(v)
	if !ok {
		return 0, false
	}
	if i := slices.Index(names, text); i >= 0 && text != "" {
		return E(i), true
	}
	s.report(v.Line, v.at, "unknown word "+quote(text), pick(text, names))
	return 0, false
}
