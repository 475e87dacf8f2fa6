package telemetry_test

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

func quietRecorder() *telemetry.Recorder {
	return telemetry.New(telemetry.Config{Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
}

func deny(r *telemetry.Recorder, caller, endpoint string, times int) {
	for range times {
		r.Denied(rls.Denial{IdentityHash: caller, EndpointID: endpoint, Reason: rls.RateLimited})
	}
}

func TestTopDenied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := quietRecorder()
		begin := time.Now()
		if d := r.TopDenied(); d.Denials != 0 || len(d.Pairs)+len(d.Callers)+len(d.Endpoints) != 0 || !d.Since.Equal(begin) {
			t.Errorf("before any denial: %+v", d)
		}
		deny(r, "aa", "orders", 5)
		deny(r, "bb", "orders", 2)
		deny(r, "bb", "login", 4)
		deny(r, "", "login", 1)
		want := telemetry.Denied{
			Since: begin, Denials: 12,
			Pairs: []telemetry.DeniedCount{
				{IdentityHash: "aa", EndpointID: "orders", AtLeast: 5, AtMost: 5},
				{IdentityHash: "bb", EndpointID: "login", AtLeast: 4, AtMost: 4},
				{IdentityHash: "bb", EndpointID: "orders", AtLeast: 2, AtMost: 2},
				{IdentityHash: "unknown", EndpointID: "login", AtLeast: 1, AtMost: 1},
			},
			Callers: []telemetry.DeniedCount{
				{IdentityHash: "bb", AtLeast: 6, AtMost: 6}, {IdentityHash: "aa", AtLeast: 5, AtMost: 5}, {IdentityHash: "unknown", AtLeast: 1, AtMost: 1},
			},
			Endpoints: []telemetry.DeniedCount{{EndpointID: "orders", AtLeast: 7, AtMost: 7}, {EndpointID: "login", AtLeast: 5, AtMost: 5}},
		}
		if d := cmp.Diff(want, r.TopDenied()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		time.Sleep(10 * time.Minute)
		deny(r, "aa", "orders", 1)
		if d := r.TopDenied(); d.Denials != 13 || d.Pairs[0].AtLeast != 6 || !d.Since.Equal(begin) {
			t.Errorf("in the second window: %+v", d)
		}
		time.Sleep(10 * time.Minute) // the first window is gone
		if d := r.TopDenied(); d.Denials != 1 || len(d.Pairs) != 1 || d.Pairs[0].AtLeast != 1 {
			t.Errorf("in the third window: %+v", d)
		}
		time.Sleep(time.Hour)
		if d := r.TopDenied(); d.Denials != 0 || len(d.Pairs) != 0 {
			t.Errorf("after a quiet hour: %+v", d)
		}
	})
}

// However many callers there are, memory stays bounded and no range lies.
func TestTopDeniedKeepsItsRanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := quietRecorder()
		pairs, callers, endpoints := map[[2]string]uint64{}, map[string]uint64{}, map[string]uint64{}
		total := uint64(0)
		count := func(caller, endpoint string, times int) {
			deny(r, caller, endpoint, times)
			pairs[[2]string{caller, endpoint}] += uint64(times)
			callers[caller] += uint64(times)
			endpoints[endpoint] += uint64(times)
			total += uint64(times)
		}
		crowd := rapid.IntRange(0, 3000).Draw(t, "crowd")
		for i := range crowd {
			count(fmt.Sprint("stranger-", i), fmt.Sprint("e", i%3), 1)
		}
		for range rapid.IntRange(0, 10).Draw(t, "loud") {
			count(rapid.SampledFrom([]string{"aa", "bb", "cc"}).Draw(t, "caller"), rapid.SampledFrom([]string{"e0", "e1"}).Draw(t, "endpoint"),
				rapid.IntRange(1, 500).Draw(t, "times"))
		}
		d := r.TopDenied()
		if d.Denials != total || len(d.Pairs) > 20 || len(d.Callers) > 20 || d.Error > total/1024+1 {
			t.Fatalf("%d denials, %d pairs, error %d; want %d denials", d.Denials, len(d.Pairs), d.Error, total)
		}
		check := func(c telemetry.DeniedCount, truth uint64) {
			if truth < c.AtLeast || truth > c.AtMost {
				t.Fatalf("%+v, in truth %d", c, truth)
			}
		}
		for _, c := range d.Pairs {
			check(c, pairs[[2]string{c.IdentityHash, c.EndpointID}])
			if c.AtMost-c.AtLeast > d.Error {
				t.Fatalf("%+v is further apart than %d", c, d.Error)
			}
		}
		for _, c := range d.Callers {
			check(c, callers[c.IdentityHash])
		}
		for _, c := range d.Endpoints {
			check(c, endpoints[c.EndpointID])
		}
	})
}

func BenchmarkDenied(b *testing.B) {
	r := quietRecorder()
	r.Endpoint("orders")
	d := rls.Denial{IdentityHash: "aa", EndpointID: "orders", Reason: rls.RateLimited}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.Denied(d)
		}
	})
}
