package envoy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/memory"
)

func counting(t testing.TB, limit int64, window time.Duration) algorithms.Rule {
	t.Helper()
	r, err := algorithms.NewCountingWindow(limit, window)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A drop-in domain is answered as envoyproxy/ratelimit answers, without a header or body of ours.
func TestDropInAnswers(t *testing.T) {
	t.Parallel()
	limit := func(name string, perUnit int64, unit rls.Unit, multiplier int64) *rls.Limit {
		return &rls.Limit{Name: name, Rule: counting(t, perUnit, unit.Length()*time.Duration(multiplier)), PerUnit: perUnit, Unit: unit, Multiplier: multiplier}
	}
	for _, tt := range []struct {
		name   string
		result rls.Result
		want   string // protojson
	}{
		{
			"HD-08 a denial has no headers that nobody asked for",
			rls.Result{Reason: rls.RateLimited, RetryAfter: time.Minute, Plain: true, Statuses: []rls.Status{
				{OverLimit: true, Limit: limit("", 7, descriptors.Week, 1), Reset: 220137 * time.Second},
			}},
			`{"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT", "currentLimit": {"requestsPerUnit": 7, "unit": "WEEK"}, "durationUntilReset": "220137s"}]}`,
		},
		{
			"HD-08 an admission neither",
			rls.Result{Allowed: true, Reason: rls.Allowed, Plain: true, Statuses: []rls.Status{
				{Limit: limit("my-limit", 20, descriptors.Minute, 5), Remaining: 19, Reset: 500 * time.Millisecond}, {Reset: -1}, {Remaining: math.MaxUint32, Reset: -1},
			}},
			`{"overallCode": "OK", "statuses": [
				{"code": "OK", "currentLimit": {"name": "my-limit", "requestsPerUnit": 20, "unit": "MINUTE", "unitMultiplier": 5}, "limitRemaining": 19, "durationUntilReset": "1s"},
				{"code": "OK"}, {"code": "OK", "limitRemaining": 4294967295}]}`,
		},
		{
			"a quota that is over denies nothing by itself",
			rls.Result{Allowed: true, Reason: rls.Allowed, Plain: true, Statuses: []rls.Status{{OverLimit: true, Limit: limit("", 0, descriptors.Year, 1), Reset: time.Second}}},
			`{"overallCode": "OK", "statuses": [{"code": "OVER_LIMIT", "currentLimit": {"unit": "YEAR"}, "durationUntilReset": "1s"}]}`,
		},
		{
			"HD-04 a name cannot break headers",
			rls.Result{Allowed: true, Reason: rls.Allowed, Plain: true, Statuses: []rls.Status{
				{Limit: limit("a\r\nX-Evil: \u00e9\"", 1, descriptors.Month, 1), Reset: time.Hour},
			}},
			`{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"name": "a__X-Evil:___", "requestsPerUnit": 1, "unit": "MONTH"}, "durationUntilReset": "3600s"}]}`,
		},
		{
			"headers and metadata",
			rls.Result{
				Reason: rls.RateLimited, RetryAfter: time.Minute, Plain: true, Statuses: []rls.Status{{OverLimit: true, Limit: limit("", 1, descriptors.Second, 1), Reset: time.Second}},
				Headers:  []rls.Header{{Name: "RateLimit-Limit", Value: "1"}, {Name: "x-reset", Value: "1"}},
				Metadata: map[string]any{"domain": "shop", "descriptors": []any{map[string]any{"entries": []any{"a=b"}}}, "hitsAddend": 2.0, "metadata": map[string]any{"n": nil, "yes": true}},
			},
			`{"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT", "currentLimit": {"requestsPerUnit": 1, "unit": "SECOND"}, "durationUntilReset": "1s"}],
				"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "1"}, {"key": "x-reset", "value": "1"}],
				"dynamicMetadata": {"domain": "shop", "descriptors": [{"entries": ["a=b"]}], "hitsAddend": 2, "metadata": {"n": null, "yes": true}}}`,
		},
		{
			"what that service never answers says why",
			rls.Result{Reason: rls.FailClosed, RetryAfter: -1, Plain: true, Statuses: []rls.Status{{OverLimit: true, Limit: limit("", 1, descriptors.Hour, 1), Reset: time.Second}}},
			`{"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT", "currentLimit": {"requestsPerUnit": 1, "unit": "HOUR"}, "durationUntilReset": "1s"}],
				"responseHeadersToAdd": [{"key": "x-sentinel-reason", "value": "FAIL_CLOSED"}]}`,
		},
		{
			"HD-07 a token bucket beyond 32 bits",
			rls.Result{Allowed: true, Reason: rls.Allowed, Plain: true, Statuses: []rls.Status{
				{Limit: &rls.Limit{Rule: tokenBucket(t, 4_400_000_000, algorithms.Rate{Tokens: 1, Seconds: 1}), PerUnit: math.MaxUint32, Unit: descriptors.Day, Multiplier: 1}, Remaining: 4_400_000_000, Reset: time.Second},
			}},
			`{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 4294967295, "unit": "DAY"}, "limitRemaining": 4294967295, "durationUntilReset": "1s"}]}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := &rlsv3.RateLimitResponse{}
			if err := protojson.Unmarshal([]byte(tt.want), want); err != nil {
				t.Fatal(err)
			}
			got := newRateLimitService(nil).response(&tt.result, len(tt.result.Statuses))
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

// An admission of a native domain with a limit that is exceeded is a fault of ours, and no consent.
func TestNativeAdmissionsOverALimitAreErrors(t *testing.T) {
	t.Parallel()
	s := start(t, fakeEngine{decide: func(context.Context, rls.Request) (rls.Result, error) {
		return rls.Result{Allowed: true, Reason: rls.Allowed, Statuses: []rls.Status{{OverLimit: true}}}, nil
	}})
	if resp, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b"))); status.Code(err) != codes.Internal {
		t.Errorf("%v, %v; want INTERNAL", resp, err)
	}
}

// Metadata that no message can hold is an error of ours, told as one.
func TestMetadataThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := start(t, fakeEngine{decide: func(context.Context, rls.Request) (rls.Result, error) {
		return rls.Result{Allowed: true, Reason: rls.Allowed, Plain: true, Metadata: map[string]any{"a": struct{}{}}}, nil
	}})
	if _, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b"))); status.Code(err) != codes.Internal || !strings.Contains(s.log.String(), "metadata") {
		t.Errorf("%v; want INTERNAL, logged", err)
	}
}

func TestDropInErrorsAreThatServices(t *testing.T) {
	t.Parallel()
	s := start(t, fakeEngine{decide: func(_ context.Context, r rls.Request) (rls.Result, error) {
		if r.Domain == "" {
			return rls.Result{}, &rls.DropInError{Text: "rate limit domain must not be empty"}
		}
		return rls.Result{}, &rls.DropInError{Text: "store \xff"}
	}})
	for domain, want := range map[string]string{"": "rate limit domain must not be empty", "shop": "store \uFFFD"} {
		_, err := s.rls.ShouldRateLimit(within(t), question(domain, entries("a", "b")))
		if got := status.Convert(err); got.Code() != codes.Unknown || got.Message() != want {
			t.Errorf("domain %q: %v, want UNKNOWN %q", domain, err, want)
		}
	}
	if got := s.tally.snapshot(); len(got) > 0 || s.log.String() != "" {
		t.Errorf("an answer that is meant is counted or logged as a fault: %v\n%s", got, s.log)
	}
}

// The units of a request have other numbers than those of an answer: 5 is a month here and 6 a year.
func TestOverrideMapping(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   *ratelimitv3.RateLimitDescriptor_RateLimitOverride
		want rls.LimitOverride
	}{
		{nil, rls.LimitOverride{}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{}, rls.LimitOverride{Multiplier: 1}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 99, RequestsPerUnit: 3}, rls.LimitOverride{PerUnit: 3, Multiplier: 1}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_SECOND, RequestsPerUnit: math.MaxUint32}, rls.LimitOverride{PerUnit: math.MaxUint32, Unit: descriptors.Second, Multiplier: 1}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_MONTH}, rls.LimitOverride{Unit: descriptors.Month, Multiplier: 1}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 6}, rls.LimitOverride{Unit: descriptors.Year, Multiplier: 1}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 2, UnitMultiplier: wrapperspb.UInt32(15)}, rls.LimitOverride{Unit: descriptors.Minute, Multiplier: 15}},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 2, UnitMultiplier: wrapperspb.UInt32(0)}, rls.LimitOverride{Unit: descriptors.Minute}},
	} {
		if got := limitOverride(tt.in); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.in, got, tt.want)
		}
	}
}

const dropInPolicies = `
domain: shop
descriptors:
  - key: plan
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: query
    rate_limit: {unit: day, requests_per_unit: 1}
`

// startDropIn serves the real engine over a drop-in file.
func startDropIn(t testing.TB) *running {
	t.Helper()
	return start(t, dropInEngine(t, rls.DropInConfig{}))
}

func dropInEngine(t testing.TB, cfg rls.DropInConfig) *rls.Engine {
	t.Helper()
	set, err := descriptors.Parse([]descriptors.File{{Name: "shop.yaml", Data: []byte(dropInPolicies)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{MaxBuckets: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	_, _, recorder := realEngine(t)
	cfg.Fallback = store
	engine, err := rls.New(rls.Config{Store: store, Identifier: struct{ rls.Identifier }{}, Recorder: recorder, DropIn: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Use(set); err != nil {
		t.Fatal(err)
	}
	return engine
}

// FuzzDropInRequest sends arbitrary bytes as a question to a process that stands in for envoyproxy/ratelimit: every one
// that decodes is answered, with a status per descriptor, or refused by that service's error.
func FuzzDropInRequest(f *testing.F) {
	service := newRateLimitService(dropInEngine(f, rls.DropInConfig{
		Compat: true, Headers: &rls.LimitHeaders{}, DynamicMetadata: true, StopWhenOver: true, LocalCacheBytes: 1 << 16, MaxStats: 100,
	}))
	override := entries("plan", "gold")
	override.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 99, UnitMultiplier: wrapperspb.UInt32(math.MaxUint32)}
	refund := withHits(entries("plan", "gold"), math.MaxUint64)
	refund.IsNegativeHits = true
	f.Add(rateLimitFrame("shop", "plan", "gold"))
	f.Add(rateLimitFrame("shop", "query", "a\xff"))
	f.Add(rateLimitFrame("nobody", "a", "b"))
	f.Add(marshal(f, &rlsv3.RateLimitRequest{}))
	f.Add(marshal(f, &rlsv3.RateLimitRequest{Domain: "shop"}))
	f.Add(marshal(f, question("shop", entries(), override, refund, withHits(entries("plan", "a"), 0), entries("plan", "a"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req rlsv3.RateLimitRequest
		resp, ok := answer(t, data, &req, func(ctx context.Context) (any, error) {
			resp, err := service.ShouldRateLimit(ctx, &req)
			if refused := status.Convert(err); refused.Code() == codes.Unknown && (req.GetDomain() == "" || len(req.GetDescriptors()) == 0) {
				return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT, Statuses: make([]*rlsv3.RateLimitResponse_DescriptorStatus, len(req.GetDescriptors()))}, nil
			}
			return resp, err
		}).(*rlsv3.RateLimitResponse)
		if ok && len(resp.GetStatuses()) != len(req.GetDescriptors()) {
			t.Fatalf("%d statuses for %d descriptors", len(resp.GetStatuses()), len(req.GetDescriptors()))
		}
	})
}

// FuzzEveryField gives each field of a question any value, and asks it of both kinds of domain, of three descriptors of
// which two meet in a bucket. Whatever it is, it is answered, with a status per descriptor, none of which has more left than
// its limit, or refused by that service's error.
func FuzzEveryField(f *testing.F) {
	compat := newRateLimitService(dropInEngine(f, rls.DropInConfig{
		Compat: true, Headers: &rls.LimitHeaders{}, DynamicMetadata: true, LocalCacheBytes: 1 << 16, MaxStats: 100,
	}))
	engine, _, _ := realEngine(f)
	native := newRateLimitService(engine)
	f.Add("shop", uint32(0), "plan", "gold", true, uint64(0), false, false, uint32(0), int32(0), false, uint32(0))
	f.Add("shop", uint32(math.MaxUint32), "endpoint_id", "huge", true, uint64(math.MaxUint64), true, true, uint32(math.MaxUint32), int32(-1), true, uint32(0))
	f.Add("", uint32(1), "", "", false, uint64(1<<63), false, true, uint32(0), int32(6), true, uint32(math.MaxUint32))
	f.Add("shop", uint32(1), "plan", "a\u0301\x00", true, uint64(1<<53), true, true, uint32(1), int32(math.MinInt32), false, uint32(1))
	f.Fuzz(func(t *testing.T, domain string, hits uint32, key, value string, hasHits bool, ownHits uint64, negative, hasLimit bool,
		perUnit uint32, unit int32, hasMultiplier bool, multiplier uint32,
	) {
		varied := entries(key, value)
		varied.IsNegativeHits = negative
		if hasHits {
			withHits(varied, ownHits)
		}
		if hasLimit {
			varied.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: perUnit, Unit: typev3.RateLimitUnit(unit)}
			if hasMultiplier {
				varied.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
			}
		}
		ask := question(domain, varied, entries(key, value), entries("plan", value, "endpoint_id", value))
		ask.HitsAddend = hits
		data, err := proto.Marshal(ask)
		if err != nil { // text that is not UTF-8 is for the targets that send bytes
			return
		}
		for _, service := range []*rateLimitService{compat, native} {
			var req rlsv3.RateLimitRequest
			resp, _ := answer(t, data, &req, func(ctx context.Context) (any, error) {
				resp, err := service.ShouldRateLimit(ctx, &req)
				if code := status.Code(err); domain == "" && (code == codes.Unknown || code == codes.InvalidArgument) {
					return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT, Statuses: make([]*rlsv3.RateLimitResponse_DescriptorStatus, 3)}, nil
				}
				return resp, err
			}).(*rlsv3.RateLimitResponse)
			if len(resp.GetStatuses()) != 3 {
				t.Fatalf("%d statuses for 3 descriptors", len(resp.GetStatuses()))
			}
			for _, s := range resp.GetStatuses() {
				if limit := s.GetCurrentLimit(); limit != nil && s.GetLimitRemaining() > limit.GetRequestsPerUnit() {
					t.Fatalf("more left than the limit: %v", s)
				}
			}
		}
	})
}

func TestDropInOnTheWire(t *testing.T) {
	t.Parallel()
	s := startDropIn(t)

	t.Run("RLS-06 units that do not exist", func(t *testing.T) {
		for _, unit := range []typev3.RateLimitUnit{typev3.RateLimitUnit_UNKNOWN, 99, -1} {
			d := entries("plan", "gold")
			d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: unit}
			resp := s.limit(t, question("shop", d))
			if limit := resp.GetStatuses()[0].GetCurrentLimit(); limit.GetRequestsPerUnit() != 2 || limit.GetUnit() != rlsv3.RateLimitResponse_RateLimit_DAY {
				t.Errorf("unit %v: %v, want the configured limit", unit, resp)
			}
		}
		s.play(t, step{ask: question("shop", entries("plan", "silver")), remaining: []uint32{1}})
	})

	// The stock codec would fail, and Envoy let the request through without any of its limits.
	t.Run("RLS-25 text that is not UTF-8 is limited", func(t *testing.T) {
		for i, want := range []rlsv3.RateLimitResponse_Code{rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT} {
			var resp rlsv3.RateLimitResponse
			if err := s.invoke(t, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, rateLimitFrame("shop", "query", "a\xff"), &resp); err != nil {
				t.Fatal(err)
			}
			if resp.GetOverallCode() != want {
				t.Errorf("call %d: %v, want %v", i, resp.GetOverallCode(), want)
			}
		}
		s.play(t, step{ask: question("shop", entries("query", "a")), remaining: []uint32{0}})
	})

	t.Run("RLS-24 more than a request may hold", func(t *testing.T) {
		d := make([]*ratelimitv3.RateLimitDescriptor, 5000)
		for i := range d {
			d[i] = entries("plan", "many")
		}
		resp := s.limit(t, question("shop", d...))
		if resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT || headerOf(resp, "x-sentinel-reason") != "INVALID_REQUEST" || len(resp.GetRawBody()) > 0 {
			t.Errorf("%v, %v, %q", resp.GetOverallCode(), resp.GetResponseHeadersToAdd(), resp.GetRawBody())
		}
		_, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("plan", strings.Repeat("v", 5<<20))))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("5 MiB: %v, want RESOURCE_EXHAUSTED", err)
		}
	})
}

// A question that comes by another way is answered like one by gRPC, faults included.
func TestQuestionsByAnotherWay(t *testing.T) {
	t.Parallel()
	var counts tally
	engine := admitting()
	engine.decide = func(_ context.Context, r rls.Request) (rls.Result, error) {
		switch r.Domain {
		case "panic":
			panic("nil policy")
		case "fault":
			return rls.Result{}, errors.New("boom")
		case "error":
			return rls.Result{}, &rls.DropInError{Text: "that service's"}
		}
		return rls.Result{Allowed: true, Reason: rls.Allowed}, nil
	}
	s, err := NewServer(Config{Engine: engine, Recorder: &counts, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for domain, want := range map[string]codes.Code{"shop": codes.OK, "panic": codes.Internal, "fault": codes.Internal, "error": codes.Unknown} {
		resp, err := s.ShouldRateLimit(t.Context(), question(domain, entries("a", "b")))
		if status.Code(err) != want || (resp == nil) != (err != nil) {
			t.Errorf("%s: %v, %v; want %v", domain, resp, err, want)
		}
	}
	if got, want := counts.snapshot(), map[string]int{"panicked ratelimit": 1, "faulty ratelimit": 1}; !maps.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}
