package descriptors

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// maxVersion bounds policy_version: the largest integer that every JSON tool keeps exactly.
const maxVersion = 1<<53 - 1

// The names of the native language. A word's place is its value.
var (
	identityNames = []string{TenantJWT: "tenant_jwt", Anonymous: "anonymous"}
	failModeNames = []string{FailClosed: "fail_closed", FailOpen: "fail_open"}
	modeNames     = []string{Enforce: "enforce", Shadow: "shadow"}
	verdictNames  = []string{Limited: "", Unlimited: "unlimited", Blocked: "blocked"}
	scopeNames    = []string{
		ScopeTenant: "tenant", ScopeUser: "user", ScopeClientIP: "client_ip", ScopeCookie: "cookie", ScopeGlobal: "global",
	}
	chargeNames    = []string{"before", "after"}
	algorithmNames = []string{
		algorithms.TokenBucket:   algorithms.TokenBucket.String(),
		algorithms.SlidingWindow: algorithms.SlidingWindow.String(),
		algorithms.FixedWindow:   algorithms.FixedWindow.String(),
	}
)

// The keys of the native language.
var (
	rootKeys      = []string{"domain", "endpoints"}
	policyKeys    = []string{"policy_version", "identity", "fail_mode", "emergency", "mode", "count", "required_scopes", "limits", "tenants"}
	emergencyKeys = []string{"capacity", "refill", "per_key", "across", "min_processes"}
	bucketKeys    = []string{"capacity", "refill"}
	tenantKeys    = []string{"limits", "emergency", "mode"}
	limitKeys     = []string{"name", "scope", "algorithm", "capacity", "refill", "limit", "window", "max_cost", "charge", "refunds"}
	algorithmKeys = [][]string{
		algorithms.TokenBucket:   {"capacity", "refill"},
		algorithms.SlidingWindow: {"limit", "window"},
		algorithms.FixedWindow:   {"limit", "window"},
	}
)

// modeScopes lists the scopes that each identity mode can fill.
var modeScopes = [][]Scope{
	TenantJWT: {ScopeTenant, ScopeUser, ScopeClientIP, ScopeGlobal},
	Anonymous: {ScopeCookie, ScopeClientIP, ScopeGlobal},
}

var (
	nameGrammar       = regexp.MustCompile(`^[a-z0-9._-]{1,63}$`)
	domainGrammar     = regexp.MustCompile(`^[!-~]{1,255}$`)
	scopeTokenGrammar = regexp.MustCompile(`^[!#-\[\]-~]{1,255}$`) // RFC 6749, 3.3
)

const nameForm = "use 1 to 63 of a-z 0-9 . _ -"

// native compiles a file of the native language into b.
func (s *source) native(root value, b *builder) {
	s.checkTree(root)
	f, _ := s.mapping(root, rootKeys) // tree saw to it that root is one
	domain := ""
	if v, ok := f.required("domain", "Envoy's rate limit domain, as domain: shop"); ok {
		domain = s.matching(v, domainGrammar, "use 1 to 255 visible ASCII characters")
	}
	endpoints, ok := f.required("endpoints", "the policies by endpoint id")
	if !ok {
		return
	}
	for id, v := range s.named(endpoints, "endpoint id") {
		if !nameGrammar.MatchString(id.Value) {
			s.report(id.Line, id.at, quote(id.Value)+" is not an endpoint id", nameForm)
		}
		b.add(s, id.at, s.policy(v, Policy{Domain: domain, Endpoint: id.Value, File: s.file.Name, Line: id.Line, Count: true}))
	}
}

// named iterates over a mapping whose keys are names of the operator's.
func (s *source) named(v value, what string) func(yield func(key, child value) bool) {
	switch {
	case v.Kind != yaml.MappingNode:
		s.wrongType(v, "a mapping by "+what)
	case len(v.Content) == 0:
		s.report(v.Line, v.at, "an empty mapping", "name at least one "+what)
	}
	return v.entries()
}

// matching reads v as text of a grammar.
func (s *source) matching(v value, grammar *regexp.Regexp, form string) string {
	text, ok := s.text(v)
	if ok && !grammar.MatchString(text) {
		s.report(v.Line, v.at, quote(text)+" is not allowed here", form)
	}
	return text
}

// draft is a policy being read, and what of it could be read: a problem is reported once, not again by its consequences.
type draft struct {
	*Policy
	identityKnown bool
	failModeKnown bool
}

func (s *source) policy(v value, p Policy) *Policy {
	f, ok := s.mapping(v, policyKeys)
	if !ok {
		return &p
	}
	d := draft{&p, true, false}
	if v, ok := f.required("policy_version", "an integer of at least 1; raising it starts fresh buckets"); ok {
		p.Version, _ = s.integer(v, 1, maxVersion)
	}
	if v, ok := f.optional("identity"); ok {
		p.Identity, d.identityKnown = word[IdentityMode](s, v, identityNames)
	}
	if v, ok := f.required("fail_mode", "what happens while the store cannot answer: fail_open or fail_closed"); ok {
		p.FailMode, d.failModeKnown = word[FailMode](s, v, failModeNames)
	}
	if v, ok := f.optional("mode"); ok {
		p.Mode, _ = word[Mode](s, v, modeNames)
	}
	if v, ok := f.optional("count"); ok {
		p.Count, _ = s.boolean(v)
	}
	if v, ok := f.optional("required_scopes"); ok {
		p.RequiredScopes = s.requiredScopes(d, v)
	}
	s.policyEmergency(f, d)
	if v, ok := f.required("limits", "a list of limits, or the word unlimited or blocked"); ok {
		p.Verdict, p.Limits = s.limits(v, d)
	}
	if v, ok := f.optional("tenants"); ok {
		s.tenants(v, d)
	}
	return &p
}

func (s *source) requiredScopes(d draft, v value) []string {
	if d.identityKnown && d.Identity == Anonymous {
		s.report(v.Line, v.at, "required_scopes with identity: anonymous", "an anonymous caller has no token and no scopes: remove it")
	}
	items, _ := s.list(v, "a list of scopes")
	scopes := make([]string, 0, len(items))
	for _, item := range items {
		scope := s.matching(item, scopeTokenGrammar, `use visible ASCII without space, " and \ (RFC 6749, 3.3)`)
		if slices.Contains(scopes, scope) && scope != "" {
			s.report(item.Line, item.at, "the scope stands twice", "remove one")
		}
		scopes = append(scopes, scope)
	}
	return scopes
}

func (s *source) policyEmergency(f fields, d draft) {
	v, present := f.optional("emergency")
	if present {
		d.Emergency, d.OwnEmergency = s.emergency(v, d), true
	}
	if !present && d.failModeKnown && d.FailMode == FailOpen {
		f.report(f.Line, f.at.key("emergency"), "missing with fail_mode: fail_open",
			"add emergency: {capacity: 50, refill: 25/s}, the most that each process admits while the store cannot answer")
	}
}

func (s *source) emergency(v value, d draft) Emergency {
	if d.failModeKnown && d.FailMode == FailClosed {
		s.report(v.Line, v.at, "emergency with fail_mode: fail_closed", "remove it, or set fail_mode: fail_open")
	}
	f, ok := s.mapping(v, emergencyKeys)
	if !ok {
		return Emergency{}
	}
	var e Emergency
	e.Bucket, _ = s.bucket(f)
	if v, ok := f.optional("per_key"); ok {
		if share, ok := s.mapping(v, bucketKeys); ok {
			bucket, _ := s.bucket(share)
			e.PerKey = &bucket
		}
	}
	s.across(f, &e)
	return e
}

// acrossNames are whose a cap may be.
var acrossNames = []string{"process", "fleet"}

// maxProcesses bounds min_processes: a cap that is cut into more parts is none.
const maxProcesses = 10_000

// across reads whether a cap is each process's or that of all together.
func (s *source) across(f fields, e *Emergency) {
	if v, ok := f.optional("across"); ok {
		across, _ := word[uint8](s, v, acrossNames)
		e.Fleet = across == 1
	}
	const hint = "the number of processes that surely run, as min_processes: 3"
	if !e.Fleet {
		if v, ok := f.optional("min_processes"); ok {
			s.report(v.Line, v.at, "min_processes without across: fleet", "remove it, or add across: fleet")
		}
		return
	}
	v, ok := f.required("min_processes", hint)
	if !ok {
		return
	}
	e.MinProcesses, ok = s.size(v, maxProcesses)
	if ok && e.Capacity > 0 && e.Capacity < e.MinProcesses {
		s.report(v.Line, v.at, "more processes than the cap has capacity, so that the part of each is less than one",
			"raise capacity, or lower min_processes")
	}
}

// bucket reads capacity and refill, and lets the algorithm judge them together.
func (s *source) bucket(f fields) (Bucket, algorithms.Rule) {
	var b Bucket
	capacity, present := f.required("capacity", "whole tokens, as capacity: 100")
	known := false
	if present {
		b.Capacity, known = s.size(capacity, algorithms.MaxCapacity)
	}
	refill, present := f.required("refill", refillForm)
	if !present {
		return b, algorithms.Rule{}
	}
	b.Refill, present = s.refill(refill)
	if !present || !known {
		return b, algorithms.Rule{}
	}
	rule, err := algorithms.NewTokenBucket(b.Capacity, b.Refill)
	s.ruleError(refill, err)
	return b, rule
}

// size reads a capacity or limit. Zero is refused here, since it says by a number what a word says better.
func (s *source) size(v value, most int64) (int64, bool) {
	if v.Kind == yaml.ScalarNode && v.Tag == intTag && v.Value == "0" {
		s.report(v.Line, v.at, "0 is out of range", fmt.Sprintf("it must be in 1..%d; to refuse every request write limits: blocked", most))
		return 0, false
	}
	return s.integer(v, 1, most)
}

// ruleError reports what the algorithm says of its numbers.
func (s *source) ruleError(v value, err error) bool {
	if err == nil {
		return true
	}
	s.report(v.Line, v.at, strings.TrimPrefix(err.Error(), algorithms.ErrInvalidRule.Error()+": "), "")
	return false
}

// limits reads the list of limits, or the word that stands for it.
func (s *source) limits(v value, d draft) (Verdict, []Limit) {
	if v.Kind == yaml.ScalarNode && v.isText() {
		verdict, _ := word[Verdict](s, v, verdictNames)
		return verdict, nil
	}
	items, ok := s.list(v, "a list of limits, or the word unlimited or blocked")
	if !ok {
		return Limited, nil
	}
	if len(items) == 0 {
		s.report(v.Line, v.at, "an empty list", "add a limit, or write limits: unlimited")
	}
	limits := make([]Limit, 0, len(items))
	for _, item := range items {
		if l, ok := s.limit(item, d); ok {
			s.checkBeside(item, l, limits)
			limits = append(limits, l)
		}
	}
	if d.identityKnown && d.Identity == Anonymous && len(limits) == len(items) && len(items) > 0 &&
		!slices.ContainsFunc(limits, func(l Limit) bool { return l.Scope != ScopeCookie }) {
		s.report(v.Line, v.at, "only limits with scope cookie: a caller without a cookie meets none of them",
			"add a limit with scope: client_ip")
	}
	return Limited, limits
}

// checkBeside holds a limit against those before it in the same list.
func (s *source) checkBeside(v value, l Limit, before []Limit) {
	for _, other := range before {
		if other.Name != l.Name {
			continue
		}
		if l.Name == "" {
			s.report(v.Line, v.at, "a second limit without name", fmt.Sprintf("name it: the one in line %d owns the key without name", other.Line))
		} else {
			s.report(v.Line, v.at.key("name"), "the name "+quote(l.Name)+" stands twice", fmt.Sprintf("rename one: the first is in line %d", other.Line))
		}
		break
	}
	if len(before) > 0 && before[0].ChargeAfter != l.ChargeAfter {
		s.report(v.Line, v.at.key("charge"), "limits that charge before beside limits that charge after",
			"a policy's limits are all charge: before or all charge: after; put the others on an endpoint of their own")
	}
}

func (s *source) limit(v value, d draft) (Limit, bool) {
	f, ok := s.mapping(v, limitKeys)
	if !ok {
		return Limit{}, false
	}
	l := Limit{MaxCost: 1, File: s.file.Name, Line: v.Line}
	if v, ok := f.optional("name"); ok {
		l.Name = s.matching(v, nameGrammar, nameForm)
	}
	l.Scope = s.scope(f, d)
	l.Rule = s.rule(f)
	s.costs(f, &l)
	if l.Rule != (algorithms.Rule{}) && l.Rule.Kind() == algorithms.TokenBucket && l.Rule.Refill().Tokens == 0 &&
		(l.Scope == ScopeCookie || l.Scope == ScopeClientIP) {
		s.report(f.byKey["refill"].Line, f.at.key("refill"), "refill 0 with scope "+l.Scope.String(),
			"a stranger can mint cookies and addresses, and each would keep a bucket for a year: use a refill above 0")
	}
	return l, true
}

func (s *source) scope(f fields, d draft) Scope {
	v, present := f.optional("scope")
	if !present {
		if d.identityKnown && d.Identity == Anonymous {
			f.report(f.Line, f.at.key("scope"), "missing with identity: anonymous", "state it: "+d.Identity.scopes())
			return 0
		}
		return ScopeTenant
	}
	scope, ok := word[Scope](s, v, scopeNames)
	if ok && d.identityKnown && !slices.Contains(modeScopes[d.Identity], scope) {
		s.report(v.Line, v.at, fmt.Sprintf("scope %s with identity: %s", scope, d.Identity), "use one of: "+d.Identity.scopes())
	}
	return scope
}

func (m IdentityMode) scopes() string {
	words := make([]string, len(modeScopes[m]))
	for i, scope := range modeScopes[m] {
		words[i] = scope.String()
	}
	return strings.Join(words, ", ")
}

// rule reads the algorithm and its numbers; the zero Rule when they are not good.
func (s *source) rule(f fields) algorithms.Rule {
	v, ok := f.required("algorithm", "use one of: "+strings.Join(algorithmNames[1:], ", "))
	if !ok {
		return algorithms.Rule{}
	}
	kind, ok := word[algorithms.Kind](s, v, algorithmNames)
	if !ok {
		return algorithms.Rule{}
	}
	s.checkOwnFields(f, kind)
	switch kind {
	case algorithms.TokenBucket:
		_, rule := s.bucket(f)
		return rule
	case algorithms.FixedWindow:
		return s.hitsPerWindow(f, algorithms.NewFixedWindow)
	}
	return s.hitsPerWindow(f, algorithms.NewSlidingWindow)
}

// checkOwnFields reports numbers of another algorithm.
func (s *source) checkOwnFields(f fields, kind algorithms.Kind) {
	reported := make(map[string]bool)
	for other, keys := range algorithmKeys {
		for _, key := range keys {
			v, present := f.optional(key)
			if !present || slices.Contains(algorithmKeys[kind], key) || reported[key] {
				continue
			}
			reported[key] = true
			s.report(v.Line, v.at, fmt.Sprintf("a field of %s in a limit of %s", algorithms.Kind(other), kind),
				fmt.Sprintf("%s has %s", kind, strings.Join(algorithmKeys[kind], " and ")))
		}
	}
}

func (s *source) hitsPerWindow(f fields, build func(int64, time.Duration) (algorithms.Rule, error)) algorithms.Rule {
	limit, present := f.required("limit", "hits per window, as limit: 5000")
	var hits int64
	known := false
	if present {
		hits, known = s.size(limit, algorithms.MaxLimit)
	}
	window, present := f.required("window", windowForm)
	if !present {
		return algorithms.Rule{}
	}
	length, ok := s.window(window)
	if !ok || !known {
		return algorithms.Rule{}
	}
	rule, err := build(hits, length)
	s.ruleError(window, err)
	return rule
}

// costs reads max_cost, charge and refunds.
func (s *source) costs(f fields, l *Limit) {
	if v, ok := f.optional("charge"); ok {
		charge, _ := word[uint8](s, v, chargeNames)
		l.ChargeAfter = charge == 1
	}
	if v, ok := f.optional("refunds"); ok {
		l.Refunds, _ = s.boolean(v)
	}
	v, present := f.optional("max_cost")
	switch {
	case present:
		most := algorithms.MaxCapacity
		if l.Rule != (algorithms.Rule{}) {
			most = l.Rule.Limit()
		}
		l.MaxCost, _ = s.integer(v, 1, most)
	case l.ChargeAfter:
		f.report(f.Line, f.at.key("max_cost"), "missing with charge: after", "the largest cost that one report may charge; a larger one counts as max_cost")
	}
}

func (s *source) tenants(v value, d draft) {
	if d.identityKnown && d.Identity == Anonymous {
		s.report(v.Line, v.at, "tenants with identity: anonymous", "an anonymous caller has no tenant: remove it")
	}
	d.tenants = make(map[string]*Policy)
	for name, replacement := range s.named(v, "tenant") {
		if !tenantName(name.Value) {
			s.report(name.Line, name.at, quote(name.Value)+" is not a tenant name",
				"use 1 to 1024 bytes of visible characters, without space at either end")
		}
		d.tenants[name.Value] = s.tenant(name, replacement, d)
		d.replacements = append(d.replacements, d.tenants[name.Value])
	}
}

// tenantName reports whether a name can stand in a file. A tenant is a claim of a token, so it is any text that a
// reader can see; it becomes a hash in keys and never a label.
func tenantName(name string) bool {
	hidden := func(r rune) bool { return unicode.IsControl(r) || invisible(r) || r == utf8.RuneError }
	return name != "" && len(name) <= 1024 && strings.TrimSpace(name) == name && !strings.ContainsFunc(name, hidden)
}

// tenant reads the replacement for one tenant: the endpoint's policy with some of its parts exchanged.
func (s *source) tenant(name, v value, d draft) *Policy {
	p := *d.Policy
	p.Tenant, p.File, p.Line = name.Value, s.file.Name, name.Line
	p.OwnEmergency, p.tenants, p.replacements = false, nil, nil
	f, ok := s.mapping(v, tenantKeys)
	if !ok {
		return &p
	}
	if len(v.Content) == 0 {
		s.report(v.Line, v.at, "an empty replacement", "replace one of: "+strings.Join(tenantKeys, ", "))
	}
	own := draft{&p, d.identityKnown, d.failModeKnown}
	if v, ok := f.optional("mode"); ok {
		p.Mode, _ = word[Mode](s, v, modeNames)
	}
	if v, ok := f.optional("emergency"); ok {
		p.Emergency, p.OwnEmergency = s.emergency(v, own), true
	}
	if v, ok := f.optional("limits"); ok {
		p.Verdict, p.Limits = s.limits(v, own)
		if d.Verdict != Limited || len(d.Limits) > 0 { // else the policy's own limits are reported already
			s.checkShared(d.Limits, p.Limits, v)
		}
	}
	return &p
}

// checkShared holds the limits of a replacement whose buckets other tenants use too against the policy's own. Two
// algorithms on one key would each read the other's state as damaged, and start afresh. Two capacities or refills would
// each refill the bucket for the other: everyone's would hold what the larger numbers give. A window's limit may differ:
// what is kept is a count, and each tenant is held against its own limit on it.
func (s *source) checkShared(own, replaced []Limit, v value) {
	for _, l := range replaced {
		if l.Rule == (algorithms.Rule{}) || (l.Scope != ScopeGlobal && l.Scope != ScopeClientIP) {
			continue
		}
		i := slices.IndexFunc(own, func(o Limit) bool { return o.Name == l.Name && o.Scope == l.Scope })
		switch {
		case i < 0:
			s.report(l.Line, v.at, fmt.Sprintf("a %s limit %s that the policy itself does not have", l.Scope, l.label()),
				"tenants share its bucket: add it to the policy's own limits with the same algorithm and window")
		case own[i].Rule != (algorithms.Rule{}) && !sameShape(own[i].Rule, l.Rule):
			s.report(l.Line, v.at, fmt.Sprintf("the %s limit %s has another algorithm or window than in line %d", l.Scope, l.label(), own[i].Line),
				"tenants share its bucket: keep the policy's algorithm and window, or use another name in both")
		case own[i].Rule != (algorithms.Rule{}) && l.Rule.Kind() == algorithms.TokenBucket && own[i].Rule != l.Rule:
			s.report(l.Line, v.at, fmt.Sprintf("the %s limit %s has another capacity or refill than in line %d", l.Scope, l.label(), own[i].Line),
				"tenants share its bucket, which cannot refill at two rates: keep the policy's numbers, give the tenant a limit with scope: tenant, or use a window")
		}
	}
}

// sameShape reports whether two rules can read each other's state.
func sameShape(a, b algorithms.Rule) bool { return a.Kind() == b.Kind() && a.Window() == b.Window() }

// label names a limit in a message.
func (l *Limit) label() string {
	if l.Name == "" {
		return "without name"
	}
	return quote(l.Name)
}
