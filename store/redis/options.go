package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sentinel-rls/sentinel-rls/lua"
)

func (c Config) withDefaults() Config {
	if c.Budget == 0 {
		c.Budget = DefaultBudget
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = max(DefaultDialTimeout, c.Budget)
	}
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.Queue == 0 {
		c.Queue = DefaultQueue
	}
	if c.ProbeKey == "" {
		c.ProbeKey = DefaultProbeKey
	}
	if c.ProbeEvery == 0 {
		c.ProbeEvery = DefaultProbeEvery
	}
	if c.Startup.Most == 0 {
		c.Startup.Most = c.ProbeEvery
	}
	if c.Startup.Every == 0 {
		c.Startup.Every = c.Startup.Most
	}
	if c.HeartbeatEvery == 0 {
		c.HeartbeatEvery = DefaultHeartbeatEvery
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	return c
}

func (c Config) check() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("redis store: "+format, args...))
		}
	}
	check(c.Budget > 0, "budget %v: must be positive", c.Budget)
	check(c.DialTimeout > 0, "dial timeout %v: must be positive", c.DialTimeout)
	check(c.Workers > 0, "%d workers: must be positive", c.Workers)
	check(c.ProbeEvery > 0, "a probe every %v: must be positive", c.ProbeEvery)
	check(c.Startup.Every > 0 && c.Startup.Most > 0, "a probe every %v to %v at the start: must be positive", c.Startup.Every, c.Startup.Most)
	check(c.Startup.Bound >= 0, "%v for a server to answer at the start: must not be negative", c.Startup.Bound)
	check(c.HeartbeatEvery > 0, "a heartbeat every %v: must be positive", c.HeartbeatEvery)
	check(c.ExpiryJitter >= 0, "an expiry jitter of %v: must not be negative", c.ExpiryJitter)
	check(c.HeartbeatKey == "" || strings.Contains(c.HeartbeatKey, "}"), "the heartbeat's key %q: must have a hash tag", c.HeartbeatKey)
	check(c.Queue > 0, "a queue of %d calls: must be positive", c.Queue)
	for _, file := range []string{c.PasswordFile, c.SentinelPasswordFile} {
		if file != "" {
			_, err := readPassword(file)
			check(err == nil, "%w", err)
		}
	}
	return errors.Join(errs...)
}

var errPassword = errors.New("the password file cannot be read")

// readPassword reads a password file. The error names the file and never its content.
func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errPassword, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("%w: %s is empty", errPassword, file)
	}
	return password, nil
}

// dialErrors is the number of failed dials from which on the library would answer from memory and probe the server by
// itself, once a second: at 512 that is left to the breaker. The library takes it from the size of its pool, which
// therefore does not bound the connections here; MaxActiveConns does.
const dialErrors = 512

// bufferSize holds a usual batch: 25 groups of 400 bytes.
const bufferSize = 32 << 10

// settings are what a Config and its URL say together.
type settings struct {
	Config
	target
	encoder *lua.Encoder
}

func (c Config) settings() (*settings, error) {
	t, err := parseURL(c.URL)
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	if c.Username != "" {
		t.username = c.Username
	}
	if c.TLS != nil && !t.tls {
		return nil, errors.New("redis store: TLS is configured, but the URL does not start with rediss")
	}
	if t.topology != failover && (c.SentinelUsername != "" || c.SentinelPassword != "" || c.SentinelPasswordFile != "") {
		return nil, errors.New("redis store: there are credentials for sentinels, but the URL does not name any")
	}
	return &settings{c, t, lua.NewEncoder(c.ExpiryJitter)}, nil
}

// tlsConfig returns how servers are verified; nil: there is no TLS.
func (s *settings) tlsConfig() *tls.Config {
	switch {
	case !s.tls:
		return nil
	case s.TLS == nil:
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return s.TLS
}

// login is who connects, and the file with the password, which is read for each connection; empty: the password itself.
type login struct{ username, password, file string }

// options returns how the library is to treat a server that d connects to.
func (s *settings) options(d *dialer, who login) *redis.Options {
	budget := s.Budget
	o := &redis.Options{Username: who.username, Password: who.password, DB: s.db}
	if who.file != "" {
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := readPassword(who.file)
			return who.username, password, err
		}
	}
	o.Network, o.Addr, o.Dialer = d.network, d.addr, d.dial

	o.Protocol = 2 // RESP3 was no faster, and its pushes have no use here
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

	// A round trip keeps the deadline of its context, and nothing is ever tried twice behind our back.
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout = s.DialTimeout
	o.ReadTimeout = budget
	o.WriteTimeout = budget
	o.PoolTimeout = budget

	// One pool: with the second one, which the library keeps for pipelines, a failed dial is followed by another.
	o.PipelinePoolSize = -1
	o.PoolSize = dialErrors
	o.MaxActiveConns = s.Workers + ownConns
	o.MaxConcurrentDials = s.Workers + ownConns
	o.ReadBufferSize = bufferSize
	o.WriteBufferSize = bufferSize
	return o
}

// ownConns is how many connections to a server are the store's own, beside one for each worker: the probe's, the
// heartbeat's, and in a cluster the one on which its layout is asked for.
const ownConns = 3
