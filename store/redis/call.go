package redis

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// call is one Decide on its way through the queue. Its caller may be gone while a worker still has it, so it holds
// nothing that belongs to the caller.
type call struct {
	decisions []decision // one per group
	takes     int        // over all decisions that are sent
	deadline  time.Time  // the caller's

	state atomic.Uint32
	done  chan struct{} // closed by the worker once err or the decisions' outcomes are set
	err   error         // nothing was sent
}

// The states of a call. queued → sent is the worker's step, queued → left and sent → left are the caller's; whoever is
// first decides whether the call is sent.
const (
	queued uint32 = iota
	sent
	left
)

// decision is one group: what is asked, and what came of it.
type decision struct {
	calls  []lua.Call // nil: the group is not sent
	asking bool       // the server is to answer although the slot is not its own yet
	reply  lua.Reply
	err    error // classified once the call is finished; nil: reply is the script's
}

// newCall returns a call of n groups, none of which is put in yet.
func newCall(ctx context.Context, n int) *call {
	c := &call{decisions: make([]decision, n), done: make(chan struct{})}
	c.deadline, _ = ctx.Deadline()
	return c
}

// put makes group, which is valid, the call's i-th.
func (c *call) put(i int, group rls.Group) {
	calls := make([]lua.Call, len(group))
	for j, take := range group {
		calls[j] = lua.Call{Key: take.Key, Rule: take.Rule, Op: take.Op, Cost: take.Cost, Window: take.Window}
	}
	c.decisions[i].calls = calls
	c.takes += len(calls)
}

// answer is the group's answer; err is what became of the whole call.
func (d *decision) answer(err error) rls.Answer {
	if err == nil {
		err = d.err
	}
	if err != nil {
		return rls.Answer{Err: err}
	}
	return rls.Answer{Now: d.reply.Now, Before: d.reply.Before, Allowed: d.reply.Allowed, Healed: d.reply.Healed}
}

// claim makes the call the worker's to send. False: its caller is gone, or will be before an answer can come.
func (c *call) claim(now time.Time) bool {
	if !c.deadline.After(now) {
		return false // the caller finds it still queued, and knows that it was not sent
	}
	return c.state.CompareAndSwap(queued, sent)
}

// leave is the caller going away: it returns the outcome if there is one, else what is known about the call.
func (c *call) leave(wasSent, wasNot error) error {
	if c.state.Swap(left) == queued {
		return wasNot
	}
	select {
	case <-c.done:
		return c.err
	default:
		return wasSent
	}
}

// finish hands the outcome to the caller.
func (c *call) finish(err error) {
	c.err = err
	close(c.done)
}
