package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/identity/jwks"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
)

// settings are what the program was told, each part checked and all of them together.
type settings struct {
	cfg      config.Config
	warnings []config.Warning
	policies *descriptors.Set
	files    []descriptors.File // that policies were read from
	demo     *demo              // not nil: nothing was configured, and the built-in endpoint is served
}

// load is the same for serve and validate. Every error of it is an invalidError.
func load(file string, env []string, flags []config.Override) (settings, error) {
	s, err := loadParts(file, env, flags)
	if err != nil {
		return settings{}, invalidError{err}
	}
	return s, nil
}

func loadParts(file string, env []string, flags []config.Override) (s settings, err error) {
	if s.cfg, s.warnings, err = config.Load(file, env, flags...); err != nil {
		return s, err
	}
	switch {
	case len(s.cfg.Policies) > 0:
		s.files, s.policies, err = readPolicies(s.cfg.Policies, policyOptions(s.cfg))
	case file != "":
		s.policies = new(descriptors.Set)
	case s.cfg.Redis.URL != "":
		err = errors.New("redis.url: needs policies: the built-in demo endpoint has a secret that no other process knows" +
			" (add --policies PATH or --config FILE)")
	case !reflect.DeepEqual(s.cfg.JWT, config.Default().JWT):
		err = errors.New("jwt: needs policies: the built-in demo endpoint has a secret of its own" +
			" (add --policies PATH or --config FILE)")
	default:
		s.demo, s.policies, err = newDemo(&s.cfg)
	}
	if err != nil {
		return s, err
	}
	if err = fit(s.cfg, s.policies); err != nil {
		return s, err
	}
	return s, checkIdentity(s.cfg)
}

// checkIdentity finds what is wrong with keys and issuers beyond what config.Load can see, so that validate finds it too.
func checkIdentity(cfg config.Config) error {
	t, err := newTokens(cfg, slog.New(slog.DiscardHandler), func(string) jwks.Observer { return unobserved{} })
	if err != nil {
		return err
	}
	_, err = identity.New(identityConfig(cfg, t.issuers, nil))
	return errors.Join(err, t.checkFiles(context.Background(), cfg))
}

// readPolicies returns the files that paths name, and the set of them.
func readPolicies(paths []string, opts descriptors.Options) ([]descriptors.File, *descriptors.Set, error) {
	files, err := policyfile.ReadSteady(paths)
	if err != nil {
		return nil, nil, err
	}
	set, err := descriptors.Parse(files, opts)
	return files, set, err
}

// policyOptions says how the configuration has policies compiled.
func policyOptions(cfg config.Config) descriptors.Options {
	return descriptors.Options{KeyPrefix: cfg.Redis.KeyPrefix}
}

// fit checks what configuration and policies demand of one another.
func fit(cfg config.Config, set *descriptors.Set) error {
	tokens, anonymous := false, false
	for _, p := range set.Policies() {
		tokens = tokens || p.Identity == descriptors.TenantJWT
		anonymous = anonymous || p.Identity == descriptors.Anonymous
	}
	err := cfg.CheckIdentities(tokens, anonymous)
	if name := cfg.Authz.Domain; name != "" {
		if _, ok := set.Domain(name); !ok {
			err = errors.Join(err, fmt.Errorf("authz.domain: no policy file has the domain %q (name one that exists, or leave it empty for all)", name))
		}
	}
	return err
}
