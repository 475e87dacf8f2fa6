package containers

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// callDeadline is what a client gives sentinel-rls, as Envoy would but for the length: a machine that builds and runs many
// things at once is no Envoy. What is bounded must be answered by then, whatever Redis does.
const callDeadline = time.Second

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// answer is what RateLimitService said to one descriptor.
type answer struct {
	allowed bool
	reason  string // of a denial
	took    time.Duration
}

// ask asks about an endpoint and a tenant. A call that fails or is late fails the test: a limiter always answers.
func ask(t *testing.T, conn *grpc.ClientConn, domain, endpoint, tenant string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callDeadline)
	defer cancel()
	begun := time.Now()
	said, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain: domain,
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
			{Key: "endpoint_id", Value: endpoint},
			{Key: "tenant", Value: tenant},
		}}},
	})
	if err != nil {
		t.Errorf("%s of %s: no answer after %v: %v", endpoint, tenant, time.Since(begun), err)
		return answer{}
	}
	a := answer{allowed: said.GetOverallCode() == rlsv3.RateLimitResponse_OK, took: time.Since(begun)}
	for _, h := range said.GetResponseHeadersToAdd() {
		if h.GetKey() == "x-sentinel-reason" {
			a.reason = h.GetValue()
		}
	}
	return a
}

// page is an HTTP answer.
type page struct {
	status int
	header http.Header
	body   string
	took   time.Duration
}

// get fetches a URL; what Envoy's filter timeouts do not bound fails the test.
func get(t *testing.T, url string, header map[string]string) page {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	begun := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return page{response.StatusCode, response.Header, string(body), time.Since(begun)}
}
