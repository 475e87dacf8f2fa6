package rls

import (
	"math"
	"strings"
	"sync"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// maxStatBytes bounds a statistic's name that holds values of a request.
const maxStatBytes = 256

// ruleStats holds the statistics whose names hold values of requests. Their number is bounded for the life of the
// process: whoever sends the values may send any number.
type ruleStats struct {
	recorder DropInRecorder
	limit    int

	mu    sync.RWMutex // guards known
	known map[string]RuleRecorder
}

func newRuleStats(recorder DropInRecorder, limit int) *ruleStats {
	return &ruleStats{recorder: recorder, limit: limit, known: make(map[string]RuleRecorder)}
}

// of returns the recorder of a name, or overflow once there are too many, or for one that is too long.
func (s *ruleStats) of(name RuleName, overflow RuleRecorder) RuleRecorder {
	size := len(name.Domain)
	for _, l := range name.Levels {
		size += 1 + len(l)
	}
	if size > maxStatBytes {
		return overflow
	}
	key := name.Domain + "\x00" + strings.Join(name.Levels, "\x00")
	s.mu.RLock()
	rec, ok := s.known[key]
	full := len(s.known) >= s.limit
	s.mu.RUnlock()
	switch {
	case ok:
		return rec
	case full:
		return overflow
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec, ok = s.known[key]; ok {
		return rec
	}
	if len(s.known) >= s.limit {
		return overflow
	}
	// The name must not keep the request alive that it came with.
	copied := RuleName{Domain: strings.Clone(name.Domain), Levels: make([]string, len(name.Levels))}
	for i, l := range name.Levels {
		copied.Levels[i] = strings.Clone(l)
	}
	rec = s.recorder.Rule(copied)
	s.known[key] = rec
	return rec
}

// recorderOf returns who counts for a descriptor.
func (e *Engine) recorderOf(snap *snapshot, domain *descriptors.DropIn, m *descriptors.Match) RuleRecorder {
	overflow := snap.overrides[domain.Name()]
	if m.Rule != nil {
		overflow = snap.rules[m.Rule.Index].recorder
	}
	levels, dynamic := m.Levels()
	if !dynamic {
		return overflow
	}
	return e.ruleStats.of(RuleName{domain.Name(), levels}, overflow)
}

// countedHits returns what a descriptor's verdict adds to its rule's counters. What lies above the limit is over it, what
// lies between the near limit and the limit is near it, so one descriptor of many hits may be both.
func (d *dropInTake) countedHits(hits uint64, ratio float32) RuleCounts {
	c := RuleCounts{TotalHits: hits}
	limit := d.rule.Limit()
	switch {
	case d.cached:
		c.OverLimit, c.OverLimitWithLocalCache = hits, hits
	case d.uncounted && d.verdict.Allowed:
		c.WithinLimit = hits
	case d.uncounted:
		c.OverLimit = hits
	default:
		before, after := d.used(hits)
		near := int64(math.Floor(float64(float32(limit) * ratio)))
		switch {
		case !d.verdict.Allowed && before >= limit:
			c.OverLimit = hits
		case !d.verdict.Allowed && after > limit:
			c.OverLimit = uint64(after - limit)
			c.NearLimit = uint64(limit - max(near, before))
		case !d.verdict.Allowed: // denied without being counted
			c.OverLimit = hits
		case after > near:
			c.WithinLimit, c.NearLimit = hits, uint64(after-max(near, before))
		default:
			c.WithinLimit = hits
		}
	}
	if d.shadow && !d.verdict.Allowed {
		c.ShadowMode = c.OverLimit
	}
	return c
}

// used returns how much of the limit was used before and after the take.
func (d *dropInTake) used(hits uint64) (before, after int64) {
	if d.rule.Kind() == algorithms.FixedWindow {
		before = d.rule.Advance(d.before, d.now).Level
	} else {
		before = d.rule.Limit() - d.rule.Peek(d.before, d.now, 1).Remaining
	}
	after = before
	if d.op == algorithms.OpTake && (d.spent || d.rule.Counting() && !d.verdict.Allowed) {
		after = min(algorithms.MaxCount, before+int64(min(hits, maxHits)))
	}
	return before, after
}
