package compat_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sentinel-rls/sentinel-rls/internal/compat"
)

func settings(t *testing.T, env ...string) (compat.Settings, []compat.Notice) {
	t.Helper()
	s, notices, err := compat.FromEnvironment(env)
	if err != nil {
		t.Fatal(err)
	}
	return s, notices
}

// What each variable that is honoured changes: a value, and what of the settings then differs from the defaults. A
// variable of the table that is neither here nor without effect fails the test.
func TestEveryVariable(t *testing.T) {
	t.Parallel()
	defaults, notices := settings(t)
	if len(notices) > 0 {
		t.Errorf("with nothing set: %v", notices)
	}
	redis := func(of func(*compat.Settings) *compat.Redis) map[string]change {
		return map[string]change{
			"SOCKET_TYPE":                    {"unix", func(s *compat.Settings) { of(s).SocketType = "unix" }},
			"TYPE":                           {"single", func(*compat.Settings) {}},
			"SENTINEL_AUTH":                  {"s:p", func(s *compat.Settings) { of(s).SentinelAuth = "s:p" }},
			"URL":                            {"/run/r.sock", func(s *compat.Settings) { of(s).URL = "/run/r.sock" }},
			"AUTH":                           {"u:p", func(s *compat.Settings) { of(s).Auth = "u:p" }},
			"TIMEOUT":                        {"5s", func(s *compat.Settings) { of(s).DialTimeout = 5 * time.Second }},
			"TLS_CLIENT_CERT":                {"c.pem", func(s *compat.Settings) { of(s).TLS.Cert = "c.pem" }},
			"TLS_CLIENT_KEY":                 {"k.pem", func(s *compat.Settings) { of(s).TLS.Key = "k.pem" }},
			"TLS_CACERT":                     {"ca.pem", func(s *compat.Settings) { of(s).TLS.CA = "ca.pem" }},
			"TLS_SKIP_HOSTNAME_VERIFICATION": {"true", func(s *compat.Settings) { of(s).TLS.AnyHost = true }},
			"STARTUP_INITIAL_INTERVAL":       {"2s", func(s *compat.Settings) { of(s).Startup.Every = 2 * time.Second }},
			"STARTUP_MAX_INTERVAL":           {"20s", func(s *compat.Settings) { of(s).Startup.Most = 20 * time.Second }},
			"STARTUP_MAX_ELAPSED_TIME":       {"5m", func(s *compat.Settings) { of(s).Startup.Bound = 5 * time.Minute }},
			"HEALTH_CHECK_ACTIVE_CONNECTION": {"true", func(s *compat.Settings) { of(s).HealthCheck = true }},
		}
	}
	changes := map[string]change{
		"HOST":       {"127.0.0.1", func(s *compat.Settings) { s.HTTP.Host = "127.0.0.1" }},
		"PORT":       {"8180", func(s *compat.Settings) { s.HTTP.Port = 8180 }},
		"GRPC_HOST":  {"::1", func(s *compat.Settings) { s.GRPC.Host = "::1" }},
		"GRPC_PORT":  {"8181", func(s *compat.Settings) { s.GRPC.Port = 8181 }},
		"GRPC_UDS":   {"/run/rl.sock", func(s *compat.Settings) { s.GRPCSocket = "/run/rl.sock" }},
		"DEBUG_HOST": {"127.0.0.1", func(s *compat.Settings) { s.Debug.Host = "127.0.0.1" }},
		"DEBUG_PORT": {"6170", func(s *compat.Settings) { s.Debug.Port = 6170 }},

		"GRPC_MAX_CONNECTION_AGE":       {"1h", func(s *compat.Settings) { s.MaxConnectionAge = time.Hour }},
		"GRPC_MAX_CONNECTION_AGE_GRACE": {"1m", func(s *compat.Settings) { s.MaxConnectionAgeGrace = time.Minute }},
		"GRPC_SERVER_TLS_CERT":          {"c.pem", func(s *compat.Settings) { s.ServerTLS.Cert = "c.pem" }},
		"GRPC_SERVER_TLS_KEY":           {"k.pem", func(s *compat.Settings) { s.ServerTLS.Key = "k.pem" }},
		"GRPC_CLIENT_TLS_CACERT":        {"ca.pem", func(s *compat.Settings) { s.ServerTLS.CA = "ca.pem" }},

		"CONFIG_TYPE":                        {"GRPC_XDS_SOTW", func(s *compat.Settings) { s.ConfigType = compat.FromXDS }},
		"FORCE_START_WITHOUT_INITIAL_CONFIG": {"true", func(s *compat.Settings) { s.StartWithoutConfig = true }},
		"RUNTIME_ROOT":                       {"/data", func(s *compat.Settings) { s.Runtime.Root = "/data" }},
		"RUNTIME_SUBDIRECTORY":               {"ratelimit", func(s *compat.Settings) { s.Runtime.Subdirectory = "ratelimit" }},
		"RUNTIME_APPDIRECTORY":               {"limits", func(s *compat.Settings) { s.Runtime.AppDirectory = "limits" }},
		"RUNTIME_IGNOREDOTFILES":             {"true", func(s *compat.Settings) { s.Runtime.IgnoreDotFiles = true }},
		"RUNTIME_WATCH_ROOT":                 {"false", func(s *compat.Settings) { s.Runtime.WatchRoot = false }},
		"MERGE_DOMAIN_CONFIG":                {"true", func(s *compat.Settings) { s.MergeDomains = true }},

		"CONFIG_GRPC_XDS_NODE_ID":                       {"node-1", func(s *compat.Settings) { s.XDS.NodeID = "node-1" }},
		"CONFIG_GRPC_XDS_NODE_METADATA":                 {"a:1,b=2", func(s *compat.Settings) { s.XDS.NodeMetadata = map[string]string{"a": "1", "b": "2"} }},
		"CONFIG_GRPC_XDS_SERVER_URL":                    {"eg:18001", func(s *compat.Settings) { s.XDS.Server = "eg:18001" }},
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL": {"1s", func(s *compat.Settings) { s.XDS.Retry = time.Second }},
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS":     {"x:y", func(s *compat.Settings) { s.XDS.Headers = map[string]string{"x": "y"} }},
		"CONFIG_GRPC_XDS_SERVER_USE_TLS":                {"true", func(s *compat.Settings) { s.XDS.TLS.On = true }},
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT":               {"c", func(s *compat.Settings) { s.XDS.TLS.Cert = "c" }},
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY":                {"k", func(s *compat.Settings) { s.XDS.TLS.Key = "k" }},
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT":             {"ca", func(s *compat.Settings) { s.XDS.TLS.CA = "ca" }},
		"CONFIG_GRPC_XDS_SERVER_TLS_SAN":                {"eg", func(s *compat.Settings) { s.XDS.TLS.SAN = "eg" }},
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL":           {"2s", func(s *compat.Settings) { s.XDS.BackoffInitial = 2 * time.Second }},
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL":               {"20s", func(s *compat.Settings) { s.XDS.BackoffMax = 20 * time.Second }},
		"XDS_CLIENT_BACKOFF_RANDOM_FACTOR":              {"0.1", func(s *compat.Settings) { s.XDS.RandomFactor = 0.1 }},
		"XDS_CLIENT_BACKOFF_JITTER":                     {"false", func(s *compat.Settings) { s.XDS.Jitter = false }},
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES":              {"9000", func(s *compat.Settings) { s.XDS.MaxMessageBytes = 9000 }},

		"EXPIRATION_JITTER_MAX_SECONDS":           {"60", func(s *compat.Settings) { s.ExpiryJitter = time.Minute }},
		"LOCAL_CACHE_SIZE_IN_BYTES":               {"1000000", func(s *compat.Settings) { s.LocalCacheBytes = 1_000_000 }},
		"NEAR_LIMIT_RATIO":                        {"0.5", func(s *compat.Settings) { s.NearRatio = 0.5 }},
		"CACHE_KEY_PREFIX":                        {"blue:", func(s *compat.Settings) { s.KeyPrefix = "blue:" }},
		"BACKEND_TYPE":                            {"memory", func(s *compat.Settings) { s.Memory = true }},
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": {"true", func(s *compat.Settings) { s.StopWhenOver = true }},
		"SHADOW_MODE":                             {"true", func(s *compat.Settings) { s.Shadow = true }},
		"QUOTA_MODE":                              {"true", func(s *compat.Settings) { s.Quota = true }},
		"RESPONSE_DYNAMIC_METADATA":               {"true", func(s *compat.Settings) { s.DynamicMetadata = true }},
		"LIMIT_RESPONSE_HEADERS_ENABLED":          {"true", func(s *compat.Settings) { s.Headers.On = true }},
		"LIMIT_LIMIT_HEADER":                      {"X-L", func(s *compat.Settings) { s.Headers.Limit = "X-L" }},
		"LIMIT_REMAINING_HEADER":                  {"X-R", func(s *compat.Settings) { s.Headers.Remaining = "X-R" }},
		"LIMIT_RESET_HEADER":                      {"X-T", func(s *compat.Settings) { s.Headers.Reset = "X-T" }},
		"REDIS_PERSECOND":                         {"true", func(s *compat.Settings) { s.PerSecond.On = true }},

		"USE_STATSD":                {"false", func(s *compat.Settings) { s.Stats.Statsd = false }},
		"STATSD_HOST":               {"stats", func(s *compat.Settings) { s.Stats.Host = "stats" }},
		"STATSD_PORT":               {"9125", func(s *compat.Settings) { s.Stats.Port = 9125 }},
		"STATSD_PROTOCOL":           {"udp", func(s *compat.Settings) { s.Stats.Protocol = "udp" }},
		"USE_DOG_STATSD":            {"true", func(s *compat.Settings) { s.Stats.Dog = true }},
		"USE_DOG_STATSD_MOGRIFIERS": {"A,B", func(s *compat.Settings) { s.Stats.Mogrifiers = []string{"A", "B"} }},
		"USE_PROMETHEUS":            {"true", func(s *compat.Settings) { s.Stats.Prometheus = true }},
		"PROMETHEUS_ADDR":           {":9190", func(s *compat.Settings) { s.Stats.PrometheusAddr = ":9190" }},
		"PROMETHEUS_PATH":           {"/m", func(s *compat.Settings) { s.Stats.PrometheusPath = "/m" }},
		"PROMETHEUS_MAPPER_YAML":    {"map.yaml", func(s *compat.Settings) { s.Stats.MapperFile = "map.yaml" }},
		"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS": {"true", func(s *compat.Settings) { s.Stats.Milliseconds = true }},
		"EXTRA_TAGS":           {"env:prod,az:1", func(s *compat.Settings) { s.Stats.Tags = map[string]string{"env": "prod", "az": "1"} }},
		"STATS_FLUSH_INTERVAL": {"1s", func(s *compat.Settings) { s.Stats.Flush = time.Second }},
		"DISABLE_STATS":        {"true", func(s *compat.Settings) { s.Stats.Disabled = true }},
		"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": {"true", func(s *compat.Settings) { s.HealthyWithConfig = true }},
		"LOG_LEVEL":       {"trace", func(s *compat.Settings) { s.LogLevel = "debug" }},
		"LOG_FORMAT":      {"JSON", func(s *compat.Settings) { s.LogFormat = "json" }},
		"TRACING_ENABLED": {"false", func(*compat.Settings) {}},
		// Without TRACING_ENABLED they change nothing there either.
		"TRACING_SERVICE_NAME":        {"limits", func(*compat.Settings) {}},
		"TRACING_SERVICE_NAMESPACE":   {"shop", func(*compat.Settings) {}},
		"TRACING_SERVICE_INSTANCE_ID": {"1", func(*compat.Settings) {}},
		"TRACING_EXPORTER_PROTOCOL":   {"grpc", func(*compat.Settings) {}},
		"TRACING_SAMPLING_RATE":       {"0.1", func(*compat.Settings) {}},
	}
	for name, c := range redis(func(s *compat.Settings) *compat.Redis { return &s.Redis }) {
		changes["REDIS_"+name] = c
	}
	for name, c := range redis(func(s *compat.Settings) *compat.Redis { return &s.PerSecond }) {
		changes["REDIS_PERSECOND_"+name] = c
	}
	// Only in company: see the cases below.
	company := map[string]bool{"GRPC_SERVER_USE_TLS": true, "GRPC_CLIENT_TLS_SAN": true, "REDIS_TLS": true, "REDIS_PERSECOND_TLS": true}

	for _, v := range compat.Variables() {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			c, honoured := changes[v.Name]
			switch {
			case company[v.Name]:
			case honoured:
				want := defaults
				c.of(&want)
				got, notices := settings(t, v.Name+"="+c.value)
				if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(compat.Settings{})); diff != "" || len(notices) > 0 {
					t.Errorf("%s=%s: notices %v, -want +got\n%s", v.Name, c.value, notices, diff)
				}
			default:
				if !regexp.MustCompile(`^MEMCACHE_|^REDIS_(PERSECOND_)?(POOL|PIPELINE|CLUSTER_PIPELINE)_`).MatchString(v.Name) {
					t.Errorf("%s is without effect, and neither memcache's nor a pool's of that service's client", v.Name)
				}
				got, notices := settings(t, v.Name+"=1")
				if diff := cmp.Diff(defaults, got, cmpopts.IgnoreUnexported(compat.Settings{})); diff != "" {
					t.Errorf("it is said to be without effect:\n%s", diff)
				}
				if len(notices) != 1 || notices[0].Name != v.Name || notices[0].Why == "" {
					t.Errorf("notices %v, want one about %s that says why", notices, v.Name)
				}
			}
		})
	}
}

type change struct {
	value string
	of    func(*compat.Settings)
}

func TestVariablesInCompany(t *testing.T) {
	t.Parallel()
	s, _ := settings(t, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=c", "GRPC_SERVER_TLS_KEY=k", "GRPC_CLIENT_TLS_CACERT=ca", "GRPC_CLIENT_TLS_SAN=envoy")
	if want := (compat.TLS{On: true, Cert: "c", Key: "k", CA: "ca", SAN: "envoy"}); s.ServerTLS != want {
		t.Errorf("the server's TLS is %+v, want %+v", s.ServerTLS, want)
	}
	if s, _ := settings(t, "GRPC_MAX_CONNECTION_AGE=0", "GRPC_MAX_CONNECTION_AGE_GRACE=0s"); s.MaxConnectionAge < 100*365*24*time.Hour || s.MaxConnectionAgeGrace < s.MaxConnectionAge {
		t.Errorf("a connection's age of 0 is %v and %v, want for ever", s.MaxConnectionAge, s.MaxConnectionAgeGrace)
	}
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"REDIS_URL=/run/r.sock"}, "unix:///run/r.sock"},
		{[]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379"}, "redis://redis:6379"},
		{[]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379", "REDIS_AUTH=secret"}, "redis://:secret@redis:6379"},
		{[]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379", "REDIS_AUTH=me:se:cret"}, "redis://me:se%3Acret@redis:6379"},
		{[]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://u:p@redis:6379/2"}, "redis://u:p@redis:6379/2"},
		{[]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379", "REDIS_TLS=true"}, "rediss://redis:6379"},
		{[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=main,s1:26379,s2:26379", "REDIS_AUTH=p"}, "redis+sentinel://:p@s1:26379,s2:26379/main"},
		{[]string{"REDIS_TYPE=cluster", "REDIS_URL=n1:6379,n2:6379", "REDIS_TLS=true"}, "rediss+cluster://n1:6379,n2:6379"},
		{[]string{"REDIS_SOCKET_TYPE=tls", "REDIS_URL=redis:6379"}, "rediss://redis:6379"},
	} {
		s, _ := settings(t, c.env...)
		if got, err := s.Redis.Address(); got != c.want || err != nil || s.Redis.Encrypted() != strings.HasPrefix(c.want, "rediss") {
			t.Errorf("%v: %s (%v), encrypted %t; want %s", c.env, got, err, s.Redis.Encrypted(), c.want)
		}
	}
}

// What cannot be done is refused at the start, all of it at once, and the text says what to do. No password shows.
func TestRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  string
		want string
	}{
		{"BACKEND_TYPE=memcache", "BACKEND_TYPE=memcache: memcache is not supported: .*use redis"},
		{"BACKEND_TYPE=etcd", "must be redis, or memory"},
		{"REDIS_TYPE=RING", "REDIS_TYPE=RING: must be one of SINGLE, SENTINEL, CLUSTER"},
		{"REDIS_TYPE=SENTINEL", "REDIS_URL: must be master,host:port"},
		{"REDIS_TYPE=CLUSTER", "REDIS_URL: must be host:port"},
		{"TRACING_SAMPLING_RATE=often", "must be a number"},
		{"EXPIRATION_JITTER_MAX_SECONDS=-1", "must be an integer in 0..31536000"},
		{"EXPIRATION_JITTER_MAX_SECONDS=5m", "must be an integer in 0..31536000"},
		{"REDIS_STARTUP_INITIAL_INTERVAL=0", "must be a time above 0"},
		{"REDIS_STARTUP_MAX_ELAPSED_TIME=-1s", "must be a time, as 10s or 1h, or 0"},
		{"TRACING_ENABLED=true", "no traces are exported: unset it"},
		{"PORT=99999", "PORT=99999: must be an integer in 0..65535"},
		{"SHADOW_MODE=maybe", "SHADOW_MODE=maybe: must be true or false"},
		{"GRPC_MAX_CONNECTION_AGE=soon", "must be a time, as 10s or 1h, or 0"},
		{"NEAR_LIMIT_RATIO=80", "must be a number in 0..1"},
		{"NEAR_LIMIT_RATIO=NaN", "must be a number in 0..1"},
		{"EXTRA_TAGS=prod", "must be pairs, as key:value"},
		{"LOG_LEVEL=loud", "must be one of trace, debug"},
		{"CONFIG_TYPE=CONSUL", "must be one of FILE, GRPC_XDS_SOTW"},
		{"CACHE_KEY_PREFIX={a}", "must be at most 128 of"},
		{"GRPC_SERVER_USE_TLS=true", "set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY"},
		{"GRPC_CLIENT_TLS_SAN=a", "set GRPC_CLIENT_TLS_CACERT"},
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=eg", "must be host:port"},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL=1s", "must not be below"},
		{"REDIS_PERSECOND=true STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", "unset one of them"},
		{"USE_PROMETHEUS=true PROMETHEUS_ADDR=9090", "must be host:port or :port"},
		{"USE_PROMETHEUS=true PROMETHEUS_PATH=m", "must begin with /"},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1,b:2", "REDIS_URL: several servers: name one, or set REDIS_TYPE"},
		{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL: a path with REDIS_SOCKET_TYPE=tcp"},
		{"REDIS_TLS=true", "a unix socket with REDIS_TLS"},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=http://me:hunter2@r:1", "REDIS_URL: must be host:port"},
	} {
		_, _, err := compat.FromEnvironment(strings.Fields(c.env))
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", c.env, err, c.want)
		}
	}
	_, _, err := compat.FromEnvironment([]string{"PORT=x", "GRPC_PORT=y"})
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two problems give %v, want both", err)
	}
}

// An empty variable, as a chart without a value leaves it, is one that is not set.
func TestEmptyCountsAsUnset(t *testing.T) {
	t.Parallel()
	defaults, _ := settings(t)
	var env []string
	for _, v := range compat.Variables() {
		env = append(env, v.Name+"=")
	}
	got, notices := settings(t, env...)
	if diff := cmp.Diff(defaults, got, cmpopts.IgnoreUnexported(compat.Settings{})); diff != "" || len(notices) > 0 {
		t.Errorf("notices %v\n%s", notices, diff)
	}
}

// The manual has a row for each variable, with its default, and no other.
func TestManualListsEveryVariable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "drop-in.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(string(page), -1) {
		if _, twice := rows[m[1]]; twice {
			t.Errorf("%s has two rows", m[1])
		}
		rows[m[1]] = m[2]
	}
	for _, v := range compat.Variables() {
		name := v.Name
		if other, ok := strings.CutPrefix(name, "REDIS_PERSECOND_"); ok { // these share the row of the other server
			name = "REDIS_" + other
		}
		want := ""
		if v.Default != "" {
			want = "`" + v.Default + "`"
		}
		if name != v.Name && v.Default != "" {
			want = rows[name]
		}
		if got, ok := rows[name]; !ok || got != want {
			t.Errorf("docs/drop-in.md says %q of %s (row: %t), want %q", got, name, ok, want)
		}
	}
}
