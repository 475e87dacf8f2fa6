package compat_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/envoy"
	"github.com/sentinel-rls/sentinel-rls/internal/compat"
	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
)

// jsonHandler answers /json by the engine, over a file with a rule of each kind.
func jsonHandler(t testing.TB) http.Handler {
	t.Helper()
	set, err := descriptors.Parse([]descriptors.File{{Name: "shop.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: plan, rate_limit: {unit: day, requests_per_unit: 2, name: base}}
  - {key: plan, value: "g*", share_threshold: true, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: quota, quota_mode: true, metadata: {to: [a, {b: 1.5}]}, rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: base}]}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: all, all_or_nothing: true, rate_limit: [{unit: day, requests_per_unit: 9}, {unit: hour, requests_per_unit: 3, algorithm: token_bucket}]}
`)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{MaxBuckets: 1000})
	if err != nil {
		t.Fatal(err)
	}
	recorder := telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	engine, err := rls.New(rls.Config{
		Store: store, Identifier: struct{ rls.Identifier }{}, Recorder: recorder,
		DropIn: rls.DropInConfig{
			Compat: true, Fallback: store, Headers: &rls.LimitHeaders{}, DynamicMetadata: true, LocalCacheBytes: 1 << 16,
			Recorder: compat.NewStats(nil, false), MaxStats: 100,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Use(set); err != nil {
		t.Fatal(err)
	}
	server, err := envoy.NewServer(envoy.Config{Engine: engine, Recorder: recorder, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Shutdown(t.Context()); err != nil {
			t.Log(err)
		}
	})
	return compat.Handler(server, func() bool { return true })
}

// FuzzJSON posts arbitrary text to /json: it is answered with 200 or 429 and as many statuses as there were descriptors,
// the code as the answer says, or with 400 and a line of text.
func FuzzJSON(f *testing.F) {
	handler := jsonHandler(f)
	for _, seed := range []string{
		``, `null`, `[]`, `{}`, `{"domain":"shop"}`, `{"domain":"shop","descriptors":[{}]}`, `{"domain":"nobody","descriptors":[{"entries":[{"key":"a"}]}]}`,
		`{"domain":"shop","descriptors":[{"entries":[{"key":"plan","value":"gold"}],"hitsAddend":"18446744073709551615","isNegativeHits":true}]}`,
		`{"domain":"shop","hitsAddend":4294967295,"descriptors":[{"entries":[{"key":"quota"}]},{"entries":[{"key":"plan","value":"\ud800"}]}]}`,
		`{"domain":"shop","descriptors":[{"entries":[{"key":"plan"}],"limit":{"requestsPerUnit":4294967295,"unit":"YEAR","unitMultiplier":4294967295}}]}`,
		`{"domain":"shop","descriptors":[{"entries":[{"key":"all","value":"x"}]},{"entries":[{"key":"all","value":"x"}]}],"nobody":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/json", strings.NewReader(string(body)))
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		text := answer.Body.String()
		if !utf8.ValidString(text) {
			t.Fatalf("%d %q is not UTF-8", answer.Code, text)
		}
		if answer.Code == http.StatusBadRequest {
			if strings.TrimSpace(text) == "" {
				t.Fatal("400 without a word")
			}
			return
		}
		var question rlsv3.RateLimitRequest
		var given rlsv3.RateLimitResponse
		if err := protojson.Unmarshal(body, &question); err != nil {
			t.Fatalf("answered with %d although %v", answer.Code, err)
		}
		if err := protojson.Unmarshal(answer.Body.Bytes(), &given); err != nil {
			t.Fatalf("%d %s: %v", answer.Code, text, err)
		}
		want := map[rlsv3.RateLimitResponse_Code]int{rlsv3.RateLimitResponse_OK: http.StatusOK, rlsv3.RateLimitResponse_OVER_LIMIT: http.StatusTooManyRequests}
		if answer.Code != want[given.GetOverallCode()] || len(given.GetStatuses()) != len(question.GetDescriptors()) {
			t.Fatalf("%d with %v and %d statuses for %d descriptors", answer.Code, given.GetOverallCode(), len(given.GetStatuses()), len(question.GetDescriptors()))
		}
	})
}

// A small body of very many objects would take a gigabyte, and one that is too large is not read.
func TestJSONBodiesAreBounded(t *testing.T) {
	t.Parallel()
	handler := jsonHandler(t)
	for body, want := range map[string]string{
		`{"domain":"shop","descriptors":[` + strings.Repeat("{},", 1<<20) + `{}]}`: "more than 65536 objects",
		`{"domain":"` + strings.Repeat("x", 4<<20) + `"}`:                          "more than 4194304 bytes",
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/json", strings.NewReader(body)))
		if answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%d %.100s, want 400 and %s", answer.Code, answer.Body.String(), want)
		}
	}
}
