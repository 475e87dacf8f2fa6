package compat

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Variable is one environment variable of envoyproxy/ratelimit, and what becomes of it here.
type Variable struct {
	Name    string
	Default string // in that service's words; empty: none
	// Without says why the variable has no effect here; empty: it is honoured, or refused with values that ask for what
	// cannot be done.
	Without string

	read func(s *Settings, text string) error // nil: any value, to no effect
}

// Variables returns every variable of that service, in the order of its documentation.
func Variables() []Variable { return slices.Clone(variables) }

const (
	whyPool     = "it tunes a pool of connections that does not exist here: a few pipelined connections carry all calls"
	whyPipeline = "it tunes that client's pipelines; calls that wait for the same server always share a round trip here"
	whyMemcache = "it tunes memcache, which is not supported"
)

var variables = slices.Concat([]Variable{
	{"HOST", "0.0.0.0", "", text(func(s *Settings) *string { return &s.HTTP.Host })},
	{"PORT", "8080", "", port(func(s *Settings) *int { return &s.HTTP.Port })},
	{"GRPC_HOST", "0.0.0.0", "", text(func(s *Settings) *string { return &s.GRPC.Host })},
	{"GRPC_PORT", "8081", "", port(func(s *Settings) *int { return &s.GRPC.Port })},
	{"GRPC_UDS", "", "", text(func(s *Settings) *string { return &s.GRPCSocket })},
	{"DEBUG_HOST", "0.0.0.0", "", text(func(s *Settings) *string { return &s.Debug.Host })},
	{"DEBUG_PORT", "6070", "", port(func(s *Settings) *int { return &s.Debug.Port })},

	{"GRPC_MAX_CONNECTION_AGE", "24h", "", orForever(func(s *Settings) *time.Duration { return &s.MaxConnectionAge })},
	{"GRPC_MAX_CONNECTION_AGE_GRACE", "1h", "", orForever(func(s *Settings) *time.Duration { return &s.MaxConnectionAgeGrace })},
	{"GRPC_SERVER_USE_TLS", "false", "", flag(func(s *Settings) *bool { return &s.ServerTLS.On })},
	{"GRPC_SERVER_TLS_CERT", "", "", text(func(s *Settings) *string { return &s.ServerTLS.Cert })},
	{"GRPC_SERVER_TLS_KEY", "", "", text(func(s *Settings) *string { return &s.ServerTLS.Key })},
	{"GRPC_CLIENT_TLS_CACERT", "", "", text(func(s *Settings) *string { return &s.ServerTLS.CA })},
	{"GRPC_CLIENT_TLS_SAN", "", "", text(func(s *Settings) *string { return &s.ServerTLS.SAN })},

	{"CONFIG_TYPE", "FILE", "", word(func(s *Settings) *string { return &s.ConfigType }, FromFiles, FromXDS)},
	{"FORCE_START_WITHOUT_INITIAL_CONFIG", "false", "", flag(func(s *Settings) *bool { return &s.StartWithoutConfig })},
	{"RUNTIME_ROOT", "/srv/runtime_data/current", "", text(func(s *Settings) *string { return &s.Runtime.Root })},
	{"RUNTIME_SUBDIRECTORY", "", "", text(func(s *Settings) *string { return &s.Runtime.Subdirectory })},
	{"RUNTIME_APPDIRECTORY", "config", "", text(func(s *Settings) *string { return &s.Runtime.AppDirectory })},
	{"RUNTIME_IGNOREDOTFILES", "false", "", flag(func(s *Settings) *bool { return &s.Runtime.IgnoreDotFiles })},
	{"RUNTIME_WATCH_ROOT", "true", "", flag(func(s *Settings) *bool { return &s.Runtime.WatchRoot })},
	{"MERGE_DOMAIN_CONFIG", "false", "", flag(func(s *Settings) *bool { return &s.MergeDomains })},

	{"CONFIG_GRPC_XDS_NODE_ID", "default", "", text(func(s *Settings) *string { return &s.XDS.NodeID })},
	{"CONFIG_GRPC_XDS_NODE_METADATA", "", "", pairs(func(s *Settings) *map[string]string { return &s.XDS.NodeMetadata })},
	{"CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", "", text(func(s *Settings) *string { return &s.XDS.Server })},
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", "", duration(func(s *Settings) *time.Duration { return &s.XDS.Retry })},
	{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", "", pairs(func(s *Settings) *map[string]string { return &s.XDS.Headers })},
	{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", "", flag(func(s *Settings) *bool { return &s.XDS.TLS.On })},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", "", text(func(s *Settings) *string { return &s.XDS.TLS.Cert })},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", "", text(func(s *Settings) *string { return &s.XDS.TLS.Key })},
	{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", "", text(func(s *Settings) *string { return &s.XDS.TLS.CA })},
	{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", "", text(func(s *Settings) *string { return &s.XDS.TLS.SAN })},
	{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", "", duration(func(s *Settings) *time.Duration { return &s.XDS.BackoffInitial })},
	{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", "", duration(func(s *Settings) *time.Duration { return &s.XDS.BackoffMax })},
	{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", "", ratio(func(s *Settings) *float64 { return &s.XDS.RandomFactor })},
	{"XDS_CLIENT_BACKOFF_JITTER", "true", "", flag(func(s *Settings) *bool { return &s.XDS.Jitter })},
	{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", "", number(func(s *Settings) *int { return &s.XDS.MaxMessageBytes }, 1, 1<<30)},

	{"EXPIRATION_JITTER_MAX_SECONDS", "300", "", whenSet("EXPIRATION_JITTER_MAX_SECONDS", seconds(func(s *Settings) *time.Duration { return &s.ExpiryJitter }))},
	{"LOCAL_CACHE_SIZE_IN_BYTES", "0", "", number(func(s *Settings) *int { return &s.LocalCacheBytes }, 0, 1<<40)},
	{"NEAR_LIMIT_RATIO", "0.8", "", ratio(func(s *Settings) *float64 { return &s.NearRatio })},
	{"CACHE_KEY_PREFIX", "", "", text(func(s *Settings) *string { return &s.KeyPrefix })},
	{"BACKEND_TYPE", "redis", "", backend},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", "", flag(func(s *Settings) *bool { return &s.StopWhenOver })},
	{"SHADOW_MODE", "false", "", flag(func(s *Settings) *bool { return &s.Shadow })},
	{"QUOTA_MODE", "false", "", flag(func(s *Settings) *bool { return &s.Quota })},
	{"RESPONSE_DYNAMIC_METADATA", "false", "", flag(func(s *Settings) *bool { return &s.DynamicMetadata })},

	{"LIMIT_RESPONSE_HEADERS_ENABLED", "false", "", flag(func(s *Settings) *bool { return &s.Headers.On })},
	{"LIMIT_LIMIT_HEADER", "RateLimit-Limit", "", text(func(s *Settings) *string { return &s.Headers.Limit })},
	{"LIMIT_REMAINING_HEADER", "RateLimit-Remaining", "", text(func(s *Settings) *string { return &s.Headers.Remaining })},
	{"LIMIT_RESET_HEADER", "RateLimit-Reset", "", text(func(s *Settings) *string { return &s.Headers.Reset })},

	{"REDIS_PERSECOND", "false", "", flag(func(s *Settings) *bool { return &s.PerSecond.On })},
}, redisVariables("REDIS_", func(s *Settings) *Redis { return &s.Redis }),
	redisVariables("REDIS_PERSECOND_", func(s *Settings) *Redis { return &s.PerSecond }),
	[]Variable{
		{"MEMCACHE_HOST_PORT", "", whyMemcache, nil},
		{"MEMCACHE_SRV", "", whyMemcache, nil},
		{"MEMCACHE_SRV_REFRESH", "0", whyMemcache, nil},
		{"MEMCACHE_MAX_IDLE_CONNS", "2", whyMemcache, nil},
		{"MEMCACHE_TLS", "false", whyMemcache, nil},
		{"MEMCACHE_TLS_CLIENT_CERT", "", whyMemcache, nil},
		{"MEMCACHE_TLS_CLIENT_KEY", "", whyMemcache, nil},
		{"MEMCACHE_TLS_CACERT", "", whyMemcache, nil},
		{"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", whyMemcache, nil},

		{"USE_STATSD", "true", "", flag(func(s *Settings) *bool { return &s.Stats.Statsd })},
		{"STATSD_HOST", "localhost", "", text(func(s *Settings) *string { return &s.Stats.Host })},
		{"STATSD_PORT", "8125", "", port(func(s *Settings) *int { return &s.Stats.Port })},
		{"STATSD_PROTOCOL", "tcp", "", word(func(s *Settings) *string { return &s.Stats.Protocol }, "tcp", "udp")},
		{"USE_DOG_STATSD", "false", "", flag(func(s *Settings) *bool { return &s.Stats.Dog })},
		{"USE_DOG_STATSD_MOGRIFIERS", "", "", list(func(s *Settings) *[]string { return &s.Stats.Mogrifiers })},
		{"USE_PROMETHEUS", "false", "", flag(func(s *Settings) *bool { return &s.Stats.Prometheus })},
		{"PROMETHEUS_ADDR", ":9090", "", text(func(s *Settings) *string { return &s.Stats.PrometheusAddr })},
		{"PROMETHEUS_PATH", "/metrics", "", text(func(s *Settings) *string { return &s.Stats.PrometheusPath })},
		{"PROMETHEUS_MAPPER_YAML", "", "", text(func(s *Settings) *string { return &s.Stats.MapperFile })},
		{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", "", flag(func(s *Settings) *bool { return &s.Stats.Milliseconds })},
		{"EXTRA_TAGS", "", "", pairs(func(s *Settings) *map[string]string { return &s.Stats.Tags })},
		{"STATS_FLUSH_INTERVAL", "10s", "", duration(func(s *Settings) *time.Duration { return &s.Stats.Flush })},
		{"DISABLE_STATS", "false", "", flag(func(s *Settings) *bool { return &s.Stats.Disabled })},

		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", "", flag(func(s *Settings) *bool { return &s.HealthyWithConfig })},
		{"LOG_LEVEL", "WARN", "", level},
		{"LOG_FORMAT", "text", "", word(func(s *Settings) *string { return &s.LogFormat }, "text", "json")},
		{"TRACING_ENABLED", "false", "", tracing},
		{"TRACING_SERVICE_NAME", "RateLimit", "", text(ofTracing[string])},
		{"TRACING_SERVICE_NAMESPACE", "", "", text(ofTracing[string])},
		{"TRACING_SERVICE_INSTANCE_ID", "", "", text(ofTracing[string])},
		{"TRACING_EXPORTER_PROTOCOL", "http", "", text(ofTracing[string])},
		{"TRACING_SAMPLING_RATE", "1", "", decimal(ofTracing[float64])},
	})

// redisVariables are the variables of one of the two servers.
func redisVariables(prefix string, of func(s *Settings) *Redis) []Variable {
	socket := "/var/run/nutcracker/ratelimit.sock"
	if prefix != "REDIS_" {
		socket = "/var/run/nutcracker/ratelimitpersecond.sock"
	}
	all := []Variable{
		{"SOCKET_TYPE", "unix", "", word(func(s *Settings) *string { return &of(s).SocketType }, "unix", "tcp", "tls")},
		{"TYPE", Single, "", word(func(s *Settings) *string { return &of(s).Type }, Single, Sentinel, Cluster)},
		{"URL", socket, "", text(func(s *Settings) *string { return &of(s).URL })},
		{"POOL_SIZE", "10", whyPool, nil},
		{"AUTH", "", "", text(func(s *Settings) *string { return &of(s).Auth })},
		{"SENTINEL_AUTH", "", "", text(func(s *Settings) *string { return &of(s).SentinelAuth })},
		{"TLS", "false", "", flag(func(s *Settings) *bool { return &of(s).TLS.On })},
		{"TLS_CLIENT_CERT", "", "", text(func(s *Settings) *string { return &of(s).TLS.Cert })},
		{"TLS_CLIENT_KEY", "", "", text(func(s *Settings) *string { return &of(s).TLS.Key })},
		{"TLS_CACERT", "", "", text(func(s *Settings) *string { return &of(s).TLS.CA })},
		{"TLS_SKIP_HOSTNAME_VERIFICATION", "false", "", flag(func(s *Settings) *bool { return &of(s).TLS.AnyHost })},
		{"PIPELINE_WINDOW", "0", whyPipeline, nil},
		{"PIPELINE_LIMIT", "0", whyPipeline, nil},
		{"CLUSTER_PIPELINE_PARALLELISM", "1", whyPipeline, nil},
		{"TIMEOUT", "10s", "", whenSet(prefix+"TIMEOUT", duration(func(s *Settings) *time.Duration { return &of(s).DialTimeout }))},
		{"POOL_ON_EMPTY_BEHAVIOR", "WAIT", whyPool, nil},
		{"HEALTH_CHECK_ACTIVE_CONNECTION", "false", "", flag(func(s *Settings) *bool { return &of(s).HealthCheck })},
		{"STARTUP_INITIAL_INTERVAL", "1s", "", duration(func(s *Settings) *time.Duration { return &of(s).Startup.Every })},
		{"STARTUP_MAX_INTERVAL", "30s", "", whenSet(prefix+"STARTUP_MAX_INTERVAL", duration(func(s *Settings) *time.Duration { return &of(s).Startup.Most }))},
		{"STARTUP_MAX_ELAPSED_TIME", "0", "", durationOrNone(func(s *Settings) *time.Duration { return &of(s).Startup.Bound })},
	}
	for i := range all {
		all[i].Name = prefix + all[i].Name
	}
	return all
}

// The readers of values. An error says what the value must be.

func text(of func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, v string) error { *of(s) = v; return nil }
}

func flag(of func(*Settings) *bool) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return errors.New("must be true or false")
		}
		*of(s) = b
		return nil
	}
}

func number(of func(*Settings) *int, least, most int) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		n, err := strconv.ParseInt(v, 0, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return fmt.Errorf("must be an integer in %d..%d", least, most)
		}
		*of(s) = int(n)
		return nil
	}
}

func port(of func(*Settings) *int) func(*Settings, string) error { return number(of, 0, 65535) }

// maxJitter bounds how much longer a key may live than it is of use: a year.
const maxJitter = 365 * 24 * 60 * 60

func seconds(of func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		var n int
		err := number(func(*Settings) *int { return &n }, 0, maxJitter)(s, v)
		*of(s) = time.Duration(n) * time.Second
		return err
	}
}

func ratio(of func(*Settings) *float64) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			return errors.New("must be a number in 0..1")
		}
		*of(s) = f
		return nil
	}
}

// ofTracing is where the words go that that service reads, too, and uses with TRACING_ENABLED alone.
func ofTracing[T any](*Settings) *T { return new(T) }

func decimal(of func(*Settings) *float64) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return errors.New("must be a number")
		}
		*of(s) = f
		return nil
	}
}

func duration(of func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return errors.New("must be a time above 0, as 10s or 1h")
		}
		*of(s) = d
		return nil
	}
}

func durationOrNone(of func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			return errors.New("must be a time, as 10s or 1h, or 0")
		}
		*of(s) = d
		return nil
	}
}

// orForever takes 0 for a time that never ends, as gRPC does.
func orForever(of func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		err := durationOrNone(of)(s, v)
		if err == nil && *of(s) == 0 {
			*of(s) = math.MaxInt64
		}
		return err
	}
}

// whenSet leaves our own default in place of that service's.
func whenSet(name string, read func(*Settings, string) error) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		if s.lookUp(name) == "" {
			return nil
		}
		return read(s, v)
	}
}

func list(of func(*Settings) *[]string) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		for item := range strings.SplitSeq(v, ",") {
			*of(s) = append(*of(s), strings.TrimSpace(item))
		}
		return nil
	}
}

// pairs reads key:value,key:value. The documentation of that service also shows key=value.
func pairs(of func(*Settings) *map[string]string) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		m := make(map[string]string)
		for item := range strings.SplitSeq(v, ",") {
			i := strings.IndexAny(item, ":=")
			if i <= 0 {
				return errors.New("must be pairs, as key:value,key:value")
			}
			m[strings.TrimSpace(item[:i])] = strings.TrimSpace(item[i+1:])
		}
		*of(s) = m
		return nil
	}
}

// word reads one of the words, in any letter case.
func word(of func(*Settings) *string, words ...string) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		for _, w := range words {
			if strings.EqualFold(v, w) {
				*of(s) = w
				return nil
			}
		}
		return errors.New("must be one of " + strings.Join(words, ", "))
	}
}

func backend(s *Settings, v string) error {
	switch v {
	case "redis":
	case "memory":
		s.Memory = true
	case "memcache":
		return errors.New("memcache is not supported: it has no way to count exactly, and what it loses is let through; use redis")
	default:
		return errors.New("must be redis, or memory for one process by itself")
	}
	return nil
}

// levels are that service's log levels, in ours.
var levels = map[string]string{
	"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error", "fatal": "error", "panic": "error",
}

func level(s *Settings, v string) error {
	l, ok := levels[strings.ToLower(v)]
	if !ok {
		return errors.New("must be one of trace, debug, info, warn, error, fatal, panic")
	}
	s.LogLevel = l
	return nil
}

func tracing(_ *Settings, v string) error {
	on, err := strconv.ParseBool(v)
	switch {
	case err != nil:
		return errors.New("must be true or false")
	case on:
		return errors.New("no traces are exported: unset it; the log and sentinel_evaluate_latency_microseconds tell where time goes")
	}
	return nil
}

// Notice is a variable that was set and has no effect, and why.
type Notice struct{ Name, Why string }

// String returns "NAME has no effect: why".
func (n Notice) String() string { return n.Name + " has no effect: " + n.Why }

// FromEnvironment reads the variables in env, which is as os.Environ gives it. One that is empty counts as not set. The
// error joins one line for each variable whose value cannot be honoured.
func FromEnvironment(env []string) (Settings, []Notice, error) {
	values := make(map[string]string, len(env))
	for _, pair := range env {
		name, v, _ := strings.Cut(pair, "=")
		if _, twice := values[name]; !twice {
			values[name] = v
		}
	}
	s := Settings{lookUp: func(name string) string { return values[name] }}
	var notices []Notice
	var problems []error
	for _, v := range variables {
		value := cmp.Or(values[v.Name], v.Default)
		switch {
		case v.read != nil && value != "":
			if err := v.read(&s, value); err != nil {
				problems = append(problems, fmt.Errorf("%s=%s: %w", v.Name, value, err))
			}
		case v.read == nil && values[v.Name] != "":
			notices = append(notices, Notice{v.Name, v.Without})
		}
	}
	problems = append(problems, s.check()...)
	return s, append(notices, s.notices()...), errors.Join(problems...)
}
