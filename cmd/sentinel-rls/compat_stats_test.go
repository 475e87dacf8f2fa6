package main

import (
	"bufio"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

const statisticsFile = `domain: shop
descriptors:
  - {key: plan, value: gold, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: plan, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: user, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: route, value_to_metric: true, descriptors: [{key: user, descriptors: [{key: verb, value: GET, rate_limit: {unit: year, requests_per_unit: 5}}]}]}
  - {key: tick, rate_limit: {unit: second, requests_per_unit: 1000}}
  - {key: hard, fail_mode: error, rate_limit: {unit: year, requests_per_unit: 100}}
`

// statistic is one number under its two names.
type statistic struct {
	name   string // in statsd and /stats
	series string // in Prometheus
	value  int64  // unsaid: whatever /stats says
}

const unsaid = -1

// ofRule returns the counters of one rule.
func ofRule(levels, labels string, total, over, near, cached, within, shadow int64) (all []statistic) {
	for i, counter := range []string{"total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit", "shadow_mode"} {
		all = append(all, statistic{
			"ratelimit.service.rate_limit.shop." + levels + "." + counter,
			"ratelimit_service_rate_limit_" + counter + `{domain="shop",` + labels + "}",
			[]int64{total, over, near, cached, within, shadow}[i],
		})
	}
	return all
}

// everyStatistic is what the test below brings about.
var everyStatistic = slices.Concat(
	ofRule("plan_gold", `key1="plan_gold"`, 13, 3, 2, 2, 10, 0),
	ofRule("plan", `key1="plan"`, 7, 0, 0, 0, 7, 0),
	ofRule("quiet", `key1="quiet"`, 4, 3, 1, 2, 0, 3), // of the first two hits one is over
	ofRule("user", `key1="user"`, 0, 0, 0, 0, 0, 0),
	ofRule("user_bob", `key1="user_bob"`, 2, 0, 0, 0, 2, 0),
	ofRule("route.user.verb_GET", `key1="route",key2="user",key3="verb_GET"`, 0, 0, 0, 0, 0, 0),
	ofRule("route_/a.user.verb_GET", `key1="route_/a",key2="user",key3="verb_GET"`, 1, 0, 0, 0, 1, 0),
	ofRule("tick", `key1="tick"`, 1, 0, 0, 0, 1, 0),
	ofRule("hard", `key1="hard"`, 1, 0, 0, 0, 1, 0),
	ofRule("plan_own", `key1="plan_own"`, 2, 1, 1, 0, 1, 0), // a limit that the request brings
	ofRule("override", `key1="override"`, 0, 0, 0, 0, 0, 0),
	[]statistic{
		{"ratelimit.service.rate_limit.nope.domain_not_found", "ratelimit_service_rate_limit_nope_domain_not_found", 3}, // one for each descriptor
		{"ratelimit.service.config_load_success", "ratelimit_service_config_load_success", 1},
		{"ratelimit.service.config_load_error", "ratelimit_service_config_load_error", 1},
		{"ratelimit.service.global_shadow_mode", "ratelimit_service_global_shadow_mode", 4},
		{"ratelimit.service.call.should_rate_limit.redis_error", `ratelimit_service_should_rate_limit_error{err_type="redis_error"}`, unsaid},
		{"ratelimit.service.call.should_rate_limit.service_error", `ratelimit_service_should_rate_limit_error{err_type="service_error"}`, 1},
		{"ratelimit_server.ShouldRateLimit.total_requests", `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`, unsaid},
		{"ratelimit.redis_pool.cx_active", "ratelimit_redis_pool_cx_active", unsaid},
		{"ratelimit.redis_pool.cx_total", "ratelimit_redis_pool_cx_total", unsaid},
		{"ratelimit.redis_pool.cx_local_close", "ratelimit_redis_pool_cx_local_close", unsaid},
		{"ratelimit.redis_per_second_pool.cx_active", "ratelimit_redis_per_second_pool_cx_active", unsaid},
		{"ratelimit.redis_per_second_pool.cx_total", "ratelimit_redis_per_second_pool_cx_total", unsaid},
		{"ratelimit.redis_per_second_pool.cx_local_close", "ratelimit_redis_per_second_pool_cx_local_close", unsaid},
		{"ratelimit.localcache.hitCount", "ratelimit_localcache_hitCount", 4},
	},
)

// Every counter moves, and /stats, statsd and Prometheus say the same of each, under the names of that service's
// dashboards: none of them has one more than the table, or one less.
func TestCompatStatisticsAgree(t *testing.T) {
	t.Parallel()
	sink := listenStatsd(t)
	main := testserver.Start(t, testserver.Redis)
	root := files(t, map[string]string{"config/shop.yaml": statisticsFile, "bad.yaml": "domain: ''\n"})
	in := compatServing(t, "RUNTIME_ROOT="+root, "SHADOW_MODE=true", "LOCAL_CACHE_SIZE_IN_BYTES=1000000", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+main.Addr(),
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL="+testserver.Start(t, testserver.Redis).Addr(),
		"USE_PROMETHEUS=true", "USE_STATSD=true", "STATSD_HOST="+sink.host, "STATSD_PORT="+sink.port, "STATS_FLUSH_INTERVAL=50ms")
	client := rlsv3.NewRateLimitServiceClient(dial(t, in.grpcAddr))
	ask := func(times int, q *rlsv3.RateLimitRequest) (err error) {
		for range times {
			_, err = client.ShouldRateLimit(t.Context(), q)
		}
		return err
	}
	own := asking("shop", "plan", "own")
	own.Descriptors[0].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_YEAR}
	seven := asking("shop", "plan", "silver")
	seven.HitsAddend = 7
	quiet := asking("shop", "quiet", "x")
	quiet.HitsAddend = 2
	unknown := asking("nope", "a", "b")
	unknown.Descriptors = append(unknown.Descriptors, unknown.Descriptors[0])
	for _, c := range []struct {
		times int
		q     *rlsv3.RateLimitRequest
	}{
		{13, asking("shop", "plan", "gold")},
		{1, seven},
		{1, quiet},
		{2, asking("shop", "quiet", "x")},
		{2, asking("shop", "user", "bob")},
		{1, asking("shop", "route", "/a", "user", "x", "verb", "GET")},
		{1, asking("shop", "tick", "x")},
		{1, asking("shop", "hard", "x")},
		{2, own},
		{1, asking("nope", "a", "b")},
		{1, unknown},
	} {
		if err := ask(c.times, c.q); err != nil {
			t.Fatalf("%v: %v", c.q, err)
		}
	}
	if err := ask(1, asking("", "a", "b")); err == nil {
		t.Fatal("a request without a domain is answered")
	}
	// In one step, or half of it would be another bad file.
	if err := os.Rename(filepath.Join(root, "bad.yaml"), filepath.Join(root, "config", "bad.yaml")); err != nil {
		t.Fatal(err)
	}
	main.Kill()
	eventually(t, "a rule with fail_mode error fails", func() bool { return ask(1, asking("shop", "hard", "x")) != nil })
	stats := func() map[string]int64 { _, text := get(t, in.instance, "/stats"); return numbers(t, text, ": ") }
	eventually(t, "the bad file is counted", func() bool { return stats()["ratelimit.service.config_load_error"] == 1 })

	for _, s := range everyStatistic {
		got, ok := stats()[s.name]
		if !ok || s.value != unsaid && got != s.value || s.value == unsaid && !strings.HasSuffix(s.name, "cx_active") && !strings.Contains(s.name, "per_second_pool") && got == 0 {
			t.Errorf("/stats: %s is %d (there: %t), want %d", s.name, got, ok, s.value)
		}
	}
	// Connections come and go by themselves: all three have to say the same at one moment.
	var told, scraped, sent map[string]int64
	agree := func() bool {
		_, text := httpDo(t, "GET", "http://"+in.prometheusAddr+"/metrics", "")
		told, scraped, sent = stats(), series(t, text), sink.numbers()
		wantScraped, wantSent := make(map[string]int64), make(map[string]int64)
		for _, s := range everyStatistic {
			wantScraped[s.series] = told[s.name]
			if told[s.name] != 0 || strings.HasSuffix(s.name, "cx_active") { // a counter that never moved is not sent
				wantSent[s.name] = told[s.name]
			}
		}
		return len(told) == len(everyStatistic) && maps.Equal(scraped, wantScraped) && maps.Equal(sent, wantSent)
	}
	for range 200 {
		if agree() {
			break
		}
	}
	if !agree() {
		t.Errorf("/stats\n%v\nPrometheus\n%v\nstatsd\n%v", told, scraped, sent)
	}
	if times, requests := sink.timed(), stats()["ratelimit_server.ShouldRateLimit.total_requests"]; int64(times) != requests {
		t.Errorf("%d response times were sent of %d requests", times, requests)
	}
}

// numbers reads lines of a name and a number.
func numbers(t *testing.T, text, between string) map[string]int64 {
	t.Helper()
	all := make(map[string]int64)
	for line := range strings.Lines(text) {
		i := strings.LastIndex(line, between)
		if i < 0 {
			t.Fatalf("%q", line)
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[i+len(between):]), 64)
		if _, twice := all[line[:i]]; err != nil || twice {
			t.Fatalf("%q: %v, or it stands twice", line, err)
		}
		all[line[:i]] = int64(n)
	}
	return all
}

// series returns that service's series of a scrape, but for the response time.
func series(t *testing.T, text string) map[string]int64 {
	t.Helper()
	var theirs strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "ratelimit") && !strings.HasPrefix(line, "ratelimit_service_response_time_seconds") {
			theirs.WriteString(line)
		}
	}
	return numbers(t, theirs.String(), " ")
}

// statsdSink is a statsd server over TCP.
type statsdSink struct {
	host, port string

	mu    sync.Mutex // guards what follows
	sums  map[string]int64
	times int
}

func listenStatsd(t *testing.T) *statsdSink {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := &statsdSink{host: host, port: port, sums: make(map[string]int64)}
	var reading sync.WaitGroup
	t.Cleanup(func() { l.Close(); reading.Wait() })
	reading.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			reading.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					s.take(lines.Text())
				}
			})
		}
	})
	return s
}

// take notes a line, as "name:3|c".
func (s *statsdSink) take(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, rest, _ := strings.Cut(line, ":")
	number, kind, _ := strings.Cut(rest, "|")
	n, _ := strconv.ParseInt(number, 10, 64)
	switch kind {
	case "c":
		s.sums[name] += n
	case "g":
		s.sums[name] = n
	case "ms":
		s.times++
	default:
		s.sums["not understood: "+line]++
	}
}

func (s *statsdSink) numbers() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.sums)
}

func (s *statsdSink) timed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}
