package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// lines are the connections of an open loop. They write gRPC's frames themselves, which costs less than grpc-go's client does: a
// generator that shares its cores with the servers must not be what makes them late.
type lines struct {
	all     []*line
	running sync.WaitGroup
	stop    context.CancelFunc

	turn    int // the line of the next call
	written int // calls that wait there to be sent
}

// dial connects to the servers of conns, one line for each connection, and keeps them connected until hangUp.
func dial(ctx context.Context, conns Conns, q Question, deadline time.Duration) (*lines, error) {
	ctx, stop := context.WithCancel(ctx)
	ls := &lines{stop: stop}
	for _, conn := range conns {
		l := &line{addr: conn.Target(), question: q, deadline: deadline, up: make(chan struct{})}
		ls.all = append(ls.all, l)
		ls.running.Go(func() { l.keep(ctx) })
	}
	ls.running.Go(func() { ls.expire(ctx) })
	if err := ls.await(ctx); err != nil {
		ls.hangUp()
		return nil, err
	}
	return ls, nil
}

// await returns once every line is connected.
func (ls *lines) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for _, l := range ls.all {
		select {
		case <-l.connected():
		case <-ctx.Done():
			return fmt.Errorf("dialling %s: %w", l.addr, ctx.Err())
		}
	}
	return nil
}

// hangUp closes every line; calls without an answer fail.
func (ls *lines) hangUp() {
	ls.stop()
	ls.running.Wait()
}

// together is how many calls go into one write at most.
const together = 16

// send writes a call, which flush sends. Calls that are due together share a line and a write, as those of one of Envoy's
// workers do; the lines take turns. One goroutine sends.
func (ls *lines) send(i uint64, c *openCall) {
	ls.all[ls.turn].send(i, c)
	if ls.written++; ls.written == together {
		ls.flush()
	}
}

// flush sends what was written.
func (ls *lines) flush() {
	if ls.written == 0 {
		return
	}
	if w := ls.all[ls.turn].current(); w != nil {
		w.flush()
	}
	ls.turn, ls.written = (ls.turn+1)%len(ls.all), 0
}

// expire gives calls up when their time is over, until ctx is done.
func (ls *lines) expire(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, l := range ls.all {
				l.expire(now)
			}
		}
	}
}

// line is a connection to a server that is made again as soon as it is lost. Safe for concurrent use.
type line struct {
	addr     string
	question Question
	deadline time.Duration // of a call; 0: none

	mu   sync.Mutex // guards what follows
	wire *wire      // nil: not connected
	up   chan struct{}
}

// redialEvery is how soon a server that refused is tried again.
const redialEvery = 2 * time.Millisecond

// keep keeps the line connected until ctx is done.
func (l *line) keep(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := l.connect(ctx)
		if err != nil {
			_ = sleepUntil(ctx, time.Now().Add(redialEvery))
			continue
		}
		l.mu.Lock()
		l.wire = w
		close(l.up)
		l.mu.Unlock()
		hangUp := context.AfterFunc(ctx, func() { _ = w.conn.Close() })
		err = w.read(l.question.yes)
		hangUp()
		l.mu.Lock()
		l.wire, l.up = nil, make(chan struct{})
		l.mu.Unlock()
		w.lose(err)
	}
}

func (l *line) connect(ctx context.Context) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return nil, err
	}
	w, err := newWire(conn, l.addr, l.question.method, l.deadline)
	if err != nil {
		_ = conn.Close()
	}
	return w, err
}

// connected is closed while the line is.
func (l *line) connected() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

var errDown = status.Error(codes.Unavailable, "not connected")

// send writes a call, which flush sends. It ends later, or at once where the line is down.
func (l *line) send(i uint64, c *openCall) {
	message, err := l.question.message(i)
	if err != nil {
		c.end(Failed, err, time.Now())
		return
	}
	w := l.current()
	if w == nil {
		c.end(Failed, errDown, time.Now())
		return
	}
	w.send(c, message)
}

func (l *line) expire(now time.Time) {
	if w := l.current(); w != nil {
		w.expire(now)
	}
}

// current is the wire; nil: the line is down.
func (l *line) current() *wire {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wire
}

// openCall is a call of an open loop.
type openCall struct {
	end func(o Outcome, err error, at time.Time) // called once

	sent   time.Time
	answer []byte
	status string // grpc-status, as the server wrote it
	reason string // grpc-message
}

// outcome is how an answered call ended.
func (c *openCall) outcome(yes func([]byte) (bool, error)) (Outcome, error) {
	const prefix = 5 // compressed or not, and the length
	switch code, err := strconv.Atoi(c.status); {
	case err != nil:
		return Failed, status.Errorf(codes.Internal, "an answer with grpc-status %q", c.status)
	case codes.Code(code) == codes.DeadlineExceeded:
		return Late, nil
	case code != 0:
		return Failed, status.Error(codes.Code(code), c.reason)
	case len(c.answer) < prefix || c.answer[0] != 0 || int(binary.BigEndian.Uint32(c.answer[1:])) != len(c.answer)-prefix:
		return Failed, status.Error(codes.Internal, "an answer that is not one message")
	}
	allowed, err := yes(c.answer[prefix:])
	return outcomeOf(allowed, err), err
}

// wire is one HTTP/2 connection (RFC 9113) as long as it lasts.
type wire struct {
	conn     net.Conn
	deadline time.Duration
	first    []byte // the header block of the first call, which the others refer to
	others   []byte

	mu     sync.Mutex // guards what follows
	room   *sync.Cond // window has grown, or the wire is lost
	out    *bufio.Writer
	framer *http2.Framer // reads without mu
	window int           // bytes that the server takes now
	next   uint32        // stream
	calls  map[uint32]*openCall
	order  []uint32 // streams as they were sent, which is as they expire; some are gone
	lost   error
}

// firstWindow is how much a server takes of a connection, and of a call, before it says more.
const firstWindow = 65535

// maxFrame is the payload that every server takes in a frame.
const maxFrame = 16 << 10

// windowSize is how much the server may send without being asked for more.
const windowSize = 1 << 30

func newWire(conn net.Conn, addr, method string, deadline time.Duration) (*wire, error) {
	w := &wire{conn: conn, deadline: deadline, window: firstWindow, next: 1, calls: make(map[uint32]*openCall)}
	w.room = sync.NewCond(&w.mu)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	header := func() []byte {
		block.Reset()
		fields := testserver.CallHeader(addr, method)
		if deadline > 0 {
			fields = append(fields, hpack.HeaderField{Name: "grpc-timeout", Value: strconv.FormatInt(deadline.Microseconds(), 10) + "u"})
		}
		for _, f := range fields {
			_ = encoder.WriteField(f) // a buffer takes everything
		}
		return slices.Clone(block.Bytes())
	}
	w.first, w.others = header(), header()

	w.out = bufio.NewWriter(conn)
	w.framer = http2.NewFramer(w.out, bufio.NewReaderSize(conn, 32<<10))
	w.framer.SetReuseFrames()
	_, err := w.out.WriteString(http2.ClientPreface)
	err = errors.Join(err,
		w.framer.WriteSettings(
			http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowSize}),
		w.framer.WriteWindowUpdate(0, windowSize),
		w.out.Flush())
	return w, err
}

// send writes a call, which flush sends. It waits while the server takes no more.
func (w *wire) send(c *openCall, message []byte) {
	body := make([]byte, 5, 5+len(message))
	binary.BigEndian.PutUint32(body[1:], uint32(len(message)))
	body = append(body, message...)

	if len(body) > firstWindow {
		c.end(Failed, status.Error(codes.ResourceExhausted, "a question that does not fit into the window"), time.Now())
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.window < len(body) && w.lost == nil {
		_ = w.out.Flush()
		w.room.Wait()
	}
	if w.lost != nil {
		c.end(Failed, w.lost, time.Now())
		return
	}
	id, block := w.next, w.others
	if id == 1 {
		block = w.first
	}
	w.next += 2
	w.window -= len(body)
	c.sent = time.Now()
	w.calls[id] = c
	if w.deadline > 0 {
		w.order = append(w.order, id)
	}
	_ = w.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
	for part := range slices.Chunk(body, maxFrame) {
		body = body[len(part):]
		_ = w.framer.WriteData(id, len(body) == 0, part) // what goes wrong, the reader learns
	}
}

// flush sends what was written.
func (w *wire) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Flush()
}

// expire gives up the calls whose time is over at now, as Envoy does: the server is told.
func (w *wire) expire(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := 0
	for _, id := range w.order {
		if c, ok := w.calls[id]; ok {
			if now.Sub(c.sent) < w.deadline {
				break
			}
			delete(w.calls, id)
			_ = w.framer.WriteRSTStream(id, http2.ErrCodeCancel)
			c.end(Late, nil, now)
		}
		gone++
	}
	w.order = w.order[gone:]
	_ = w.out.Flush()
}

// lose ends all calls with the error that ended the wire.
func (w *wire) lose(err error) {
	_ = w.conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = status.Error(codes.Unavailable, err.Error())
	for _, c := range w.calls {
		c.end(Failed, w.lost, time.Now())
	}
	clear(w.calls)
	w.room.Broadcast()
}

var errGoAway = errors.New("the server goes away")

// read reads what the server sends until the wire is lost, and says why.
func (w *wire) read(yes func([]byte) (bool, error)) error {
	var field func(hpack.HeaderField)
	headers := hpack.NewDecoder(4096, func(f hpack.HeaderField) { field(f) })
	received := 0
	for {
		frame, err := w.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			if !frame.HeadersEnded() {
				return errors.New("an answer with many headers")
			}
			c := w.call(frame.StreamID)
			field = func(f hpack.HeaderField) { c.header(f) }
			if _, err := headers.Write(frame.HeaderBlockFragment()); err != nil {
				return err
			}
			if err := headers.Close(); err != nil {
				return err
			}
			if frame.StreamEnded() {
				w.answered(frame.StreamID, yes)
			}
		case *http2.DataFrame:
			c := w.call(frame.StreamID)
			c.answer = append(c.answer, frame.Data()...)
			if received += int(frame.Length); received >= windowSize/2 {
				w.write(func() error { return w.framer.WriteWindowUpdate(0, uint32(received)) })
				received = 0
			}
			if frame.StreamEnded() {
				w.answered(frame.StreamID, yes)
			}
		case *http2.RSTStreamFrame:
			w.call(frame.StreamID).status = strconv.Itoa(int(codes.Unavailable))
			w.answered(frame.StreamID, yes)
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				w.write(w.framer.WriteSettingsAck)
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				data := frame.Data
				w.write(func() error { return w.framer.WritePing(true, data) })
			}
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				w.grow(int(frame.Increment))
			}
		case *http2.GoAwayFrame:
			return errGoAway
		}
	}
}

func (w *wire) call(id uint32) *openCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.calls[id]; ok {
		return c
	}
	return &openCall{}
}

func (c *openCall) header(f hpack.HeaderField) {
	switch f.Name {
	case "grpc-status":
		c.status = f.Value
	case "grpc-message":
		c.reason = f.Value
	}
}

// answered ends a call whose answer is complete. What came after its time counts as none.
func (w *wire) answered(id uint32, yes func([]byte) (bool, error)) {
	w.mu.Lock()
	c, ok := w.calls[id]
	delete(w.calls, id)
	w.mu.Unlock()
	if !ok {
		return
	}
	now := time.Now()
	o, err := c.outcome(yes)
	if w.deadline > 0 && now.Sub(c.sent) > w.deadline {
		o, err = Late, nil
	}
	c.end(o, err, now)
}

// write writes a frame, which is sent with the next call or by expire.
func (w *wire) write(frame func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = frame()
}

func (w *wire) grow(window int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.window += window
	w.room.Broadcast()
}
