package lua_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/lua"
)

// BenchmarkEncode writes the command of one group.
func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("limits=%d", n), func(b *testing.B) {
			calls, encoder := callsOf(b, n), lua.NewEncoder(0)
			var command []any
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if command, err = encoder.AppendCommand(command[:0], calls); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecode reads the reply to it.
func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("limits=%d", n), func(b *testing.B) {
			calls := callsOf(b, n)
			reply := any("1796040000 123456 1" + strings.Repeat(" 99000000:1796040000000000", n))
			b.ReportAllocs()
			for b.Loop() {
				if r, err := decodeOne(reply, calls); err != nil || !r.Allowed {
					b.Fatal(r, err)
				}
			}
		})
	}
}

func callsOf(b *testing.B, n int) []lua.Call {
	rule, err := algorithms.NewTokenBucket(100, algorithms.Rate{Tokens: 50, Seconds: 1})
	if err != nil {
		b.Fatal(err)
	}
	calls := make([]lua.Call, n)
	for i := range calls {
		key := fmt.Sprintf("sentinel:v1:{%064d}:orders.create:%d", 42, i)
		calls[i] = lua.Call{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: 1}
	}
	return calls
}
