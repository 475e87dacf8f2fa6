package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

// denialLog writes one WARNING record per denial, sampled under flood.
//
// Two bounds stand between a flood and the log: each endpoint and reason logs at most perSecond records a second, and at
// most a queue of records waits for the writer, which is the only one to wait when stderr is slow. What either bound
// leaves out is counted, and the next record of that endpoint and reason says how many.
type denialLog struct {
	log        *slog.Logger
	perSecond  int
	queue      chan denialRecord
	suppressed prometheus.Counter
}

type denialRecord struct {
	at         time.Time
	denial     rls.Denial
	suppressed int64
}

func newDenialLog(cfg Config, suppressed prometheus.Counter) *denialLog {
	l := &denialLog{log: cfg.Log, perSecond: cfg.DenialsPerSecond, suppressed: suppressed}
	if l.perSecond == 0 {
		l.perSecond = 10
	}
	size := cfg.DenialQueue
	if size == 0 {
		size = 1024
	}
	l.queue = make(chan denialRecord, size)
	return l
}

// offer queues the record or counts it as suppressed.
func (l *denialLog) offer(s *sampler, d rls.Denial) {
	if !l.log.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	now := time.Now()
	before, ok := s.admit(now, l.perSecond)
	if !ok {
		l.suppressed.Inc()
		return
	}
	select {
	case l.queue <- denialRecord{at: now, denial: d, suppressed: before}:
	default:
		s.giveBack(before + 1)
		l.suppressed.Inc()
	}
}

// run writes until ctx is done, then what is queued by then.
func (l *denialLog) run(ctx context.Context) error {
	for {
		select {
		case r := <-l.queue:
			l.write(r)
		case <-ctx.Done():
			for range len(l.queue) {
				l.write(<-l.queue)
			}
			return nil
		}
	}
}

func (l *denialLog) write(r denialRecord) {
	record := slog.NewRecord(r.at, slog.LevelWarn, "denied", 0)
	record.AddAttrs(slog.Any("", r.denial)) // an empty key inlines the group
	if r.suppressed > 0 {
		record.AddAttrs(slog.Int64("suppressed", r.suppressed))
	}
	// The log is where an error of the log would go.
	_ = l.log.Handler().Handle(context.Background(), record)
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
