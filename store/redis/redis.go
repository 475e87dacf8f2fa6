// Package redis is rls.Store on a Redis or Valkey server: every group is one run of the script of package lua.
//
// Callers do not talk to the server. They put their call into a bounded queue; a few workers drain what is there into
// one pipeline, send it, and hand the replies back (coalescing). There is no timer: an idle system pays one hand-off.
// Each caller waits no longer than its context; a call whose caller left before it was sent is never sent, and no take
// is ever sent twice unless the server said that it did not run it.
//
// A circuit breaker watches the round trips, one observation each, however many calls it carried.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// The defaults of Config.
const (
	DefaultBudget  = 20 * time.Millisecond
	DefaultWorkers = 2
	DefaultQueue   = 4096

	DefaultProbeEvery = 10 * time.Second
)

// Config is what a Store is made of.
type Config struct {
	// URL names the server: redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:///path[?db=n].
	// Anything else in it is refused; the settings below have no place there.
	URL string

	// Username is the ACL user; empty: the URL's, else the server's default user.
	Username string

	// PasswordFile holds the password; one line end is cut off. It is read for every new connection, so a password can
	// change without a restart. Empty: the URL's password, or none.
	PasswordFile string

	// TLS is how a rediss:// server is verified; nil: by the system's certificate authorities and the URL's host.
	TLS *tls.Config

	// Budget is the most that a round trip may take; 0 means DefaultBudget. It must suffice for connecting too.
	Budget time.Duration

	// Workers is how many round trips may be under way, each on a connection of its own; 0 means DefaultWorkers. More
	// than two gain nothing on one server.
	Workers int

	// Queue is how many calls may wait for a worker; 0 means DefaultQueue. A call that finds it full fails at once.
	Queue int

	// AssumeNoeviction takes it as given that the server evicts no keys, where INFO may not be read.
	AssumeNoeviction bool

	// ProbeKey is the bucket that Probe takes from; empty means DefaultProbeKey. It must be a key that the server's ACL
	// lets this user write, so it starts with the prefix of the other keys.
	ProbeKey string

	// ProbeEvery is how often a running store probes the server; 0 means DefaultProbeEvery.
	ProbeEvery time.Duration

	// Breaker holds the thresholds of the circuit breaker.
	Breaker rls.BreakerConfig

	// Observer is told what happens on the way to the server; nil: nobody is.
	Observer Observer
}

// Observer receives what happens on the way to the server. Safe for concurrent use; never blocks.
type Observer interface {
	// RoundTrip is one pipeline sent and answered, or not: how many groups it carried, and what the breaker was told.
	RoundTrip(groups int, took time.Duration, ok bool)
	ScriptLoaded()                  // the server did not know the script
	QueueFull()                     // a call found the queue full and failed
	Connections(open int)           // the number of open connections changed
	ConfigFault(fault *ConfigFault) // a configuration fault was found while running; nil: it is mended
}

// Store decides groups on a server. Safe for concurrent use. It needs Run to be running.
type Store struct {
	cfg      Config
	client   redis.UniversalClient
	dialer   *dialer
	breaker  *rls.Breaker
	encoder  *lua.Encoder
	observer Observer

	queue   chan *call
	stopped chan struct{} // closed when no worker will take from the queue any more

	fault atomic.Pointer[ConfigFault] // found by watch, or nil
	down  atomic.Bool                 // the last thing sent to the server failed
}

var _ rls.Store = (*Store)(nil)

// New returns a store for the configured server without talking to it. The error names every fault of cfg itself.
func New(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	// What the library would print is in the errors that it returns.
	redis.SetLogger(silent{})
	d := newDialer(options.TLSConfig, cfg.Observer.Connections)
	options.Dialer = d.dial
	return &Store{
		cfg:      cfg,
		client:   redis.NewClient(options),
		dialer:   d,
		breaker:  rls.NewBreaker(cfg.Breaker),
		encoder:  lua.NewEncoder(),
		observer: cfg.Observer,
		queue:    make(chan *call, cfg.Queue),
		stopped:  make(chan struct{}),
	}, nil
}

// Run sends calls until ctx is done, finishes the round trips that are under way, fails what still waits, closes every
// connection and returns. It must be called exactly once.
func (s *Store) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for range s.cfg.Workers {
		running.Go(func() { s.work(ctx.Done()) })
	}
	running.Go(func() { s.watch(ctx) })
	running.Wait()
	close(s.stopped)
	err := s.client.Close()
	s.dialer.close()
	return err
}

// Decide implements rls.Store. Beside the classes of failure, an error wraps ErrNotSent when the call certainly took
// nothing.
func (s *Store) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Budget)
		defer cancel()
	}
	answers := make([]rls.Answer, len(groups))
	c := s.newCall(ctx, groups, answers)
	if c.takes == 0 {
		return answers
	}
	err := s.send(ctx, c)
	for i := range c.commands {
		if answers[i].Err == nil {
			answers[i] = c.commands[i].answer(err)
		}
	}
	return answers
}

// send gets c done, or says why it is not.
func (s *Store) send(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w: %w", rls.ErrTimeout, ErrNotSent, err)
	}
	if fault := s.fault.Load(); fault != nil {
		return fmt.Errorf("%w: %w: %w", rls.ErrStore, ErrNotSent, fault)
	}
	if !s.breaker.Ready() {
		return errOpen
	}
	select {
	case s.queue <- c:
	default:
		s.observer.QueueFull()
		return errQueueFull
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return c.leave(errLate, errNoTurn)
	case <-s.stopped:
		return c.leave(errStopped, errStopped)
	}
}

// BreakerState returns closed, open or half-open.
func (s *Store) BreakerState() string { return s.breaker.State() }

// The codes of Degraded.
const (
	DegradedDown    = "redis_down"   // the server does not answer, or refuses everything
	DegradedBreaker = "breaker_open" // calls are not sent: the breaker is open or half-open
	DegradedConfig  = "redis_config" // calls are not sent: the server's configuration is unfit
)

// Degraded returns the codes of what is wrong with the store now; none when it works.
func (s *Store) Degraded() []string {
	var codes []string
	if s.down.Load() {
		codes = append(codes, DegradedDown)
	}
	if s.breaker.Probing() {
		codes = append(codes, DegradedBreaker)
	}
	if s.fault.Load() != nil {
		codes = append(codes, DegradedConfig)
	}
	return codes
}

// ErrNotSent is wrapped by the error on a call that was not sent, so that it certainly took nothing.
var ErrNotSent = errors.New("not sent")

var (
	errOpen      = fmt.Errorf("%w: %w", rls.ErrCircuitOpen, ErrNotSent)
	errQueueFull = fmt.Errorf("%w: %w: the queue to the server is full", rls.ErrUnavailable, ErrNotSent)
	errNoTurn    = fmt.Errorf("%w: %w: no worker was free in time", rls.ErrTimeout, ErrNotSent)
	errLate      = fmt.Errorf("%w: sent, and not answered in time", rls.ErrTimeout)
	errStopped   = fmt.Errorf("%w: %w: the store is stopped", rls.ErrUnavailable, ErrNotSent)
)

// nobody is the Observer that is told nothing.
type nobody struct{}

func (nobody) RoundTrip(int, time.Duration, bool) {}
func (nobody) ScriptLoaded()                      {}
func (nobody) QueueFull()                         {}
func (nobody) Connections(int)                    {}
func (nobody) ConfigFault(*ConfigFault)           {}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
