package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds that the doc comments state.
const (
	maxJWTKeys       = 16
	maxIssuers       = 16
	maxCacheTokens   = 1_000_000
	maxCookieSecrets = 8
	minCookieSecret  = 32
	minAdminToken    = 16
	maxNameBytes     = 256
)

// tokenAlgorithms are the algorithms of tokens, as package identity implements them.
var tokenAlgorithms = []string{"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"}

// secretBytes is the least that an HMAC secret must have, by algorithm.
var secretBytes = map[string]int{"HS256": 32, "HS384": 48, "HS512": 64}

var (
	headerName = regexp.MustCompile(`^[a-z0-9!#$%&'*+.^_|~-]+$`)
	cookieName = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]+$`)
	keyPrefix  = regexp.MustCompile(`^[A-Za-z0-9._:-]*$`)
)

// validate records every value that is out of range or does not fit another.
func (l *loader) validate() {
	c := &l.cfg
	l.address("grpc.address", c.GRPC.Address)
	l.within("grpc.max_recv_bytes", c.GRPC.MaxRecvBytes, 1024, 64<<20)
	l.within("grpc.max_concurrent_streams", c.GRPC.MaxConcurrentStreams, 1, 1_000_000)
	l.lasts("grpc.keepalive.min_time", c.GRPC.Keepalive.MinTime, time.Second, time.Hour)
	l.lasts("grpc.keepalive.time", c.GRPC.Keepalive.Time, time.Second, 2*time.Hour)
	l.lasts("grpc.keepalive.timeout", c.GRPC.Keepalive.Timeout, time.Second, time.Hour)
	l.lasts("grpc.keepalive.max_connection_age", c.GRPC.Keepalive.MaxConnectionAge, 10*time.Second, 24*time.Hour)
	l.lasts("grpc.keepalive.max_connection_age_grace", c.GRPC.Keepalive.MaxConnectionAgeGrace, time.Second, time.Hour)
	l.address("admin.address", c.Admin.Address)
	for i, p := range c.Policies {
		l.check(p != "", fmt.Sprintf("policies[%d]", i), "is empty", "name a file or a directory")
	}
	l.validateNames()
	l.within("bounds.descriptors", c.Bounds.Descriptors, 1, 1024)
	l.within("bounds.entries", c.Bounds.Entries, 1, 1024)
	l.within("bounds.key_bytes", c.Bounds.KeyBytes, 1, 65536)
	l.within("bounds.value_bytes", c.Bounds.ValueBytes, 1, 65536)
	l.validateRedis()
	l.within("memory.max_buckets", c.Memory.MaxBuckets, 1, 100_000_000)
	l.lasts("guard.reserve", c.Guard.Reserve, 0, time.Second)
	l.lasts("guard.no_deadline", c.Guard.NoDeadline, time.Millisecond, time.Minute)
	l.within("guard.max_in_flight", c.Guard.MaxInFlight, 1, 1_000_000)
	l.lasts("guard.after_state_loss", c.Guard.AfterStateLoss, 0, 24*time.Hour)
	l.lasts("deny_cache.max_age", c.DenyCache.MaxAge, 0, time.Minute)
	l.within("deny_cache.max_buckets", c.DenyCache.MaxBuckets, 1, 10_000_000)
	l.within("breaker.failures", c.Breaker.Failures, 1, 1000)
	l.lasts("breaker.quarantine", c.Breaker.Quarantine, time.Second, time.Hour)
	l.validateJWT()
	l.validateAnonymous()
	l.validateClientAddress()
	l.lasts("shutdown.drain_delay", c.Shutdown.DrainDelay, 0, 5*time.Minute)
	l.lasts("shutdown.grace", c.Shutdown.Grace, time.Second, 5*time.Minute)
}

func (l *loader) check(ok bool, path, text, hint string) {
	if !ok {
		l.reject(path, text, hint)
	}
}

func (l *loader) within(path string, v, least, most int) {
	l.check(v >= least && v <= most, path, fmt.Sprintf("must be %d to %d, not %d", least, most, v), "")
}

func (l *loader) lasts(path string, v, least, most time.Duration) {
	l.check(v >= least && v <= most, path, fmt.Sprintf("must be %s to %s, not %s", short(least), short(most), v), "")
}

// short writes a duration without trailing zero units: 1h rather than 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (l *loader) address(path, v string) {
	_, port, err := net.SplitHostPort(v)
	n, perr := strconv.ParseUint(port, 10, 16)
	ok := err == nil && perr == nil && strconv.FormatUint(n, 10) == port
	l.check(ok, path, fmt.Sprintf("must be HOST:PORT, not %q", clip(v)), "as :8081 or 127.0.0.1:9091")
}

func (l *loader) text(path, v string) {
	l.check(v != "" && len(v) <= maxNameBytes, path, fmt.Sprintf("must have 1 to %d bytes", maxNameBytes), "")
}

func (l *loader) validateNames() {
	e := l.cfg.Names.Entries
	entries := []string{e.Tenant, e.EndpointID, e.User, e.Cookie, e.Authorization}
	paths := []string{
		"names.entries.tenant", "names.entries.endpoint_id", "names.entries.user", "names.entries.cookie", "names.entries.authorization",
	}
	for i, a := range e.Address {
		entries = append(entries, a)
		paths = append(paths, fmt.Sprintf("names.entries.address[%d]", i))
	}
	l.check(len(e.Address) > 0 && len(e.Address) <= 8, "names.entries.address", "must name 1 to 8 entries", "")
	l.distinct(paths, entries)

	l.text("names.metadata.namespace", l.cfg.Names.Metadata.Namespace)
	l.text("names.metadata.endpoint_id", l.cfg.Names.Metadata.EndpointID)

	m := l.cfg.Names.DynamicMetadata
	l.distinct([]string{
		"names.dynamic_metadata.tenant", "names.dynamic_metadata.subject", "names.dynamic_metadata.plan",
		"names.dynamic_metadata.endpoint_id", "names.dynamic_metadata.decision_id", "names.dynamic_metadata.reason",
		"names.dynamic_metadata.policy",
	}, []string{m.Tenant, m.Subject, m.Plan, m.EndpointID, m.DecisionID, m.Reason, m.Policy})

	h := l.cfg.Names.Headers
	l.header("names.headers.tenant", h.Tenant)
	l.header("names.headers.subject", h.Subject)
	l.header("names.headers.reason", h.Reason)
	l.distinct([]string{"names.headers.tenant", "names.headers.subject", "names.headers.reason"},
		[]string{h.Tenant, h.Subject, h.Reason})
}

// distinct requires values that are names and differ from each other.
func (l *loader) distinct(paths, values []string) {
	for i, v := range values {
		l.text(paths[i], v)
		if first := slices.Index(values, v); first < i {
			l.reject(paths[i], fmt.Sprintf("is %q, as %s is", clip(v), paths[first]), "give each its own name")
		}
	}
}

func (l *loader) header(path, v string) {
	l.check(len(v) <= maxNameBytes && headerName.MatchString(v), path,
		fmt.Sprintf("must be a header name in lower case, not %q", clip(v)), "")
}

func (l *loader) validateRedis() {
	r := &l.cfg.Redis
	if r.URL != "" {
		l.redisURL(r.URL)
	}
	scheme, _, _ := strings.Cut(r.URL, "://")
	l.check(r.TLS == (RedisTLS{}) || strings.HasPrefix(scheme, "rediss"), "redis.tls",
		"is set, but redis.url does not begin with rediss", "write rediss for redis in redis.url")
	l.check((r.TLS.CertFile == "") == (r.TLS.KeyFile == ""), "redis.tls.cert_file", "needs redis.tls.key_file, and the other way round", "")
	l.check(r.Sentinel == (Sentinel{}) || strings.HasSuffix(scheme, "+sentinel"), "redis.sentinel",
		"is set, but redis.url names no sentinels", "begin it with redis+sentinel:// or rediss+sentinel://")
	l.check(keyPrefix.MatchString(r.KeyPrefix) && len(r.KeyPrefix) <= maxNameBytes, "redis.key_prefix",
		fmt.Sprintf("must be at most %d letters, digits and . _ : -, not %q", maxNameBytes, clip(r.KeyPrefix)), "")
	l.lasts("redis.budget", r.Budget, time.Millisecond, 10*time.Second)
	l.within("redis.workers", r.Workers, 1, 64)
	l.within("redis.queue", r.Queue, 1, 1_000_000)
}

const redisURLHint = "as redis://127.0.0.1:6379/0, rediss://HOST:6380, redis+sentinel://HOST:26379,HOST:26379/MASTER, " +
	"redis+cluster://HOST:6379,HOST:6379 or unix:///run/redis.sock"

// redisURL never shows the URL, since it may hold a password.
func (l *loader) redisURL(text string) {
	const path = "redis.url"
	text, more := firstHost(text)
	u, err := url.Parse(text)
	if err != nil {
		l.reject(path, "is not a URL", redisURLHint)
		return
	}
	if _, found := u.User.Password(); found {
		l.reject(path, "holds a password", "move it into a file and name that in redis.password_file")
		return
	}
	l.check(u.User == nil, path, "holds a user", "name it in redis.username")
	tail := strings.TrimPrefix(u.Path, "/")
	l.check(u.Scheme == "unix" || u.Hostname() != "", path, "names no host", redisURLHint)
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "6379"), 10, 16)
	l.check(err == nil && port > 0, path, "names a port that is none", "ports are 1 to 65535")
	switch u.Scheme {
	case "redis", "rediss":
		l.check(!more, path, "names several hosts", "begin it with redis+sentinel:// or redis+cluster://")
		l.database(path, tail)
	case "redis+sentinel", "rediss+sentinel":
		master, db, _ := strings.Cut(tail, "/")
		l.check(master != "", path, "names no master", redisURLHint)
		l.database(path, db)
	case "redis+cluster", "rediss+cluster":
		l.check(tail == "" || tail == "0", path, "names a database, of which a cluster has only 0", redisURLHint)
	case "unix":
		l.check(u.Host == "" && strings.HasPrefix(u.Path, "/"), path, "must name a socket by its whole path", redisURLHint)
	default:
		l.reject(path, "must start with redis://, redis+sentinel://, redis+cluster://, the same with rediss, or unix://", redisURLHint)
	}
	l.check(u.RawQuery == "" && u.Fragment == "", path, "has options", "every option is a setting of its own under redis")
}

func (l *loader) database(path, text string) {
	n, err := strconv.ParseUint(text, 10, 16)
	l.check(text == "" || err == nil && strconv.FormatUint(n, 10) == text, path, "must end in the number of a database or in the port", redisURLHint)
}

// firstHost leaves of a list of hosts the first, since net/url knows no lists. The store looks at the others.
func firstHost(text string) (url string, more bool) {
	scheme, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	hosts := strings.LastIndexByte(rest[:end], '@') + 1
	comma := strings.IndexByte(rest[hosts:end], ',')
	if comma < 0 {
		return text, false
	}
	return scheme + "://" + rest[:hosts+comma] + rest[end:], true
}

func (l *loader) validateJWT() {
	j := &l.cfg.JWT
	l.check(len(j.Issuers) <= maxIssuers, "jwt.issuers", fmt.Sprintf("has more than %d issuers", maxIssuers), "")
	l.within("jwt.cache_tokens", j.CacheTokens, 0, maxCacheTokens)
	l.check(j.Realm != "" && len(j.Realm) <= maxNameBytes && !strings.ContainsFunc(j.Realm, func(r rune) bool { return r < ' ' || r > '~' }),
		"jwt.realm", "must be visible ASCII and spaces", "as sentinel")
	if j.ResourceMetadata != "" {
		l.webURL("jwt.resource_metadata", j.ResourceMetadata, "as https://api.example.com/.well-known/oauth-protected-resource")
	}
	if len(j.Issuers) == 0 {
		l.validateIssuer("jwt", &j.TokenIssuer)
		return
	}
	alone := j.TokenIssuer
	l.check(!alone.HasKeys() && alone.Issuer == "" && alone.Audience == "", "jwt",
		"describes an issuer of its own beside jwt.issuers", "move issuer, audience, keys, jwks_file and jwks_url into an item of jwt.issuers")
	for i := range j.Issuers {
		path := fmt.Sprintf("jwt.issuers[%d]", i)
		t := &j.Issuers[i]
		l.check(t.Issuer != "" || len(j.Issuers) == 1, path+".issuer", "is missing", "where there are several issuers, each names its own")
		twin := func(e TokenIssuer) bool { return e.Issuer == t.Issuer && t.Issuer != "" }
		l.check(!slices.ContainsFunc(j.Issuers[:i], twin), path+".issuer", fmt.Sprintf("%q is listed twice", clip(t.Issuer)), "keep one")
		l.check(t.HasKeys(), path, "has no keys", "list keys, or set jwks_file or jwks_url")
		l.validateIssuer(path, t)
	}
}

func (l *loader) validateIssuer(path string, t *TokenIssuer) {
	l.check(len(t.Keys) <= maxJWTKeys, path+".keys", fmt.Sprintf("has more than %d keys", maxJWTKeys), "")
	l.check(len(t.Algorithms) > 0, path+".algorithms", "is empty", "list the algorithms of its keys, as [RS256]")
	published := false // an algorithm whose keys are public
	for i, alg := range t.Algorithms {
		item := fmt.Sprintf("%s.algorithms[%d]", path, i)
		l.check(slices.Contains(tokenAlgorithms, alg), item, fmt.Sprintf("must be one of %s, not %q", strings.Join(tokenAlgorithms, ", "), clip(alg)),
			didYouMean(alg, tokenAlgorithms))
		l.check(slices.Index(t.Algorithms, alg) == i, item, alg+" is listed twice", "keep one")
		published = published || secretBytes[alg] == 0
	}
	for i, k := range t.Keys {
		l.validateKey(fmt.Sprintf("%s.keys[%d]", path, i), k, t.Algorithms, t.Keys[:i])
	}
	l.check(t.JWKSFile == "" && t.JWKSURL == "" || published, path+".algorithms", "has no algorithm for the keys of a JWK set",
		"a set holds public keys only: list the algorithm that the issuer signs with, as [RS256]")
	if t.JWKSURL != "" {
		l.webURL(path+".jwks_url", t.JWKSURL, "as https://id.example.com/.well-known/jwks.json")
	}
	l.lasts(path+".jwks_refresh", t.JWKSRefresh, time.Minute, 24*time.Hour)
	l.lasts(path+".leeway", t.Leeway, 0, 5*time.Minute)
	l.claim(path+".tenant_claim", t.TenantClaim)
	l.claim(path+".scope_claim", t.ScopeClaim)
	if t.PlanClaim != "" {
		l.claim(path+".plan_claim", t.PlanClaim)
	}
}

// webURL checks a URL that is fetched or shown.
func (l *loader) webURL(path, v, hint string) {
	u, err := url.Parse(v)
	ok := err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.Fragment == "" &&
		!strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
	l.check(ok, path, "must be a URL that starts with https:// or http://", hint)
	l.check(!ok || u.User == nil, path, "holds a user or a password", "remove them")
}

func (l *loader) validateKey(path string, k JWTKey, algorithms []string, earlier []JWTKey) {
	l.check(k.Algorithm != "", path+".alg", "is missing", "as HS256 or RS256")
	l.check(k.Algorithm == "" || slices.Contains(algorithms, k.Algorithm), path+".alg",
		k.Algorithm+" is not among the issuer's algorithms", "add it there, or no token of this key is accepted")
	l.check(len(k.KeyID) <= maxNameBytes, path+".kid", fmt.Sprintf("has more than %d bytes", maxNameBytes), "")
	if secretBytes[k.Algorithm] > 0 || k.Algorithm == "" {
		l.check(k.SecretFile != "" || k.Algorithm == "", path+".secret_file", "is missing", "name the file that holds the secret")
		l.check(k.PublicKeyFile == "" || k.Algorithm == "", path+".public_key_file", "is set for "+k.Algorithm, "name the secret's file in secret_file")
	} else {
		l.check(k.PublicKeyFile != "", path+".public_key_file", "is missing", "name the file that holds the public key, in PEM or as a JWK")
		l.check(k.SecretFile == "", path+".secret_file", "is set for "+k.Algorithm, "name the public key's file in public_key_file")
	}
	twin := func(e JWTKey) bool { return e.KeyID == k.KeyID && e.Algorithm == k.Algorithm && k.KeyID != "" }
	l.check(!slices.ContainsFunc(earlier, twin), path+".kid",
		fmt.Sprintf("another %s key has the kid %q", k.Algorithm, clip(k.KeyID)), "a kid names one key")
}

// placedKey is a key of the configuration and its path.
type placedKey struct {
	*JWTKey
	path string
}

// tokenKeys returns the keys of every issuer.
func (l *loader) tokenKeys() (keys []placedKey) {
	add := func(path string, t *TokenIssuer) {
		for i := range t.Keys {
			keys = append(keys, placedKey{&t.Keys[i], fmt.Sprintf("%s.keys[%d]", path, i)})
		}
	}
	add("jwt", &l.cfg.JWT.TokenIssuer)
	for i := range l.cfg.JWT.Issuers {
		add(fmt.Sprintf("jwt.issuers[%d]", i), &l.cfg.JWT.Issuers[i])
	}
	return keys
}

// claim checks the name of a claim, a path by dots unless it holds ://.
func (l *loader) claim(path, v string) {
	l.text(path, v)
	if !strings.Contains(v, "://") {
		l.check(!slices.Contains(strings.Split(v, "."), ""), path, fmt.Sprintf("has an empty part: %q", clip(v)), "as sub or org.id")
		l.check(strings.Count(v, ".") < 8, path, "has more than 8 parts", "")
	}
}

func (l *loader) validateAnonymous() {
	a := &l.cfg.Anonymous
	l.check(len(a.CookieName) <= maxNameBytes && cookieName.MatchString(a.CookieName), "anonymous.cookie_name",
		fmt.Sprintf("must be a cookie name, not %q", clip(a.CookieName)), "letters, digits, - and _")
	prefixed := strings.HasPrefix(a.CookieName, "__Host-") || strings.HasPrefix(a.CookieName, "__Secure-")
	l.check(a.CookieSecure || !prefixed, "anonymous.cookie_secure",
		"must be true for a cookie with that name", "browsers drop "+clip(a.CookieName)+" without Secure")
	l.lasts("anonymous.cookie_ttl", a.CookieTTL, time.Minute, 9600*time.Hour)
	l.check(a.CookieTTL%time.Second == 0, "anonymous.cookie_ttl", "must be whole seconds", "")
	l.check(len(a.CookieSecretFiles) <= maxCookieSecrets, "anonymous.cookie_secret_files",
		fmt.Sprintf("names more than %d files", maxCookieSecrets), "")
	for i, f := range a.CookieSecretFiles {
		l.check(f != "", fmt.Sprintf("anonymous.cookie_secret_files[%d]", i), "is empty", "name the file that holds the secret")
	}
}

func (l *loader) validateClientAddress() {
	a := &l.cfg.ClientAddress
	l.header("client_address.header", a.Header)
	l.within("client_address.hops", a.Hops, 1, 16)
	l.within("client_address.ipv6_prefix", a.IPv6Prefix, 32, 128)
	for i, text := range a.TrustedProxies {
		_, err := ParseNetwork(text)
		l.check(err == nil, fmt.Sprintf("client_address.trusted_proxies[%d]", i),
			fmt.Sprintf("must be a network or an address, not %q", clip(text)), "as 10.0.0.0/8 or 2001:db8::1")
	}
	l.check(len(a.TrustedProxies) <= 256, "client_address.trusted_proxies", "lists more than 256 networks", "")
	l.check(a.From != "xff" || len(a.TrustedProxies) > 0, "client_address.trusted_proxies",
		"is required for from: xff", "list the networks of your proxies; X-Forwarded-For from anyone else is the client's word")
	l.check(a.From == "xff" || len(a.TrustedProxies) == 0, "client_address.trusted_proxies",
		"has no effect with from: "+a.From, "set client_address.from: xff, or remove it")
}

// ParseNetwork reads a network in CIDR form, or a single address as the network that holds only it. Host bits must be 0.
func ParseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s has host bits: did you mean %s?", p, p.Masked())
	}
	return p, nil
}

// validateSecrets checks the length of every secret that was read, and that none serves two purposes.
func (l *loader) validateSecrets() {
	c := &l.cfg
	long := func(path string, s Secret, least int) {
		l.check(s.Empty() || len(s.Reveal()) >= least, path,
			fmt.Sprintf("holds %d bytes, fewer than %d", len(s.Reveal()), least), "as from: openssl rand -hex "+strconv.Itoa(least))
	}
	long("admin.token_file", c.Admin.Token, minAdminToken)
	l.check(!strings.ContainsFunc(c.Admin.Token.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f }), "admin.token_file",
		"holds more than one word of printable ASCII", "as from: openssl rand -hex 16")
	l.check(utf8.ValidString(c.Redis.Password.Reveal()), "redis.password_file", "is not UTF-8 text", "")

	owner := map[string]string{}
	once := func(path string, s Secret) {
		if s.Empty() {
			return
		}
		if other, taken := owner[s.Reveal()]; taken {
			l.reject(path, "holds the same secret as "+other, "make one for each purpose")
			return
		}
		owner[s.Reveal()] = path
	}
	for _, k := range l.tokenKeys() {
		path := k.path + ".secret_file"
		long(path, k.Secret, secretBytes[k.Algorithm])
		l.check(!strings.HasPrefix(strings.TrimSpace(k.Secret.Reveal()), "-----BEGIN "), path,
			"holds a PEM block, which is no HMAC secret", "whoever has that public key could sign tokens")
		once(path, k.Secret)
	}
	for i, s := range c.Anonymous.CookieSecrets {
		path := fmt.Sprintf("anonymous.cookie_secret_files[%d]", i)
		long(path, s, minCookieSecret)
		once(path, s)
	}
}

// CheckIdentities reports what is missing for the policies that are about to be used: tokens says that an endpoint has
// identity tenant_jwt, anonymous that one has identity anonymous. The cookie secret is required if and only if
// anonymous.
func (c Config) CheckIdentities(tokens, anonymous bool) error {
	var problems []error
	add := func(path, text, hint string) {
		problems = append(problems, &Problem{Path: path, Text: text, Hint: hint})
	}
	if tokens && len(c.AllIssuers()) == 0 {
		add("jwt.keys", "is required: an endpoint has identity tenant_jwt",
			"list {alg, kid, secret_file} of the issuer of your tokens, or set jwks_url, or list several issuers in jwt.issuers")
	}
	if anonymous && len(c.Anonymous.CookieSecretFiles) == 0 {
		add("anonymous.cookie_secret_files", "is required: an endpoint has identity anonymous",
			"write the output of openssl rand -hex 32 into a file, the same one for every replica")
	}
	if !anonymous && len(c.Anonymous.CookieSecretFiles) > 0 {
		add("anonymous.cookie_secret_files", "is set, but no endpoint has identity anonymous", "remove it, or set identity: anonymous on an endpoint")
	}
	return errors.Join(problems...)
}
