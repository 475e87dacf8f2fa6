package load

import (
	"context"
	"testing"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// gate lets one token pass, and tells of the others at length.
type gate struct {
	authv3.UnimplementedAuthorizationServer
	open string
}

func (g gate) Check(_ context.Context, q *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	if q.GetAttributes().GetContextExtensions()["endpoint_id"] != "all" {
		return nil, context.Canceled
	}
	if q.GetAttributes().GetRequest().GetHttp().GetHeaders()["authorization"] == "Bearer "+g.open {
		return &authv3.CheckResponse{
			Status:       &statusv3.Status{Message: "passes"},
			HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{HeadersToRemove: []string{"x"}}},
		}, nil
	}
	return &authv3.CheckResponse{
		Status:       &statusv3.Status{Code: int32(codes.Unauthenticated), Message: "no"},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{Body: "no"}},
	}, nil
}

// Each call asks with its own token, and learns what became of it.
func TestCheckEach(t *testing.T) {
	t.Parallel()
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, gate{open: "token-2"})
	conns := connectTo(t, server, 1)
	names := []string{"token-0", "token-1", "token-2", "token-three"}
	each, err := CheckEach("all", func(i uint64) string { return names[i] })
	if err != nil {
		t.Fatal(err)
	}
	ask := each.Ask()
	for i := range uint64(3) {
		if allowed, err := ask(t.Context(), conns[0], i); err != nil || allowed != (i == 2) {
			t.Errorf("%s: allowed %v, %v", names[i], allowed, err)
		}
	}
	if _, err := ask(t.Context(), conns[0], 3); err == nil {
		t.Error("a longer token was sent into a shorter one's place")
	}
}
