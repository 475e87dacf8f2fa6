package rls

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
)

// Check answers one ext_authz question: the policy by endpoint id, the identity as the policy asks, then the limits.
// Only an authenticated caller learns whether an endpoint exists.
func (e *Engine) Check(ctx context.Context, r CheckRequest) CheckResult {
	start := time.Now()
	snap := e.active.Load()
	policy, known := e.authzPolicy(snap, r.EndpointID)
	if !known {
		e.cfg.Recorder.UnknownEndpoint(ServiceAuthz)
	}
	var res CheckResult
	if known {
		res.EndpointID = policy.Endpoint
	}
	if known && policy.Identity == descriptors.Anonymous {
		res.Identity = e.cfg.Identifier.Anonymous(r.Credentials)
	} else {
		id, err := e.cfg.Identifier.Tenant(r.Credentials)
		if err != nil {
			res = res.refuse(refusalOf(err), !errors.Is(err, identity.ErrMissing))
			e.cfg.Recorder.Unauthenticated(refused(ServiceAuthz, res.EndpointID, res.DecisionID, r.Credentials.Authorization, err))
			return res
		}
		res.Identity = id
	}
	if !known {
		return res.refuse(UnknownEndpoint, false)
	}
	if missingScope(policy.RequiredScopes, res.Identity.Scopes) {
		res.RequiredScopes = policy.RequiredScopes
		return res.refuse(InsufficientScope, false)
	}
	p := newPlan()
	who := subjectOf(&res.Identity)
	e.addCheck(p, snap, policy, &who)
	res.Result = e.decide(ctx, call{service: ServiceAuthz, domain: policy.Domain, start: start}, p)
	return res
}

func (e *Engine) authzPolicy(snap *snapshot, endpointID string) (*descriptors.Policy, bool) {
	if e.cfg.AuthzDomain == "" {
		return snap.set.Endpoint(endpointID)
	}
	domain, ok := snap.set.Domain(e.cfg.AuthzDomain)
	if !ok {
		e.cfg.Recorder.UnknownDomain(ServiceAuthz)
		return nil, false
	}
	return domain.Lookup(endpointID)
}

// subjectOf says whose buckets a verified caller means.
func subjectOf(id *identity.Identity) descriptors.Subject {
	return descriptors.Subject{Tenant: id.Tenant, User: id.Subject, Cookie: id.Cookie, ClientIP: id.Address}
}

// addCheck adds what a Check asks to the plan.
func (e *Engine) addCheck(p *plan, snap *snapshot, policy *descriptors.Policy, who *descriptors.Subject) {
	a := ask{policy: policy, subject: *who}
	if policy.Identity == descriptors.TenantJWT {
		a.policy = policy.For(who.Tenant)
	}
	a.state = &snap.policies[a.policy.Index]
	switch {
	case !policy.Count:
		a.identifyOnly = true
		a.from, a.to = len(p.slots), len(p.slots)
		p.asks = append(p.asks, a)
	case a.policy.Verdict == descriptors.Blocked:
		p.refuse(a, RateLimited)
	default:
		p.add(a, hits{n: 1, check: true}, e.cfg.Recorder)
	}
}

// refused describes a refused credential to the recorder.
func refused(service Service, endpointID, decisionID string, credential []string, err error) Refused {
	return Refused{
		Service: service, EndpointID: endpointID, Check: identity.Check(err), Missing: errors.Is(err, identity.ErrMissing),
		DecisionID: decisionID, credential: credential,
	}
}

// refusalOf says what a failed verification is to the caller. A check that could not be made is not a bad credential.
func refusalOf(err error) Reason {
	if errors.Is(err, identity.ErrBusy) {
		return IdentityUnavailable
	}
	return Unauthenticated
}

func missingScope(required, held []string) bool {
	return slices.ContainsFunc(required, func(s string) bool { return !slices.Contains(held, s) })
}

// refuse completes a result that reached no limit.
func (r CheckResult) refuse(why Reason, invalidToken bool) CheckResult {
	r.Result = Result{Reason: why, Source: SourceNone, RetryAfter: never, Document: true, DecisionID: newDecisionID()}
	r.InvalidToken = invalidToken
	return r
}
