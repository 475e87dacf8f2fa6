package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// Tokens is the processor time of a Check with a token that was verified before, by algorithm.
type Tokens struct {
	Calls int     `json:"calls"`         // of each window
	Kept  int     `json:"tokens"`        // distinct ones of each algorithm
	Ratio Spread  `json:"ratio"`         // RS256 to HS256 in the same pair
	RS256 Spread  `json:"rs256_us_call"` // process CPU
	HS256 Spread  `json:"hs256_us_call"`
	Odd   float64 `json:"odd_share"` // calls that were not admitted in time
}

// tokenCache measures Checks with tokens that are in the cache, in pairs of windows: one with RS256, one with HS256 tokens,
// each pair in the other order. A token that is not in the cache would cost the signature again.
func (b *bench) tokenCache(ctx context.Context, r *Report) error {
	dir, err := os.MkdirTemp("", "tokens")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	signers, env, err := tokenKeys(dir)
	if err != nil {
		return err
	}
	program, conns, stop, err := b.start(ctx, load.Settings{Policies: admitAll, Env: env})
	if err != nil {
		return err
	}
	defer stop()
	t := &Tokens{Calls: b.size.TokenCalls, Kept: b.size.tokens()}
	asks := make([]load.Ask, len(signers))
	for i, s := range signers {
		if asks[i], err = s.ask(t.Kept); err != nil {
			return err
		}
	}
	measure := func(ask load.Ask, calls int) (perCall float64, err error) {
		before, err := load.CPU(program.PID())
		if err != nil {
			return 0, err
		}
		loop := load.Closed{Callers: b.size.Callers, Deadline: 10 * deadline, Calls: uint64(calls)}
		report, err := loop.Run(ctx, conns, ask)
		if err != nil {
			return 0, err
		}
		after, err := load.CPU(program.PID())
		t.Odd = max(t.Odd, 1-report.Share(load.Allowed))
		return micros(after-before) / float64(calls), err
	}
	for _, ask := range asks { // every token is verified, and kept
		if _, err := measure(ask, 20*t.Kept); err != nil {
			return err
		}
	}
	var ratios []float64
	used := make([][]float64, len(asks))
	for pair := range b.size.Pairs {
		for turn := range asks {
			i := (turn + pair) % len(asks)
			perCall, err := measure(asks[i], t.Calls)
			if err != nil {
				return err
			}
			used[i] = append(used[i], perCall)
		}
		if used[1][pair] <= 0 {
			return errors.New("no processor time was used: too few calls to tell")
		}
		ratios = append(ratios, used[0][pair]/used[1][pair])
	}
	t.Ratio, t.RS256, t.HS256 = spreadOf(ratios), spreadOf(used[0]), spreadOf(used[1])
	r.Tokens = t
	return nil
}

// signer makes tokens of one algorithm.
type signer struct {
	method jwt.SigningMethod
	keyID  string
	key    crypto.PrivateKey
}

// tokenKeys returns the signers of RS256 and HS256 tokens, and the settings that make the program verify them.
func tokenKeys(dir string) ([]signer, []string, error) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, nil, err
	}
	secret := []byte(rand.Text() + rand.Text())
	secretFile, publicFile := filepath.Join(dir, "secret"), filepath.Join(dir, "public.pem")
	err = errors.Join(
		os.WriteFile(secretFile, secret, 0o600),
		os.WriteFile(publicFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600),
	)
	return []signer{{jwt.SigningMethodRS256, "rs", private}, {jwt.SigningMethodHS256, "hs", secret}}, []string{
		"SENTINEL_JWT_ALGORITHMS=HS256,RS256",
		fmt.Sprintf("SENTINEL_JWT_KEYS=[{alg: RS256, kid: rs, public_key_file: %q}, {alg: HS256, kid: hs, secret_file: %q}]", publicFile, secretFile),
	}, err
}

// ask returns Checks with n tokens.
func (s signer) ask(n int) (load.Ask, error) {
	tokens := make([]string, n)
	for i := range tokens {
		token := jwt.NewWithClaims(s.method, jwt.RegisteredClaims{
			Subject: load.Tenant(uint64(i)), ExpiresAt: jwt.NewNumericDate(time.Now().Add(24 * time.Hour)),
		})
		token.Header["kid"] = s.keyID
		var err error
		if tokens[i], err = token.SignedString(s.key); err != nil {
			return nil, err
		}
	}
	return load.Check("all", tokens), nil
}
