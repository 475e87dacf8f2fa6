package e2e

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// A call whose :path lacks the leading slash was once served by grpc-go without the interceptors that go by the path. It is
// no method: the same bytes with the slash are answered.
func TestEA_13_a_path_without_its_slash_is_no_method(t *testing.T) {
	t.Parallel()
	program, err := load.Start(t.Context(), load.Settings{Binary: binary, Policies: `
domain: load
endpoints:
  once:
    policy_version: 1
    fail_mode: fail_closed
    limits: [{algorithm: token_bucket, capacity: 1, refill: 0}]
`})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(program.Stop)
	const method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	question, err := proto.Marshal(&rlsv3.RateLimitRequest{Domain: "load", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "endpoint_id", Value: "once"}, {Key: "tenant", Value: "acme"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	const ok, unimplemented = "0", "12"
	for _, tt := range []struct {
		path, status string
	}{
		{method, unimplemented},
		{"//" + method, unimplemented},
		{"/" + method + "/", unimplemented},
		{"/" + method, ok},
	} {
		status, answer := testserver.RawCall(t, program.Addr(), tt.path, question)
		if status != tt.status {
			t.Errorf(":path %q: grpc-status %q, want %s", tt.path, status, tt.status)
		}
		if tt.status != ok {
			if len(answer) > 0 {
				t.Errorf(":path %q: answered %x, want nothing", tt.path, answer)
			}
			continue
		}
		var said rlsv3.RateLimitResponse
		if err := proto.Unmarshal(answer, &said); err != nil {
			t.Fatal(err)
		}
		// The bucket holds one: no call before this one took it.
		if said.GetOverallCode() != rlsv3.RateLimitResponse_OK {
			t.Errorf(":path %q: %v, want OK: a call that is no method has spent", tt.path, said.GetOverallCode())
		}
	}
}
