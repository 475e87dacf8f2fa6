package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/dropin"
)

// compatInstance is a running `sentinel-rls compat`.
type compatInstance struct {
	instance
	httpAddr, prometheusAddr string
	stop                     func() int // ends it, and returns its exit code
	wait                     func() int // waits until it has ended by itself
}

// compatServing runs `sentinel-rls compat` in this process, on free ports, until the test ends.
func compatServing(t *testing.T, env ...string) compatInstance {
	t.Helper()
	var stdout, stderr buffer
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	code := 0
	env = append(env,
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "PROMETHEUS_ADDR=127.0.0.1:0",
		"LOG_LEVEL=debug", "LOG_FORMAT=json", "USE_STATSD=false", // the first of a name counts
		"SENTINEL_SHUTDOWN_DRAIN_DELAY=0s", "SENTINEL_SHUTDOWN_GRACE=1s", "SENTINEL_REDIS_BUDGET=5s", "SENTINEL_GUARD_NO_DEADLINE=10s")
	go func() {
		defer close(ended)
		code = run(ctx, []string{"compat"}, env, &stdout, &stderr)
	}()
	c := compatInstance{stop: func() int {
		cancel(errors.New("the test stops it"))
		<-ended
		return code
	}, wait: func() int {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("it does not end by itself")
		}
		return code
	}}
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Logf("output of sentinel-rls compat:\n%s", stderr.String())
		}
	})
	c.instance = awaitServing(t, stderr.String, ended)
	record, _ := logRecord(stderr.String(), "serving")
	c.httpAddr, _ = record["http"].(string)
	c.prometheusAddr, _ = record["prometheus"].(string)
	return c
}

// httpDo makes one request without keeping its connection.
func httpDo(t *testing.T, method, url, body string) (code int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

const compatFile = `domain: shop
descriptors:
  - key: plan
    value: gold
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: plan
    rate_limit: {unit: hour, requests_per_unit: 3}
`

// asking asks about one descriptor of the domain.
func asking(domain string, entries ...string) *rlsv3.RateLimitRequest {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(entries); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{d}}
}

// limitOf returns the limit that a question meets, 0 for none, or the error's text.
func limitOf(t *testing.T, conn *grpc.ClientConn, q *rlsv3.RateLimitRequest) (uint32, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, q)
	if err != nil {
		return 0, status.Convert(err).Message()
	}
	return resp.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(), ""
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after 30 s: %s", what)
		}
	}
}

// A day with the service's surface: what each port says, and how the numbers move.
func TestCompatSurface(t *testing.T) {
	t.Parallel()
	root := files(t, map[string]string{"sub/limits/shop.yaml": compatFile})
	in := compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=sub", "RUNTIME_APPDIRECTORY=limits",
		"USE_PROMETHEUS=true", "PROMETHEUS_PATH=/prom", "EXTRA_TAGS=env:test", "REDIS_POOL_SIZE=20", "NEAR_LIMIT_RATIO=0.5")
	if record, ok := logRecord(in.log(), "no effect"); !ok || record["variable"] != "REDIS_POOL_SIZE" || record["reason"] == "" {
		t.Errorf("the log says %v of REDIS_POOL_SIZE", record)
	}
	url := "http://" + in.httpAddr
	if code, text := httpDo(t, "GET", url+"/healthcheck", ""); code != 200 || text != "OK" {
		t.Errorf("/healthcheck: %d %q", code, text)
	}
	ask := `{"domain":"shop","descriptors":[{"entries":[{"key":"plan","value":"x"}]}]}`
	for i, want := range []int{200, 200, 200, 429} {
		if code, text := httpDo(t, "POST", url+"/json", ask); code != want {
			t.Errorf("question %d: %d %s, want %d", i+1, code, text, want)
		}
	}
	for body, want := range map[string]string{
		`{"domain":""}`: "rate limit domain must not be empty", `{"domain":"shop"}`: "rate limit descriptor list must not be empty",
		`{`: "not a RateLimitRequest", `{"domian":"shop"}`: "not a RateLimitRequest", "{\"domain\":\"\xff\"}": "not a RateLimitRequest",
		`{"domain":"` + strings.Repeat("x", 5<<20) + `"}`: "more than",
	} {
		if code, text := httpDo(t, "POST", url+"/json", body); code != 400 || !strings.Contains(text, want) {
			t.Errorf("%.40s: %d %s, want 400 and %s", body, code, text, want)
		}
	}
	if code, _ := httpDo(t, "GET", url+"/json", ""); code != 405 {
		t.Errorf("GET /json: %d", code)
	}
	httpDo(t, "POST", url+"/json", `{"domain":"nope","descriptors":[{"entries":[{"key":"plan","value":"x"}]}]}`)

	if code, text := get(t, in.instance, "/rlconfig"); code != 200 || text != "shop.plan_gold: unit=HOUR requests_per_unit=10, shadow_mode: false\nshop.plan: unit=HOUR requests_per_unit=3, shadow_mode: false\n" {
		t.Errorf("/rlconfig: %d\n%s", code, text)
	}
	_, stats := get(t, in.instance, "/stats")
	_, metrics := httpDo(t, "GET", "http://"+in.prometheusAddr+"/prom", "")
	for _, want := range []string{
		"ratelimit.service.rate_limit.shop.plan.total_hits.__env=test: 4", "ratelimit.service.rate_limit.shop.plan.over_limit.__env=test: 1",
		"ratelimit.service.rate_limit.shop.plan.near_limit.__env=test: 2", "ratelimit.service.rate_limit.shop.plan.within_limit.__env=test: 3",
		"ratelimit.service.rate_limit.nope.domain_not_found.__env=test: 1", "ratelimit.service.config_load_success.__env=test: 1",
		"ratelimit.service.call.should_rate_limit.service_error.__env=test: 2",
	} {
		if !strings.Contains(stats, want+"\n") {
			t.Errorf("/stats has no %s in\n%s", want, stats)
		}
	}
	for _, want := range []string{
		`ratelimit_service_rate_limit_total_hits{domain="shop",env="test",key1="plan"} 4`, `ratelimit_service_rate_limit_over_limit{domain="shop",env="test",key1="plan"} 1`,
		`sentinel_unknown_domain_total{service="ratelimit"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("Prometheus has no %s in\n%s", want, metrics)
		}
	}
	for _, path := range []string{"/", "/metrics", "/readyz", "/policies", "/debug/pprof/"} {
		if code, text := get(t, in.instance, path); code != 200 {
			t.Errorf("%s on the debug port: %d %s", path, code, text)
		}
	}
	health := healthv1.NewHealthClient(dial(t, in.grpcAddr))
	for _, name := range []string{"", "ratelimit"} {
		if resp, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name}); err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, resp, err)
		}
	}
	if code := in.stop(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, in.log())
	}
}

// The files change for the worse and back; a bad state never takes a limit away.
func TestCompatReload(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "config")
	in := compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", "MERGE_DOMAIN_CONFIG=true")
	conn := dial(t, in.grpcAddr)
	gold := asking("shop", "plan", "gold")
	failed := func() int {
		_, stats := get(t, in.instance, "/stats")
		var n int
		_, err := fmt.Sscan(strings.SplitN(strings.SplitN(stats, "ratelimit.service.config_load_error: ", 2)[1], "\n", 2)[0], &n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, text := limitOf(t, conn, gold); text != "no rate limit configuration loaded" {
		t.Errorf("without files: %q", text)
	}
	if code, _ := httpDo(t, "GET", "http://"+in.httpAddr+"/healthcheck", ""); code != 500 || failed() != 1 {
		t.Errorf("/healthcheck without files: %d, %d failed loads", code, failed())
	}
	// A ConfigMap: ..data is a link to a dated directory, and each file is a link into it. It is updated by a new link.
	publish := func(name, content string) {
		t.Helper()
		data := filepath.Join(dir, "..2026_"+name)
		next := filepath.Join(dir, "..data_tmp")
		for _, err := range []error{
			os.MkdirAll(data, 0o700), os.WriteFile(filepath.Join(data, "shop.yaml"), []byte(content), 0o600),
			os.Symlink(filepath.Base(data), next), os.Rename(next, filepath.Join(dir, "..data")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("..data/shop.yaml", filepath.Join(dir, "shop.yaml")); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	is := func(want uint32) func() bool {
		return func() bool { got, _ := limitOf(t, conn, gold); return got == want }
	}
	publish("a", compatFile)
	eventually(t, "the first files", is(10))
	eventually(t, "/healthcheck with files", func() bool {
		code, _ := httpDo(t, "GET", "http://"+in.httpAddr+"/healthcheck", "")
		return code == 200
	})
	publish("b", strings.ReplaceAll(compatFile, "10}", "20}"))
	eventually(t, "the ConfigMap's update", is(20))
	before := failed()
	publish("c", "domain: shop\ndescriptors: [{key: plan, rate_limit: {unit: fortnight}}]\n")
	eventually(t, "the bad file is counted", func() bool { return failed() == before+1 })
	if !is(20)() {
		t.Error("a bad file took the limits away")
	}
	if _, text := get(t, in.instance, "/policies"); !strings.Contains(text, `"stale":true`) || !strings.Contains(text, "fortnight") {
		t.Errorf("/policies does not say what is wrong: %s", text)
	}
	// In one step, or states between would be seen and counted too.
	if err := os.Rename(dir, dir+"-gone"); err != nil {
		t.Fatal(err)
	}
	// A look at the files while they go may find some of them missing first, which counts as well.
	eventually(t, "the missing directory is counted and told", func() bool {
		return failed() >= before+2 && strings.Count(in.log(), dir+": no such file or directory") == 2
	})
	if !is(20)() {
		t.Error("a missing directory took the limits away")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	publish("d", strings.ReplaceAll(compatFile, "10}", "30}"))
	if err := os.WriteFile(filepath.Join(dir, "more.txt"), []byte("domain: shop\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 7}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it recovers, with the merged file", func() bool {
		got, _ := limitOf(t, conn, asking("shop", "b", "x"))
		return is(30)() && got == 7
	})
}

// Two files that exchange their contents hold what they held, in another order: the patterns of the first are tried first.
func TestCompatReloadOfExchangedFiles(t *testing.T) {
	t.Parallel()
	pattern := func(value string, perUnit int) string {
		return fmt.Sprintf("domain: shop\ndescriptors: [{key: plan, value: '%s', rate_limit: {unit: hour, requests_per_unit: %d}}]\n", value, perUnit)
	}
	first, second := pattern("go*", 1), pattern("*ld", 2)
	root := files(t, map[string]string{"config/a.yaml": first, "config/b.yaml": second})
	in := compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root, "MERGE_DOMAIN_CONFIG=true")
	conn := dial(t, in.grpcAddr)
	if got, text := limitOf(t, conn, asking("shop", "plan", "gold")); got != 1 {
		t.Fatalf("%d %s, want the first file's limit", got, text)
	}
	for name, content := range map[string]string{"a.yaml": second, "b.yaml": first} {
		if err := os.WriteFile(filepath.Join(root, "config", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the other order", func() bool {
		got, _ := limitOf(t, conn, asking("shop", "plan", "gold"))
		return got == 2
	})
}

// Limits in two Redis servers with key prefix and password, and the health check that asks for one.
func TestCompatRedis(t *testing.T) {
	t.Parallel()
	one := testserver.Start(t, testserver.Redis, testserver.WithPassword("hunter2"))
	second := testserver.Start(t, testserver.Redis)
	root := files(t, map[string]string{"config/shop.yaml": compatFile + "  - {key: s, rate_limit: {unit: second, requests_per_unit: 1000}}\n"})
	in := compatServing(t, "RUNTIME_ROOT="+root, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+one.Addr(), "REDIS_AUTH=hunter2", "CACHE_KEY_PREFIX=blue:",
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL="+second.Addr(),
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "SENTINEL_REDIS_BUDGET=1s")
	conn := dial(t, in.grpcAddr)
	q := asking("shop", "plan", "gold")
	q.Descriptors = append(q.Descriptors, asking("shop", "s", "x").Descriptors...)
	if got, text := limitOf(t, conn, q); got != 10 {
		t.Fatalf("limit %d, %s", got, text)
	}
	keys := func(s *testserver.Server) string {
		t.Helper()
		opts, err := redis.ParseURL(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(opts)
		defer client.Close()
		all, err := client.Keys(t.Context(), "*:d1:*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "\n")
	}
	if a, b := keys(one), keys(second); !strings.HasPrefix(a, "blue:sentinel:d1:") || !strings.Contains(a, ":hour:") || strings.Contains(a, ":second:") ||
		!strings.HasPrefix(b, "blue:sentinel:d1:") || !strings.Contains(b, ":second:") || strings.Contains(b, ":hour:") {
		t.Errorf("keys of one server\n%sand of that for seconds\n%s", a, b)
	}
	_, stats := get(t, in.instance, "/stats")
	if m := regexp.MustCompile(`ratelimit\.redis_per_second_pool\.cx_total: (\d+)`).FindStringSubmatch(stats); m == nil || m[1] == "0" {
		t.Errorf("/stats shows no connections:\n%.600s", stats)
	}
	one.Kill()
	healthy := func() int { code, _ := httpDo(t, "GET", "http://"+in.httpAddr+"/healthcheck", ""); return code }
	eventually(t, "/healthcheck notices that Redis is gone", func() bool { limitOf(t, conn, q); return healthy() == 500 })
	if got, text := limitOf(t, conn, q); got != 10 {
		t.Errorf("without Redis: limit %d, %s", got, text)
	}
	if err := one.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "/healthcheck notices that it is back", func() bool { limitOf(t, conn, q); return healthy() == 200 })
	if strings.Contains(in.log(), "hunter2") {
		t.Error("the log shows the password")
	}
}

// The other ways to reach Redis, by that service's names.
func TestCompatRedisTypes(t *testing.T) {
	t.Parallel()
	root := files(t, map[string]string{"config/shop.yaml": compatFile})
	ask := func(t *testing.T, env ...string) {
		t.Helper()
		in := compatServing(t, append(env, "RUNTIME_ROOT="+root)...)
		conn := dial(t, in.grpcAddr)
		for i, want := range []bool{false, false, false, true} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			resp, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, asking("shop", "plan", "x"))
			cancel()
			if err != nil || (resp.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT) != want {
				t.Errorf("question %d: %v, %v", i, resp, err)
			}
		}
		if _, text := get(t, in.instance, "/readyz"); !strings.Contains(text, `"degraded":[]`) {
			t.Errorf("/readyz: %s\n%s", text, in.log())
		}
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		_, hosts, _ := strings.Cut(testserver.StartCluster(t, testserver.Redis).URL(), "://")
		ask(t, "REDIS_TYPE=CLUSTER", "REDIS_URL="+hosts)
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		_, where, _ := strings.Cut(testserver.StartSentinelSet(t, testserver.Redis).URL(), "://")
		hosts, master, _ := strings.Cut(where, "/")
		ask(t, "REDIS_TYPE=SENTINEL", "REDIS_URL="+master+","+hosts)
	})
	t.Run("tls", func(t *testing.T) {
		t.Parallel()
		certs, err := testserver.MakeCertificates(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s := testserver.Start(t, testserver.Redis, testserver.WithTLS(certs))
		for _, anyHost := range []string{"false", "true"} {
			ask(t, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+s.Addr(), "REDIS_TLS=true", "REDIS_TLS_CACERT="+certs.CA, "CACHE_KEY_PREFIX="+anyHost+":",
				"REDIS_TLS_CLIENT_CERT="+certs.ClientCert, "REDIS_TLS_CLIENT_KEY="+certs.ClientKey, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION="+anyHost)
		}
	})
	t.Run("socket", func(t *testing.T) {
		t.Parallel()
		ask(t, "REDIS_URL="+testserver.Start(t, testserver.Redis, testserver.OnSocket()).Addr())
	})
}

// certificate writes a certificate for name, signed by itself, and its key.
func certificate(t *testing.T, dir, file, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, file+".pem"), filepath.Join(dir, file+".key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Certificates on both sides, the client's name, and new certificates and authorities without a restart.
func TestCompatTLS(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{"config/shop.yaml": compatFile})
	cert, key := certificate(t, dir, "server", "rls.example")
	client, clientKey := certificate(t, dir, "client", "envoy.example")
	ca := filepath.Join(dir, "clients.pem")
	trust := func(from string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(ca, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	trust(client)
	in := compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+dir, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert,
		"GRPC_SERVER_TLS_KEY="+key, "GRPC_CLIENT_TLS_CACERT="+ca, "GRPC_CLIENT_TLS_SAN=envoy.example")
	ask := func(cert, key, server string) (string, *x509.Certificate) {
		t.Helper()
		var seen *x509.Certificate
		cfg := &tls.Config{InsecureSkipVerify: true, ServerName: server, VerifyConnection: func(s tls.ConnectionState) error {
			seen = s.PeerCertificates[0]
			return nil
		}}
		if cert != "" {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{pair}
		}
		conn, err := grpc.NewClient(in.grpcAddr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		limit, text := limitOf(t, conn, asking("shop", "plan", "gold"))
		if text == "" && limit != 10 {
			t.Errorf("limit %d", limit)
		}
		return text, seen
	}
	text, first := ask(client, clientKey, "rls.example")
	if text != "" {
		t.Fatalf("a good client: %s\n%s", text, in.log())
	}
	if text, _ := ask("", "", "rls.example"); text == "" {
		t.Error("a client without a certificate was answered")
	}
	other, otherKey := certificate(t, dir, "other", "other.example")
	trust(other)
	eventually(t, "the new authority is used, and the name is still wanted", func() bool {
		text, _ := ask(client, clientKey, "rls.example")
		stranger, _ := ask(other, otherKey, "rls.example")
		return text != "" && stranger != ""
	})
	again, againKey := certificate(t, dir, "client2", "envoy.example")
	trust(again)
	certificate(t, dir, "server", "rls.example")
	eventually(t, "a new client and the server's new certificate", func() bool {
		text, seen := ask(again, againKey, "rls.example")
		return text == "" && !seen.Equal(first)
	})
}

func TestCompatSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "rl") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root := files(t, map[string]string{"config/shop.yaml": compatFile})
	socket := filepath.Join(dir, "s")
	compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root, "GRPC_UDS="+socket)
	if got, text := limitOf(t, dial(t, "unix://"+socket), asking("shop", "plan", "gold")); got != 10 {
		t.Errorf("over the socket: %d %s", got, text)
	}
	if err := removeSocket(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a socket in use: %v", err)
	}
}

// A second process listens beside the first, and answers when the first has gone. What another program holds is not shared.
func TestCompatSharesItsPorts(t *testing.T) {
	t.Parallel()
	root := files(t, map[string]string{"config/shop.yaml": compatFile})
	first := compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root)
	ports := func(of compatInstance) []string {
		var env []string
		for name, addr := range map[string]string{"GRPC_PORT=": of.grpcAddr, "PORT=": of.httpAddr, "DEBUG_PORT=": of.adminAddr} {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				t.Fatal(err)
			}
			env = append(env, name+port)
		}
		return env
	}
	second := compatServing(t, append(ports(first), "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root)...)
	if second.grpcAddr != first.grpcAddr || second.httpAddr != first.httpAddr || second.adminAddr != first.adminAddr {
		t.Fatalf("the second listens on %+v, the first on %+v", second, first)
	}
	if code := first.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if got, text := limitOf(t, dial(t, first.grpcAddr), asking("shop", "plan", "gold")); got != 10 {
		t.Errorf("the second answers %d %s", got, text)
	}
	if code, _ := httpDo(t, "GET", "http://"+first.httpAddr+"/healthcheck", ""); code != 200 {
		t.Errorf("/healthcheck of the second: %d", code)
	}

	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	var stdout, stderr buffer
	code := run(t.Context(), []string{"compat"}, []string{
		"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + root, "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT=" + port, "PORT=0", "DEBUG_PORT=0", "USE_STATSD=false",
	}, &stdout, &stderr)
	if code == exitOK || !strings.Contains(stderr.String(), "GRPC_PORT") {
		t.Errorf("a port that another program holds: exit code %d, %s", code, stderr.String())
	}
}

// Callers of /json that keep many connections do not keep the health check out.
func TestCompatHTTPTakesManyConnections(t *testing.T) {
	t.Parallel()
	root := files(t, map[string]string{"config/shop.yaml": compatFile})
	in := compatServing(t, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+root)
	for range 300 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", in.httpAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // before the silent ones are closed
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+in.httpAddr+"/healthcheck", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("/healthcheck: %d", resp.StatusCode)
	}
}

// conformanceEnv is what each profile of the shared scenarios needs.
var conformanceEnv = map[string][]string{
	"default":         nil,
	"stop":            {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"},
	"stop-localcache": {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", "LOCAL_CACHE_SIZE_IN_BYTES=1000000"},
	"headers":         {"LIMIT_RESPONSE_HEADERS_ENABLED=true"},
}

// conformance returns the folder of the shared scenarios, and one whose config is theirs.
func conformance(t *testing.T) (shared, root string) {
	t.Helper()
	shared, root = dropin.Folder(t), t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "config"), os.DirFS(filepath.Join(shared, "config"))); err != nil {
		t.Fatal(err)
	}
	return shared, root
}

// The shared program plays every profile against the process, over Redis and over memory.
func TestCompatConformance(t *testing.T) {
	t.Parallel()
	shared, root := conformance(t)
	probe := filepath.Join(t.TempDir(), "probe")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", probe, ".")
	build.Dir = filepath.Join(shared, "probe")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the shared probe: %v\n%s", err, out)
	}
	for profile, env := range conformanceEnv {
		for _, store := range []string{"memory", "redis"} {
			t.Run(profile+" over "+store, func(t *testing.T) {
				t.Parallel()
				env := append([]string{"BACKEND_TYPE=" + store, "RUNTIME_ROOT=" + root}, env...)
				if store == "redis" {
					env = append(env, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+testserver.Start(t, testserver.Redis).Addr())
				}
				in := compatServing(t, env...)
				play := exec.CommandContext(t.Context(), probe, "-addr", in.grpcAddr, "-f", filepath.Join(shared, "scenarios.yaml"), "-profile", profile)
				if out, err := play.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// /json and gRPC give the same answers: each question of a request stream is asked of both, under values of its own.
func TestJSONAgreesWithGRPC(t *testing.T) {
	t.Parallel()
	_, root := conformance(t)
	for profile, env := range conformanceEnv {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			in := compatServing(t, append([]string{"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + root, "RESPONSE_DYNAMIC_METADATA=true"}, env...)...)
			client := rlsv3.NewRateLimitServiceClient(dial(t, in.grpcAddr))
			for i, text := range everyQuestion {
				var answers [2]string
				for way := range answers {
					var q rlsv3.RateLimitRequest
					own := strings.ReplaceAll(text, "$U", fmt.Sprintf("%s%d-%d", profile, i, way))
					if err := protojson.Unmarshal([]byte(own), &q); err != nil {
						t.Fatal(err)
					}
					for range 5 {
						if way == 1 {
							code, body := httpDo(t, "POST", "http://"+in.httpAddr+"/json", own)
							answers[way] += comparable(t, code, body, own)
							continue
						}
						answers[way] += answerOf(t, client, &q)
					}
				}
				if answers[0] != answers[1] {
					t.Errorf("%s\ngRPC:\n%s/json:\n%s", text, answers[0], answers[1])
				}
			}
		})
	}
}

// Every shared scenario of every profile, played over gRPC to one process and over /json to another: the same answers.
func TestJSONPlaysEveryScenario(t *testing.T) {
	t.Parallel()
	_, root := conformance(t)
	for profile, env := range conformanceEnv {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			env = append([]string{"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + root, "RESPONSE_DYNAMIC_METADATA=true"}, env...)
			overGRPC, overJSON := compatServing(t, env...), compatServing(t, env...)
			client := rlsv3.NewRateLimitServiceClient(dial(t, overGRPC.grpcAddr))
			for n, s := range dropin.Scenarios(t, profile) {
				for i, step := range s.Steps {
					q := step.Request(fmt.Sprint("u", n))
					body, err := protojson.Marshal(q)
					if err != nil {
						t.Fatal(err)
					}
					for range max(1, step.Repeat) {
						want := answerOf(t, client, q)
						code, answer := httpDo(t, "POST", "http://"+overJSON.httpAddr+"/json", string(body))
						if got := comparable(t, code, answer, string(body)); got != want {
							t.Errorf("%s, step %d: %s\ngRPC:  %s/json: %s", s.Name, i, body, want, got)
						}
					}
				}
			}
		})
	}
}

// answerOf asks over gRPC and returns the answer as /json would have given it.
func answerOf(t *testing.T, client rlsv3.RateLimitServiceClient, q *rlsv3.RateLimitRequest) string {
	t.Helper()
	resp, err := client.ShouldRateLimit(t.Context(), q)
	if err != nil {
		return comparable(t, 400, status.Convert(err).Message()+"\n", q.String())
	}
	body, err := protojson.Marshal(resp)
	if err != nil {
		t.Fatal(err)
	}
	code := 200
	if resp.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		code = 429
	}
	return comparable(t, code, string(body), q.String())
}

// everyQuestion has a question of each kind of the shared scenarios. The values of exact rules are asked of both ways in
// turn, so their limits are above what is asked.
var everyQuestion = []string{
	`{"domain":"cf-nope","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}`,
	`{"domain":"","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}`,
	`{"domain":"cf-match"}`,
	`{"domain":"cf-match","descriptors":[{}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"nomatch","value":"b"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"plain","value":"$U"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"plain","value":"exempt"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"blocked","value":"10.0.0.9"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"parent","value":"p1"},{"key":"child","value":"$U"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"notshared","value":"files/$U"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"free","value":"$U"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"named","value":"$U"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"year","value":"$U"}]}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"shadow","value":"$U"}]}]}`,
	`{"domain":"cf-match","hitsAddend":7,"descriptors":[{"entries":[{"key":"plain","value":"$U"}]}]}`,
	`{"domain":"cf-pair","hitsAddend":3,"descriptors":[{"entries":[{"key":"k20","value":"$U"}],"hitsAddend":"7"},{"entries":[{"key":"k10","value":"$U"}]}]}`,
	`{"domain":"cf-pair","descriptors":[{"entries":[{"key":"k10","value":"$U"}],"hitsAddend":"0"}]}`,
	`{"domain":"cf-pair","descriptors":[{"entries":[{"key":"k10","value":"$U"}],"hitsAddend":"18446744073709551615"}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"plain","value":"$U"}],"limit":{"requestsPerUnit":2,"unit":"HOUR"}}]}`,
	`{"domain":"cf-match","descriptors":[{"entries":[{"key":"plain","value":"$U"}],"limit":{"requestsPerUnit":2,"unit":"UNKNOWN"}}]}`,
	`{"domain":"cf-replace","descriptors":[{"entries":[{"key":"base","value":"$U"}]},{"entries":[{"key":"boost","value":"$U"}]}]}`,
	`{"domain":"cf-replace","descriptors":[{"entries":[{"key":"base","value":"$U"}]},{"entries":[{"key":"lift","value":"$U"}]}]}`,
}

// comparable returns an answer without what may differ from one moment, or one value, to the next.
func comparable(t *testing.T, code int, body, question string) string {
	t.Helper()
	if code != 400 {
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(body)); err != nil {
			t.Fatalf("%s: %v: %s", question, err, body)
		}
		body = compact.String() + "\n"
	}
	body = regexp.MustCompile(`"durationUntilReset":"[0-9]+s"`).ReplaceAllString(body, `"durationUntilReset":"…"`)
	body = regexp.MustCompile(`("key":"RateLimit-Reset","value":")[0-9]+`).ReplaceAllString(body, "${1}…")
	for profile := range conformanceEnv {
		body = regexp.MustCompile(regexp.QuoteMeta(profile)+`[0-9]+-[01]`).ReplaceAllString(body, "…")
	}
	return fmt.Sprint(code, " ", body)
}

// What an operator reads before the change.
func TestCompatCheck(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{"shop.yaml": compatFile, "odd.yaml": "domain: odd\ndescriptors: [{key: a, detailed_metric: true, rate_limit: {unit: hour}}]\n"})
	check := func(want int, env []string, args ...string) string {
		t.Helper()
		var stdout, stderr buffer
		if code := run(t.Context(), append([]string{"compat", "check"}, args...), env, &stdout, &stderr); code != want {
			t.Errorf("exit code %d, want %d\n%s%s", code, want, stdout.String(), stderr.String())
		}
		return stdout.String() + stderr.String()
	}
	got := check(exitOK, []string{"REDIS_POOL_SIZE=9", "SHADOW_MODE=true", "HOME=/root"}, dir)
	for _, want := range []string{
		"stays the same:", "domain shop: 2 limits", "domain odd: 1 limits", "SHADOW_MODE is honoured", "differs:", "REDIS_POOL_SIZE has no effect: it tunes",
		"odd.yaml:2: descriptors[0].rate_limit.requests_per_unit: missing", "at most 10000 names", "to set:", "noeviction",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	got = check(exitInvalid, []string{"BACKEND_TYPE=memcache", "LOG_LEVEL=info"}, files(t, map[string]string{"a.yaml": "domain: ''\n"}))
	for _, want := range []string{"memcache is not supported", "empty domain", "LOG_LEVEL is honoured"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "BACKEND_TYPE is honoured") {
		t.Errorf("what is refused is said to be honoured:\n%s", got)
	}
	got = check(exitOK, []string{"RUNTIME_ROOT=" + filepath.Dir(dir), "RUNTIME_APPDIRECTORY=" + filepath.Base(dir)})
	if !strings.Contains(got, "domain shop: 2 limits") {
		t.Errorf("the environment's own directory is not read:\n%s", got)
	}
}

// A start that cannot work is refused with every problem, and the exit code that says: edit something.
func TestCompatRefusesToStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"BACKEND_TYPE=memcache"}, "memcache is not supported"},
		{[]string{"BACKEND_TYPE=memory", "LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESET_HEADER=a b"}, `"a b" is not a header name`},
		{[]string{"BACKEND_TYPE=memory", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/no", "GRPC_SERVER_TLS_KEY=/no"}, "GRPC_SERVER_TLS_CERT"},
		{[]string{"BACKEND_TYPE=memory", "PROMETHEUS_MAPPER_YAML=/no"}, "PROMETHEUS_MAPPER_YAML: "},
		{[]string{"BACKEND_TYPE=memory", "USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=X"}, "DOG_STATSD_MOGRIFIER_X_PATTERN"},
		{[]string{"BACKEND_TYPE=memory", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/no"}, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"},
	} {
		var stdout, stderr buffer
		code := run(t.Context(), []string{"compat"}, append(slices.Clone(c.env), "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0"), &stdout, &stderr)
		if code != exitInvalid || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: exit code %d, %s; want %d and %s", c.env, code, stderr.String(), exitInvalid, c.want)
		}
	}
}

// A control plane's limits reach the process, which is asked for no calls before they have come.
func TestCompatControlPlane(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir, "cp", "control.example")
	client, clientKey := certificate(t, dir, "rls", "rls.example")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(client)
	if err != nil || !trusted.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cp := &oneAnswer{send: make(chan *discoveryv3.DiscoveryResponse), got: make(chan *discoveryv3.DiscoveryRequest, 10)}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted,
	})))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, cp)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	in := compatServing(t, "BACKEND_TYPE=memory", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+l.Addr().String(),
		"CONFIG_GRPC_XDS_NODE_ID=me", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+client,
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+clientKey, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+cert, "CONFIG_GRPC_XDS_SERVER_TLS_SAN=control.example")
	if hello := <-cp.got; hello.GetNode().GetId() != "me" {
		t.Errorf("the node is %v", hello.GetNode())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	conn := dial(t, in.grpcAddr)
	if _, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, asking("shop", "plan", "gold"), grpc.WaitForReady(true)); err == nil {
		t.Error("a call was answered before there were limits")
	}
	push := func(version string, perUnit uint32, unit configv3.RateLimitUnit) *discoveryv3.DiscoveryRequest {
		t.Helper()
		resource, err := anypb.New(&configv3.RateLimitConfig{Name: "shop", Domain: "shop", Descriptors: []*configv3.RateLimitDescriptor{{
			Key: "plan", RateLimit: &configv3.RateLimitPolicy{Unit: unit, RequestsPerUnit: perUnit},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		cp.send <- &discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: resource.GetTypeUrl(), Nonce: version, Resources: []*anypb.Any{resource}}
		return <-cp.got
	}
	if ack := push("1", 40, configv3.RateLimitUnit_HOUR); ack.GetErrorDetail() != nil {
		t.Fatalf("version 1: %v", ack)
	}
	eventually(t, "the limits of version 1", func() bool { got, _ := limitOf(t, conn, asking("shop", "plan", "gold")); return got == 40 })
	if nack := push("2", 50, 99); nack.GetErrorDetail() == nil || nack.GetVersionInfo() != "1" {
		t.Errorf("version 2: %v", nack)
	}
	if got, _ := limitOf(t, conn, asking("shop", "plan", "gold")); got != 40 {
		t.Errorf("after a refused version: %d", got)
	}
	if _, text := get(t, in.instance, "/xds"); !strings.Contains(text, `"active_version":"1"`) || !strings.Contains(text, `"rejected_version":"2"`) || !strings.Contains(text, "invalid rate limit unit") {
		t.Errorf("/xds: %s", text)
	}
	_, stats := get(t, in.instance, "/stats")
	if !strings.Contains(stats, "config_load_success: 1\n") || !strings.Contains(stats, "config_load_error: 1\n") {
		t.Errorf("/stats:\n%.300s", stats)
	}
}

// oneAnswer is an aggregated discovery service that sends what a test does.
type oneAnswer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	send chan *discoveryv3.DiscoveryResponse
	got  chan *discoveryv3.DiscoveryRequest
}

func (s *oneAnswer) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		s.got <- r
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case resp := <-s.send:
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}
