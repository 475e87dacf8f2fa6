package rls

import (
	"context"
	"sync"
	"time"
)

// storeContext is the context of one store call: the caller's values, a deadline of its own, and nothing of the caller's
// cancellation. It is what context.WithTimeout(context.WithoutCancel(ctx), budget) would be, without an allocation: the
// timer behind Done is made only for a store that waits on it, and both serve later calls. Safe for concurrent use.
type storeContext struct {
	context.Context // the caller's, for its values

	deadline time.Time

	mu      sync.Mutex // guards the following
	done    chan struct{}
	timer   *time.Timer // closes done
	running bool
}

var _ context.Context = (*storeContext)(nil)

// storeContexts holds those that ended before their deadline: their channel is still open.
var storeContexts = sync.Pool{New: func() any { return new(storeContext) }}

// newStoreContext returns a context that the caller must end.
func newStoreContext(ctx context.Context, budget time.Duration) *storeContext {
	c := storeContexts.Get().(*storeContext)
	c.Context, c.deadline = ctx, time.Now().Add(budget)
	return c
}

// Deadline returns the end of the store's budget.
func (c *storeContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done returns a channel that is closed at the deadline.
func (c *storeContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.running:
	case c.timer == nil:
		done := make(chan struct{})
		c.done, c.timer = done, time.AfterFunc(time.Until(c.deadline), func() { close(done) })
	default:
		c.timer.Reset(time.Until(c.deadline))
	}
	c.running = true
	return c.done
}

// Err returns DeadlineExceeded from the deadline on.
func (c *storeContext) Err() error {
	if time.Now().Before(c.deadline) {
		return nil
	}
	return context.DeadlineExceeded
}

// end stops the timer. Nobody may use c any more: it becomes another call's.
func (c *storeContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running && !c.timer.Stop() {
		return // its channel is closed, or about to be
	}
	c.running, c.Context = false, nil
	storeContexts.Put(c)
}
