package lua_test

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// texts are command's arguments as a client writes them.
func texts(command []any) []string {
	var s []string
	for _, a := range command {
		s = append(s, fmt.Sprint(a))
	}
	return s
}

func TestAppendCommand(t *testing.T) {
	t.Parallel()
	e := lua.NewEncoder(0)
	tb, sw := bucket(t, 100, 50, 60), window(t, 5000, time.Minute)
	calls := []lua.Call{
		take("a", tb, 1),
		{Key: "b", Rule: sw, Op: algorithms.OpCharge, Cost: 7, Window: 60_000_000},
		{Key: "c", Rule: sw, Op: algorithms.OpRefund, Cost: 2, Window: 120_000_000},
		{Key: "d", Rule: sw, Op: algorithms.OpRefund, Cost: 2},
		{Key: "e", Rule: bucket(t, 3, 0, 0), Op: algorithms.OpRefund, Cost: 1, Window: 60_000_000},
		{Key: "f", Rule: tb, Op: algorithms.OpPeek, Cost: 1},
	}
	want := []string{
		"evalsha", lua.Group().SHA1(), "6", "a", "b", "c", "d", "e", "f", "0", "1", "6",
		"tb", "take", "1", "100", "5", "6",
		"sw", "charge", "7", "5000", "60000000", "0",
		"sw", "refund", "2", "5000", "60000000", "120000000",
		"sw", "refund", "2", "5000", "60000000", "0",
		"tb", "refund", "1", "3", "0", "0",
		"tb", "peek", "1", "100", "5", "6",
	}
	for range 2 { // the second time from memory
		got, err := e.AppendCommand(nil, calls)
		if err != nil || !reflect.DeepEqual(texts(got), want) {
			t.Errorf("got %q, %v\nwant %q", texts(got), err, want)
		}
	}
}

// Neighbours that differ in nothing but their keys are described once.
func TestAppendCommandOfSeveralGroups(t *testing.T) {
	t.Parallel()
	e := lua.NewEncoder(0)
	tb, sw := bucket(t, 100, 50, 60), window(t, 5000, time.Minute)
	pair := func(a, b string, cost int64) []lua.Call { return []lua.Call{take(a, tb, 1), take(b, sw, cost)} }
	peek := lua.Call{Key: "i", Rule: tb, Op: algorithms.OpPeek, Cost: 1}
	refund := func(key string, w algorithms.Micros) []lua.Call {
		return []lua.Call{{Key: key, Rule: sw, Op: algorithms.OpRefund, Cost: 1, Window: w}}
	}
	got, err := e.AppendCommand(nil,
		pair("a", "b", 7), pair("c", "d", 7), pair("e", "f", 8), []lua.Call{take("g", tb, 1)}, []lua.Call{take("h", tb, 1)},
		[]lua.Call{peek}, refund("j", 60_000_000), refund("k", 120_000_000))
	want := []string{
		"evalsha", lua.Group().SHA1(), "11", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "0",
		"2", "2", "tb", "take", "1", "100", "5", "6", "sw", "take", "7", "5000", "60000000", "0",
		"1", "2", "tb", "take", "1", "100", "5", "6", "sw", "take", "8", "5000", "60000000", "0",
		"2", "1", "tb", "take", "1", "100", "5", "6",
		"1", "1", "tb", "peek", "1", "100", "5", "6",
		"1", "1", "sw", "refund", "1", "5000", "60000000", "60000000",
		"1", "1", "sw", "refund", "1", "5000", "60000000", "120000000",
	}
	if err != nil || !reflect.DeepEqual(texts(got), want) {
		t.Errorf("got %q, %v\nwant %q", texts(got), err, want)
	}
}

// What is written lives on by a random time below the jitter; without one nothing is said of it.
func TestAppendCommandWithJitter(t *testing.T) {
	t.Parallel()
	calls := []lua.Call{take("a", window(t, 1, time.Minute), 1), take("b", window(t, 1, time.Minute), 1)}
	plain, err := lua.NewEncoder(time.Millisecond-1).AppendCommand(nil, calls)
	if err != nil {
		t.Fatal(err)
	}
	e, seen := lua.NewEncoder(300*time.Second), make(map[int64]bool)
	for range 100 {
		got, err := e.AppendCommand(nil, calls)
		ms, ok := got[extraAt(calls)].(int64)
		if err != nil || !ok || ms < 0 || ms >= 300_000 {
			t.Fatalf("%v milliseconds, %v; want 0 to 299999", got[extraAt(calls)], err)
		}
		got[extraAt(calls)] = "0"
		if !reflect.DeepEqual(texts(got), texts(plain)) {
			t.Fatalf("%q; want %q", texts(got), texts(plain))
		}
		seen[ms] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different times in 100", len(seen))
	}
}

// extraAt is where a command says how long what it writes lives on.
func extraAt(groups ...[]lua.Call) int {
	at := 3
	for _, calls := range groups {
		at += len(calls)
	}
	return at
}

func TestAppendCommandRefuses(t *testing.T) {
	t.Parallel()
	e, rule := lua.NewEncoder(0), bucket(t, 1, 1, 1)
	for _, n := range []int{0, lua.MaxCalls + 1} {
		calls := make([]lua.Call, n)
		for i := range calls {
			calls[i] = take("k", rule, 1)
		}
		if got, err := e.AppendCommand(nil, calls); !errors.Is(err, lua.ErrCalls) || got != nil {
			t.Errorf("%d calls: %d arguments, %v; want an ErrCalls", n, len(got), err)
		}
	}
	some, half := []lua.Call{take("k", rule, 1)}, make([]lua.Call, lua.MaxCalls/2)
	for i := range half {
		half[i] = take("k", rule, 1)
	}
	for what, groups := range map[string][][]lua.Call{
		"no group": nil, "a group of none": {some, {}}, "one too many": {half, half, some},
	} {
		if got, err := e.AppendCommand(nil, groups...); !errors.Is(err, lua.ErrCalls) || got != nil {
			t.Errorf("%s: %d arguments, %v; want an ErrCalls", what, len(got), err)
		}
	}
	for what, call := range map[string]lua.Call{
		"cost 0":        take("k", rule, 0),
		"negative cost": take("k", rule, -1),
		"zero Rule":     {Key: "k", Op: algorithms.OpTake, Cost: 1},
		"zero Op":       {Key: "k", Rule: rule, Cost: 1},
		"unknown Op":    {Key: "k", Rule: rule, Cost: 1, Op: algorithms.OpRefund + 1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			_, _ = e.AppendCommand(nil, []lua.Call{call})
		}()
	}
}

// An encoder is used by several workers while policies change; it forgets rather than grow for ever.
func TestEncoderIsConcurrentAndBounded(t *testing.T) {
	t.Parallel()
	e := lua.NewEncoder(0)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range int64(lua.MaxRules + 100) {
				rule, err := algorithms.NewSlidingWindow(1+(i+int64(w)*50)%(lua.MaxRules+50), time.Second)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := e.AppendCommand(nil, []lua.Call{take("k", rule, 1)})
				if want := fmt.Sprint(rule.Limit()); err != nil || fmt.Sprint(got[10]) != want {
					t.Errorf("%v, %v; want limit %s", got, err, want)
					return
				}
			}
		})
	}
	workers.Wait()
	if n := e.Known(); n > lua.MaxRules {
		t.Errorf("the encoder remembers %d rules, want at most %d", n, lua.MaxRules)
	}
}

// The hot path formats no numbers: one allocation per key, whose string becomes an interface value.
func TestAppendCommandAllocations(t *testing.T) {
	e, calls := lua.NewEncoder(0), twoCalls(t)
	buffer := make([]any, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := e.AppendCommand(buffer, calls); err != nil {
			t.Fatal(err)
		}
	}); n > float64(len(calls)) {
		t.Errorf("%v allocations for %d calls, want one each", n, len(calls))
	}
	reply := any("1796035863 123456 1 9000000:1796035863123456 3:4:1796035863000000")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := decodeOne(reply, calls); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations to decode, want two: the states and the replies, however many groups", n)
	}
}
