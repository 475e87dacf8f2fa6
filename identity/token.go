package identity

import (
	"crypto/rand"
	"crypto/sha256"
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

// Issuer says which tokens of one issuer are believed, and what they say.
type Issuer struct {
	Issuer     string      // what iss must be; empty: iss is not looked at, which only the sole issuer may say
	Algorithms []string    // accepted, of Algorithms(); an RSA key of a JWK set without alg takes the first that fits
	Keys       []KeySource // all are looked in; none: no token is believed

	Audience string        // a member that aud must have; empty: aud is not looked at
	Leeway   time.Duration // by how much clocks may differ; 0 to 5 minutes
	// TenantClaim names the tenant; empty: sub. A dot steps into an object, unless the name contains "://".
	TenantClaim string
	// ScopeClaim holds the scopes, as text separated by spaces or as a list of texts; empty: scope. Named as TenantClaim.
	ScopeClaim string
	// PlanClaim holds the plan, as text; empty: none is read. Named as TenantClaim.
	PlanClaim string
}

const (
	maxIssuers     = 16
	maxLeeway      = 5 * time.Minute
	maxNameBytes   = 256 // of a tenant, a subject and a plan
	maxClaimPath   = 8
	maxClaims      = 256 // names in the payload, and in each object that a claim's path enters
	maxHeaderNames = 32  // names in the header, which is read before anything is verified
)

// issuer is an Issuer, checked. Immutable; safe for concurrent use.
type issuer struct {
	Issuer
	tenant, scopes, plan []string // paths; plan may be nil
}

// verifier verifies tokens. Safe for concurrent use.
type verifier struct {
	issuers []issuer
	decoys  map[string]Key // by HMAC algorithm: a random secret that nothing is signed with
	cache   *tokenCache    // nil: none
}

func newVerifier(issuers []Issuer, cacheTokens int) (*verifier, error) {
	v := &verifier{decoys: map[string]Key{}}
	for _, a := range algorithms {
		if a.least > 0 {
			secret := make([]byte, a.least)
			_, _ = rand.Read(secret) // never fails
			v.decoys[a.name] = Key{algorithm: a.name, method: a.method, material: secret}
		}
	}
	var errs []error
	if len(issuers) > maxIssuers {
		errs = append(errs, fmt.Errorf("%d issuers; at most %d", len(issuers), maxIssuers))
	}
	for i, cfg := range issuers {
		is, err := newIssuer(cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("issuer %d: %w", i+1, err))
		}
		if cfg.Issuer == "" && len(issuers) > 1 {
			errs = append(errs, fmt.Errorf("issuer %d: without a name, tokens of all issuers would be its own", i+1))
		}
		if slices.ContainsFunc(issuers[:i], func(o Issuer) bool { return o.Issuer == cfg.Issuer && cfg.Issuer != "" }) {
			errs = append(errs, fmt.Errorf("issuer %d: %q is there already", i+1, cfg.Issuer))
		}
		v.issuers = append(v.issuers, is)
	}
	if cacheTokens < 0 || cacheTokens > maxCacheTokens {
		errs = append(errs, fmt.Errorf("a cache of %d tokens; 0 to %d", cacheTokens, maxCacheTokens))
	} else if cacheTokens > 0 {
		v.cache = newTokenCache(cacheTokens)
	}
	return v, errors.Join(append(errs, boundUnnamed(issuers))...)
}

// boundUnnamed refuses more keys without key id than one token may cost verifications.
func boundUnnamed(issuers []Issuer) error {
	count := map[string]int{}
	for _, cfg := range issuers {
		for _, source := range cfg.Keys {
			if keys, fixed := source.(*Keys); fixed {
				for algorithm, unnamed := range keys.unnamed {
					count[algorithm] += len(unnamed)
				}
			}
		}
	}
	for algorithm, n := range count {
		if n > maxUnnamedKeys {
			return fmt.Errorf("%d %s keys without key id; at most %d", n, algorithm, maxUnnamedKeys)
		}
	}
	return nil
}

func newIssuer(cfg Issuer) (issuer, error) {
	is := issuer{Issuer: cfg}
	var errs []error
	for _, name := range cfg.Algorithms {
		if _, ok := algorithmNamed(name); !ok {
			errs = append(errs, fmt.Errorf("token algorithm %q is none of %s", name, strings.Join(Algorithms(), ", ")))
		}
	}
	for _, source := range cfg.Keys {
		keys, fixed := source.(*Keys)
		if !fixed {
			continue
		}
		for i, k := range keys.all {
			if !slices.Contains(cfg.Algorithms, k.algorithm) {
				errs = append(errs, fmt.Errorf("token key %d: its algorithm %q is not among those allowed", i+1, k.algorithm))
			}
		}
	}
	if cfg.Leeway < 0 || cfg.Leeway > maxLeeway {
		errs = append(errs, fmt.Errorf("leeway %s is not between 0s and %s", cfg.Leeway, maxLeeway))
	}
	var err error
	is.tenant, err = claimPath(cfg.TenantClaim, "sub")
	errs = append(errs, err)
	is.scopes, err = claimPath(cfg.ScopeClaim, "scope")
	errs = append(errs, err)
	if cfg.PlanClaim != "" {
		is.plan, err = claimPath(cfg.PlanClaim, "")
		errs = append(errs, err)
	}
	return is, errors.Join(errs...)
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

// verify returns the identity that token proves at now. notes, where not nil, are told of every check that passed.
func (v *verifier) verify(token string, now time.Time, notes *notes) (Identity, error) {
	if len(token) > MaxTokenBytes {
		return Identity{}, errOversized
	}
	digest := sha256.Sum256([]byte(token))
	if notes == nil && v.cache != nil {
		if id, ok := v.cache.get(&digest, now); ok {
			return id, nil
		}
	}
	proof, err := v.prove(token, notes)
	if err != nil {
		return Identity{}, err
	}
	id, valid, err := proof.issuer.identity(proof.claims, now, notes)
	if err == nil && notes == nil && v.cache != nil {
		v.cache.put(&digest, &verified{id: id, from: valid.from, until: valid.until, source: proof.source, keys: proof.keys})
	}
	return id, err
}

// proof is who signed a token, and what it says.
type proof struct {
	issuer *issuer
	source KeySource
	keys   *Keys // of source, when it was looked in
	claims object
}

// prove verifies the signature. The payload is not even decoded before it has been verified, so nothing an unsigned token
// says can be acted on: which issuer is meant is found by the key, and the issuer's name is compared afterwards. Issuers
// may share keys, as the tenants of one provider do; then the name decides.
func (v *verifier) prove(token string, notes *notes) (proof, error) {
	signed, signature, ok := cutLast(token)
	head, payload, ok2 := strings.Cut(signed, ".")
	if !ok || !ok2 || strings.Contains(payload, ".") {
		return proof{}, errSegments
	}
	h, err := v.parseHeader(head)
	if err != nil {
		return proof{}, err
	}
	notes.pass(stepHeader, "alg %s, kid %q", h.algorithm, h.keyID)
	bytes, ok := decodeSegment(signature)
	if !ok {
		return proof{}, errEncoding
	}
	var why error = errUnknownKey
	for i := range v.issuers {
		is := &v.issuers[i]
		if !slices.Contains(is.Algorithms, h.algorithm) {
			continue
		}
		for _, source := range is.Keys {
			keys := source.Keys()
			found, named := keys.find(h.algorithm, h.keyID)
			if len(found) == 0 && h.keyID == "" {
				found = is.onlyKey(keys, h.algorithm)
			}
			if !slices.ContainsFunc(found, func(k Key) bool { return k.verify(signed, bytes) }) {
				why = worse(why, miss(source, h.algorithm, found, named))
				continue
			}
			claims, err := parseClaims(payload)
			if err != nil {
				return proof{}, err
			}
			if !is.issued(claims) {
				why = errIssuer
				continue
			}
			notes.pass(stepSignature, "verified with the key %q of %s", h.keyID, is.name())
			return proof{is, source, keys, claims}, nil
		}
	}
	if decoy, ok := v.decoys[h.algorithm]; ok && why != error(errSignature) {
		decoy.verify(signed, bytes) // an unknown key id takes as long as a wrong signature
	}
	return proof{}, why
}

// onlyKey returns the key in keys if the issuer has no other anywhere, for a token that names none. Several keys are never
// tried for such a token: which one was meant is not ours to guess.
func (is *issuer) onlyKey(keys *Keys, algorithm string) []Key {
	total := 0
	for _, source := range is.Keys {
		total += len(source.Keys().list())
	}
	if only := keys.list(); total == 1 && len(only) == 1 && only[0].algorithm == algorithm {
		return only
	}
	return nil
}

// miss says why no key of a source verified a token. Unless the token names a key that is there, the key may be a new one.
// Secrets are never fetched, so a token signed with one asks no source for news.
func miss(source KeySource, algorithm string, found []Key, named bool) error {
	if !named && HMACBytes(algorithm) == 0 && !source.Missed() {
		return errNoKeysNow
	}
	if len(found) > 0 {
		return errSignature
	}
	return errUnknownKey
}

// worse returns the more telling of two reasons: a signature of another issuer, a wrong one, a source that cannot tell.
func worse(a, b error) error {
	for _, reason := range []error{errIssuer, errSignature, errNoKeysNow} {
		if a == reason || b == reason {
			return reason
		}
	}
	return errUnknownKey
}

// name returns the issuer as people know it.
func (is *issuer) name() string {
	if is.Issuer.Issuer == "" {
		return "the only issuer"
	}
	return is.Issuer.Issuer
}

// issued reports whether the claims name this issuer.
func (is *issuer) issued(claims object) bool {
	return is.Issuer.Issuer == "" || claims.is("iss", is.Issuer.Issuer)
}

func parseClaims(payload string) (object, error) {
	data, ok := decodeSegment(payload)
	if !ok {
		return nil, errEncoding
	}
	claims, ok := parseObject(data, maxClaims)
	if !ok {
		return nil, errPayload
	}
	return claims, nil
}

func cutLast(token string) (before, after string, found bool) {
	i := strings.LastIndexByte(token, '.')
	if i < 0 {
		return "", "", false
	}
	return token[:i], token[i+1:], true
}

// header is what a token says about its signature.
type header struct{ algorithm, keyID string }

func (v *verifier) parseHeader(segment string) (header, error) {
	data, ok := decodeSegment(segment)
	if !ok {
		return header{}, errEncoding
	}
	names, ok := parseObject(data, maxHeaderNames)
	if !ok {
		return header{}, errHeader
	}
	for _, m := range names {
		switch m.name {
		case "jwk", "jku", "x5u", "x5c", // a key of the client's own choice
			"crit",       // extensions that must be understood; none is
			"zip", "enc", // not for signed tokens
			"b64": // changes what is signed
			return header{}, errHeaderName
		}
	}
	value, _ := names.get("alg")
	name, ok := text(value)
	if !ok || !slices.ContainsFunc(v.issuers, func(is issuer) bool { return slices.Contains(is.Algorithms, name) }) {
		return header{}, errAlgorithm
	}
	h := header{algorithm: name}
	if value, present := names.get("kid"); present {
		if h.keyID, ok = text(value); !ok || len(h.keyID) > maxKeyIDBytes {
			return header{}, errKeyID
		}
	}
	return h, nil
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

// validity is when a token is valid: from ≤ now < until, leeway included.
type validity struct{ from, until time.Time }

// identity checks the claims of a token that is the issuer's and returns what they say.
func (is *issuer) identity(claims object, now time.Time, notes *notes) (Identity, validity, error) {
	refuse := func(why error) (Identity, validity, error) { return Identity{}, validity{}, why }
	expires, valid, err := is.checkTimes(claims, now)
	if err != nil {
		return refuse(err)
	}
	notes.pass(stepTimes, "expires %s", expires.UTC().Format(time.RFC3339))
	if is.Audience != "" {
		value, _ := claims.get("aud")
		if audience, ok := textOrList(value); !ok || !slices.Contains(audience, is.Audience) {
			return refuse(errAudience)
		}
		notes.pass(stepAudience, "%s", is.Audience)
	}
	value, _ := claims.get("sub")
	subject, ok := text(value)
	if !ok || !isName(subject) {
		return refuse(errSubject)
	}
	notes.pass(stepSubject, "%q", subject)
	value, _ = claims.at(is.tenant)
	tenant, ok := text(value)
	if !ok || !isName(tenant) {
		return refuse(errTenant)
	}
	notes.pass(stepTenant, "%q, from the claim %s", tenant, strings.Join(is.tenant, "."))
	scopes, ok := scopesOf(claims, is.scopes)
	if !ok {
		return refuse(errScopes)
	}
	notes.pass(stepScopes, "%q", scopes)
	plan, ok := planOf(claims, is.plan)
	if !ok {
		return refuse(errPlan)
	}
	notes.pass(stepPlan, "%q", plan)
	return Identity{Tenant: tenant, Subject: subject, Scopes: scopes, Plan: plan, Expires: expires}, valid, nil
}

// checkTimes checks exp, nbf and iat. A token is valid while nbf ≤ now < exp, give or take the leeway.
func (is *issuer) checkTimes(claims object, now time.Time) (expires time.Time, valid validity, err error) {
	value, _ := claims.get("exp")
	expires, ok := numericDate(value)
	valid.until = expires.Add(is.Leeway)
	switch {
	case !ok || expires.Unix() == 0: // 0 is how some libraries write "never"
		return expires, valid, errExpiry
	case !now.Before(valid.until):
		return expires, valid, errExpired
	}
	for _, c := range []struct {
		name           string
		unusable, soon error
	}{{"nbf", errNotBefore, errEarly}, {"iat", errIssuedAt, errFuture}} {
		value, present := claims.get(c.name)
		if !present {
			continue
		}
		at, ok := numericDate(value)
		from := at.Add(-is.Leeway)
		switch {
		case !ok:
			return expires, valid, c.unusable
		case now.Before(from):
			return expires, valid, c.soon
		case from.After(valid.from):
			valid.from = from
		}
	}
	return expires, valid, nil
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

// planOf returns the plan; none when no claim is configured, or the claim is absent or null.
func planOf(claims object, path []string) (string, bool) {
	if path == nil {
		return "", true
	}
	value, present := claims.at(path)
	if !present || string(value) == "null" {
		return "", true
	}
	plan, ok := text(value)
	return plan, ok && isName(plan)
}
