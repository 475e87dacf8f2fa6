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
	network string
	addr    string // where to; for a server that is looked up, what to call it in errors

	// lookup returns where the server is now, for each connection anew; nil: at addr.
	lookup  func(ctx context.Context) (addr string, err error)
	tls     *tls.Config     // nil: none
	changed func(delta int) // the number of open connections changed

	ctx     context.Context // done once the dialer is closed
	cancel  context.CancelFunc
	dialing sync.WaitGroup

	mu     sync.Mutex // protects what follows, and that dialing grows only while not closed
	closed bool
	open   map[net.Conn]string // and where they lead
}

func newDialer(network, addr string, config *tls.Config, changed func(delta int)) *dialer {
	ctx, cancel := context.WithCancel(context.Background())
	return &dialer{
		network: network, addr: addr, tls: config, changed: changed,
		ctx: ctx, cancel: cancel, open: make(map[net.Conn]string),
	}
}

// dial is redis.Options.Dialer. ctx ends the attempt.
func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if !d.enter() {
		return nil, errClosed
	}
	defer d.dialing.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()

	addr := d.addr
	if d.lookup != nil {
		var err error
		if addr, err = d.lookup(ctx); err != nil {
			return nil, err
		}
	}
	plain := &net.Dialer{KeepAliveConfig: keepAlive}
	if d.tls != nil {
		c, err := (&tls.Dialer{NetDialer: plain, Config: d.tls}).DialContext(ctx, d.network, addr)
		if err != nil {
			return nil, err
		}
		return d.track(c, addr), nil
	}
	c, err := plain.DialContext(ctx, d.network, addr)
	if err != nil {
		return nil, err
	}
	return &socket{d.track(c, addr)}, nil
}

func (d *dialer) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.dialing.Add(1)
	}
	return !d.closed
}

func (d *dialer) track(c net.Conn, addr string) *conn {
	d.mu.Lock()
	d.open[c] = addr
	d.mu.Unlock()
	d.changed(1)
	return &conn{Conn: c, dialer: d}
}

func (d *dialer) forget(c net.Conn) {
	d.mu.Lock()
	_, known := d.open[c]
	delete(d.open, c)
	d.mu.Unlock()
	if known {
		d.changed(-1)
	}
}

// drop closes every open connection, so that the next command dials anew.
func (d *dialer) drop() { d.dropOthers("") }

// dropOthers closes every open connection that leads elsewhere than to addr.
func (d *dialer) dropOthers(addr string) {
	var others []net.Conn
	d.mu.Lock()
	for c, to := range d.open {
		if to != addr {
			others = append(others, c)
			delete(d.open, c)
		}
	}
	d.mu.Unlock()
	if len(others) > 0 {
		d.changed(-len(others))
	}
	for _, c := range others {
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
