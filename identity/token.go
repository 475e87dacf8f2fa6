package identity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// TokenConfig says which tokens are believed, and what they say.
type TokenConfig struct {
	Keys       []HMACKey     // none: no token is believed. At most 16
	Algorithms []string      // accepted: HS256, HS384, HS512; not empty when there are keys
	Audience   string        // a member that aud must have; empty: aud is not looked at
	Issuer     string        // what iss must be; empty: iss is not looked at
	Leeway     time.Duration // by how much clocks may differ; 0 to 5 minutes
	// TenantClaim names the tenant; empty: sub. A dot steps into an object, unless the name contains "://".
	TenantClaim string
	// ScopeClaim holds the scopes, as text separated by spaces or as a list of texts; empty: scope. Named as TenantClaim.
	ScopeClaim string
}

const (
	maxLeeway      = 5 * time.Minute
	maxKeyIDBytes  = 256
	maxNameBytes   = 256 // of a tenant and a subject
	maxClaimPath   = 8
	maxClaims      = 256 // names in the payload, and in each object that a claim's path enters
	maxHeaderNames = 32  // names in the header, which is read before anything is verified
)

// verifier verifies the tokens of one issuer. Immutable; safe for concurrent use.
type verifier struct {
	keys       keySet
	algorithms []string
	audience   string
	issuer     string
	leeway     time.Duration
	tenant     []string
	scopes     []string
}

func newVerifier(cfg TokenConfig) (*verifier, error) {
	keys, err := newHMACKeys(cfg.Keys)
	errs := []error{err}
	v := &verifier{
		keys:       keys,
		algorithms: cfg.Algorithms,
		audience:   cfg.Audience,
		issuer:     cfg.Issuer,
		leeway:     cfg.Leeway,
	}
	for _, alg := range cfg.Algorithms {
		if _, ok := hmacMethods[alg]; !ok {
			errs = append(errs, fmt.Errorf("token algorithm %q is none of HS256, HS384, HS512", alg))
		}
	}
	for i, k := range cfg.Keys {
		if !slices.Contains(cfg.Algorithms, k.Algorithm) {
			errs = append(errs, fmt.Errorf("token key %d: its algorithm %q is not among those allowed", i+1, k.Algorithm))
		}
	}
	if cfg.Leeway < 0 || cfg.Leeway > maxLeeway {
		errs = append(errs, fmt.Errorf("leeway %s is not between 0s and %s", cfg.Leeway, maxLeeway))
	}
	v.tenant, err = claimPath(cfg.TenantClaim, "sub")
	errs = append(errs, err)
	v.scopes, err = claimPath(cfg.ScopeClaim, "scope")
	return v, errors.Join(append(errs, err)...)
}

// claimPath returns the names that lead to a claim. A name with :// in it, as identity providers give to their
// customers' own claims, is one name whatever dots it has.
func claimPath(name, fallback string) ([]string, error) {
	if name == "" {
		name = fallback
	}
	path := []string{name}
	if !strings.Contains(name, "://") {
		path = strings.Split(name, ".")
	}
	if slices.Contains(path, "") || len(path) > maxClaimPath {
		return nil, fmt.Errorf("claim %q is not a name, or up to %d names with dots between them", name, maxClaimPath)
	}
	return path, nil
}

// verify returns the identity that token proves at now. The payload is not even decoded before the signature has been
// verified, so nothing an unsigned token says can be acted on.
func (v *verifier) verify(token string, now time.Time) (Identity, error) {
	if len(token) > MaxTokenBytes {
		return Identity{}, errOversized
	}
	signed, signature, ok := cutLast(token)
	header, payload, ok2 := strings.Cut(signed, ".")
	if !ok || !ok2 || strings.Contains(payload, ".") {
		return Identity{}, errSegments
	}
	keys, known, err := v.keysFor(header)
	if err != nil {
		return Identity{}, err
	}
	mac, ok := decodeSegment(signature)
	if !ok {
		return Identity{}, errEncoding
	}
	verified := slices.ContainsFunc(keys, func(k key) bool { return k.verify(signed, mac) })
	switch {
	case !known:
		return Identity{}, errUnknownKey
	case !verified:
		return Identity{}, errSignature
	}
	data, ok := decodeSegment(payload)
	if !ok {
		return Identity{}, errEncoding
	}
	claims, ok := parseObject(data, maxClaims)
	if !ok {
		return Identity{}, errPayload
	}
	return v.identity(claims, now)
}

func cutLast(token string) (before, after string, found bool) {
	i := strings.LastIndexByte(token, '.')
	if i < 0 {
		return "", "", false
	}
	return token[:i], token[i+1:], true
}

// keysFor returns the keys that a header asks for.
func (v *verifier) keysFor(segment string) (keys []key, known bool, err error) {
	data, ok := decodeSegment(segment)
	if !ok {
		return nil, false, errEncoding
	}
	header, ok := parseObject(data, maxHeaderNames)
	if !ok {
		return nil, false, errHeader
	}
	for _, m := range header {
		switch m.name {
		case "jwk", "jku", "x5u", "x5c", // a key of the client's own choice
			"crit",       // extensions that must be understood; none is
			"zip", "enc", // not for signed tokens
			"b64": // changes what is signed
			return nil, false, errHeaderName
		}
	}
	value, _ := header.get("alg")
	algorithm, ok := text(value)
	if !ok || !slices.Contains(v.algorithms, algorithm) {
		return nil, false, errAlgorithm
	}
	var keyID string
	if value, present := header.get("kid"); present {
		if keyID, ok = text(value); !ok || len(keyID) > maxKeyIDBytes {
			return nil, false, errKeyID
		}
	}
	keys, known = v.keys.find(algorithm, keyID)
	return keys, known, nil
}

// strict refuses what base64 in Go otherwise lets pass, so that one token has one spelling: stray bits at the end. It
// still skips line breaks.
var strict = base64.RawURLEncoding.Strict()

func decodeSegment(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	data, err := strict.DecodeString(s)
	return data, err == nil
}

// identity checks the claims of a verified token and returns what they say.
func (v *verifier) identity(claims object, now time.Time) (Identity, error) {
	expires, err := v.checkTimes(claims, now)
	if err != nil {
		return Identity{}, err
	}
	if v.issuer != "" {
		value, _ := claims.get("iss")
		if issuer, ok := text(value); !ok || issuer != v.issuer {
			return Identity{}, errIssuer
		}
	}
	if v.audience != "" {
		value, _ := claims.get("aud")
		if audience, ok := textOrList(value); !ok || !slices.Contains(audience, v.audience) {
			return Identity{}, errAudience
		}
	}
	value, _ := claims.get("sub")
	subject, ok := text(value)
	if !ok || !isName(subject) {
		return Identity{}, errSubject
	}
	value, _ = claims.at(v.tenant)
	tenant, ok := text(value)
	if !ok || !isName(tenant) {
		return Identity{}, errTenant
	}
	scopes, ok := scopesOf(claims, v.scopes)
	if !ok {
		return Identity{}, errScopes
	}
	return Identity{Tenant: tenant, Subject: subject, Scopes: scopes, Expires: expires}, nil
}

// checkTimes checks exp, nbf and iat. A token is valid while nbf ≤ now < exp, give or take the leeway.
func (v *verifier) checkTimes(claims object, now time.Time) (expires time.Time, err error) {
	value, _ := claims.get("exp")
	expires, ok := numericDate(value)
	switch {
	case !ok || expires.Unix() == 0: // 0 is how some libraries write "never"
		return time.Time{}, errExpiry
	case !now.Before(expires.Add(v.leeway)):
		return time.Time{}, errExpired
	}
	if value, present := claims.get("nbf"); present {
		notBefore, ok := numericDate(value)
		switch {
		case !ok:
			return time.Time{}, errNotBefore
		case now.Before(notBefore.Add(-v.leeway)):
			return time.Time{}, errEarly
		}
	}
	if value, present := claims.get("iat"); present {
		issued, ok := numericDate(value)
		switch {
		case !ok:
			return time.Time{}, errIssuedAt
		case now.Before(issued.Add(-v.leeway)):
			return time.Time{}, errFuture
		}
	}
	return expires, nil
}

// numericDate returns a NumericDate (RFC 7519 2): seconds since the epoch, possibly with a fraction, which is cut off.
// False: it is no number, or not between 1970 and the year 9999.
func numericDate(value json.RawMessage) (time.Time, bool) {
	const last = 253402300799 // 9999-12-31T23:59:59Z
	if len(value) == 0 || value[0] < '0' || value[0] > '9' {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseFloat(string(value), 64)
	if err != nil || seconds > last {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}

// isName reports whether s may name a tenant or subject: 1 to 256 bytes of UTF-8 without control characters, and without
// white space at its ends, which an upstream would trim from a header and so take for someone else.
func isName(s string) bool {
	return s != "" && len(s) <= maxNameBytes && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, unicode.IsControl) && strings.TrimSpace(s) == s
}

// textOrList returns a text as a list of one, or a list of texts.
func textOrList(value json.RawMessage) ([]string, bool) {
	if s, ok := text(value); ok {
		return []string{s}, true
	}
	if len(value) == 0 || value[0] != '[' {
		return nil, false
	}
	var items []json.RawMessage
	if json.Unmarshal(value, &items) != nil {
		return nil, false
	}
	texts := make([]string, len(items))
	for i, item := range items {
		var ok bool
		if texts[i], ok = text(item); !ok {
			return nil, false
		}
	}
	return texts, true
}

// scopesOf returns the scopes; none when the claim is absent or null.
func scopesOf(claims object, path []string) ([]string, bool) {
	value, present := claims.at(path)
	if !present || string(value) == "null" {
		return nil, true
	}
	if s, ok := text(value); ok {
		return strings.Fields(s), true
	}
	return textOrList(value)
}
