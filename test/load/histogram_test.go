package load

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistogram(t *testing.T) {
	t.Parallel()
	var empty Histogram
	if got := empty.Quantile(0.5); got != 0 {
		t.Errorf("median of nothing is %v, want 0", got)
	}
	var h Histogram
	for _, d := range []time.Duration{5, 1, 3, 2, 4} { // below 128 ns every value has a bucket of its own
		h.Record(d)
	}
	for _, tt := range []struct {
		q    float64
		want time.Duration
	}{{0, 1}, {0.2, 1}, {0.4, 2}, {0.5, 3}, {0.8, 4}, {1, 5}} {
		if got := h.Quantile(tt.q); got != tt.want {
			t.Errorf("quantile %v of 1 to 5 is %v, want %v", tt.q, got, tt.want)
		}
	}
	h.Record(-time.Second)
	if got := h.Quantile(0); got != 0 {
		t.Errorf("a negative time counts as %v, want 0", got)
	}
	h.Record(math.MaxInt64)
	if h.Max() != math.MaxInt64 || h.Quantile(1) != math.MaxInt64 {
		t.Errorf("the longest time reads as max %v, quantile %v", h.Max(), h.Quantile(1))
	}
}

// Every value lies in exactly one bucket, and a bucket's edge is less than 1/64 above its values.
func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, math.MaxInt64).Draw(t, "n") >> rapid.IntRange(0, 62).Draw(t, "shift")
		b := bucketOf(n)
		edge := edgeOf(b)
		if n > edge || b > 0 && n <= edgeOf(b-1) {
			t.Fatalf("%d is in bucket %d, from %d to %d", n, b, edgeOf(b-1)+1, edge)
		}
		if float64(edge-n) > float64(n)/64 {
			t.Fatalf("%d reads as %d", n, edge)
		}
	})
}

// A quantile is never below the true one, less than 1.6 % above it, and does not fall as q rises.
func TestHistogramQuantile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 200).Draw(t, "values")
		var h Histogram
		for _, v := range values {
			h.Record(time.Duration(v))
		}
		slices.Sort(values)
		last := time.Duration(-1)
		for q := 0.0; q <= 1; q += 0.05 {
			got := h.Quantile(q)
			rank := min(max(int(q*float64(len(values))+0.5), 1), len(values))
			want := values[rank-1]
			if int64(got) < want || float64(int64(got)-want) > float64(want)/64 || got < last {
				t.Fatalf("quantile %v is %d after %d, want %d", q, got, last, want)
			}
			last = got
		}
	})
}

func TestHistogramAdd(t *testing.T) {
	t.Parallel()
	var both, one, other Histogram
	for i := range 1000 {
		d := time.Duration(i) * time.Millisecond
		both.Record(d)
		if i%3 == 0 {
			one.Record(d)
		} else {
			other.Record(d)
		}
	}
	one.Add(&other)
	for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
		if got, want := one.Quantile(q), both.Quantile(q); got != want {
			t.Errorf("q %v: %v, want %v", q, got, want)
		}
	}
}
