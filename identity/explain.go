package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Step is one check on the way to an identity, told to a person. It shows what a token says and which key was meant,
// never a secret, a signature or a cookie's value.
type Step struct {
	Name   string // what was checked: authorization, header, signature, …
	OK     bool
	Detail string // what was found, or why it was refused
}

// String returns the step on one line.
func (s Step) String() string {
	verdict := "ok"
	if !s.OK {
		verdict = "REFUSED"
	}
	return fmt.Sprintf("%-13s %-7s %s", s.Name, verdict, s.Detail)
}

// The names of steps, in the order in which they are taken.
const (
	stepAuthorization = "authorization"
	stepHeader        = "header"
	stepSignature     = "signature"
	stepClaims        = "claims"
	stepTimes         = "times"
	stepAudience      = "audience"
	stepSubject       = "subject"
	stepTenant        = "tenant"
	stepScopes        = "scopes"
	stepPlan          = "plan"
	stepCookie        = "cookie"
	stepAddress       = "address"
)

// stepOf names the step that a refusal belongs to.
var stepOf = map[refusal]string{
	errManyValues: stepAuthorization, errScheme: stepAuthorization, errCredentials: stepAuthorization,
	errOversized: stepAuthorization, errSegments: stepHeader, errEncoding: stepHeader, errHeader: stepHeader,
	errHeaderName: stepHeader, errAlgorithm: stepHeader, errKeyID: stepHeader, errUnknownKey: stepSignature,
	errSignature: stepSignature, errPayload: stepClaims, errIssuer: stepClaims, errExpiry: stepTimes, errExpired: stepTimes,
	errNotBefore: stepTimes, errEarly: stepTimes, errIssuedAt: stepTimes, errFuture: stepTimes, errAudience: stepAudience,
	errSubject: stepSubject, errTenant: stepTenant, errScopes: stepScopes, errPlan: stepPlan,
}

// notes collects the checks that passed. A nil *notes collects nothing: the request path has none.
type notes struct{ steps []Step }

func (n *notes) pass(name, format string, args ...any) {
	if n != nil {
		n.steps = append(n.steps, Step{name, true, fmt.Sprintf(format, args...)})
	}
}

func (n *notes) fail(err error) {
	name := stepAuthorization
	detail := Check(err)
	for reason, step := range stepOf {
		if string(reason) == detail {
			name = step
		}
	}
	if err == error(errNoKeysNow) {
		name = stepSignature
	}
	n.steps = append(n.steps, Step{name, false, detail})
}

// ExplainTenant does what [Resolver.Tenant] does, without the cache, and also returns each check: those that passed and
// the one that refused. Every word of a token is the client's, and quoted.
func (r *Resolver) ExplainTenant(c Credentials) ([]Step, Identity, error) {
	n := &notes{}
	token, err := bearer(c.Authorization)
	if err != nil {
		n.fail(err)
		return n.steps, Identity{}, err
	}
	n.pass(stepAuthorization, "one bearer token of %d bytes", len(token))
	id, err := r.tokens.verify(token, r.now(), n)
	if err != nil {
		n.fail(err)
		return n.steps, Identity{}, err
	}
	step, key := r.ExplainAddress(c)
	id.Address = key
	return append(n.steps, step), id, nil
}

// ExplainAddress returns the key of the client's address, empty when it is unknown, and how it came about.
func (r *Resolver) ExplainAddress(c Credentials) (step Step, key string) {
	key, detail := r.addresses.explain(c)
	return Step{stepAddress, key != "", detail}, key
}

// ExplainAnonymous does what [Resolver.Anonymous] does, without minting a cookie, and also returns how cookie and address
// came about.
func (r *Resolver) ExplainAnonymous(c Credentials) ([]Step, Identity) {
	n := &notes{}
	now := r.now()
	var id Identity
	var found, unusable int
	var why error
	for _, value := range r.cookies.values(c.Cookies) {
		found++
		clientID, expires, err := r.cookies.verify(value, now)
		if err == nil {
			id.Cookie = clientID
			n.pass(stepCookie, "%s names the caller %s, expires %s", r.cookies.name, hashed(clientID), expires.UTC().Format(time.RFC3339))
			break
		}
		unusable++
		why = err
	}
	switch {
	case found == 0:
		n.pass(stepCookie, "none named %s: limited by address alone", r.cookies.name)
	case found == unusable:
		n.steps = append(n.steps, Step{stepCookie, false, fmt.Sprintf("%v: limited by address alone", why)})
	}
	step, key := r.ExplainAddress(c)
	id.Address = key
	return append(n.steps, step), id
}

// hashed returns the start of a digest, enough to tell callers apart.
func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:6])
}

// explain returns the key of the client's address and how it came about.
func (a *addresses) explain(c Credentials) (key, detail string) {
	key = a.client(c)
	switch a.from {
	case FromPeer:
		detail = "the connection's peer " + peerText(c.Peer)
	case FromForwardedFor:
		detail = a.explainForwardedFor(c)
	default:
		detail = fmt.Sprintf("the address header, %s, as %q", times(len(c.ClientAddress)), clip(strings.Join(c.ClientAddress, ", ")))
	}
	if key == "" {
		return "", detail + ": no usable address, so the bucket that all such callers share"
	}
	return key, detail + ": the bucket of " + key
}

func (a *addresses) explainForwardedFor(c Credentials) string {
	peer := peerText(c.Peer)
	switch {
	case !c.Peer.IsValid():
		return "no peer"
	case !a.trusts(canonical(c.Peer)):
		return "the peer " + peer + " is no trusted proxy, so X-Forwarded-For is not read"
	}
	if _, ok := nthFromRight(c.ForwardedFor, a.hops); !ok {
		return fmt.Sprintf("the peer %s is a trusted proxy, but X-Forwarded-For has no address at place %d from the right", peer, a.hops)
	}
	return fmt.Sprintf("the peer %s is a trusted proxy, and X-Forwarded-For has the client at place %d from the right", peer, a.hops)
}

// times says how often a header stood in a request.
func times(n int) string {
	switch n {
	case 0:
		return "missing"
	case 1:
		return "once"
	}
	return fmt.Sprint(n, " times")
}

func peerText(peer netip.Addr) string {
	if !peer.IsValid() {
		return "(none)"
	}
	return peer.String()
}

// clip bounds a client's text.
func clip(s string) string {
	if len(s) <= maxAddressBytes {
		return s
	}
	return s[:maxAddressBytes] + "…"
}
