package envoy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// Envoy takes each of these for consent, or for something else than it says.
func TestGuardStopsAnswersThatEnvoyWouldMisread(t *testing.T) {
	t.Parallel()
	over := &rlsv3.RateLimitResponse_DescriptorStatus{Code: rlsv3.RateLimitResponse_OVER_LIMIT}
	fine := &rlsv3.RateLimitResponse_DescriptorStatus{Code: rlsv3.RateLimitResponse_OK}
	denied := func(code typev3.StatusCode) *authv3.CheckResponse_DeniedResponse {
		return &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: code}}}
	}
	ok := &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{}}
	code := func(c codes.Code) *rpcstatus.Status { return &rpcstatus.Status{Code: int32(c)} }
	for _, tt := range []struct {
		name  string
		resp  any
		err   error
		sound bool
	}{
		{"rls: OK", &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{fine}}, nil, true},
		{"rls: over limit", &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{fine, over}}, nil, true},
		{"rls: nil", (*rlsv3.RateLimitResponse)(nil), nil, false},
		{"rls: zero", &rlsv3.RateLimitResponse{}, nil, false},
		{"rls: a code that does not exist", &rlsv3.RateLimitResponse{OverallCode: 9}, nil, false},
		{"rls: OK with a quota that is over", &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{fine, over}}, nil, true},
		{"rls: OK with a missing status", &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{nil}}, nil, false},
		{"rls: an answer and an error", &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, errors.New("boom"), false},
		{"check: OK", &authv3.CheckResponse{Status: code(codes.OK), HttpResponse: ok}, nil, true},
		{"check: denied", &authv3.CheckResponse{Status: code(codes.ResourceExhausted), HttpResponse: denied(429)}, nil, true},
		{"check: nil", (*authv3.CheckResponse)(nil), nil, false},
		{"check: zero", &authv3.CheckResponse{}, nil, false},
		{"check: OK without a response", &authv3.CheckResponse{Status: code(codes.OK)}, nil, false},
		{"check: OK with a denied response", &authv3.CheckResponse{Status: code(codes.OK), HttpResponse: denied(403)}, nil, false},
		{"check: a denied response without status", &authv3.CheckResponse{HttpResponse: denied(403)}, nil, false},
		{"check: denied with an OK response", &authv3.CheckResponse{Status: code(codes.PermissionDenied), HttpResponse: ok}, nil, false},
		{"check: denied with status 200", &authv3.CheckResponse{Status: code(codes.PermissionDenied), HttpResponse: denied(200)}, nil, false},
		{"check: an error response", &authv3.CheckResponse{Status: code(codes.Internal), HttpResponse: &authv3.CheckResponse_ErrorResponse{}}, nil, false},
		{"nothing at all", nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var counts tally
			g := guard{recorder: &counts, log: slog.New(slog.DiscardHandler)}
			req, want := any(&rlsv3.RateLimitRequest{}), map[string]int{"faulty ratelimit": 1}
			if strings.HasPrefix(tt.name, "check") {
				req, want = &authv3.CheckRequest{}, map[string]int{"faulty ext_authz": 1}
			}
			resp, err := g.unary(t.Context(), req, nil, func(context.Context, any) (any, error) { return tt.resp, tt.err })
			if tt.sound {
				if err != nil || resp != tt.resp || len(counts.snapshot()) > 0 {
					t.Errorf("got %v, %v, events %v; want the answer as it was", resp, err, counts.snapshot())
				}
				return
			}
			if status.Code(err) != codes.Internal || resp != nil || !maps.Equal(counts.snapshot(), want) {
				t.Errorf("got %v, %v, events %v; want INTERNAL, counted", resp, err, counts.snapshot())
			}
		})
	}
}

func TestPanicIsAnErrorAndTheServerLives(t *testing.T) {
	t.Parallel()
	engine := admitting()
	engine.decide = func(_ context.Context, r rls.Request) (rls.Result, error) {
		if r.Domain == "boom" {
			panic("nil policy")
		}
		return rls.Result{Allowed: true, Reason: rls.Allowed}, nil
	}
	engine.check = func(context.Context, rls.CheckRequest) rls.CheckResult { panic("nil identity") }
	s := start(t, engine)
	if _, err := s.rls.ShouldRateLimit(within(t), question("boom", entries("a", "b"))); status.Code(err) != codes.Internal {
		t.Errorf("ShouldRateLimit: %v, want INTERNAL", err)
	} else if strings.Contains(err.Error(), "nil policy") {
		t.Errorf("the caller sees the panic: %v", err)
	}
	if _, err := s.authz.Check(within(t), &authv3.CheckRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("Check: %v, want INTERNAL", err)
	}
	if _, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b"))); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if got, want := s.tally.snapshot(), map[string]int{"panicked ratelimit": 1, "panicked ext_authz": 1}; !maps.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	for _, want := range []string{"nil policy", "nil identity", "guard_test.go"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, s.log)
		}
	}
}

// An answer that no decision gives must not become consent on its way out.
func TestResultsThatNoDecisionGivesAreErrors(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]rls.Result{
		"the zero result":                     {},
		"admitted without a reason":           {Allowed: true},
		"admitted, rate limited":              {Allowed: true, Reason: rls.RateLimited},
		"refused, allowed":                    {Reason: rls.Allowed},
		"refused for a reason nobody defined": {Reason: "BECAUSE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, fakeEngine{
				decide: func(context.Context, rls.Request) (rls.Result, error) { return result, nil },
				check:  func(context.Context, rls.CheckRequest) rls.CheckResult { return rls.CheckResult{Result: result} },
			})
			if resp, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b"))); status.Code(err) != codes.Internal {
				t.Errorf("ShouldRateLimit: %v, %v; want INTERNAL", resp, err)
			}
			if resp, err := s.authz.Check(within(t), checking("x", nil)); status.Code(err) != codes.Internal {
				t.Errorf("Check: %v, %v; want INTERNAL", resp, err)
			}
			if got, want := s.tally.snapshot(), map[string]int{"faulty ratelimit": 1, "faulty ext_authz": 1}; !maps.Equal(got, want) {
				t.Errorf("events %v, want %v", got, want)
			}
		})
	}
}

func TestAdmissionsForAnUnknownEndpointPassInRateLimitServiceOnly(t *testing.T) {
	t.Parallel()
	for _, reason := range []rls.Reason{rls.UnknownEndpoint, rls.UnknownDomain} {
		result := rls.Result{Allowed: true, Reason: reason}
		s := start(t, fakeEngine{
			decide: func(context.Context, rls.Request) (rls.Result, error) { return result, nil },
			check:  func(context.Context, rls.CheckRequest) rls.CheckResult { return rls.CheckResult{Result: result} },
		})
		resp, err := s.rls.ShouldRateLimit(within(t), question("shop", entries("a", "b")))
		if err != nil || resp.GetOverallCode() != rlsv3.RateLimitResponse_OK || len(resp.GetStatuses()) != 1 || len(resp.GetResponseHeadersToAdd()) > 0 {
			t.Errorf("%s: ShouldRateLimit = %v, %v; want OK with one status and no header", reason, resp, err)
		}
		if resp, err := s.authz.Check(within(t), checking("x", nil)); err == nil {
			t.Errorf("%s: Check = %v; want an error", reason, resp)
		}
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		timeout  time.Duration // of the caller; 0: none
		cancel   time.Duration // when the caller goes away; 0: it stays
		answered time.Duration // when the handler answers
		want     map[string]int
	}{
		{"in time", 20 * time.Millisecond, 0, 15 * time.Millisecond, nil},
		{"no deadline", 0, 0, time.Hour, nil},
		{"late", 20 * time.Millisecond, 0, 21 * time.Millisecond, map[string]int{"late ratelimit": 1}},
		{"at the deadline", 20 * time.Millisecond, 0, 20 * time.Millisecond, map[string]int{"late ratelimit": 1}},
		{"Envoy's reset overtakes its deadline", 20 * time.Millisecond, 19 * time.Millisecond, 19 * time.Millisecond, map[string]int{"late ratelimit": 1}},
		{"the client hangs up", 20 * time.Millisecond, 5 * time.Millisecond, 6 * time.Millisecond, map[string]int{"canceled ratelimit": 1}},
		{"the client hangs up, and the answer is late anyway", 20 * time.Millisecond, 5 * time.Millisecond, 30 * time.Millisecond, map[string]int{"late ratelimit": 1}},
		{"the client hangs up, no deadline", 0, 5 * time.Millisecond, 6 * time.Millisecond, map[string]int{"canceled ratelimit": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				var counts tally
				g := guard{recorder: &counts, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
				_, err := g.unary(ctx, &rlsv3.RateLimitRequest{}, nil, func(context.Context, any) (any, error) {
					time.Sleep(tt.answered)
					synctest.Wait()
					return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
				})
				if err != nil {
					t.Errorf("error %v: a late answer is still an answer", err)
				}
				if got := counts.snapshot(); !maps.Equal(got, tt.want) {
					t.Errorf("events %v, want %v", got, tt.want)
				}
			})
		})
	}
}

func TestGuardLeavesOtherServicesAlone(t *testing.T) {
	t.Parallel()
	g := guard{recorder: &tally{}, log: slog.New(slog.DiscardHandler)}
	refused := status.Error(codes.NotFound, "unknown service")
	_, err := g.unary(t.Context(), &grpc_health_v1.HealthCheckRequest{}, nil, func(context.Context, any) (any, error) { return nil, refused })
	if !errors.Is(err, refused) {
		t.Errorf("error %v, want the handler's", err)
	}
}
