package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// call is one Decide on its way through the queue. Its caller may be gone while a worker still has it, so it holds
// nothing that belongs to the caller.
type call struct {
	commands []command // one per group
	takes    int       // over all commands that are sent
	deadline time.Time // the caller's

	state atomic.Uint32
	done  chan struct{} // closed by the worker once err or the commands' outcomes are set
	err   error         // nothing was sent
}

// The states of a call. queued → sent is the worker's step, queued → left and sent → left are the caller's; whoever is
// first decides whether the call is sent.
const (
	queued uint32 = iota
	sent
	left
)

// command is one group: what is sent, and what came of it.
type command struct {
	calls  []lua.Call // nil: the group is refused and not sent
	reply  *redis.Cmd
	asking bool  // the server is to answer although the slot is not its own yet
	err    error // classified; nil: reply holds the script's reply
}

// newCall returns a call of n groups, none of which is encoded yet.
func newCall(ctx context.Context, n int) *call {
	c := &call{commands: make([]command, n), done: make(chan struct{})}
	c.deadline, _ = ctx.Deadline()
	return c
}

// encode makes group the call's i-th, in the caller's goroutine. One that is refused is not sent.
func (c *call) encode(encoder *lua.Encoder, i int, group rls.Group) error {
	err := c.commands[i].encode(encoder, group)
	c.takes += len(c.commands[i].calls)
	return err
}

func (c *command) encode(encoder *lua.Encoder, group rls.Group) error {
	calls := make([]lua.Call, len(group))
	for i, take := range group {
		calls[i] = lua.Call{Key: take.Key, Rule: take.Rule, Op: take.Op, Cost: take.Cost, Window: take.Window}
	}
	args, err := encoder.AppendCommand(make([]any, 0, 4+7*len(calls)), calls)
	if err != nil {
		return fmt.Errorf("%w: %w", rls.ErrStore, err)
	}
	c.calls, c.reply = calls, redis.NewCmd(context.Background(), args...)
	return nil
}

// answer is the group's answer; err is what became of the whole call.
func (c *command) answer(err error) rls.Answer {
	if err == nil {
		err = c.err
	}
	if err != nil {
		return rls.Answer{Err: err}
	}
	reply, err := lua.Decode(c.reply.Val(), c.calls)
	if err != nil {
		return rls.Answer{Err: fmt.Errorf("%w: %w", rls.ErrStore, err)}
	}
	return rls.Answer{Now: reply.Now, Before: reply.Before, Allowed: reply.Allowed, Healed: reply.Healed}
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
