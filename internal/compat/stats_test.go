package compat_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	"github.com/sentinel-rls/sentinel-rls/internal/compat"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// filled returns statistics in which something happened.
func filled(tags map[string]string) *compat.Stats {
	s := compat.NewStats(tags, false)
	gold := s.Rule(rls.RuleName{Domain: "shop", Levels: []string{"plan_gold", "user_bob"}})
	gold.Count(rls.RuleCounts{TotalHits: 5, OverLimit: 2, NearLimit: 1, WithinLimit: 3, ShadowMode: 2, OverLimitWithLocalCache: 2})
	s.ConfigLoaded()
	s.RedisError()
	s.UnknownDomain("nope", 1)
	s.NewPool(false).Connections(3)
	return s
}

func lines(t *testing.T, s *compat.Stats) map[string]string {
	t.Helper()
	var text strings.Builder
	if err := s.Write(&text); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for line := range strings.Lines(text.String()) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if _, twice := found[name]; !ok || twice {
			t.Errorf("the line %q is no name: value, or stands twice", line)
		}
		found[name] = value
	}
	return found
}

// The names that dashboards go by.
func TestStatisticsHaveTheNamesOfThatService(t *testing.T) {
	t.Parallel()
	got := lines(t, filled(nil))
	for name, want := range map[string]string{
		"ratelimit.service.rate_limit.shop.plan_gold.user_bob.total_hits":                  "5",
		"ratelimit.service.rate_limit.shop.plan_gold.user_bob.over_limit":                  "2",
		"ratelimit.service.rate_limit.shop.plan_gold.user_bob.near_limit":                  "1",
		"ratelimit.service.rate_limit.shop.plan_gold.user_bob.within_limit":                "3",
		"ratelimit.service.rate_limit.shop.plan_gold.user_bob.shadow_mode":                 "2",
		"ratelimit.service.rate_limit.shop.plan_gold.user_bob.over_limit_with_local_cache": "2",
		"ratelimit.service.rate_limit.nope.domain_not_found":                               "1",
		"ratelimit.service.config_load_success":                                            "1",
		"ratelimit.service.config_load_error":                                              "0",
		"ratelimit.service.call.should_rate_limit.redis_error":                             "1",
		"ratelimit.service.call.should_rate_limit.service_error":                           "0",
		"ratelimit.service.global_shadow_mode":                                             "0",
		"ratelimit.redis_pool.cx_active":                                                   "3",
		"ratelimit.redis_pool.cx_total":                                                    "3",
		"ratelimit.redis_pool.cx_local_close":                                              "0",
		"ratelimit_server.ShouldRateLimit.total_requests":                                  "0",
		"ratelimit.localcache.hitCount":                                                    "1",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	if got := lines(t, filled(map[string]string{"env": "prod", "az": "a.1"})); got["ratelimit.service.config_load_success.__az=a_1.__env=prod"] != "1" {
		t.Errorf("extra tags are missing: %v", got)
	}
}

func scrape(t *testing.T, s *compat.Stats, m *compat.Mapper) string {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(s.Collector(m))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

func TestPrometheusHasTheMappedNames(t *testing.T) {
	t.Parallel()
	s := filled(map[string]string{"env": "prod"})
	s.Answered(3 * time.Millisecond)
	// What MT-02 is about: text of any kind must not panic.
	s.UnknownDomain("a\xffb", 1)
	s.Rule(rls.RuleName{Domain: "d\xff", Levels: []string{"k_\xff\n\"", "a.b:c|d"}}).Count(rls.RuleCounts{TotalHits: 1})
	got := scrape(t, s, nil)
	for _, want := range []string{
		`ratelimit_service_rate_limit_total_hits{domain="shop",env="prod",key1="plan_gold",key2="user_bob"} 5`,
		`ratelimit_service_rate_limit_near_limit{domain="shop",env="prod",key1="plan_gold",key2="user_bob"} 1`,
		`ratelimit_service_rate_limit_shadow_mode{domain="shop",env="prod",key1="plan_gold",key2="user_bob"} 2`,
		`ratelimit_service_config_load_success{env="prod"} 1`,
		`ratelimit_redis_pool_cx_active{env="prod"} 3`,
		`ratelimit_service_rate_limit_nope_domain_not_found{env="prod"} 1`,
		`ratelimit_service_should_rate_limit_error{env="prod",err_type="redis_error"} 1`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 1`,
		`ratelimit_service_rate_limit_total_hits{domain="d` + "\uFFFD" + `",env="prod",key1="k_` + "\uFFFD" + `\n\"",key2="a.b:c|d"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	ms := compat.NewStats(nil, true)
	ms.Answered(3 * time.Millisecond)
	if got := scrape(t, ms, nil); !strings.Contains(got, `ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 3`+"\n") {
		t.Errorf("not in milliseconds:\n%s", got)
	}
}

func TestMapperFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "map.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
mappings:
  - match: "ratelimit\\.service\\.rate_limit\\.([^.]*)\\.(.*)\\.over_limit$"
    match_type: regex
    name: limited_total
    labels: {domain: "$1", rule: "${2}!"}
  - match: ratelimit.service.rate_limit.*.*.*.total_hits
    name: hits
    timer_type: histogram
    labels: {d: "$1", one: "$2", two: "$3x"}
  - match: ratelimit.redis_pool.*
    action: drop
    name: unused
  - match: ratelimit.service.config_load_success
    match_metric_type: gauge
    name: never
`)
	m, err := compat.ReadMapper(file)
	if err != nil {
		t.Fatal(err)
	}
	got := scrape(t, filled(nil), m)
	for _, want := range []string{
		`limited_total{domain="shop",rule="plan_gold.user_bob!"} 2`,
		`hits{d="shop",one="plan_gold",two="user_bobx"} 5`,
		`ratelimit_service_config_load_success 1`,
		`ratelimit_service_rate_limit_shop_plan_gold_user_bob_near_limit 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "redis_pool") {
		t.Errorf("what is dropped shows:\n%s", got)
	}
	for text, want := range map[string]string{
		"mappings: [{match: a, nmae: b}]":                      "nmae",
		"mappings: [{match: a}]":                               "mappings[0]: name is missing",
		"mappings: [{name: a}]":                                "match is missing",
		`mappings: [{match: "(", match_type: regex, name: a}]`: "mappings[0]: match: ",
		"mappings: [{match: a, match_type: sql, name: a}]":     "neither glob nor regex",
		"mappings: [{match: a, action: keep, name: a}]":        "neither map nor drop",
	} {
		write(text)
		if _, err := compat.ReadMapper(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Whatever domains are asked about, their statistics are at most a hundred and one for the others.
func TestUnknownDomainsAreBounded(t *testing.T) {
	t.Parallel()
	s := compat.NewStats(nil, false)
	for i := range 1000 {
		s.UnknownDomain(fmt.Sprintf("d%d", i), 1)
	}
	s.UnknownDomain(strings.Repeat("x", 1000), 1)
	n := 0
	got := lines(t, s)
	for name := range got {
		if strings.HasSuffix(name, ".domain_not_found") {
			n++
		}
	}
	if other := got["ratelimit.service.rate_limit.(other).domain_not_found"]; n != 101 || other != "901" {
		t.Errorf("%d statistics and %s others, want 101 and 901", n, other)
	}
}

// statsd runs a sender with these settings until the returned function is called.
func statsd(t *testing.T, s *compat.Stats, env ...string) (stop func()) {
	t.Helper()
	cfg, _ := settings(t, append(env, "STATS_FLUSH_INTERVAL=20ms")...)
	d, err := compat.NewStatsd(s, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Counts arrive once, over TCP, although the server was away when they were made and again in between.
func TestStatsdOverTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	s := compat.NewStats(map[string]string{"env": "prod"}, false)
	rule := s.Rule(rls.RuleName{Domain: "shop", Levels: []string{"plan:gold|x"}})
	rule.Count(rls.RuleCounts{TotalHits: 2})
	stop := statsd(t, s, "STATSD_HOST="+host, "STATSD_PORT="+port)
	defer stop()
	time.Sleep(50 * time.Millisecond) // it has tried in vain

	if l, err = net.Listen("tcp", net.JoinHostPort(host, port)); err != nil {
		t.Fatalf("the port was taken meanwhile: %v", err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const name = "ratelimit.service.rate_limit.shop.plan_gold_x.total_hits.__env=prod"
	in := bufio.NewScanner(conn)
	read := func(want string) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		for in.Scan() {
			if strings.HasPrefix(in.Text(), name) {
				if in.Text() != want {
					t.Fatalf("got %q, want %q", in.Text(), want)
				}
				return
			}
		}
		t.Fatalf("no %q: %v", want, in.Err())
	}
	read(name + ":2|c")
	rule.Count(rls.RuleCounts{TotalHits: 3})
	read(name + ":3|c")
}

func TestDogStatsd(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	host, port, _ := net.SplitHostPort(server.LocalAddr().String())
	s := filled(map[string]string{"env": "prod"})
	for range 3 {
		s.Answered(1500 * time.Microsecond)
	}
	stop := statsd(t, s, "USE_DOG_STATSD=true", "STATSD_HOST="+host, "STATSD_PORT="+port, "USE_DOG_STATSD_MOGRIFIERS=RULE",
		`DOG_STATSD_MOGRIFIER_RULE_PATTERN=^ratelimit\.service\.rate_limit\.([^.]*)\.(.*)\.([^.]*)$`,
		"DOG_STATSD_MOGRIFIER_RULE_NAME=ratelimit.service.rate_limit.$3", "DOG_STATSD_MOGRIFIER_RULE_TAGS=domain:$1, descriptor:$2")
	defer stop()
	want := []string{
		"ratelimit.service.rate_limit.over_limit:2|c|#domain:shop,descriptor:plan_gold.user_bob,env:prod",
		"ratelimit.service.config_load_success:1|c|#env:prod",
		"ratelimit_server.ShouldRateLimit.response_time:1.500|ms|#env:prod",
		"ratelimit.redis_pool.cx_active:3|g|#env:prod",
	}
	packet := make([]byte, 65536)
	for deadline := time.Now().Add(10 * time.Second); len(want) > 0; {
		_ = server.SetReadDeadline(deadline)
		n, _, err := server.ReadFrom(packet)
		if err != nil {
			t.Fatalf("still without %q: %v", want, err)
		}
		if n > 1400 {
			t.Errorf("a packet of %d bytes", n)
		}
		for line := range strings.Lines(string(packet[:n])) {
			want = slices.DeleteFunc(want, func(w string) bool { return w == strings.TrimSuffix(line, "\n") })
		}
	}
	if _, err := compat.NewStatsd(s, first(settings(t, "USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=A")), slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "DOG_STATSD_MOGRIFIER_A_PATTERN") {
		t.Errorf("a mogrifier without a pattern: %v", err)
	}
}

func first(s compat.Settings, _ []compat.Notice) compat.Settings { return s }
