package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

// pair is a key pair for one algorithm.
type pair struct {
	algorithm string
	private   crypto.Signer
}

// pairs returns one pair for each algorithm that signs with a private key; the RSA algorithms share one.
var pairs = sync.OnceValue(func() map[string]pair {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	must(err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	all := map[string]pair{}
	for algorithm, key := range map[string]crypto.Signer{
		"RS256": rsaKey, "RS384": rsaKey, "RS512": rsaKey, "PS256": rsaKey, "ES256": p256, "ES384": p384, "EdDSA": ed,
	} {
		all[algorithm] = pair{algorithm, key}
	}
	return all
})

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// sign signs a token's header and payload by hand of the library.
func (p pair) sign(keyID, payload string) string {
	header := fmt.Sprintf(`{"alg":%q,"kid":%q}`, p.algorithm, keyID)
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(header)) + "." + encode([]byte(payload))
	signature, err := jwt.GetSigningMethod(p.algorithm).Sign(text, p.private)
	must(err)
	return text + "." + encode(signature)
}

func (p pair) key(keyID string) identity.Key {
	k, err := identity.NewPublicKey(p.algorithm, keyID, p.private.Public())
	must(err)
	return k
}

func (p pair) pem() []byte {
	der, err := x509.MarshalPKIXPublicKey(p.private.Public())
	must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// jwk writes the public key as an entry of a JWK set, with more members as name and JSON value in turns; an empty value
// leaves a member out.
func (p pair) jwk(members ...string) string {
	encode := base64.RawURLEncoding.EncodeToString
	entry := map[string]json.RawMessage{"alg": json.RawMessage(fmt.Sprintf("%q", p.algorithm)), "use": json.RawMessage(`"sig"`)}
	set := func(name, text string) { entry[name] = json.RawMessage(fmt.Sprintf("%q", text)) }
	switch key := p.private.Public().(type) {
	case *rsa.PublicKey:
		set("kty", "RSA")
		set("n", encode(key.N.Bytes()))
		set("e", encode(big.NewInt(int64(key.E)).Bytes()))
	case *ecdsa.PublicKey:
		point, err := key.Bytes()
		must(err)
		size := (len(point) - 1) / 2
		set("kty", "EC")
		set("crv", key.Params().Name)
		set("x", encode(point[1:1+size]))
		set("y", encode(point[1+size:]))
	case ed25519.PublicKey:
		set("kty", "OKP")
		set("crv", "Ed25519")
		set("x", encode(key))
	}
	for i := 0; i < len(members); i += 2 {
		if members[i+1] == "" {
			delete(entry, members[i])
		} else {
			entry[members[i]] = json.RawMessage(members[i+1])
		}
	}
	text, err := json.Marshal(entry)
	must(err)
	return string(text)
}

func jwkSet(entries ...string) []byte { return []byte(`{"keys":[` + strings.Join(entries, ",") + `]}`) }

// asymmetric is the test's issuer with those algorithms and sources.
func asymmetric(algorithms []string, sources ...identity.KeySource) func(*identity.Config) {
	return func(c *identity.Config) { c.Issuers[0].Algorithms, c.Issuers[0].Keys = algorithms, sources }
}

// Every algorithm verifies with its own key, however the key was read, and with no other algorithm's.
func TestEveryAlgorithm(t *testing.T) {
	t.Parallel()
	var public []string
	for _, name := range identity.Algorithms() {
		if identity.HMACBytes(name) == 0 {
			public = append(public, name)
		}
	}
	if len(public) != len(pairs()) {
		t.Fatalf("algorithms %v, pairs for %d", public, len(pairs()))
	}
	for _, name := range public {
		p := pairs()[name]
		fromPEM, err := identity.ParsePublicKey(p.pem(), name, "k")
		if err != nil {
			t.Fatal(err)
		}
		fromJWK, err := identity.ParsePublicKey([]byte(p.jwk("kid", `"k"`)), name, "")
		if err != nil {
			t.Fatal(err)
		}
		published, skipped, err := identity.ParseJWKS(jwkSet(p.jwk("kid", `"k"`)), public)
		if err != nil || len(skipped) > 0 || published.Len() != 1 {
			t.Fatal(skipped, err)
		}
		for how, keys := range map[string]*identity.Keys{
			"PEM": keySet(fromPEM), "JWK": keySet(fromJWK), "set": published, "key": keySet(p.key("k")),
		} {
			r := newResolver(t, asymmetric(public, keys))
			token := p.sign("k", goodPayload)
			if id, err := r.Tenant(bearer("Bearer " + token)); err != nil || id.Tenant != "t1" {
				t.Errorf("%s from a %s: got %+v, %v", name, how, id, err)
			}
			for other, q := range pairs() {
				if other == name {
					continue
				}
				_, err := r.Tenant(bearer("Bearer " + q.sign("k", goodPayload)))
				if !errors.Is(err, identity.ErrInvalid) {
					t.Errorf("JWT-22 a %s token verified with the key of %s: %v", other, name, err)
				}
			}
			if _, err := r.Tenant(bearer("Bearer " + token[:len(token)-8] + "AAAAAAAA")); !errors.Is(err, identity.ErrInvalid) {
				t.Errorf("%s from a %s: a changed signature gives %v", name, how, err)
			}
		}
	}
}

// JWT-20: what a published set must not have is left out with one reason each, and takes nothing else away.
func TestJWT_20_KeySetHygiene(t *testing.T) {
	t.Parallel()
	allowed := []string{"RS256", "ES256", "ES384", "EdDSA"}
	rs, es := pairs()["RS256"], pairs()["ES256"]
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	must(err)
	tiny := pair{"RS256", weak}
	good := rs.jwk("kid", `"good"`)
	for _, tt := range []struct{ name, entry, why string }{
		{"RSA 1024", tiny.jwk("kid", `"a"`), "1024 bits"},
		{"RSA with e=1", rs.jwk("kid", `"a"`, "e", `"AQ"`), "exponent 1"},
		{"RSA with e=3", rs.jwk("kid", `"a"`, "e", `"Aw"`), "exponent 3"},
		{"RSA with an even e", rs.jwk("kid", `"a"`, "e", `"AQAC"`), "exponent 65538"},
		{"RSA with e of 64 bits", rs.jwk("kid", `"a"`, "e", `"__________8"`), "unreadable"},
		{"RSA of 16384 bits", rs.jwk("kid", `"a"`, "n", `"`+strings.Repeat("_", 2731)+`"`), "unreadable"},
		{"n with padding", rs.jwk("kid", `"a"`, "n", `"AQAB=="`), "unreadable"},
		{"n missing", rs.jwk("kid", `"a"`, "n", ""), "unreadable"},
		{"a shared secret", `{"kty":"oct","kid":"a","alg":"HS256","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}`, "shared secret"},
		{"use enc", rs.jwk("kid", `"a"`, "use", `"enc"`), "(use)"},
		{"key_ops without verify", rs.jwk("kid", `"a"`, "key_ops", `["encrypt"]`), "(key_ops)"},
		{"an algorithm that is not allowed", pairs()["PS256"].jwk("kid", `"a"`), "not allowed"},
		{"an algorithm of another kind", es.jwk("kid", `"a"`, "alg", `"RS256"`), "alg does not use"},
		{"a key id twice", rs.jwk("kid", `"good"`), "another RS256 key"},
		{"an unknown kty", `{"kty":"DSA","kid":"a"}`, "unknown kty"},
		{"an unknown curve", `{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA","kid":"a"}`, "another curve"},
		{"a point beside the curve", es.jwk("kid", `"a"`, "y", `"`+strings.Repeat("A", 43)+`"`), "no point"},
		{"X25519", pairs()["EdDSA"].jwk("kid", `"a"`, "crv", `"X25519"`), "no Ed25519 key"},
		{"a private key", rs.jwk("kid", `"a"`, "d", `"AQAB"`), "private key"},
		{"a kid that is a number", rs.jwk("kid", `1`), "kid is not text"},
		{"a kid of 257 bytes", rs.jwk("kid", `"`+strings.Repeat("k", 257)+`"`), "256 bytes"},
		{"a member twice", `{"kty":"RSA","kty":"EC"}`, "unique names"},
		{"names in capitals", strings.ReplaceAll(rs.jwk("kid", `"a"`), `"kty"`, `"KTY"`), "unknown kty"},
		{"no object", `"key"`, "unique names"},
		{"null", `null`, "unique names"},
	} {
		for _, entries := range [][]string{{good, tt.entry}, {tt.entry, good}} {
			keys, skipped, err := identity.ParseJWKS(jwkSet(entries...), allowed)
			if err != nil || len(skipped) != 1 || !strings.Contains(skipped[0], tt.why) || !slices.Equal(keys.Names(), []string{"RS256 good"}) {
				t.Errorf("%s: keys %v, left out %q, %v; want one reason with %q, and the good key", tt.name, keys.Names(), skipped, err, tt.why)
			}
		}
	}
	t.Run("500 keys", func(t *testing.T) {
		entries := make([]string, 500)
		for i := range entries {
			entries[i] = es.jwk("kid", fmt.Sprintf(`"k%d"`, i))
		}
		keys, skipped, err := identity.ParseJWKS(jwkSet(append(entries, good)...), allowed)
		if err != nil || len(skipped) > 0 || keys.Len() != 501 {
			t.Errorf("%d keys, %v, %v", keys.Len(), skipped, err)
		}
	})
	t.Run("more than are looked at", func(t *testing.T) {
		entries := slices.Repeat([]string{`{"kty":"x"}`}, 1025)
		_, skipped, err := identity.ParseJWKS(jwkSet(entries...), allowed)
		if err != nil || len(skipped) != 1025 || !strings.Contains(skipped[0], "1025 keys") {
			t.Errorf("%d reasons, %v", len(skipped), err)
		}
	})
	t.Run("several without kid", func(t *testing.T) {
		entries := slices.Repeat([]string{es.jwk()}, 6)
		keys, skipped, err := identity.ParseJWKS(jwkSet(entries...), allowed)
		if err != nil || keys.Len() != 4 || len(skipped) != 2 {
			t.Errorf("%d keys, %v, %v; want the first 4", keys.Len(), skipped, err)
		}
	})
	t.Run("no set", func(t *testing.T) {
		for _, text := range []string{
			"", "{}", "[]", "null", `{"keys":null}`, `{"keys":"a"}`, `{"keys":[]} x`, `{"Keys":[]}`, "\xff", strings.Repeat("[", 1<<20),
			`{"keys":[` + strings.Repeat(" ", identity.MaxJWKSBytes) + `]}`,
		} {
			if keys, _, err := identity.ParseJWKS([]byte(text), allowed); err == nil {
				t.Errorf("%.20q is a set: %v", text, keys)
			}
		}
	})
}

// A published key without alg verifies one algorithm: the first of the issuer's that fits it.
func TestKeyWithoutAlg(t *testing.T) {
	t.Parallel()
	rs, ps, es := pairs()["RS256"], pairs()["PS256"], pairs()["ES384"]
	set := jwkSet(rs.jwk("kid", `"a"`, "alg", ""), es.jwk("kid", `"b"`, "alg", ""))
	for _, tt := range []struct {
		allowed, want []string
	}{
		{[]string{"RS256", "PS256", "ES384"}, []string{"RS256 a", "ES384 b"}},
		{[]string{"ES256", "ES384", "PS256", "RS256"}, []string{"PS256 a", "ES384 b"}},
		{[]string{"EdDSA"}, []string{}},
	} {
		keys, _, err := identity.ParseJWKS(set, tt.allowed)
		if err != nil || !slices.Equal(keys.Names(), tt.want) {
			t.Errorf("%v: %v, %v; want %v", tt.allowed, keys.Names(), err, tt.want)
		}
	}
	keys, _, err := identity.ParseJWKS(set, []string{"RS256", "PS256"})
	must(err)
	r := newResolver(t, asymmetric([]string{"RS256", "PS256"}, keys))
	if _, err := r.Tenant(bearer("Bearer " + rs.sign("a", goodPayload))); err != nil {
		t.Error(err)
	}
	if _, err := r.Tenant(bearer("Bearer " + ps.sign("a", goodPayload))); !errors.Is(err, identity.ErrInvalid) {
		t.Errorf("one key verified two algorithms: %v", err)
	}
}

func TestParsePublicKeyRefuses(t *testing.T) {
	t.Parallel()
	rs := pairs()["RS256"]
	private, err := x509.MarshalPKCS8PrivateKey(rs.private)
	must(err)
	for name, tt := range map[string]struct {
		data             []byte
		algorithm, keyID string
		want             string
	}{
		"nothing":                   {nil, "RS256", "", "neither a PEM block nor a JWK"},
		"a private key":             {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "RS256", "", `"PRIVATE KEY"`},
		"a certificate":             {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: private}), "RS256", "", `"CERTIFICATE"`},
		"two keys":                  {append(rs.pem(), rs.pem()...), "RS256", "", "more than one"},
		"no key in the block":       {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), "RS256", "", "no public key"},
		"another algorithm's key":   {rs.pem(), "ES256", "", "ES256 does not verify with an RSA key"},
		"a shared secret's name":    {rs.pem(), "HS256", "", "is none of"},
		"algorithm none":            {rs.pem(), "none", "", "is none of"},
		"a JWK with another alg":    {[]byte(rs.jwk()), "PS256", "", "not allowed"},
		"a JWK with another kid":    {[]byte(rs.jwk("kid", `"a"`)), "RS256", "b", `the kid "a"`},
		"a JWK with a private part": {[]byte(rs.jwk("d", `"AQAB"`)), "RS256", "", "private key"},
		"a kid of 257 bytes":        {rs.pem(), "RS256", strings.Repeat("k", 257), "256 bytes"},
	} {
		if k, err := identity.ParsePublicKey(tt.data, tt.algorithm, tt.keyID); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", name, k, err, tt.want)
		}
	}
}

func TestNewHMACKeyRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ algorithm, keyID, secret, want string }{
		"JWT-23 no secret":           {"HS256", "", "", "0 bytes of secret; HS256 needs 32"},
		"JWT-23 HS256 with 31 bytes": {"HS256", "", strings.Repeat("s", 31), "HS256 needs 32"},
		"JWT-23 HS384 with 47 bytes": {"HS384", "", strings.Repeat("s", 47), "HS384 needs 48"},
		"JWT-23 HS512 with 63 bytes": {"HS512", "", strings.Repeat("s", 63), "HS512 needs 64"},
		"none":                       {"none", "", strings.Repeat("s", 64), `"none" is none of`},
		"lower case":                 {"hs256", "", strings.Repeat("s", 64), `"hs256" is none of`},
		"RS256":                      {"RS256", "", strings.Repeat("s", 64), `"RS256" is none of`},
		"a public key":               {"HS256", "", string(pairs()["RS256"].pem()), "PEM"},
		"a long key id":              {"HS256", strings.Repeat("k", 257), strings.Repeat("s", 32), "256 bytes"},
	} {
		k, err := identity.NewHMACKey(tt.algorithm, tt.keyID, identity.Secret(tt.secret))
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.secret != "" && strings.Contains(err.Error(), tt.secret) {
			t.Errorf("%s: %v, %v; want %q", name, k, err, tt.want)
		}
	}
}

func TestNewKeysRefuses(t *testing.T) {
	t.Parallel()
	many := make([]identity.Key, 17)
	for i := range many {
		many[i] = hmacKey("HS256", "", fmt.Sprintf("%032d", i))
	}
	for want, keys := range map[string][]identity.Key{
		"another HS256 key has the key id \"a\"": {hmacKey("HS256", "a", secret256), hmacKey("HS256", "a", secret384)},
		"more than 16 HS256 keys without key id": many,
		"a key without algorithm":                {{}},
	} {
		if _, err := identity.NewKeys(keys...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestKeysEqual(t *testing.T) {
	t.Parallel()
	a, b := pairs()["ES256"].key("a"), pairs()["EdDSA"].key("b")
	secret := hmacKey("HS256", "s", secret256)
	for _, tt := range []struct {
		one, two []identity.Key
		want     bool
	}{
		{nil, nil, true},
		{[]identity.Key{a, b, secret}, []identity.Key{secret, b, a}, true},
		{[]identity.Key{a}, []identity.Key{a, b}, false},
		{[]identity.Key{a}, []identity.Key{pairs()["ES256"].key("other")}, false},
		{[]identity.Key{secret}, []identity.Key{hmacKey("HS256", "s", strings.Repeat("x", 32))}, false},
		{[]identity.Key{pairs()["RS256"].key("a")}, []identity.Key{pairs()["PS256"].key("a")}, false},
	} {
		if got := keySet(tt.one...).Equal(keySet(tt.two...)); got != tt.want {
			t.Errorf("%v and %v: equal %v", tt.one, tt.two, got)
		}
	}
	if keySet(a).Equal(nil) {
		t.Error("a set equals none")
	}
}

// FuzzJWKS: whatever a provider writes, the set is read in bounded work, every key that is used has an algorithm that is
// allowed, and no secret is among them.
func FuzzJWKS(f *testing.F) {
	allowed := []string{"RS256", "ES256", "ES384", "EdDSA", "HS256"}
	for _, name := range []string{"RS256", "ES256", "ES384", "EdDSA"} {
		f.Add(jwkSet(pairs()[name].jwk("kid", `"k"`), pairs()[name].jwk("alg", "")))
	}
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AAAA"},null,{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, _, err := identity.ParseJWKS(data, allowed)
		if err != nil {
			return
		}
		for _, name := range keys.Names() {
			if algorithm, _, _ := strings.Cut(name, " "); !slices.Contains(allowed[:4], algorithm) {
				t.Errorf("%q gives the key %s", data, name)
			}
		}
		again, _, err := identity.ParseJWKS(data, allowed)
		if err != nil || !again.Equal(keys) {
			t.Errorf("%q: read twice, %v and %v", data, keys, again)
		}
	})
}
