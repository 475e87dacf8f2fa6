package telemetry_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// The log says when and why a server of the store begins to fail, why its breaker opens, and when it is well again; one
// that comes and goes does not fill it.
func TestOutagesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, _ := logTo(t, &out, slog.LevelInfo)
		refused := fmt.Errorf("%w: %w", rls.ErrUnavailable, errors.New("connection refused"))
		late := fmt.Errorf("%w: %w", rls.ErrTimeout, errors.New("i/o timeout"))

		r.StoreFailing("a:6379", refused)
		r.BreakerChanged("a:6379", "closed", "open", late)
		r.BreakerChanged("a:6379", "open", "half-open", late)
		r.BreakerChanged("a:6379", "half-open", "closed", nil)
		r.StoreFailing("a:6379", nil)
		for range 50 { // within the same second
			r.StoreFailing("a:6379", late)
			r.StoreFailing("a:6379", nil)
		}
		r.StoreFailing("b:6379", refused)
		time.Sleep(time.Second)
		r.StoreFailing("b:6379", nil) // its failure was not logged
		r.StoreFailing("a:6379", late)
		r.StoreFailing("a:6379", nil)

		type line struct{ level, msg, server, to, class, err, suppressed any }
		var got []line
		for _, record := range records(t, out.String()) {
			got = append(got, line{record["level"], record["msg"], record["server"], record["to"], record["class"], record["error"], record["suppressed"]})
		}
		const fails, again, breaker = "a server of the store fails", "a server of the store answers again", "breaker changed"
		want := []line{
			{"WARN", fails, "a:6379", nil, "REDIS_UNAVAILABLE", refused.Error(), nil},
			{"WARN", breaker, "a:6379", "open", "REDIS_TIMEOUT", late.Error(), nil},
			{"INFO", breaker, "a:6379", "half-open", nil, nil, nil},
			{"INFO", breaker, "a:6379", "closed", nil, nil, nil},
			{"INFO", again, "a:6379", nil, nil, nil, nil},
			{"WARN", fails, "a:6379", nil, "REDIS_TIMEOUT", late.Error(), 51.0},
			{"INFO", again, "a:6379", nil, nil, nil, nil},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("logged\n%v\nwant\n%v", got, want)
		}
	})
}
