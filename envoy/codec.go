package envoy

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// codec is gRPC's protobuf codec, except that a question whose strings are not UTF-8 is repaired instead of refused.
//
// Envoy copies client bytes into descriptor values and dynamic metadata as they are, so `?q=a%ffb` is enough to have the
// stock codec answer INTERNAL. No handler runs then, and Envoy lets the request through without any limit.
// It also refuses what would take far more memory than its bytes: a message of 4 MiB can hold two million descriptors
// without anything in them, which take a gigabyte. Safe for concurrent use.
type codec struct {
	encoding.CodecV2 // the stock one

	repaired func(rls.Service) // called once per repaired message
}

func newCodec(repaired func(rls.Service)) codec {
	return codec{CodecV2: encoding.GetCodecV2(grpcproto.Name), repaired: repaired}
}

// maxParts bounds the nested messages and texts that one question may hold. Nothing that a client sends to Envoy makes
// half as many of them: descriptors are routes' doing, and a token of 60 KiB has some 30 000 values.
const maxParts = 1 << 16

// manyBytes is the size from which on a question is looked through for that: two bytes hold one part at least.
const manyBytes = 2 * maxParts

// Unmarshal decodes data into v. Valid messages, which are nearly all, cost nothing beyond the stock codec.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if data.Len() >= manyBytes && !c.bounded(data, v) {
		return fmt.Errorf("the message holds more than %d parts", maxParts)
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
