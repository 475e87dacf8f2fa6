package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/identity/jwks"
	tiers "github.com/sentinel-rls/sentinel-rls/internal/run"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
)

// tokens are the configured issuers of tokens and what must run for their keys.
type tokens struct {
	issuers []identity.Issuer
	sources []*jwks.Source
	log     *slog.Logger
}

// newTokens returns the issuers of cfg. It reads nothing but what cfg holds. observer returns what is told of the reads
// of one source.
func newTokens(cfg config.Config, log *slog.Logger, observer func(name string) jwks.Observer) (*tokens, error) {
	t := &tokens{log: log}
	var errs []error
	for i, is := range cfg.AllIssuers() {
		path := "jwt"
		if len(cfg.JWT.Issuers) > 0 {
			path = fmt.Sprintf("jwt.issuers[%d]", i)
		}
		issuer, err := t.newIssuer(is, path, observer)
		errs = append(errs, err)
		t.issuers = append(t.issuers, issuer)
	}
	return t, errors.Join(errs...)
}

func (t *tokens) newIssuer(cfg config.TokenIssuer, path string, observer func(string) jwks.Observer) (identity.Issuer, error) {
	issuer := identity.Issuer{
		Issuer: cfg.Issuer, Algorithms: cfg.Algorithms, Audience: cfg.Audience, Leeway: cfg.Leeway,
		TenantClaim: cfg.TenantClaim, ScopeClaim: cfg.ScopeClaim, PlanClaim: cfg.PlanClaim,
	}
	var errs []error
	if len(cfg.Keys) > 0 {
		keys, err := fixedKeys(cfg.Keys, path)
		errs = append(errs, err)
		issuer.Keys = append(issuer.Keys, keys)
	}
	for _, c := range []jwks.Config{{File: cfg.JWKSFile}, {URL: cfg.JWKSURL, Refresh: cfg.JWKSRefresh}} {
		name := c.File + c.URL // one of them
		if name == "" {
			continue
		}
		c.Algorithms, c.Log, c.Observer = cfg.Algorithms, t.log, observer(name)
		source, err := jwks.New(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		t.sources = append(t.sources, source)
		issuer.Keys = append(issuer.Keys, source)
	}
	return issuer, errors.Join(errs...)
}

// fixedKeys returns the keys that the configuration holds.
func fixedKeys(cfg []config.JWTKey, path string) (*identity.Keys, error) {
	keys := make([]identity.Key, 0, len(cfg))
	var errs []error
	for i, k := range cfg {
		var key identity.Key
		var err error
		setting, mend := "secret_file", "write a secret as from: openssl rand -hex 64"
		if k.PublicKeyFile != "" {
			setting, mend = "public_key_file", "write the public key as from: openssl pkey -in private.pem -pubout"
			key, err = identity.ParsePublicKey(k.PublicKey, k.Algorithm, k.KeyID)
		} else {
			key, err = identity.NewHMACKey(k.Algorithm, k.KeyID, identity.Secret(k.Secret.Reveal()))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.keys[%d].%s: %w (%s)", path, i, setting, err, mend))
			continue
		}
		keys = append(keys, key)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	set, err := identity.NewKeys(keys...)
	if err != nil {
		return nil, fmt.Errorf("%s.keys: %w", path, err)
	}
	return set, nil
}

// checkFiles reads every JWK set that is a file. One that cannot be read at the start is a fault of the configuration.
func (t *tokens) checkFiles(ctx context.Context, cfg config.Config) error {
	files := map[string]bool{}
	for _, is := range cfg.AllIssuers() {
		files[is.JWKSFile] = is.JWKSFile != ""
	}
	var errs []error
	for _, s := range t.sources {
		if !files[s.Name()] {
			continue
		}
		if err := s.Fetch(ctx); err != nil {
			errs = append(errs, fmt.Errorf("jwks_file: %s: %w (write what the issuer publishes as its JWK set)", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// firstFetch is how long the start waits for the keys of issuers. Without them the process serves all the same: their
// tokens are answered with 503 until the keys are there.
const firstFetch = 2 * time.Second

// fetch reads the keys of all issuers at once, before anything is served.
func (t *tokens) fetch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstFetch)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range t.sources {
		if s.Plain() {
			t.log.Warn("keys come over http: whoever is between can make tokens; use https, or a mesh that encrypts", "jwks", s.Name())
		}
		wg.Go(func() { _ = s.Fetch(ctx) }) // it is logged, and tried again
	}
	wg.Wait()
}

// parts returns what must run to keep the keys current.
func (t *tokens) parts() (parts []tiers.Part) {
	for _, s := range t.sources {
		parts = append(parts, tiers.Part{Name: "jwks " + s.Name(), Run: s.Run})
	}
	return parts
}

// degraded returns the code jwks_stale while the keys of an issuer are older than they should be.
func (t *tokens) degraded() []string {
	now := time.Now()
	for _, s := range t.sources {
		if s.Stale(now) {
			return []string{"jwks_stale"}
		}
	}
	return nil
}

// watch shows the sources in metrics.
func (t *tokens) watch(recorder *telemetry.Recorder) {
	shown := make([]telemetry.KeySource, len(t.sources))
	for i, s := range t.sources {
		shown[i] = s
	}
	recorder.WatchJWKS(shown...)
}

// unobserved is for sources that only check a configuration.
type unobserved struct{}

func (unobserved) Fetched(time.Duration, bool) {}
