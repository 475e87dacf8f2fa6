package identity

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Config is what a [Resolver] is made of. Nothing in it is modified after [New], nor may the caller modify it.
type Config struct {
	Issuers []Issuer // at most 16; each has its own name, unless there is only one
	Cookie  CookieConfig
	Address AddressConfig

	// CacheTokens is how many verified tokens are kept, so that the same one is not verified at each request; 0 to 1000000,
	// 0: none. A kept token is used until it expires or its issuer's keys change.
	CacheTokens int

	// Now is the wall clock that tokens and cookies expire by; nil: time.Now. Safe for concurrent use.
	Now func() time.Time
}

// Resolver establishes who sent a request. It is safe for concurrent use and never waits: the work on one request is
// bounded by [MaxTokenBytes] and a handful of signatures, whatever the client sends.
type Resolver struct {
	tokens    *verifier
	cookies   *cookies
	addresses *addresses
	now       func() time.Time
}

// New returns a Resolver. The error joins everything that is wrong with cfg; it shows no secret.
func New(cfg Config) (*Resolver, error) {
	r := &Resolver{now: cfg.Now}
	if r.now == nil {
		r.now = time.Now
	}
	var errs [4]error
	r.tokens, errs[0] = newVerifier(cfg.Issuers, cfg.CacheTokens)
	r.cookies, errs[1] = newCookies(cfg.Cookie)
	r.addresses, errs[2] = newAddresses(cfg.Address)
	errs[3] = distinctSecrets(cfg)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return r, nil
}

// distinctSecrets refuses one secret for two purposes: whoever may see tokens signed with it could otherwise make
// cookies, or the other way round.
func distinctSecrets(cfg Config) error {
	owner := map[string]string{}
	var errs []error
	add := func(what string, secret Secret) {
		if other, taken := owner[string(secret)]; taken {
			errs = append(errs, fmt.Errorf("%s has the same secret as %s: make one for each purpose", what, other))
		}
		owner[string(secret)] = what
	}
	n := 0
	for _, is := range cfg.Issuers {
		for _, source := range is.Keys {
			fixed, _ := source.(*Keys) // no other source has secrets
			for _, k := range fixed.list() {
				if n++; k.secret() != nil {
					add(fmt.Sprintf("token key %d", n), k.secret())
				}
			}
		}
	}
	for i, secret := range cfg.Cookie.Secrets {
		add(fmt.Sprintf("cookie secret %d", i+1), secret)
	}
	return errors.Join(errs...)
}

// Tenant verifies the bearer token in c and returns the verified caller: Tenant, Subject, Scopes, Plan and Expires are
// set, and Address where the client's is known.
//
// The error is [ErrMissing] when c carries no Authorization at all, and wraps [ErrInvalid] with the reason when one was
// sent and is unusable, or [ErrBusy] when its issuer's keys cannot be had now. The reason, which [Check] returns, is for
// logs; it never holds any part of the token, and the client must not see it.
func (r *Resolver) Tenant(c Credentials) (Identity, error) {
	token, err := bearer(c.Authorization)
	if err != nil {
		return Identity{}, err
	}
	id, err := r.tokens.verify(token, r.now(), nil)
	if err != nil {
		return Identity{}, err
	}
	id.Address = r.addresses.client(c)
	return id, nil
}

// Anonymous returns the caller by cookie and client address; it does not look at Authorization. Without a valid cookie
// it mints one into SetCookie, unless there are no cookie secrets.
func (r *Resolver) Anonymous(c Credentials) Identity {
	now := r.now()
	id := Identity{Address: r.addresses.client(c)}
	var ok bool
	if id.Cookie, ok = r.cookies.find(c.Cookies, now); !ok {
		id.SetCookie = r.cookies.mint(now)
	}
	return id
}

// Cookie verifies the value of one anonymous cookie and returns its client id.
func (r *Resolver) Cookie(value string) (clientID string, ok bool) {
	clientID, _, err := r.cookies.verify(value, r.now())
	return clientID, err == nil
}

// Address returns the address key of a descriptor entry: an address, or a network in CIDR form as Envoy's
// masked_remote_address sends it.
func (r *Resolver) Address(text string) (key string, ok bool) {
	if strings.Contains(text, "/") {
		return r.addresses.networkKey(text)
	}
	addr, ok := parseAddress(text)
	if !ok {
		return "", false
	}
	return r.addresses.key(addr), true
}
