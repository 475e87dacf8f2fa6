package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// keepAlive finds a peer that is gone without a word within 45 s; the breaker has left it alone long before.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}

var errClosed = errors.New("the store is closed")

// dialer makes connections and knows those that are open. The library dials in goroutines of its own, which may outlive
// the call that wanted the connection; closing the dialer ends them.
type dialer struct {
	tls     *tls.Config // nil: none
	changed func(open int)

	ctx     context.Context // done once the dialer is closed
	cancel  context.CancelFunc
	dialing sync.WaitGroup

	mu     sync.Mutex // protects what follows, and that dialing grows only while not closed
	closed bool
	open   map[net.Conn]struct{}
}

func newDialer(config *tls.Config, changed func(open int)) *dialer {
	ctx, cancel := context.WithCancel(context.Background())
	return &dialer{tls: config, changed: changed, ctx: ctx, cancel: cancel, open: make(map[net.Conn]struct{})}
}

// dial is redis.Options.Dialer. ctx ends the attempt.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !d.enter() {
		return nil, errClosed
	}
	defer d.dialing.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()

	plain := &net.Dialer{KeepAliveConfig: keepAlive}
	if d.tls != nil {
		c, err := (&tls.Dialer{NetDialer: plain, Config: d.tls}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return d.track(c), nil
	}
	c, err := plain.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &socket{d.track(c)}, nil
}

func (d *dialer) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.dialing.Add(1)
	}
	return !d.closed
}

func (d *dialer) track(c net.Conn) *conn {
	d.mu.Lock()
	d.open[c] = struct{}{}
	n := len(d.open)
	d.mu.Unlock()
	d.changed(n)
	return &conn{Conn: c, dialer: d}
}

func (d *dialer) forget(c net.Conn) {
	d.mu.Lock()
	_, known := d.open[c]
	delete(d.open, c)
	n := len(d.open)
	d.mu.Unlock()
	if known {
		d.changed(n)
	}
}

// drop closes every open connection, so that the next command dials anew.
func (d *dialer) drop() {
	d.mu.Lock()
	open := d.open
	d.open = make(map[net.Conn]struct{})
	d.mu.Unlock()
	if len(open) > 0 {
		d.changed(0)
	}
	for c := range open {
		_ = c.Close() // nothing is buffered that anyone waits for
	}
}

// close ends attempts that are under way, waits for them, and closes every connection. dial fails from then on.
func (d *dialer) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.dialing.Wait()
	d.drop()
}

// conn is a connection that its dialer knows of.
type conn struct {
	net.Conn
	dialer *dialer
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.dialer.forget(c.Conn)
	return c.Conn.Close()
}

// socket is a conn without TLS: the library looks into it to see whether the server has closed it.
type socket struct{ *conn }

// SyscallConn implements syscall.Conn.
func (s *socket) SyscallConn() (syscall.RawConn, error) {
	return s.Conn.(syscall.Conn).SyscallConn() // a TCP or unix connection always is one
}
