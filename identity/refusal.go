package identity

import (
	"errors"
	"fmt"
)

// refusal is a reason why a presented credential is unusable. It wraps ErrInvalid. Reasons are constant texts: nothing
// that a client sent gets into one.
type refusal string

// Error returns the reason, for logs only.
func (r refusal) Error() string { return ErrInvalid.Error() + ": " + string(r) }

// Unwrap returns ErrInvalid.
func (r refusal) Unwrap() error { return ErrInvalid }

const (
	errManyValues  refusal = "more than one Authorization value"
	errScheme      refusal = "the scheme is not Bearer"
	errCredentials refusal = "Bearer is not followed by exactly one token"
	errOversized   refusal = "longer than a token may be"
	errSegments    refusal = "not three segments"
	errEncoding    refusal = "a segment is not canonical base64url"
	errHeader      refusal = "the header is not a JSON object of unique names"
	errHeaderName  refusal = "the header carries a key, a compression or a critical extension"
	errAlgorithm   refusal = "the algorithm is not allowed"
	errKeyID       refusal = "the key id is not text"
	errUnknownKey  refusal = "no key has this key id and algorithm"
	errSignature   refusal = "the signature does not verify"
	errPayload     refusal = "the payload is not a JSON object of unique names"
	errExpiry      refusal = "exp is missing or no time"
	errExpired     refusal = "expired"
	errNotBefore   refusal = "nbf is no time"
	errEarly       refusal = "not valid yet"
	errIssuedAt    refusal = "iat is no time"
	errFuture      refusal = "issued in the future"
	errIssuer      refusal = "another issuer"
	errAudience    refusal = "another audience"
	errSubject     refusal = "sub is missing or unusable"
	errTenant      refusal = "the tenant claim is missing or unusable"
	errScopes      refusal = "the scope claim is neither text nor a list of texts"
	errPlan        refusal = "the plan claim is unusable"
)

// errNoKeysNow: the keys could not be fetched, so the token can be neither believed nor called bad.
var errNoKeysNow = fmt.Errorf("%w: the issuer's keys cannot be had now", ErrBusy)

// Check returns which check of a verification failed, for logs: one of a fixed set of texts, nothing of it the client's.
// Empty for nil.
func Check(err error) string {
	if r, ok := errors.AsType[refusal](err); ok {
		return string(r)
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrMissing):
		return ErrMissing.Error()
	case errors.Is(err, ErrBusy):
		return "the issuer's keys cannot be had now"
	}
	return ErrInvalid.Error()
}
