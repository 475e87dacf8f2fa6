package envoy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write the golden files anew; read the difference before committing it")

// golden compares an answer with testdata/name.golden: the message as JSON, and below it the error document that it carries.
func golden(t *testing.T, name string, msg proto.Message) {
	t.Helper()
	if _, err := proto.Marshal(msg); err != nil {
		t.Fatalf("the answer cannot be sent: %v", err)
	}
	msg = proto.Clone(msg)
	var document []byte
	switch msg := msg.(type) {
	case *rlsv3.RateLimitResponse:
		document, msg.RawBody = msg.RawBody, nil
	case *authv3.CheckResponse:
		if denied := msg.GetDeniedResponse(); denied != nil {
			document, denied.Body = []byte(denied.Body), ""
		}
	}
	spaced, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg)
	if err != nil {
		t.Fatalf("the answer cannot be shown: %v", err)
	}
	var got bytes.Buffer // protojson's own spacing changes from build to build
	if err := json.Indent(&got, spaced, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	if len(document) > 0 {
		if err := json.Indent(&got, document, "", "  "); err != nil {
			t.Fatalf("the body is no JSON: %v", err)
		}
		got.WriteByte('\n')
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("no golden file (go test ./envoy -update): %v", err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs; got\n%s", path, &got)
	}
}
