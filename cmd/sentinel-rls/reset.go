package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/user"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// resetCommand is `sentinel-rls reset`.
type resetCommand struct {
	sources
	Endpoint   string `long:"endpoint" required:"yes" value-name:"ID" description:"Whose buckets: the endpoint id."`
	Tenant     string `long:"tenant" value-name:"NAME" unquote:"false" description:"The tenant's buckets of that endpoint."`
	User       string `long:"user" value-name:"NAME" unquote:"false" description:"With --tenant: its user's buckets instead."`
	Address    string `long:"address" value-name:"IP" description:"The buckets of a client's address."`
	CookieFile string `long:"cookie-file" value-name:"FILE" description:"The buckets of an anonymous cookie, whose value is in the file; - is standard input."`
	Limit      string `long:"limit" value-name:"NAME" description:"Only the limit of that name."`
	DryRun     bool   `long:"dry-run" description:"Say which keys, and remove none."`
}

// Usage is what --help shows after the command's name.
func (*resetCommand) Usage() string { return "--endpoint=ID [reset-OPTIONS]" }

// Validate refuses a command line that names nobody, or several.
func (c *resetCommand) Validate() error {
	named := 0
	for _, who := range []string{c.Tenant, c.Address, c.CookieFile} {
		if who != "" {
			named++
		}
	}
	switch {
	case named != 1:
		return errors.New("expected one of --tenant, --address and --cookie-file")
	case c.User != "" && c.Tenant == "":
		return errors.New("--user needs --tenant")
	}
	return nil
}

// Run removes the caller's buckets, which is as if they had never been used.
func (c *resetCommand) Run(env *environment) error {
	cfg, set, err := c.load(env)
	if err != nil {
		return err
	}
	target, err := c.target(env, cfg, set)
	if err != nil {
		return err
	}
	if c.DryRun {
		p := &printer{w: env.stdout}
		for _, key := range target.keys {
			p.line(0, "%s", key)
		}
		return p.err
	}
	return withRedis(env, cfg, func(ctx context.Context, s *redis.Store) error {
		removed, err := s.Unlink(ctx, target.keys...)
		if err != nil {
			return fmt.Errorf("%d of %d buckets were reset: %w", removed, len(target.keys), err)
		}
		if err := target.log(env.stderr, cfg.Log, removed); err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.stdout, "%d of %d buckets were in use, and are reset; running processes deny from memory for up to %v more\n",
			removed, len(target.keys), cfg.DenyCache.MaxAge)
		return err
	})
}

// resetTarget is the buckets of one caller.
type resetTarget struct {
	policy *descriptors.Policy
	scope  descriptors.Scope
	hash   string // of the caller, as in the log of denials
	keys   []string
}

// endpointHint names the endpoint that was probably meant, or says where all are named.
func endpointHint(endpoint string, set *descriptors.Set) string {
	var known []string
	for _, p := range set.Policies() {
		known = append(known, p.Endpoint)
	}
	if near := config.Nearest(endpoint, known); near != "" {
		return "did you mean " + near + "?"
	}
	return "the files under policies name them"
}

// target returns the buckets that the flags name. Those that others share are none of one caller's.
func (c *resetCommand) target(env *environment, cfg config.Config, set *descriptors.Set) (resetTarget, error) {
	policy, ok := set.Endpoint(c.Endpoint)
	if !ok {
		return resetTarget{}, usageError{fmt.Errorf("--endpoint: no policy has the endpoint %q; %s", c.Endpoint, endpointHint(c.Endpoint, set))}
	}
	who, scope, err := c.who(env, cfg)
	if err != nil {
		return resetTarget{}, err
	}
	t := resetTarget{policy: policy, scope: scope}
	if policy.Identity == descriptors.TenantJWT {
		t.policy = policy.For(who.Tenant)
	}
	for i := range t.policy.Limits {
		l := &t.policy.Limits[i]
		if l.Scope != scope || c.Limit != "" && l.Name != c.Limit {
			continue
		}
		if key, ok := l.Key(&who); ok {
			t.keys = append(t.keys, key)
		}
	}
	t.hash = who.PrimaryHash(t.policy.Identity)
	if len(t.keys) == 0 {
		return t, usageError{fmt.Errorf("%s:%d: the policy %s has no such limit with scope %s", t.policy.File, t.policy.Line, t.policy.Endpoint, scope)}
	}
	return t, nil
}

// who returns the caller that the flags name.
func (c *resetCommand) who(env *environment, cfg config.Config) (who descriptors.Subject, scope descriptors.Scope, err error) {
	switch {
	case c.User != "":
		return descriptors.Subject{Tenant: c.Tenant, User: c.User}, descriptors.ScopeUser, nil
	case c.Tenant != "":
		return descriptors.Subject{Tenant: c.Tenant}, descriptors.ScopeTenant, nil
	}
	verifier, err := callers(env.ctx, cfg, false)
	if err != nil {
		return who, 0, err
	}
	if c.Address != "" {
		key, ok := verifier.Address(c.Address)
		if !ok {
			return who, 0, usageError{fmt.Errorf("--address: %q is no address, as 203.0.113.7 or 2001:db8::7", c.Address)}
		}
		return descriptors.Subject{ClientIP: key}, descriptors.ScopeClientIP, nil
	}
	cookie, err := readSecret(env.stdin, c.CookieFile)
	if err != nil {
		return who, 0, err
	}
	id, ok := verifier.Cookie(cookie)
	if !ok {
		return who, 0, invalidError{errors.New("--cookie-file: the cookie is not valid under anonymous.cookie_secret_files")}
	}
	return descriptors.Subject{Cookie: id}, descriptors.ScopeCookie, nil
}

// log writes the record that says who gave whom a full bucket.
func (t *resetTarget) log(w io.Writer, cfg config.Log, removed int64) error {
	log, err := telemetry.NewLogger(w, cfg.Format, slog.LevelInfo)
	if err != nil {
		return err
	}
	operator := "unknown"
	if u, err := user.Current(); err == nil {
		operator = u.Username
	}
	log.Info("reset", "endpoint_id", t.policy.Endpoint, "scope", t.scope.String(), "identity_hash", t.hash,
		"keys", t.keys, "removed", removed, "operator", operator)
	return nil
}
