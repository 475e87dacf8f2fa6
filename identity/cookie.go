package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CookieConfig is the cookie of anonymous callers.
type CookieConfig struct {
	Name     string        // empty: sentinel_anon_id
	TTL      time.Duration // whole seconds from 1 minute to 9600 hours; 0: 720 hours
	Insecure bool          // leave Secure out of Set-Cookie
	// Secrets hold at least 32 bytes each, at most 8. The first signs, all are accepted. None: no cookie is valid and none
	// is minted.
	Secrets []Secret
}

const (
	defaultCookieName = "sentinel_anon_id"
	defaultCookieTTL  = 720 * time.Hour
	minCookieTTL      = time.Minute
	maxCookieTTL      = 9600 * time.Hour
	minCookieSecret   = 32
	maxCookieSecrets  = 8

	// maxCandidates bounds how many cookies of our name one request may have verified. Browsers send one.
	maxCandidates = 4

	clientIDHex = 32
	macHex      = 2 * sha256.Size
)

var cookieName = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,256}$`)

// cookies mints and verifies the anonymous cookie. Immutable; safe for concurrent use.
type cookies struct {
	name       string
	ttl        time.Duration
	attributes string // what follows the value in Set-Cookie
	secrets    []Secret
}

func newCookies(cfg CookieConfig) (*cookies, error) {
	c := &cookies{name: cfg.Name, ttl: cfg.TTL, secrets: cfg.Secrets}
	if c.name == "" {
		c.name = defaultCookieName
	}
	if c.ttl == 0 {
		c.ttl = defaultCookieTTL
	}
	c.attributes = fmt.Sprintf("; Path=/; Max-Age=%d; HttpOnly; SameSite=Lax", int64(c.ttl/time.Second))
	if !cfg.Insecure {
		c.attributes += "; Secure"
	}
	return c, c.check(cfg.Insecure)
}

func (c *cookies) check(insecure bool) error {
	var errs []error
	if !cookieName.MatchString(c.name) {
		errs = append(errs, fmt.Errorf("cookie name %q is not 1 to 256 token characters", c.name))
	}
	if insecure && (strings.HasPrefix(c.name, "__Host-") || strings.HasPrefix(c.name, "__Secure-")) {
		errs = append(errs, fmt.Errorf("browsers drop a cookie named %s without Secure", c.name))
	}
	if c.ttl < minCookieTTL || c.ttl > maxCookieTTL || c.ttl%time.Second != 0 {
		errs = append(errs, fmt.Errorf("cookie TTL %s is not whole seconds from %s to %s", c.ttl, minCookieTTL, maxCookieTTL))
	}
	if len(c.secrets) > maxCookieSecrets {
		errs = append(errs, fmt.Errorf("%d cookie secrets; at most %d", len(c.secrets), maxCookieSecrets))
	}
	for i, secret := range c.secrets {
		if len(secret) < minCookieSecret {
			errs = append(errs, fmt.Errorf("cookie secret %d has %d bytes; at least %d", i+1, len(secret), minCookieSecret))
		}
	}
	return errors.Join(errs...)
}

// mint returns a Set-Cookie value with a new client id that is valid from now for the TTL; empty without secrets.
func (c *cookies) mint(now time.Time) string {
	if len(c.secrets) == 0 {
		return ""
	}
	var id [clientIDHex / 2]byte
	_, _ = rand.Read(id[:]) // never fails
	claim := hex.EncodeToString(id[:]) + "." + strconv.FormatInt(now.Add(c.ttl).Unix(), 10)
	return c.name + "=" + claim + "." + mac(c.secrets[0], claim) + c.attributes
}

// find returns the client id of the first valid cookie of our name among Cookie header values.
func (c *cookies) find(headers []string, now time.Time) (clientID string, ok bool) {
	for _, value := range c.values(headers) {
		if clientID, _, err := c.verify(value, now); err == nil {
			return clientID, true
		}
	}
	return "", false
}

// values returns the values of the first cookies of our name among Cookie header values.
func (c *cookies) values(headers []string) (values []string) {
	for _, header := range headers {
		// Envoy's map of headers joins several Cookie lines with a comma, which no cookie value may hold.
		for pair := range strings.FieldsFuncSeq(header, func(r rune) bool { return r == ';' || r == ',' }) {
			name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
			if name != c.name {
				continue
			}
			if values = append(values, value); len(values) == maxCandidates {
				return values
			}
		}
	}
	return values
}

// Why a cookie is as if there were none.
var (
	errCookieForm    = errors.New("the cookie is malformed")
	errCookieMAC     = errors.New("the cookie is signed by none of the secrets")
	errCookieExpired = errors.New("the cookie has expired")
)

// verify returns the client id of a cookie value that one of the secrets signed and that has not expired.
func (c *cookies) verify(value string, now time.Time) (clientID string, expires time.Time, err error) {
	if len(value) > clientIDHex+1+20+1+macHex {
		return "", expires, errCookieForm
	}
	claim, signature, found := cutLast(value)
	clientID, exp, found2 := strings.Cut(claim, ".")
	if !found || !found2 || len(clientID) != clientIDHex || !isLowerHex(clientID) {
		return "", expires, errCookieForm
	}
	seconds, err := strconv.ParseInt(exp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != exp {
		return "", expires, errCookieForm
	}
	signedBy := func(secret Secret) bool { return hmac.Equal([]byte(signature), []byte(mac(secret, claim))) }
	if !slices.ContainsFunc(c.secrets, signedBy) {
		return "", expires, errCookieMAC
	}
	if now.Unix() >= seconds {
		return "", expires, errCookieExpired
	}
	return clientID, time.Unix(seconds, 0), nil
}

// mac returns the signature of a claim, <client id>.<exp>. What is signed names its purpose and uses its own separator,
// so that a signature made for anything else is none here.
func mac(secret Secret, claim string) string {
	h := hmac.New(sha256.New, secret)
	id, exp, _ := strings.Cut(claim, ".")
	_, _ = h.Write([]byte("sentinel-anon:v1:" + id + ":" + exp))
	return hex.EncodeToString(h.Sum(nil))
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
