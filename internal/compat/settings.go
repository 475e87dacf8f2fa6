// Package compat is the process around the engine that stands in for envoyproxy/ratelimit: that service's environment, its
// HTTP surface, its directory of files and its statistics.
package compat

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The values of Settings.ConfigType.
const (
	FromFiles = "FILE"
	FromXDS   = "GRPC_XDS_SOTW"
)

// The values of Redis.Type.
const (
	Single   = "SINGLE"
	Sentinel = "SENTINEL"
	Cluster  = "CLUSTER"
)

// Settings are what the environment of envoyproxy/ratelimit says. FromEnvironment makes them.
type Settings struct {
	HTTP, GRPC, Debug Address
	GRPCSocket        string // GRPC_UDS: instead of GRPC

	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
	ServerTLS                               TLS // CA: of clients, which then need a certificate

	ConfigType         string // FromFiles or FromXDS
	StartWithoutConfig bool
	Runtime            Runtime
	MergeDomains       bool
	XDS                XDS

	ExpiryJitter    time.Duration // 0: none
	LocalCacheBytes int
	NearRatio       float64
	KeyPrefix       string
	Memory          bool // BACKEND_TYPE=memory: limits of this process alone
	StopWhenOver    bool
	Shadow          bool
	Quota           bool
	DynamicMetadata bool
	Headers         Headers

	Redis     Redis
	PerSecond Redis // with On: counts the limits of one second

	Stats             StatsSettings
	HealthyWithConfig bool
	LogLevel          string // debug, info, warn or error
	LogFormat         string // text or json

	lookUp func(name string) string
}

// Address is a host and a port.
type Address struct {
	Host string
	Port int
}

// String returns host:port.
func (a Address) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// TLS names the files of one TLS side.
type TLS struct {
	On        bool
	Cert, Key string // empty: none
	CA        string // who signs the other side's certificate; empty: clients need none, servers one of the system's
	SAN       string // a name that the other side's certificate must have; empty: servers the host's
	AnyHost   bool   // a server's certificate may name any host
}

// Headers are the response headers that tell a client about the limit it is closest to.
type Headers struct {
	On                      bool
	Limit, Remaining, Reset string
}

// Runtime says where the files are.
type Runtime struct {
	Root, Subdirectory, AppDirectory string
	IgnoreDotFiles, WatchRoot        bool
}

// XDS is the control plane that serves RateLimitConfig.
type XDS struct {
	Server                     string // host:port
	NodeID                     string
	NodeMetadata, Headers      map[string]string
	TLS                        TLS
	Retry                      time.Duration // while the server cannot be reached
	BackoffInitial, BackoffMax time.Duration // after a stream that broke
	RandomFactor               float64
	Jitter                     bool
	MaxMessageBytes            int // 0: 4 MiB
}

// Redis is one server.
type Redis struct {
	On           bool // of PerSecond
	SocketType   string
	Type         string // Single, Sentinel or Cluster
	URL          string
	Auth         string
	SentinelAuth string
	TLS          TLS
	HealthCheck  bool // /healthcheck fails while it does not answer

	DialTimeout time.Duration // of one attempt to connect; 0: our own
	Startup     Startup
}

// Startup is how often a server that was away at the start is asked, and for how long.
type Startup struct {
	Every time.Duration // twice as long after each time
	Most  time.Duration // 0: our own
	Bound time.Duration // 0: for ever
}

// StatsSettings say who is told the statistics.
type StatsSettings struct {
	Disabled       bool
	Statsd         bool
	Host           string
	Port           int
	Protocol       string // tcp or udp
	Dog            bool   // DogStatsD over UDP
	Mogrifiers     []string
	Prometheus     bool
	PrometheusAddr string
	PrometheusPath string
	MapperFile     string
	Milliseconds   bool // the response time's histogram
	Tags           map[string]string
	Flush          time.Duration
}

// prefixGrammar is what keys may begin with.
var prefixGrammar = regexp.MustCompile(`^[A-Za-z0-9._:-]{0,128}$`)

// check finds what single values cannot tell.
func (s *Settings) check() (problems []error) {
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !prefixGrammar.MatchString(s.KeyPrefix) {
		refuse("CACHE_KEY_PREFIX=%s: must be at most 128 of A-Z a-z 0-9 . _ : -", s.KeyPrefix)
	}
	if s.ServerTLS.On && (s.ServerTLS.Cert == "" || s.ServerTLS.Key == "") {
		refuse("GRPC_SERVER_USE_TLS=true: set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
	}
	if s.ServerTLS.SAN != "" && s.ServerTLS.CA == "" {
		refuse("GRPC_CLIENT_TLS_SAN=%s: set GRPC_CLIENT_TLS_CACERT, or clients are not asked for a certificate", s.ServerTLS.SAN)
	}
	if s.XDS.BackoffMax < s.XDS.BackoffInitial {
		refuse("XDS_CLIENT_BACKOFF_MAX_INTERVAL=%v: must not be below XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", s.XDS.BackoffMax)
	}
	if s.ConfigType == FromXDS {
		if _, _, err := net.SplitHostPort(s.XDS.Server); err != nil {
			refuse("CONFIG_GRPC_XDS_SERVER_URL=%s: must be host:port", s.XDS.Server)
		}
	}
	if s.PerSecond.On && s.StopWhenOver {
		refuse("REDIS_PERSECOND=true: with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT all limits of a request are decided together, which two servers cannot; unset one of them")
	}
	if _, _, err := net.SplitHostPort(s.Stats.PrometheusAddr); s.Stats.Prometheus && err != nil {
		refuse("PROMETHEUS_ADDR=%s: must be host:port or :port", s.Stats.PrometheusAddr)
	}
	if s.Stats.Prometheus && !strings.HasPrefix(s.Stats.PrometheusPath, "/") {
		refuse("PROMETHEUS_PATH=%s: must begin with /", s.Stats.PrometheusPath)
	}
	for _, r := range s.servers() {
		if _, err := r.of.Address(); err != nil {
			refuse("%sURL: %w", r.prefix, err)
		}
	}
	return problems
}

type namedRedis struct {
	prefix string
	of     *Redis
}

// servers returns the servers that are used.
func (s *Settings) servers() (used []namedRedis) {
	if s.Memory {
		return nil
	}
	used = []namedRedis{{"REDIS_", &s.Redis}}
	if s.PerSecond.On {
		used = append(used, namedRedis{"REDIS_PERSECOND_", &s.PerSecond})
	}
	return used
}

// notices returns what is set to no effect because of something else that is, or is not, set.
func (s *Settings) notices() (all []Notice) {
	if s.PerSecond.On && s.Memory {
		all = append(all, Notice{"REDIS_PERSECOND", "BACKEND_TYPE=memory keeps all limits in this process"})
	}
	return all
}

// Address returns where the server is as package store/redis reads it: redis://, redis+sentinel://, redis+cluster://, each
// with rediss for TLS, or unix://, with user and password. The error does not show the password.
func (r *Redis) Address() (string, error) {
	scheme, rest, err := r.parse()
	if err != nil {
		return "", err
	}
	login := ""
	if r.Auth != "" {
		login = url.UserPassword(r.Login(r.Auth)).String() + "@"
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			rest = rest[i+1:]
		}
	}
	return scheme + "://" + login + rest, nil
}

// Login splits password, or user:password.
func (r *Redis) Login(auth string) (user, password string) {
	user, password, both := strings.Cut(auth, ":")
	if !both {
		return "", auth
	}
	return user, password
}

// parse returns the scheme of the address and what follows it.
func (r *Redis) parse() (scheme, rest string, err error) {
	scheme = "redis"
	if r.TLS.On || r.SocketType == "tls" {
		scheme = "rediss"
	}
	hosts := strings.Split(r.URL, ",")
	switch r.Type {
	case Sentinel:
		if len(hosts) < 2 || strings.Contains(r.URL, "://") {
			return "", "", errors.New("must be master,host:port,… with REDIS_TYPE=SENTINEL: the master's name, and the sentinels")
		}
		return scheme + "+sentinel", strings.Join(hosts[1:], ",") + "/" + hosts[0], nil
	case Cluster:
		if strings.Contains(r.URL, "://") || strings.Contains(r.URL, "/") {
			return "", "", errors.New("must be host:port,… with REDIS_TYPE=CLUSTER: some of the nodes")
		}
		return scheme + "+cluster", r.URL, nil
	}
	return r.parseSingle(scheme)
}

func (r *Redis) parseSingle(scheme string) (_, rest string, err error) {
	at, rest, isURL := strings.Cut(r.URL, "://")
	switch {
	case isURL && at == "redis":
		return scheme, rest, nil
	case isURL && (at == "rediss" || at == "unix"):
		return at, rest, nil
	case isURL:
		return "", "", errors.New("must be host:port, redis://[user:password@]host:port[/db], or a path with REDIS_SOCKET_TYPE=unix")
	case r.SocketType == "unix" && r.TLS.On:
		return "", "", errors.New("a unix socket with REDIS_TLS: set REDIS_SOCKET_TYPE=tcp")
	case r.SocketType == "unix":
		return "unix", r.URL, nil
	case strings.Contains(r.URL, ","):
		return "", "", errors.New("several servers: name one, or set REDIS_TYPE")
	case strings.HasPrefix(r.URL, "/"):
		return "", "", errors.New("a path with REDIS_SOCKET_TYPE=" + r.SocketType + ": name host:port, or set REDIS_SOCKET_TYPE=unix")
	}
	return scheme, r.URL, nil
}

// Encrypted reports whether the server is reached over TLS.
func (r *Redis) Encrypted() bool {
	scheme, _, err := r.parse()
	return err == nil && strings.HasPrefix(scheme, "rediss")
}
