// Package heavyhitters finds the most frequent keys of a stream in bounded memory.
package heavyhitters

import (
	"cmp"
	"container/heap"
	"slices"
)

// Sketch counts keys with the Space-Saving algorithm (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and
// Top-k Elements in Data Streams, ICDT 2005): a key that is not counted yet takes the place of the one with the least
// count, and inherits that count as its possible error.
//
// With m counters and n keys added, no count is too small, and none is too large by more than n/m; every key that was
// added more than n/m times is among them. Not safe for concurrent use.
type Sketch[K comparable] struct {
	counters counters[K]
	byKey    map[K]*counter[K]
	most     int
	total    uint64
}

// Entry is one key: it was added at least Count-Error and at most Count times.
type Entry[K comparable] struct {
	Key   K
	Count uint64
	Error uint64
}

// counter is an Entry with its place in the heap.
type counter[K comparable] struct {
	Entry[K]
	place int
}

// New returns an empty sketch with room for most keys; most > 0.
func New[K comparable](most int) *Sketch[K] {
	return &Sketch[K]{byKey: make(map[K]*counter[K], most), most: most}
}

// Add counts one occurrence of a key, in time logarithmic in the sketch's room.
func (s *Sketch[K]) Add(key K) {
	s.total++
	if c, ok := s.byKey[key]; ok {
		c.Count++
		heap.Fix(&s.counters, c.place)
		return
	}
	if len(s.counters) < s.most {
		c := &counter[K]{Entry: Entry[K]{Key: key, Count: 1}}
		s.byKey[key] = c
		heap.Push(&s.counters, c)
		return
	}
	c := s.counters[0]
	delete(s.byKey, c.Key)
	c.Key, c.Error = key, c.Count
	c.Count++
	s.byKey[key] = c
	heap.Fix(&s.counters, 0)
}

// Total returns how many keys were added.
func (s *Sketch[K]) Total() uint64 { return s.total }

// Missing returns how often a key that is not among the entries may have been added, at most.
func (s *Sketch[K]) Missing() uint64 {
	if len(s.counters) < s.most {
		return 0
	}
	return s.counters[0].Count
}

// Entries returns the keys that are counted, the most frequent first.
func (s *Sketch[K]) Entries() []Entry[K] {
	entries := make([]Entry[K], len(s.counters))
	for i, c := range s.counters {
		entries[i] = c.Entry
	}
	slices.SortFunc(entries, func(a, b Entry[K]) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error))
	})
	return entries
}

// counters is a heap, the least count first.
type counters[K comparable] []*counter[K]

// Len is heap.Interface's.
func (c counters[K]) Len() int { return len(c) }

// Less is heap.Interface's.
func (c counters[K]) Less(i, j int) bool { return c[i].Count < c[j].Count }

// Swap is heap.Interface's.
func (c counters[K]) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].place, c[j].place = i, j
}

// Push is heap.Interface's.
func (c *counters[K]) Push(x any) {
	added := x.(*counter[K])
	added.place = len(*c)
	*c = append(*c, added)
}

// Pop is heap.Interface's. No counter is ever taken away.
func (c *counters[K]) Pop() any { panic("heavyhitters: counters stay") }
