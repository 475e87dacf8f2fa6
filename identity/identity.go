// Package identity establishes who sent a request: a verified token, or the anonymous cookie and client address.
// Pure: no I/O; the time is a parameter. Nothing here trusts a header that it did not verify.
package identity

import (
	"errors"
	"net/netip"
	"time"
)

// Credentials is what a request carries that may prove who sent it. All of it is the client's word.
type Credentials struct {
	Authorization []string   // each Authorization value as received; more than one is refused
	Cookies       []string   // each Cookie header value as received
	ClientAddress []string   // each value of the configured client address header
	ForwardedFor  []string   // each X-Forwarded-For value, read only where configuration says so
	Peer          netip.Addr // the connection's peer as Envoy reports it; invalid when there is none
}

// Identity is who sent a request.
type Identity struct {
	Tenant  string    // verified tenant; empty for anonymous callers
	Subject string    // verified sub; empty for anonymous callers
	Scopes  []string  // verified scopes; not to be modified
	Plan    string    // verified plan; empty: none
	Expires time.Time // of the token

	Cookie    string // anonymous: the client id of a valid cookie; empty: none
	Address   string // the address key; empty: unknown
	SetCookie string // anonymous without valid cookie: the Set-Cookie value to deliver with an allowed answer
}

// The errors of a refused credential. Every error of a verification wraps exactly one of them.
var (
	ErrMissing = errors.New("no credential")      // nothing was presented: 401 without error code (RFC 6750 3.1)
	ErrInvalid = errors.New("invalid credential") // presented and unusable: 401 invalid_token
	ErrBusy    = errors.New("credential check unavailable")
)
