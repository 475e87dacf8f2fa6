package rls

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// ErrInvalidRequest means that a request names no domain or holds no descriptor. Envoy never sends one.
var ErrInvalidRequest = errors.New("invalid request")

// Config is what an Engine is made of. Zero durations, names and bounds take the defaults named at each field.
type Config struct {
	Store      Store      // required
	Identifier Identifier // required
	Recorder   Recorder   // required

	// BreakerState returns the store's breaker state for the denial log; nil: the store has none.
	BreakerState func() string

	StoreBudget time.Duration // the most one store call may take; 20 ms
	Reserve     time.Duration // kept back from the caller's deadline for the way back; 10 ms, or half the time left when that is less
	NoDeadline  time.Duration // the deadline of a call that came without one; 200 ms
	MaxInFlight int           // calls to the store that may be under way; 512. More are answered as if it were unavailable

	AuthzDomain       string // the domain that Check looks in; empty: every native domain
	OKUnknownEndpoint bool   // unknown_endpoint: ok. False: over_limit
	DenyUnknownDomain bool   // unknown_domain: over_limit. False: ok

	DescriptorTokens DescriptorTokens // what a token in a descriptor means; zero: nothing

	Names  Names  // zero fields: DefaultNames
	Bounds Bounds // zero fields: DefaultBounds

	// AfterLoss is how long after a StateLost an admission of a fail-open policy needs its emergency cap beside the store;
	// 0: not at all.
	AfterLoss time.Duration

	DenyCache *DenyCacheConfig // nil: every denial is the store's

	DropIn DropInConfig // domains in the language of envoyproxy/ratelimit
}

// DescriptorTokens says what the descriptor entry Names.Authorization means at endpoints that know their callers by token.
type DescriptorTokens uint8

// What it may mean.
const (
	TokensIgnored  DescriptorTokens = iota // nothing: Envoy's word counts for who asks
	TokensVerified                         // where it stands it is verified, and says who asks
	TokensRequired                         // it must stand there
)

// Names are the descriptor entry keys that mean something in native domains.
type Names struct {
	Tenant     string   // tenant
	EndpointID string   // endpoint_id
	User       string   // user
	Cookie     string   // cookie
	Address    []string // remote_address, masked_remote_address; the first that is present counts

	Authorization string // authorization; read only where Config.DescriptorTokens says so
}

// DefaultNames returns the names of design and documentation.
func DefaultNames() Names {
	return Names{
		Tenant: "tenant", EndpointID: "endpoint_id", User: "user", Cookie: "cookie",
		Address: []string{"remote_address", "masked_remote_address"}, Authorization: "authorization",
	}
}

// Bounds cap what a caller may send in one request. A request beyond one of them is refused and counted.
type Bounds struct {
	Descriptors int // 64
	Entries     int // per descriptor; 32
	KeyBytes    int // 256
	ValueBytes  int // 8192
}

// DefaultBounds returns the bounds named at the fields of Bounds.
func DefaultBounds() Bounds {
	return Bounds{Descriptors: 64, Entries: 32, KeyBytes: 256, ValueBytes: 8192}
}

// The guard's defaults.
const (
	DefaultStoreBudget = 20 * time.Millisecond
	DefaultReserve     = 10 * time.Millisecond
	DefaultNoDeadline  = 200 * time.Millisecond
	DefaultMaxInFlight = 512
)

// Engine decides requests. Safe for concurrent use.
type Engine struct {
	cfg    Config
	start  time.Time // the monotonic clock of the emergency caps counts from here
	store  Store
	denied *DenyCache // before the store; nil: none
	active atomic.Pointer[snapshot]

	ruleStats *ruleStats
	over      *overCache // nil: none

	fleet fleet

	guardedUntil atomic.Int64 // since start, in nanoseconds: see Config.AfterLoss

	loading     sync.Mutex  // held by Use and SetProcesses
	bucketsMade uint64      // names emergency buckets for their lock order; guarded by loading
	retired     retiredCaps // guarded by loading
}

// New returns an engine without policies: until Use it knows no domain.
func New(cfg Config) (*Engine, error) {
	if cfg.Store == nil || cfg.Identifier == nil || cfg.Recorder == nil {
		return nil, errors.New("engine: store, identifier and recorder are required")
	}
	cfg.StoreBudget = orDefault(cfg.StoreBudget, DefaultStoreBudget)
	cfg.Reserve = orDefault(cfg.Reserve, DefaultReserve)
	cfg.NoDeadline = orDefault(cfg.NoDeadline, DefaultNoDeadline)
	cfg.MaxInFlight = orDefault(cfg.MaxInFlight, DefaultMaxInFlight)
	names, bounds := DefaultNames(), DefaultBounds()
	cfg.Names.Tenant = orDefault(cfg.Names.Tenant, names.Tenant)
	cfg.Names.EndpointID = orDefault(cfg.Names.EndpointID, names.EndpointID)
	cfg.Names.User = orDefault(cfg.Names.User, names.User)
	cfg.Names.Cookie = orDefault(cfg.Names.Cookie, names.Cookie)
	cfg.Names.Authorization = orDefault(cfg.Names.Authorization, names.Authorization)
	if cfg.Names.Address == nil {
		cfg.Names.Address = names.Address
	}
	cfg.Bounds.Descriptors = orDefault(cfg.Bounds.Descriptors, bounds.Descriptors)
	cfg.Bounds.Entries = orDefault(cfg.Bounds.Entries, bounds.Entries)
	cfg.Bounds.KeyBytes = orDefault(cfg.Bounds.KeyBytes, bounds.KeyBytes)
	cfg.Bounds.ValueBytes = orDefault(cfg.Bounds.ValueBytes, bounds.ValueBytes)

	cfg.DropIn = cfg.DropIn.withDefaults()
	if err := cfg.DropIn.check(); err != nil {
		return nil, err
	}

	cfg.Store = &capped{store: cfg.Store, most: int64(cfg.MaxInFlight)}
	e := &Engine{cfg: cfg, start: time.Now(), store: cfg.Store, retired: make(retiredCaps)}
	e.ruleStats = newRuleStats(cfg.DropIn.Recorder, cfg.DropIn.MaxStats)
	if cfg.DropIn.LocalCacheBytes > 0 {
		e.over = newOverCache(cfg.DropIn.LocalCacheBytes)
	}
	if cfg.DenyCache != nil {
		e.denied = NewDenyCache(cfg.Store, *cfg.DenyCache)
		e.store = e.denied
	}
	e.active.Store(&snapshot{set: new(descriptors.Set)})
	return e, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// snapshot is one policy set with what the engine keeps beside it. Immutable; a request loads it once.
type snapshot struct {
	set      *descriptors.Set
	policies []policyState // by descriptors.Policy.Index
	buckets  map[bucketID]*emergencyBucket

	rules     []ruleState // by descriptors.DropInRule.Index
	dropIns   map[string]EndpointRecorder
	overrides map[string]RuleRecorder // of limits in requests, by domain
	loaded    bool                    // false: before the first Use

	caps []endpointCaps
}

// endpointCaps are the emergency caps under which one endpoint id is recorded: the endpoint's own and those of tenants
// that have one of their own.
type endpointCaps struct {
	recorder EndpointRecorder
	caps     []descriptors.Emergency
}

// addCaps notes the cap of a policy under its endpoint, whose own policy stands before those of its tenants.
func (s *snapshot) addCaps(p *descriptors.Policy, rec EndpointRecorder) {
	if p.Tenant == "" {
		s.caps = append(s.caps, endpointCaps{recorder: rec})
	}
	if p.FailMode == descriptors.FailOpen && (p.Tenant == "" || p.OwnEmergency) {
		last := &s.caps[len(s.caps)-1]
		last.caps = append(last.caps, p.Emergency)
	}
}

// stateBounds tells the recorders what this process may admit at each endpoint; zeros with fail_closed.
func (s *snapshot) stateBounds(f *fleet) {
	for _, endpoint := range s.caps {
		var capacity, refill float64
		for _, c := range endpoint.caps {
			parts := 1.0
			if c.Fleet {
				parts = float64(max(c.MinProcesses, f.processes.Load()))
			}
			capacity += float64(c.Capacity) / parts
			refill += perSecond(c.Refill) / parts
		}
		endpoint.recorder.EmergencyBound(capacity, refill)
	}
}

// policyState is what the engine keeps for one policy.
type policyState struct {
	limits    []Limit          // as shown to callers, by index in Policy.Limits
	emergency *emergencyBucket // nil with fail_closed
	recorder  EndpointRecorder
}

// Use makes set the active one for every request that arrives from now on. Emergency caps of policies that stay, or come
// back within RetiredCapsAge, keep what was spent of them. The error names a policy whose emergency cap no rule can hold.
func (e *Engine) Use(set *descriptors.Set) error {
	e.loading.Lock()
	defer e.loading.Unlock()
	before := e.active.Load().buckets
	next := &snapshot{
		set: set, policies: make([]policyState, len(set.Policies())), buckets: make(map[bucketID]*emergencyBucket), loaded: true,
	}
	if err := e.useDropIns(next, before); err != nil {
		return err
	}
	for _, p := range set.Policies() {
		bucket, err := e.emergencyFor(p, next.buckets, before)
		if err != nil {
			return fmt.Errorf("%s:%d: emergency: %w", p.File, p.Line, err)
		}
		ps := policyState{emergency: bucket, recorder: e.cfg.Recorder.Endpoint(p.Endpoint), limits: make([]Limit, len(p.Limits))}
		for i := range p.Limits {
			ps.limits[i] = Limit{Name: limitName(p, &p.Limits[i]), Rule: p.Limits[i].Rule}
		}
		next.addCaps(p, ps.recorder)
		next.policies[p.Index] = ps
	}
	next.stateBounds(&e.fleet)
	e.active.Store(next)
	e.retired.change(before, next.buckets, e.sinceStart())
	if e.denied != nil {
		e.denied.Drop()
	}
	return nil
}

// SetProcesses tells the engine how many processes share the store, this one included. It counts on that number, for
// emergency caps that are the whole fleet's, until it is told another one: when the store goes away, the last one stays.
func (e *Engine) SetProcesses(n int) {
	e.loading.Lock()
	defer e.loading.Unlock()
	if e.fleet.processes.Swap(int64(n)) != int64(n) {
		e.active.Load().stateBounds(&e.fleet)
	}
}

// StateLost tells the engine that the store forgot what was spent: see Config.AfterLoss.
func (e *Engine) StateLost() {
	if e.cfg.AfterLoss > 0 {
		e.guardedUntil.Store(int64(e.sinceStart() + e.cfg.AfterLoss))
	}
	if e.denied != nil {
		e.denied.Drop()
	}
}

func (e *Engine) guarded() bool { return int64(e.sinceStart()) < e.guardedUntil.Load() }

// bucketID names an emergency bucket across policy sets.
type bucketID struct{ domain, endpoint, tenant string }

// emergencyFor returns the cap of p, nil with fail_closed. A replacement without a cap of its own shares the endpoint's,
// whose policy stands before it in the set.
func (e *Engine) emergencyFor(p *descriptors.Policy, made, before map[bucketID]*emergencyBucket) (*emergencyBucket, error) {
	if p.FailMode != descriptors.FailOpen {
		return nil, nil
	}
	id := bucketID{p.Domain, p.Endpoint, p.Tenant}
	if p.Tenant != "" && !p.OwnEmergency {
		id.tenant = ""
		return made[id], nil
	}
	return e.emergencyBucketFor(id, p.Emergency, made, before)
}

// emergencyBucketFor returns the bucket of that id with what was spent of the one before it.
func (e *Engine) emergencyBucketFor(id bucketID, limits descriptors.Emergency, made, before map[bucketID]*emergencyBucket) (*emergencyBucket, error) {
	e.bucketsMade++
	b, err := newEmergencyBucket(e.bucketsMade, limits, &e.fleet)
	if err != nil {
		return nil, err
	}
	old := before[id]
	if old == nil {
		old = e.retired[id].emergencyBucket
	}
	if old != nil {
		if old.same(b) {
			b = old
		} else {
			b.inherit(old)
		}
	}
	made[id] = b
	return b, nil
}

func limitName(p *descriptors.Policy, l *descriptors.Limit) string {
	if l.Name == "" {
		return p.Endpoint
	}
	return p.Endpoint + ":" + l.Name
}

func perSecond(r algorithms.Rate) float64 {
	if r.Tokens == 0 {
		return 0
	}
	return float64(r.Tokens) / float64(r.Seconds)
}

// monotonic returns the clock of the emergency caps.
func (e *Engine) monotonic() algorithms.Micros {
	return algorithms.Micros(e.sinceStart().Microseconds())
}

func (e *Engine) sinceStart() time.Duration { return time.Since(e.start) }
