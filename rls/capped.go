package rls

import (
	"context"
	"fmt"
	"sync/atomic"
)

// capped lets so many calls to a store be under way and fails the others at once: a process that cannot keep up answers
// from what is local while there is time. Safe for concurrent use.
type capped struct {
	store    Store
	most     int64
	underWay atomic.Int64
}

var errBusy = fmt.Errorf("%w: too many calls are under way", ErrUnavailable)

// Decide implements Store.
func (c *capped) Decide(ctx context.Context, groups []Group) []Answer {
	defer c.underWay.Add(-1)
	if c.underWay.Add(1) <= c.most {
		return c.store.Decide(ctx, groups)
	}
	answers := make([]Answer, len(groups))
	for i := range answers {
		answers[i].Err = errBusy
	}
	return answers
}
