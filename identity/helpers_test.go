package identity_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"hash"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// now is when every test takes place.
var now = time.Unix(1_750_000_000, 0)

// Test-only secrets, as in the shared vectors.
const (
	secret256 = "test-only-hs256-key-0123456789abc"
	secret384 = "test-only-hs384-key-0123456789abcdef0123456789ab"
	secret512 = "test-only-hs512-key-0123456789abcdef0123456789abcdef0123456789abcdef"
	cookieKey = "test-only-cookie-secret-0123456789abcdef"
	oldCookie = "test-only-old-cookie-secret-0123456789abcdef"
)

// testConfig accepts what the shared vectors assume.
func testConfig() identity.Config {
	return identity.Config{
		Issuers: []identity.Issuer{{
			Issuer:     "https://issuer.test",
			Algorithms: []string{"HS256", "HS384", "HS512"},
			Keys: []identity.KeySource{keySet(
				hmacKey("HS256", "hs256-1", secret256), hmacKey("HS384", "hs384-1", secret384), hmacKey("HS512", "hs512-1", secret512),
			)},
			Audience:    "sentinel",
			TenantClaim: "tenant_id",
		}},
		Cookie: identity.CookieConfig{Secrets: []identity.Secret{identity.Secret(cookieKey), identity.Secret(oldCookie)}},
		Now:    func() time.Time { return now },
	}
}

// hmacKey returns a key that the tests know to be good.
func hmacKey(algorithm, keyID, secret string) identity.Key {
	k, err := identity.NewHMACKey(algorithm, keyID, identity.Secret(secret))
	if err != nil {
		panic(err)
	}
	return k
}

func keySet(keys ...identity.Key) *identity.Keys {
	s, err := identity.NewKeys(keys...)
	if err != nil {
		panic(err)
	}
	return s
}

// onlyKeys replaces the keys of the test's issuer.
func onlyKeys(keys ...identity.Key) func(*identity.Config) {
	return func(c *identity.Config) { c.Issuers[0].Keys = []identity.KeySource{keySet(keys...)} }
}

func newResolver(t testing.TB, change ...func(*identity.Config)) *identity.Resolver {
	t.Helper()
	cfg := testConfig()
	for _, c := range change {
		c(&cfg)
	}
	r, err := identity.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sign makes a token by hand, without the library that verifies it.
func sign(header, payload, secret string) string {
	var h func() hash.Hash
	switch len(secret) {
	case len(secret384):
		h = sha512.New384
	case len(secret512):
		h = sha512.New
	default:
		h = sha256.New
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(header)) + "." + encode([]byte(payload))
	mac := hmac.New(h, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + encode(mac.Sum(nil))
}

const (
	goodHeader  = `{"alg":"HS256","kid":"hs256-1"}`
	goodPayload = `{"iss":"https://issuer.test","aud":"sentinel","sub":"u1","tenant_id":"t1","exp":4102444800}`
)

func bearer(value string) identity.Credentials {
	return identity.Credentials{Authorization: []string{value}}
}

// readCases decodes a file of the shared case collection, which lies beside the checkout.
func readCases(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "shared", "cases", name))
	if err != nil {
		testserver.SkipUnlessCI(t, "the shared case collection is not here: %v", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
