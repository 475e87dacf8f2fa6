// Package memory is rls.Store in the memory of one process: what sentinel-rls decides with when it has no Redis.
//
// It keeps a bounded number of buckets and nothing else: no goroutine, no file. A store that is full first drops
// buckets that are as if untouched, which changes no answer; a new key that finds none to drop shares one overflow
// bucket with all the others of its rule. So memory never outgrows the bound, and a flood of new keys is limited
// together instead of each getting a fresh bucket. Time is the wall clock at the start plus the monotonic time since.
package memory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// DefaultMaxBuckets is the bound where Config names none. A bucket costs about 60 bytes (BenchmarkBytesPerBucket), so a
// full store of this size holds about 63 MB; an empty one costs next to nothing.
const DefaultMaxBuckets = 1 << 20

// maxOverflows bounds the overflow buckets: one for each limit that new keys came for while the store was full.
const maxOverflows = 4096

// Config is what a Store is made of.
type Config struct {
	// MaxBuckets is the most buckets that are kept; 0 means DefaultMaxBuckets. It is split evenly over up to 256 shards
	// of at least 4096 buckets, each of which is full by itself; a smaller store is one shard. Raise it when Overflowed
	// counts and memory allows.
	MaxBuckets int

	// Overflowed is told of takes that came for a new key while their shard was full, and so went to the overflow bucket
	// of their rule. May be called concurrently; must not block. May be nil.
	Overflowed func(takes int)
}

// Store keeps buckets in memory. Safe for concurrent use.
type Store struct {
	start      time.Time // with its monotonic reading
	overflowed func(takes int)
	shards     []shard // a power of two
	overflow   shard   // keyed by rule
}

var _ rls.Store = (*Store)(nil)

// shard is a part of the buckets. A group locks the shards of its keys in ascending order, then the overflow shard.
type shard struct {
	mu sync.Mutex
	table
	_ [64]byte // keeps neighbours' locks off one cache line
}

const (
	maxShards       = 256
	bucketsPerShard = 4096
)

// New returns an empty store.
func New(cfg Config) (*Store, error) {
	if cfg.MaxBuckets < 0 || cfg.MaxBuckets > 1<<30 {
		return nil, fmt.Errorf("memory store: %d buckets: must be 1 to 2^30, or 0 for %d", cfg.MaxBuckets, DefaultMaxBuckets)
	}
	if cfg.MaxBuckets == 0 {
		cfg.MaxBuckets = DefaultMaxBuckets
	}
	n := 1
	for n < maxShards && cfg.MaxBuckets/(2*n) >= bucketsPerShard {
		n *= 2
	}
	s := &Store{start: time.Now(), overflowed: cfg.Overflowed, shards: make([]shard, n)}
	for i := range s.shards {
		s.shards[i].table = newTable((cfg.MaxBuckets + i) / n) // the sum is MaxBuckets
	}
	s.overflow.table = newTable(maxOverflows)
	return s, nil
}

// Buckets returns how many buckets are held, the overflow buckets aside.
func (s *Store) Buckets() int {
	n := 0
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += s.shards[i].len()
		s.shards[i].mu.Unlock()
	}
	return n
}

// Decide implements rls.Store. It never waits, so ctx matters only when it is done already: then nothing is decided.
func (s *Store) Decide(ctx context.Context, groups []rls.Group) []rls.Answer {
	answers := make([]rls.Answer, len(groups))
	for i, group := range groups {
		if err := ctx.Err(); err != nil {
			answers[i].Err = fmt.Errorf("%w: %w", rls.ErrTimeout, err)
		} else if err := group.Validate(); err != nil {
			answers[i].Err = err
		} else {
			answers[i] = s.decide(group)
		}
	}
	return answers
}

func (s *Store) decide(group rls.Group) rls.Answer {
	d := decision{store: s, group: group, places: make([]place, len(group)), before: make([]algorithms.State, len(group))}
	answer := d.run()
	if d.overflows > 0 && s.overflowed != nil {
		s.overflowed(d.overflows)
	}
	return answer
}

func (s *Store) now() algorithms.Micros {
	return algorithms.Micros(s.start.UnixMicro() + time.Since(s.start).Microseconds())
}

// decision is one group on its way through the store.
type decision struct {
	store     *Store
	group     rls.Group
	places    []place
	before    []algorithms.State
	now       algorithms.Micros
	shards    shardSet
	overflow  bool // the overflow shard is locked too
	overflows int
}

// place is where a take's bucket lies.
type place struct {
	key   key
	table *table // nil: the bucket is absent and this take does not make one
	id    uint32
}

func (p *place) state() algorithms.State {
	if p.table == nil {
		return algorithms.State{}
	}
	return p.table.slots[p.id].state()
}

func (p *place) setState(s algorithms.State) {
	if p.table != nil {
		p.table.slots[p.id].setState(s)
	}
}

func (d *decision) run() rls.Answer {
	for i, take := range d.group {
		d.places[i].key = bucketKey(take)
		d.shards.add(d.store.shardOf(d.places[i].key))
	}
	d.lock()
	defer d.unlock()
	d.now = d.store.now() // under the locks, so a bucket never sees time run backwards
	if err := d.find(); err != nil {
		d.settle()
		return rls.Answer{Err: err}
	}
	allowed := d.apply()
	if !allowed {
		d.undo()
	}
	d.settle()
	return rls.Answer{Now: d.now, Before: d.before, Allowed: allowed}
}

// find gives every take its place, and makes the buckets that the group may write.
func (d *decision) find() error {
	for i, take := range d.group {
		p := &d.places[i]
		if err := d.findOne(p, take); err != nil {
			return err
		}
	}
	return nil
}

func (d *decision) findOne(p *place, take rls.Take) error {
	shard := &d.store.shards[d.store.shardOf(p.key)].table
	if id, ok := shard.find(p.key, d.now); ok {
		p.table, p.id = shard, id
		return nil
	}
	switch take.Op {
	case algorithms.OpRefund: // an absent bucket is full
		return nil
	case algorithms.OpPeek:
		if shard.hasRoom(d.now) {
			return nil
		}
	default:
		if id, ok := shard.insert(p.key, d.now); ok {
			p.table, p.id = shard, id
			return nil
		}
	}
	return d.findOverflow(p, take)
}

// findOverflow gives a take the overflow bucket of its limit. Two takes of one group may share it.
func (d *decision) findOverflow(p *place, take rls.Take) error {
	if !d.overflow {
		d.store.overflow.mu.Lock()
		d.overflow = true
	}
	d.overflows++
	shard := &d.store.overflow.table
	p.key = overflowKey(take)
	id, ok := shard.find(p.key, d.now)
	if !ok && take.Op == algorithms.OpPeek {
		return nil
	}
	if !ok {
		id, ok = shard.insert(p.key, d.now)
	}
	if !ok {
		return fmt.Errorf("%w: the memory store is full, and so are its %d overflow buckets", rls.ErrUnavailable, maxOverflows)
	}
	p.table, p.id = shard, id
	return nil
}

// apply carries out each take in turn, also after one was denied: in a shared overflow bucket the later ones must see
// what the earlier ones spent. It reports whether all of them fitted.
func (d *decision) apply() bool {
	allowed := true
	for i, take := range d.group {
		before := d.places[i].state()
		d.before[i] = before
		fits := take.Rule.Admits(take.Op, before, d.now, take.Cost)
		allowed = allowed && fits
		d.places[i].setState(take.Rule.Apply(take.Op, before, d.now, take.Cost, take.Window))
	}
	return allowed
}

// undo takes back everything but what is carried out whatever is decided: the charges, and what a counting window counts.
func (d *decision) undo() {
	for i := len(d.group) - 1; i >= 0; i-- {
		d.places[i].setState(d.before[i])
	}
	for i, take := range d.group {
		if take.Rule.Insists(take.Op, take.Rule.Admits(take.Op, d.places[i].state(), d.now, take.Cost)) {
			d.places[i].setState(take.Rule.Apply(take.Op, d.places[i].state(), d.now, take.Cost, 0))
		}
	}
}

// settle drops the buckets that were made but not written, and notes when the others will be as if untouched.
func (d *decision) settle() {
	for i, take := range d.group {
		p := &d.places[i]
		if p.table == nil || !p.table.holds(p.id, p.key) { // not there, or a shared bucket that is dropped already
			continue
		}
		state := p.state()
		switch {
		case !state.Present:
			p.table.remove(p.id)
		case state != d.before[i] || p.table == &d.store.overflow.table:
			p.table.setDue(p.id, d.untouchedAt(take.Rule, state))
		}
	}
}

// untouchedAt is when state will be as if untouched. A bucket that never refills is forgotten after its expiry.
func (d *decision) untouchedAt(rule algorithms.Rule, state algorithms.State) algorithms.Micros {
	wait := rule.Peek(state, d.now, 1).ResetAfter
	if wait < 0 {
		wait = rule.Expiry(state, d.now)
	}
	return d.now + algorithms.Micros(wait.Microseconds())
}

func (d *decision) lock() {
	for i := range d.shards.ascending {
		d.store.shards[i].mu.Lock()
	}
}

func (d *decision) unlock() {
	if d.overflow {
		d.store.overflow.mu.Unlock()
	}
	for i := range d.shards.ascending {
		d.store.shards[i].mu.Unlock()
	}
}

// shardSet is a set of shard numbers.
type shardSet [maxShards / 64]uint64

func (s *shardSet) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s *shardSet) ascending(yield func(i int) bool) {
	for word, rest := range s {
		for ; rest != 0; rest &= rest - 1 {
			if !yield(64*word + bits.TrailingZeros64(rest)) {
				return
			}
		}
	}
}

func (s *Store) shardOf(k key) int { return int(k[0]) & (len(s.shards) - 1) }

// bucketKey is the digest of a take's key, algorithm and window: a key whose rule changes one of them has a fresh
// bucket, one whose capacity, limit or rate changes keeps it.
func bucketKey(take rls.Take) key {
	buf := make([]byte, 0, 256) // does not escape unless the key is longer
	buf = append(buf, byte(take.Rule.Kind()))
	buf = binary.LittleEndian.AppendUint64(buf, uint64(take.Rule.Window()))
	return digest(append(buf, take.Key...))
}

// overflowKey is the digest of a limit's name and whole rule.
func overflowKey(take rls.Take) key {
	rule := take.Rule
	buf := make([]byte, 0, 256) // does not escape unless the name is longer
	buf = append(buf, byte(rule.Kind()))
	if rule.Counting() {
		buf = append(buf, 1)
	}
	for _, n := range [...]int64{rule.Limit(), rule.Refill().Tokens, rule.Refill().Seconds, int64(rule.Window())} {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(n))
	}
	return digest(append(buf, take.Limit...))
}

func digest(b []byte) key {
	sum := sha256.Sum256(b)
	return key(sum[:len(key{})])
}
