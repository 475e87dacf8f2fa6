package redis_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
)

// BenchmarkDecide has 64 callers wait for one another's batches, each with a deadline of its own as the engine sets it.
func BenchmarkDecide(b *testing.B) {
	for _, kind := range testserver.Kinds() {
		for _, limits := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%s/limits=%d", kind, limits), func(b *testing.B) {
				var seen observer
				server := testserver.Start(b, kind)
				store := open(b, redis.Config{URL: server.URL(), Budget: plenty, Observer: &seen})
				rule, err := algorithms.NewTokenBucket(1_000_000, algorithms.Rate{Tokens: 1_000_000, Seconds: 1})
				must(b, err)
				var callers atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					group := make(rls.Group, limits)
					caller := callers.Add(1)
					for i := 0; pb.Next(); i++ {
						for j := range group {
							key := fmt.Sprintf("sentinel:v1:{%064d}:orders.create:%d:%d", i%1000, caller, j)
							group[j] = rls.Take{Key: key, Rule: rule, Op: algorithms.OpTake, Cost: 1}
						}
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						a := store.Decide(ctx, []rls.Group{group})[0]
						cancel()
						if a.Err != nil || !a.Allowed {
							b.Errorf("got %+v", a)
							return
						}
					}
				})
				b.ReportMetric(float64(seen.groups.Load())/float64(max(1, seen.trips.Load())), "groups/trip")
			})
		}
	}
}
