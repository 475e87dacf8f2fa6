package rls

import (
	"context"
	"errors"
	"time"
)

// minTimeLeft is the least time to the caller's deadline for which the store is asked at all.
const minTimeLeft = 2 * time.Millisecond

// askStore asks the store for what p needs and leaves the answers in p.
//
// The call runs detached from the caller's cancellation under a budget of its own, which ends before the caller's
// deadline by a reserve: tied to the caller, cancelled calls would open the breaker of a healthy store, or a hung store
// would never open it.
func (e *Engine) askStore(ctx context.Context, p *plan) {
	groups, n := p.groups[:0], 0
	var parts [2]*part
	for _, h := range [2]*part{&p.enforce, &p.shadow} {
		if len(h.group) > 0 {
			groups = append(groups, h.group)
			parts[n] = h
			n++
		}
	}
	if n == 0 {
		return
	}
	budget, ok := e.budget(ctx)
	if !ok {
		for _, h := range parts[:n] {
			h.answer = Answer{Err: ErrTimeout}
		}
		return
	}
	detached := newStoreContext(ctx, budget)
	defer detached.end()
	for i, a := range e.store.Decide(detached, groups) {
		parts[i].answer = a
	}
	e.observe(parts[:n])
}

// budget returns how long the store may take; false: too little time is left to ask it.
func (e *Engine) budget(ctx context.Context) (time.Duration, bool) {
	left := e.cfg.NoDeadline
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	if left < minTimeLeft {
		return 0, false
	}
	return min(e.cfg.StoreBudget, left-min(e.cfg.Reserve, left/2)), true
}

// observe counts what the answers tell about the store's data and clock.
func (e *Engine) observe(parts []*part) {
	for _, h := range parts {
		if h.answer.Cached {
			e.cfg.Recorder.DenyCacheHit()
			continue
		}
		e.observeAnswer(&h.answer)
	}
}

func (e *Engine) observeAnswer(a *Answer) {
	if a.Healed > 0 {
		e.cfg.Recorder.Healed(a.Healed)
	}
	for i := range a.Before {
		if a.Before[i].At > a.Clock(i) {
			e.cfg.Recorder.ClockBehind()
			break
		}
	}
}

// ClassOf returns the class of a store failure; empty when nothing was sent because the breaker is open.
func ClassOf(err error) Class {
	switch {
	case errors.Is(err, ErrCircuitOpen):
		return ""
	case errors.Is(err, ErrTimeout):
		return ClassTimeout
	case errors.Is(err, ErrUnavailable):
		return ClassUnavailable
	}
	return ClassError
}
