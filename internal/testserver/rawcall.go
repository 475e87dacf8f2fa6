package testserver

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// CallHeader is what a gRPC call over HTTP/2 begins with.
func CallHeader(authority, path string) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: authority},
		{Name: ":path", Value: path},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
}

// RawCall makes one gRPC call with any :path, also one that no client sends, over HTTP/2 frames of its own. It returns the
// call's grpc-status and the message of the answer. No status: the stream was reset or answered with an HTTP error, so it
// never reached a handler.
func RawCall(t testing.TB, address, path string, message []byte) (status string, answer []byte) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, h := range CallHeader(address, path) {
		if err := encoder.WriteField(h); err != nil {
			t.Fatal(err)
		}
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // not compressed, and its length
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
				return status, answer[min(len(answer), len(frame)):]
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "", nil
		}
	}
}
