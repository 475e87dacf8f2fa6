package envoy

import (
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// A Check tells of the whole request and is asked for little of it, and the stock codec goes through reflection for every
// entry of a map. So a question is read for what Check looks at, and the map of an answer is written here. The field
// numbers are those of envoy/service/auth/v3 and envoy/config/core/v3.

// checkReader decodes of a CheckRequest what checkRequest reads. All other fields stay empty, and are not looked into.
type checkReader struct{ names *Names }

// read decodes b into an empty request. False: b holds something that Envoy does not send, which the stock codec has to
// judge; the request is to be thrown away.
func (r checkReader) read(b []byte, req *authv3.CheckRequest) bool {
	return eachPayload(b, func(num protowire.Number, b []byte) bool {
		if num != 1 {
			return true
		}
		if req.Attributes == nil {
			req.Attributes = &authv3.AttributeContext{}
		}
		return r.attributes(b, req.Attributes)
	})
}

func (r checkReader) attributes(b []byte, a *authv3.AttributeContext) bool {
	return eachPayload(b, func(num protowire.Number, b []byte) bool {
		switch num {
		case 1:
			return readPeer(b, a)
		case 4:
			return eachPayload(b, func(num protowire.Number, b []byte) bool { return num != 2 || r.http(b, a) })
		case 10:
			return r.extension(b, a)
		case 13:
			return eachPayload(b, func(num protowire.Number, b []byte) bool { return num != 1 || r.routeMetadata(b, a) })
		}
		return true
	})
}

// readPeer reads the address of the source.
func readPeer(b []byte, a *authv3.AttributeContext) bool {
	return eachPayload(b, func(num protowire.Number, b []byte) bool { return num != 1 || readAddress(b, a) })
}

// readAddress reads the source's address, which is one of several kinds. False: it is not a socket's alone, or comes twice.
func readAddress(b []byte, a *authv3.AttributeContext) bool {
	return eachPayload(b, func(num protowire.Number, b []byte) bool {
		if num != 1 || a.Source != nil {
			return false
		}
		socket := &corev3.SocketAddress{}
		a.Source = &authv3.AttributeContext_Peer{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: socket}},
		}
		return eachPayload(b, func(num protowire.Number, b []byte) bool {
			return num != 2 || readText(b, &socket.Address)
		})
	})
}

// http reads the headers, in both of the shapes that encode_raw_headers chooses from.
func (r checkReader) http(b []byte, a *authv3.AttributeContext) bool {
	if a.Request == nil {
		a.Request = &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{}}
	}
	http := a.Request.Http
	return eachPayload(b, func(num protowire.Number, b []byte) bool {
		switch num {
		case 3:
			key, value, ok := readPair(b)
			if !ok || !r.names.reads(key) {
				return ok
			}
			if http.Headers == nil {
				http.Headers = make(map[string]string, 4)
			}
			var name, text string
			if !readText(key, &name) || !readText(value, &text) {
				return false
			}
			http.Headers[name] = text
		case 13:
			if http.HeaderMap == nil {
				http.HeaderMap = &corev3.HeaderMap{}
			}
			return eachPayload(b, func(num protowire.Number, b []byte) bool {
				return num != 1 || r.header(b, http.HeaderMap)
			})
		}
		return true
	})
}

// header reads a HeaderValue.
func (r checkReader) header(b []byte, headers *corev3.HeaderMap) bool {
	var key, value, raw []byte
	if !eachPayload(b, func(num protowire.Number, b []byte) bool {
		switch num {
		case 1:
			key = b
		case 2:
			value = b
		case 3:
			raw = b
		}
		return true
	}) {
		return false
	}
	if !r.names.reads(key) {
		return true
	}
	h := &corev3.HeaderValue{RawValue: append([]byte(nil), raw...)}
	headers.Headers = append(headers.Headers, h)
	return readText(key, &h.Key) && readText(value, &h.Value)
}

// extension reads an entry of the context extensions.
func (r checkReader) extension(b []byte, a *authv3.AttributeContext) bool {
	key, value, ok := readPair(b)
	if !ok || string(key) != r.names.EndpointID {
		return ok
	}
	var id string
	if !readText(value, &id) {
		return false
	}
	a.ContextExtensions = map[string]string{r.names.EndpointID: id}
	return true
}

// routeMetadata reads an entry of filter_metadata.
func (r checkReader) routeMetadata(b []byte, a *authv3.AttributeContext) bool {
	key, value, ok := readPair(b)
	if !ok || string(key) != r.names.MetadataNamespace {
		return ok
	}
	fields := map[string]*structpb.Value{}
	a.RouteMetadataContext = &corev3.Metadata{
		FilterMetadata: map[string]*structpb.Struct{r.names.MetadataNamespace: {Fields: fields}},
	}
	return eachPayload(value, func(num protowire.Number, b []byte) bool {
		if num != 1 {
			return true
		}
		key, value, ok := readPair(b)
		if !ok || string(key) != r.names.EndpointID {
			return ok
		}
		num, typ, n := protowire.ConsumeTag(value)
		if num != 3 || typ != protowire.BytesType {
			return false
		}
		text, m := protowire.ConsumeBytes(value[n:])
		if n+m != len(value) {
			return false
		}
		var id string
		if !readText(text, &id) {
			return false
		}
		fields[r.names.EndpointID] = structpb.NewStringValue(id)
		return true
	})
}

// reads reports whether Check reads a request header, or may: readHeader lowers a name that is not ASCII its own way.
func (n *Names) reads(name []byte) bool {
	for _, c := range name {
		if c >= utf8.RuneSelf {
			return true
		}
	}
	return isName(name, n.ClientAddressHeader) || isName(name, headerAuthorization) || isName(name, headerCookie) ||
		isName(name, headerForwardedFor) || isName(name, headerContentType)
}

func isName(name []byte, want string) bool {
	return len(name) == len(want) && strings.EqualFold(string(name), want)
}

// eachPayload calls read with each field of bytes in b, passing over the others as the decoder passes over unknown fields.
// False: b is no encoding of a message, or read said so.
func eachPayload(b []byte, read func(protowire.Number, []byte) bool) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return false
			}
			b = b[n:]
			continue
		}
		payload, n := protowire.ConsumeBytes(b)
		if n < 0 || !read(num, payload) {
			return false
		}
		b = b[n:]
	}
	return true
}

// readPair reads an entry of a map whose values are text or messages. False: it is none, or holds a part twice.
func readPair(b []byte) (key, value []byte, ok bool) {
	seen := 0
	ok = eachPayload(b, func(num protowire.Number, b []byte) bool {
		switch num {
		case 1:
			key = b
		case 2:
			value = b
		}
		seen++
		return seen <= 2
	})
	return key, value, ok
}

// readText reads a string. False: it is not UTF-8.
func readText(b []byte, into *string) bool {
	*into = string(b)
	return utf8.Valid(b)
}

// writeCheck encodes an answer. False: its metadata is none of ours, which the stock codec has to encode.
func writeCheck(resp *authv3.CheckResponse) (mem.BufferSlice, bool) {
	if resp.GetDynamicMetadata() == nil {
		return nil, false
	}
	metadata, size := resp.GetDynamicMetadata().GetFields(), 0
	for key, value := range metadata {
		text, ok := value.GetKind().(*structpb.Value_StringValue)
		if !ok || !utf8.ValidString(key) || !utf8.ValidString(text.StringValue) {
			return nil, false
		}
		size += sizeBytes(sizeEntry(key, text.StringValue))
	}
	rest := &authv3.CheckResponse{Status: resp.GetStatus(), HttpResponse: resp.HttpResponse}
	out := make([]byte, 0, proto.Size(rest)+sizeBytes(size))
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(out, rest)
	if err != nil {
		return nil, false
	}
	out = appendHead(out, 4, size) // dynamic_metadata
	for key, value := range metadata {
		text := value.GetStringValue()
		out = appendHead(out, 1, sizeEntry(key, text)) // fields
		out = appendText(out, 1, key)
		out = appendHead(out, 2, sizeBytes(len(text)))
		out = appendText(out, 3, text) // string_value
	}
	return mem.BufferSlice{mem.SliceBuffer(out)}, true
}

// sizeBytes is the size of a field of n bytes with a number below 16.
func sizeBytes(n int) int { return 1 + protowire.SizeBytes(n) }

// sizeEntry is the size of an entry of a Struct's fields.
func sizeEntry(key, text string) int { return sizeBytes(len(key)) + sizeBytes(sizeBytes(len(text))) }

// appendHead begins a field of n bytes.
func appendHead(b []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(n))
}

func appendText(b []byte, num protowire.Number, text string) []byte {
	return append(appendHead(b, num, len(text)), text...)
}
