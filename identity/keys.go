package identity

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/golang-jwt/jwt/v5"
)

// HMACKey is one shared secret, bound to one algorithm.
type HMACKey struct {
	Algorithm string // HS256, HS384 or HS512; the only one that the key verifies
	KeyID     string // what a token names as kid; empty: tried for every token of the algorithm
	Secret    Secret // at least as many bytes as the hash: 32, 48, 64
}

// key verifies signatures of one algorithm. The algorithm is the key's own: a token only says which key it means.
type key struct {
	method   jwt.SigningMethod
	material any // what method verifies with
}

// verify reports whether signature is the key's over text.
func (k key) verify(text string, signature []byte) bool {
	return k.method.Verify(text, signature, k.material) == nil
}

// keySet holds the keys of one issuer. It is safe for concurrent use and never waits.
type keySet interface {
	// find returns the keys that may have signed a token with this algorithm and key id (empty: the token names none), a
	// handful at most. When there are none, known is false and one key is returned that verifies nothing at the same
	// cost, so that an unknown key id takes as long as a wrong signature.
	find(algorithm, keyID string) (keys []key, known bool)
}

// maxKeys bounds the HMACs that one token can cost.
const maxKeys = 16

// hmacMethods are the HMAC algorithms and the least bytes of a secret for each.
var hmacMethods = map[string]struct {
	method jwt.SigningMethod
	least  int
}{
	"HS256": {jwt.SigningMethodHS256, 32},
	"HS384": {jwt.SigningMethodHS384, 48},
	"HS512": {jwt.SigningMethodHS512, 64},
}

// hmacKeys is a keySet of shared secrets. Immutable.
type hmacKeys struct {
	named  map[hmacName]key
	any    map[string][]key // by algorithm: keys without key id
	only   map[string]key   // by algorithm: the key, where the set holds no other
	decoys map[string]key   // by algorithm: a random secret that nothing is signed with
}

type hmacName struct{ algorithm, keyID string }

var _ keySet = (*hmacKeys)(nil)

func newHMACKeys(keys []HMACKey) (*hmacKeys, error) {
	s := &hmacKeys{
		named: map[hmacName]key{}, any: map[string][]key{}, only: map[string]key{}, decoys: map[string]key{},
	}
	for alg, m := range hmacMethods {
		secret := make([]byte, m.least)
		_, _ = rand.Read(secret) // never fails
		s.decoys[alg] = key{m.method, secret}
	}
	var errs []error
	if len(keys) > maxKeys {
		errs = append(errs, fmt.Errorf("%d token keys; at most %d", len(keys), maxKeys))
	}
	for i, k := range keys {
		if err := s.add(k); err != nil {
			errs = append(errs, fmt.Errorf("token key %d: %w", i+1, err))
		}
	}
	if len(keys) == 1 {
		k := keys[0]
		s.only[k.Algorithm] = key{hmacMethods[k.Algorithm].method, []byte(k.Secret)}
	}
	return s, errors.Join(errs...)
}

func (s *hmacKeys) add(k HMACKey) error {
	m, ok := hmacMethods[k.Algorithm]
	name := hmacName{k.Algorithm, k.KeyID}
	_, twin := s.named[name]
	switch {
	case !ok:
		return fmt.Errorf("algorithm %q is none of HS256, HS384, HS512", k.Algorithm)
	case len(k.Secret) < m.least:
		return fmt.Errorf("%d bytes of secret; %s needs %d", len(k.Secret), k.Algorithm, m.least)
	case bytes.HasPrefix(bytes.TrimSpace(k.Secret), []byte("-----BEGIN ")):
		// Whoever has that public key could sign tokens: the classic confusion of RS256 with HS256.
		return errors.New("the secret is a PEM block")
	case len(k.KeyID) > maxKeyIDBytes:
		return fmt.Errorf("a key id of more than %d bytes", maxKeyIDBytes)
	case twin:
		return fmt.Errorf("another %s key has the key id %q", k.Algorithm, k.KeyID)
	case k.KeyID == "":
		s.any[k.Algorithm] = append(s.any[k.Algorithm], key{m.method, []byte(k.Secret)})
	default:
		s.named[name] = key{m.method, []byte(k.Secret)}
	}
	return nil
}

// find returns the key of that name; else the keys without a name; else, for a token that names none, the only key there is.
func (s *hmacKeys) find(algorithm, keyID string) ([]key, bool) {
	if k, ok := s.named[hmacName{algorithm, keyID}]; ok {
		return []key{k}, true
	}
	if keys := s.any[algorithm]; len(keys) > 0 {
		return keys, true
	}
	if k, ok := s.only[algorithm]; ok && keyID == "" {
		return []key{k}, true
	}
	return []key{s.decoys[algorithm]}, false
}
