package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	drive "github.com/sentinel-rls/sentinel-rls/test/load"
)

// valuesEnv is how many distinct values TestCompatMemoryStays sends: `make values` sends a million.
const valuesEnv = "COMPAT_VALUES"

// TestCompatMemoryStays: the memory of a process that counts in Redis does not follow the values that requests bring under
// detailed_metric, in limits of their own, and as domains that nobody knows.
func TestCompatMemoryStays(t *testing.T) {
	// Once everything that is bounded is full, only the collector's heap moves: it may grow fourfold before it is swept.
	const warm, atOnce, slack = 30_000, 16, 24 << 20
	values := 60_000
	if text := os.Getenv(valuesEnv); text != "" {
		var err error
		if values, err = strconv.Atoi(text); err != nil || values < warm {
			t.Fatalf("%s=%s: must be a number of at least %d", valuesEnv, text, warm)
		}
	}
	root := files(t, map[string]string{"config/shop.yaml": `
domain: shop
descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: route, value_to_metric: true, descriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 1}}]}
`})
	path, err := exec.LookPath("sentinel-rls")
	if err != nil {
		t.Fatal(err)
	}
	process, err := testserver.Exec("sentinel-rls", path, []string{"compat"}, []string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testserver.Start(t, testserver.Redis).Addr(), "RUNTIME_ROOT=" + root, "LOG_LEVEL=info", "LOG_FORMAT=json",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "USE_STATSD=false",
		"LOCAL_CACHE_SIZE_IN_BYTES=1000000", "RESPONSE_DYNAMIC_METADATA=true", "SENTINEL_REDIS_BUDGET=5s", "SENTINEL_GUARD_NO_DEADLINE=10s",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	in := awaitServing(t, process.Log, process.Done())
	client := rlsv3.NewRateLimitServiceClient(dial(t, in.grpcAddr))
	sent := 0
	send := func(most int) int64 {
		for ; sent < most; sent += 3 * atOnce {
			q := &rlsv3.RateLimitRequest{Domain: "shop"}
			for i := range atOnce {
				value := fmt.Sprintf("value-%d", sent+3*i)
				own := entriesOf("user", value+"-own")
				own.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 1}
				q.Descriptors = append(q.Descriptors, entriesOf("user", value), own, entriesOf("route", value, "user", value))
			}
			resp, err := client.ShouldRateLimit(t.Context(), q)
			if err != nil || len(resp.GetStatuses()) != 3*atOnce {
				t.Fatalf("%v, %v", resp, err)
			}
			unknown := &rlsv3.RateLimitRequest{Domain: fmt.Sprint("domain-", sent), Descriptors: q.Descriptors[:1]}
			if _, err := client.ShouldRateLimit(t.Context(), unknown); err != nil {
				t.Fatal(err)
			}
		}
		rss, err := drive.RSS(process.PID())
		if err != nil {
			t.Fatal(err)
		}
		return rss
	}
	before := send(warm)
	after := send(values)
	t.Logf("%d MiB after %d values, %d MiB after %d", before>>20, warm, after>>20, sent)
	if after > before+slack {
		t.Errorf("%d values took the process from %d to %d bytes", sent-warm, before, after)
	}
	if _, stats := get(t, in, "/stats"); strings.Count(stats, "\n") > 70_000 {
		t.Errorf("%d statistics", strings.Count(stats, "\n"))
	}
}

func entriesOf(words ...string) *ratelimitv3.RateLimitDescriptor {
	d := new(ratelimitv3.RateLimitDescriptor)
	for i := 0; i < len(words); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: words[i], Value: words[i+1]})
	}
	return d
}
