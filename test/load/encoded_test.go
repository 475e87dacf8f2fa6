package load

import (
	"context"
	"testing"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Both ways to ask put the same questions and learn the same.
func TestRateLimitQuestionAsksAsRateLimit(t *testing.T) {
	t.Parallel()
	conns := serve(t, 1, func(_ context.Context, tenant string) (rlsv3.RateLimitResponse_Code, error) {
		switch tenant[len(tenant)-1] {
		case '1':
			return rlsv3.RateLimitResponse_OVER_LIMIT, nil
		case '2':
			return rlsv3.RateLimitResponse_UNKNOWN, nil
		case '3':
			return rlsv3.RateLimitResponse_OK, status.Error(codes.Unavailable, "on purpose")
		}
		return rlsv3.RateLimitResponse_OK, nil
	})
	const tenants, calls = 10, 100
	encoded := question(t, "e", tenants).Ask()
	stock, ended := RateLimit("e", tenants), make(map[Outcome]int)
	for i := range uint64(calls) {
		want, wantErr := stock(t.Context(), conns[0], i)
		got, gotErr := encoded(t.Context(), conns[0], i)
		if got != want || status.Code(gotErr) != status.Code(wantErr) {
			t.Errorf("question %d: %v, %v, want %v, %v", i, got, gotErr, want, wantErr)
		}
		ended[outcomeOf(got, gotErr)]++
	}
	if len(ended) != 3 {
		t.Errorf("of %d questions so many ended in each outcome: %v, want some in three", calls, ended)
	}
	if _, err := RateLimitQuestion("\xff", 1); err == nil {
		t.Error("an endpoint that protobuf cannot encode is asked about")
	}
}

// verbatim is the codec of a server that reads and answers encodings as they are.
type verbatim struct{ encodedCodec }

func (verbatim) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// An answer that is no message is an error and not a no.
func TestEncodedAnswerIsNoMessage(t *testing.T) {
	t.Parallel()
	answer := func(_ any, stream grpc.ServerStream) error {
		var question []byte
		if err := stream.RecvMsg(&question); err != nil {
			return err
		}
		return stream.SendMsg([]byte{0x08}) // a field without its value
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(answer), grpc.ForceServerCodecV2(verbatim{}))
	conns := connectTo(t, server, 1)
	check, err := CheckEach("e", func(uint64) string { return "token" })
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]Ask{"RateLimitQuestion": question(t, "e", 1).Ask(), "CheckEach": check.Ask()} {
		if allowed, err := ask(t.Context(), conns[0], 0); allowed || status.Code(err) != codes.Internal {
			t.Errorf("%s: %v, %v, want an error of the encoding", name, allowed, err)
		}
	}
}

// answers are encodings and what is read of them as a RateLimitResponse and as a CheckResponse.
var answers = []struct {
	name             string
	encoding         []byte
	overall, allowed bool
}{
	{"empty", nil, false, true},
	{"OK", []byte{0x08, 1}, true, true},
	{"over limit", []byte{0x08, 2}, false, true},
	{"the last code counts", []byte{0x08, 2, 0x08, 1}, true, true},
	{"the last code counts, not the first", []byte{0x08, 1, 0x08, 2}, false, true},
	{"a long encoding of 1", []byte{0x08, 0x81, 0x80, 0x00}, true, true},
	{"a number whose lower 32 bits are 1", []byte{0x08, 0x81, 0x80, 0x80, 0x80, 0x10}, true, true},
	{"unknown fields around it", []byte{0x7a, 2, 'h', 'i', 0x08, 1, 0x79, 1, 2, 3, 4, 5, 6, 7, 8}, true, true},
	{"another type of the field", []byte{0x0d, 1, 0, 0, 0}, false, true},
	{"an empty status", []byte{0x0a, 0}, false, true},
	{"a status of 16", []byte{0x0a, 2, 0x08, 16}, false, false},
	{"a status of 16, and its message later", []byte{0x0a, 2, 0x08, 16, 0x0a, 3, 0x12, 1, 'x'}, false, false},
	{"a status of 16, and of 0 later", []byte{0x0a, 2, 0x08, 16, 0x0a, 2, 0x08, 0}, false, true},
	{"a long encoding of 0", []byte{0x0a, 3, 0x08, 0x80, 0x00}, false, true},
}

func TestAnswersAreReadAsProtobufReadsThem(t *testing.T) {
	t.Parallel()
	for _, tt := range answers {
		overall, err := overallOK(tt.encoding)
		if overall != tt.overall || err != nil {
			t.Errorf("%s as a RateLimitResponse: %v, %v, want %v", tt.name, overall, err, tt.overall)
		}
		allowed, err := statusOK(tt.encoding)
		if allowed != tt.allowed || err != nil {
			t.Errorf("%s as a CheckResponse: %v, %v, want %v", tt.name, allowed, err, tt.allowed)
		}
	}
	for _, broken := range [][]byte{{0x08}, {0x08, 0x80}, {0x00, 1}, {0x0a, 5, 1}, {0x0f, 0}} {
		if _, err := overallOK(broken); err == nil {
			t.Errorf("%x is read as a RateLimitResponse", broken)
		}
		if _, err := statusOK(broken); err == nil {
			t.Errorf("%x is read as a CheckResponse", broken)
		}
	}
	if allowed, err := statusOK([]byte{0x0a, 1, 0x08}); allowed || err == nil {
		t.Errorf("a status that is no message is read as %v", allowed)
	}
}

// Whatever protobuf takes is read alike.
func FuzzAnswers(f *testing.F) {
	for _, tt := range answers {
		f.Add(tt.encoding)
	}
	f.Fuzz(func(t *testing.T, encoding []byte) {
		var rls rlsv3.RateLimitResponse
		if proto.Unmarshal(encoding, &rls) == nil {
			if got, err := overallOK(encoding); got != (rls.GetOverallCode() == rlsv3.RateLimitResponse_OK) || err != nil {
				t.Errorf("%x: %v, %v, want %v", encoding, got, err, rls.GetOverallCode())
			}
		}
		var auth authv3.CheckResponse
		if proto.Unmarshal(encoding, &auth) == nil {
			if got, err := statusOK(encoding); got != (codes.Code(auth.GetStatus().GetCode()) == codes.OK) || err != nil {
				t.Errorf("%x: %v, %v, want %v", encoding, got, err, auth.GetStatus())
			}
		}
	})
}
