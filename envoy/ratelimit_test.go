package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func newRateLimitService(engine Engine) *rateLimitService {
	names := Names{}.withDefaults()
	return &rateLimitService{engine: engine, names: &names, log: slog.New(slog.DiscardHandler)}
}

func TestRateLimitRequestMapping(t *testing.T) {
	t.Parallel()
	negative := withHits(entries("a", "b"), 3)
	negative.IsNegativeHits = true
	for _, tt := range []struct {
		name string
		in   *rlsv3.RateLimitRequest
		want rls.Request
	}{
		{"nil", nil, rls.Request{Descriptors: []rls.Descriptor{}}},
		{"empty", &rlsv3.RateLimitRequest{}, rls.Request{Descriptors: []rls.Descriptor{}}},
		{
			"two descriptors keep their order and entries",
			question("shop", entries("tenant", "acme", "endpoint_id", "orders.create"), entries("x", "", "x", "y")),
			rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{
				{Entries: []rls.Entry{{Key: "tenant", Value: "acme"}, {Key: "endpoint_id", Value: "orders.create"}}},
				{Entries: []rls.Entry{{Key: "x", Value: ""}, {Key: "x", Value: "y"}}},
			}},
		},
		{
			"RLS-01 the request's 0 is told from a descriptor's", question("shop", entries("a", "b"), withHits(entries("a", "b"), 0)),
			rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{
				{Entries: []rls.Entry{{Key: "a", Value: "b"}}},
				{Entries: []rls.Entry{{Key: "a", Value: "b"}}, HasHits: true},
			}},
		},
		{
			"RLS-03 hits of the request and of a descriptor",
			&rlsv3.RateLimitRequest{Domain: "shop", HitsAddend: 5, Descriptors: []*ratelimitv3.RateLimitDescriptor{
				entries("a", "b"), withHits(entries("a", "b"), 2),
			}},
			rls.Request{Domain: "shop", Hits: 5, Descriptors: []rls.Descriptor{
				{Entries: []rls.Entry{{Key: "a", Value: "b"}}},
				{Entries: []rls.Entry{{Key: "a", Value: "b"}}, Hits: 2, HasHits: true},
			}},
		},
		{
			"RLS-04 RLS-05 the largest hits", &rlsv3.RateLimitRequest{
				Domain: "shop", HitsAddend: math.MaxUint32,
				Descriptors: []*ratelimitv3.RateLimitDescriptor{withHits(entries(), 1<<63), withHits(entries(), math.MaxUint64)},
			},
			rls.Request{Domain: "shop", Hits: math.MaxUint32, Descriptors: []rls.Descriptor{
				{Entries: []rls.Entry{}, Hits: 1 << 63, HasHits: true},
				{Entries: []rls.Entry{}, Hits: math.MaxUint64, HasHits: true},
			}},
		},
		{"a refund", question("shop", negative), rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{
			{Entries: []rls.Entry{{Key: "a", Value: "b"}}, Hits: 3, HasHits: true, Negative: true},
		}}},
		{
			"RLS-06 an override is noted, whatever is in it", question("shop",
				&ratelimitv3.RateLimitDescriptor{Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 99}}),
			rls.Request{Domain: "shop", Descriptors: []rls.Descriptor{{
				Entries: []rls.Entry{}, Override: true, Limit: rls.LimitOverride{Multiplier: 1},
			}}},
		},
		{
			"nil parts", question("", nil, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{nil}}),
			rls.Request{Descriptors: []rls.Descriptor{{Entries: []rls.Entry{}}, {Entries: []rls.Entry{{}}}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, rateLimitRequest(tt.in)); diff != "" {
				t.Errorf("mapping (-want +got):\n%s", diff)
			}
		})
	}
}

// A descriptor's entries must not be reachable through its neighbour's.
func TestEntriesOfOneDescriptorCannotGrowIntoTheNext(t *testing.T) {
	t.Parallel()
	r := rateLimitRequest(question("shop", entries("a", "1"), entries("b", "2")))
	_ = append(r.Descriptors[0].Entries, rls.Entry{Key: "c", Value: "3"})
	if got := r.Descriptors[1].Entries[0]; got != (rls.Entry{Key: "b", Value: "2"}) {
		t.Errorf("the second descriptor's entry became %v", got)
	}
}

func TestRateLimitResponses(t *testing.T) {
	t.Parallel()
	bucket := &rls.Limit{Name: "orders.create", Rule: tokenBucket(t, 100, algorithms.Rate{Tokens: 50, Seconds: 1})}
	window := &rls.Limit{Name: "orders.create:everyone", Rule: slidingWindow(t, 5000, time.Minute)}
	for _, tt := range []struct {
		name        string
		descriptors int
		result      rls.Result
	}{
		{"rls-allowed", 2, rls.Result{
			Allowed: true, Reason: rls.Allowed, Source: rls.SourceStore, Document: true, Policy: "orders.create",
			Statuses: []rls.Status{
				{Limit: bucket, Remaining: 99, Reset: 20 * time.Millisecond},
				{Limit: window, Remaining: 4999, Reset: 119500 * time.Millisecond},
			},
		}},
		{"rls-rate-limited", 3, rls.Result{
			Reason: rls.RateLimited, Source: rls.SourceStore, Document: true, Policy: "orders.create:everyone",
			DecisionID: "000102030405060708090a0b0c0d0e0f", RetryAfter: 1500*time.Millisecond + time.Microsecond,
			Statuses: []rls.Status{
				{Limit: bucket, Remaining: 100, Reset: 0},
				{Limit: window, OverLimit: true, Remaining: 0, Reset: 90200 * time.Millisecond},
				{Reset: -1},
			},
		}},
		{"rls-never", 1, rls.Result{
			Reason: rls.RateLimited, Document: true, Policy: "orders.create", DecisionID: "000102030405060708090a0b0c0d0e0f", RetryAfter: -1,
			Statuses: []rls.Status{{OverLimit: true, Limit: bucket, Remaining: 0, Reset: -1}},
		}},
		{"rls-fail-closed", 1, rls.Result{
			Reason: rls.FailClosed, Class: rls.ClassTimeout, Document: true, Policy: "orders.create",
			DecisionID: "000102030405060708090a0b0c0d0e0f", RetryAfter: -1,
			Statuses: []rls.Status{{OverLimit: true, Reset: -1}},
		}},
		{"rls-emergency", 1, rls.Result{
			Reason: rls.EmergencyLocalLimit, Class: rls.ClassUnavailable, Document: true, Policy: "orders.create",
			DecisionID: "000102030405060708090a0b0c0d0e0f", RetryAfter: 20 * time.Millisecond,
			Statuses: []rls.Status{{OverLimit: true, Reset: 20 * time.Millisecond}},
		}},
		{"rls-unknown-endpoint", 1, rls.Result{Reason: rls.UnknownEndpoint, Document: true, RetryAfter: -1, Statuses: []rls.Status{{OverLimit: true, Reset: -1}}}},
		{"rls-unknown-domain-refused", 1, rls.Result{Reason: rls.UnknownDomain, RetryAfter: -1, Statuses: []rls.Status{{OverLimit: true, Reset: -1}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			golden(t, tt.name, newRateLimitService(nil).response(&tt.result, tt.descriptors))
		})
	}
}

func TestHD_06_HD_07_DescriptorStatus(t *testing.T) {
	t.Parallel()
	rule := slidingWindow(t, 10, time.Minute)
	for _, tt := range []struct {
		name      string
		in        rls.Status
		remaining uint32
		reset     int64 // seconds; -1: absent
	}{
		{"untouched", rls.Status{Remaining: 10, Reset: 0}, 10, 0},
		{"Envoy would cut 0.4 s to 0", rls.Status{Remaining: 9, Reset: 400 * time.Millisecond}, 9, 1},
		{"rounded up", rls.Status{Remaining: 9, Reset: 90200 * time.Millisecond}, 9, 91},
		{"a denial says at least 1", rls.Status{OverLimit: true, Reset: 0}, 0, 1},
		{"a denial with less than a second", rls.Status{OverLimit: true, Reset: time.Microsecond}, 0, 1},
		{"never", rls.Status{OverLimit: true, Reset: -1}, 0, -1},
		{"HD-07 more than 32 bits", rls.Status{Remaining: 4_400_000_000, Reset: 0}, math.MaxUint32, 0},
		{"the largest", rls.Status{Remaining: math.MaxInt64, Reset: math.MaxInt64}, math.MaxUint32, 9223372037},
		{"below zero", rls.Status{Remaining: -1, Reset: 0}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.in.Limit = &rls.Limit{Name: "a", Rule: rule}
			var out descriptorStatus
			out.show(&tt.in)
			got := &out.status
			reset := int64(-1)
			if got.GetDurationUntilReset() != nil {
				reset = got.GetDurationUntilReset().GetSeconds()
			}
			if got.GetLimitRemaining() != tt.remaining || reset != tt.reset || got.GetDurationUntilReset().GetNanos() != 0 {
				t.Errorf("remaining %d, reset %v; want %d, %d", got.GetLimitRemaining(), got.GetDurationUntilReset(), tt.remaining, tt.reset)
			}
			if over := got.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT; over != tt.in.OverLimit {
				t.Errorf("code %v", got.GetCode())
			}
		})
	}
}

func TestHD_07_CurrentLimit(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		rule       algorithms.Rule
		limit      uint32
		unit       string
		multiplier uint32 // 0: absent
	}{
		{slidingWindow(t, 10, time.Second), 10, "SECOND", 0},
		{slidingWindow(t, 10, time.Minute), 10, "MINUTE", 0},
		{slidingWindow(t, 10, time.Hour), 10, "HOUR", 0},
		{slidingWindow(t, 10, day), 10, "DAY", 0},
		{slidingWindow(t, 10, 7*day), 10, "WEEK", 0},
		{slidingWindow(t, 10, 30*day), 10, "MONTH", 0},
		{slidingWindow(t, 10, 365*day), 10, "YEAR", 0},
		{slidingWindow(t, 10, 5*time.Minute), 10, "SECOND", 300},
		{slidingWindow(t, 10, 2*time.Second), 10, "SECOND", 2},
		{slidingWindow(t, 10, 3000*day), 10, "SECOND", 3000 * 86400},
		{slidingWindow(t, 10, 1500*time.Millisecond), 10, "UNKNOWN", 0},
		{slidingWindow(t, 10, time.Millisecond), 10, "UNKNOWN", 0},
		{slidingWindow(t, math.MaxUint32, time.Second), math.MaxUint32, "SECOND", 0},
		{tokenBucket(t, 100, algorithms.Rate{Tokens: 50, Seconds: 1}), 100, "UNKNOWN", 0},
		{tokenBucket(t, 4_400_000_000, algorithms.Rate{Tokens: 1, Seconds: 1}), math.MaxUint32, "UNKNOWN", 0},
	} {
		t.Run(fmt.Sprint(tt.rule), func(t *testing.T) {
			t.Parallel()
			var out descriptorStatus
			out.showLimit(&rls.Limit{Name: "a", Rule: tt.rule})
			got := &out.limit
			if got.GetRequestsPerUnit() != tt.limit || got.GetUnit().String() != tt.unit ||
				got.GetUnitMultiplier().GetValue() != tt.multiplier || (got.GetUnitMultiplier() != nil) != (tt.multiplier != 0) {
				t.Errorf("got %v, want %d per %d %s", got, tt.limit, tt.multiplier, tt.unit)
			}
		})
	}
}

// Envoy writes the name between quotes into X-RateLimit-Limit, unescaped, and splits the response at a line break.
func TestHD_04_LimitNameAndPolicyCannotBreakHeaders(t *testing.T) {
	t.Parallel()
	evil := "a\r\nx-evil: 1\"\\\x00\xff\u00e9"
	result := rls.Result{
		Reason: rls.RateLimited, Document: true, Policy: evil, RetryAfter: time.Second,
		Statuses: []rls.Status{{OverLimit: true, Limit: &rls.Limit{Name: evil, Rule: slidingWindow(t, 1, time.Second)}}},
	}
	resp := newRateLimitService(nil).response(&result, 1)
	if got := resp.GetStatuses()[0].GetCurrentLimit().GetName(); got != "a__x-evil:_1_____" {
		t.Errorf("current_limit.name %q", got)
	}
	for _, h := range resp.GetResponseHeadersToAdd() {
		if strings.ContainsFunc(h.GetValue(), func(r rune) bool { return r < ' ' || r > '~' }) || len(h.GetRawValue()) > 0 {
			t.Errorf("header %v", h)
		}
	}
	if !json.Valid(resp.GetRawBody()) {
		t.Errorf("body %q is no JSON", resp.GetRawBody())
	}
	if _, err := proto.Marshal(resp); err != nil {
		t.Errorf("the answer cannot be sent, so Envoy would let the request through: %v", err)
	}
}

// One status per descriptor, in order, whatever the engine says; overall OVER_LIMIT exactly when it refuses.
func TestStatusesMatchDescriptors(t *testing.T) {
	t.Parallel()
	rule := slidingWindow(t, 10, time.Second)
	reasons := []rls.Reason{
		rls.RateLimited, rls.EmergencyLocalLimit, rls.CircuitOpen, rls.FailClosed, rls.UnknownEndpoint, rls.UnknownDomain, rls.InvalidRequest,
	}
	rapid.Check(t, func(t *rapid.T) {
		descriptors := rapid.IntRange(0, 6).Draw(t, "descriptors")
		result := rls.Result{Allowed: rapid.Bool().Draw(t, "allowed"), Reason: rls.Allowed, Document: rapid.Bool().Draw(t, "document")}
		if !result.Allowed {
			result.Reason = rapid.SampledFrom(reasons).Draw(t, "reason")
			result.RetryAfter = time.Duration(rapid.Int64().Draw(t, "retry"))
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "statuses") {
			s := rls.Status{
				OverLimit: !result.Allowed && rapid.Bool().Draw(t, "over"), Remaining: rapid.Int64().Draw(t, "remaining"),
				Reset: time.Duration(rapid.Int64().Draw(t, "reset")),
			}
			if rapid.Bool().Draw(t, "limited") {
				s.Limit = &rls.Limit{Name: fmt.Sprint(i), Rule: rule}
			}
			result.Statuses = append(result.Statuses, s)
		}
		resp := newRateLimitService(nil).response(&result, descriptors)
		if !sound(resp) {
			t.Fatalf("the guard would refuse %v", resp)
		}
		if len(resp.GetStatuses()) != descriptors {
			t.Fatalf("%d statuses for %d descriptors", len(resp.GetStatuses()), descriptors)
		}
		if allowed := resp.GetOverallCode() == rlsv3.RateLimitResponse_OK; allowed != result.Allowed {
			t.Fatalf("overall code %v for allowed %v", resp.GetOverallCode(), result.Allowed)
		}
		if result.Allowed && (len(resp.GetResponseHeadersToAdd()) > 0 || len(resp.GetRequestHeadersToAdd()) > 0 || len(resp.GetRawBody()) > 0) {
			t.Fatalf("HD-08: an admitted request got headers or a body: %v", resp)
		}
		for i, s := range resp.GetStatuses() {
			if i < len(result.Statuses) && (s.GetCurrentLimit() != nil) != (result.Statuses[i].Limit != nil) {
				t.Fatalf("status %d has another descriptor's limit", i)
			}
		}
		for _, h := range resp.GetResponseHeadersToAdd() {
			if h.GetKey() == headerRetryAfter && (result.RetryAfter <= 0 || h.GetValue() == "0") {
				t.Fatalf("Retry-After %s for %v", h.GetValue(), result.RetryAfter)
			}
		}
	})
}

// A gRPC error would let the request through, so a malformed one is refused in an answer.
func TestMalformedRateLimitRequestIsRefused(t *testing.T) {
	t.Parallel()
	engine := admitting()
	engine.decide = func(context.Context, rls.Request) (rls.Result, error) {
		return rls.Result{Allowed: true, Reason: rls.Allowed}, fmt.Errorf("%w: no domain", rls.ErrInvalidRequest)
	}
	s := start(t, engine)
	resp, err := s.rls.ShouldRateLimit(within(t), question("", entries("a", "b")))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "rls-invalid-request", resp)
	if got := s.tally.snapshot(); len(got) > 0 {
		t.Errorf("events %v: the caller's fault, not ours", got)
	}
}

func TestOtherEngineErrorIsAFault(t *testing.T) {
	t.Parallel()
	engine := admitting()
	engine.decide = func(context.Context, rls.Request) (rls.Result, error) { return rls.Result{}, errors.New("boom") }
	s := start(t, engine)
	_, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b")))
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
		t.Errorf("error %v, want a bare INTERNAL", err)
	}
	if got := s.tally.snapshot()["faulty ratelimit"]; got != 1 {
		t.Errorf("%d faults counted, want 1", got)
	}
}

func TestRLS_24_LargeMessages(t *testing.T) {
	t.Parallel()
	asked := make(chan int, 1)
	engine := admitting()
	engine.decide = func(_ context.Context, r rls.Request) (rls.Result, error) {
		asked <- len(r.Descriptors)
		return rls.Result{Reason: rls.InvalidRequest, RetryAfter: -1}, nil
	}
	s := start(t, engine)
	many := slices.Repeat([]*ratelimitv3.RateLimitDescriptor{entries("tenant", "acme", "endpoint_id", "orders.create")}, 5000)
	resp, err := s.rls.ShouldRateLimit(within(t), question("shop", many...))
	if err != nil || resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT || len(resp.GetStatuses()) != 5000 {
		t.Errorf("5000 descriptors: %v with %d statuses, error %v; want OVER_LIMIT with 5000", resp.GetOverallCode(), len(resp.GetStatuses()), err)
	}
	if n := <-asked; n != 5000 {
		t.Errorf("the engine saw %d descriptors", n)
	}
	_, err = s.rls.ShouldRateLimit(within(t), question("shop", entries("k", strings.Repeat("v", 5<<20))))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("5 MiB: %v, want RESOURCE_EXHAUSTED", err)
	}
}

func TestRLS_06_OverrideOfAnyKindIsAnswered(t *testing.T) {
	t.Parallel()
	s := start(t, admitting())
	for _, override := range []*ratelimitv3.RateLimitDescriptor_RateLimitOverride{
		{RequestsPerUnit: 1},
		{RequestsPerUnit: 1, Unit: 99},
		{RequestsPerUnit: math.MaxUint32, Unit: typev3.RateLimitUnit_YEAR, UnitMultiplier: wrapperspb.UInt32(0)},
	} {
		d := entries("plan", "gold")
		d.Limit = override
		resp, err := s.rls.ShouldRateLimit(within(t), question("shop", d))
		if err != nil || resp.GetOverallCode() != rlsv3.RateLimitResponse_OK {
			t.Errorf("override %v: %v, %v", override, resp, err)
		}
	}
}
