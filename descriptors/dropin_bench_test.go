package descriptors_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// manyValues is a drop-in file with that many exact values and 16 patterns on one level.
func manyValues(values int) descriptors.File {
	var text strings.Builder
	text.WriteString("domain: shop\ndescriptors:\n")
	for i := range 16 {
		fmt.Fprintf(&text, "  - key: plan\n    value: p%d-*-x\n    rate_limit: {unit: minute, requests_per_unit: 5}\n", i)
	}
	for i := range values {
		fmt.Fprintf(&text, "  - key: plan\n    value: v%d\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n", i)
	}
	return file("shop.yaml", text.String())
}

// BenchmarkMatch finds the rule and the key of one descriptor among so many exact values.
func BenchmarkMatch(b *testing.B) {
	for _, values := range []int{10, 10_000} {
		b.Run(fmt.Sprint(values), func(b *testing.B) {
			set, err := descriptors.Parse([]descriptors.File{manyValues(values)}, dropInOnly)
			if err != nil {
				b.Fatal(err)
			}
			domain, _ := set.DropIn("shop")
			// One after the other in memory, since a request that has just been read is in the processor's cache.
			requests := make([]descriptors.Entry, values)
			var text strings.Builder
			for i := range requests {
				fmt.Fprintf(&text, "v%d", i)
			}
			for i, rest := 0, text.String(); i < values; i++ {
				n := len(fmt.Sprintf("v%d", i))
				requests[i], rest = descriptors.Entry{Key: "plan", Value: rest[:n]}, rest[n:]
			}
			var m descriptors.Match
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				i %= values
				if !domain.Match(requests[i:i+1], &m) || m.Key(0) == "" {
					b.Fatal("no match")
				}
			}
		})
	}
}

func BenchmarkLoadDropIn(b *testing.B) {
	f := manyValues(10_000)
	for b.Loop() {
		if _, err := descriptors.Parse([]descriptors.File{f}, dropInOnly); err != nil {
			b.Fatal(err)
		}
	}
}
