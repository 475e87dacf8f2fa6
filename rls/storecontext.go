package rls

import (
	"context"
	"sync"
	"time"
)

// storeContext is the context of one store call: the caller's values, a deadline of its own, and nothing of the caller's
// cancellation. It is what context.WithTimeout(context.WithoutCancel(ctx), budget) would be, in one allocation: the timer
// behind Done is made only for a store that waits on it. Safe for concurrent use.
type storeContext struct {
	context.Context // the caller's, for its values

	deadline time.Time

	mu    sync.Mutex // guards done and timer
	done  chan struct{}
	timer *time.Timer
}

var _ context.Context = (*storeContext)(nil)

// Deadline returns the end of the store's budget.
func (c *storeContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done returns a channel that is closed at the deadline.
func (c *storeContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		done := make(chan struct{})
		c.done = done
		c.timer = time.AfterFunc(time.Until(c.deadline), func() { close(done) })
	}
	return c.done
}

// Err returns DeadlineExceeded from the deadline on.
func (c *storeContext) Err() error {
	if time.Now().Before(c.deadline) {
		return nil
	}
	return context.DeadlineExceeded
}

// end releases the timer. Nobody may use c any more.
func (c *storeContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}
