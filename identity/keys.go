package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// Key verifies signatures of one algorithm. The algorithm is the key's own: a token only says which key it means, so
// nothing that a client writes chooses how its signature is checked. The zero Key verifies nothing. Immutable.
type Key struct {
	algorithm string
	id        string
	method    jwt.SigningMethod
	material  any // what method verifies with: Secret's bytes, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// Algorithm returns the only algorithm that the key verifies.
func (k Key) Algorithm() string { return k.algorithm }

// ID returns what a token names as kid; empty: the key is tried for every token of its algorithm.
func (k Key) ID() string { return k.id }

// Format writes algorithm and key id, whatever the verb: a key may hold a secret.
func (k Key) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, k.String()) }

// String returns algorithm and key id, as "RS256 2026-02".
func (k Key) String() string { return strings.TrimSuffix(k.algorithm+" "+k.id, " ") }

// verify reports whether signature is the key's over text.
func (k Key) verify(text string, signature []byte) bool {
	return k.method != nil && k.method.Verify(text, signature, k.material) == nil
}

// secret returns the shared secret of an HMAC key; nil for others.
func (k Key) secret() Secret {
	secret, _ := k.material.([]byte)
	return secret
}

// algorithm is how one algorithm is verified, and which keys fit it.
type algorithm struct {
	name   string
	method jwt.SigningMethod
	least  int                         // HMAC: the least bytes of a secret; 0: signatures by a private key
	fits   func(crypto.PublicKey) bool // nil for HMAC
}

// algorithms are all that are implemented, in the order in which they are listed to people.
var algorithms = []algorithm{
	{name: "HS256", method: jwt.SigningMethodHS256, least: 32},
	{name: "HS384", method: jwt.SigningMethodHS384, least: 48},
	{name: "HS512", method: jwt.SigningMethodHS512, least: 64},
	{name: "RS256", method: jwt.SigningMethodRS256, fits: isRSA},
	{name: "RS384", method: jwt.SigningMethodRS384, fits: isRSA},
	{name: "RS512", method: jwt.SigningMethodRS512, fits: isRSA},
	{name: "PS256", method: jwt.SigningMethodPS256, fits: isRSA},
	{name: "ES256", method: jwt.SigningMethodES256, fits: onCurve(elliptic.P256())},
	{name: "ES384", method: jwt.SigningMethodES384, fits: onCurve(elliptic.P384())},
	{name: "EdDSA", method: jwt.SigningMethodEdDSA, fits: isEd25519},
}

func isRSA(key crypto.PublicKey) bool {
	_, ok := key.(*rsa.PublicKey)
	return ok
}

func isEd25519(key crypto.PublicKey) bool {
	_, ok := key.(ed25519.PublicKey)
	return ok
}

func onCurve(curve elliptic.Curve) func(crypto.PublicKey) bool {
	return func(key crypto.PublicKey) bool {
		k, ok := key.(*ecdsa.PublicKey)
		return ok && k.Curve == curve
	}
}

func algorithmNamed(name string) (algorithm, bool) {
	for _, a := range algorithms {
		if a.name == name {
			return a, true
		}
	}
	return algorithm{}, false
}

// Algorithms returns the names of the algorithms that are implemented: HMAC first. none is not among them.
func Algorithms() []string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = a.name
	}
	return names
}

// HMACBytes returns the least bytes that a secret of an HMAC algorithm has; 0 for any other.
func HMACBytes(name string) int {
	a, _ := algorithmNamed(name)
	return a.least
}

// Bounds on keys. A JWK set beyond them is cut, with a warning; keys of a configuration are refused.
const (
	maxKeyIDBytes  = 256
	maxUnnamedKeys = 16 // without key id, of one algorithm in one set: each may cost every token a verification
	minRSABits     = 2048
	maxRSABits     = 8192  // verification costs the square of it
	minRSAExponent = 65537 // FIPS 186-5 5.4; smaller ones have a history
)

// NewHMACKey returns a key that verifies with a shared secret of at least as many bytes as the hash: 32, 48, 64. The
// error shows nothing of the secret.
func NewHMACKey(algorithm, keyID string, secret Secret) (Key, error) {
	a, ok := algorithmNamed(algorithm)
	switch {
	case !ok || a.least == 0:
		return Key{}, fmt.Errorf("algorithm %q is none of HS256, HS384, HS512", algorithm)
	case len(secret) < a.least:
		return Key{}, fmt.Errorf("%d bytes of secret; %s needs %d", len(secret), algorithm, a.least)
	case bytes.HasPrefix(bytes.TrimSpace(secret), []byte("-----BEGIN ")):
		// Whoever has that public key could sign tokens: the classic confusion of RS256 with HS256.
		return Key{}, errors.New("the secret is a PEM block")
	case len(keyID) > maxKeyIDBytes:
		return Key{}, fmt.Errorf("a key id of more than %d bytes", maxKeyIDBytes)
	}
	return Key{algorithm, keyID, a.method, []byte(secret)}, nil
}

// NewPublicKey returns a key that verifies with a public key: *rsa.PublicKey of 2048 to 8192 bits, *ecdsa.PublicKey on
// the algorithm's curve, or ed25519.PublicKey.
func NewPublicKey(algorithm, keyID string, public crypto.PublicKey) (Key, error) {
	a, ok := algorithmNamed(algorithm)
	switch {
	case !ok || a.fits == nil:
		return Key{}, fmt.Errorf("algorithm %q is none of %s", algorithm, strings.Join(publicAlgorithms(), ", "))
	case !a.fits(public):
		return Key{}, fmt.Errorf("%s does not verify with %s", algorithm, describeKey(public))
	case len(keyID) > maxKeyIDBytes:
		return Key{}, fmt.Errorf("a key id of more than %d bytes", maxKeyIDBytes)
	}
	if key, ok := public.(*rsa.PublicKey); ok {
		if err := checkRSA(key); err != nil {
			return Key{}, err
		}
	}
	return Key{algorithm, keyID, a.method, public}, nil
}

func publicAlgorithms() (names []string) {
	for _, a := range algorithms {
		if a.fits != nil {
			names = append(names, a.name)
		}
	}
	return names
}

func checkRSA(key *rsa.PublicKey) error {
	switch bits := key.N.BitLen(); {
	case bits < minRSABits || bits > maxRSABits:
		return fmt.Errorf("an RSA key of %d bits; %d to %d", bits, minRSABits, maxRSABits)
	case key.N.Bit(0) == 0:
		return errors.New("an RSA key with an even modulus")
	case key.E < minRSAExponent || key.E%2 == 0:
		return fmt.Errorf("an RSA key with the exponent %d; odd and at least %d", key.E, minRSAExponent)
	}
	return nil
}

func describeKey(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return "an RSA key"
	case *ecdsa.PublicKey:
		return "a key on the curve " + key.Params().Name
	case ed25519.PublicKey:
		return "an Ed25519 key"
	}
	return fmt.Sprintf("a key of type %T", public)
}

// KeySource is where an issuer's keys come from. Safe for concurrent use; never waits.
type KeySource interface {
	// Keys returns the keys in use, the same pointer for as long as they are the same; nil: none were ever had.
	Keys() *Keys
	// Missed says that a token named a key that is not among Keys. False: the source cannot tell now whether there is such
	// a key, as when its provider does not answer; the token is then neither good nor bad.
	Missed() (certain bool)
}

// Keys is an immutable set of keys. As a KeySource it is always certain.
type Keys struct {
	all     []Key
	named   map[keyName]Key
	unnamed map[string][]Key // by algorithm: keys without key id
}

type keyName struct{ algorithm, id string }

var _ KeySource = (*Keys)(nil)

// NewKeys returns a set of keys. The error joins everything that is wrong: a key id twice for one algorithm, more than 16
// keys without key id for one algorithm.
func NewKeys(keys ...Key) (*Keys, error) {
	s := &Keys{named: map[keyName]Key{}, unnamed: map[string][]Key{}}
	var errs []error
	for _, k := range keys {
		if err := s.add(k); err != nil {
			errs = append(errs, err)
		}
	}
	return s, errors.Join(errs...)
}

func (s *Keys) add(k Key) error {
	name := keyName{k.algorithm, k.id}
	_, twin := s.named[name]
	switch {
	case k.method == nil:
		return errors.New("a key without algorithm")
	case twin:
		return fmt.Errorf("another %s key has the key id %q", k.algorithm, k.id)
	case k.id != "":
		s.named[name] = k
	case len(s.unnamed[k.algorithm]) == maxUnnamedKeys:
		return fmt.Errorf("more than %d %s keys without key id", maxUnnamedKeys, k.algorithm)
	default:
		s.unnamed[k.algorithm] = append(s.unnamed[k.algorithm], k)
	}
	s.all = append(s.all, k)
	return nil
}

// Keys returns s.
func (s *Keys) Keys() *Keys { return s }

// Missed returns true: these are all the keys there are.
func (s *Keys) Missed() bool { return true }

// list returns the keys; a nil set has none.
func (s *Keys) list() []Key {
	if s == nil {
		return nil
	}
	return s.all
}

// Len returns how many keys there are.
func (s *Keys) Len() int { return len(s.all) }

// Format writes algorithm and key id of each key, whatever the verb.
func (s *Keys) Format(w fmt.State, _ rune) { _, _ = fmt.Fprint(w, s.list()) }

// Names returns algorithm and key id of each key, in order.
func (s *Keys) Names() []string {
	names := make([]string, len(s.all))
	for i, k := range s.all {
		names[i] = k.String()
	}
	return names
}

// Equal reports whether both sets hold the same keys under the same names, in whatever order.
func (s *Keys) Equal(other *Keys) bool {
	if s == nil || other == nil || len(s.all) != len(other.all) {
		return s == other
	}
	for _, k := range s.all {
		if !slices.ContainsFunc(other.all, k.equal) {
			return false
		}
	}
	return true
}

func (k Key) equal(other Key) bool {
	if k.algorithm != other.algorithm || k.id != other.id {
		return false
	}
	if public, ok := k.material.(interface{ Equal(crypto.PublicKey) bool }); ok {
		return public.Equal(other.material)
	}
	return bytes.Equal(k.secret(), other.secret())
}

// find returns the key of that name, else the keys without a name. named: it is the key that the token names.
func (s *Keys) find(algorithm, keyID string) (keys []Key, named bool) {
	if s == nil {
		return nil, false
	}
	if k, ok := s.named[keyName{algorithm, keyID}]; ok {
		return []Key{k}, true
	}
	return s.unnamed[algorithm], false
}
