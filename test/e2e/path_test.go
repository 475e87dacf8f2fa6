package e2e

import (
	"bytes"
	bits "encoding/binary"
	"net"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

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
		status, answer := rawCall(t, program.Addr(), tt.path, question)
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

// rawCall makes one gRPC call over HTTP/2 frames of its own, since no client sends such a path, and returns its grpc-status
// and the message of the answer.
func rawCall(t *testing.T, address, path string, message []byte) (status string, answer []byte) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, h := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "sentinel"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		if err := encoder.WriteField(h); err != nil {
			t.Fatal(err)
		}
	}
	frame := bits.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // not compressed, and its length
	for _, err := range []error{
		framer.WriteSettings(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, append(frame, message...)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf(":path %q: %v", path, err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			answer = append(answer, f.Data()...)
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name == "grpc-status" {
					status = h.Value
				}
			}
			if f.StreamEnded() {
				return status, answer[min(len(answer), 5):]
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			t.Fatalf(":path %q: %v", path, f)
		}
	}
}
