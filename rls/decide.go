package rls

import (
	"context"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
)

// Decide answers one ShouldRateLimit question. The error, which wraps ErrInvalidRequest, means that the request itself
// is malformed; a store failure is a Result.
func (e *Engine) Decide(ctx context.Context, r Request) (Result, error) {
	start := time.Now()
	snap := e.active.Load()
	dropIn, isDropIn := snap.set.DropIn(r.Domain)
	if r.Domain == "" || len(r.Descriptors) == 0 || e.cfg.DropIn.Compat && !snap.loaded {
		return Result{}, e.malformed(&r, isDropIn)
	}
	domain, ok := snap.set.Domain(r.Domain)
	if isDropIn || !ok && e.cfg.DropIn.Compat {
		return e.decideNamed(ctx, snap, dropIn, &r, start)
	}
	if !ok {
		e.cfg.Recorder.UnknownDomain(ServiceRateLimit)
		return unasked(len(r.Descriptors), !e.cfg.DenyUnknownDomain, UnknownDomain, false), nil
	}
	if bound, beyond := e.beyond(&r); beyond {
		e.cfg.Recorder.RequestRefused(bound)
		return unasked(len(r.Descriptors), false, InvalidRequest, true), nil
	}
	p := newPlan()
	for i := range r.Descriptors {
		if why := e.addDescriptor(p, snap, domain, &r.Descriptors[i], r.Hits); why != "" {
			// One descriptor's caller is not who it says, so nothing is decided for any of them.
			return unasked(len(r.Descriptors), false, why, true), nil
		}
	}
	if len(p.enforce.needs)+len(p.shadow.needs) > MaxTakes {
		e.cfg.Recorder.RequestRefused(BoundTakes)
		return unasked(len(r.Descriptors), false, InvalidRequest, true), nil
	}
	return e.decide(ctx, call{service: ServiceRateLimit, domain: r.Domain, start: start}, p), nil
}

// malformed is the error on a request that names no domain or no descriptor, or that comes before any policies.
func (e *Engine) malformed(r *Request, isDropIn bool) error {
	if r.Domain == "" || len(r.Descriptors) == 0 {
		e.cfg.Recorder.RequestRefused(BoundEmpty)
	}
	if !e.cfg.DropIn.Compat && !isDropIn {
		return ErrInvalidRequest
	}
	e.cfg.DropIn.Recorder.ServiceError()
	switch {
	case r.Domain == "":
		return &DropInError{errNoDomain}
	case len(r.Descriptors) == 0:
		return &DropInError{errNoDescriptors}
	}
	return &DropInError{errNotLoaded}
}

// decideNamed answers a request for a drop-in domain, or with DropInConfig.Compat for one that nobody knows (nil).
func (e *Engine) decideNamed(ctx context.Context, snap *snapshot, domain *descriptors.DropIn, r *Request, start time.Time) (Result, error) {
	if bound, beyond := e.beyond(r); beyond {
		e.cfg.Recorder.RequestRefused(bound)
		res := unasked(len(r.Descriptors), false, InvalidRequest, false)
		res.Plain = true
		return res, nil
	}
	if domain == nil {
		e.cfg.Recorder.UnknownDomain(ServiceRateLimit)
		if e.cfg.DenyUnknownDomain {
			return unasked(len(r.Descriptors), false, UnknownDomain, false), nil
		}
	}
	return e.decideDropIn(ctx, snap, domain, r, start)
}

// unasked answers every descriptor alike, without a policy.
func unasked(descriptors int, allowed bool, why Reason, document bool) Result {
	res := Result{Allowed: allowed, Reason: why, Source: SourceNone, Document: document, Statuses: make([]Status, descriptors)}
	for i := range res.Statuses {
		res.Statuses[i] = Status{OverLimit: !allowed, Reset: never}
	}
	if !allowed {
		res.RetryAfter = never
		res.DecisionID = newDecisionID()
	}
	return res
}

// beyond reports the first bound that a request exceeds.
func (e *Engine) beyond(r *Request) (Bound, bool) {
	b := &e.cfg.Bounds
	if len(r.Descriptors) > b.Descriptors {
		return BoundDescriptors, true
	}
	for i := range r.Descriptors {
		entries := r.Descriptors[i].Entries
		if len(entries) > b.Entries {
			return BoundEntries, true
		}
		for j := range entries {
			if len(entries[j].Key) > b.KeyBytes {
				return BoundKey, true
			}
			if len(entries[j].Value) > b.ValueBytes {
				return BoundValue, true
			}
		}
	}
	return "", false
}

// addDescriptor adds what one descriptor asks to the plan. A reason: the token that it carries, or lacks, refuses the
// whole request.
func (e *Engine) addDescriptor(p *plan, snap *snapshot, domain *descriptors.Domain, d *Descriptor, requestHits uint64) (refusal Reason) {
	rec := e.cfg.Recorder
	if d.Override {
		rec.Ignored(IgnoredOverride, 1)
	}
	if len(d.Entries) == 0 {
		// Envoy sends it when every action of a descriptor was skipped (skip_if_absent): it asks nothing.
		rec.Ignored(IgnoredEmpty, 1)
		p.skip()
		return ""
	}
	named, ignored := e.readEntries(d.Entries)
	if ignored > 0 {
		rec.Ignored(IgnoredEntry, ignored)
	}
	policy, ok := domain.Lookup(named.endpoint)
	if refusal = e.authenticate(policy, ok, &named); refusal != "" {
		return refusal
	}
	if !ok {
		rec.UnknownEndpoint(ServiceRateLimit)
		if e.cfg.OKUnknownEndpoint {
			p.skip()
			return ""
		}
		p.refuse(ask{}, UnknownEndpoint)
		return ""
	}
	a := ask{subject: e.subject(policy, &named)}
	a.policy = policy
	if policy.Identity == descriptors.TenantJWT && named.tenant != "" {
		a.policy = policy.For(named.tenant)
	}
	a.state = &snap.policies[a.policy.Index]
	if a.policy.Verdict == descriptors.Blocked {
		p.refuse(a, RateLimited)
		return ""
	}
	p.add(a, descriptorHits(d, requestHits), rec)
	return ""
}

// authenticate verifies the token of a descriptor, where tokens in descriptors mean something and the endpoint is one
// that knows its callers by token. A verified token says who the tenant and user are, whatever other entries say. As in
// ext_authz, an unknown endpoint asks for a token too.
func (e *Engine) authenticate(policy *descriptors.Policy, known bool, n *named) (refusal Reason) {
	required := e.cfg.DescriptorTokens == TokensRequired
	if len(n.authorization) == 0 && !required || known && policy.Identity != descriptors.TenantJWT {
		return ""
	}
	id, err := e.cfg.Identifier.Tenant(identity.Credentials{Authorization: n.authorization})
	if err != nil {
		endpoint := ""
		if known {
			endpoint = policy.Endpoint
		}
		e.cfg.Recorder.Unauthenticated(refused(ServiceRateLimit, endpoint, "", n.authorization, err))
		return refusalOf(err)
	}
	n.tenant, n.user = id.Tenant, id.Subject
	if known && missingScope(policy.RequiredScopes, id.Scopes) {
		return InsufficientScope
	}
	return ""
}

// named is the entries of a descriptor that mean something. Values are the caller's word; empty: missing.
type named struct {
	endpoint, tenant, user, cookie, address string

	authorization []string // Authorization values, where tokens in descriptors mean something
}

// readEntries picks the entries with a meaning and counts the others. An entry that stands twice with different values
// names nobody and counts as missing.
func (e *Engine) readEntries(entries []Entry) (n named, ignored int) {
	names := &e.cfg.Names
	address := len(names.Address) // the rank of the address entry found so far
	var twice struct{ endpoint, tenant, user, cookie, address bool }
	for i := range entries {
		value := entries[i].Value
		switch entries[i].Key {
		case names.EndpointID:
			twice.endpoint = twice.endpoint || n.endpoint != "" && n.endpoint != value
			n.endpoint = value
		case names.Tenant:
			twice.tenant = twice.tenant || n.tenant != "" && n.tenant != value
			n.tenant = value
		case names.User:
			twice.user = twice.user || n.user != "" && n.user != value
			n.user = value
		case names.Cookie:
			twice.cookie = twice.cookie || n.cookie != "" && n.cookie != value
			n.cookie = value
		default:
			rank := indexOf(names.Address, entries[i].Key)
			switch {
			case entries[i].Key == names.Authorization && e.cfg.DescriptorTokens != TokensIgnored:
				n.authorization = append(n.authorization, authorization(value))
			case rank < 0:
				ignored++
			case rank < address:
				address, n.address, twice.address = rank, value, false
			case rank == address:
				twice.address = twice.address || n.address != value
			}
		}
	}
	drop := func(twice bool, value *string) {
		if twice {
			*value = ""
		}
	}
	drop(twice.endpoint, &n.endpoint)
	drop(twice.tenant, &n.tenant)
	drop(twice.user, &n.user)
	drop(twice.cookie, &n.cookie)
	drop(twice.address, &n.address)
	return n, ignored
}

// authorization returns a descriptor's token as an Authorization value, which it may be already.
func authorization(value string) string {
	if value == "" || strings.Contains(value, " ") {
		return value
	}
	return "Bearer " + value
}

func indexOf(keys []string, key string) int {
	for i := range keys {
		if keys[i] == key {
			return i
		}
	}
	return -1
}

// subject says whose buckets a descriptor means. An address that is none and a cookie that does not verify are missing.
func (e *Engine) subject(p *descriptors.Policy, n *named) descriptors.Subject {
	var s descriptors.Subject
	if p.Identity == descriptors.TenantJWT {
		s.Tenant, s.User = n.tenant, n.user
	} else if n.cookie != "" {
		if id, ok := e.cfg.Identifier.Cookie(n.cookie); ok {
			s.Cookie = id
		}
	}
	if n.address != "" {
		if key, ok := e.cfg.Identifier.Address(n.address); ok {
			s.ClientIP = key
		}
	}
	return s
}

// descriptorHits resolves a descriptor's cost: its own hits_addend, where the wrapper is present, else the request's,
// where 0 means 1. A descriptor's explicit 0 is a peek.
func descriptorHits(d *Descriptor, request uint64) hits {
	n := request
	if d.HasHits {
		n = d.Hits
	} else if n == 0 {
		n = 1
	}
	return hits{n: n, peek: n == 0, refund: d.Negative}
}
