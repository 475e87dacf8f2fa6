package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// nearDeadline is how close to its deadline a cancelled call counts as timed out. When Envoy's own timeout fires, its
// reset overtakes the deadline here, so the handler sees Canceled and never DeadlineExceeded.
const nearDeadline = 2 * time.Millisecond

// Recorder counts what goes wrong at the wire. Safe for concurrent use; never blocks.
type Recorder interface {
	Repaired(service rls.Service) // a question with text that is not UTF-8
	Panicked(service rls.Service) // a handler panicked: gRPC INTERNAL
	Faulty(service rls.Service)   // an answer that is missing, empty or contradicts itself: gRPC INTERNAL
	Late(service rls.Service)     // the caller's deadline passed, or the caller gave up within 2 ms of it, before the answer
	Canceled(service rls.Service) // the caller went away earlier, as when its client does
}

// errInternal is all that a caller learns about a fault; the log has the rest.
var errInternal = status.Error(codes.Internal, "internal error")

// serviceOf returns which of the two services a message is a question to; false: neither.
func serviceOf(question any) (rls.Service, bool) {
	switch question.(type) {
	case *rlsv3.RateLimitRequest:
		return rls.ServiceRateLimit, true
	case *authv3.CheckRequest:
		return rls.ServiceAuthz, true
	}
	return "", false
}

// guard stands around every call to the two services.
type guard struct {
	recorder Recorder
	log      *slog.Logger
}

// unary is a grpc.UnaryServerInterceptor. Calls to other services (health) pass through.
func (g guard) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	service, ours := serviceOf(req)
	if !ours {
		return handler(ctx, req)
	}
	resp, err := g.call(ctx, service, req, handler)
	g.observeDeadline(ctx, service)
	return resp, err
}

// call asks the handler and passes on a sound answer. Anything else becomes INTERNAL: an error lets Envoy apply the
// failure mode that its operator chose, where an empty answer would always let the request through.
func (g guard) call(ctx context.Context, service rls.Service, req any, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			g.recorder.Panicked(service)
			g.log.ErrorContext(ctx, "panic while answering", "service", service, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			resp, err = nil, errInternal
		}
	}()
	resp, err = handler(ctx, req)
	if wanted, ok := errors.AsType[wantedError](err); ok {
		return nil, wanted
	}
	if err != nil || !sound(resp) {
		g.recorder.Faulty(service)
		g.log.ErrorContext(ctx, "no usable answer", "service", service, "error", err)
		return nil, errInternal
	}
	return resp, nil
}

func (g guard) observeDeadline(ctx context.Context, service rls.Service) {
	deadline, ok := ctx.Deadline()
	gone := ctx.Err() != nil
	switch left := time.Until(deadline); {
	case ok && (left <= 0 || gone && left <= nearDeadline):
		g.recorder.Late(service)
	case gone:
		g.recorder.Canceled(service)
	}
}

// sound reports whether Envoy will understand resp as it is meant.
func sound(resp any) bool {
	switch resp := resp.(type) {
	case *rlsv3.RateLimitResponse:
		return soundRateLimit(resp)
	case *authv3.CheckResponse:
		return soundCheck(resp)
	}
	return false
}

// soundRateLimit: Envoy goes by the overall code alone and takes UNKNOWN for OK. That an admission has no status that is
// over limit, where it must not, is seen to where the answer is made.
func soundRateLimit(resp *rlsv3.RateLimitResponse) bool {
	switch resp.GetOverallCode() {
	case rlsv3.RateLimitResponse_OVER_LIMIT:
		return true
	case rlsv3.RateLimitResponse_OK:
		return !slices.ContainsFunc(resp.GetStatuses(), func(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
			return s.GetCode() == rlsv3.RateLimitResponse_UNKNOWN
		})
	}
	return false
}

// soundCheck: Envoy goes by the status code alone, takes a missing status for OK, and ignores a denied response beside it.
func soundCheck(resp *authv3.CheckResponse) bool {
	allowed := resp.GetStatus().GetCode() == int32(codes.OK)
	switch {
	case resp.GetStatus() == nil:
		return false
	case resp.GetOkResponse() != nil:
		return allowed
	case resp.GetDeniedResponse() != nil:
		return !allowed && resp.GetDeniedResponse().GetStatus().GetCode() >= 400
	}
	return false
}
