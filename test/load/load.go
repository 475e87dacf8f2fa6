package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Ask puts the i-th question of a run to the server at the other end of conn and returns whether the answer was yes. It
// returns when ctx ends, with the gRPC error. Safe for concurrent use.
type Ask func(ctx context.Context, conn *grpc.ClientConn, i uint64) (allowed bool, err error)

// Outcome is how a call ended as its caller saw it.
type Outcome int

// The outcomes.
const (
	Allowed Outcome = iota
	Denied
	Late   // DEADLINE_EXCEEDED: Envoy would have decided without the answer
	Failed // any other gRPC error
	outcomes
)

func outcomeOf(allowed bool, err error) Outcome {
	switch {
	case err == nil && allowed:
		return Allowed
	case err == nil:
		return Denied
	case status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return Late
	}
	return Failed
}

// Report is what came of a run. Not to be copied; read it once the run has returned.
type Report struct {
	// Latency of every call, in an open loop from the moment it was due.
	Latency Histogram
	// Lag is how long after it was due each call of an open loop was sent: the generator's own lateness. Empty in a closed loop.
	Lag Histogram
	// Elapsed is the time from the first call to the last answer.
	Elapsed time.Duration

	counts [outcomes]atomic.Int64
	err    atomic.Pointer[error]
}

// Count returns how many calls ended in o.
func (r *Report) Count(o Outcome) int64 { return r.counts[o].Load() }

// Calls returns how many calls were made.
func (r *Report) Calls() int64 { return r.Answered() + r.Count(Late) + r.Count(Failed) }

// Answered returns how many calls were answered in time, yes or no.
func (r *Report) Answered() int64 { return r.Count(Allowed) + r.Count(Denied) }

// Rate returns the calls answered in time, per second.
func (r *Report) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Answered()) / r.Elapsed.Seconds()
}

// Share returns the share of calls that ended in o, 0 to 1.
func (r *Report) Share(o Outcome) float64 { return float64(r.Count(o)) / float64(max(1, r.Calls())) }

// Err returns one of the errors of the calls that failed; nil when none did.
func (r *Report) Err() error {
	if err := r.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Add counts the calls of other, a run that has returned, too. Elapsed becomes the sum of both.
func (r *Report) Add(other *Report) {
	r.Latency.Add(&other.Latency)
	r.Lag.Add(&other.Lag)
	r.Elapsed += other.Elapsed
	for o := range r.counts {
		r.counts[o].Add(other.counts[o].Load())
	}
	if err := other.err.Load(); err != nil {
		r.err.CompareAndSwap(nil, err)
	}
}

func (r *Report) record(o Outcome, err error, latency time.Duration) {
	r.counts[o].Add(1)
	r.Latency.Record(latency)
	if o == Failed {
		r.err.CompareAndSwap(nil, &err)
	}
}

// Conns are connections to one server. Runs spread their calls evenly over them.
type Conns []*grpc.ClientConn

const dialTimeout = 10 * time.Second

// quickReconnect finds a server that was started again at once, as a proxy with many connections does.
var quickReconnect = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond},
	MinConnectTimeout: dialTimeout,
})

// Dial opens n connections to addr and returns once all are up. The caller closes them.
func Dial(ctx context.Context, addr string, n int) (_ Conns, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conns := make(Conns, 0, n)
	defer func() {
		if err != nil {
			conns.Close()
		}
	}()
	for range n {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), quickReconnect)
		if err != nil {
			return nil, fmt.Errorf("dialling %s: %w", addr, err)
		}
		conns = append(conns, conn)
		conn.Connect()
	}
	if err := conns.Await(ctx); err != nil {
		return nil, fmt.Errorf("dialling %s: %w", addr, err)
	}
	return conns, nil
}

// Await waits until every connection is up.
func (c Conns) Await(ctx context.Context) error {
	for _, conn := range c {
		for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
			if conn.Connect(); !conn.WaitForStateChange(ctx, s) {
				return fmt.Errorf("a connection is still %v: %w", s, ctx.Err())
			}
		}
	}
	return nil
}

// Close closes the connections.
func (c Conns) Close() {
	for _, conn := range c {
		_ = conn.Close() // fails only when closed already
	}
}

// Closed is a closed loop: each caller asks again as soon as it has its answer. It finds the most that a server answers.
// Its latencies flatter a server that pauses, since callers wait with it and ask less.
type Closed struct {
	Callers  int
	Deadline time.Duration // of each call; 0: none
	For      time.Duration // the run's length, when Calls is 0
	Calls    uint64        // else its number of calls, numbered from First
	First    uint64
}

// Run runs the loop and returns once every call has ended; a ctx that ends first ends it early, with ctx's error.
func (c Closed) Run(ctx context.Context, conns Conns, ask Ask) (*Report, error) {
	r := new(Report)
	start := time.Now()
	var next atomic.Uint64
	var callers sync.WaitGroup
	for caller := range c.Callers {
		conn := conns[caller%len(conns)]
		callers.Go(func() {
			for now := start; ctx.Err() == nil; {
				i := next.Add(1) - 1
				if c.Calls > 0 && i >= c.Calls || c.Calls == 0 && now.Sub(start) >= c.For {
					return
				}
				now = r.call(ctx, conn, ask, c.First+i, c.Deadline, time.Now())
			}
		})
	}
	callers.Wait()
	r.Elapsed = time.Since(start)
	return r, ctx.Err()
}

// call makes one call that was due at a given time and returns when it ended.
func (r *Report) call(
	ctx context.Context, conn *grpc.ClientConn, ask Ask, i uint64, deadline time.Duration, due time.Time,
) (end time.Time) {
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	allowed, err := ask(ctx, conn, i)
	end = time.Now()
	r.record(outcomeOf(allowed, err), err, end.Sub(due))
	return end
}

// Open is an open loop: calls are sent on a fixed schedule, whether or not earlier ones have been answered, as independent
// clients do. Nothing is left out when the server or the generator falls behind: a call is then sent late, as soon as
// may be, and its latency counts from the moment it was due. Its deadline counts from when it is sent, as Envoy's does.
type Open struct {
	Rate     float64       // calls per second; > 0
	Deadline time.Duration // of each call; 0: none
	// MaxInFlight bounds the calls without an answer; a call beyond it waits its turn. > 0
	MaxInFlight int
	Phases      []Phase
}

// Phase is a part of an open loop's schedule with a report of its own. The schedule goes on from one to the next.
type Phase struct {
	Calls int
	// Before is called when the phase's first call is due, before it is sent; nil: nothing. It should be quick, since it
	// holds up the schedule. An error ends the run.
	Before func() error
	// Connected has the phase begin once every connection is up.
	Connected bool
}

// Run runs the loop over as many connections as conns has, to the same servers, and returns one report for each phase, once
// every call has ended. Calls without a connection fail; lost ones are made again. A ctx that ends first ends the run early,
// with ctx's error.
func (o Open) Run(ctx context.Context, conns Conns, q Question) ([]*Report, error) {
	lines, err := dial(ctx, conns, q, o.Deadline)
	if err != nil {
		return nil, err
	}
	defer lines.hangUp()
	reports := make([]*Report, len(o.Phases))
	for i := range reports {
		reports[i] = new(Report)
	}
	slots := make(chan struct{}, o.MaxInFlight)
	phases := make([]sync.WaitGroup, len(o.Phases))
	var ending sync.WaitGroup
	start, n := time.Now(), uint64(0)
	for p, phase := range o.Phases {
		from := start.Add(o.dueAfter(n))
		if err := sleepUntil(ctx, from); err != nil {
			return nil, err
		}
		if err := phase.begin(ctx, lines); err != nil {
			return nil, err
		}
		r := reports[p]
		for range phase.Calls {
			i, due := n, start.Add(o.dueAfter(n))
			n++
			if time.Until(due) > 0 {
				lines.flush()
			}
			if err := sleepUntil(ctx, due); err != nil {
				return nil, err
			}
			select {
			case slots <- struct{}{}:
			default:
				lines.flush()
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			phases[p].Add(1)
			r.Lag.Record(time.Since(due))
			lines.send(i, &openCall{end: func(outcome Outcome, err error, at time.Time) {
				r.record(outcome, err, at.Sub(due))
				<-slots
				phases[p].Done()
			}})
		}
		lines.flush()
		ending.Go(func() {
			phases[p].Wait()
			r.Elapsed = time.Since(from)
		})
	}
	ending.Wait() // by their deadlines, or by ctx
	return reports, ctx.Err()
}

// begin does what comes before the phase's first call.
func (p Phase) begin(ctx context.Context, lines *lines) error {
	if p.Before != nil {
		if err := p.Before(); err != nil {
			return err
		}
	}
	if p.Connected {
		return lines.await(ctx)
	}
	return nil
}

// dueAfter returns when the n-th call is due, counted from the start.
func (o Open) dueAfter(n uint64) time.Duration {
	return time.Duration(float64(n) / o.Rate * float64(time.Second))
}

// sleepUntil returns at t, or at once when t is past. The error is ctx's.
func sleepUntil(ctx context.Context, t time.Time) error {
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
