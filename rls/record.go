package rls

import (
	"time"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// record tells the recorder what became of a request: one decision for each policy that it touches, one log record when
// it was denied. A request that no limit decided is no decision.
func (e *Engine) record(c call, p *plan, res *Result) {
	latency := time.Since(c.start)
	if class := p.failure(); class != "" {
		e.cfg.Recorder.StoreFailure(class)
	}
	for i := range p.asks {
		a := &p.asks[i]
		if a.policy == nil || a.identifyOnly || p.seenBefore(i) {
			continue
		}
		rec := a.state.recorder
		if a.policy.Mode == descriptors.Shadow {
			if p.shadowDenied(a) {
				rec.ShadowDenial()
			}
			rec.Decision(Allowed, latency)
			continue
		}
		if res.Reason == UnknownEndpoint {
			continue
		}
		rec.Decision(res.Reason, latency)
		if res.Allowed && res.Source == SourceEmergency && p.enforces(a) {
			rec.EmergencyAdmission()
		}
	}
	if !res.Allowed && res.Reason != UnknownEndpoint {
		e.cfg.Recorder.Denied(e.denial(c, p, res, latency))
	}
}

// failure returns the class of the store failure that the request met, if any.
func (p *plan) failure() Class {
	for _, h := range []*part{&p.enforce, &p.shadow} {
		if h.answer.Err != nil {
			return ClassOf(h.answer.Err)
		}
	}
	return ""
}

func (p *plan) seenBefore(i int) bool {
	for j := range i {
		if p.asks[j].policy == p.asks[i].policy {
			return true
		}
	}
	return false
}

// shadowDenied reports whether a shadow policy would have denied the request by itself.
func (p *plan) shadowDenied(a *ask) bool {
	for i := range p.asks {
		if b := &p.asks[i]; b.policy == a.policy {
			if s, _ := p.status(b); s.OverLimit {
				return true
			}
		}
	}
	return false
}

// denial describes a denied request by the ask whose policy denied it.
func (e *Engine) denial(c call, p *plan, res *Result, latency time.Duration) Denial {
	d := Denial{
		Service: c.service, Domain: c.domain, Policy: res.Policy, Reason: res.Reason, Class: res.Class, Source: res.Source,
		DecisionID: res.DecisionID, Latency: latency, BreakerState: "none",
	}
	if e.cfg.BreakerState != nil {
		d.BreakerState = e.cfg.BreakerState()
	}
	for i := range p.asks {
		a := &p.asks[i]
		if a.policy == nil || !res.Statuses[i].OverLimit {
			continue
		}
		if d.EndpointID == "" || a.speaker(&res.Statuses[i]) == res.Policy {
			d.EndpointID = a.policy.Endpoint
			d.IdentityMode = a.policy.Identity.String()
			d.IdentityHash = a.subject.PrimaryHash(a.policy.Identity)
		}
		if a.speaker(&res.Statuses[i]) == res.Policy {
			break
		}
	}
	return d
}
