//go:build !nodev

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/identity"
)

// devCommands are the commands for development. The build tag nodev leaves them out: what can sign tokens has no place in
// an image that is deployed.
func devCommands() []command {
	return []command{{name: "dev", summary: "For development only; not in the container image.", below: []command{
		{name: "token", summary: "Print a token that a server with this configuration accepts, signed with its own secret.", target: new(tokenCommand)},
	}}}
}

// tokenCommand is `sentinel-rls dev token`.
type tokenCommand struct {
	Config string        `long:"config" required:"yes" value-name:"FILE" description:"The process configuration, with a key of HS256, HS384 or HS512."`
	Tenant string        `long:"tenant" required:"yes" value-name:"NAME" unquote:"false" description:"The tenant that the token names."`
	User   string        `long:"user" value-name:"NAME" unquote:"false" description:"The subject, where jwt.tenant_claim is another claim than sub."`
	Scope  []string      `long:"scope" value-name:"NAME" unquote:"false" description:"A scope that the token has; repeatable."`
	TTL    time.Duration `long:"ttl" value-name:"DURATION" default:"1h" description:"How long it works."`
}

// Usage is what --help shows after the command's name.
func (*tokenCommand) Usage() string { return "--config=FILE --tenant=NAME [token-OPTIONS]" }

// Validate refuses a token that never works.
func (c *tokenCommand) Validate() error {
	if c.TTL <= 0 {
		return errors.New("--ttl: must be above 0s")
	}
	return nil
}

// Run prints the token, once it is seen that the configuration accepts it.
func (c *tokenCommand) Run(env *environment) error {
	cfg, _, err := config.Load(c.Config, env.variables)
	if err != nil {
		return invalidError{err}
	}
	issuer, key, ok := signingKey(cfg)
	if !ok {
		return invalidError{fmt.Errorf("%s: no key of HS256, HS384 or HS512: other keys here can verify and not sign (add {alg: HS256, secret_file: …} to jwt.keys)", c.Config)}
	}
	claims, err := c.claims(issuer)
	if err != nil {
		return err
	}
	token := jwt.NewWithClaims(jwt.GetSigningMethod(key.Algorithm), claims)
	if key.KeyID != "" {
		token.Header["kid"] = key.KeyID
	}
	signed, err := token.SignedString([]byte(key.Secret.Reveal()))
	if err != nil {
		return err
	}
	verifier, err := callers(env.ctx, cfg, false)
	if err != nil {
		return err
	}
	if _, err := verifier.Tenant(identity.Credentials{Authorization: []string{"Bearer " + signed}}); err != nil {
		return invalidError{fmt.Errorf("%s accepts no such token: %w", c.Config, err)}
	}
	_, err = fmt.Fprintln(env.stdout, signed)
	return err
}

// signingKey returns the first key that can sign.
func signingKey(cfg config.Config) (config.TokenIssuer, config.JWTKey, bool) {
	for _, issuer := range cfg.AllIssuers() {
		for _, key := range issuer.Keys {
			if strings.HasPrefix(key.Algorithm, "HS") {
				return issuer, key, true
			}
		}
	}
	return config.TokenIssuer{}, config.JWTKey{}, false
}

func (c *tokenCommand) claims(issuer config.TokenIssuer) (jwt.MapClaims, error) {
	now := time.Now()
	claims := jwt.MapClaims{"iat": now.Unix(), "exp": now.Add(c.TTL).Unix(), "sub": c.User}
	switch {
	case issuer.TenantClaim == "sub" && c.User != "":
		return nil, usageError{errors.New("--user: the tenant is the subject here (jwt.tenant_claim: sub)")}
	case issuer.TenantClaim == "sub":
		claims["sub"] = c.Tenant
	case c.User == "":
		return nil, usageError{fmt.Errorf("--user is needed: the tenant is the claim %s here, and the subject its user", issuer.TenantClaim)}
	default:
		put(claims, issuer.TenantClaim, c.Tenant)
	}
	if issuer.Issuer != "" {
		claims["iss"] = issuer.Issuer
	}
	if issuer.Audience != "" {
		claims["aud"] = issuer.Audience
	}
	if len(c.Scope) > 0 {
		put(claims, issuer.ScopeClaim, strings.Join(c.Scope, " "))
	}
	return claims, nil
}

// put sets a claim whose name steps into objects as the configuration's claims do.
func put(claims map[string]any, name, value string) {
	if strings.Contains(name, "://") {
		claims[name] = value
		return
	}
	steps := strings.Split(name, ".")
	for _, step := range steps[:len(steps)-1] {
		object, ok := claims[step].(map[string]any)
		if !ok {
			object = map[string]any{}
			claims[step] = object
		}
		claims = object
	}
	claims[steps[len(steps)-1]] = value
}
