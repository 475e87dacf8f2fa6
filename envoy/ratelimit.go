package envoy

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// rateLimitService is RateLimitService over the engine.
type rateLimitService struct {
	rlsv3.UnimplementedRateLimitServiceServer

	engine Engine
	names  *Names
	log    *slog.Logger
}

// ShouldRateLimit answers one question. A malformed one is refused in an answer and not by an error: Envoy lets the
// request pass on an error.
func (s *rateLimitService) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	result, err := s.engine.Decide(ctx, rateLimitRequest(req))
	switch {
	case errors.Is(err, rls.ErrInvalidRequest):
		s.log.DebugContext(ctx, "malformed rate limit request", "error", err)
		result = rls.Result{Reason: rls.InvalidRequest, RetryAfter: -1, Document: true}
	case err != nil:
		return nil, dropInStatus(err)
	}
	return s.response(&result, len(req.GetDescriptors())), nil
}

// rateLimitRequest reads a question. Two allocations, whatever the number of descriptors.
func rateLimitRequest(req *rlsv3.RateLimitRequest) rls.Request {
	entries := 0
	for _, d := range req.GetDescriptors() {
		entries += len(d.GetEntries())
	}
	r := rls.Request{
		Domain:      req.GetDomain(),
		Hits:        uint64(req.GetHitsAddend()),
		Descriptors: make([]rls.Descriptor, 0, len(req.GetDescriptors())),
	}
	all := make([]rls.Entry, 0, entries)
	for _, d := range req.GetDescriptors() {
		from := len(all)
		for _, e := range d.GetEntries() {
			all = append(all, rls.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		r.Descriptors = append(r.Descriptors, descriptor(d, all[from:len(all):len(all)]))
	}
	return r
}

func descriptor(d *ratelimitv3.RateLimitDescriptor, entries []rls.Entry) rls.Descriptor {
	return rls.Descriptor{
		Entries:  entries,
		Hits:     d.GetHitsAddend().GetValue(),
		HasHits:  d.GetHitsAddend() != nil,
		Negative: d.GetIsNegativeHits(),
		Override: d.GetLimit() != nil,
		Limit:    limitOverride(d.GetLimit()),
	}
}

// limitOverride reads a limit that a request brings. Its units have other numbers than those of the answer, and no week.
func limitOverride(o *ratelimitv3.RateLimitDescriptor_RateLimitOverride) rls.LimitOverride {
	if o == nil {
		return rls.LimitOverride{}
	}
	limit := rls.LimitOverride{PerUnit: o.GetRequestsPerUnit(), Multiplier: 1}
	limit.Unit, _ = rls.UnitNamed(o.GetUnit().String())
	if m := o.GetUnitMultiplier(); m != nil {
		limit.Multiplier = int64(m.GetValue())
	}
	return limit
}

// dropInStatus makes an error of the engine that is meant for the caller a gRPC status. Others become INTERNAL.
func dropInStatus(err error) error {
	if e, ok := errors.AsType[*rls.DropInError](err); ok {
		return wantedError{status.New(codes.Unknown, strings.ToValidUTF8(e.Text, "\uFFFD"))}
	}
	return err
}

// wantedError is an error that is an answer: the guard lets it through.
type wantedError struct{ *status.Status }

// Error returns the status' text.
func (e wantedError) Error() string { return e.Message() }

// GRPCStatus tells gRPC what to send.
func (e wantedError) GRPCStatus() *status.Status { return e.Status }

// response is the one constructor of a RateLimitResponse. It is nil, which the guard turns into an error, for a result
// that no decision gives: the zero one, an admission for a reason that refuses, or one in which a limit is exceeded (but
// for those of drop-in domains, where quota_mode and SHADOW_MODE say so).
//
// There is one status per descriptor, in order, whatever the result holds: Envoy matches them by index.
func (s *rateLimitService) response(r *rls.Result, descriptors int) *rlsv3.RateLimitResponse {
	resp := &rlsv3.RateLimitResponse{
		OverallCode: rlsv3.RateLimitResponse_OK,
		Statuses:    make([]*rlsv3.RateLimitResponse_DescriptorStatus, descriptors),
	}
	if !r.Allowed {
		why, ok := refusals[r.Reason]
		if !ok {
			return nil
		}
		resp.OverallCode = rlsv3.RateLimitResponse_OVER_LIMIT
		s.explain(resp, r, why)
	} else if !passes(r.Reason) {
		return nil
	}
	statuses := make([]descriptorStatus, descriptors)
	for i := range statuses {
		out := &statuses[i]
		resp.Statuses[i] = &out.status
		if i >= len(r.Statuses) { // the question did not come as far as a limit
			out.status.Code = resp.OverallCode
			continue
		}
		if r.Allowed && r.Statuses[i].OverLimit && !r.Plain {
			return nil
		}
		out.show(&r.Statuses[i])
	}
	if !s.addDropIn(resp, r) {
		return nil
	}
	return resp
}

// addDropIn adds what answers of drop-in domains carry beside the statuses. False: it cannot be written.
func (s *rateLimitService) addDropIn(resp *rlsv3.RateLimitResponse, r *rls.Result) bool {
	for _, h := range r.Headers {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, header(h.Name, h.Value))
	}
	if r.Metadata != nil {
		var err error
		if resp.DynamicMetadata, err = structpb.NewStruct(r.Metadata); err != nil {
			s.log.Error("dynamic metadata cannot be written", "error", err)
			return false
		}
	}
	return true
}

// passes reports whether a request may be let through for that reason. Unknown domains and endpoints pass where
// configuration says so.
func passes(reason rls.Reason) bool {
	return reason == rls.Allowed || reason == rls.UnknownEndpoint || reason == rls.UnknownDomain
}

// explain adds what the client of a refused request sees. Admitted requests get no header of ours; Envoy makes
// X-RateLimit-* of the statuses where its operator asks for them.
func (s *rateLimitService) explain(resp *rlsv3.RateLimitResponse, r *rls.Result, why refusal) {
	if r.Plain && r.Reason == rls.RateLimited {
		return
	}
	resp.ResponseHeadersToAdd = append(make([]*corev3.HeaderValue, 0, 3), header(s.names.ReasonHeader, string(r.Reason)))
	if r.RetryAfter > 0 {
		// Rounded up, and kept by Envoy, whose own is cut and comes only with status 429.
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, header(headerRetryAfter, decimal(seconds(r.RetryAfter))))
	}
	if r.Document {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, header(headerContentType, documentType))
		resp.RawBody = document(r, why, "")
	}
}

// descriptorStatus is the status of one descriptor with its parts, so that all of an answer's are one allocation.
type descriptorStatus struct {
	status rlsv3.RateLimitResponse_DescriptorStatus
	limit  rlsv3.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

// show fills in the limit that speaks for a descriptor. The wire has 32 bits where limits have more: values beyond them
// show as the largest, never wrapped.
func (out *descriptorStatus) show(s *rls.Status) {
	out.status.Code = rlsv3.RateLimitResponse_OK
	out.status.LimitRemaining = clamp(s.Remaining)
	reset := s.Reset
	if s.OverLimit {
		out.status.Code = rlsv3.RateLimitResponse_OVER_LIMIT
		if reset >= 0 {
			reset = max(reset, time.Second)
		}
	}
	if reset >= 0 {
		out.reset.Seconds = seconds(reset)
		out.status.DurationUntilReset = &out.reset
	}
	if s.Limit != nil {
		out.showLimit(s.Limit)
	}
}

func (out *descriptorStatus) showLimit(l *rls.Limit) {
	unit, multiplier := wireUnit(int64(l.Rule.Window()))
	requests := l.Rule.Limit()
	if l.Unit != 0 {
		unit, _ = wireUnit(l.Unit.Length().Microseconds())
		requests, multiplier = l.PerUnit, clamp(l.Multiplier)
	}
	out.limit.Name, out.limit.RequestsPerUnit, out.limit.Unit = label(l.Name), clamp(requests), unit
	if multiplier > 1 {
		out.limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
	}
	out.status.CurrentLimit = &out.limit
}

// wireUnit returns the unit and multiplier of a window in µs. A window of parts of seconds has none, and neither has a
// token bucket (window 0): UNKNOWN, which Envoy shows as the bare number.
func wireUnit(window int64) (unit rlsv3.RateLimitResponse_RateLimit_Unit, multiplier uint32) {
	const second = 1_000_000
	if window == 0 || window%second != 0 {
		return rlsv3.RateLimitResponse_RateLimit_UNKNOWN, 1
	}
	// By name: the numbers of this enum differ from those of the unit in a request.
	switch window / second {
	case 1:
		return rlsv3.RateLimitResponse_RateLimit_SECOND, 1
	case 60:
		return rlsv3.RateLimitResponse_RateLimit_MINUTE, 1
	case 3600:
		return rlsv3.RateLimitResponse_RateLimit_HOUR, 1
	case 86400:
		return rlsv3.RateLimitResponse_RateLimit_DAY, 1
	case 7 * 86400:
		return rlsv3.RateLimitResponse_RateLimit_WEEK, 1
	case 30 * 86400:
		return rlsv3.RateLimitResponse_RateLimit_MONTH, 1
	case 365 * 86400:
		return rlsv3.RateLimitResponse_RateLimit_YEAR, 1
	}
	return rlsv3.RateLimitResponse_RateLimit_SECOND, clamp(window / second)
}

func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
