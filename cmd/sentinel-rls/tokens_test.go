package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"

	"github.com/sentinel-rls/sentinel-rls/config"
	"github.com/sentinel-rls/sentinel-rls/identity"
)

// provider is an identity provider with one key, which may be away.
type provider struct {
	key  *ecdsa.PrivateKey
	url  string
	away atomic.Bool
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if p.away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, p.set(t))
	}))
	t.Cleanup(server.Close)
	p.url = server.URL + "/jwks"
	return p
}

func (p *provider) set(t *testing.T) string {
	t.Helper()
	point, err := p.key.PublicKey.Bytes()
	if err != nil {
		t.Error(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","kid":"es","x":%q,"y":%q}]}`, encode(point[1:33]), encode(point[33:]))
}

func (p *provider) pem(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(&p.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func (p *provider) token(t *testing.T, issuer, subject, keyID string) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.RegisteredClaims{
		Issuer: issuer, Subject: subject, ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	token.Header["kid"] = keyID
	signed, err := token.SignedString(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// Several issuers, each with another source of keys, in one process.
func TestServeWithIssuers(t *testing.T) {
	t.Parallel()
	byURL, byFile, byPEM := newProvider(t), newProvider(t), newProvider(t)
	dir := files(t, map[string]string{
		"sentinel.yaml": fmt.Sprintf(`
policies: [policies]
jwt:
  issuers:
    - {issuer: https://url.test, algorithms: [ES256], jwks_url: %q}
    - {issuer: https://file.test, algorithms: [ES256], jwks_file: jwks.json}
    - {issuer: https://pem.test, algorithms: [ES256], keys: [{alg: ES256, kid: es, public_key_file: key.pem}]}
`, byURL.url),
		"jwks.json": byFile.set(t), "key.pem": byPEM.pem(t), "policies/shop.yaml": shopPolicies,
	})
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"))
	conn := dial(t, p.grpcAddr)
	for _, tt := range []struct {
		name  string
		token string
		want  int
	}{
		{"a published key", byURL.token(t, "https://url.test", "a", "es"), 200},
		{"a key in a file", byFile.token(t, "https://file.test", "b", "es"), 200},
		{"a key in PEM", byPEM.token(t, "https://pem.test", "c", "es"), 200},
		{"one issuer's key in another's name", byURL.token(t, "https://pem.test", "a", "es"), 401},
		{"an unknown key", byURL.token(t, "https://url.test", "a", "other"), 401},
	} {
		if got := check(t, conn, "orders", tt.token); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	if code, body := get(t, p.instance, "/readyz"); code != 200 || strings.Contains(body, "jwks_stale") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	for series, want := range map[string]string{
		fmt.Sprintf("sentinel_jwks_keys{source=%q}", byURL.url):                         "1",
		fmt.Sprintf("sentinel_jwks_fetches_total{outcome=\"ok\",source=%q}", byURL.url): "1",
		fmt.Sprintf("sentinel_jwks_keys{source=%q}", filepath.Join(dir, "jwks.json")):   "1",
		`sentinel_unauthenticated_total{service="ext_authz"}`:                           "2",
	} {
		if got := metric(t, p.instance, series); got != want {
			t.Errorf("%s = %s, want %s", series, got, want)
		}
	}
	record, ok := logRecord(p.log(), "credential refused")
	if !ok || record["check"] != "another issuer" || len(fmt.Sprint(record["credential_hash"])) != 64 || record["endpoint_id"] != "orders" {
		t.Errorf("the log says of the first refused credential: %v", record)
	}
}

// A provider that is away does not keep the process from serving: its tokens are answered with 503, the process is ready
// and degraded, and heals by itself.
func TestServeWithoutProvider(t *testing.T) {
	t.Parallel()
	provider := newProvider(t)
	provider.away.Store(true)
	dir := files(t, map[string]string{
		"sentinel.yaml": fmt.Sprintf("policies: [policies]\njwt: {algorithms: [ES256], jwks_url: %q}\n", provider.url), "policies/shop.yaml": shopPolicies,
	})
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"))
	conn := dial(t, p.grpcAddr)
	good := provider.token(t, "", "a", "es")
	if got := check(t, conn, "orders", good); got != http.StatusServiceUnavailable {
		t.Errorf("without keys: %d, want 503", got)
	}
	if got := check(t, conn, "orders", "abc"); got != http.StatusUnauthorized {
		t.Errorf("what is no token at all: %d, want 401", got)
	}
	if code, body := get(t, p.instance, "/readyz"); code != 200 || !strings.Contains(body, `"jwks_stale"`) {
		t.Errorf("/readyz: %d %s, want ready and degraded", code, body)
	}
	provider.away.Store(false)
	for deadline := time.Now().Add(30 * time.Second); check(t, conn, "orders", good) != http.StatusOK; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not heal:\n%s", p.log())
		}
	}
	if _, body := get(t, p.instance, "/readyz"); strings.Contains(body, "jwks_stale") {
		t.Errorf("/readyz after it healed: %s", body)
	}
}

// What is wrong with a key is found before anything is served, by validate too, with the setting that names it.
func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	provider := newProvider(t)
	dir := files(t, map[string]string{
		"policies/shop.yaml": shopPolicies, "key.pem": provider.pem(t), "text": "hello", "secret": secret, "set.json": `{"keys":7}`,
	})
	for i, tt := range []struct{ jwt, want string }{
		{`{algorithms: [RS256], keys: [{alg: RS256, public_key_file: key.pem}]}`, "jwt.keys[0].public_key_file: RS256 does not verify with a key on the curve P-256"},
		{`{algorithms: [ES256], keys: [{alg: ES256, public_key_file: text}]}`, "jwt.keys[0].public_key_file: neither a PEM block nor a JWK"},
		{`{issuers: [{algorithms: [ES256], keys: [{alg: ES256, public_key_file: text}]}]}`, "jwt.issuers[0].keys[0].public_key_file: neither"},
		{`{algorithms: [ES256], jwks_file: set.json}`, "it has no list of keys"},
		{`{algorithms: [ES256], jwks_file: nosuchfile}`, "no such file"},
	} {
		name := filepath.Join(dir, fmt.Sprint(i, ".yaml"))
		if err := os.WriteFile(name, []byte("policies: [policies]\njwt: "+tt.jwt+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"validate", "serve"} {
			code, out := runToTheEnd(t, nil, command, "--config", name)
			if code != exitInvalid || !strings.Contains(out, tt.want) {
				t.Errorf("%s with %s: code %d, want %d and %q\n%s", command, tt.jwt, code, exitInvalid, tt.want, out)
			}
		}
	}
}

// The configuration knows the algorithms that are implemented, and no other.
func TestAlgorithmsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	var accepted []string
	for _, name := range append(identity.Algorithms(), "none", "ES512", "ES256K", "PS512") {
		_, _, err := config.Load("", nil, config.Override{Flag: "--x", Path: "jwt.algorithms", Values: []string{name}})
		if err == nil {
			accepted = append(accepted, name)
		}
	}
	if !slices.Equal(accepted, identity.Algorithms()) {
		t.Errorf("jwt.algorithms accepts %v, implemented are %v", accepted, identity.Algorithms())
	}
}

// A caller with a token has an address too: limits by client_ip tell two addresses of one tenant apart.
func TestAddressOfATokensCaller(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"sentinel.yaml": shopConfig, "secret": secret,
		"policies/shop.yaml": strings.Replace(shopPolicies, "scope: tenant, algorithm: token_bucket, capacity: 10, refill: 0",
			"scope: client_ip, algorithm: sliding_window, limit: 1, window: 24h", 1),
	})
	p := serve(t, nil, "--config", filepath.Join(dir, "sentinel.yaml"))
	conn := dial(t, p.grpcAddr)
	ask := func(address string) int {
		r := checkRequest("orders", token(t, "alice"))
		headers := r.GetAttributes().GetRequest().GetHttp().GetHeaderMap()
		headers.Headers = append(headers.Headers, &corev3.HeaderValue{Key: "x-sentinel-client-ip", RawValue: []byte(address)})
		resp, err := authv3.NewAuthorizationClient(conn).Check(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return int(resp.GetStatus().GetCode())
	}
	for i, step := range []struct {
		address string
		want    codes.Code
	}{
		{"203.0.113.1", codes.OK}, {"203.0.113.1", codes.ResourceExhausted}, {"203.0.113.2", codes.OK}, {"", codes.OK}, {"nonsense", codes.ResourceExhausted},
	} {
		if got := ask(step.address); got != int(step.want) {
			t.Errorf("step %d, from %q: %d, want %d", i+1, step.address, got, step.want)
		}
	}
}
