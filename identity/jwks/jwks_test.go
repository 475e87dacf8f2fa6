package jwks_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/identity/jwks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key is a key pair of an issuer. Its private half follows from the id.
type key struct {
	id      string
	private ed25519.PrivateKey
}

func newKey(id string) key {
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, id)
	return key{id, ed25519.NewKeyFromSeed(seed)}
}

func (k key) jwk() string {
	x := base64.RawURLEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
	return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","use":"sig","alg":"EdDSA","kid":%q,"x":%q}`, k.id, x)
}

// token returns a token that is valid for an hour.
func (k key) token(t testing.TB) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "u1", "exp": time.Now().Add(time.Hour).Unix()})
	token.Header["kid"] = k.id
	signed, err := token.SignedString(k.private)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func set(keys ...key) string {
	var texts []string
	for _, k := range keys {
		texts = append(texts, k.jwk())
	}
	return `{"keys":[` + strings.Join(texts, ",") + `]}`
}

// provider answers as an issuer does, without a network: it may be down, slow, or say something else.
type provider struct {
	mu     sync.Mutex
	body   string
	status int
	delay  time.Duration
	err    error
	asked  []time.Time
}

func (p *provider) publish(keys ...key) { p.change(func(p *provider) { p.body = set(keys...) }) }

func (p *provider) change(f func(*provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func (p *provider) fetches() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// RoundTrip is an http.RoundTripper's.
func (p *provider) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.asked = append(p.asked, time.Now())
	body, status, delay, err := p.body, p.status, p.delay, p.err
	p.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	if status == 0 {
		status = http.StatusOK
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// observer counts what is told.
type observer struct {
	mu       sync.Mutex
	ok, fail int
}

func (o *observer) Fetched(_ time.Duration, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ok {
		o.ok++
	} else {
		o.fail++
	}
}

type log struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// stage is a running source in front of a resolver.
type stage struct {
	*jwks.Source
	provider *provider
	observer *observer
	log      *log
	resolver *identity.Resolver
}

// start starts a source of a provider that publishes keys. It ends with the test's context.
func start(t *testing.T, ctx context.Context, p *provider) *stage {
	t.Helper()
	s := &stage{provider: p, observer: &observer{}, log: &log{}}
	var err error
	s.Source, err = jwks.New(jwks.Config{
		URL: "https://id.test/jwks", Algorithms: []string{"EdDSA"}, Transport: p, Observer: s.observer,
		Log: slog.New(slog.NewTextHandler(s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.resolver, err = identity.New(identity.Config{
		Issuers: []identity.Issuer{{
			Algorithms: []string{"EdDSA"}, Keys: []identity.KeySource{s.Source},
		}},
		CacheTokens: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Run(ctx) }()
	return s
}

// verdict is what becomes of a token.
func (s *stage) verdict(token string) string {
	_, err := s.resolver.Tenant(identity.Credentials{Authorization: []string{"Bearer " + token}})
	switch {
	case err == nil:
		return "accepted"
	case errors.Is(err, identity.ErrBusy):
		return "busy"
	}
	return "refused"
}

// play runs f in a bubble of fake time and ends the source after it.
func play(t *testing.T, p *provider, f func(t *testing.T, s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := start(t, ctx, p)
		f(t, s)
		cancel()
		synctest.Wait()
	})
}

// expect fails the test unless the token's verdict is want now.
func (s *stage) expect(t *testing.T, what, token, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.verdict(token); got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// apart is the least time between two fetches.
func apart(fetches []time.Time) time.Duration {
	least := time.Duration(1<<63 - 1)
	for i := 1; i < len(fetches); i++ {
		least = min(least, fetches[i].Sub(fetches[i-1]))
	}
	return least
}

// A key that is published a refresh before it is used is known when its first token comes, and the old one works until it
// is removed; after that it stops working within a refresh and a fetch.
func TestRotationWithOverlap(t *testing.T) {
	t.Parallel()
	before, after := newKey("2025"), newKey("2026")
	p := &provider{body: set(before)}
	play(t, p, func(t *testing.T, s *stage) {
		s.expect(t, "the first key", before.token(t), "accepted")
		p.publish(before, after)
		time.Sleep(jwks.DefaultRefresh + jwks.FetchTimeout)
		fetched := len(p.fetches())
		s.expect(t, "the new key, first used", after.token(t), "accepted")
		s.expect(t, "the old key still", before.token(t), "accepted")
		if n := len(p.fetches()); n != fetched {
			t.Errorf("%d fetches for a rotation that was announced", n-fetched)
		}
		old := before.token(t)
		s.expect(t, "a token of the old key, which is now in the cache", old, "accepted")
		p.publish(after)
		time.Sleep(jwks.DefaultRefresh + jwks.FetchTimeout)
		s.expect(t, "the removed key", old, "refused")
		s.expect(t, "the new key", after.token(t), "accepted")
	})
}

// JWT-17: a flood of unknown key ids causes at most one fetch in any 30 seconds, however long it lasts, and takes nothing
// from tokens that verify.
func TestJWT_17_UnknownKeyIDs(t *testing.T) {
	t.Parallel()
	k := newKey("known")
	p := &provider{body: set(k)}
	play(t, p, func(t *testing.T, s *stage) {
		good := k.token(t)
		s.expect(t, "before the flood", good, "accepted")
		for i := range 5 * 60 * 4 { // five minutes, four a second
			stranger := newKey("known")
			stranger.id = fmt.Sprint("random-", i)
			if got := s.verdict(stranger.token(t)); got != "refused" {
				t.Fatalf("an unknown key id after %d: %s", i, got)
			}
			if got := s.verdict(good); got != "accepted" {
				t.Fatalf("a good token after %d unknown ones: %s", i, got)
			}
			time.Sleep(250 * time.Millisecond)
		}
		fetches := p.fetches()
		if least := apart(fetches); least < jwks.Cooldown {
			t.Errorf("two fetches %v apart", least)
		}
		if n := len(fetches); n < 9 || n > 11 {
			t.Errorf("%d fetches in five minutes of unknown key ids, want one in 30 seconds", n)
		}
	})
}

// JWT-19: unknown key ids do not use up what a real rotation needs: the new key works within one cooldown.
func TestJWT_19_RotationUnderFlood(t *testing.T) {
	t.Parallel()
	before, after := newKey("before"), newKey("after")
	p := &provider{body: set(before)}
	play(t, p, func(t *testing.T, s *stage) {
		token := after.token(t)
		var rotated, worked time.Time
		for i := range 3 * 60 * 4 {
			stranger := newKey("x")
			stranger.id = fmt.Sprint("random-", i)
			s.verdict(stranger.token(t))
			switch {
			case i == 60*4:
				p.publish(after)
				rotated = time.Now()
			case worked.IsZero() && s.verdict(token) == "accepted":
				worked = time.Now()
			}
			time.Sleep(250 * time.Millisecond)
		}
		if took := worked.Sub(rotated); worked.IsZero() || took > jwks.Cooldown+jwks.FetchTimeout {
			t.Errorf("the new key worked after %v", took)
		}
		if least := apart(p.fetches()); least < jwks.Cooldown {
			t.Errorf("two fetches %v apart", least)
		}
	})
}

// A request never waits for a provider, however slow.
func TestRequestsNeverWait(t *testing.T) {
	t.Parallel()
	k := newKey("k")
	p := &provider{body: set(k)}
	play(t, p, func(t *testing.T, s *stage) {
		s.expect(t, "at first", k.token(t), "accepted")
		p.change(func(p *provider) { p.delay = time.Hour })
		stranger := newKey("k")
		stranger.id = "unknown"
		for range 100 {
			at := time.Now()
			s.verdict(stranger.token(t))
			s.verdict(k.token(t))
			if took := time.Since(at); took > 0 {
				t.Fatalf("two verdicts took %v of fake time", took)
			}
			time.Sleep(time.Second)
		}
	})
}

// While the provider is down the keys stay, tokens of a key that nobody knows are neither good nor bad, and the age shows.
func TestProviderDown(t *testing.T) {
	t.Parallel()
	k, other := newKey("k"), newKey("other")
	p := &provider{body: set(k)}
	play(t, p, func(t *testing.T, s *stage) {
		s.expect(t, "at first", k.token(t), "accepted")
		s.expect(t, "an unknown key while the provider answers", other.token(t), "refused")
		p.change(func(p *provider) { p.err = errors.New("connection refused") })
		time.Sleep(time.Hour)
		s.expect(t, "after an hour without provider", k.token(t), "accepted")
		s.expect(t, "an unknown key meanwhile", other.token(t), "busy")
		forged := newKey("forged")
		forged.id = "k"
		s.expect(t, "a wrong signature of a known key meanwhile", forged.token(t), "refused")
		if age, ever := s.Age(time.Now()); !ever || age < 59*time.Minute || !s.Stale(time.Now()) {
			t.Errorf("age %v, stale %v after an hour", age, s.Stale(time.Now()))
		}
		if least := apart(p.fetches()); least < jwks.Cooldown {
			t.Errorf("two fetches %v apart", least)
		}
		p.change(func(p *provider) { p.err, p.body = nil, set(k, other) })
		time.Sleep(jwks.Cooldown)
		s.expect(t, "a new key, once the provider is back", other.token(t), "accepted")
		if s.Stale(time.Now()) {
			t.Error("stale although the provider answered")
		}
	})
}

// A process that starts while the provider is away serves, says 503 of its tokens, and heals by itself soon.
func TestStartWithoutProvider(t *testing.T) {
	t.Parallel()
	k := newKey("k")
	p := &provider{err: errors.New("no route to host")}
	play(t, p, func(t *testing.T, s *stage) {
		s.expect(t, "with no keys at all", k.token(t), "busy")
		if _, ever := s.Age(time.Now()); ever || !s.Stale(time.Now()) {
			t.Error("keys that were never read have an age, or are not stale")
		}
		time.Sleep(10 * time.Second)
		p.change(func(p *provider) { p.err, p.body = nil, set(k) })
		time.Sleep(10 * time.Second)
		s.expect(t, "once the provider is there", k.token(t), "accepted")
	})
}

// What a provider may say instead of a set changes nothing.
func TestBadAnswersKeepTheKeys(t *testing.T) {
	t.Parallel()
	k := newKey("k")
	for name, answer := range map[string]func(*provider){
		"an error page":      func(p *provider) { p.status, p.body = 503, set() },
		"not found":          func(p *provider) { p.status = 404 },
		"HTML":               func(p *provider) { p.body = "<html>" },
		"no list of keys":    func(p *provider) { p.body = `{"keys":{}}` },
		"keys in capitals":   func(p *provider) { p.body = `{"KEYS":[]}` },
		"keys twice":         func(p *provider) { p.body = `{"keys":[],"keys":[]}` },
		"cut in the middle":  func(p *provider) { p.body = set(k)[:40] },
		"two megabytes":      func(p *provider) { p.body = `{"keys":[` + strings.Repeat(" ", 2<<20) + `]}` },
		"slower than it may": func(p *provider) { p.delay = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &provider{body: set(k)}
			play(t, p, func(t *testing.T, s *stage) {
				s.expect(t, "at first", k.token(t), "accepted")
				p.change(answer)
				time.Sleep(jwks.DefaultRefresh + jwks.FetchTimeout)
				s.expect(t, "after the answer", k.token(t), "accepted")
				synctest.Wait()
				if s.observer.ok != 1 || s.observer.fail == 0 || s.log.count("cannot be read") == 0 {
					t.Errorf("%d fetches ok, %d failed, log:\n%s", s.observer.ok, s.observer.fail, &s.log.buf)
				}
			})
		})
	}
}

// A set without a usable key is the issuer's word: the keys that it no longer publishes stop working. Its tokens cannot be
// checked, which is not the callers' fault.
func TestEmptySet(t *testing.T) {
	t.Parallel()
	k := newKey("k")
	p := &provider{body: set(k)}
	play(t, p, func(t *testing.T, s *stage) {
		s.expect(t, "at first", k.token(t), "accepted")
		p.publish()
		time.Sleep(jwks.DefaultRefresh + jwks.FetchTimeout)
		s.expect(t, "after all keys were removed", k.token(t), "busy")
		if s.log.count("no usable key") != 1 {
			t.Errorf("log:\n%s", &s.log.buf)
		}
	})
}

// What a set has that cannot be used is logged once, not at each refresh.
func TestSkippedKeysAreLoggedOnce(t *testing.T) {
	t.Parallel()
	k := newKey("k")
	odd := `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"shared"},` + strings.TrimPrefix(set(k), `{"keys":[`)
	p := &provider{body: odd}
	play(t, p, func(t *testing.T, s *stage) {
		keys := func() *identity.Keys { synctest.Wait(); return s.Keys() }
		first := keys()
		time.Sleep(time.Hour)
		if n := s.log.count("left out"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, &s.log.buf)
		}
		if keys() != first {
			t.Error("keys that stayed the same have another pointer: verified tokens are forgotten")
		}
	})
}

// The file is read again when it changes; what it was stays in use while it cannot be read.
func TestFile(t *testing.T) {
	t.Parallel()
	before, after := newKey("before"), newKey("after")
	name := filepath.Join(t.TempDir(), "jwks.json")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(set(before))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		o := &observer{}
		s, err := jwks.New(jwks.Config{File: name, Algorithms: []string{"EdDSA"}, Log: slog.New(slog.DiscardHandler), Observer: o})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Fetch(ctx); err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Run(ctx) }()
		names := func(wait time.Duration, want ...string) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if got := s.Keys().Names(); !slices.Equal(got, want) {
				t.Errorf("keys %v, want %v", got, want)
			}
		}
		names(0, "EdDSA before")
		write(set(after))
		names(10*time.Second, "EdDSA after")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		names(time.Minute, "EdDSA after")
		if !s.Stale(time.Now()) || s.Missed() {
			t.Error("a file that is gone is not stale, or certain")
		}
		cancel()
		synctest.Wait()
	})
}

// The real client: TLS is not given up, redirects and sizes are bounded, and an error does not show a password.
func TestClient(t *testing.T) {
	t.Parallel()
	k := newKey("k")
	mux := http.NewServeMux()
	mux.HandleFunc("/jwks", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, set(k)) })
	mux.Handle("/moved", http.RedirectHandler("/jwks", http.StatusFound))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(server.URL+"/jwks", http.StatusFound))
	defer secure.Close()
	for _, tt := range []struct {
		url, want string
		transport http.RoundTripper
	}{
		{server.URL + "/jwks", "", nil},
		{server.URL + "/moved", "", nil},
		{server.URL + "/loop", "redirects", nil},
		{server.URL + "/endless", "more than 1048576 bytes", nil},
		{server.URL + "/none", "404", nil},
		{strings.Replace(server.URL, "http://", "http://user:hunter2@", 1) + "/none", "404", nil},
		{secure.URL, "certificate", nil},
		{secure.URL, "from https to http", secure.Client().Transport},
	} {
		l := &log{}
		s, err := jwks.New(jwks.Config{
			URL: tt.url, Algorithms: []string{"EdDSA"}, Log: slog.New(slog.NewTextHandler(l, nil)), Observer: &observer{}, Transport: tt.transport,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Fetch(t.Context())
		if got := fmt.Sprint(err); tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %v, want %q", tt.url, err, tt.want)
		}
		if l.count("hunter2") > 0 || strings.Contains(fmt.Sprint(err, s.Name()), "hunter2") {
			t.Errorf("%s: a password is shown", tt.url)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	for _, cfg := range []jwks.Config{
		{Log: quiet, Observer: &observer{}},
		{URL: "https://a.test", File: "b", Log: quiet, Observer: &observer{}},
		{URL: "file:///etc/passwd", Log: quiet, Observer: &observer{}},
		{URL: "https://a.test"},
	} {
		if _, err := jwks.New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	for url, plain := range map[string]bool{
		"https://id.test": false, "http://id.test": true, "http://127.0.0.1:80": false, "http://localhost": false, "http://[::1]:1": false,
	} {
		s, err := jwks.New(jwks.Config{URL: url, Log: quiet, Observer: &observer{}})
		if err != nil || s.Plain() != plain {
			t.Errorf("%s: plain %v, %v; want %v", url, s.Plain(), err, plain)
		}
	}
}
