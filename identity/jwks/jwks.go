// Package jwks keeps the keys that an issuer publishes: it fetches a JWK set ahead of need, again and again in the
// background, and keeps what it has while the issuer does not answer. Nothing that a client sends makes a request wait
// for a fetch, or causes more than one in any 30 seconds.
package jwks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

// Config is what a Source is made of. Exactly one of URL and File is set.
type Config struct {
	URL  string // https or http
	File string

	// Algorithms are those of the issuer: keys for others are left out.
	Algorithms []string

	// Refresh is how often the set is read: for a URL 1 minute to 24 hours, 0: 5 minutes; for a file 5 seconds always.
	Refresh time.Duration

	Log      *slog.Logger // required
	Observer Observer     // required

	Transport http.RoundTripper // nil: one of its own
}

// Observer is told of each read. Safe for concurrent use; it must not wait.
type Observer interface {
	Fetched(took time.Duration, ok bool)
}

// Times and bounds of a source.
const (
	DefaultRefresh = 5 * time.Minute

	// Cooldown is the least time between two fetches from a URL, whatever is asked in between.
	Cooldown = 30 * time.Second

	// FetchTimeout bounds one fetch, from the name's lookup to the last byte.
	FetchTimeout = 10 * time.Second

	fileRefresh  = 5 * time.Second
	firstRetry   = time.Second // while no keys were ever had; doubled each time, up to Cooldown
	maxRedirects = 3
)

// Source is an issuer's published keys. It is an identity.KeySource. Safe for concurrent use.
type Source struct {
	cfg    Config
	client http.Client
	name   string // of URL or file, as logs and metrics show it

	keys    atomic.Pointer[identity.Keys]
	read    atomic.Int64  // when keys was last read anew or found to be the same, in ns since the epoch; 0: never
	failing atomic.Bool   // the last read gave no keys
	missed  chan struct{} // a token named a key that is not there

	// Owned by whoever fetches: Fetch before Run, then Run.
	last     time.Time // when the last fetch began; zero: never
	failures int       // in a row
	skipped  []string  // what the last set had that cannot be used
}

var _ identity.KeySource = (*Source)(nil)

// New returns a source that has read nothing yet.
func New(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg, missed: make(chan struct{}, 1), name: cfg.File}
	s.failing.Store(true)
	if (cfg.URL == "") == (cfg.File == "") {
		return nil, errors.New("jwks: one of URL and file is required")
	}
	if cfg.Log == nil || cfg.Observer == nil {
		return nil, errors.New("jwks: log and observer are required")
	}
	switch {
	case cfg.File != "":
		s.cfg.Refresh = fileRefresh
	case cfg.Refresh == 0:
		s.cfg.Refresh = DefaultRefresh
	}
	if cfg.URL != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return nil, errors.New("jwks: the URL must start with https:// or http://")
		}
		s.name = u.Redacted()
	}
	s.client = http.Client{Transport: cfg.Transport, Timeout: FetchTimeout, CheckRedirect: checkRedirect}
	if s.client.Transport == nil {
		// No connection is kept: fetches are minutes apart.
		s.client.Transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return s, nil
}

// checkRedirect follows a few redirects, and none that gives up TLS.
func checkRedirect(next *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
		return errors.New("a redirect from https to " + next.URL.Scheme)
	}
	return nil
}

// Name returns the URL or file, without a password.
func (s *Source) Name() string { return s.name }

// Keys returns the keys that were last read; nil before the first.
func (s *Source) Keys() *identity.Keys { return s.keys.Load() }

// Missed brings the next fetch forward, to Cooldown after the last at the earliest. It never waits.
func (s *Source) Missed() (certain bool) {
	select {
	case s.missed <- struct{}{}:
	default: // it is known already
	}
	return !s.failing.Load()
}

// Age returns how long ago the keys were last read, or found to be the same; false: never.
func (s *Source) Age(now time.Time) (time.Duration, bool) {
	at := s.read.Load()
	return now.Sub(time.Unix(0, at)), at != 0
}

// Stale reports whether the keys are older than they should be: two refreshes have failed, or none ever succeeded.
func (s *Source) Stale(now time.Time) bool {
	age, ever := s.Age(now)
	return !ever || age > 2*s.cfg.Refresh+FetchTimeout
}

// Fetch reads the set once, now. It is for the start, before Run.
func (s *Source) Fetch(ctx context.Context) error {
	s.last = time.Now()
	err := s.fetch(ctx)
	s.cfg.Observer.Fetched(time.Since(s.last), err == nil)
	if err == nil {
		s.failures = 0
		return nil
	}
	s.failures++
	s.failing.Store(true)
	if !errors.Is(ctx.Err(), context.Canceled) { // not because the process stops
		s.cfg.Log.Warn("a JWK set cannot be read: the keys that are known stay in use", "jwks", s.name, "keys", s.Count(), "error", err.Error())
	}
	return err
}

// Count returns how many keys are in use.
func (s *Source) Count() int {
	if keys := s.keys.Load(); keys != nil {
		return keys.Len()
	}
	return 0
}

// Run reads the set again and again until ctx is done. One Run per Source.
func (s *Source) Run(ctx context.Context) error {
	for s.wait(ctx) {
		_ = s.Fetch(ctx) // it is logged, and tried again
	}
	return nil
}

// wait returns when it is time for the next fetch, false when ctx is done.
func (s *Source) wait(ctx context.Context) bool {
	pause := s.pause()
	timer := time.NewTimer(time.Until(s.last.Add(pause)))
	defer timer.Stop()
	missed := s.missed
	if s.cfg.File != "" {
		missed = nil // it is looked at often enough
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-missed:
			missed = nil // once is enough: the fetch that comes answers all who asked before it
			if pause > Cooldown {
				timer.Reset(time.Until(s.last.Add(Cooldown)))
			}
		}
	}
}

// pause returns the time between two fetches.
func (s *Source) pause() time.Duration {
	switch {
	case s.last.IsZero():
		return 0
	case s.cfg.File != "":
		return fileRefresh
	case s.failures == 0:
		// A little early, each replica at a time of its own.
		return s.cfg.Refresh - rand.N(s.cfg.Refresh/10+1)
	case s.keys.Load() == nil:
		return min(firstRetry<<min(s.failures-1, 10), Cooldown)
	}
	return Cooldown
}

// fetch reads the set and puts its keys in use.
func (s *Source) fetch(ctx context.Context) error {
	data, err := s.load(ctx)
	if err != nil {
		return err
	}
	keys, skipped, err := identity.ParseJWKS(data, s.cfg.Algorithms)
	if err != nil {
		return err
	}
	s.use(keys, skipped)
	return nil
}

// use puts keys in use. A set that says the same keeps its pointer, so that verified tokens stay known. A set without
// usable keys is what the issuer says, and no token is believed; but nor is one called bad for it.
func (s *Source) use(keys *identity.Keys, skipped []string) {
	if !slices.Equal(skipped, s.skipped) {
		for _, why := range skipped {
			s.cfg.Log.Warn("a key of a JWK set is left out", "jwks", s.name, "problem", why)
		}
		s.skipped = skipped
	}
	before := s.keys.Load()
	if before == nil || !before.Equal(keys) {
		s.keys.Store(keys)
		s.cfg.Log.Info("the keys of a JWK set are in use", "jwks", s.name, "keys", keys.Names())
		if keys.Len() == 0 {
			s.cfg.Log.Error("a JWK set has no usable key: none of its tokens can be verified", "jwks", s.name)
		}
	}
	s.read.Store(time.Now().UnixNano())
	s.failing.Store(keys.Len() == 0)
}

// load returns the document.
func (s *Source) load(ctx context.Context) ([]byte, error) {
	if s.cfg.File != "" {
		return loadFile(s.cfg.File)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	request.Header.Set("User-Agent", "sentinel-rls")
	answer, err := s.client.Do(request)
	if err != nil {
		return nil, bare(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", answer.Status)
	}
	return bounded(answer.Body)
}

// bare leaves out the URL, which stands beside the error already.
func bare(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

func loadFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded(f)
}

// bounded reads all of r, and refuses more than a set may have.
func bounded(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, identity.MaxJWKSBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > identity.MaxJWKSBytes {
		return nil, fmt.Errorf("more than %d bytes", identity.MaxJWKSBytes)
	}
	return data, nil
}

// Plain reports whether the keys come over a connection that nothing vouches for: http from another machine.
func (s *Source) Plain() bool {
	u, err := url.Parse(s.cfg.URL)
	host := ""
	if err == nil {
		host = u.Hostname()
	}
	return err == nil && u.Scheme == "http" && host != "localhost" && host != "::1" && !strings.HasPrefix(host, "127.")
}
