package envoy

import (
	"encoding/json"
	"fmt"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// refusal is how a reason to refuse is told.
type refusal struct {
	code    string            // of the error document
	message string            // of the error document; for people
	http    typev3.StatusCode // of a denied Check
	grpc    codes.Code        // of a denied Check
}

var (
	tooMany = refusal{"rate_limited", "Too many requests.", typev3.StatusCode_TooManyRequests, codes.ResourceExhausted}
	unable  = refusal{"unavailable", "The request cannot be decided at the moment.", typev3.StatusCode_ServiceUnavailable, codes.Unavailable}
	unknown = refusal{"not_found", "There is no such endpoint.", typev3.StatusCode_NotFound, codes.NotFound}
)

// refusals is the one table from reasons to what callers see. A reason that is not in it refuses nobody.
var refusals = map[rls.Reason]refusal{
	rls.RateLimited:         tooMany,
	rls.EmergencyLocalLimit: tooMany,
	rls.CircuitOpen:         unable,
	rls.FailClosed:          unable,
	rls.IdentityUnavailable: unable,
	rls.UnknownEndpoint:     unknown,
	rls.UnknownDomain:       unknown,
	rls.Unauthenticated:     {"unauthenticated", "A valid credential is required.", typev3.StatusCode_Unauthorized, codes.Unauthenticated},
	rls.InsufficientScope:   {"insufficient_scope", "The credential does not cover this endpoint.", typev3.StatusCode_Forbidden, codes.PermissionDenied},
	rls.InvalidRequest:      {"invalid_request", "The request cannot be understood.", typev3.StatusCode_BadRequest, codes.InvalidArgument},
}

const documentType = "application/json"

// errorDocument is the body of a refusal, schema sentinel.error/1.
type errorDocument struct {
	Schema string    `json:"schema"`
	Error  errorBody `json:"error"`
}

type errorBody struct {
	Code    string       `json:"code"`
	Message string       `json:"message"`
	Details errorDetails `json:"details"`
}

type errorDetails struct {
	RetryAfterMillis int64      `json:"retry_after_ms,omitzero"` // rounded up; absent: unknown, or no wait would help
	Reason           rls.Reason `json:"reason"`
	DecisionID       string     `json:"decision_id,omitzero"`
	Policy           string     `json:"policy,omitzero"` // the policy and limit that refused
	Scope            string     `json:"scope,omitzero"`  // what the endpoint asks of a credential that does not have it
}

// document returns the error document of a refused result. scope is what the endpoint asks, where it is lacking.
func document(r *rls.Result, why refusal, scope string) []byte {
	details := errorDetails{Reason: r.Reason, Scope: scope}
	if r.RetryAfter > 0 {
		details.RetryAfterMillis = ceil(r.RetryAfter, time.Millisecond)
	}
	if r.Reason != rls.Unauthenticated {
		// Every 401 has the same body, whatever was wrong and whether or not the endpoint exists.
		details.DecisionID, details.Policy = r.DecisionID, label(r.Policy)
	}
	body, err := json.Marshal(errorDocument{"sentinel.error/1", errorBody{why.code, why.message, details}})
	if err != nil { // the guard recovers; no value of these types fails
		panic(fmt.Errorf("encoding an error document: %w", err))
	}
	return body
}
