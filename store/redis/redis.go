// Package redis is rls.Store on Redis or Valkey: one server, a master that Redis Sentinel names, or Redis Cluster. Groups are
// decided by the script of package lua: those of a batch by one run; in a cluster each by one of its own, and a group whose
// keys lie in several slots by a few.
//
// Callers do not talk to the server. They put their call into its bounded queue; a few workers drain what is there into
// one pipeline, send it, and hand the replies back (coalescing). There is no timer: an idle system pays one hand-off.
// Each caller waits no longer than its context; a call whose caller left before it was sent is never sent, and no take
// is ever sent twice unless the server said that it did not run it.
//
// A circuit breaker for each server watches the round trips, one observation each, however many calls it carried.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// The defaults of Config.
const (
	DefaultBudget      = 20 * time.Millisecond
	DefaultDialTimeout = time.Second
	DefaultWorkers     = 2
	DefaultQueue       = 4096

	DefaultProbeEvery = 10 * time.Second
)

// Config is what a Store is made of.
type Config struct {
	// URL names the server: redis://[user:password@]host[:port][/db] or unix:///path[?db=n]; the sentinels that know the
	// master: redis+sentinel://[user:password@]host[:port],…/master[/db]; or some nodes of a cluster:
	// redis+cluster://[user:password@]host[:port],… With rediss instead of redis every connection is made with TLS.
	// Anything else in it is refused; the settings below have no place there.
	URL string

	// Username is the ACL user; empty: the URL's, else the server's default user.
	Username string

	// PasswordFile holds the password; one line end is cut off. It is read for every new connection, so a password can
	// change without a restart. Empty: the URL's password, or none.
	PasswordFile string

	// SentinelUsername and SentinelPasswordFile are what Username and PasswordFile are, towards the sentinels, and
	// SentinelPassword is the password where there is no file.
	SentinelUsername     string
	SentinelPassword     string
	SentinelPasswordFile string

	// TLS is how servers are verified with rediss; nil: by the system's certificate authorities and the host that is
	// connected to. It is for sentinels, too. See TLSFiles.
	TLS *tls.Config

	// Budget is the most that a round trip may take; 0 means DefaultBudget. It must suffice for connecting too.
	Budget time.Duration

	// DialTimeout bounds an attempt to connect, which goes on after the round trip that wanted it was given up; 0 means
	// DefaultDialTimeout, or Budget when that is longer.
	DialTimeout time.Duration

	// Workers is how many round trips to one server may be under way, each on a connection of its own; 0 means
	// DefaultWorkers. More than two gain nothing on one server.
	Workers int

	// Queue is how many calls may wait for a worker of one server; 0 means DefaultQueue. A call that finds it full fails
	// at once.
	Queue int

	// ExpiryJitter has each key live on by a random time below it after it is of no more use, so that keys that were written
	// together do not expire together. Answers do not depend on it. 0: keys expire as soon as they may.
	ExpiryJitter time.Duration

	// AssumeNoeviction takes it as given that the server evicts no keys, where INFO may not be read.
	AssumeNoeviction bool

	// ProbeKey is the bucket that Probe takes from; empty means DefaultProbeKey. It must be a key that the server's ACL
	// lets this user write, so it starts with the prefix of the other keys.
	ProbeKey string

	// ProbeEvery is how often a running store probes the server; 0 means DefaultProbeEvery.
	ProbeEvery time.Duration

	// Startup says how often the server is probed, and for how long, while it has not answered since the start.
	Startup Startup

	// HeartbeatKey is where this process says that it is there, and from which it learns how many do, and whether the
	// server's memory is whole: see Observer. It needs a hash tag, and the prefix of the other keys. Empty: it does not.
	HeartbeatKey string

	// HeartbeatEvery is how often; 0 means DefaultHeartbeatEvery.
	HeartbeatEvery time.Duration

	// Breaker holds the thresholds of the circuit breaker.
	Breaker rls.BreakerConfig

	// Observer is told what happens on the way to the server; nil: nobody is.
	Observer Observer
}

// Startup is about a server that was away when the process started. Calls do not wait for it: they fail until it answers.
type Startup struct {
	Every time.Duration // until the first further probe; twice as long after each; 0 means Most
	Most  time.Duration // the longest that becomes; 0 means Config.ProbeEvery
	Bound time.Duration // after which Run returns ErrNoServer; 0: it never gives up
}

// Observer receives what happens on the way to the servers. Safe for concurrent use; never blocks.
type Observer interface {
	// RoundTrip is one pipeline sent and answered, or not: how many groups it carried, and what the breaker was told.
	RoundTrip(groups int, took time.Duration, ok bool)
	// BreakerChanged is a server's breaker, between closed, open and half-open, and why the last thing that was sent to the
	// server failed; nil: it did not.
	BreakerChanged(server, from, to string, cause error)
	// Failing is a server that begins to fail, and why; nil: it answers again. The error wraps a class of store failure and
	// is fit for a log.
	Failing(server string, cause error)
	ScriptLoaded()                  // a server did not know the script
	QueueFull()                     // a call found the queue full and failed
	Connections(open int)           // the number of open connections changed
	ConfigFault(fault *ConfigFault) // a configuration fault was found while running; nil: it is mended
	// Processes is how many processes share the store, this one included, whenever that changes. Nobody is told that it
	// cannot be learnt any more.
	Processes(n int)
	StateLost(loss Loss)                        // a server's memory is not what it was
	ServerChanged(server string, change Change) // a server is another one than it was

	// Undone is a group over several slots of a cluster that took from one and could not from another: whether what it
	// took was given back, or stays spent until the bucket refills.
	Undone(ok bool)
}

// Store decides groups on a server, or on the servers of a cluster. Safe for concurrent use. It needs Run to be running.
type Store struct {
	settings
	servers servers
	heart   *heart // nil: there is no heartbeat

	fault atomic.Pointer[ConfigFault] // found by watch, or nil

	connecting sync.Mutex
	open       int // connections to all servers; guarded by connecting
}

// servers are the servers behind a URL.
type servers interface {
	// run serves decide until ctx is done, and returns once everything has ended.
	run(ctx context.Context) error
	// decide fills in the answers to those groups that have none yet: those without an error.
	decide(ctx context.Context, groups []rls.Group, answers []rls.Answer)
	// probe asks every server for what the store needs.
	probe(ctx context.Context) error
	// do sends one command about a key to the server that keeps it, without a queue or a breaker.
	do(ctx context.Context, key string, cmd redis.Cmder) error
	// keyOn returns a key like key that a server keeps; empty when none is found.
	keyOn(n *node, key string) string
	// nodes returns the servers that decide now.
	nodes() []*node
}

var _ rls.Store = (*Store)(nil)

// New returns a store for the configured server without talking to it. The error names every fault of cfg itself.
func New(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	settings, err := cfg.settings()
	if err != nil {
		return nil, err
	}
	// What the library would print is in the errors that it returns.
	redis.SetLogger(silent{})
	s := &Store{settings: *settings}
	if s.HeartbeatKey != "" {
		s.heart = newHeart(s)
	}
	switch s.topology {
	case clustered:
		s.servers = newCluster(s)
	case failover:
		s.servers = newFailover(s)
	default:
		s.servers = newSingle(s)
	}
	return s, nil
}

// Run sends calls until ctx is done, finishes the round trips that are under way, fails what still waits, closes every
// connection and returns. It must be called exactly once. The error wraps ErrNoServer when Run returned by itself.
func (s *Store) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var watching sync.WaitGroup
	var gaveUp error
	watching.Go(func() {
		if gaveUp = s.watch(ctx); gaveUp != nil {
			end()
		}
	})
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	if s.heart == nil {
		context.AfterFunc(ctx, stop)
	} else {
		watching.Go(func() {
			defer stop() // the servers are still needed to say that this process leaves
			s.heart.run(ctx)
		})
	}
	err := s.servers.run(serving)
	watching.Wait()
	return errors.Join(gaveUp, err)
}

// Decide implements rls.Store. Beside the classes of failure, an error wraps ErrNotSent when the call certainly took
// nothing.
func (s *Store) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Budget)
		defer cancel()
	}
	answers := make([]rls.Answer, len(groups))
	unfit := s.unfit()
	for i, group := range groups {
		if answers[i].Err = group.Validate(); answers[i].Err == nil {
			answers[i].Err = unfit
		}
	}
	s.servers.decide(ctx, groups, answers)
	return answers
}

// unfit is the error on a call while a configuration fault is known; nil when there is none.
func (s *Store) unfit() error {
	if fault := s.fault.Load(); fault != nil {
		return fmt.Errorf("%w: %w: %w", rls.ErrStore, ErrNotSent, fault)
	}
	return nil
}

// connected counts connections.
func (s *Store) connected(delta int) {
	s.connecting.Lock()
	defer s.connecting.Unlock()
	s.open += delta
	s.Observer.Connections(s.open)
}

// BreakerState returns closed, open or half-open; in a cluster, the worst of its servers' states.
func (s *Store) BreakerState() string {
	worst := 0
	for _, n := range s.servers.nodes() {
		worst = max(worst, slices.Index(breakerStates[:], n.breaker.State()))
	}
	return breakerStates[worst]
}

// breakerStates are the states of a breaker, the best first.
var breakerStates = [...]string{"closed", "half-open", "open"}

// The codes of Degraded.
const (
	DegradedDown    = "redis_down"   // a server does not answer, or refuses everything
	DegradedBreaker = "breaker_open" // calls are not sent to a server: its breaker is open or half-open
	DegradedConfig  = "redis_config" // calls are not sent: the server's configuration is unfit
)

// Degraded returns the codes of what is wrong with the store now; none when it works.
func (s *Store) Degraded() []string {
	var codes []string
	nodes := s.servers.nodes()
	if slices.ContainsFunc(nodes, func(n *node) bool { return n.down.Load() }) {
		codes = append(codes, DegradedDown)
	}
	if slices.ContainsFunc(nodes, func(n *node) bool { return n.breaker.Probing() }) {
		codes = append(codes, DegradedBreaker)
	}
	if s.fault.Load() != nil {
		codes = append(codes, DegradedConfig)
	}
	return codes
}

// single is one server.
type single struct {
	*node
	store *Store
}

func newSingle(s *Store) *single {
	addr := s.socket
	if addr == "" {
		addr = s.addresses[0]
	}
	return &single{node: s.newNode(addr, nil), store: s}
}

func (s *single) nodes() []*node { return []*node{s.node} }

func (s *single) keyOn(_ *node, key string) string { return key }

func (s *single) probe(ctx context.Context) error { return s.store.probeNode(ctx, s.node, s.ProbeKey) }

func (s *single) decide(ctx context.Context, groups []rls.Group, answers []rls.Answer) {
	c := newCall(ctx, len(groups))
	for i := range groups {
		if answers[i].Err == nil {
			c.put(i, groups[i])
		}
	}
	if c.takes == 0 {
		return
	}
	err := s.send(ctx, c)
	for i := range answers {
		if answers[i].Err == nil {
			answers[i] = c.decisions[i].answer(err)
		}
	}
}

// ErrNotSent is wrapped by the error on a call that was not sent, so that it certainly took nothing.
var ErrNotSent = errors.New("not sent")

// ErrNoServer is wrapped by Run's error when no server answered within Startup.Bound.
var ErrNoServer = errors.New("no server answered since the start")

var (
	errOpen      = fmt.Errorf("%w: %w", rls.ErrCircuitOpen, ErrNotSent)
	errQueueFull = fmt.Errorf("%w: %w: the queue to the server is full", rls.ErrUnavailable, ErrNotSent)
	errSuspect   = fmt.Errorf("%w: %w: the server failed the last time", rls.ErrUnavailable, ErrNotSent)
	errNoTurn    = fmt.Errorf("%w: %w: no worker was free in time", rls.ErrTimeout, ErrNotSent)
	errLate      = fmt.Errorf("%w: sent, and not answered in time", rls.ErrTimeout)
	errStopped   = fmt.Errorf("%w: %w: the store is stopped", rls.ErrUnavailable, ErrNotSent)
)

// nobody is the Observer that is told nothing.
type nobody struct{}

func (nobody) RoundTrip(int, time.Duration, bool)     {}
func (nobody) BreakerChanged(_, _, _ string, _ error) {}
func (nobody) Failing(string, error)                  {}
func (nobody) ScriptLoaded()                          {}
func (nobody) QueueFull()                             {}
func (nobody) Connections(int)                        {}
func (nobody) ConfigFault(*ConfigFault)               {}
func (nobody) Undone(bool)                            {}
func (nobody) Processes(int)                          {}
func (nobody) StateLost(Loss)                         {}
func (nobody) ServerChanged(string, Change)           {}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
