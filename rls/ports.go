package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

// Identifier verifies credentials. Safe for concurrent use; never waits.
type Identifier interface {
	// Tenant verifies a bearer token. Errors wrap one of identity's.
	Tenant(c identity.Credentials) (identity.Identity, error)
	// Anonymous reads cookie and client address, and mints a cookie when there is no valid one. It never fails.
	Anonymous(c identity.Credentials) identity.Identity
	// Cookie verifies one cookie value and returns its client id.
	Cookie(value string) (clientID string, ok bool)
	// Address returns the key of an address or CIDR as Envoy's remote_address and masked_remote_address entries carry it.
	Address(text string) (key string, ok bool)
}

// Recorder receives what happened. Safe for concurrent use; never blocks. Label values come from configuration only.
type Recorder interface {
	// Endpoint returns the recorder of one endpoint id. Called while policies load, never per request.
	Endpoint(endpointID string) EndpointRecorder
	StoreFailure(class Class)        // one per request whose store call failed
	UnknownEndpoint(service Service) // known native domain, endpoint missing or unknown, or a Check without policy
	UnknownDomain(service Service)   // a domain that no policy names
	Unauthenticated(r Refused)       // a missing credential, or one that was refused or could not be checked
	Ignored(what Ignored, n int)     // parts of a request that a native domain does not honour
	RequestRefused(bound Bound)      // a request beyond one of the caps
	Healed(n int)                    // unreadable stored values that were overwritten
	ClockBehind()                    // the store's clock stands before a stored time
	DenyCacheHit()                   // a group was denied from memory
	Denied(d Denial)                 // each denial, for the log
}

// EndpointRecorder receives what happened at one endpoint.
type EndpointRecorder interface {
	Decision(reason Reason, latency time.Duration)
	EmergencyAdmission()                              // an admission by the emergency limiter
	EmergencySpent(cost int64)                        // what such an admission cost, in cost units; 0 for a peek
	ShadowDenial()                                    // a shadow policy would have denied
	CostRefused()                                     // a descriptor asked for more than a limit's max_cost
	EmergencyBound(capacity, refillPerSecond float64) // this process's part of the caps, whenever it changes
}

// Ignored names a part of a request that a native domain does not honour; it is a label value.
type Ignored string

// The ignored parts.
const (
	IgnoredEntry    Ignored = "entry"    // a descriptor entry with a key of no meaning
	IgnoredOverride Ignored = "override" // a limit override
	IgnoredRefund   Ignored = "refund"   // is_negative_hits at a limit without refunds
	IgnoredEmpty    Ignored = "empty"    // a descriptor without entries
)

// Bound names a cap on what a caller may send; it is a label value.
type Bound string

// The bounds.
const (
	BoundDescriptors Bound = "descriptors"
	BoundEntries     Bound = "entries"
	BoundKey         Bound = "key"
	BoundValue       Bound = "value"
	BoundEmpty       Bound = "empty" // no domain or no descriptor
	BoundTakes       Bound = "takes" // buckets that all its descriptors ask for together; MaxTakes
)

// Denial is the log record of one denied decision (spec section 8). It holds no raw identity.
type Denial struct {
	Service      Service
	Domain       string
	EndpointID   string
	Policy       string // policy and limit, as Limit.Name
	IdentityMode string // tenant_jwt or anonymous
	IdentityHash string // SHA-256 hex of the primary identity, as in its key; empty when unknown
	Reason       Reason
	Class        Class
	Source       Source
	DecisionID   string
	Latency      time.Duration
	BreakerState string // closed, open, half-open; none without a breaker
}

var _ slog.LogValuer = Denial{}

// LogValue returns the record's attributes under the names of the contract.
func (d Denial) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("service", string(d.Service)),
		slog.String("domain", d.Domain),
		slog.String("endpoint_id", d.EndpointID),
		slog.String("policy", d.Policy),
		slog.String("identity_mode", d.IdentityMode),
		slog.String("identity_hash", d.IdentityHash),
		slog.String("decision_reason", string(d.Reason)),
		slog.String("class", string(d.Class)),
		slog.String("source", string(d.Source)),
		slog.String("decision_id", d.DecisionID),
		slog.Int64("latency_micro", d.Latency.Microseconds()),
		slog.String("breaker_state", d.BreakerState),
	)
}

// Refused is a request that got no further than its credential. It holds no raw identity, and is no decision.
type Refused struct {
	Service    Service
	EndpointID string // the matched endpoint id; empty when none
	Check      string // which check failed: one of identity's fixed texts
	Missing    bool   // nothing was presented
	DecisionID string

	credential []string // as it was sent
}

// CredentialHash returns the SHA-256 of the credential as it was sent, in hexadecimal: enough to tell whether one client
// or many are refused. Empty when there was none.
func (r Refused) CredentialHash() string {
	if len(r.credential) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(r.credential, ",")))
	return hex.EncodeToString(sum[:])
}

var _ slog.LogValuer = Refused{}

// LogValue returns the record's attributes.
func (r Refused) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("service", string(r.Service)),
		slog.String("endpoint_id", r.EndpointID),
		slog.String("check", r.Check),
		slog.String("credential_hash", r.CredentialHash()),
		slog.String("decision_id", r.DecisionID),
	)
}

// CheckRequest is one ext_authz question. Everything in it but EndpointID is the client's word; EndpointID comes from
// route configuration.
type CheckRequest struct {
	EndpointID  string
	Credentials identity.Credentials
}

// CheckResult is the answer to one Check.
type CheckResult struct {
	Result
	EndpointID     string // the matched endpoint id, `default` where that policy answered; empty when none
	Identity       identity.Identity
	InvalidToken   bool     // Unauthenticated: a credential was presented and is unusable
	RequiredScopes []string // InsufficientScope: what the endpoint asks
}
