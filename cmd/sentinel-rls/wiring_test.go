package main

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/identity/jwks"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// Every setting with another value than its default.
const everySetting = `
grpc:
  address: 127.0.0.1:18081
  max_recv_bytes: 2048
  max_concurrent_streams: 7
  keepalive: {min_time: 11s, time: 31s, timeout: 6s, max_connection_age: 11m, max_connection_age_grace: 31s}
  reflection: true
admin: {address: "127.0.0.1:19091", token_file: token}
policies: [policies]
authz: {domain: shop, rate_limit_headers: false}
unknown_endpoint: ok
unknown_domain: over_limit
names:
  entries: {tenant: t, endpoint_id: e, user: u, cookie: c, authorization: z, address: [a]}
  metadata: {namespace: ns, endpoint_id: id}
  dynamic_metadata: {tenant: mt, subject: ms, plan: mp, endpoint_id: me, decision_id: md, reason: mr, policy: mo}
  headers: {tenant: x-t, subject: x-s, reason: x-r}
bounds: {descriptors: 3, entries: 4, key_bytes: 5, value_bytes: 6}
redis:
  url: rediss+sentinel://127.0.0.1:16379,127.0.0.1:16380/mymaster/2
  username: limiter
  password_file: password
  sentinel: {username: watcher, password_file: password}
  tls: {ca_file: ca.pem, cert_file: client.pem, key_file: client.key, server_name: redis.internal}
  key_prefix: "staging:"
  budget: 21ms
  workers: 3
  queue: 99
  assume_noeviction: true
memory: {max_buckets: 12}
guard: {reserve: 3ms, no_deadline: 201ms, max_in_flight: 77, after_state_loss: 9s}
breaker: {failures: 6, quarantine: 31s}
deny_cache: {max_age: 2s, max_buckets: 100}
jwt:
  algorithms: [HS384, ES256]
  keys: [{alg: HS384, kid: k1, secret_file: secret}, {alg: ES256, kid: k2, public_key_file: public.pem}]
  jwks_file: jwks.json
  jwks_url: http://127.0.0.1:1/jwks
  jwks_refresh: 6m
  audience: aud
  issuer: iss
  leeway: 31s
  tenant_claim: org
  scope_claim: scp
  plan_claim: plan
  cache_tokens: 99
  in_descriptors: verify
  realm: shop
  resource_metadata: https://api.test/.well-known/oauth-protected-resource
anonymous: {cookie_name: sid, cookie_ttl: 1h, cookie_secure: false, cookie_secret_files: [cookie-secret]}
client_address: {from: xff, header: x-client, trusted_proxies: [10.0.0.0/8], hops: 2, ipv6_prefix: 56}
log: {level: warn, format: text}
shutdown: {drain_delay: 6s, grace: 21s}
`

const (
	longSecret   = "a test secret of at least 48 bytes, which HS384 asks for"
	cookieSecret = "a cookie secret of at least 32 bytes"
	publicKey    = `-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEPHg8MenxT3X4yvtxhncPNXCeuDS6
L1EzkAmuHdfo8AKfnmwbtAp/KzEdm2ehxVYMIUnjmdoSbRju0aSLUP+pkA==
-----END PUBLIC KEY-----
`
)

func loadEverySetting(t *testing.T) (settings, string) {
	t.Helper()
	dir := files(t, map[string]string{
		"sentinel.yaml": everySetting, "secret": longSecret, "cookie-secret": cookieSecret,
		"public.pem": publicKey, "jwks.json": `{"keys":[]}`, "password": "hunter22", "token": "correct-horse-battery", "policies/shop.yaml": shopPolicies,
		"policies/login.yaml": strings.NewReplacer("orders:", "login:", "policy_version: 1", "policy_version: 1\n    identity: anonymous",
			"scope: tenant, algorithm: token_bucket, capacity: 10, refill: 0", "scope: client_ip, algorithm: sliding_window, limit: 10, window: 1m").Replace(shopPolicies),
	})
	s, err := load(filepath.Join(dir, "sentinel.yaml"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// A setting that is added must be given a value here, and then a place in the wiring.
func TestEverySettingIsTried(t *testing.T) {
	t.Parallel()
	s, _ := loadEverySetting(t)
	var walk func(path string, got, standard reflect.Value)
	walk = func(path string, got, standard reflect.Value) {
		if got.Kind() == reflect.Struct && got.Type() != reflect.TypeFor[config.Secret]() {
			for field, value := range got.Fields() {
				walk(path+"."+field.Name, value, standard.FieldByName(field.Name))
			}
			return
		}
		if path == ".JWT.Issuers" {
			return // stands instead of what is beside it
		}
		if reflect.DeepEqual(got.Interface(), standard.Interface()) {
			t.Errorf("Config%s has its default", path)
		}
	}
	walk("", reflect.ValueOf(s.cfg), reflect.ValueOf(config.Default()))
}

func TestWiring(t *testing.T) {
	t.Parallel()
	s, dir := loadEverySetting(t)
	recorder, log := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}), slog.New(slog.DiscardHandler)
	ignore := cmpopts.IgnoreFields

	wantIdentity := identity.Config{
		Issuers: []identity.Issuer{{
			Issuer: "iss", Algorithms: []string{"HS384", "ES256"}, Audience: "aud", Leeway: 31 * time.Second,
			TenantClaim: "org", ScopeClaim: "scp", PlanClaim: "plan",
		}},
		CacheTokens: 99,
		Cookie:      identity.CookieConfig{Name: "sid", TTL: time.Hour, Insecure: true, Secrets: []identity.Secret{identity.Secret(cookieSecret)}},
		Address: identity.AddressConfig{
			From: identity.FromForwardedFor, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Hops: 2, IPv6Prefix: 56,
		},
	}
	tokens, err := newTokens(s.cfg, log, func(name string) jwks.Observer { return recorder.JWKS(name) })
	if err != nil {
		t.Fatal(err)
	}
	compareNetworks := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(wantIdentity, identityConfig(s.cfg, tokens.issuers, nil), compareNetworks, ignore(identity.Issuer{}, "Keys")); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
	var sources []string
	for _, source := range tokens.issuers[0].Keys {
		switch source := source.(type) {
		case *identity.Keys:
			sources = append(sources, source.Names()...)
		case *jwks.Source:
			sources = append(sources, source.Name())
		}
	}
	if want := []string{"HS384 k1", "ES256 k2", filepath.Join(dir, "jwks.json"), "http://127.0.0.1:1/jwks"}; !slices.Equal(sources, want) {
		t.Errorf("keys from %q, want %q", sources, want)
	}

	wantEngine := rls.Config{
		DenyCache:   &rls.DenyCacheConfig{MaxAge: 2 * time.Second, Keys: 100},
		StoreBudget: 21 * time.Millisecond, Reserve: 3 * time.Millisecond, NoDeadline: 201 * time.Millisecond,
		MaxInFlight: 77, AfterLoss: 9 * time.Second,
		AuthzDomain: "shop", OKUnknownEndpoint: true, DenyUnknownDomain: true,
		DescriptorTokens: rls.TokensVerified,
		Names:            rls.Names{Tenant: "t", EndpointID: "e", User: "u", Cookie: "c", Address: []string{"a"}, Authorization: "z"},
		Bounds:           rls.Bounds{Descriptors: 3, Entries: 4, KeyBytes: 5, ValueBytes: 6},
	}
	parts := ignore(rls.Config{}, "Store", "Identifier", "Recorder", "BreakerState")
	if diff := cmp.Diff(wantEngine, engineConfig(s.cfg, store{}, nil, recorder), parts); diff != "" {
		t.Errorf("engine (-want +got):\n%s", diff)
	}

	wantServer := envoy.Config{
		Realm: "shop", ResourceMetadata: "https://api.test/.well-known/oauth-protected-resource",
		Names: envoy.Names{
			MetadataNamespace: "ns", EndpointID: "id", ClientAddressHeader: "x-client",
			TenantHeader: "x-t", SubjectHeader: "x-s", ReasonHeader: "x-r",
			Metadata: envoy.MetadataNames{
				Tenant: "mt", Subject: "ms", Plan: "mp", EndpointID: "me", DecisionID: "md", Reason: "mr", Policy: "mo",
			},
		},
		OmitRateLimitHeaders: true,
		Reflection:           true, MaxMessageBytes: 2048, MaxConcurrentStreams: 7,
		PingMinTime: 11 * time.Second, PingTime: 31 * time.Second, PingTimeout: 6 * time.Second,
		MaxConnectionAge: 11 * time.Minute, MaxConnectionAgeGrace: 31 * time.Second,
	}
	if diff := cmp.Diff(wantServer, serverConfig(s.cfg, nil, recorder, log), ignore(envoy.Config{}, "Engine", "Recorder", "Log")); diff != "" {
		t.Errorf("gRPC server (-want +got):\n%s", diff)
	}

	wantRedis := redis.Config{
		URL:      "rediss+sentinel://127.0.0.1:16379,127.0.0.1:16380/mymaster/2",
		Username: "limiter", PasswordFile: filepath.Join(dir, "password"),
		SentinelUsername: "watcher", SentinelPasswordFile: filepath.Join(dir, "password"),
		Budget: 21 * time.Millisecond, Workers: 3, Queue: 99, AssumeNoeviction: true,
		ProbeKey: "staging:" + redis.DefaultProbeKey,
		Breaker:  rls.BreakerConfig{Failures: 6, Quarantine: 31 * time.Second},
	}
	if _, err := testserver.MakeCertificates(dir); err != nil {
		t.Fatal(err)
	}
	gotRedis, err := redisConfig(s.cfg, recorder, log)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantRedis, gotRedis, ignore(redis.Config{}, "Observer", "TLS")); diff != "" {
		t.Errorf("redis (-want +got):\n%s", diff)
	}
	if gotRedis.TLS.ServerName != "redis.internal" || gotRedis.TLS.RootCAs == nil || gotRedis.TLS.GetClientCertificate == nil {
		t.Errorf("TLS %+v", gotRedis.TLS)
	}
	if diff := cmp.Diff(memory.Config{MaxBuckets: 12}, memoryConfig(s.cfg, recorder), ignore(memory.Config{}, "Overflowed")); diff != "" {
		t.Errorf("memory store (-want +got):\n%s", diff)
	}
}

// Redis' budget is not the memory store's: a process that was paused for longer decides all the same, inside the deadline.
func TestMemoryStoreHasTheCallersTime(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	s, err := newStore(cfg, telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if got := engineConfig(cfg, s, nil, nil).StoreBudget; got < time.Minute {
		t.Errorf("a call of the memory store may take %v", got)
	}
}

// The engine takes a zero reserve for its default; a configured zero must stay next to nothing.
func TestNoReserveIsNotTheDefaultReserve(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Guard.Reserve = 0
	if got := engineConfig(cfg, store{}, nil, nil).Reserve; got != time.Nanosecond {
		t.Errorf("guard.reserve 0s gives the engine %v, want 1ns", got)
	}
}
