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

// BenchmarkMatch finds the rule and the key of one descriptor among so many exact values. It asks for a thousand of them
// in turn, spread over all, or for all when there are fewer: traffic has its regulars.
func BenchmarkMatch(b *testing.B) {
	for _, values := range []int{10, 10_000} {
		b.Run(fmt.Sprint(values), func(b *testing.B) {
			set, err := descriptors.Parse([]descriptors.File{manyValues(values)}, dropInOnly)
			if err != nil {
				b.Fatal(err)
			}
			domain, _ := set.DropIn("shop")
			requests := spread(values, min(values, 1000))
			var m descriptors.Match
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				i %= len(requests)
				if !domain.Match(requests[i:i+1], &m) || m.Key(0) == "" {
					b.Fatal("no match")
				}
			}
		})
	}
}

// spread returns n of the values, one after the other in memory: a request that has just been read is in the processor's
// cache.
func spread(values, n int) []descriptors.Entry {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("v%d", i*values/n)
	}
	text, requests := strings.Join(names, ""), make([]descriptors.Entry, n)
	for i, name := range names {
		requests[i], text = descriptors.Entry{Key: "plan", Value: text[:len(name)]}, text[len(name):]
	}
	return requests
}

func BenchmarkLoadDropIn(b *testing.B) {
	f := manyValues(10_000)
	for b.Loop() {
		if _, err := descriptors.Parse([]descriptors.File{f}, dropInOnly); err != nil {
			b.Fatal(err)
		}
	}
}
