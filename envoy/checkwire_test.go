package envoy

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// asked is what a question asks, in an order of its own: that of a map is none.
type asked struct {
	question rls.CheckRequest
	isGRPC   bool
}

func ask(req *authv3.CheckRequest) (a asked) {
	a.question, a.isGRPC = newAuthorizationService().checkRequest(req)
	c := &a.question.Credentials
	for _, values := range [][]string{c.Authorization, c.Cookies, c.ForwardedFor, c.ClientAddress} {
		slices.SortFunc(values, cmp.Compare)
	}
	return a
}

// whole is a question as Envoy asks it, with all that it tells.
func whole() *authv3.CheckRequest {
	peer := func(host string) *authv3.AttributeContext_Peer {
		return &authv3.AttributeContext_Peer{
			Service: "front", Principal: "spiffe://x", Labels: map[string]string{"a": "b"},
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 4000},
			}}},
		}
	}
	route := func(id any) *corev3.Metadata {
		fields, err := structpb.NewStruct(map[string]any{"endpoint_id": id, "other": []any{1.0, "x", nil}})
		if err != nil {
			panic(err)
		}
		return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"sentinel": fields, "envoy.lb": fields}}
	}
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Source: peer("192.0.2.17"), Destination: peer("192.0.2.1"),
		Request: &authv3.AttributeContext_Request{
			Time: timestamppb.Now(),
			Http: &authv3.AttributeContext_HttpRequest{
				Id: "17", Method: "GET", Path: "/orders", Host: "shop.example", Scheme: "https", Protocol: "HTTP/2", Size: -1,
				Headers: map[string]string{
					":path": "/orders", "authorization": "Bearer t", "cookie": "a=b; c=d", "x-forwarded-for": "192.0.2.9",
					"x-sentinel-client-ip": "192.0.2.8", "content-type": "application/grpc", "accept": "*/*",
				},
			},
		},
		ContextExtensions:    map[string]string{"endpoint_id": "extended", "other": "x"},
		MetadataContext:      route("claimed"),
		RouteMetadataContext: route("orders.create"),
	}}
}

func TestCheckIsReadForWhatItIsAskedFor(t *testing.T) {
	t.Parallel()
	want := asked{isGRPC: true}
	want.question.EndpointID = "orders.create"
	want.question.Credentials.Peer = peerAddress(whole().GetAttributes().GetSource().GetAddress())
	c := &want.question.Credentials
	c.Authorization, c.Cookies = []string{"Bearer t"}, []string{"a=b; c=d"}
	c.ForwardedFor, c.ClientAddress = []string{"192.0.2.9"}, []string{"192.0.2.8"}

	var got authv3.CheckRequest
	if !(checkReader{defaultNames()}).read(marshal(t, whole()), &got) {
		t.Fatal("left to the stock codec")
	}
	if diff := gocmp.Diff(want, ask(&got), gocmp.AllowUnexported(asked{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("another question (- want, + got):\n%s", diff)
	}
	if n := len(got.GetAttributes().GetRequest().GetHttp().GetHeaders()); n != 5 {
		t.Errorf("%d headers were read, want 5", n)
	}
	if got.GetAttributes().GetDestination() != nil || got.GetAttributes().GetMetadataContext() != nil {
		t.Error("what nobody asks for was read")
	}
}

// FuzzCheckCodec compares with the stock decoder: of whatever that one takes, as it is or repaired, the same is asked. What it
// takes unrepaired is not counted as repaired.
func FuzzCheckCodec(f *testing.F) {
	f.Add(checkFrame("x-\xff", "v\xff", "\xff"))
	f.Add(checkFrame("authorization", "Bearer t", "plain"))
	f.Add(checkFrame("Authorization", "\xff", "plain"))
	f.Add(checkFrame("coo\u212aie", "a=b", "plain"))
	f.Add(marshal(f, whole()))
	f.Add(slices.Concat(marshal(f, whole()), marshal(f, whole())))
	f.Add(slices.Concat(marshal(f, whole()), marshal(f, checking("free", map[string]string{"cookie": "x=y"}))))
	f.Add(marshal(f, withRaw("login", rawHeader("x-sentinel-client-ip", "2001:db8::1"), rawHeader("cookie", "\xff"))))
	f.Add(marshal(f, from(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/envoy"}}})))
	for _, id := range []*structpb.Value{nil, structpb.NewNumberValue(1), structpb.NewStringValue(""), structpb.NewNullValue()} {
		req := whole()
		req.Attributes.RouteMetadataContext.FilterMetadata["sentinel"].Fields["endpoint_id"] = id
		f.Add(marshal(f, req))
	}
	f.Fuzz(func(t *testing.T, data []byte) { asksTheSame(t, data) })
}

// asksTheSame fails unless the server's codec makes of data what the stock one does, which is told to repair it first.
func asksTheSame(t *testing.T, data []byte) {
	t.Helper()
	var want, got authv3.CheckRequest
	wantErr := proto.Unmarshal(data, &want)
	valid := wantErr == nil
	if fixed, changed := repair(data, want.ProtoReflect().Descriptor()); changed {
		want.Reset()
		wantErr = proto.Unmarshal(fixed, &want)
	}
	repairs, err := decode(data, &got)
	if wantErr != nil {
		return // nothing to compare with: it may be taken where the fault is in what nobody reads
	}
	if err != nil {
		t.Errorf("refused with %v what the stock codec takes", err)
	}
	if valid && repairs > 0 {
		t.Errorf("a valid message counts as repaired")
	}
	if diff := gocmp.Diff(ask(&want), ask(&got), gocmp.AllowUnexported(asked{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("another question (- stock, + ours):\n%s", diff)
	}
}

// TestCheckReadsAnyEncoding: fields in any order and number, as no encoder writes them: messages in parts, which a decoder
// merges, several kinds of an address or a value, parts of a map's entry missing or twice, other wire types, unknown fields.
func TestCheckReadsAnyEncoding(t *testing.T) {
	t.Parallel()
	request := (*authv3.CheckRequest)(nil).ProtoReflect().Descriptor()
	route := (*authv3.AttributeContext)(nil).ProtoReflect().Descriptor().Fields().ByName("route_metadata_context")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(5_000) {
		e := encoder{rand.New(rand.NewPCG(seed, i))}
		data := e.message(request)
		if i%2 == 0 { // of what is nested deepest there would be few
			data = lengthDelimited(1, e.field(route))
		}
		asksTheSame(t, data)
		if t.Failed() {
			t.Fatalf("message %x", data)
		}
	}
}

// readFields are the fields that lead to what Check reads, and some beside them.
var readFields = map[protoreflect.Name]bool{
	"attributes": true, "source": true, "address": true, "socket_address": true, "pipe": true, "port_value": true,
	"request": true, "http": true, "headers": true, "header_map": true, "key": true, "value": true, "raw_value": true,
	"context_extensions": true, "metadata_context": true, "route_metadata_context": true, "filter_metadata": true,
	"fields": true, "string_value": true, "number_value": true, "list_value": true,
}

// encoder draws encodings.
type encoder struct{ *rand.Rand }

func oneOf[T any](e encoder, of ...T) T { return of[e.IntN(len(of))] }

func (e encoder) message(of protoreflect.MessageDescriptor) (b []byte) {
	var fields []protoreflect.FieldDescriptor
	for i := range of.Fields().Len() {
		if fd := of.Fields().Get(i); readFields[fd.Name()] {
			fields = append(fields, fd)
		}
	}
	if of.IsMapEntry() && e.IntN(8) > 0 {
		return slices.Concat(e.field(fields[0]), e.field(fields[1]))
	}
	for range 1 + e.IntN(5) {
		if len(fields) == 0 || e.IntN(100) == 0 {
			b = append(b, e.odd()...)
		} else {
			b = append(b, e.field(oneOf(e, fields...))...)
		}
	}
	return b
}

func (e encoder) field(fd protoreflect.FieldDescriptor) []byte {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return lengthDelimited(fd.Number(), e.message(fd.Message()))
	case protoreflect.StringKind, protoreflect.BytesKind:
		return lengthDelimited(fd.Number(), oneOf(e, textsOf(fd)...)+oneOf(e, slices.Concat([]string{"\xff"}, make([]string, 50))...))
	case protoreflect.DoubleKind:
		return protowire.AppendFixed64(protowire.AppendTag(nil, fd.Number(), protowire.Fixed64Type), 0)
	}
	return protowire.AppendVarint(protowire.AppendTag(nil, fd.Number(), protowire.VarintType), 1)
}

// odd draws a field that need not be of the message, or of the type that its number has there.
func (e encoder) odd() []byte {
	num := oneOf[protowire.Number](e, 1, 2, 3, 4, 10, 13, 99, protowire.MaxValidNumber)
	group := slices.Concat(protowire.AppendTag(nil, num, protowire.StartGroupType), lengthDelimited(num, "cookie"),
		protowire.AppendTag(nil, num, protowire.EndGroupType))
	return oneOf(e,
		protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), 1<<63),
		protowire.AppendFixed32(protowire.AppendTag(nil, num, protowire.Fixed32Type), 7),
		group, group[:len(group)-1],
		protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.BytesType), 1<<63),
		lengthDelimited(num, "cookie"),
	)
}

// textsOf are what a field may hold. What Check looks for is among them, and what it must not take for that.
func textsOf(fd protoreflect.FieldDescriptor) []string {
	if fd.Name() != "key" {
		return []string{"192.0.2.17", "application/grpc", "free", "2001:db8::1", ""}
	}
	switch fd.Parent().Name() {
	case "FilterMetadataEntry":
		return []string{"sentinel", "sentinel", "envoy.lb", ""}
	case "FieldsEntry", "ContextExtensionsEntry":
		return []string{"endpoint_id", "endpoint_id", "Endpoint_ID", ""}
	}
	return []string{
		"cookie", "Cookie", "coo\u212aie", "authorization", "x-forwarded-for", "X-Sentinel-Client-IP", "content-type", "accept", "",
	}
}

// What nobody reads is not looked into: neither is it refused, nor does it count as repaired.
func TestCheckWithUnreadTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	var got authv3.CheckRequest
	repairs, err := decode(checkFrame("user-agent", "a\xff", "\xff"), &got)
	if err != nil || repairs > 0 {
		t.Errorf("%v, %d repairs, want neither", err, repairs)
	}
}

// An answer means on the wire what it means in memory.
func TestCheckAnswerOnTheWire(t *testing.T) {
	t.Parallel()
	fields := func(kv ...string) *structpb.Struct {
		out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := 0; i < len(kv); i += 2 {
			out.Fields[kv[i]] = structpb.NewStringValue(kv[i+1])
		}
		return out
	}
	long := string(make([]byte, 300))
	for name, resp := range map[string]*authv3.CheckResponse{
		"nothing":             {},
		"no fields":           {DynamicMetadata: fields()},
		"all":                 {DynamicMetadata: fields("tenant", "acme", "empty", "", "", "no key", "long", long, long, long)},
		"values of our own":   newAuthorizationService().response(&rls.CheckResult{Result: rls.Result{Allowed: true, Reason: rls.Allowed, Policy: "orders"}}, false),
		"a refusal":           newAuthorizationService().response(&rls.CheckResult{Result: rls.Result{Reason: rls.Unauthenticated, DecisionID: "1"}}, true),
		"metadata of a kind":  {DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(1), "none": {}}}},
		"response with no ok": {HttpResponse: &authv3.CheckResponse_OkResponse{}, DynamicMetadata: fields("a", "b")},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := newCodec(defaultNames(), func(rls.Service) {}).Marshal(resp)
			if err != nil {
				t.Fatal(err)
			}
			var got, want authv3.CheckResponse
			stock, err := proto.Marshal(resp)
			if err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(stock, &want); err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(data.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(&want, &got, protocmp.Transform()); diff != "" {
				t.Errorf("another answer (- stock, + ours):\n%s", diff)
			}
		})
	}
	broken := &authv3.CheckResponse{DynamicMetadata: fields("a", "\xff")}
	if _, err := newCodec(defaultNames(), func(rls.Service) {}).Marshal(broken); err == nil {
		t.Error("text that is not UTF-8 was sent")
	}
}

// Entries of a map come with their parts in any order, and a part more than once.
func TestPairs(t *testing.T) {
	t.Parallel()
	key, value := lengthDelimited(1, "k"), lengthDelimited(2, "v")
	for _, tt := range []struct {
		name  string
		entry []byte
		ok    bool
	}{
		{"as written", slices.Concat(key, value), true},
		{"the other way round", slices.Concat(value, key), true},
		{"twice", slices.Concat(key, value, value), false},
		{"with a number", slices.Concat(key, value, protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 7)), true},
		{"cut", slices.Concat(key, value)[:4], false},
	} {
		k, v, ok := readPair(tt.entry)
		if ok != tt.ok || ok && (string(k) != "k" || string(v) != "v") {
			t.Errorf("%s: %q %q %v, want it %v", tt.name, k, v, ok, tt.ok)
		}
	}
}
