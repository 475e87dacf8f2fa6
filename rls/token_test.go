package rls_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// TestDescriptorTokens: where tokens in descriptors mean something, a verified one says who asks whatever other entries
// say, and a bad one refuses the request without a store call and without a decision.
func TestDescriptorTokens(t *testing.T) {
	t.Parallel()
	const scoped = `
  scoped:
    policy_version: 1
    fail_mode: fail_closed
    required_scopes: [read]
    limits: unlimited
  closed:
    policy_version: 1
    fail_mode: fail_closed
    required_scopes: [write]
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`
	refused := "deny UNAUTHENTICATED none retry=never [over - never]"
	verify := func(c *rls.Config) { c.DescriptorTokens = rls.TokensVerified }
	require := func(c *rls.Config) { c.DescriptorTokens = rls.TokensRequired }
	unauthenticated := map[string]int{"unauthenticated ratelimit": 1}
	for _, tt := range []struct {
		name   string
		change func(*rls.Config)
		steps  []step
	}{
		{"ignored unless configured", func(*rls.Config) {}, []step{
			{
				words: []string{"endpoint_id=pay tenant=a authorization=b"}, want: "allow ALLOWED store [ok pay:0 never]",
				notes: map[string]int{"ignored 1 entry": 1, "pay ALLOWED": 1},
			},
			{words: []string{"endpoint_id=pay tenant=a authorization=c"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never]"},
		}},
		{"verified where it stands", verify, []step{
			{words: []string{"endpoint_id=pay tenant=x user=x authorization=a"}, want: "allow ALLOWED store [ok pay:0 never]", notes: map[string]int{"pay ALLOWED": 1}},
			{words: []string{"endpoint_id=pay authorization=a"}, want: "deny RATE_LIMITED store retry=never [over pay:0 never]"},
			{words: []string{"endpoint_id=pay tenant=a authorization=b"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=pay tenant=x"}, want: "allow ALLOWED store [ok pay:0 never]"}, // Envoy's word
			{words: []string{"endpoint_id=pay tenant=y authorization="}, want: refused, notes: unauthenticated},
			{words: []string{"endpoint_id=pay authorization=busy"}, want: "deny IDENTITY_UNAVAILABLE none retry=never [over - never]", notes: unauthenticated},
			{words: []string{"endpoint_id=nowhere tenant=y authorization="}, want: refused},
			{words: []string{"endpoint_id=nowhere authorization=a"}, want: "deny UNKNOWN_ENDPOINT none retry=never [over - never]"},
			{words: []string{"endpoint_id=orders authorization=gold hits=50"}, want: "allow ALLOWED store [ok orders:0 50s]"},
			{words: []string{"endpoint_id=scoped authorization=a"}, want: "allow ALLOWED none [ok - never]"},
			{words: []string{"endpoint_id=closed authorization=a"}, want: "deny INSUFFICIENT_SCOPE none retry=never [over - never]", notes: map[string]int{}},
			{words: []string{"endpoint_id=login remote_address=192.0.2.1 authorization="}, want: "allow ALLOWED store [ok login:address:1 1s]"},
		}},
		{"required", require, []step{
			{words: []string{"endpoint_id=pay tenant=a"}, want: refused, notes: unauthenticated},
			{words: []string{"endpoint_id=nowhere tenant=a"}, want: refused},
			{words: []string{"endpoint_id=pay authorization=a"}, want: "allow ALLOWED store [ok pay:0 never]"},
			{words: []string{"endpoint_id=login remote_address=192.0.2.2"}, want: "allow ALLOWED store [ok login:address:1 1s]"},
			// One descriptor's caller is not who it says: nothing is decided for the other either.
			{
				words: []string{"endpoint_id=pay authorization=c", "endpoint_id=pay authorization="},
				want:  "deny UNAUTHENTICATED none retry=never [over - never] [over - never]",
			},
			{words: []string{"endpoint_id=pay authorization=c"}, want: "allow ALLOWED store [ok pay:0 never]"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			newFixture(t, shop+scoped, tt.change).play(t, tt.steps)
		})
	}

	t.Run("as Envoy copies the header", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, shop, require)
		for value, want := range map[string]rls.Reason{"Bearer a": rls.Allowed, "Basic a": rls.Unauthenticated} {
			r, err := f.Decide(t.Context(), rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{{
				Entries: []rls.Entry{{Key: "endpoint_id", Value: "pay"}, {Key: "authorization", Value: value}},
			}}})
			if err != nil || r.Reason != want || !r.Document {
				t.Errorf("%s: %+v, %v; want %s", value, r, err, want)
			}
		}
	})
}

// countingStore counts the calls that reach it.
type countingStore struct {
	rls.Store
	calls atomic.Int64
}

func (s *countingStore) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	s.calls.Add(1)
	return s.Store.Decide(ctx, groups)
}

// Refused credentials reach no store, by either service.
func TestRefusedCredentialsReachNoStore(t *testing.T) {
	t.Parallel()
	store := &countingStore{}
	f := newFixture(t, shop, func(c *rls.Config) {
		store.Store, c.Store, c.DescriptorTokens = c.Store, store, rls.TokensRequired
	})
	for _, credential := range []string{"", "Basic x", "Bearer busy"} {
		f.Check(t.Context(), rls.CheckRequest{EndpointID: "pay", Credentials: identity.Credentials{Authorization: []string{credential}}})
		_, err := f.Decide(t.Context(), rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{{
			Entries: []rls.Entry{{Key: "endpoint_id", Value: "pay"}, {Key: "authorization", Value: credential}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := store.calls.Load(); n != 0 {
		t.Errorf("%d store calls", n)
	}
	for name := range f.notes.take() {
		if strings.HasPrefix(name, "pay ") {
			t.Errorf("a refused credential was recorded as the decision %q", name)
		}
	}
}

// The recorder learns which check refused a credential, and its hash, and never the credential.
func TestRefusedIsTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shop)
	const credential = "Basic c2VjcmV0"
	r := f.Check(t.Context(), rls.CheckRequest{EndpointID: "orders", Credentials: identity.Credentials{Authorization: []string{credential}}})
	f.Check(t.Context(), rls.CheckRequest{EndpointID: "nowhere"})
	told := f.notes.refused
	if len(told) != 2 {
		t.Fatalf("told %d times", len(told))
	}
	sum := sha256.Sum256([]byte(credential))
	bad, missing := told[0], told[1]
	if bad.Check != "invalid credential" || bad.Missing || bad.EndpointID != "orders" || bad.DecisionID != r.DecisionID ||
		bad.CredentialHash() != hex.EncodeToString(sum[:]) {
		t.Errorf("a bad credential: %+v, hash %s", bad, bad.CredentialHash())
	}
	if missing.Check != "no credential" || !missing.Missing || missing.EndpointID != "" || missing.CredentialHash() != "" {
		t.Errorf("a missing one: %+v", missing)
	}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "refused", bad)
	if strings.Contains(out.String(), "c2VjcmV0") || !strings.Contains(out.String(), bad.CredentialHash()) {
		t.Errorf("logged %s", out.String())
	}
	if got := f.notes.take(); !maps.Equal(got, map[string]int{"unauthenticated ext_authz": 2, "unknown endpoint ext_authz": 1}) {
		t.Errorf("recorded %v", got)
	}
}
