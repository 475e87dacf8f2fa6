package envoy

import (
	"context"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/identity"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// authorizationService is Authorization over the engine.
type authorizationService struct {
	authv3.UnimplementedAuthorizationServer

	engine           Engine
	names            *Names
	challenges       challenges
	rateLimitHeaders bool
}

// Check answers one question. A decision to refuse, a 503 included, is a denied response and never an error, which under
// failure_mode_allow would let the request through.
func (s *authorizationService) Check(ctx context.Context, req *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	question, isGRPC := s.checkRequest(req)
	result := s.engine.Check(ctx, question)
	return s.response(&result, isGRPC), nil
}

// checkRequest reads a question. Every part of it may be missing. isGRPC: the client speaks gRPC.
func (s *authorizationService) checkRequest(req *authv3.CheckRequest) (q rls.CheckRequest, isGRPC bool) {
	attributes := req.GetAttributes()
	q.EndpointID = s.endpointID(attributes)
	q.Credentials.Peer = peerAddress(attributes.GetSource().GetAddress())
	read := func(name, value string) {
		isGRPC = s.readHeader(&q.Credentials, name, value) || isGRPC
	}
	// Envoy fills one of the two, by encode_raw_headers. Where both are filled both count: a second credential is refused,
	// and reading only one would be choosing between them.
	http := attributes.GetRequest().GetHttp()
	for name, value := range http.GetHeaders() {
		read(name, value)
	}
	for _, h := range http.GetHeaderMap().GetHeaders() {
		if raw := h.GetRawValue(); len(raw) > 0 {
			read(h.GetKey(), string(raw))
		} else {
			read(h.GetKey(), h.GetValue())
		}
	}
	return q, isGRPC
}

// readHeader notes a header that says who sent the request, and reports whether it says that the client speaks gRPC.
func (s *authorizationService) readHeader(c *identity.Credentials, name, value string) (isGRPC bool) {
	switch name = strings.ToLower(name); name { // no allocation: Envoy sends lower case
	case s.names.ClientAddressHeader:
		c.ClientAddress = append(c.ClientAddress, value)
	case headerAuthorization:
		c.Authorization = append(c.Authorization, value)
	case headerCookie:
		c.Cookies = append(c.Cookies, value)
	case headerForwardedFor:
		c.ForwardedFor = append(c.ForwardedFor, value)
	case headerContentType:
		return strings.HasPrefix(strings.ToLower(value), "application/grpc")
	}
	return false
}

// endpointID reads the endpoint id that the route carries. Route metadata and context extensions are the operator's word.
// The request's path is not, and dynamic metadata may hold what an earlier filter copied from the request.
func (s *authorizationService) endpointID(a *authv3.AttributeContext) string {
	fields := a.GetRouteMetadataContext().GetFilterMetadata()[s.names.MetadataNamespace].GetFields()
	if id := fields[s.names.EndpointID].GetStringValue(); id != "" { // empty too for a number, a list, a missing value
		return id
	}
	return a.GetContextExtensions()[s.names.EndpointID]
}

func peerAddress(a *corev3.Address) netip.Addr {
	addr, err := netip.ParseAddr(a.GetSocketAddress().GetAddress())
	if err != nil { // a pipe, or nothing
		return netip.Addr{}
	}
	return addr
}

// response is the one constructor of a CheckResponse. It is nil, which the guard turns into an error, for a result that no
// decision gives.
func (s *authorizationService) response(r *rls.CheckResult, isGRPC bool) *authv3.CheckResponse {
	if r.Allowed {
		if r.Reason != rls.Allowed {
			return nil
		}
		return &authv3.CheckResponse{
			Status:          &rpcstatus.Status{Code: int32(codes.OK)},
			HttpResponse:    &authv3.CheckResponse_OkResponse{OkResponse: s.ok(r)},
			DynamicMetadata: s.metadata(r),
		}
	}
	why, ok := refusals[r.Reason]
	if !ok {
		return nil
	}
	return &authv3.CheckResponse{
		Status:          &rpcstatus.Status{Code: int32(why.grpc), Message: why.code},
		HttpResponse:    &authv3.CheckResponse_DeniedResponse{DeniedResponse: s.denied(r, why, isGRPC)},
		DynamicMetadata: s.metadata(r),
	}
}

// ok tells the upstream who asks, and the client what is left. Copies of our headers that the client sent are overwritten
// or removed, so that the upstream sees ours or none.
func (s *authorizationService) ok(r *rls.CheckResult) *authv3.OkHttpResponse {
	out := &authv3.OkHttpResponse{ResponseHeadersToAdd: s.limits(r)}
	tell := func(name, value string) {
		if value == "" {
			out.HeadersToRemove = append(out.HeadersToRemove, name)
		} else {
			out.Headers = append(out.Headers, overwrite(name, identityValue(value)))
		}
	}
	tell(s.names.TenantHeader, r.Identity.Tenant)
	tell(s.names.SubjectHeader, r.Identity.Subject)
	if r.Identity.SetCookie != "" { // beside the upstream's own
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, add(headerSetCookie, printable(r.Identity.SetCookie)))
	}
	return out
}

// denied tells the client why, and what would help.
func (s *authorizationService) denied(r *rls.CheckResult, why refusal, isGRPC bool) *authv3.DeniedHttpResponse {
	headers := append(s.limits(r),
		overwrite(headerContentType, documentType),
		overwrite(s.names.ReasonHeader, string(r.Reason)),
	)
	if r.RetryAfter > 0 {
		headers = append(headers, overwrite(headerRetryAfter, decimal(seconds(r.RetryAfter))))
	}
	if challenge := s.challenges.of(r); challenge != "" {
		headers = append(headers, overwrite(headerWWWAuthenticate, challenge))
	}
	if why.http == typev3.StatusCode_TooManyRequests {
		// As the ratelimit filter does: another Envoy on the way back does not retry.
		headers = append(headers, overwrite(headerEnvoyRateLimited, "true"))
	}
	if isGRPC {
		// Otherwise Envoy derives the code from the HTTP status, and 429 becomes UNAVAILABLE, which clients retry at once.
		// A plain HTTP client would be shown the header.
		headers = append(headers, overwrite(headerGRPCStatus, decimal(int64(why.grpc))))
	}
	return &authv3.DeniedHttpResponse{
		Status:  &typev3.HttpStatus{Code: why.http},
		Headers: headers,
		Body:    string(document(&r.Result, why, scopeText(r))),
	}
}

// challenges are the WWW-Authenticate values of RFC 6750 section 3 and RFC 9728 section 5.1. An error is named only when
// there was a credential, and never which check refused it.
type challenges struct {
	missing, invalid string
	scope            string // up to the scopes
	end              string // what follows them
}

func newChallenges(realm, resourceMetadata string) challenges {
	bearer := "Bearer realm=" + quoted(realm)
	var metadata string
	if resourceMetadata != "" {
		metadata = ", resource_metadata=" + quoted(resourceMetadata)
	}
	return challenges{
		missing: bearer + metadata,
		invalid: bearer + `, error="invalid_token"` + metadata,
		scope:   bearer + `, error="insufficient_scope", scope=`,
		end:     metadata,
	}
}

// of returns the challenge of a refusal; empty when no credential would help.
func (c *challenges) of(r *rls.CheckResult) string {
	switch {
	case r.Reason == rls.InsufficientScope:
		return c.scope + quoted(scopeText(r)) + c.end
	case r.Reason == rls.Unauthenticated && r.InvalidToken:
		return c.invalid
	case r.Reason == rls.Unauthenticated:
		return c.missing
	}
	return ""
}

// scopeText returns the scopes that an endpoint asks, as RFC 6750 writes them.
func scopeText(r *rls.CheckResult) string { return strings.Join(r.RequiredScopes, " ") }

// limits returns the RateLimit headers (draft-polli-ratelimit-headers-03: delta seconds) of the limit that speaks. Reset
// says when the bucket is as if untouched; when the next request fits is Retry-After's to say.
func (s *authorizationService) limits(r *rls.CheckResult) []*corev3.HeaderValueOption {
	if !s.rateLimitHeaders || len(r.Statuses) == 0 || r.Statuses[0].Limit == nil {
		return nil
	}
	status := &r.Statuses[0]
	out := append(make([]*corev3.HeaderValueOption, 0, 8),
		overwrite(headerRateLimitLimit, decimal(status.Limit.Rule.Limit())),
		overwrite(headerRateLimitRemaining, decimal(max(status.Remaining, 0))),
	)
	if reset := status.Reset; reset >= 0 {
		n := seconds(reset)
		if status.OverLimit {
			n = max(n, 1)
		}
		out = append(out, overwrite(headerRateLimitReset, decimal(n)))
	}
	return out
}

// metadata returns the dynamic metadata that later filters and a stream-done descriptor read, on refusals too. Only
// strings, since Envoy's descriptors take nothing else; what is unknown is left out, so that a default_value applies.
func (s *authorizationService) metadata(r *rls.CheckResult) *structpb.Struct {
	names := &s.names.Metadata
	fields := make(map[string]*structpb.Value, 7)
	set := func(key, value string) {
		if value != "" {
			fields[key] = structpb.NewStringValue(strings.ToValidUTF8(value, "\uFFFD"))
		}
	}
	set(names.Tenant, r.Identity.Tenant)
	set(names.Subject, r.Identity.Subject)
	set(names.Plan, r.Identity.Plan)
	set(names.EndpointID, r.EndpointID)
	set(names.DecisionID, r.DecisionID)
	set(names.Reason, string(r.Reason))
	set(names.Policy, r.Policy)
	return &structpb.Struct{Fields: fields}
}
