package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
)

// Bounds on a JWK set (RFC 7517), which someone else writes.
const (
	MaxJWKSBytes = 1 << 20 // of the document
	maxJWKs      = 1024    // entries looked at
	maxJWKNames  = 64      // names in one entry

	maxUnnamedJWKs = 4 // without kid, of one algorithm: each may cost every token a verification
)

// ParseJWKS reads a JWK set into keys for tokens of the algorithms allowed. An entry that cannot be used is left out and
// skipped says why, once for each: one odd key must not take the others away. Left out are shared secrets (a published
// one is none), private keys, keys for encryption, RSA keys under 2048 bits or with an odd exponent, curves and
// algorithms that are not among those allowed, and a second key of the same algorithm and key id.
//
// A key has the algorithm of its alg, else the first of algorithms that fits it: one key verifies one algorithm. The
// error means that data is no JWK set at all.
func ParseJWKS(data []byte, algorithms []string) (keys *Keys, skipped []string, err error) {
	if len(data) > MaxJWKSBytes {
		return nil, nil, fmt.Errorf("a JWK set of more than %d bytes", MaxJWKSBytes)
	}
	document, ok := parseObject(data, maxJWKNames)
	if !ok {
		return nil, nil, errors.New("not a JSON object of unique names")
	}
	list, _ := document.get("keys")
	var entries []json.RawMessage
	if len(list) == 0 || list[0] != '[' || json.Unmarshal(list, &entries) != nil {
		return nil, nil, errors.New("not a JWK set: it has no list of keys")
	}
	skip := func(i int, why error) { skipped = append(skipped, fmt.Sprintf("key %d: %v", i+1, why)) }
	if len(entries) > maxJWKs {
		skipped = append(skipped, fmt.Sprintf("%d keys: only the first %d are looked at", len(entries), maxJWKs))
		entries = entries[:maxJWKs]
	}
	keys, _ = NewKeys()
	for i, entry := range entries {
		k, err := parseJWK(entry, algorithms)
		switch {
		case err != nil:
		case k.id == "" && len(keys.unnamed[k.algorithm]) == maxUnnamedJWKs:
			err = fmt.Errorf("without kid, as %d others before it", maxUnnamedJWKs)
		default:
			err = keys.add(k)
		}
		if err != nil {
			skip(i, err)
		}
	}
	return keys, skipped, nil
}

// ParsePublicKey reads one public key: a PEM block (PUBLIC KEY or RSA PUBLIC KEY) or a JWK. A JWK's own alg and kid, if
// it has them, must not contradict what is asked for; an empty keyID takes the JWK's.
func ParsePublicKey(data []byte, algorithm, keyID string) (Key, error) {
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		k, err := parseJWK(trimmed, []string{algorithm})
		switch {
		case err != nil:
			return Key{}, fmt.Errorf("the JWK is %w", err)
		case keyID != "" && k.id != "" && k.id != keyID:
			return Key{}, fmt.Errorf("the JWK has the kid %q, not %q", k.id, keyID)
		case keyID != "":
			k.id = keyID
		}
		return k, nil
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return Key{}, errors.New("neither a PEM block nor a JWK")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return Key{}, errors.New("more than one PEM block, or text after it")
	}
	var public crypto.PublicKey
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		public, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		public, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default: // a private key or a certificate
		return Key{}, fmt.Errorf("a PEM block %q; only PUBLIC KEY and RSA PUBLIC KEY are read", block.Type)
	}
	if err != nil {
		return Key{}, errors.New("a PEM block that holds no public key")
	}
	return NewPublicKey(algorithm, keyID, public)
}

// parseJWK reads one entry of a JWK set, or says why it cannot be used; the reason completes "the key is …".
func parseJWK(data []byte, allowed []string) (Key, error) {
	jwk, ok := parseObject(data, maxJWKNames)
	if !ok {
		return Key{}, errors.New("not a JSON object of unique names")
	}
	if jwk.has("d") {
		return Key{}, errors.New("a private key, which whoever reads this could sign with")
	}
	if jwk.has("use") && !jwk.is("use", "sig") {
		return Key{}, errors.New("not for signatures (use)")
	}
	if ops, present := jwk.get("key_ops"); present {
		if list, ok := textOrList(ops); !ok || !slices.Contains(list, "verify") {
			return Key{}, errors.New("not for verification (key_ops)")
		}
	}
	var keyID string
	if value, present := jwk.get("kid"); present {
		if keyID, ok = text(value); !ok {
			return Key{}, errors.New("unusable: its kid is not text")
		}
	}
	public, err := jwk.publicKey()
	if err != nil {
		return Key{}, err
	}
	name, err := jwk.algorithm(public, allowed)
	if err != nil {
		return Key{}, err
	}
	return NewPublicKey(name, keyID, public)
}

// is reports whether a member is exactly that text.
func (o object) is(name, want string) bool {
	value, _ := o.get(name)
	got, ok := text(value)
	return ok && got == want
}

// algorithm returns the one algorithm that a key of a JWK set verifies.
func (o object) algorithm(public crypto.PublicKey, allowed []string) (string, error) {
	fits := func(name string) bool {
		a, ok := algorithmNamed(name)
		return ok && a.fits != nil && a.fits(public)
	}
	value, present := o.get("alg")
	if !present {
		if i := slices.IndexFunc(allowed, fits); i >= 0 {
			return allowed[i], nil
		}
		return "", errors.New("of a kind that no algorithm allowed here uses")
	}
	name, ok := text(value)
	if !ok || !slices.Contains(allowed, name) {
		return "", errors.New("for an algorithm that is not allowed here")
	}
	if !fits(name) {
		return "", errors.New("of a kind that its alg does not use")
	}
	return name, nil
}

// publicKey reads the key itself.
func (o object) publicKey() (crypto.PublicKey, error) {
	switch {
	case o.is("kty", "RSA"):
		return o.rsaKey()
	case o.is("kty", "EC"):
		return o.ecKey()
	case o.is("kty", "OKP"):
		return o.okpKey()
	case o.is("kty", "oct"):
		return nil, errors.New("a shared secret, which is none once it is published")
	}
	return nil, errors.New("of an unknown kty")
}

func (o object) rsaKey() (crypto.PublicKey, error) {
	n, okN := o.bytes("n")
	e, okE := o.bytes("e")
	exponent := new(big.Int).SetBytes(e)
	if !okN || !okE || len(n) > maxRSABits/8+1 || exponent.BitLen() > 31 {
		return nil, errors.New("an RSA key whose n or e is unreadable")
	}
	return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent.Int64())}, nil
}

func (o object) ecKey() (crypto.PublicKey, error) {
	var curve elliptic.Curve
	switch {
	case o.is("crv", "P-256"):
		curve = elliptic.P256()
	case o.is("crv", "P-384"):
		curve = elliptic.P384()
	default:
		return nil, errors.New("on another curve than P-256 and P-384")
	}
	x, okX := o.bytes("x")
	y, okY := o.bytes("y")
	size := (curve.Params().BitSize + 7) / 8
	if !okX || !okY || len(x) != size || len(y) != size {
		return nil, errors.New("an EC key whose x or y is unreadable")
	}
	// Refuses a point that is not on the curve.
	key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
	if err != nil {
		return nil, errors.New("an EC key that is no point of its curve")
	}
	return key, nil
}

func (o object) okpKey() (crypto.PublicKey, error) {
	x, ok := o.bytes("x")
	if !o.is("crv", "Ed25519") || !ok || len(x) != ed25519.PublicKeySize {
		return nil, errors.New("an OKP key that is no Ed25519 key")
	}
	return ed25519.PublicKey(x), nil
}

// bytes returns a member that is canonical base64url.
func (o object) bytes(name string) ([]byte, bool) {
	value, _ := o.get(name)
	encoded, ok := text(value)
	if !ok || encoded == "" {
		return nil, false
	}
	return decodeSegment(encoded)
}
