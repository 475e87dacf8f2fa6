package rls

import (
	"context"
	"errors"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// Take is one operation on one bucket.
type Take struct {
	Key  string
	Rule algorithms.Rule
	Op   algorithms.Op
	Cost int64 // tokens or hits; > 0
	// Window, for a refund to a window algorithm, is the start of the window that the cost was taken in; 0 means the
	// current one. It is compared, never used as a clock.
	Window algorithms.Micros
	// Limit names the limit that the bucket belongs to, for a store that has buckets share when it is full. It comes from
	// configuration.
	Limit string
	// Refunds marks a bucket that someone may give back to, so that a denial does not stay true by itself.
	Refunds bool
}

// Group is decided all or nothing: when one of its takes, peeks or charges does not fit, no take of the group spends and
// no refund is paid. Charges are recorded whatever else happens, since they were already used, and so are the takes of
// counting windows that do not fit. Keys are distinct.
type Group []Take

// Answer is the outcome of one group.
type Answer struct {
	Now     algorithms.Micros  // the store's clock when it decided
	Before  []algorithms.State // each bucket's stored state before the call, in the group's order
	Allowed bool               // every take, peek and charge fitted
	Cached  bool               // answered from memory by a DenyCache
	Healed  int                // unreadable values that this call overwrote
	Err     error              // not nil: the store gave no answer, the other fields are zero. See ErrTimeout and its kin

	// Clocks are the clocks of the servers that keep the buckets, in the group's order, when several decided; nil: Now.
	Clocks []algorithms.Micros
}

// Clock returns the time at which the i-th bucket was decided.
func (a *Answer) Clock(i int) algorithms.Micros {
	if a.Clocks == nil {
		return a.Now
	}
	return a.Clocks[i]
}

// Store decides groups of takes.
//
// Decide returns one answer per group, in order. It is safe for concurrent use, returns by ctx's deadline, decides each
// group atomically and never repeats a take whose outcome it does not know. Groups of one call that share a key are
// decided in their order, unless the server refuses keys of some. An Answer.Err wraps exactly one of
// ErrTimeout, ErrUnavailable, ErrStore or ErrCircuitOpen. Groups are not kept after Decide returns.
type Store interface {
	Decide(ctx context.Context, groups []Group) []Answer
}

// The classes of a store failure (spec: REDIS_TIMEOUT, REDIS_UNAVAILABLE, REDIS_ERROR) and the breaker's refusal.
var (
	ErrTimeout     = errors.New("store timeout")        // no answer within the budget; the outcome is unknown
	ErrUnavailable = errors.New("store unavailable")    // refused, reset, loading, read-only, cluster down, queue full
	ErrStore       = errors.New("store error")          // script, ACL, CROSSSLOT and whatever else the server refuses
	ErrCircuitOpen = errors.New("circuit breaker open") // not sent: the breaker is open, or half-open and probing
)

// Reason says why a request was answered as it was; the text is what users meet in logs, metrics and headers.
type Reason string

// Decision reasons: the label decision_reason takes these values and no others.
const (
	Allowed             Reason = "ALLOWED"
	RateLimited         Reason = "RATE_LIMITED"
	EmergencyLocalLimit Reason = "EMERGENCY_LOCAL_LIMIT"
	CircuitOpen         Reason = "CIRCUIT_OPEN"
	FailClosed          Reason = "FAIL_CLOSED"
)

// Reasons that are not decisions: the request never reached a limit.
const (
	Unauthenticated   Reason = "UNAUTHENTICATED"
	InsufficientScope Reason = "INSUFFICIENT_SCOPE"
	// IdentityUnavailable: the credential could not be checked now (503); never taken for a bad one.
	IdentityUnavailable Reason = "IDENTITY_UNAVAILABLE"
	UnknownEndpoint     Reason = "UNKNOWN_ENDPOINT"
	UnknownDomain       Reason = "UNKNOWN_DOMAIN"
	InvalidRequest      Reason = "INVALID_REQUEST"
)

// Class is the class of a store failure as logs and the label class show it; empty when the store did not fail.
type Class string

// The classes.
const (
	ClassTimeout     Class = "REDIS_TIMEOUT"
	ClassUnavailable Class = "REDIS_UNAVAILABLE"
	ClassError       Class = "REDIS_ERROR"
)

// Source says what decided.
type Source string

// The sources.
const (
	SourceNone      Source = "none"
	SourceStore     Source = "store"
	SourceEmergency Source = "emergency"
	SourceDenyCache Source = "deny_cache"
)

// Service is the gRPC service a request came through; it is the label service.
type Service string

// The services.
const (
	ServiceRateLimit Service = "ratelimit"
	ServiceAuthz     Service = "ext_authz"
)

// Request is one ShouldRateLimit question. Everything in it is the caller's word.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	Hits        uint64 // request-level hits_addend; 0 means 1
}

// Descriptor is one descriptor of a Request.
type Descriptor struct {
	Entries  []Entry
	Hits     uint64 // used when HasHits; 0 is a peek
	HasHits  bool
	Negative bool // is_negative_hits: a refund
	Override bool // the caller sent a limit of its own
	Limit    LimitOverride
}

// Entry is one key and value of a Descriptor.
type Entry = descriptors.Entry

// Status is the answer to one descriptor, or to the limits of one Check.
type Status struct {
	OverLimit bool
	Limit     *Limit        // the limit that speaks for the descriptor; nil when none applied
	Remaining int64         // see algorithms.Verdict
	Reset     time.Duration // until as if untouched; < 0: never. On denial at least 1 s once it is shown
}

// Limit describes a limit to the caller.
type Limit struct {
	Name string          // "<endpoint id>" or "<endpoint id>:<limit name>", visible ASCII; drop-in: any text, or none
	Rule algorithms.Rule // capacity or limit, window

	// A drop-in limit is shown in the words of its file. No unit: as Rule has it.
	PerUnit    int64
	Unit       Unit
	Multiplier int64
}

// Result is the answer to one request.
type Result struct {
	Allowed    bool
	Reason     Reason
	Class      Class
	Source     Source
	DecisionID string // 32 hex characters; empty when no policy was reached
	Statuses   []Status
	// RetryAfter is the exact wait after which the same request fits, the largest of the denying limits'; < 0: unknown or
	// never; 0 when allowed.
	RetryAfter time.Duration
	Policy     string // the policy and limit that denied, else the policy that was asked: as Limit.Name
	Document   bool   // the refusal carries the error document (native domains)

	// What drop-in domains answer. Their statuses may be over limit in an admission (quota_mode, SHADOW_MODE).
	Plain    bool           // no header or body of ours: the answer is as envoyproxy/ratelimit gives it
	Headers  []Header       // response headers
	Metadata map[string]any // dynamic metadata, its values as encoding/json has them; nil: none
}
