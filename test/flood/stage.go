package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	redisstore "github.com/sentinel-rls/sentinel-rls/store/redis"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

const (
	connections = 4
	tenants     = 100 // of valid callers, each with a token of its own
)

// plenty admits every valid call: a pause of the store is not what is tried here.
const plenty = `
domain: load
endpoints:
  all:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1000000, refill: 1000000/s}
    limits:
      - {algorithm: token_bucket, capacity: 1000000000, refill: 1/s}
`

// stage is the program, its store, its issuer, and the bare server.
type stage struct {
	options
	dir      string
	issuer   *issuer
	store    *testserver.Server
	client   *redis.Client
	program  *load.Program
	bare     *load.Bare
	conns    map[string]load.Conns // of each server, for valid callers and for the flood apart
	valid    load.Question
	forged   load.Question
	forgedOf atomic.Uint64 // numbers forged tokens over all runs, so that no key is named twice
}

func newStage(ctx context.Context, o options) (_ *stage, err error) {
	s := &stage{options: o, conns: map[string]load.Conns{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "flood"); err != nil {
		return nil, err
	}
	binary, err := load.Build(ctx, s.dir)
	if err != nil {
		return nil, err
	}
	if s.issuer, err = newIssuer(); err != nil {
		return nil, err
	}
	if s.store, err = testserver.Run(ctx, testserver.Redis); err != nil {
		return nil, err
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.store.Addr()})
	settings := load.Settings{Binary: binary, Policies: plenty, Store: s.store, Env: []string{
		"SENTINEL_JWT_KEYS=[]", "SENTINEL_JWT_ALGORITHMS=RS256", "SENTINEL_JWT_JWKS_URL=" + s.issuer.server.URL,
	}}
	if o.Budget > 0 {
		settings.Env = append(settings.Env, "SENTINEL_REDIS_BUDGET="+o.Budget.String())
	}
	if s.program, err = load.Start(ctx, settings); err != nil {
		return nil, err
	}
	if s.bare, err = load.StartBare(ctx); err != nil {
		return nil, err
	}
	for name, addr := range map[string]string{
		"ours": s.program.Addr(), "ours flooded": s.program.Addr(), "bare": s.bare.Addr(), "bare flooded": s.bare.Addr(),
	} {
		if s.conns[name], err = load.Dial(ctx, addr, connections); err != nil {
			return nil, err
		}
	}
	tokens := make([]string, tenants)
	for i := range tokens {
		if tokens[i], err = s.issuer.token(load.Tenant(uint64(i))); err != nil {
			return nil, err
		}
	}
	if s.valid, err = load.CheckQuestion("all", tokens); err != nil {
		return nil, err
	}
	forge := forger(tokens[0])
	s.forged, err = load.CheckEach("all", func(uint64) string { return forge(s.forgedOf.Add(1)) })
	if err != nil {
		return nil, err
	}
	return s, s.warm(ctx)
}

func (s *stage) close() {
	for _, c := range s.conns {
		c.Close()
	}
	if s.bare != nil {
		s.bare.Kill()
	}
	if s.program != nil {
		s.program.Stop()
	}
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.store != nil {
		s.store.Stop()
	}
	if s.issuer != nil {
		s.issuer.server.Close()
	}
	_ = os.RemoveAll(s.dir)
}

// warm has every valid token verified once.
func (s *stage) warm(ctx context.Context) error {
	r, err := load.Closed{Callers: 4, Deadline: time.Second, Calls: 10 * tenants}.Run(ctx, s.conns["ours"], s.valid.Ask())
	if err == nil && r.Share(load.Allowed) < 0.9 {
		err = fmt.Errorf("valid callers are not admitted: %w", errors.Join(r.Err(), errors.New(s.program.Log())))
	}
	return err
}

// flood floods the program and the bare server, one after the other, in another order each run.
func (s *stage) flood(ctx context.Context, run int) (row Row, err error) {
	if row.Commands, err = s.forgedAlone(ctx); err != nil {
		return row, err
	}
	order := []string{"bare", "ours"}
	for turn := range order {
		name := order[(turn+run)%2]
		before := s.issuer.fetches.Load()
		valid, forged, err := s.beside(ctx, name)
		if err != nil {
			return row, err
		}
		if name == "bare" {
			row.BareLate, row.BareP99 = valid.Count(load.Late), valid.Latency.Quantile(0.99)
			continue
		}
		row.Fetches = int(s.issuer.fetches.Load() - before)
		row.Forged, row.Accepted = forged.Answered(), forged.Count(load.Allowed)
		row.Missed = forged.Count(load.Late) + forged.Count(load.Failed)
		row.Valid, row.Denied = valid.Calls(), valid.Count(load.Denied)
		row.Failed, row.Late = valid.Count(load.Failed), valid.Count(load.Late)
		row.P50, row.P99 = valid.Latency.Quantile(0.5), valid.Latency.Quantile(0.99)
	}
	return row, nil
}

// beside drives valid callers and the flood at one server at once.
func (s *stage) beside(ctx context.Context, name string) (valid, forged *load.Report, err error) {
	loop := func(rate float64) load.Open {
		return load.Open{
			Rate: rate, Deadline: s.Deadline, MaxInFlight: 64 + int(4*rate*s.Deadline.Seconds()),
			Phases: []load.Phase{{Calls: int(rate * s.For.Seconds())}},
		}
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		r, err := loop(s.Valid).Run(ctx, s.conns[name], s.valid)
		if err == nil {
			valid = r[0]
		}
		return err
	})
	both.Go(func() error {
		r, err := loop(s.Forged).Run(ctx, s.conns[name+" flooded"], s.forged)
		if err == nil {
			forged = r[0]
		}
		return err
	})
	return valid, forged, both.Wait()
}

// forgedAlone sends forged tokens and nothing else, and returns how many store calls they cost: what the program says of its
// batches, and what the server says of its scripts beyond the program's heartbeats.
func (s *stage) forgedAlone(ctx context.Context) (int64, error) {
	start := time.Now()
	groups, scripts, err := s.asked(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := (load.Closed{Callers: 4, Deadline: time.Second, Calls: 1000}).Run(ctx, s.conns["ours"], s.forged.Ask()); err != nil {
		return 0, err
	}
	groupsAfter, scriptsAfter, err := s.asked(ctx)
	// One for each interval that has begun, and one for each connection that was opened anew: of workers and of a probe.
	heartbeats := int64(time.Since(start)/redisstore.DefaultHeartbeatEvery) + 1 + redisstore.DefaultWorkers + 1
	return max(groupsAfter-groups, scriptsAfter-scripts-heartbeats, 0), err
}

// asked returns how many groups the program has sent to the store, and how many scripts the store has run.
func (s *stage) asked(ctx context.Context) (groups, scripts int64, err error) {
	sent, err := s.program.Metric(ctx, "sentinel_store_batch_groups")
	if err != nil {
		return 0, 0, err
	}
	info, err := s.client.InfoMap(ctx, "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	for _, section := range info {
		for name, stat := range section {
			switch name {
			case "cmdstat_eval", "cmdstat_evalsha", "cmdstat_fcall":
				var calls int64
				if _, err := fmt.Sscanf(stat, "calls=%d,", &calls); err != nil {
					return 0, 0, fmt.Errorf("commandstats of %s: %q: %w", name, stat, err)
				}
				scripts += calls
			}
		}
	}
	return int64(sent), scripts, nil
}

// forger returns a maker of tokens that look like a valid one, but name a key of their own and have another signature.
func forger(valid string) func(n uint64) string {
	encode := base64.RawURLEncoding.EncodeToString
	_, rest, _ := strings.Cut(valid, ".")
	payload, _, _ := strings.Cut(rest, ".")
	signature := make([]byte, 256)
	_, _ = rand.Read(signature) // never fails
	end := "." + payload + "." + encode(signature)
	run := rand.Text()
	return func(n uint64) string {
		return encode(fmt.Appendf(nil, `{"alg":"RS256","typ":"JWT","kid":"%s-%09d"}`, run, n)) + end
	}
}

// issuer publishes one RSA key and counts who asks for it.
type issuer struct {
	key     *rsa.PrivateKey
	server  *httptest.Server
	fetches atomic.Int64
}

const keyID = "known"

func newIssuer() (*issuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	encode := base64.RawURLEncoding.EncodeToString
	set, err := json.Marshal(map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "use": "sig", "alg": "RS256", "kid": keyID,
		"n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes()),
	}}})
	if err != nil {
		return nil, err
	}
	i := &issuer{key: key}
	i.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		_, _ = w.Write(set)
	}))
	return i, nil
}

func (i *issuer) token(tenant string) (string, error) {
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Subject: tenant, ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	})
	token.Header["kid"] = keyID
	return token.SignedString(i.key)
}
