package heavyhitters_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/internal/heavyhitters"
)

func TestSketchStepByStep(t *testing.T) {
	t.Parallel()
	s := heavyhitters.New[string](2)
	for _, step := range []struct {
		add     string
		want    []heavyhitters.Entry[string]
		missing uint64
	}{
		{"a", []heavyhitters.Entry[string]{{"a", 1, 0}}, 0},
		{"b", []heavyhitters.Entry[string]{{"a", 1, 0}, {"b", 1, 0}}, 1},
		{"a", []heavyhitters.Entry[string]{{"a", 2, 0}, {"b", 1, 0}}, 1},
		{"c", []heavyhitters.Entry[string]{{"a", 2, 0}, {"c", 2, 1}}, 2}, // c takes the place of b and its count as error
		{"b", []heavyhitters.Entry[string]{{"b", 3, 2}, {"c", 2, 1}}, 2},
		{"b", []heavyhitters.Entry[string]{{"b", 4, 2}, {"c", 2, 1}}, 2},
	} {
		s.Add(step.add)
		if step.add == "b" && s.Total() == 5 {
			// a and c have the same count: either may have gone.
			if e := s.Entries(); len(e) != 2 || e[0].Key != "b" || e[0].Count != 3 || e[0].Error != 2 {
				t.Fatalf("after %s: %v", step.add, e)
			}
			continue
		}
		got := s.Entries()
		if s.Total() == 6 {
			got = got[:1]
			step.want = step.want[:1]
		}
		if d := cmp.Diff(step.want, got); d != "" || s.Missing() != step.missing {
			t.Errorf("after %s: missing %d, want %d (-want +got):\n%s", step.add, s.Missing(), step.missing, d)
		}
	}
}

// The paper's promises, for any stream.
func TestSketchKeepsItsPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 12).Draw(t, "most")
		stream := rapid.SliceOf(rapid.IntRange(0, 30)).Draw(t, "stream")
		s, truth := heavyhitters.New[int](most), map[int]uint64{}
		for _, key := range stream {
			s.Add(key)
			truth[key]++
		}
		n := uint64(len(stream))
		if s.Total() != n {
			t.Fatalf("Total = %d, want %d", s.Total(), n)
		}
		var sum uint64
		kept := map[int]bool{}
		for i, e := range s.Entries() {
			kept[e.Key] = true
			sum += e.Count
			if truth[e.Key] > e.Count || truth[e.Key] < e.Count-e.Error || e.Error > n/uint64(most) {
				t.Fatalf("%+v, in truth %d of %d with %d counters", e, truth[e.Key], n, most)
			}
			if i > 0 && e.Count > s.Entries()[i-1].Count {
				t.Fatalf("entries are not in order: %v", s.Entries())
			}
		}
		if len(kept) > most || sum != n {
			t.Fatalf("%d entries that sum to %d, want at most %d and %d", len(kept), sum, most, n)
		}
		for key, count := range truth {
			if !kept[key] && count > s.Missing() {
				t.Fatalf("%d was added %d times and is missing, which Missing says of at most %d", key, count, s.Missing())
			}
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	for name, keys := range map[string]int{"known": 500, "new": 1 << 30} {
		b.Run(name, func(b *testing.B) {
			s, r := heavyhitters.New[string](1024), rand.New(rand.NewPCG(1, 2))
			texts := make([]string, 1<<16)
			for i := range texts {
				texts[i] = fmt.Sprintf("%064x", r.IntN(keys))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Add(texts[i%len(texts)])
			}
		})
	}
}
