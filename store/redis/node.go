package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// node is one server that decides groups, or the one master that sentinels name: a queue, the workers that drain it,
// connections, and a breaker of its own.
type node struct {
	*settings
	addr    string
	client  *redis.Client
	dialer  *dialer
	breaker *rls.Breaker

	queue   chan *call
	stopped chan struct{} // closed when no worker will take from the queue any more

	answered   atomic.Bool              // anything, ever
	down       atomic.Bool              // the last thing sent to the server failed
	failure    atomic.Pointer[error]    // why, of what Observer.Failing was told; nil: it did not
	underWay   atomic.Int32             // round trips
	began      time.Time                // the node; departed counts from here
	departed   atomic.Int64             // when the last round trip began, as a Duration
	took       atomic.Int64             // how long the last one lasted, as a Duration; 0: it failed
	identity   atomic.Pointer[identity] // by the last probe
	limit      batchLimit
	standalone atomic.Bool // the server says that it is no cluster, by the last probe
	sharded    atomic.Bool // it refused a command because its keys lie in several slots

	// astray is told that the server lost a batch or sent it elsewhere: the cluster may have another layout by now.
	astray func()
}

// together reports whether a command may carry several groups. Not where their keys may lie on different servers: on those of a
// cluster, or behind a proxy, which either does not say what its servers are or refuses keys that it would have to ask two about.
func (n *node) together() bool { return n.standalone.Load() && !n.sharded.Load() }

// newNode returns a node that does not connect yet. lookup, where there is one, says where the server is, for each
// connection anew; addr then only names it.
func (s *Store) newNode(addr string, lookup func(context.Context) (string, error)) *node {
	network := "tcp"
	if s.socket != "" {
		network = "unix"
	}
	d := newDialer(network, addr, s.tlsConfig(), s.connected)
	d.lookup = lookup
	n := &node{
		settings: &s.settings, addr: addr, dialer: d, astray: func() {},
		queue:   make(chan *call, s.Queue),
		stopped: make(chan struct{}),
		began:   time.Now(),
	}
	options := s.options(d, login{s.username, s.password, s.PasswordFile})
	if s.heart != nil {
		options.OnConnect = func(ctx context.Context, cn *redis.Conn) error { return s.heart.greet(ctx, n, cn) }
	}
	n.client = redis.NewClient(options)
	breaker := s.Breaker
	breaker.OnChange = func(from, to string) {
		if s.Breaker.OnChange != nil {
			s.Breaker.OnChange(from, to)
		}
		s.Observer.BreakerChanged(addr, from, to, n.cause())
	}
	n.breaker = rls.NewBreaker(breaker)
	return n
}

// run sends calls until ctx is done, finishes the round trips that are under way, fails what still waits, and closes
// every connection.
func (n *node) run(ctx context.Context) error {
	var running sync.WaitGroup
	for range n.Workers {
		running.Go(func() { n.work(ctx.Done()) })
	}
	running.Wait()
	close(n.stopped)
	return n.close()
}

func (n *node) close() error {
	err := n.client.Close()
	n.dialer.close()
	return err
}

// send gets c done, or says why it is not.
func (n *node) send(ctx context.Context, c *call) error {
	if err := n.submit(ctx, c); err != nil {
		return err
	}
	return n.await(ctx, c)
}

// submit puts c into the queue. After an error it was not sent.
func (n *node) submit(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w: %w", rls.ErrTimeout, ErrNotSent, err)
	}
	switch {
	case !n.breaker.Ready():
		return errOpen
	case n.suspect():
		return errSuspect
	}
	select {
	case n.queue <- c:
		return nil
	default:
		n.Observer.QueueFull()
		return errQueueFull
	}
}

// suspect reports that the server failed the last time and that every worker is asking it again. Who would have to wait for
// them is better served at once: a server that stopped answering would hold all callers for as long as they can wait, until
// the breaker opens.
func (n *node) suspect() bool { return n.down.Load() && int(n.underWay.Load()) >= n.Workers }

// await returns once c, which is in the queue, is done or its context is.
func (n *node) await(ctx context.Context, c *call) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return c.leave(errLate, errNoTurn)
	case <-n.stopped:
		return c.leave(errStopped, errStopped)
	}
}
