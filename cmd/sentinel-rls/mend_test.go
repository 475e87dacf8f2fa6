package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What stops a start is one line that says where and what, and how to mend it. "|" stands between both in want.
func TestEveryErrorSaysHowToMendIt(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	dir := shop(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"short": "short\n", "hello": "hello\n", "broken.yaml": "log: [\n", "loud.yaml": "log: {level: loud}\n", "bytes.yaml": "\x00",
		"not-policies.yaml": "domain: [\n", "misspelt.yaml": "domain: shop\nendpoints: {a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited, mod: shadow}}\n", "empty.yaml": "",
		"key.pem": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(in("nothing"), 0o700); err != nil {
		t.Fatal(err)
	}
	with := func(args ...string) []string {
		return append([]string{"serve", "--config", in("sentinel.yaml"), "--grpc", ephemeral, "--admin", ephemeral}, args...)
	}
	for _, c := range []struct {
		name string
		args []string
		env  string
		code int
		want string
	}{
		{"no configuration file", []string{"serve", "--config", in("none.yaml")}, "", exitInvalid, `none.yaml: no such file or directory|name a file that is there`},
		{"a directory as configuration", []string{"serve", "--config", dir}, "", exitInvalid, `not a regular file|name another file`},
		{"broken YAML", []string{"serve", "--config", in("broken.yaml")}, "", exitInvalid, `broken.yaml:2: is not YAML|look for indentation, a bracket`},
		{"no text", []string{"serve", "--config", in("bytes.yaml")}, "", exitInvalid, `bytes.yaml:1: holds the control character|write plain UTF-8`},
		{"a wrong value", []string{"serve", "--config", in("loud.yaml")}, "", exitInvalid, `loud.yaml:1: log.level: |must be one of debug, info`},
		{"no policies there", []string{"serve", "--policies", in("none")}, "", exitInvalid, `none: no such file or directory|name an existing file`},
		{"no policy in a directory", []string{"serve", "--policies", in("nothing")}, "", exitInvalid, `nothing: no policy file|add a`},
		{"broken policies", []string{"serve", "--policies", in("not-policies.yaml")}, "", exitInvalid, `not-policies.yaml:2: not YAML|look for indentation`},
		{"a misspelt policy", []string{"serve", "--policies", in("misspelt.yaml")}, "", exitInvalid, `misspelt.yaml:2: endpoints.a.mod: unknown key|did you mean mode?`},
		{"an empty policy file", []string{"serve", "--policies", in("empty.yaml")}, "", exitInvalid, `empty.yaml: the file is empty|holds domain and endpoints`},
		{"the gRPC port in use", with("--grpc", taken.Addr().String()), "", exitFailure, `grpc.address 127.0.0.1:|set another with --grpc`},
		{"the admin port in use", with("--admin", taken.Addr().String()), "", exitFailure, `admin.address 127.0.0.1:|set another with --admin`},
		{"no address", with("--grpc", "8081"), "", exitInvalid, `grpc.address: must be HOST:PORT|as :8081`},
		{"no Redis URL", with("--redis", "127.0.0.1:6379"), "", exitInvalid, `redis.url: is not a URL|as redis://127.0.0.1:6379`},
		{"another scheme", with("--redis", "http://h"), "", exitInvalid, `redis.url: must start with redis://|as redis://`},
		{"a port that is none", with("--redis", "redis://h:99999"), "", exitInvalid, `redis.url: names a port that is none|1 to 65535`},
		{"a password in the URL", with("--redis", "redis://:x@h"), "", exitInvalid, `redis.url: holds a password|redis.password_file`},
		{"Redis without policies", []string{"serve", "--redis", "redis://h"}, "", exitInvalid, `redis.url: needs policies|add --policies PATH or --config FILE`},
		{"no authorities", with("--redis", "rediss://h"), "SENTINEL_REDIS_TLS_CA_FILE=" + in("none"), exitInvalid, `redis.tls: .*no such file|name files in PEM`},
		{"no certificate", with("--redis", "rediss://h"), "SENTINEL_REDIS_TLS_CA_FILE=" + in("hello"), exitInvalid, `redis.tls: .*hello holds no certificate|name files in PEM`},
		{"TLS without rediss", with("--redis", "redis://h"), "SENTINEL_REDIS_TLS_CA_FILE=" + in("hello"), exitInvalid, `redis.tls: is set, but|write rediss`},
		{"no password file", with("--redis", "redis://h"), "SENTINEL_REDIS_PASSWORD_FILE=" + in("none"), exitInvalid, `redis.password_file: .*no such file|name a file that is there`},
		{"a short token", with(), "SENTINEL_ADMIN_TOKEN_FILE=" + in("short"), exitInvalid, `admin.token_file: holds 5 bytes|openssl rand`},
		{"a short secret", with(), "SENTINEL_JWT_KEYS=[{alg: HS256, secret_file: " + in("short") + "}]", exitInvalid, `secret_file: holds 5 bytes|openssl rand`},
		{
			"no public key", with(), "SENTINEL_JWT_ALGORITHMS=RS256;SENTINEL_JWT_KEYS=[{alg: RS256, public_key_file: " + in("hello") + "}]", exitInvalid,
			`public_key_file: neither a PEM block nor a JWK|openssl pkey`,
		},
		{
			"a private key", with(), "SENTINEL_JWT_ALGORITHMS=RS256;SENTINEL_JWT_KEYS=[{alg: RS256, public_key_file: " + in("key.pem") + "}]", exitInvalid,
			`public_key_file: a PEM block "PRIVATE KEY"|openssl pkey`,
		},
		{"no command", nil, "", exitUsage, `expected a command|serve, validate`},
		{"another command", []string{"sevre"}, "", exitUsage, `unknown command sevre|did you mean serve?`},
		{"another flag", []string{"serve", "--polices", "x"}, "", exitUsage, `unknown flag --polices|did you mean --policies?`},
		{"nothing to validate", []string{"validate"}, "", exitUsage, `expected a PATH|see sentinel-rls validate --help`},
		{
			"another endpoint",
			[]string{"reset", "--config", in("sentinel.yaml"), "--endpoint", "order", "--tenant", "a"},
			"", exitUsage,
			`no policy has the endpoint "order"|did you mean orders?`,
		},
		{"no server", []string{"healthcheck", "--grpc", "127.0.0.1:1"}, "", exitFailure, `127.0.0.1:1: |--grpc names another address`},
		{"no admin server", []string{"top", "--admin", "127.0.0.1:1"}, "", exitFailure, `127.0.0.1:1: |--admin names another address`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), c.args, strings.Split(c.env, ";"), &stdout, &stderr)
			what, mend, _ := strings.Cut(c.want, "|")
			said := stderr.String()
			if code != c.code || strings.Count(said, "\n") != 1 {
				t.Fatalf("exit code %d, want %d and one line:\n%s", code, c.code, said)
			}
			if at := regexp.MustCompile(what).FindStringIndex(said); at == nil || !strings.Contains(said[at[0]:], mend) {
				t.Errorf("it says\n%swant %q, and after that %q", said, what, mend)
			}
		})
	}
}
