package redis

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

func (c Config) withDefaults() Config {
	if c.Budget == 0 {
		c.Budget = DefaultBudget
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
	check(c.Workers > 0, "%d workers: must be positive", c.Workers)
	check(c.ProbeEvery > 0, "a probe every %v: must be positive", c.ProbeEvery)
	check(c.Queue > 0, "a queue of %d calls: must be positive", c.Queue)
	if c.PasswordFile != "" {
		_, err := c.password()
		check(err == nil, "%w", err)
	}
	return errors.Join(errs...)
}

var errPassword = errors.New("the password file cannot be read")

// password reads the password file. The error names the file and never its content.
func (c Config) password() (string, error) {
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errPassword, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("%w: %s is empty", errPassword, c.PasswordFile)
	}
	return password, nil
}

// dialErrors is the number of failed dials from which on the library would answer from memory and probe the server by
// itself, once a second: at 512 that is left to the breaker. The library takes it from the size of its pool, which
// therefore does not bound the connections here; MaxActiveConns does.
const dialErrors = 512

// dialTimeout bounds an attempt to connect, which goes on after the round trip that wanted it was given up.
const dialTimeout = time.Second

// bufferSize holds a usual batch: 25 commands of 400 bytes.
const bufferSize = 32 << 10

func (c Config) options() (*redis.Options, error) {
	o, err := parseURL(c.URL)
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	if c.Username != "" {
		o.Username = c.Username
	}
	if c.PasswordFile != "" {
		username := o.Username
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := c.password()
			return username, password, err
		}
	}

	if c.TLS != nil {
		if o.TLSConfig == nil {
			return nil, errors.New("redis store: TLS is configured, but the URL does not start with rediss://")
		}
		o.TLSConfig = c.TLS
	}

	o.Protocol = 2 // RESP3 was no faster, and its pushes have no use here
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

	// A round trip keeps the deadline of its context, and nothing is ever tried twice behind our back.
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout = max(dialTimeout, c.Budget)
	o.ReadTimeout = c.Budget
	o.WriteTimeout = c.Budget
	o.PoolTimeout = c.Budget

	// One pool: with the second one, which the library keeps for pipelines, a failed dial is followed by another.
	o.PipelinePoolSize = -1
	o.PoolSize = dialErrors
	o.MaxActiveConns = c.Workers + 1 // watch has one too
	o.MaxConcurrentDials = c.Workers + 1
	o.ReadBufferSize = bufferSize
	o.WriteBufferSize = bufferSize
	return o, nil
}

// parseURL reads a server's URL. Errors never show it, since it may hold a password.
func parseURL(text string) (*redis.Options, error) {
	const form = "must be redis://[user:password@]host[:port][/db], rediss://… or unix:///path[?db=n]"
	if text == "" {
		return nil, errors.New("no URL: " + form)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("the URL is malformed: " + form)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the URL is malformed: " + form)
	}
	db := strings.TrimPrefix(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		if u.Hostname() == "" {
			return nil, errors.New("the URL names no host: " + form)
		}
	case "unix":
		if u.Host != "" || u.Path == "" {
			return nil, errors.New("the URL names no socket: unix:///path has three slashes")
		}
		db = query.Get("db")
		query.Del("db")
	default:
		return nil, errors.New("the URL has another scheme: " + form)
	}
	if len(query) > 0 || u.Fragment != "" {
		return nil, errors.New("the URL has options: every option is a setting of its own")
	}
	if n, err := strconv.ParseUint(db, 10, 31); db != "" && (err != nil || strconv.FormatUint(n, 10) != db) {
		return nil, errors.New("the URL names no database: it is a number such as /0")
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return nil, errors.New("the URL is malformed: " + form)
	}
	return o, nil
}
