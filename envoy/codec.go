package envoy

import (
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
// Safe for concurrent use.
type codec struct {
	encoding.CodecV2 // the stock one

	repaired func(rls.Service) // called once per repaired message
}

func newCodec(repaired func(rls.Service)) codec {
	return codec{CodecV2: encoding.GetCodecV2(grpcproto.Name), repaired: repaired}
}

// Unmarshal decodes data into v. Valid messages, which are nearly all, cost nothing beyond the stock codec.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
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
