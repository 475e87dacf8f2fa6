// Package config reads the process configuration: what a running sentinel-rls is told once, at start. Policies are
// package descriptors' and change while it runs.
//
// A value comes from, strongest first: a flag, the environment, the file, [Default]. The file is strict YAML; every
// problem in every source is reported at once, with its place and a way to mend it. The environment variable of a field
// is SENTINEL_ and its YAML path in upper case, joined by _: SENTINEL_REDIS_URL is redis.url.
//
// The doc comments of [Config] and of the types below are the manual: docs/config.md is generated from them.
package config

import "time"

// Config is the process configuration. It is complete and consistent when [Load] returned it without an error; it is
// never modified after that.
type Config struct {
	// The gRPC server that Envoy calls: RateLimitService, ext_authz and health on one port.
	GRPC GRPC `yaml:"grpc"`

	// The HTTP server for operators: metrics, health, diagnostics.
	Admin Admin `yaml:"admin"`

	// Policy files, and directories whose *.yaml, *.yml and *.json files are read. With none, nothing is limited and
	// every Check is answered as an unknown endpoint.
	Policies []string `yaml:"policies" kind:"path"`

	// How ext_authz finds its policies.
	Authz Authz `yaml:"authz"`

	// The answer to a known native domain when the descriptors name no endpoint, or one without a policy: over_limit or
	// ok. Set ok while a domain's endpoints are still being written down; each such call is counted either way.
	UnknownEndpoint string `yaml:"unknown_endpoint" enum:"over_limit,ok"`

	// The answer to a domain that no policy file names: ok or over_limit. Envoy may ask about domains that other rate
	// limit services own, so ok is the default; set over_limit when this is the only one.
	UnknownDomain string `yaml:"unknown_domain" enum:"ok,over_limit"`

	// What the parts of a request and of an answer are called. Change one when it clashes with a name in your Envoy
	// configuration.
	Names Names `yaml:"names"`

	// How much one rate limit request may carry. A request beyond a bound is refused (over limit) and counted.
	Bounds Bounds `yaml:"bounds"`

	// The shared store. Without redis.url the limits are kept in this process's memory.
	Redis Redis `yaml:"redis"`

	// The store that is used without redis.url. Its limits hold per process.
	Memory Memory `yaml:"memory"`

	// How an answer is kept inside the caller's deadline.
	Guard Guard `yaml:"guard"`

	// When the store is left alone because it does not answer.
	Breaker Breaker `yaml:"breaker"`

	// Denials answered from memory while they certainly hold.
	DenyCache DenyCache `yaml:"deny_cache"`

	// Bearer tokens, which name the tenant of endpoints with identity tenant_jwt.
	JWT JWT `yaml:"jwt"`

	// Callers of endpoints with identity anonymous.
	Anonymous Anonymous `yaml:"anonymous"`

	// Where ext_authz reads the client's address, for limits with the scope client_ip.
	ClientAddress ClientAddress `yaml:"client_address"`

	// The log, on standard error.
	Log Log `yaml:"log"`

	// What happens on SIGTERM.
	Shutdown Shutdown `yaml:"shutdown"`
}

// GRPC is the server that Envoy calls.
type GRPC struct {
	// Host and port to listen on; an empty host means every address.
	Address string `yaml:"address"`

	// The largest message in bytes, 1024 to 67108864. Raise it when ext_authz sends large request bodies.
	MaxRecvBytes int `yaml:"max_recv_bytes"`

	// Calls in flight on one connection, 1 to 1000000. Envoy keeps one connection per worker thread and opens another
	// when this is reached.
	MaxConcurrentStreams int `yaml:"max_concurrent_streams"`

	// Pings and the age of connections.
	Keepalive Keepalive `yaml:"keepalive"`

	// Whether gRPC reflection is served, which lets tools like grpcurl list the services without their proto files.
	// Anyone who reaches the port may then ask.
	Reflection bool `yaml:"reflection"`
}

// Keepalive is how connections are kept and ended.
type Keepalive struct {
	// The shortest time between two pings of a client, 1s to 1h. An Envoy whose connection_keepalive.interval is
	// shorter has its connections closed (too_many_pings).
	MinTime time.Duration `yaml:"min_time"`

	// How long a connection may be idle before the server pings it, 1s to 2h.
	Time time.Duration `yaml:"time"`

	// How long that ping may stay unanswered before the connection is closed, 1s to 1h.
	Timeout time.Duration `yaml:"timeout"`

	// How old a connection may become before it is closed in good order, 10s to 24h. Envoy then connects anew, which
	// spreads its calls over replicas that started later.
	MaxConnectionAge time.Duration `yaml:"max_connection_age"`

	// How long calls on such a connection may still run, 1s to 1h.
	MaxConnectionAgeGrace time.Duration `yaml:"max_connection_age_grace"`
}

// Admin is the HTTP server for operators.
type Admin struct {
	// Host and port to listen on. Metrics and health have no password, so keep it on loopback or behind a network
	// policy; set 0.0.0.0:9091 in a container whose probes and scrapes come from outside.
	Address string `yaml:"address"`

	// A file that holds the token (Authorization: Bearer) for /policies and profiling, at least 16 characters. Without
	// it they answer only on a loopback address.
	TokenFile string `yaml:"token_file" kind:"path"`

	// Token is what TokenFile held; empty without one.
	Token Secret `yaml:"-"`
}

// Authz is how ext_authz finds its policies.
type Authz struct {
	// The native domain that ext_authz looks in. Empty: every native domain, since endpoint ids are unique over all.
	Domain string `yaml:"domain"`

	// Whether clients are told RateLimit-Limit, -Remaining and -Reset. Retry-After on refusals stays. In the ratelimit
	// filter Envoy's enable_x_ratelimit_headers decides.
	RateLimitHeaders bool `yaml:"rate_limit_headers"`
}

// Names are the names that requests and answers use.
type Names struct {
	// Descriptor entry keys that mean something in native domains; other entries are ignored and counted.
	Entries EntryNames `yaml:"entries"`

	// Where ext_authz finds the endpoint id: a namespace and a key of the route's metadata, or the key alone among the
	// route's context extensions.
	Metadata MetadataNames `yaml:"metadata"`

	// The keys of the dynamic metadata that ext_authz answers with, for later filters and access logs. Envoy itself puts
	// it into the namespace envoy.filters.http.ext_authz.
	DynamicMetadata DynamicMetadataNames `yaml:"dynamic_metadata"`

	// Headers that sentinel-rls sets.
	Headers HeaderNames `yaml:"headers"`
}

// EntryNames are descriptor entry keys. They are distinct.
type EntryNames struct {
	// The tenant.
	Tenant string `yaml:"tenant"`

	// The endpoint id.
	EndpointID string `yaml:"endpoint_id"`

	// The user within the tenant.
	User string `yaml:"user"`

	// The anonymous cookie's value.
	Cookie string `yaml:"cookie"`

	// The Authorization header's value, or the token alone. Read only where jwt.in_descriptors says so.
	Authorization string `yaml:"authorization"`

	// The client's address or network; the first one present counts.
	Address []string `yaml:"address"`
}

// MetadataNames are the place of the endpoint id in route metadata.
type MetadataNames struct {
	// The namespace of the route's metadata. Envoy sends it only when route_metadata_context_namespaces lists it.
	Namespace string `yaml:"namespace"`

	// The key within the namespace, and the name of the context extension.
	EndpointID string `yaml:"endpoint_id"`
}

// DynamicMetadataNames are keys of dynamic metadata. They are distinct; what is unknown about a request is left out.
type DynamicMetadataNames struct {
	// The verified tenant.
	Tenant string `yaml:"tenant"`

	// The verified subject.
	Subject string `yaml:"subject"`

	// The plan that the token names, where jwt.plan_claim is set.
	Plan string `yaml:"plan"`

	// The endpoint id.
	EndpointID string `yaml:"endpoint_id"`

	// The decision's id, as in the log and in the error document.
	DecisionID string `yaml:"decision_id"`

	// The reason of the decision.
	Reason string `yaml:"reason"`

	// The policy and limit that decided.
	Policy string `yaml:"policy"`
}

// HeaderNames are the headers that sentinel-rls sets. They are distinct and in lower case.
type HeaderNames struct {
	// The verified tenant, towards the upstream; a copy that the client sent is always removed.
	Tenant string `yaml:"tenant"`

	// The verified subject, towards the upstream; a copy that the client sent is always removed.
	Subject string `yaml:"subject"`

	// Why a request was refused, towards the client.
	Reason string `yaml:"reason"`
}

// Bounds cap what one rate limit request may carry.
type Bounds struct {
	// Descriptors per request, 1 to 1024.
	Descriptors int `yaml:"descriptors"`

	// Entries per descriptor, 1 to 1024.
	Entries int `yaml:"entries"`

	// Bytes of one entry's key, 1 to 65536.
	KeyBytes int `yaml:"key_bytes"`

	// Bytes of one entry's value, 1 to 65536.
	ValueBytes int `yaml:"value_bytes"`
}

// Redis is the shared store.
type Redis struct {
	// One server: redis://HOST:PORT/DB or unix:///PATH. The master that Redis Sentinel names:
	// redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB, with the hosts of the sentinels. Redis Cluster:
	// redis+cluster://HOST:PORT,HOST:PORT, with some of its hosts. With rediss in place of redis, connections use TLS.
	// Redis 6.2 or Valkey 7.2 at least, with maxmemory-policy noeviction. Empty: the memory store.
	URL string `yaml:"url"`

	// The ACL user; empty means the server's default user.
	Username string `yaml:"username"`

	// A file that holds the password, read again for each connection. Never written into the URL, which shows up in process
	// lists and logs.
	PasswordFile string `yaml:"password_file" kind:"path"`

	// Password is what PasswordFile held; empty without one.
	Password Secret `yaml:"-"`

	// How this process logs in to the sentinels, which have users of their own.
	Sentinel Sentinel `yaml:"sentinel"`

	// How servers and sentinels are verified where the URL begins with rediss.
	TLS RedisTLS `yaml:"tls"`

	// Text before every key, so that several environments share one Redis: letters, digits and . _ : - only. Changing
	// it starts every bucket afresh.
	KeyPrefix string `yaml:"key_prefix"`

	// The most that one store call may take, 1ms to 10s. Envoy's rate limit filter waits 20ms unless told otherwise;
	// raise both together.
	Budget time.Duration `yaml:"budget"`

	// Workers that send batches to one server, each on a connection of its own, 1 to 64. Measured: more than 2 gain
	// nothing. To a server whose round trips last longer than 2ms they set out one after the other, so that of two
	// workers a call waits for half a round trip at most before its own.
	Workers int `yaml:"workers"`

	// Calls that may wait for a worker of one server, 1 to 1000000. When it is full, further calls are answered as if the
	// store were unavailable.
	Queue int `yaml:"queue"`

	// Takes it as given that the server evicts no keys, where a managed server does not let INFO be read.
	AssumeNoeviction bool `yaml:"assume_noeviction"`
}

// Sentinel is how the sentinels are asked.
type Sentinel struct {
	// The ACL user; empty means the sentinels' default user.
	Username string `yaml:"username"`

	// A file that holds the password, read again for each connection.
	PasswordFile string `yaml:"password_file" kind:"path"`

	// Password is what PasswordFile held; empty without one.
	Password Secret `yaml:"-"`
}

// RedisTLS is how connections to Redis are encrypted.
type RedisTLS struct {
	// A file of the certificates, in PEM, that sign those of the servers. Empty: the system's.
	CAFile string `yaml:"ca_file" kind:"path"`

	// A file with this process's certificate, for servers that ask for one, read again for each connection.
	CertFile string `yaml:"cert_file" kind:"path"`

	// The file with its key.
	KeyFile string `yaml:"key_file" kind:"path"`

	// The name that the servers' certificates carry. Empty: the host that is connected to.
	ServerName string `yaml:"server_name"`
}

// Memory is the store inside the process.
type Memory struct {
	// Buckets kept, 1 to 100000000, about 60 bytes each. When full, buckets that are as if untouched go first; then
	// new keys share one bucket per limit.
	MaxBuckets int `yaml:"max_buckets"`
}

// Guard keeps answers inside the caller's deadline.
type Guard struct {
	// Kept back from the caller's deadline for the way back, 0s to 1s. Never more than half of the time left.
	Reserve time.Duration `yaml:"reserve"`

	// The deadline of a call that came without one, 1ms to 1m.
	NoDeadline time.Duration `yaml:"no_deadline"`

	// Calls to the store that may be under way, 1 to 1000000. Beyond them requests are answered as if it were unavailable:
	// a process that cannot keep up answers from what is local while there is time, instead of too late.
	MaxInFlight int `yaml:"max_in_flight"`

	// How long after Redis was found to have lost state a fail-open policy admits only what both Redis and the emergency
	// cap admit, 0s to 24h; 0s: not at all. The cap remembers what was spent, so that callers do not get a full burst again;
	// make it as large as what you admit in health before you set this.
	AfterStateLoss time.Duration `yaml:"after_state_loss"`
}

// DenyCache answers denials from memory. A denied request changes nothing, so it stays denied until its Retry-After has
// passed; a caller over its limit then costs the store one call in max_age. Limits with refunds are left out.
type DenyCache struct {
	// No denial rests on a state of the store that is older, 0s to 1m; 0s turns the cache off. A bucket that another
	// process resets is denied for this long at most.
	MaxAge time.Duration `yaml:"max_age"`

	// How many buckets are remembered, 1 to 10000000, at about 300 bytes each. Denials beyond them are asked of the store.
	MaxBuckets int `yaml:"max_buckets"`
}

// Breaker leaves a store alone that does not answer.
type Breaker struct {
	// Consecutive failed round trips that open it, 1 to 1000.
	Failures int `yaml:"failures"`

	// How long it stays open before one call probes the store again, 1s to 1h.
	Quarantine time.Duration `yaml:"quarantine"`
}

// JWT is how bearer tokens are verified. Its first settings are those of the only issuer; several issuers stand in a list.
type JWT struct {
	TokenIssuer

	// Several issuers instead of the one described by the settings above, at most 16, each with these same settings. A
	// token belongs to the issuer that its iss claim names, whose key it must verify with.
	Issuers []TokenIssuer `yaml:"issuers"`

	// Verified tokens kept in memory, so that a token is verified once and not at each request, 0 to 1000000; 0: none.
	// Some 500 bytes each. A kept token is used until it expires or the keys of its issuer change.
	CacheTokens int `yaml:"cache_tokens"`

	// What the descriptor entry names.entries.authorization means at endpoints with identity tenant_jwt. ignore: nothing.
	// verify: where it stands, the token in it is verified, and names tenant and user instead of the entries of those
	// names. require: it must stand there. A bad token, or a missing one that is required, is over the limit with
	// x-sentinel-reason UNAUTHENTICATED, and nothing is counted. For deployments with the rate limit filter alone.
	InDescriptors string `yaml:"in_descriptors" enum:"ignore,verify,require"`

	// The protection space that 401 and 403 answers name, as realm in WWW-Authenticate. Visible ASCII and spaces.
	Realm string `yaml:"realm"`

	// The URL of the API's protected resource metadata (RFC 9728), which 401 and 403 answers name as resource_metadata so
	// that clients find the authorization server. Empty: none is named.
	ResourceMetadata string `yaml:"resource_metadata"`
}

// TokenIssuer is one issuer of tokens.
type TokenIssuer struct {
	// What a token's iss claim must be. Empty: not checked, which only the sole issuer may say.
	Issuer string `yaml:"issuer"`

	// The algorithms that are accepted, of HS256, HS384, HS512, RS256, RS384, RS512, PS256, ES256, ES384, EdDSA. A key
	// verifies one algorithm: its own, or for a published key without alg the first of these that fits it.
	Algorithms []string `yaml:"algorithms"`

	// Keys that do not change while the process runs, at most 16. Several keys let them rotate: add the new one, move the
	// issuer, remove the old one. Every endpoint with identity tenant_jwt needs an issuer with keys, jwks_file or jwks_url.
	Keys []JWTKey `yaml:"keys"`

	// A file with a JWK set, looked at every 5 seconds: a key that is removed from it stops working within 10. When it is
	// unreadable later, the keys that were read stay.
	JWKSFile string `yaml:"jwks_file" kind:"path"`

	// Where the issuer publishes its JWK set, https:// or http://. It is fetched in the background; while it cannot be,
	// the keys stay. Nothing vouches for keys that come over http:// from another machine.
	JWKSURL string `yaml:"jwks_url"`

	// How often jwks_url is fetched, 1m to 24h. A key that the issuer removes stops working within this time and 10s more;
	// publish a new key this long before you use it. A token that names an unknown key brings the next fetch forward, to
	// 30s after the last at the earliest.
	JWKSRefresh time.Duration `yaml:"jwks_refresh"`

	// What a token's aud claim must contain. Empty: not checked. Set it when the issuer serves other services too, or
	// their tokens work here.
	Audience string `yaml:"audience"`

	// How far clocks may differ when exp, nbf and iat are checked, 0s to 5m.
	Leeway time.Duration `yaml:"leeway"`

	// The claim that names the tenant. A dot steps into an object (org.id); a name that contains :// is taken whole.
	TenantClaim string `yaml:"tenant_claim"`

	// The claim that holds the scopes, as one text separated by spaces or as a list.
	ScopeClaim string `yaml:"scope_claim"`

	// The claim that holds the caller's plan, as text, which dynamic metadata passes on. Empty: none.
	PlanClaim string `yaml:"plan_claim"`
}

// defaultIssuer is an issuer of which nothing is said. Its algorithms must be.
func defaultIssuer() TokenIssuer {
	return TokenIssuer{Leeway: 30 * time.Second, TenantClaim: "sub", ScopeClaim: "scope", JWKSRefresh: 5 * time.Minute}
}

// setDefaults is called for each item of a list before it is read.
func (t *TokenIssuer) setDefaults() { *t = defaultIssuer() }

// all returns every issuer: those of the list, else the one that jwt itself describes.
func (j JWT) all() []TokenIssuer {
	if len(j.Issuers) > 0 {
		return j.Issuers
	}
	return []TokenIssuer{j.TokenIssuer}
}

// HasKeys reports whether tokens of the issuer can be verified.
func (t TokenIssuer) HasKeys() bool { return len(t.Keys) > 0 || t.JWKSFile != "" || t.JWKSURL != "" }

// AllIssuers returns the issuers that have keys: those of jwt.issuers, else the one that jwt itself describes.
func (c Config) AllIssuers() (issuers []TokenIssuer) {
	for _, t := range c.JWT.all() {
		if t.HasKeys() {
			issuers = append(issuers, t)
		}
	}
	return issuers
}

// JWTKey is one key.
type JWTKey struct {
	// The only algorithm that this key verifies.
	Algorithm string `yaml:"alg" enum:"HS256,HS384,HS512,RS256,RS384,RS512,PS256,ES256,ES384,EdDSA"`

	// The key id that tokens name as kid. Empty: that of the JWK, else the key is tried for every token of its algorithm.
	KeyID string `yaml:"kid"`

	// For HS256, HS384, HS512: a file that holds the secret, at least 32, 48, 64 bytes. One newline at the end is cut off.
	SecretFile string `yaml:"secret_file" kind:"path"`

	// For all others: a file that holds the public key, in PEM (PUBLIC KEY) or as a JWK.
	PublicKeyFile string `yaml:"public_key_file" kind:"path"`

	// Secret is what SecretFile held.
	Secret Secret `yaml:"-"`

	// PublicKey is what PublicKeyFile held.
	PublicKey []byte `yaml:"-"`
}

// Anonymous is the cookie that tells callers apart before they log in.
type Anonymous struct {
	// The cookie's name. With the prefix __Host- or __Secure- browsers demand cookie_secure.
	CookieName string `yaml:"cookie_name"`

	// How long a cookie is valid, in whole seconds, 1m to 9600h. A caller without a valid one is limited by address
	// alone and gets a new one.
	CookieTTL time.Duration `yaml:"cookie_ttl"`

	// Whether the cookie is sent over HTTPS only. Set false for a test without TLS.
	CookieSecure bool `yaml:"cookie_secure"`

	// Files that hold the secrets, at least 32 bytes each, at most 8, none of them a secret of jwt.keys. The first
	// signs; all are accepted, so put a new one first and remove the old one after cookie_ttl. Required if an endpoint
	// has identity anonymous, and refused otherwise.
	CookieSecretFiles []string `yaml:"cookie_secret_files" kind:"path"`

	// CookieSecrets is what CookieSecretFiles held.
	CookieSecrets []Secret `yaml:"-"`
}

// ClientAddress is where the client's address comes from.
type ClientAddress struct {
	// header: a request header that Envoy overwrites. peer: the connection's address as Envoy reports it. xff:
	// X-Forwarded-For, where the peer is a trusted proxy.
	From string `yaml:"from" enum:"header,peer,xff"`

	// The header for from: header. Envoy must overwrite it on every request, or clients choose their own address.
	Header string `yaml:"header"`

	// Networks (or addresses) of the proxies whose X-Forwarded-For is believed; required for from: xff.
	TrustedProxies []string `yaml:"trusted_proxies"`

	// How many proxies of your own append to X-Forwarded-For, 1 to 16. The client is the entry that many from the
	// right. Too few: everyone shares a proxy's bucket. Too many: clients choose their address.
	Hops int `yaml:"hops"`

	// The length in bits of the IPv6 network that counts as one client, 32 to 128. Providers hand out a /64 or more, so
	// a longer one lets a client rotate its address.
	IPv6Prefix int `yaml:"ipv6_prefix"`
}

// Log is what is logged and how.
type Log struct {
	// debug, info, warn or error.
	Level string `yaml:"level" enum:"debug,info,warn,error"`

	// json, or text for reading at a terminal.
	Format string `yaml:"format" enum:"json,text"`
}

// Shutdown is how the process stops. Both together should stay under the platform's own limit (Kubernetes:
// terminationGracePeriodSeconds, 30 unless set).
type Shutdown struct {
	// How long it keeps answering after it reported itself not ready, so that Envoy notices first, 0s to 5m.
	DrainDelay time.Duration `yaml:"drain_delay"`

	// How long calls in flight may take after that, 1s to 5m.
	Grace time.Duration `yaml:"grace"`
}

// Default returns the configuration of a process that was told nothing: the memory store, and no policies.
func Default() Config {
	jwt := JWT{TokenIssuer: defaultIssuer(), CacheTokens: 32768, InDescriptors: "ignore", Realm: "sentinel"}
	jwt.Algorithms = []string{"HS256"}
	return Config{
		GRPC: GRPC{
			Address:              ":8081",
			MaxRecvBytes:         4 << 20,
			MaxConcurrentStreams: 1024,
			Keepalive: Keepalive{
				MinTime:               10 * time.Second,
				Time:                  30 * time.Second,
				Timeout:               5 * time.Second,
				MaxConnectionAge:      10 * time.Minute,
				MaxConnectionAgeGrace: 30 * time.Second,
			},
		},
		Admin:           Admin{Address: "127.0.0.1:9091"},
		UnknownEndpoint: "over_limit",
		UnknownDomain:   "ok",
		Names: Names{
			Entries: EntryNames{
				Tenant:        "tenant",
				EndpointID:    "endpoint_id",
				User:          "user",
				Cookie:        "cookie",
				Authorization: "authorization",
				Address:       []string{"remote_address", "masked_remote_address"},
			},
			Metadata: MetadataNames{Namespace: "sentinel", EndpointID: "endpoint_id"},
			DynamicMetadata: DynamicMetadataNames{
				Tenant:     "tenant",
				Subject:    "subject",
				Plan:       "plan",
				EndpointID: "endpoint_id",
				DecisionID: "decision_id",
				Reason:     "reason",
				Policy:     "policy",
			},
			Headers: HeaderNames{
				Tenant:  "x-sentinel-tenant",
				Subject: "x-sentinel-subject",
				Reason:  "x-sentinel-reason",
			},
		},
		Authz:   Authz{RateLimitHeaders: true},
		Bounds:  Bounds{Descriptors: 64, Entries: 32, KeyBytes: 256, ValueBytes: 8192},
		Redis:   Redis{Budget: 20 * time.Millisecond, Workers: 2, Queue: 4096},
		Memory:  Memory{MaxBuckets: 200_000},
		Guard:   Guard{Reserve: 10 * time.Millisecond, NoDeadline: 200 * time.Millisecond, MaxInFlight: 512},
		Breaker: Breaker{Failures: 5, Quarantine: 30 * time.Second},

		DenyCache: DenyCache{MaxAge: time.Second, MaxBuckets: 65536},
		JWT:       jwt,
		Anonymous: Anonymous{
			CookieName:   "sentinel_anon_id",
			CookieTTL:    720 * time.Hour,
			CookieSecure: true,
		},
		ClientAddress: ClientAddress{From: "header", Header: "x-sentinel-client-ip", Hops: 1, IPv6Prefix: 64},
		Log:           Log{Level: "info", Format: "json"},
		Shutdown:      Shutdown{DrainDelay: 5 * time.Second, Grace: 20 * time.Second},
	}
}
