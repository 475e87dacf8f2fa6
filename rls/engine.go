package rls

import (
	"context"
	"time"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// Config is what an Engine is made of. Zero durations and bounds take the defaults named at each field.
type Config struct {
	Store      Store      // required
	Identifier Identifier // required
	Recorder   Recorder   // required

	// BreakerState returns the store's breaker state for the denial log; nil: the store has none.
	BreakerState func() string

	StoreBudget time.Duration // the most one store call may take; 20 ms
	Reserve     time.Duration // kept back from the caller's deadline for the way back; 4 ms, or half the time left when that is less
	NoDeadline  time.Duration // the deadline of a call that came without one; 200 ms

	AuthzDomain       string // the domain that Check looks in; empty: every native domain
	OKUnknownEndpoint bool   // unknown_endpoint: ok. False: over_limit
	DenyUnknownDomain bool   // unknown_domain: over_limit. False: ok

	Names  Names  // zero: DefaultNames
	Bounds Bounds // zero fields: DefaultBounds
}

// Names are the descriptor entry keys that mean something in native domains.
type Names struct {
	Tenant     string   // tenant
	EndpointID string   // endpoint_id
	User       string   // user
	Cookie     string   // cookie
	Address    []string // remote_address, masked_remote_address
}

// Bounds cap what a caller may send in one request. A request beyond one of them is refused and counted.
type Bounds struct {
	Descriptors int // 64
	Entries     int // per descriptor; 32
	KeyBytes    int // 256
	ValueBytes  int // 8192
}

// Engine decides requests. Safe for concurrent use.
type Engine struct {
	cfg Config
}

// New returns an engine without policies: until Use it knows no domain.
func New(cfg Config) (*Engine, error) { return &Engine{cfg: cfg}, nil }

// Use makes set the active one for every request that arrives from now on.
func (e *Engine) Use(set *descriptors.Set) {}

// Decide answers one ShouldRateLimit question. The error, which wraps ErrInvalidRequest, means that the request itself
// is malformed; a store failure is a Result.
func (e *Engine) Decide(ctx context.Context, r Request) (Result, error) { return Result{}, nil }

// Check answers one ext_authz question.
func (e *Engine) Check(ctx context.Context, r CheckRequest) CheckResult { return CheckResult{} }
