package descriptors

import (
	"fmt"
	"maps"
	"slices"
)

// CheckReload reports what forbids s to follow prev: a limit whose algorithm or window changed under an unchanged
// policy_version, whose buckets hold state that the new rule would misread. A changed capacity, limit or rate keeps
// the buckets. The error joins a *PolicyError for each. A nil prev forbids nothing.
func (s *Set) CheckReload(prev *Set) error {
	var found problems
	if prev == nil {
		return nil
	}
	for _, p := range s.policies {
		old, ok := prev.endpoints[p.Endpoint]
		if !ok || p.Tenant != "" || old.Version != p.Version {
			continue
		}
		seen := make(map[*Limit]bool)
		for _, tenant := range eitherTenants(old, p) {
			checkBuckets(&found, old.For(tenant), p.For(tenant), seen)
		}
	}
	return found.err()
}

// eitherTenants returns the tenants that have a replacement in one of the two, after "", which has none: whoever is
// served by another policy than before keeps the buckets it has.
func eitherTenants(a, b *Policy) []string {
	tenants := slices.AppendSeq(slices.Collect(maps.Keys(a.tenants)), maps.Keys(b.tenants))
	slices.Sort(tenants)
	return append([]string{""}, slices.Compact(tenants)...)
}

// checkBuckets holds each limit of p, once, against the one of old that used the same key.
func checkBuckets(found *problems, old, p *Policy, seen map[*Limit]bool) {
	for i := range p.Limits {
		l := &p.Limits[i]
		j := slices.IndexFunc(old.Limits, func(o Limit) bool { return o.Scope == l.Scope && o.Name == l.Name })
		if j < 0 || seen[l] || sameShape(old.Limits[j].Rule, l.Rule) {
			continue
		}
		seen[l] = true
		found.add(0, &PolicyError{
			File: l.File, Line: l.Line, Path: p.path(),
			Problem: fmt.Sprintf("the %s limit %s has another algorithm or window than the active policies (%s:%d)",
				l.Scope, l.label(), old.Limits[j].File, old.Limits[j].Line),
			Hint: fmt.Sprintf("raise policy_version above %d, which starts fresh buckets, or keep algorithm and window", p.Version),
		})
	}
}

// path is where the policy's limits stand.
func (p *Policy) path() string {
	at := (*place)(nil).key("endpoints").key(p.Endpoint)
	if p.Tenant != "" {
		at = at.key("tenants").key(p.Tenant)
	}
	return at.key("limits").String()
}
