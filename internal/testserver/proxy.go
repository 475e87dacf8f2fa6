package testserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Proxy stands before a server on loopback and can delay, cut, swallow and slow down what passes. Safe for concurrent use.
type Proxy struct {
	listener net.Listener
	to       string

	mu     sync.Mutex // guards what follows
	delay  func() time.Duration
	cut    int // bytes of replies after which a connection is cut; 0: never
	hole   bool
	pace   pace
	conns  map[net.Conn]struct{}
	dials  int
	closed bool
	wake   chan struct{} // closed and replaced when hole ends

	running sync.WaitGroup
}

// pace is a clock that goes on by a step with each decision.
type pace struct {
	step time.Duration // 0: there is none
	next time.Time
}

// NewProxy starts a proxy before a server. The caller ends it with Close.
func NewProxy(ctx context.Context, to string) (*Proxy, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, to: to, conns: make(map[net.Conn]struct{}), wake: make(chan struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetDelay has each reply arrive that much later; nil: at once. It is asked for each piece of a reply.
func (p *Proxy) SetDelay(delay func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// SetCut has each connection cut once so many bytes of replies have passed since, in the middle of one as may be; 0: never.
func (p *Proxy) SetCut(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = bytes
}

// SetHole swallows everything that is sent, also on new connections, and closes nothing: the server's machine is gone
// without a word. When that ends, connections from before are reset.
func (p *Proxy) SetHole(hole bool) {
	p.mu.Lock()
	ended := p.hole && !hole
	p.hole = hole
	if ended {
		close(p.wake)
		p.wake = make(chan struct{})
	}
	p.mu.Unlock()
	if ended {
		p.Drop()
	}
}

// SetPace lets at most so many decisions a second through, of all connections together, and delays the others; 0: all. One
// bucket is one decision, whichever script it is in.
func (p *Proxy) SetPace(perSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace = pace{}
	if perSecond > 0 {
		p.pace = pace{step: time.Second / time.Duration(perSecond), next: time.Now()}
	}
}

// Dials returns how many connections were ever made to the proxy.
func (p *Proxy) Dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// Drop resets every connection.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Close ends the proxy and every connection. Closing twice is legal.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.wake)
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Drop()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if !p.track(client) {
			return
		}
		p.mu.Lock()
		p.dials++
		p.mu.Unlock()
		p.running.Go(func() { p.serve(client) })
	}
}

// track remembers a connection; false: the proxy is closed, and so is the connection.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		reset(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) serve(client net.Conn) {
	defer p.forget(client)
	defer reset(client)
	server, err := net.Dial("tcp", p.to)
	if err != nil || !p.track(server) {
		return
	}
	defer p.forget(server)
	defer reset(server)
	var questions sync.WaitGroup
	questions.Go(func() {
		_ = p.forward(server, client)
		reset(server)
	})
	_ = p.backward(client, server)
	reset(client)
	questions.Wait()
}

var errCut = errors.New("cut")

// forward passes questions on, at the pace.
func (p *Proxy) forward(server io.Writer, client io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return err
		}
		if err := p.pass(); err != nil {
			return err
		}
		time.Sleep(time.Until(p.turn(bytes.Count(buf[:n], []byte("\r\nsentinel:")))))
		if _, err := server.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// turn returns when so many decisions may be sent.
func (p *Proxy) turn(decisions int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pace.step == 0 || decisions == 0 {
		return time.Time{}
	}
	if now := time.Now(); p.pace.next.Before(now) {
		p.pace.next = now
	}
	p.pace.next = p.pace.next.Add(time.Duration(decisions) * p.pace.step)
	return p.pace.next
}

// pass waits while everything is swallowed; the error says that what was read is lost.
func (p *Proxy) pass() error {
	p.mu.Lock()
	hole, wake := p.hole, p.wake
	p.mu.Unlock()
	if !hole {
		return nil
	}
	<-wake
	return errCut
}

// delayed is a piece of a reply and when it may be passed on.
type delayed struct {
	bytes []byte
	at    time.Time
}

// backward passes replies on, late or cut.
func (p *Proxy) backward(client io.Writer, server io.Reader) error {
	pieces := make(chan delayed, 1024)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pieces)
		for {
			buf := make([]byte, 16<<10)
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			pieces <- delayed{buf[:n], time.Now().Add(p.lateness())}
		}
	})
	err := p.passOn(client, pieces)
	if c, ok := server.(net.Conn); ok {
		reset(c)
	}
	for range pieces { // so that the reader ends
	}
	reading.Wait()
	return err
}

func (p *Proxy) passOn(client io.Writer, pieces <-chan delayed) error {
	passed := 0
	for piece := range pieces {
		time.Sleep(time.Until(piece.at))
		if err := p.pass(); err != nil {
			return err
		}
		p.mu.Lock()
		cut := p.cut
		p.mu.Unlock()
		if cut == 0 {
			passed = 0
		} else if passed += len(piece.bytes); passed >= cut {
			_, _ = client.Write(piece.bytes[:len(piece.bytes)/2])
			return errCut
		}
		if _, err := client.Write(piece.bytes); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proxy) lateness() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.delay == nil {
		return 0
	}
	return p.delay()
}
