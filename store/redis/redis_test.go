package redis_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
	"github.com/sentinel-rls/sentinel-rls/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				server := testserver.Start(t, kind)
				return storetest.Harness{
					// No outcome may be unknown, however busy the machine is.
					Store: open(t, redis.Config{
						URL: server.URL(), Budget: 5 * time.Second, Breaker: rls.BreakerConfig{Failures: 1000},
						ProbeEvery: time.Hour, // the suite counts keys
					}),
					Server: backend{server, raw(t, server)},
				}
			})
		})
	}
}
