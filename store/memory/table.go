package memory

import (
	"encoding/binary"
	"math"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// key is the digest that a bucket is kept under. Its bytes are uniformly distributed.
type key [16]byte

// hash places a key in an index. The first bytes choose the shard, so these are others.
func (k key) hash() uint32 { return binary.LittleEndian.Uint32(k[12:]) }

// slot holds one bucket in 48 bytes without a pointer: the collector never looks into a table.
type slot struct {
	key      key
	level    int64 // absent: the bucket was never written
	at       algorithms.Micros
	due      algorithms.Micros // from then on the bucket is as if untouched; never: it was not written yet
	previous uint32
	heapAt   uint32 // its place in the heap
}

const (
	absent = -1
	never  = algorithms.Micros(math.MaxInt64)
)

func (s *slot) state() algorithms.State {
	if s.level == absent {
		return algorithms.State{}
	}
	return algorithms.State{Present: true, Level: s.level, Previous: int64(s.previous), At: s.at}
}

func (s *slot) setState(st algorithms.State) {
	if !st.Present {
		s.level = absent
		return
	}
	s.level, s.previous, s.at = st.Level, uint32(st.Previous), st.At
}

// table is a bounded map from key to slot that knows which bucket is as if untouched first. Every operation costs
// O(log n) at most, growing aside, which copies 48 bytes for each bucket held. Not safe for concurrent use.
type table struct {
	max   int
	slots []slot
	free  []uint32 // ids of slots without a bucket
	heap  []uint32 // ids of slots with one, the earliest due first
	// index is an open-addressing hash table of ids + 1, at most half full; 0 is empty.
	index []uint32
}

func newTable(maxBuckets int) table { return table{max: maxBuckets, index: make([]uint32, 8)} }

func (t *table) len() int { return len(t.heap) }

// find returns the bucket of k. One that is as if untouched by now is dropped and not found, so an id that find
// returned stays valid through the inserts of the same instant.
func (t *table) find(k key, now algorithms.Micros) (id uint32, ok bool) {
	i, ok := t.probe(k)
	if !ok {
		return 0, false
	}
	id = t.index[i] - 1
	if t.slots[id].due <= now {
		t.remove(id)
		return 0, false
	}
	return id, true
}

// insert adds an absent bucket for k, which the table does not hold. It drops up to two buckets that are as if
// untouched by now, so a table that fills slowly stays small. False: every bucket of a full table is in use.
func (t *table) insert(k key, now algorithms.Micros) (id uint32, ok bool) {
	for range 2 {
		if t.len() > 0 && t.slots[t.heap[0]].due <= now {
			t.remove(t.heap[0])
		}
	}
	if t.len() >= t.max {
		return 0, false
	}
	id = t.vacant()
	t.slots[id] = slot{key: k, level: absent, due: never, heapAt: uint32(len(t.heap))}
	t.heap = append(t.heap, id) // never is the latest: it belongs at the end
	if 2*t.len() > len(t.index) {
		t.reindex(2 * len(t.index))
	} else {
		i, _ := t.probe(k)
		t.index[i] = id + 1
	}
	return id, true
}

// hasRoom reports whether an insert by now would succeed.
func (t *table) hasRoom(now algorithms.Micros) bool {
	return t.len() < t.max || t.slots[t.heap[0]].due <= now
}

func (t *table) vacant() uint32 {
	if n := len(t.free); n > 0 {
		id := t.free[n-1]
		t.free = t.free[:n-1]
		return id
	}
	if len(t.slots) == cap(t.slots) {
		grown := make([]slot, len(t.slots), min(t.max, max(8, 2*len(t.slots))))
		copy(grown, t.slots)
		t.slots = grown
	}
	t.slots = append(t.slots, slot{})
	return uint32(len(t.slots) - 1)
}

func (t *table) remove(id uint32) {
	t.unindex(t.slots[id].key)
	at, last := t.slots[id].heapAt, uint32(len(t.heap)-1)
	if at != last {
		t.place(at, t.heap[last])
	}
	t.heap = t.heap[:last]
	if at != last {
		t.fix(at)
	}
	t.slots[id].key = key{}
	t.free = append(t.free, id)
}

// holds reports whether id still is the bucket of k.
func (t *table) holds(id uint32, k key) bool { return t.slots[id].key == k }

// setDue says when the bucket is as if untouched.
func (t *table) setDue(id uint32, due algorithms.Micros) {
	t.slots[id].due = due
	t.fix(t.slots[id].heapAt)
}

// probe returns k's place in the index, or the empty place where it would go.
func (t *table) probe(k key) (i uint32, ok bool) {
	mask := uint32(len(t.index) - 1)
	for i = k.hash() & mask; t.index[i] != 0; i = (i + 1) & mask {
		if t.slots[t.index[i]-1].key == k {
			return i, true
		}
	}
	return i, false
}

// unindex closes the gap that k leaves: an entry further on moves into it unless its own place lies after the gap.
func (t *table) unindex(k key) {
	mask := uint32(len(t.index) - 1)
	gap, _ := t.probe(k)
	for i := (gap + 1) & mask; t.index[i] != 0; i = (i + 1) & mask {
		home := t.slots[t.index[i]-1].key.hash() & mask
		if (i-home)&mask >= (i-gap)&mask {
			t.index[gap] = t.index[i]
			gap = i
		}
	}
	t.index[gap] = 0
}

func (t *table) reindex(size int) {
	t.index = make([]uint32, size)
	for _, id := range t.heap {
		i, _ := t.probe(t.slots[id].key)
		t.index[i] = id + 1
	}
}

func (t *table) due(i uint32) algorithms.Micros { return t.slots[t.heap[i]].due }

func (t *table) place(i, id uint32) {
	t.heap[i] = id
	t.slots[id].heapAt = i
}

func (t *table) swap(i, j uint32) {
	a, b := t.heap[i], t.heap[j]
	t.place(i, b)
	t.place(j, a)
}

// fix restores the heap's order after the slot at place i changed its due time.
func (t *table) fix(i uint32) {
	for ; i > 0 && t.due(i) < t.due((i-1)/2); i = (i - 1) / 2 {
		t.swap(i, (i-1)/2)
	}
	for n := uint32(len(t.heap)); ; {
		first := i
		for child := 2*i + 1; child <= 2*i+2 && child < n; child++ {
			if t.due(child) < t.due(first) {
				first = child
			}
		}
		if first == i {
			return
		}
		t.swap(i, first)
		i = first
	}
}
