package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// writeFile writes one file of a test and returns its name.
func writeFile(t testing.TB, dir, name, content string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// secretFiles fills a directory with the secrets that complete names.
func secretFiles(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range map[string]string{
		"admin-token": "admin-token-0123456789\n",
		"redis-pass":  "correct horse\r\n",
		"hs256":       strings.Repeat("a", 32) + "\n",
		"hs512":       strings.Repeat("b", 64),
		"cookie-new":  strings.Repeat("c", 32) + "\n",
		"cookie-old":  strings.Repeat("d", 32) + "\n\n",
		"es256.pem":   "-----BEGIN PUBLIC KEY-----\n",
	} {
		writeFile(t, dir, name, content)
	}
	return dir
}

// complete sets every setting to something other than its default.
const complete = `
grpc:
  address: 0.0.0.0:18081
  max_recv_bytes: 1048576
  max_concurrent_streams: 100
  keepalive: {min_time: 20s, time: 1m, timeout: 10s, max_connection_age: 1h, max_connection_age_grace: 1m}
  reflection: true
admin: {address: "[::1]:9092", token_file: admin-token}
policies: [policies, "/etc/sentinel/more.yaml"]
authz: {domain: shop, rate_limit_headers: false}
unknown_endpoint: ok
unknown_domain: over_limit
names:
  entries: {tenant: org, endpoint_id: route, user: person, cookie: anon, authorization: auth, address: [addr]}
  metadata: {namespace: acme, endpoint_id: route}
  dynamic_metadata: {tenant: mt, subject: ms, plan: mp, endpoint_id: me, decision_id: md, reason: mr, policy: mo}
  headers: {tenant: x-org, subject: x-person, reason: x-why}
bounds: {descriptors: 10, entries: 10, key_bytes: 100, value_bytes: 100}
redis:
  url: rediss+sentinel://redis-1.test:26380,redis-2.test/shop/2
  username: sentinel
  password_file: redis-pass
  sentinel: {username: watcher, password_file: redis-pass}
  tls: {ca_file: ca.pem, cert_file: client.pem, key_file: client.key, server_name: redis.test}
  key_prefix: "staging:"
  budget: 100ms
  workers: 3
  queue: 10
  assume_noeviction: true
memory: {max_buckets: 1000}
guard: {reserve: 2ms, no_deadline: 1s, max_in_flight: 100, after_state_loss: 1m}
breaker: {failures: 3, quarantine: 10s}
deny_cache: {max_age: 2s, max_buckets: 100}
jwt:
  keys:
    - {alg: HS256, kid: "1", secret_file: hs256}
    - alg: HS512
      secret_file: hs512
    - {alg: ES256, public_key_file: es256.pem}
  algorithms: [HS256, HS512, ES256]
  jwks_file: jwks.json
  jwks_url: https://issuer.test/jwks
  jwks_refresh: 10m
  audience: sentinel
  issuer: https://issuer.test
  leeway: 1m
  tenant_claim: org.id
  scope_claim: https://acme.test/scope
  plan_claim: plan
  cache_tokens: 100
  in_descriptors: require
  realm: shop
  resource_metadata: https://api.test/.well-known/oauth-protected-resource
anonymous:
  cookie_name: anon
  cookie_ttl: 24h
  cookie_secure: false
  cookie_secret_files: [cookie-new, cookie-old]
client_address: {from: xff, header: x-real-ip, trusted_proxies: [10.0.0.0/8, "2001:db8::1"], hops: 2, ipv6_prefix: 56}
log: {level: debug, format: text}
shutdown: {drain_delay: 10s, grace: 1m}
`

// TestEverySettingFromTheFile: complete changes every setting, which also keeps it complete.
func TestEverySettingFromTheFile(t *testing.T) {
	t.Parallel()
	dir := secretFiles(t)
	c, warnings, err := Load(writeFile(t, dir, "sentinel.yaml", complete), nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	def := Default()
	for f := range leaves(&c) {
		if f.path == "jwt.issuers" {
			continue // stands instead of the settings beside it: TestIssuers
		}
		if d, _ := leafAt(&def, f.path); reflect.DeepEqual(d.value.Interface(), f.value.Interface()) {
			t.Errorf("%s is still %v", f.path, f.value)
		}
	}
	for _, tt := range []struct{ what, got, want any }{
		{"a time", c.GRPC.Keepalive.MaxConnectionAge, time.Hour},
		{"a path relative to the file", c.Policies, []string{filepath.Join(dir, "policies"), "/etc/sentinel/more.yaml"}},
		{"a list", c.Names.Entries.Address, []string{"addr"}},
		{"the admin token", c.Admin.Token.Reveal(), "admin-token-0123456789"},
		{"the password, with CRLF", c.Redis.Password.Reveal(), "correct horse"},
		{"the first key's secret", c.JWT.Keys[0].Secret.Reveal(), strings.Repeat("a", 32)},
		{"the second key's secret", c.JWT.Keys[1].Secret.Reveal(), strings.Repeat("b", 64)},
		{"a public key", string(c.JWT.Keys[2].PublicKey), "-----BEGIN PUBLIC KEY-----\n"},
		{"one newline is cut off", c.Anonymous.CookieSecrets[1].Reveal(), strings.Repeat("d", 32) + "\n"},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s: %s", tt.what, diff)
		}
	}
}

// TestEverySettingFromTheEnvironment sets each field by its variable to what complete says, and finds the same.
func TestEverySettingFromTheEnvironment(t *testing.T) {
	t.Parallel()
	dir := secretFiles(t)
	want, _, err := Load(writeFile(t, dir, "sentinel.yaml", complete), nil)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/bin", "SENTINEL_RLS_ANYTHING=1"}
	names := map[string]string{}
	for f := range leaves(&want) {
		name := EnvName(f.path)
		if other, taken := names[name]; taken {
			t.Errorf("%s sets both %s and %s", name, other, f.path)
		}
		names[name] = f.path
		if f.path == "jwt.issuers" {
			continue
		}
		env = append(env, name+"="+envText(f))
	}
	got, warnings, err := Load("", env)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	reveal := cmp.Transformer("reveal", Secret.Reveal)
	if diff := cmp.Diff(want, got, reveal); diff != "" {
		t.Error(diff)
	}
}

// envText writes a value as its environment variable does.
func envText(f leaf) string {
	switch v := f.value.Interface().(type) {
	case []string:
		return strings.Join(v, " , ")
	case []JWTKey:
		var items []string
		for _, k := range v {
			items = append(items, fmt.Sprintf("{alg: %s, kid: %q, secret_file: %q, public_key_file: %q}", k.Algorithm, k.KeyID, k.SecretFile, k.PublicKeyFile))
		}
		return "[" + strings.Join(items, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// TestPrecedence: flag > environment > file > default.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := writeFile(t, t.TempDir(), "sentinel.yaml", "log: {level: error, format: text}\npolicies: [a]\ngrpc: {address: ':1'}\n")
	env := []string{"SENTINEL_LOG_LEVEL=warn", "SENTINEL_GRPC_ADDRESS=:2", "SENTINEL_POLICIES=b", "SENTINEL_LOG_LEVEL=debug"}
	c, _, err := Load(file, env, Override{Flag: "--grpc", Path: "grpc.address", Values: []string{":3"}},
		Override{Flag: "--policies", Path: "policies", Values: []string{"c,1", "d"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ what, got, want any }{
		{"flag", c.GRPC.Address, ":3"},
		{"a repeated flag is a list, commas and all", c.Policies, []string{"c,1", "d"}},
		{"environment, the first of a repeated name", c.Log.Level, "warn"},
		{"file", c.Log.Format, "text"},
		{"default", c.Admin.Address, "127.0.0.1:9091"},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s: %s", tt.what, diff)
		}
	}
}

func TestDefaultIsValid(t *testing.T) {
	t.Parallel()
	c, warnings, err := Load("", nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if diff := cmp.Diff(Default(), c, cmp.Transformer("reveal", Secret.Reveal)); diff != "" {
		t.Error(diff)
	}
}

// TestProblems has one fault in each file, with the whole text that a person reads.
func TestProblems(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, file, want string }{
		{"CFG-01 a key twice", "grpc:\n  address: :1\n  address: :2\n", "FILE:3: grpc.address: is set twice, first in line 2 (keep one)"},
		{"CFG-01 a section twice", "log: {level: info}\nguard: {}\nlog: {level: debug}\n", "FILE:3: log: is set twice, first in line 1 (keep one)"},
		{"CFG-01 in JSON", `{"breaker": {"failures": 10, "failures": 1000}}`, "FILE:1: breaker.failures: is set twice, first in line 1 (keep one)"},
		{"CFG-01 in a list", "jwt:\n  keys:\n  - alg: HS256\n    alg: HS512\n    secret_file: /dev/null\n", "FILE:4: jwt.keys[0].alg: is set twice, first in line 3 (keep one)\nFILE:5: jwt.keys[0].secret_file: /dev/null: not a regular file (name another file)"},
		{"CFG-05 blank", "breaker:\n  failures:\n", "FILE:2: breaker.failures: has no value (give one, or remove the key to get the default)"},
		{"CFG-05 tilde", "breaker: {failures: ~}\n", "FILE:1: breaker.failures: has no value (give one, or remove the key to get the default)"},
		{"CFG-05 null", `{"breaker": {"failures": null}}`, "FILE:1: breaker.failures: has no value (give one, or remove the key to get the default)"},
		{"CFG-05 a blank section", "breaker:\n", "FILE:1: breaker: has no value (give one, or remove the key to get the default)"},
		{"CFG-05 a required key missing", "jwt: {keys: [{alg: HS256}]}\n", "FILE:1: jwt.keys[0].secret_file: is missing (name the file that holds the secret)"},
		{"CFG-07 a second document", "log: {level: info}\n---\nlog: {level: debug}\n", "FILE:2: a second document starts here (keep one document: remove the line --- or ...)"},
		{"CFG-07 a second document and another problem", "log: {level: loud}\n---\nlog: {level: debug}\n", "FILE:2: a second document starts here (keep one document: remove the line --- or ...)\nFILE:1: log.level: must be one of debug, info, warn, error, not \"loud\""},
		{"CFG-07 an empty second document", "log: {level: info}\n---\n", "FILE:2: a second document starts here (keep one document: remove the line --- or ...)"},
		{"CFG-07 garbage after the end", "log: {level: info}\n...\ngarbage: [\n", "FILE:4: is not YAML: did not find expected node content (look for indentation, a bracket or a quote, here or in the lines above)"},
		{"CFG-07 a second JSON object", `{"log": {}} {"log": {}}`, "FILE:1: is not YAML: did not find expected <document start> (look for indentation, a bracket or a quote, here or in the lines above)"},
		{"CFG-04 octal", "breaker: {failures: 010}\n", `FILE:1: breaker.failures: must be a whole number in decimal digits, not "010"`},
		{"CFG-04 hexadecimal", "breaker: {failures: 0x10}\n", `FILE:1: breaker.failures: must be a whole number in decimal digits, not "0x10"`},
		{"CFG-04 underscores", "breaker: {failures: 1_0}\n", `FILE:1: breaker.failures: must be a whole number in decimal digits, not "1_0"`},
		{"CFG-04 a fraction", "breaker: {failures: 5.0}\n", "FILE:1: breaker.failures: must be a whole number, not the float 5.0"},
		{"CFG-04 in quotes", "breaker: {failures: \"5\"}\n", "FILE:1: breaker.failures: must be a whole number, not text"},
		{"beyond 64 bits", "breaker: {failures: 99999999999999999999}\n", `FILE:1: breaker.failures: must be a whole number, not the float 99999999999999999999`},
		{"an unknown key", "redis:\n  budgte: 10ms\n", "FILE:2: redis.budgte: is no setting (did you mean redis.budget?)"},
		{"an unknown key that belongs elsewhere", "quarantine: 10s\n", "FILE:1: quarantine: is no setting (did you mean breaker.quarantine?)"},
		{"an unknown key like no other", "breaker: {xyzzyplugh: 1}\n", "FILE:1: breaker.xyzzyplugh: is no setting (known here: failures, quarantine)"},
		{"another case", "GRPC: {address: ':1'}\n", "FILE:1: GRPC: is no setting (did you mean grpc?)"},
		{"the name of a Go field", "breaker: {Failures: 1}\n", "FILE:1: breaker.Failures: is no setting (did you mean breaker.failures?)"},
		{"a secret itself", "redis: {password: hunter2}\n", "FILE:1: redis.password: is no setting (did you mean redis.password_file?)"},
		{"a key of -", "admin: {\"-\": x}\n", "FILE:1: admin.-: is no setting (known here: address, token_file)"},
		{"a time without unit", "redis: {budget: 20}\n", "FILE:1: redis.budget: must be a time with its unit, as 20ms or 30s, not the int 20"},
		{"a time with a wrong unit", "redis: {budget: 20 millis}\n", `FILE:1: redis.budget: must be a time with its unit, not "20 millis" (as 20ms, 30s or 1h30m)`},
		{"a word for true", "grpc: {reflection: yes}\n", "FILE:1: grpc.reflection: must be true or false, not text"},
		{"another spelling of true", "grpc: {reflection: TRUE}\n", `FILE:1: grpc.reflection: must be true or false, not "TRUE"`},
		{"a number for text", "jwt: {audience: 123}\n", `FILE:1: jwt.audience: must be text, not the int 123 (quote it: "123")`},
		{"a date for text", "jwt: {audience: 2024-01-01}\n", `FILE:1: jwt.audience: must be text, not the timestamp 2024-01-01 (quote it: "2024-01-01")`},
		{"text for a list", "policies: a.yaml\n", "FILE:1: policies: must be a list, not text (write [a.yaml])"},
		{"a mapping for a list", "policies: {a: b}\n", "FILE:1: policies: must be a list, not a mapping"},
		{"a list for a section", "redis: [a]\n", "FILE:1: redis: must be a mapping of settings, not a list"},
		{"a list for text", "jwt: {audience: [a]}\n", "FILE:1: jwt.audience: must be text, not a list"},
		{"text for the file", "hello\n", "FILE:1: must be a mapping of settings, not text"},
		{"CFG-09 a space that is none", "log:\u00a0{}\n", "FILE:1: must be a mapping of settings, not text"},
		{"CFG-09 a tab", "log:\n\tlevel: info\n", "FILE:2: is not YAML: found character that cannot start any token (look for indentation, a bracket or a quote, here or in the lines above)"},
		{"CFG-09 a control character", "log:\n  level: \"a\x01b\"\n", "FILE:2: holds the control character U+0001 (write plain UTF-8 text)"},
		{"CFG-09 a control character as an escape", "jwt: {issuer: \"a\\x01b\"}\n", "FILE:1: jwt.issuer: must be UTF-8 text without control characters"},
		{"CFG-09 UTF-16", "\xff\xfel\x00", "FILE:1: is not UTF-8 text (write plain UTF-8 text)"},
		{"CFG-09 Latin-1", "jwt:\n  issuer: caf\xe9\n", "FILE:2: is not UTF-8 text (write plain UTF-8 text)"},
		{"CFG-08 an alias", "jwt: {issuer: &x a, audience: b}\n", "FILE:1: jwt.issuer: uses an anchor or alias (write the value itself)"},
		{"CFG-08 a merge key", "log: {<<: {level: info}}\n", "FILE:1: log: has a key that is not plain text (aliases, merge keys and structured keys are not supported)"},
		{"CFG-08 a list that holds itself", "policies: &a [*a]\n", "FILE:1: policies: uses an anchor or alias (write the value itself)"},
		{"a tag", "breaker: {failures: !!int \"5\"}\n", "FILE:1: breaker.failures: has a tag (remove !!int)"},
		{"a structured key", "? [a]\n: b\n", "FILE:1: has a key that is not plain text (aliases, merge keys and structured keys are not supported)"},
		{"an empty file", "", "FILE: is empty (write {} for a configuration of defaults only)"},
		{"only comments", "# nothing\n", "FILE: is empty (write {} for a configuration of defaults only)"},
		{"broken YAML", "log: [\n", "FILE:2: is not YAML: did not find expected node content (look for indentation, a bracket or a quote, here or in the lines above)"},
		{"too deep", strings.Repeat("[", 20000), "FILE:1: is not YAML: exceeded max depth of 10000 (look for indentation, a bracket or a quote, here or in the lines above)"},
		{"a megabyte", strings.Repeat("# comment\n", 1<<17), "FILE: more than 1048576 bytes (name another file)"},
		{"not one of", "log: {level: verbose}\n", `FILE:1: log.level: must be one of debug, info, warn, error, not "verbose"`},
		{"nearly one of", "unknown_endpoint: overlimit\n", `FILE:1: unknown_endpoint: must be one of over_limit, ok, not "overlimit" (did you mean over_limit?)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, t.TempDir(), "sentinel.yaml", tt.file)
			c, _, err := Load(file, nil)
			if got := strings.ReplaceAll(fmt.Sprint(err), file, "FILE"); got != tt.want && strings.TrimPrefix(got, "FILE: ") != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if diff := cmp.Diff(Config{}, c, cmp.Transformer("reveal", Secret.Reveal)); diff != "" {
				t.Error("a configuration beside the error: ", diff)
			}
		})
	}
}

// TestOutOfRange gives each value by its flag, so that every check is met on its own.
func TestOutOfRange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ path, value, want string }{
		{"grpc.address", "8081", `must be HOST:PORT, not "8081" (as :8081 or 127.0.0.1:9091)`},
		{"grpc.address", ":http", `must be HOST:PORT, not ":http" (as :8081 or 127.0.0.1:9091)`},
		{"grpc.address", ":65536", `must be HOST:PORT, not ":65536" (as :8081 or 127.0.0.1:9091)`},
		{"admin.address", "::1:9091", `must be HOST:PORT, not "::1:9091" (as :8081 or 127.0.0.1:9091)`},
		{"grpc.max_recv_bytes", "0", "must be 1024 to 67108864, not 0"},
		{"grpc.max_concurrent_streams", "0", "must be 1 to 1000000, not 0"},
		{"grpc.keepalive.min_time", "999ms", "must be 1s to 1h, not 999ms"},
		{"grpc.keepalive.time", "0s", "must be 1s to 2h, not 0s"},
		{"grpc.keepalive.timeout", "-1s", "must be 1s to 1h, not -1s"},
		{"grpc.keepalive.max_connection_age", "1s", "must be 10s to 24h, not 1s"},
		{"grpc.keepalive.max_connection_age_grace", "2h", "must be 1s to 1h, not 2h0m0s"},
		{"names.entries.tenant", "", "must have 1 to 256 bytes"},
		{"names.entries.tenant", "user", ""},
		{"names.entries.user", "tenant", `is "tenant", as names.entries.tenant is (give each its own name)`},
		{"names.metadata.namespace", "", "must have 1 to 256 bytes"},
		{"names.headers.tenant", "X-Tenant", `must be a header name in lower case, not "X-Tenant"`},
		{"names.headers.reason", "x-sentinel-tenant", `is "x-sentinel-tenant", as names.headers.tenant is (give each its own name)`},
		{"names.headers.subject", "a b", `must be a header name in lower case, not "a b"`},
		{"bounds.descriptors", "0", "must be 1 to 1024, not 0"},
		{"bounds.entries", "1025", "must be 1 to 1024, not 1025"},
		{"bounds.key_bytes", "-1", "must be 1 to 65536, not -1"},
		{"bounds.value_bytes", "65537", "must be 1 to 65536, not 65537"},
		{"redis.url", "127.0.0.1:6379", "is not a URL (" + redisURLHint + ")"},
		{"redis.url", "http://127.0.0.1", "must start with redis://, redis+sentinel://, redis+cluster://, the same with rediss, or unix:// (" + redisURLHint + ")"},
		{"redis.url", "redis://user:hunter2@127.0.0.1", "holds a password (move it into a file and name that in redis.password_file)"},
		{"redis.url", "redis://user@127.0.0.1", "holds a user (name it in redis.username)"},
		{"redis.url", "redis:///0", "names no host (" + redisURLHint + ")"},
		{"redis.url", "redis://127.0.0.1/x", "must end in the number of a database or in the port (" + redisURLHint + ")"},
		{"redis.url", "redis://127.0.0.1?db=1", "has options (every option is a setting of its own under redis)"},
		{"redis.url", "unix://run/redis.sock", "must name a socket by its whole path (" + redisURLHint + ")"},
		{"redis.url", "redis://a,b/1", "names several hosts (begin it with redis+sentinel:// or redis+cluster://)"},
		{"redis.url", "redis+sentinel://a,b", "names no master (" + redisURLHint + ")"},
		{"redis.url", "redis+sentinel://u:hunter2@a,b/m", "holds a password (move it into a file and name that in redis.password_file)"},
		{"redis.url", "rediss+sentinel://a,b/m/x", "must end in the number of a database or in the port (" + redisURLHint + ")"},
		{"redis.url", "redis+cluster://a,b/1", "names a database, of which a cluster has only 0 (" + redisURLHint + ")"},
		{"redis.tls.ca_file", "ca.pem", ""},
		{"redis.sentinel.username", "u", ""},
		{"redis.key_prefix", "a{b}", `must be at most 256 letters, digits and . _ : -, not "a{b}"`},
		{"redis.budget", "0s", "must be 1ms to 10s, not 0s"},
		{"redis.workers", "65", "must be 1 to 64, not 65"},
		{"redis.queue", "0", "must be 1 to 1000000, not 0"},
		{"memory.max_buckets", "0", "must be 1 to 100000000, not 0"},
		{"guard.reserve", "2s", "must be 0s to 1s, not 2s"},
		{"guard.no_deadline", "0s", "must be 1ms to 1m, not 0s"},
		{"guard.max_in_flight", "0", "must be 1 to 1000000, not 0"},
		{"guard.after_state_loss", "-1s", "must be 0s to 24h, not -1s"},
		{"breaker.failures", "0", "must be 1 to 1000, not 0"},
		{"breaker.quarantine", "1ms", "must be 1s to 1h, not 1ms"},
		{"jwt.leeway", "6m", "must be 0s to 5m, not 6m0s"},
		{"jwt.cache_tokens", "-1", "must be 0 to 1000000, not -1"},
		{"jwt.in_descriptors", "off", `must be one of ignore, verify, require, not "off"`},
		{"jwt.realm", "a\u00e9", "must be visible ASCII and spaces (as sentinel)"},
		{"jwt.resource_metadata", "api.test", "must be a URL that starts with https:// or http:// (as https://api.example.com/.well-known/oauth-protected-resource)"},
		{"jwt.resource_metadata", "https://api.test/a\"b", "must be a URL that starts with https:// or http:// (as https://api.example.com/.well-known/oauth-protected-resource)"},
		{"jwt.jwks_refresh", "1s", "must be 1m to 24h, not 1s"},
		{"jwt.plan_claim", "a..b", `has an empty part: "a..b" (as sub or org.id)`},
		{"jwt.tenant_claim", "", "must have 1 to 256 bytes"},
		{"jwt.tenant_claim", "org..id", `has an empty part: "org..id" (as sub or org.id)`},
		{"jwt.scope_claim", "a.b.c.d.e.f.g.h.i", "has more than 8 parts"},
		{"anonymous.cookie_name", "a=b", `must be a cookie name, not "a=b" (letters, digits, - and _)`},
		{"anonymous.cookie_ttl", "59s", "must be 1m to 9600h, not 59s"},
		{"anonymous.cookie_ttl", "90500ms", "must be whole seconds"},
		{"client_address.from", "xff", ""},
		{"client_address.header", "X-Real-IP", `must be a header name in lower case, not "X-Real-IP"`},
		{"client_address.hops", "0", "must be 1 to 16, not 0"},
		{"client_address.ipv6_prefix", "31", "must be 32 to 128, not 31"},
		{"shutdown.drain_delay", "-1s", "must be 0s to 5m, not -1s"},
		{"shutdown.grace", "0s", "must be 1s to 5m, not 0s"},
		{"shutdown", "1s", "is no setting"},
		{"no.such", "1", "is no setting"},
	} {
		want := "flag --x: " + tt.path + ": " + tt.want
		switch tt.path + "=" + tt.value {
		case "names.entries.tenant=user": // the second of two that clash is named
			want = `names.entries.user: is "user", as names.entries.tenant is (give each its own name)`
		case "redis.tls.ca_file=ca.pem":
			want = "redis.tls: is set, but redis.url does not begin with rediss (write rediss for redis in redis.url)"
		case "redis.sentinel.username=u":
			want = "redis.sentinel: is set, but redis.url names no sentinels (begin it with redis+sentinel:// or rediss+sentinel://)"
		case "client_address.from=xff":
			want = "client_address.trusted_proxies: is required for from: xff (list the networks of your proxies; X-Forwarded-For from anyone else is the client's word)"
		}
		_, _, err := Load("", nil, Override{Flag: "--x", Path: tt.path, Values: []string{tt.value}})
		if got := fmt.Sprint(err); got != want {
			t.Errorf("%s = %q:\ngot  %s\nwant %s", tt.path, tt.value, got, want)
		}
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Error("the error shows a password: ", err)
		}
	}
}

func TestListsOutOfRange(t *testing.T) {
	t.Parallel()
	many := func(n int, format string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(items, ", ")
	}
	for _, tt := range []struct{ name, file, want string }{
		{"no algorithms", "jwt: {algorithms: []}", "jwt.algorithms: is empty (list the algorithms of its keys, as [RS256])"},
		{"none", "jwt: {algorithms: [none]}", `jwt.algorithms[0]: must be one of HS256, HS384, HS512, RS256, RS384, RS512, PS256, ES256, ES384, EdDSA, not "none"`},
		{"one that is not implemented", "jwt: {algorithms: [HS256, ES512]}", `jwt.algorithms[1]: must be one of HS256, HS384, HS512, RS256, RS384, RS512, PS256, ES256, ES384, EdDSA, not "ES512" (did you mean HS512?)`},
		{"an algorithm twice", "jwt: {algorithms: [HS256, HS256]}", "jwt.algorithms[1]: HS256 is listed twice (keep one)"},
		{"a key whose algorithm is not allowed", "jwt: {keys: [{alg: HS512, secret_file: hs512}]}", "jwt.keys[0].alg: HS512 is not among the issuer's algorithms (add it there, or no token of this key is accepted)"},
		{"a key without algorithm", "jwt: {keys: [{secret_file: hs256}]}", "jwt.keys[0].alg: is missing (as HS256 or RS256)"},
		{"a kid twice", "jwt: {keys: [{alg: HS256, kid: a, secret_file: hs256}, {alg: HS256, kid: a, secret_file: cookie-new}]}", `jwt.keys[1].kid: another HS256 key has the kid "a" (a kid names one key)`},
		{"a long kid", "jwt: {keys: [{alg: HS256, kid: " + strings.Repeat("k", 257) + ", secret_file: hs256}]}", "jwt.keys[0].kid: has more than 256 bytes"},
		{"a secret for RS256", "jwt: {algorithms: [RS256], keys: [{alg: RS256, secret_file: hs256}]}", "jwt.keys[0].secret_file: is set for RS256 (name the public key's file in public_key_file)"},
		{"RS256 without a public key", "jwt: {algorithms: [RS256], keys: [{alg: RS256}]}", "jwt.keys[0].public_key_file: is missing (name the file that holds the public key, in PEM or as a JWK)"},
		{"a public key for HS256", "jwt: {keys: [{alg: HS256, secret_file: hs256, public_key_file: es256.pem}]}", "jwt.keys[0].public_key_file: is set for HS256 (name the secret's file in secret_file)"},
		{"a JWK set for secrets", "jwt: {jwks_url: 'https://id.test'}", "jwt.algorithms: has no algorithm for the keys of a JWK set (a set holds public keys only: list the algorithm that the issuer signs with, as [RS256])"},
		{"an issuer beside issuers", "jwt: {audience: a, issuers: [{issuer: b, algorithms: [RS256], jwks_url: 'https://b.test'}]}", "jwt: describes an issuer of its own beside jwt.issuers (move issuer, audience, keys, jwks_file and jwks_url into an item of jwt.issuers)"},
		{"an issuer without keys", "jwt: {issuers: [{issuer: b, algorithms: [RS256]}]}", "jwt.issuers[0]: has no keys (list keys, or set jwks_file or jwks_url)"},
		{"an issuer without algorithms", "jwt: {issuers: [{issuer: b, jwks_url: 'https://b.test'}]}", "jwt.issuers[0].algorithms: is empty (list the algorithms of its keys, as [RS256])"},
		{"an issuer without a name beside another", "jwt: {issuers: [{issuer: b, algorithms: [RS256], jwks_url: 'https://b.test'}, {algorithms: [RS256], jwks_url: 'https://b.test'}]}", "jwt.issuers[1].issuer: is missing (where there are several issuers, each names its own)"},
		{"an issuer twice", "jwt: {issuers: [{issuer: b, algorithms: [RS256], jwks_url: 'https://b.test'}, {issuer: b, algorithms: [RS256], jwks_url: 'https://c.test'}]}", `jwt.issuers[1].issuer: "b" is listed twice (keep one)`},
		{"17 issuers", "jwt: {issuers: [" + many(17, "{issuer: i%d, algorithms: [RS256], jwks_url: 'https://b.test'}") + "]}", "jwt.issuers: has more than 16 issuers"},
		{"17 keys", "jwt: {keys: [" + many(17, "{alg: HS256, kid: k%d, secret_file: hs256}") + "]}", "jwt.keys: has more than 16 keys"},
		{"9 cookie secrets", "anonymous: {cookie_secret_files: [" + many(9, "c%d") + "]}", "anonymous.cookie_secret_files: names more than 8 files"},
		{"an empty file name", "anonymous: {cookie_secret_files: ['']}", "anonymous.cookie_secret_files[0]: is empty (name the file that holds the secret)"},
		{"an empty policy", "policies: ['']", "policies[0]: is empty (name a file or a directory)"},
		{"two keys of one name", "names: {dynamic_metadata: {plan: tenant}}", `names.dynamic_metadata.plan: is "tenant", as names.dynamic_metadata.tenant is (give each its own name)`},
		{"no address entries", "names: {entries: {address: []}}", "names.entries.address: must name 1 to 8 entries"},
		{"an address entry that is the tenant's", "names: {entries: {address: [tenant]}}", `names.entries.address[0]: is "tenant", as names.entries.tenant is (give each its own name)`},
		{"host bits", "client_address: {from: xff, trusted_proxies: [10.0.0.1/8]}", `client_address.trusted_proxies[0]: must be a network or an address, not "10.0.0.1/8" (as 10.0.0.0/8 or 2001:db8::1)`},
		{"a name for a proxy", "client_address: {from: xff, trusted_proxies: [localhost]}", `client_address.trusted_proxies[0]: must be a network or an address, not "localhost" (as 10.0.0.0/8 or 2001:db8::1)`},
		{"257 proxies", "client_address: {from: xff, trusted_proxies: [" + many(257, "10.0.%[1]d.0/32") + "]}", "client_address.trusted_proxies: lists more than 256 networks"},
		{"proxies without effect", "client_address: {trusted_proxies: [10.0.0.0/8]}", "client_address.trusted_proxies: has no effect with from: header (set client_address.from: xff, or remove it)"},
		{"a __Host- cookie without Secure", "anonymous: {cookie_name: __Host-a, cookie_secure: false}", "anonymous.cookie_secure: must be true for a cookie with that name (browsers drop __Host-a without Secure)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, secretFiles(t), "sentinel.yaml", tt.file)
			_, _, err := Load(file, nil)
			if got := fmt.Sprint(err); !strings.Contains(got+"\n", file+":1: "+tt.want+"\n") {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestEveryProblemAtOnce: one run of the program shows all there is to mend, in each source.
func TestEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	file := writeFile(t, t.TempDir(), "sentinel.yaml", `grpc: {adress: ":1", max_recv_bytes: 1}
redis:
  url: redis://:hunter2@host
  workers: many
guard: {reserve: 1h}
`)
	env := []string{"SENTINEL_LOG_LEVEL=loud", "SENTINEL_REDIS_BUDGET=", "SENTINEL_JWT_KEYS=hs256", "SENTINEL_POLICIES=[a"}
	c, _, err := Load(file, env, Override{Flag: "--admin", Path: "admin.address", Values: []string{"x"}},
		Override{Flag: "--grpc", Path: "grpc.address", Values: []string{":1", ":2"}})
	want := []string{
		"FILE:1: grpc.adress: is no setting (did you mean grpc.address?)",
		"FILE:4: redis.workers: must be a whole number, not text",
		`environment SENTINEL_LOG_LEVEL: log.level: must be one of debug, info, warn, error, not "loud"`,
		`environment SENTINEL_REDIS_BUDGET: redis.budget: must be a time with its unit, not "" (as 20ms, 30s or 1h30m)`,
		"environment SENTINEL_JWT_KEYS: jwt.keys: must be a YAML list (as [{alg: HS256, secret_file: /run/secrets/hs256}])",
		"environment SENTINEL_POLICIES: policies: is not YAML: did not find expected ',' or ']' (look for indentation, a bracket or a quote, here or in the lines above)",
		"flag --grpc: grpc.address: takes one value (give the flag once)",
		"FILE:1: grpc.max_recv_bytes: must be 1024 to 67108864, not 1",
		`flag --admin: admin.address: must be HOST:PORT, not "x" (as :8081 or 127.0.0.1:9091)`,
		"FILE:3: redis.url: holds a password (move it into a file and name that in redis.password_file)",
		"FILE:5: guard.reserve: must be 0s to 1s, not 1h0m0s",
	}
	got := strings.Split(strings.ReplaceAll(fmt.Sprint(err), file, "FILE"), "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if problems := Problems(err); len(problems) != len(want) || problems[1].Line != 4 || problems[1].Path != "redis.workers" {
		t.Errorf("problems: %v", problems)
	}
	if c.GRPC.Address != "" {
		t.Error("a configuration beside the error")
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	_, warnings, err := Load("", []string{
		"SENTINEL_GRPC_ADRESS=:1",
		"SENTINEL_GRPC_PORT=8081", // a person's guess, not Kubernetes' link
		"SENTINEL_WHATEVER=1",
		"SENTINEL_=1",
		"SENTINEL_RLS_CONFIG=1", // another product's
		"SENTINEL_SERVICE_HOST=10.0.0.1",
		"SENTINEL_SERVICE_PORT=8081",
		"SENTINEL_SERVICE_PORT_GRPC=8081",
		"SENTINEL_PORT=tcp://10.0.0.1:8081",
		"SENTINEL_PORT_8081_TCP=tcp://10.0.0.1:8081",
		"SENTINEL_PORT_8081_TCP_PROTO=tcp",
		"SENTINEL_PORT_8081_TCP_PORT=8081",
		"SENTINEL_PORT_8081_TCP_ADDR=10.0.0.1",
		"SENTINEL_REDIS_SERVICE_HOST=10.0.0.2",
		"SENTINEL_REDIS_PORT=tcp://10.0.0.2:6379",
		"sentinel_log_level=debug",
		"OTHER=1",
		"SENTINEL",
		"",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Warning{
		{"SENTINEL_GRPC_ADRESS", "sets nothing; did you mean SENTINEL_GRPC_ADDRESS?"},
		{"SENTINEL_GRPC_PORT", "sets nothing; did you mean SENTINEL_GRPC_ADDRESS?"},
		{"SENTINEL_WHATEVER", "sets nothing"},
		{"SENTINEL_", "sets nothing"},
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Error(diff)
	}
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct{ name, file, want string }{
		{"missing", filepath.Join(dir, "none.yaml"), "no such file or directory"},
		{"a directory", dir, "not a regular file (name another file)"},
		{"a device", os.DevNull, "not a regular file (name another file)"},
	} {
		if _, _, err := Load(tt.file, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestCFG_09_AcceptedEncodings: a byte order mark and CRLF are what Windows editors write.
func TestCFG_09_AcceptedEncodings(t *testing.T) {
	t.Parallel()
	c, _, err := Load(writeFile(t, t.TempDir(), "sentinel.yaml", "\xef\xbb\xbflog:\r\n  level: debug\r\n"), nil)
	if err != nil || c.Log.Level != "debug" {
		t.Errorf("got %q, %v", c.Log.Level, err)
	}
}

// TestCFG_08_AliasBomb: aliases are never followed, so nothing can grow.
func TestCFG_08_AliasBomb(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("a: &a [x, x, x, x, x, x, x, x, x]\n")
	for c := 'b'; c < 'j'; c++ {
		fmt.Fprintf(&bomb, "%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
	}
	start := time.Now()
	_, _, err := Load(writeFile(t, t.TempDir(), "sentinel.yaml", bomb.String()+"policies: *i\n"), nil)
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("took %v", took)
	}
	if err == nil || !strings.Contains(err.Error(), "policies: uses an anchor or alias") {
		t.Error(err)
	}
}

func TestCheckIdentities(t *testing.T) {
	t.Parallel()
	keys := func(c *Config) { c.JWT.Keys = []JWTKey{{Algorithm: "HS256"}} }
	cookies := func(c *Config) { c.Anonymous.CookieSecretFiles = []string{"a"} }
	for _, tt := range []struct {
		name              string
		tokens, anonymous bool
		change            []func(*Config)
		want              []string // the paths with a problem
	}{
		{"no policies", false, false, nil, nil},
		{"tokens and keys", true, false, []func(*Config){keys}, nil},
		{"tokens and no keys", true, false, nil, []string{"jwt.keys"}},
		{"keys and no tokens", false, false, []func(*Config){keys}, nil}, // an unknown endpoint asks for a token too
		{"anonymous and a secret", false, true, []func(*Config){cookies}, nil},
		{"anonymous and no secret", false, true, nil, []string{"anonymous.cookie_secret_files"}},
		{"a secret and nothing anonymous", true, false, []func(*Config){keys, cookies}, []string{"anonymous.cookie_secret_files"}},
		{"both missing", true, true, nil, []string{"jwt.keys", "anonymous.cookie_secret_files"}},
	} {
		c := Default()
		for _, change := range tt.change {
			change(&c)
		}
		var got []string
		for _, p := range Problems(c.CheckIdentities(tt.tokens, tt.anonymous)) {
			got = append(got, p.Path)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestParseNetwork(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"10.0.0.1", "10.0.0.1/32"},
		{"2001:db8::/32", "2001:db8::/32"},
		{"2001:db8::1", "2001:db8::1/128"},
		{"10.0.0.1/8", ""},
		{"fe80::1%eth0", ""},
		{"010.0.0.1", ""},
		{"", ""},
	} {
		p, err := ParseNetwork(tt.text)
		if (err == nil) != (tt.want != "") || err == nil && p != netip.MustParsePrefix(tt.want) {
			t.Errorf("%q: got %v, %v; want %q", tt.text, p, err, tt.want)
		}
	}
}

// TestIssuers: each item of the list has the defaults of an issuer, and paths, secrets and keys of its own.
func TestIssuers(t *testing.T) {
	t.Parallel()
	dir := secretFiles(t)
	c, _, err := Load(writeFile(t, dir, "sentinel.yaml", `jwt:
  issuers:
    - issuer: https://a.test
      algorithms: [HS256]
      keys: [{alg: HS256, secret_file: hs256}]
    - {issuer: "https://b.test", algorithms: [RS256, ES256], jwks_url: "https://b.test/jwks", leeway: 0s, tenant_claim: org.id}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := defaultIssuer(), defaultIssuer()
	a.Issuer, a.Algorithms = "https://a.test", []string{"HS256"}
	a.Keys = []JWTKey{{Algorithm: "HS256", SecretFile: filepath.Join(dir, "hs256"), Secret: NewSecret(strings.Repeat("a", 32))}}
	b.Issuer, b.Algorithms, b.JWKSURL = "https://b.test", []string{"RS256", "ES256"}, "https://b.test/jwks"
	b.Leeway, b.TenantClaim = 0, "org.id"
	if diff := cmp.Diff([]TokenIssuer{a, b}, c.AllIssuers(), cmp.Transformer("reveal", Secret.Reveal)); diff != "" {
		t.Error(diff)
	}
	if err := c.CheckIdentities(true, false); err != nil {
		t.Error(err)
	}
}

func TestWebURLs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, want string }{
		{"https://id.test/jwks?tenant=a", ""},
		{"http://127.0.0.1:8080/jwks", ""},
		{"file:///etc/passwd", "must be a URL"},
		{"https:///jwks", "must be a URL"},
		{"https://id.test/ jwks", "must be a URL"},
		{"https://id.test/#fragment", "must be a URL"},
		{"https://user:hunter2@id.test/jwks", "holds a user or a password"},
	} {
		_, _, err := Load("", nil, Override{Flag: "--x", Path: "jwt.jwks_url", Values: []string{tt.url}},
			Override{Flag: "--y", Path: "jwt.algorithms", Values: []string{"RS256"}})
		if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) || strings.Contains(got, "hunter2") {
			t.Errorf("%s: got %v, want %q", tt.url, err, tt.want)
		}
	}
}
