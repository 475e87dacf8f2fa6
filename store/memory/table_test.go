package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// TestTable runs drawn operations against a map that says what must be there.
func TestTable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "max")
		table, model, now := newTable(limit), map[key]algorithms.Micros{}, algorithms.Micros(0)
		// Few distinct hashes, so that probes collide and wrap around.
		keys := rapid.Custom(func(t *rapid.T) key {
			return key{0: byte(rapid.IntRange(1, 20).Draw(t, "id")), 12: byte(rapid.SampledFrom([]int{0, 1, 7, 255}).Draw(t, "hash"))}
		})
		for step := range rapid.IntRange(1, 200).Draw(t, "steps") {
			k := keys.Draw(t, "key")
			id, found := table.find(k, now)
			due, want := model[k]
			if want && due <= now {
				delete(model, k)
				want = false
			}
			if found != want {
				t.Fatalf("found %v: %v, want %v", k, found, want)
			}
			switch op := rapid.SampledFrom([]string{"insert", "remove", "due", "wait"}).Draw(t, "op"); {
			case op == "wait":
				now += algorithms.Micros(1000 * rapid.IntRange(0, 20).Draw(t, "ms"))
			case found && op == "remove":
				table.remove(id)
				delete(model, k)
				if table.holds(id, k) {
					t.Fatalf("holds %v after it was removed", k)
				}
			case found:
				model[k] = now + algorithms.Micros(1000*rapid.IntRange(0, 50).Draw(t, "due")+step) // no two alike
				table.setDue(id, model[k])
			case op == "insert":
				drop(model, now, 2)
				room := table.hasRoom(now)
				id, ok := table.insert(k, now)
				if want := len(model) < limit; ok != want || room != want {
					t.Fatalf("insert with %d of %d: %v after room for it: %v", len(model), limit, ok, room)
				}
				if ok {
					if s := table.slots[id].state(); s.Present {
						t.Fatalf("a new bucket holds %+v", s)
					}
					model[k] = never
				}
			}
			checkTable(t, &table, model)
		}
	})
}

// drop forgets the n earliest that are due.
func drop(model map[key]algorithms.Micros, now algorithms.Micros, n int) {
	for range n {
		first, at := key{}, never
		for k, due := range model {
			if due < at {
				first, at = k, due
			}
		}
		if at <= now {
			delete(model, first)
		}
	}
}

func checkTable(t *rapid.T, table *table, model map[key]algorithms.Micros) {
	t.Helper()
	if table.len() > table.max || cap(table.slots) > max(8, table.max) || len(table.slots) != table.len()+len(table.free) {
		t.Fatalf("%d buckets, %d free, %d slots (%d) of %d", table.len(), len(table.free), len(table.slots), cap(table.slots), table.max)
	}
	var dues, want []algorithms.Micros
	for i, id := range table.heap {
		s := &table.slots[id]
		if int(s.heapAt) != i {
			t.Fatalf("slot %d at place %d believes to be at %d", id, i, s.heapAt)
		}
		if i > 0 && table.due(uint32(i)) < table.due(uint32(i-1)/2) {
			t.Fatalf("place %d is due before its parent", i)
		}
		at, ok := table.probe(s.key)
		if !ok || table.index[at] != id+1 {
			t.Fatalf("the index does not lead to %v", s.key)
		}
		dues = append(dues, s.due)
	}
	for _, due := range model {
		want = append(want, due)
	}
	slices.Sort(dues)
	slices.Sort(want)
	if !slices.Equal(dues, want) {
		t.Fatalf("due %v, want %v", dues, want)
	}
	indexed := 0
	for _, entry := range table.index {
		if entry != 0 {
			indexed++
		}
	}
	if indexed != table.len() || 2*indexed > len(table.index) {
		t.Fatalf("%d of %d index entries used for %d buckets", indexed, len(table.index), table.len())
	}
}

// TestUntouchedAt: the time that a bucket is dropped at is the first at which that changes no answer.
func TestUntouchedAt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule, err := algorithms.NewSlidingWindow(rapid.Int64Range(1, 100).Draw(t, "limit"), 1_000_000)
		if rapid.Bool().Draw(t, "bucket") {
			rule, err = algorithms.NewTokenBucket(rapid.Int64Range(1, 100).Draw(t, "capacity"), algorithms.Rate{
				Tokens: rapid.Int64Range(1, 1000).Draw(t, "n"), Seconds: rapid.Int64Range(1, 1000).Draw(t, "s"),
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		d := decision{now: algorithms.Micros(rapid.Int64Range(1, 1<<50).Draw(t, "now"))}
		state, _ := rule.Charge(algorithms.State{}, d.now, rapid.Int64Range(1, 200).Draw(t, "cost"))
		due := d.untouchedAt(rule, state)
		if !rule.Untouched(state, due) || rule.Untouched(state, due-1) {
			t.Fatalf("%+v of %+v at %d is dropped at %d", state, rule, d.now, due)
		}
	})
}
