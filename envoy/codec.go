package envoy

import (
	"fmt"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// codec is gRPC's protobuf codec, except that a question whose strings are not UTF-8 is repaired instead of refused, and that
// a Check is read for what it is asked for.
//
// Envoy copies client bytes into descriptor values and dynamic metadata as they are, so `?q=a%ffb` is enough to have the
// stock codec answer INTERNAL. No handler runs then, and Envoy lets the request through without any limit.
// It also refuses what would take far more memory than its bytes: a message of 4 MiB can hold two million descriptors
// without anything in them, which take a gigabyte. Safe for concurrent use.
type codec struct {
	encoding.CodecV2 // the stock one

	checks   checkReader
	repaired func(rls.Service) // called once per repaired message
}

func newCodec(names *Names, repaired func(rls.Service)) codec {
	return codec{CodecV2: encoding.GetCodecV2(grpcproto.Name), checks: checkReader{names}, repaired: repaired}
}

// maxParts bounds the nested messages and texts that one question may hold. Nothing that a client sends to Envoy makes
// half as many of them: descriptors are routes' doing, and a token of 60 KiB has some 30 000 values.
const maxParts = 1 << 16

// manyBytes is the size from which on a question is looked through for that: two bytes hold one part at least.
const manyBytes = 2 * maxParts

// Marshal encodes v.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if resp, ok := v.(*authv3.CheckResponse); ok {
		if data, ok := writeCheck(resp); ok {
			return data, nil
		}
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal decodes data into v. Valid messages, which are nearly all, cost nothing beyond the stock codec.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if data.Len() >= manyBytes && !c.bounded(data, v) {
		return fmt.Errorf("the message holds more than %d parts", maxParts)
	}
	if req, ok := v.(*authv3.CheckRequest); ok {
		if c.checks.read(data.Materialize(), req) {
			return nil
		}
		req.Reset()
	}
	err := c.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	service, ours := serviceOf(v)
	if !ours {
		return err
	}
	msg := v.(proto.Message)
	fixed, changed := repair(data.Materialize(), msg.ProtoReflect().Descriptor())
	if !changed {
		return err
	}
	if err := proto.Unmarshal(fixed, msg); err != nil {
		return err
	}
	c.repaired(service)
	return nil
}

// bounded reports whether a question holds at most maxParts parts. What is no encoding is the stock codec's to refuse.
func (c codec) bounded(data mem.BufferSlice, v any) bool {
	if _, ours := serviceOf(v); !ours {
		return true
	}
	left := maxParts
	return count(data.Materialize(), v.(proto.Message).ProtoReflect().Descriptor(), 0, &left)
}
