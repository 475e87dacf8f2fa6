package load

import (
	"context"
	"slices"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Question is what an open loop asks: messages that are encoded already, of whose answers only what they say is read. Safe for
// concurrent use.
type Question struct {
	method  string
	message func(i uint64) ([]byte, error)
	yes     func(answer []byte) (bool, error)
}

// Ask returns an Ask that puts q, through grpc-go.
func (q Question) Ask() Ask {
	codec := grpc.ForceCodecV2(encodedCodec{q.yes})
	return func(ctx context.Context, conn *grpc.ClientConn, i uint64) (allowed bool, err error) {
		message, err := q.message(i)
		if err != nil {
			return false, err
		}
		err = conn.Invoke(ctx, q.method, message, &allowed, codec)
		return allowed, err
	}
}

// encodedCodec sends a []byte as it is, and reads of an answer a bool.
type encodedCodec struct {
	read func(answer []byte) (bool, error)
}

// Name returns the name of the protobuf codec, whose encoding it is.
func (encodedCodec) Name() string { return grpcproto.Name }

// Marshal takes the encoding as it is.
func (encodedCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal reads whether the answer is yes.
func (c encodedCodec) Unmarshal(data mem.BufferSlice, v any) (err error) {
	*v.(*bool), err = c.read(data.Materialize())
	return err
}

// overallOK reads overall_code of a RateLimitResponse.
func overallOK(answer []byte) (bool, error) {
	code, err := number(answer, 1)
	return rlsv3.RateLimitResponse_Code(code) == rlsv3.RateLimitResponse_OK, err
}

// statusOK reads status.code of a CheckResponse. Neither is there when it is OK.
func statusOK(answer []byte) (bool, error) {
	status, err := field(answer, 1, protowire.BytesType)
	if err != nil {
		return false, err
	}
	code, err := number(status, 1)
	return err == nil && code == int32(codes.OK), err
}

// number returns an int32 or enum of a message, 0 when it is not there.
func number(message []byte, num protowire.Number) (int32, error) {
	value, err := field(message, num, protowire.VarintType)
	if len(value) == 0 {
		return 0, err
	}
	n, _ := protowire.ConsumeVarint(value)
	return int32(n), nil // protobuf drops what is above 32 bits, too
}

// field returns what the encoding of a message holds in a field: of messages all, one after the other, which is how protobuf
// merges them; else the last. Other fields, and those of the number that have another type, are unknown ones.
func field(message []byte, num protowire.Number, typ protowire.Type) (value []byte, err error) {
	for b := message; len(b) > 0; {
		n, t, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(n, t, b[tag:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		found := b[tag : tag+size]
		b = b[tag+size:]
		switch {
		case n != num || t != typ:
		case t == protowire.BytesType:
			part, _ := protowire.ConsumeBytes(found)
			value = slices.Concat(value, part)
		default:
			value = found
		}
	}
	return value, nil
}
