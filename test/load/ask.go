package load

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Domain is the rate limit domain of every question and of the policies that go with them.
const Domain = "load"

// Tenant returns the name of the i-th tenant.
func Tenant(i uint64) string { return "tenant-" + strconv.FormatUint(i, 10) }

// RateLimit returns an Ask of one descriptor about an endpoint, with a tenant drawn from as many as tenants says, evenly.
// The same i asks about the same tenant.
func RateLimit(endpoint string, tenants int) Ask {
	// Made beforehand, so that the generator costs little beside the server.
	requests := make([]*rlsv3.RateLimitRequest, tenants)
	for t := range requests {
		requests[t] = rateLimitRequest(endpoint, Tenant(uint64(t)))
	}
	return func(ctx context.Context, conn *grpc.ClientConn, i uint64) (bool, error) {
		return shouldRateLimit(ctx, conn, requests[scatter(i)%uint64(tenants)])
	}
}

// RateLimitQuestion returns what RateLimit asks, for an open loop. In a closed one it would ask more often.
func RateLimitQuestion(endpoint string, tenants int) (Question, error) {
	messages := make([][]byte, tenants)
	for t := range messages {
		var err error
		if messages[t], err = proto.Marshal(rateLimitRequest(endpoint, Tenant(uint64(t)))); err != nil {
			return Question{}, err
		}
	}
	return Question{
		method:  rlsv3.RateLimitService_ShouldRateLimit_FullMethodName,
		message: func(i uint64) ([]byte, error) { return messages[scatter(i)%uint64(tenants)], nil },
		yes:     overallOK,
	}, nil
}

// DistinctTenants returns an Ask of one descriptor about an endpoint whose tenant is another for every i.
func DistinctTenants(endpoint string) Ask {
	return func(ctx context.Context, conn *grpc.ClientConn, i uint64) (bool, error) {
		return shouldRateLimit(ctx, conn, rateLimitRequest(endpoint, Tenant(i)))
	}
}

// RateLimitAmong returns an Ask of one descriptor, about an endpoint and a tenant that are drawn evenly and apart, of
// endpoints and of as many tenants as tenants says. Unlike RateLimit it makes each question when it is asked: there may be
// too many to keep.
func RateLimitAmong(endpoints []string, tenants int) Ask {
	return func(ctx context.Context, conn *grpc.ClientConn, i uint64) (bool, error) {
		drawn := scatter(i)
		endpoint := endpoints[drawn%uint64(len(endpoints))]
		return shouldRateLimit(ctx, conn, rateLimitRequest(endpoint, Tenant(scatter(drawn)%uint64(tenants))))
	}
}

// Probe asks once about an endpoint and a tenant and also returns the value of the header x-sentinel-reason, which is empty
// when the answer was yes.
func Probe(ctx context.Context, conn *grpc.ClientConn, endpoint, tenant string) (allowed bool, reason string, err error) {
	answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, rateLimitRequest(endpoint, tenant))
	if err != nil {
		return false, "", err
	}
	for _, h := range answer.GetResponseHeadersToAdd() {
		if h.GetKey() == "x-sentinel-reason" {
			reason = h.GetValue()
		}
	}
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK, reason, nil
}

func rateLimitRequest(endpoint, tenant string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{
		Domain: Domain,
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
				{Key: "endpoint_id", Value: endpoint},
				{Key: "tenant", Value: tenant},
			},
		}},
	}
}

func shouldRateLimit(ctx context.Context, conn *grpc.ClientConn, request *rlsv3.RateLimitRequest) (bool, error) {
	answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request)
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK, err
}

// Check returns an Ask for ext_authz about an endpoint, with a bearer token drawn evenly from tokens, which is not empty.
// The request is a small GET as Envoy describes one.
func Check(endpoint string, tokens []string) Ask {
	requests := make([]*authv3.CheckRequest, len(tokens))
	for t, token := range tokens {
		requests[t] = checkRequest(endpoint, token)
	}
	return func(ctx context.Context, conn *grpc.ClientConn, i uint64) (bool, error) {
		answer, err := authv3.NewAuthorizationClient(conn).Check(ctx, requests[scatter(i)%uint64(len(requests))])
		return codes.Code(answer.GetStatus().GetCode()) == codes.OK, err
	}
}

// CheckQuestion returns what Check asks, for an open loop.
func CheckQuestion(endpoint string, tokens []string) (Question, error) {
	messages := make([][]byte, len(tokens))
	for t, token := range tokens {
		var err error
		if messages[t], err = proto.Marshal(checkRequest(endpoint, token)); err != nil {
			return Question{}, err
		}
	}
	return Question{
		method:  authv3.Authorization_Check_FullMethodName,
		message: func(i uint64) ([]byte, error) { return messages[scatter(i)%uint64(len(messages))], nil },
		yes:     statusOK,
	}, nil
}

// CheckEach returns a question of ext_authz about an endpoint, with the bearer token that token gives for each call; all are as
// long as the one for 0. token is called concurrently.
func CheckEach(endpoint string, token func(i uint64) string) (Question, error) {
	first := token(0)
	whole, err := proto.Marshal(checkRequest(endpoint, first))
	if err != nil {
		return Question{}, err
	}
	before, after, _ := bytes.Cut(whole, []byte(first))
	return Question{
		method: authv3.Authorization_Check_FullMethodName,
		message: func(i uint64) ([]byte, error) {
			t := token(i)
			if len(t) != len(first) {
				return nil, fmt.Errorf("a token of %d characters, where those before had %d", len(t), len(first))
			}
			return slices.Concat(before, []byte(t), after), nil
		},
		yes: statusOK,
	}, nil
}

func checkRequest(endpoint, token string) *authv3.CheckRequest {
	address := func(host string, port uint32) *authv3.AttributeContext_Peer {
		return &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
			},
		}}}
	}
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Source:      address("192.0.2.17", 40000),
		Destination: address("192.0.2.1", 443),
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Id:     "17",
			Method: "GET",
			Headers: map[string]string{
				":authority":    "shop.example",
				":method":       "GET",
				":path":         "/orders/17",
				":scheme":       "https",
				"accept":        "application/json",
				"authorization": "Bearer " + token,
				"user-agent":    "load/1",
				"x-request-id":  "0b5fd1d4-9a43-4f9e-8d0e-0f3c4f3a9f55",
			},
			Host: "shop.example", Path: "/orders/17", Scheme: "https", Protocol: "HTTP/2",
		}},
		ContextExtensions: map[string]string{"endpoint_id": endpoint},
	}}
}

// scatter maps neighbouring numbers far apart, one to one (the finalizer of SplitMix64).
func scatter(i uint64) uint64 {
	i += 0x9e3779b97f4a7c15
	i = (i ^ i>>30) * 0xbf58476d1ce4e5b9
	i = (i ^ i>>27) * 0x94d049bb133111eb
	return i ^ i>>31
}
