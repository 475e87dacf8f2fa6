package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// denialLog writes one WARNING record per denial, sampled under flood: each endpoint and reason logs at most perSecond
// records a second. What is left out is counted, and the next record of that endpoint and reason says how many; a record
// that the log itself refused counts as left out.
type denialLog struct {
	log        *slog.Logger
	perSecond  int
	suppressed prometheus.Counter
}

func newDenialLog(cfg Config, suppressed prometheus.Counter) denialLog {
	l := denialLog{log: cfg.Log, perSecond: cfg.DenialsPerSecond, suppressed: suppressed}
	if l.perSecond == 0 {
		l.perSecond = 10
	}
	return l
}

// write logs one record with the attributes of d, an rls.Denial or rls.Refused.
func (l *denialLog) write(s *sampler, level slog.Level, text string, d slog.LogValuer) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	now := time.Now()
	before, ok := s.admit(now, l.perSecond)
	if !ok {
		l.suppressed.Inc()
		return
	}
	record := slog.NewRecord(now, level, text, 0)
	record.AddAttrs(slog.Any("", d)) // an empty key inlines the group
	if before > 0 {
		record.AddAttrs(slog.Int64("suppressed", before))
	}
	if err := l.log.Handler().Handle(ctx, record); err != nil {
		s.giveBack(before + 1)
		l.suppressed.Inc()
	}
}

// sampler admits the first records of each second and counts the others.
type sampler struct {
	mu         sync.Mutex
	second     time.Time // when the current second began
	admitted   int       // in the current second
	suppressed int64     // since the last admitted record
}

// admit returns whether a record may be logged now, and how many were left out before it.
func (s *sampler) admit(now time.Time, perSecond int) (suppressed int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.second) >= time.Second {
		s.second, s.admitted = now, 0
	}
	if s.admitted >= perSecond {
		s.suppressed++
		return 0, false
	}
	s.admitted++
	suppressed, s.suppressed = s.suppressed, 0
	return suppressed, true
}

// giveBack counts records that were admitted and then lost.
func (s *sampler) giveBack(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suppressed += n
}

// endpointSamplers keep one sampler per reason, so that a flood of one reason does not hide another.
type endpointSamplers [len(reasons)]sampler

// of returns the sampler of a reason; those that are no decision share the first one, whose reason never denies.
func (s *endpointSamplers) of(r rls.Reason) *sampler {
	i, _ := reasonIndex(r)
	return &s[i]
}
