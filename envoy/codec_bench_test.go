package envoy

import (
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// BenchmarkCodec reads a question from the wire and writes an answer to it.
func BenchmarkCodec(b *testing.B) {
	c := newCodec(&Names{}, func(rls.Service) {})
	wire, err := c.Marshal(question("shop", entries("tenant", "acme", "endpoint_id", "orders.create")))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Unmarshal(wire, new(rlsv3.RateLimitRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		answer := &rlsv3.RateLimitResponse{
			OverallCode: rlsv3.RateLimitResponse_OK,
			Statuses:    []*rlsv3.RateLimitResponse_DescriptorStatus{{Code: rlsv3.RateLimitResponse_OK, LimitRemaining: 9}},
		}
		b.ReportAllocs()
		for b.Loop() {
			data, err := c.Marshal(answer)
			if err != nil {
				b.Fatal(err)
			}
			data.Free()
		}
	})
}
