package envoy

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// lengthDelimited encodes a field of bytes: a string or a message.
func lengthDelimited[T string | []byte](num protowire.Number, payload T) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), []byte(payload))
}

// rateLimitFrame encodes a RateLimitRequest of one descriptor, which protobuf-go would refuse to for text that is not UTF-8.
func rateLimitFrame(domain string, kv ...string) []byte {
	var descriptor []byte
	for i := 0; i < len(kv); i += 2 {
		entry := slices.Concat(lengthDelimited(1, kv[i]), lengthDelimited(2, kv[i+1]))
		descriptor = append(descriptor, lengthDelimited(1, entry)...)
	}
	return slices.Concat(lengthDelimited(1, domain), lengthDelimited(2, descriptor))
}

// checkFrame encodes a CheckRequest with a header in map mode, and a string in metadata_context and in context_extensions.
func checkFrame(name, value, metadata string) []byte {
	pair := func(k string, v []byte) []byte {
		return slices.Concat(lengthDelimited(1, k), lengthDelimited(2, v))
	}
	http := lengthDelimited(3, pair(name, []byte(value)))
	structure := lengthDelimited(1, pair("user", lengthDelimited(3, metadata)))
	return lengthDelimited(1, slices.Concat(
		lengthDelimited(4, lengthDelimited(2, http)),                   // request.http.headers
		lengthDelimited(10, pair("k", []byte(metadata))),               // context_extensions
		lengthDelimited(11, lengthDelimited(1, pair("ns", structure))), // metadata_context.filter_metadata
	))
}

func TestRLS_25_ValueThatIsNotUTF8ReachesTheEngineRepaired(t *testing.T) {
	t.Parallel()
	asked := make(chan rls.Request, 1)
	engine := admitting()
	engine.decide = func(_ context.Context, r rls.Request) (rls.Result, error) {
		asked <- r
		return rls.Result{Reason: rls.RateLimited, RetryAfter: 1, Document: true}, nil
	}
	s := start(t, engine)
	var resp rlsv3.RateLimitResponse
	err := s.invoke(t, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName,
		rateLimitFrame("shop", "q", "a\xff", "tenant", "acme"), &resp)
	if err != nil {
		t.Fatalf("the call failed, so Envoy would let the request through: %v", err)
	}
	want := []rls.Entry{{Key: "q", Value: "a\uFFFD"}, {Key: "tenant", Value: "acme"}}
	if got := (<-asked).Descriptors[0].Entries; !slices.Equal(got, want) {
		t.Errorf("entries %q, want %q", got, want)
	}
	if resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("overall code %v, want OVER_LIMIT", resp.GetOverallCode())
	}
	if got, want := s.tally.snapshot(), map[string]int{"repaired ratelimit": 1}; !maps.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestCheckWithMetadataThatIsNotUTF8ReachesTheEngine(t *testing.T) {
	t.Parallel()
	asked := make(chan rls.CheckRequest, 1)
	engine := admitting()
	engine.check = func(_ context.Context, r rls.CheckRequest) rls.CheckResult {
		asked <- r
		return rls.CheckResult{Result: rls.Result{Reason: rls.Unauthenticated}}
	}
	s := start(t, engine)
	var resp authv3.CheckResponse
	err := s.invoke(t, authv3.Authorization_Check_FullMethodName, checkFrame("authorization", "Bearer a\xff", "\xc3\x28"), &resp)
	if err != nil {
		t.Fatalf("the call failed: %v", err)
	}
	if got, want := (<-asked).Credentials.Authorization, []string{"Bearer a\uFFFD"}; !slices.Equal(got, want) {
		t.Errorf("Authorization %q, want %q", got, want)
	}
	if got, want := s.tally.snapshot(), map[string]int{"repaired ext_authz": 1}; !maps.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestMalformedMessageStaysAnError(t *testing.T) {
	t.Parallel()
	s := start(t, admitting())
	whole := rateLimitFrame("shop", "q", "a\xff")
	for _, tt := range []struct {
		name  string
		frame []byte
	}{
		{"cut in the middle", whole[:len(whole)-1]},
		{"a group that ends nowhere", slices.Concat(whole, protowire.AppendTag(nil, 9, protowire.StartGroupType))},
		{"a field number of 0", slices.Concat(whole, []byte{0x02, 0x00})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := s.invoke(t, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, tt.frame, &rlsv3.RateLimitResponse{})
			if status.Code(err) != codes.Internal {
				t.Errorf("error %v, want INTERNAL", err)
			}
		})
	}
}

// A small message of very many parts would take a gigabyte.
func TestMessageOfManyParts(t *testing.T) {
	t.Parallel()
	s := start(t, admitting())
	const size = 4<<20 - 1000
	many := map[string][]byte{
		"descriptors": slices.Concat(rateLimitFrame("shop", "q", "a"), bytes.Repeat([]byte{0x12, 0}, size/2)),
		"entries":     lengthDelimited(2, bytes.Repeat([]byte{0x0a, 0}, size/2)),
	}
	for name, frame := range many {
		err := s.invoke(t, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, frame, &rlsv3.RateLimitResponse{})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "parts") {
			t.Errorf("%s: %v, want INTERNAL", name, err)
		}
	}
	extensions := lengthDelimited(1, bytes.Repeat(lengthDelimited(10, ""), size/2))
	err := s.invoke(t, authv3.Authorization_Check_FullMethodName, extensions, &authv3.CheckResponse{})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "parts") {
		t.Errorf("context extensions: %v, want INTERNAL", err)
	}
	// What a client can make Envoy send is far below: a body of some megabytes, and metadata with 30 000 values.
	values := make([]any, 30_000)
	for i := range values {
		values[i] = ""
	}
	list, err := structpb.NewStruct(map[string]any{"claims": values})
	if err != nil {
		t.Fatal(err)
	}
	check := checking("free", map[string]string{"a": "b"})
	check.GetAttributes().GetRequest().GetHttp().Body = strings.Repeat("x", 3<<20)
	check.GetAttributes().MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"jwt": list}}
	if err := s.invoke(t, authv3.Authorization_Check_FullMethodName, marshal(t, check), &authv3.CheckResponse{}); err != nil {
		t.Errorf("a large question: %v", err)
	}
}

func TestRepair(t *testing.T) {
	t.Parallel()
	rateLimit := (*rlsv3.RateLimitRequest)(nil).ProtoReflect().Descriptor()
	check := (*authv3.CheckRequest)(nil).ProtoReflect().Descriptor()
	long := string(bytes.Repeat([]byte{0xff}, 60)) // its length takes one byte before the repair and two after
	for _, tt := range []struct {
		name    string
		message protoreflect.MessageDescriptor
		in      []byte
		want    []byte // nil: left alone
	}{
		{"nothing", rateLimit, nil, nil},
		{"UTF-8", rateLimit, rateLimitFrame("shöp", "k", "\u20ac\U0001F600\uFFFD\x00"), nil},
		{"a top-level string", rateLimit, rateLimitFrame("\xff"), rateLimitFrame("\uFFFD")},
		{"a nested string", rateLimit, rateLimitFrame("d", "k\xc3", "a\xff\xfeb"), rateLimitFrame("d", "k\uFFFD", "a\uFFFD\uFFFDb")},
		{
			"a surrogate, an overlong NUL", rateLimit, rateLimitFrame("d", "k", "\xed\xa0\x80\xc0\x80"),
			rateLimitFrame("d", "k", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"),
		},
		{
			"a length that grows by a byte", rateLimit, rateLimitFrame("d", "k", long),
			rateLimitFrame("d", "k", string(bytes.Repeat([]byte("\uFFFD"), 60))),
		},
		{"maps and a Struct", check, checkFrame("x-\xff", "v\xff", "\xff"), checkFrame("x-\uFFFD", "v\uFFFD", "\uFFFD")},
		{"bytes are not text", check, lengthDelimited(1, lengthDelimited(4, lengthDelimited(2, lengthDelimited(12, "\xff")))), nil},
		{"an unknown field is not text", rateLimit, lengthDelimited(99, "\xff"), nil},
		{
			"an unknown field beside text", rateLimit, slices.Concat(lengthDelimited(99, "\xff"), lengthDelimited(1, "\xff")),
			slices.Concat(lengthDelimited(99, "\xff"), lengthDelimited(1, "\uFFFD")),
		},
		{"no encoding", rateLimit, []byte{0x0a, 0x05, 0xff}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, changed := repair(tt.in, tt.message)
			if changed != (tt.want != nil) || !bytes.Equal(got, tt.want) {
				t.Errorf("repair(%x) = %x, %v; want %x", tt.in, got, changed, tt.want)
			}
		})
	}
}

// Nested as deeply as the decoder takes it, a repair must stay linear: level by level copying would take minutes.
func TestRepairDeeplyNested(t *testing.T) {
	t.Parallel()
	value := lengthDelimited(3, "\xff") // Value.string_value
	for range 4990 {
		value = lengthDelimited(6, lengthDelimited(1, value)) // Value.list_value.values
	}
	frame := lengthDelimited(1, lengthDelimited(11, lengthDelimited(1, slices.Concat(
		lengthDelimited(1, "ns"), lengthDelimited(2, lengthDelimited(1, slices.Concat(
			lengthDelimited(1, "k"), lengthDelimited(2, value))))))))
	var req authv3.CheckRequest
	fixed, changed := repair(frame, req.ProtoReflect().Descriptor())
	if err := proto.Unmarshal(fixed, &req); err != nil || !changed {
		t.Fatalf("changed %v, decoding: %v", changed, err)
	}
	v := req.GetAttributes().GetMetadataContext().GetFilterMetadata()["ns"].GetFields()["k"]
	for v.GetListValue() != nil {
		v = v.GetListValue().GetValues()[0]
	}
	if v.GetStringValue() != "\uFFFD" {
		t.Errorf("the innermost value is %q", v.GetStringValue())
	}
}

// defaultNames are the names of a configuration that sets none.
func defaultNames() *Names { return new(Names{}.withDefaults()) }

// decode runs the server's codec, and reports how many repairs it counted.
func decode(data []byte, msg proto.Message) (repairs int, err error) {
	c := newCodec(defaultNames(), func(rls.Service) { repairs++ })
	return repairs, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, msg)
}

// FuzzCodec compares the codec with protobuf-go's decoder without its UTF-8 check, which the same messages have once their
// files are declared proto2: what that one takes the codec takes, it leaves only UTF-8, and what was UTF-8 stays as it was.
func FuzzCodec(f *testing.F) {
	lenient := withoutUTF8Check(f, &rlsv3.RateLimitRequest{})
	if err := proto.Unmarshal(rateLimitFrame("shop", "q", "a\xff"), dynamicpb.NewMessage(lenient)); err != nil {
		f.Fatalf("the decoder to compare with checks UTF-8 too: %v", err)
	}
	f.Add(rateLimitFrame("shop", "q", "a\xff"))
	f.Add(rateLimitFrame("shop", "tenant", "acme", "endpoint_id", "orders.create"))
	f.Add(slices.Concat(lengthDelimited(99, "\xff"), lengthDelimited(1, "\xff"), []byte{0x18, 0x05}))
	f.Add([]byte{0x0a, 0x05, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, strict := &rlsv3.RateLimitRequest{}, &rlsv3.RateLimitRequest{}
		strictErr := proto.Unmarshal(data, strict)
		repairs, err := decode(data, got)
		if lenientErr := proto.Unmarshal(data, dynamicpb.NewMessage(lenient)); lenientErr == nil && err != nil {
			t.Fatalf("refused with %v what a decoder without UTF-8 check takes", err)
		}
		if err != nil {
			return
		}
		if (repairs == 1) != (strictErr != nil) {
			t.Errorf("counted %d repairs; the stock decoder says %v", repairs, strictErr)
		}
		if strictErr == nil && !cmp.Equal(got, strict, protocmp.Transform()) {
			t.Fatalf("changed a valid message:\n%s", cmp.Diff(strict, got, protocmp.Transform()))
		}
		eachString(got.ProtoReflect(), func(s string) {
			if !utf8.ValidString(s) {
				t.Fatalf("%q is left", s)
			}
		})
	})
}

// withoutUTF8Check returns the descriptor of msg with every file that it needs declared proto2.
func withoutUTF8Check(t testing.TB, msg proto.Message) protoreflect.MessageDescriptor {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var visit func(protoreflect.FileDescriptor)
	visit = func(fd protoreflect.FileDescriptor) {
		if seen[fd.Path()] {
			return
		}
		seen[fd.Path()] = true
		for i := range fd.Imports().Len() {
			visit(fd.Imports().Get(i).FileDescriptor)
		}
		file := protodesc.ToFileDescriptorProto(fd)
		if fd.Syntax() == protoreflect.Proto3 {
			file.Syntax = new("proto2")
		}
		set.File = append(set.File, file)
	}
	name := msg.ProtoReflect().Descriptor().FullName()
	visit(msg.ProtoReflect().Descriptor().ParentFile())
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatalf("building the lenient %s: %v", name, err)
	}
	d, err := files.FindDescriptorByName(name)
	if err != nil {
		t.Fatalf("finding the lenient %s: %v", name, err)
	}
	return d.(protoreflect.MessageDescriptor)
}

// eachString calls f with every string in m.
func eachString(m protoreflect.Message, f func(string)) {
	one := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
		switch fd.Kind() {
		case protoreflect.StringKind:
			f(v.String())
		case protoreflect.MessageKind:
			eachString(v.Message(), f)
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				one(fd, v.List().Get(i))
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				one(fd.MapKey(), k.Value())
				one(fd.MapValue(), v)
				return true
			})
		default:
			one(fd, v)
		}
		return true
	})
}
