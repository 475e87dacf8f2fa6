package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// What the configuration says, in each package's own words. config.Load has checked the values.

func identityConfig(cfg config.Config, issuers []identity.Issuer, onPrivatePeer func(netip.Addr)) identity.Config {
	c := identity.Config{
		Issuers: issuers, CacheTokens: cfg.JWT.CacheTokens,
		Cookie: identity.CookieConfig{
			Name: cfg.Anonymous.CookieName, TTL: cfg.Anonymous.CookieTTL, Insecure: !cfg.Anonymous.CookieSecure,
		},
		Address: identity.AddressConfig{
			Hops: cfg.ClientAddress.Hops, IPv6Prefix: cfg.ClientAddress.IPv6Prefix, OnPrivatePeer: onPrivatePeer,
		},
	}
	for _, s := range cfg.Anonymous.CookieSecrets {
		c.Cookie.Secrets = append(c.Cookie.Secrets, identity.Secret(s.Reveal()))
	}
	switch cfg.ClientAddress.From {
	case "peer":
		c.Address.From = identity.FromPeer
	case "xff":
		c.Address.From = identity.FromForwardedFor
	}
	for _, text := range cfg.ClientAddress.TrustedProxies {
		if network, err := config.ParseNetwork(text); err == nil { // config.Load refuses others
			c.Address.TrustedProxies = append(c.Address.TrustedProxies, network)
		}
	}
	return c
}

// descriptorTokens are the values of jwt.in_descriptors.
var descriptorTokens = map[string]rls.DescriptorTokens{
	"ignore": rls.TokensIgnored, "verify": rls.TokensVerified, "require": rls.TokensRequired,
}

func engineConfig(cfg config.Config, s store, identities rls.Identifier, recorder rls.Recorder) rls.Config {
	var denyCache *rls.DenyCacheConfig
	if cfg.DenyCache.MaxAge > 0 && cfg.Redis.URL != "" { // the memory store is as quick itself
		denyCache = &rls.DenyCacheConfig{MaxAge: cfg.DenyCache.MaxAge, Keys: cfg.DenyCache.MaxBuckets}
	}
	budget := cfg.Redis.Budget
	if s.instant { // a pause of the process is no reason to refuse what can be decided inside the caller's deadline
		budget = time.Hour
	}
	return rls.Config{
		Store: s, Identifier: identities, Recorder: recorder, BreakerState: s.breakerState,
		StoreBudget:       budget,
		Reserve:           max(cfg.Guard.Reserve, time.Nanosecond), // the engine takes 0 for its default
		NoDeadline:        cfg.Guard.NoDeadline,
		MaxInFlight:       cfg.Guard.MaxInFlight,
		AfterLoss:         cfg.Guard.AfterStateLoss,
		DenyCache:         denyCache,
		DropIn:            rls.DropInConfig{Fallback: s.fallback},
		AuthzDomain:       cfg.Authz.Domain,
		OKUnknownEndpoint: cfg.UnknownEndpoint == "ok",
		DenyUnknownDomain: cfg.UnknownDomain == "over_limit",
		DescriptorTokens:  descriptorTokens[cfg.JWT.InDescriptors],
		Names: rls.Names{
			Tenant: cfg.Names.Entries.Tenant, EndpointID: cfg.Names.Entries.EndpointID, User: cfg.Names.Entries.User,
			Cookie: cfg.Names.Entries.Cookie, Address: cfg.Names.Entries.Address, Authorization: cfg.Names.Entries.Authorization,
		},
		Bounds: rls.Bounds{
			Descriptors: cfg.Bounds.Descriptors, Entries: cfg.Bounds.Entries,
			KeyBytes: cfg.Bounds.KeyBytes, ValueBytes: cfg.Bounds.ValueBytes,
		},
	}
}

func serverConfig(cfg config.Config, engine *rls.Engine, recorder *telemetry.Recorder, log *slog.Logger) envoy.Config {
	return envoy.Config{
		Engine: engine, Recorder: recorder, Log: log,
		Realm: cfg.JWT.Realm, ResourceMetadata: cfg.JWT.ResourceMetadata,
		Names: envoy.Names{
			MetadataNamespace: cfg.Names.Metadata.Namespace, EndpointID: cfg.Names.Metadata.EndpointID,
			ClientAddressHeader: cfg.ClientAddress.Header,
			TenantHeader:        cfg.Names.Headers.Tenant, SubjectHeader: cfg.Names.Headers.Subject, ReasonHeader: cfg.Names.Headers.Reason,
			Metadata: envoy.MetadataNames(cfg.Names.DynamicMetadata),
		},
		OmitRateLimitHeaders:  !cfg.Authz.RateLimitHeaders,
		Reflection:            cfg.GRPC.Reflection,
		MaxMessageBytes:       cfg.GRPC.MaxRecvBytes,
		MaxConcurrentStreams:  uint32(cfg.GRPC.MaxConcurrentStreams),
		PingMinTime:           cfg.GRPC.Keepalive.MinTime,
		PingTime:              cfg.GRPC.Keepalive.Time,
		PingTimeout:           cfg.GRPC.Keepalive.Timeout,
		MaxConnectionAge:      cfg.GRPC.Keepalive.MaxConnectionAge,
		MaxConnectionAgeGrace: cfg.GRPC.Keepalive.MaxConnectionAgeGrace,
	}
}

func memoryConfig(cfg config.Config, recorder *telemetry.Recorder) memory.Config {
	return memory.Config{MaxBuckets: cfg.Memory.MaxBuckets, Overflowed: recorder.MemoryOverflowed}
}

func redisConfig(cfg config.Config, recorder *telemetry.Recorder, log *slog.Logger) (redis.Config, error) {
	c := redis.Config{
		URL: cfg.Redis.URL, Username: cfg.Redis.Username, PasswordFile: cfg.Redis.PasswordFile,
		SentinelUsername: cfg.Redis.Sentinel.Username, SentinelPasswordFile: cfg.Redis.Sentinel.PasswordFile,
		Budget: cfg.Redis.Budget, Workers: cfg.Redis.Workers, Queue: cfg.Redis.Queue,
		AssumeNoeviction: cfg.Redis.AssumeNoeviction, ProbeKey: cfg.Redis.KeyPrefix + redis.DefaultProbeKey,
		Breaker:  rls.BreakerConfig{Failures: cfg.Breaker.Failures, Quarantine: cfg.Breaker.Quarantine},
		Observer: storeObserver{recorder, log, nil},
	}
	if cfg.Redis.TLS == (config.RedisTLS{}) {
		return c, nil
	}
	files := redis.TLSFiles{
		CA: cfg.Redis.TLS.CAFile, Cert: cfg.Redis.TLS.CertFile, Key: cfg.Redis.TLS.KeyFile, ServerName: cfg.Redis.TLS.ServerName,
	}
	var err error
	if c.TLS, err = files.Config(); err != nil {
		return c, fmt.Errorf("redis.tls: %w (name files in PEM that this process may read; redis.tls.key_file is the certificate's own key)", err)
	}
	return c, nil
}
