// Package descriptors holds the policies: parse, validate, compile, match, derive keys. Pure: no I/O, no clock.
//
// Parse turns files into one immutable Set or reports every problem in them at once. A Set is safe for concurrent use.
package descriptors

import "github.com/sentinel-rls/sentinel-rls/algorithms"

// DefaultEndpoint is the endpoint id that, when configured, answers for unknown endpoint ids.
const DefaultEndpoint = "default"

// IdentityMode says how the caller of an endpoint is identified. The zero value is TenantJWT, the stricter one.
type IdentityMode uint8

// The identity modes.
const (
	TenantJWT IdentityMode = iota
	Anonymous
)

// FailMode says what happens when the store cannot answer. The zero value is FailClosed, the safe one.
type FailMode uint8

// The fail modes.
const (
	FailClosed FailMode = iota
	FailOpen
)

// Mode says whether a denial is enforced. The zero value is Enforce.
type Mode uint8

// The modes.
const (
	Enforce Mode = iota
	Shadow
)

// Verdict says what a policy does before any limit is asked. The zero value is Limited.
type Verdict uint8

// The verdicts of a policy.
const (
	Limited   Verdict = iota // the limits decide
	Unlimited                // always admitted, no store call
	Blocked                  // always refused, no store call
)

// Scope says whose bucket a limit uses. The zero value is invalid.
type Scope uint8

// The scopes.
const (
	ScopeTenant Scope = iota + 1
	ScopeUser
	ScopeClientIP
	ScopeCookie
	ScopeGlobal
)

// Bucket holds the numbers of a token bucket: whole tokens and the refill rate.
type Bucket struct {
	Capacity int64
	Refill   algorithms.Rate
}

// Emergency is the cap under which a fail-open policy is served while the store cannot answer.
type Emergency struct {
	Bucket
	PerKey *Bucket // each caller's share; nil: none

	// Fleet makes the numbers those of all processes together, each of which has an equal part. Else each has all.
	Fleet bool
	// MinProcesses is how many processes there are at least, with Fleet; a process that never learnt of more counts on it.
	MinProcesses int64
}

// Policy is what an operator wrote for one endpoint, or its replacement for one tenant. Its fields are never modified.
type Policy struct {
	Domain         string
	Endpoint       string
	Version        int64
	Tenant         string // the tenant that this replacement is for; empty: the endpoint's own policy
	Identity       IdentityMode
	FailMode       FailMode
	Emergency      Emergency // zero with FailClosed
	OwnEmergency   bool      // false: a replacement that shares the endpoint's emergency bucket
	Mode           Mode
	Count          bool // false: ext_authz only identifies
	RequiredScopes []string
	Verdict        Verdict
	Limits         []Limit // not empty when Limited, in file order
	File           string
	Line           int
	Index          int // dense over Set.Policies, for tables beside the Set

	tenants      map[string]*Policy
	replacements []*Policy // tenants in file order
}

// Limit is one bucket of a policy.
type Limit struct {
	Name        string // empty for the one that owns the bare key
	Scope       Scope
	Rule        algorithms.Rule
	MaxCost     int64 // the largest cost that one descriptor may ask
	ChargeAfter bool  // charge: after
	Refunds     bool
	File        string
	Line        int

	key keyParts
}
