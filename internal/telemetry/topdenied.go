package telemetry

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/internal/heavyhitters"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

const (
	// deniedRoom is how many pairs of caller and endpoint are counted, some 250 bytes each, twice.
	deniedRoom = 1024
	// deniedWindow is how long denials are counted together; what is shown is the current window and the one before.
	deniedWindow = 10 * time.Minute
	// deniedShown is how many of each list are shown.
	deniedShown = 20
)

// Denied says who was denied most of late and where. All of it comes from one bounded sketch, which every denial feeds, so
// counts are ranges. While no more than a thousand pairs of caller and endpoint are denied, their ends are equal.
type Denied struct {
	Since     time.Time     `json:"since"`
	Denials   uint64        `json:"denials"` // in all
	Error     uint64        `json:"error"`   // the two ends of a pair's range are at most this far apart
	Pairs     []DeniedCount `json:"pairs"`
	Callers   []DeniedCount `json:"callers"`
	Endpoints []DeniedCount `json:"endpoints"`
}

// DeniedCount is how often one caller, one endpoint, or one caller at one endpoint was denied.
type DeniedCount struct {
	IdentityHash string `json:"identity_hash,omitempty"` // as in the log of denials; unknown: nobody could be named
	EndpointID   string `json:"endpoint_id,omitempty"`
	AtLeast      uint64 `json:"at_least"`
	AtMost       uint64 `json:"at_most"`
}

// deniedPair is what the sketch counts.
type deniedPair struct{ caller, endpoint string }

// topDenied counts denials of the current window and keeps those of the one before. Safe for concurrent use.
type topDenied struct {
	mu      sync.Mutex // guards everything below
	current deniedCounts
	before  deniedCounts
}

type deniedCounts struct {
	sketch *heavyhitters.Sketch[deniedPair]
	since  time.Time
}

func (t *topDenied) add(d rls.Denial) {
	now := time.Now()
	pair := deniedPair{cmp.Or(d.IdentityHash, "unknown"), d.EndpointID}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	if t.current.sketch == nil {
		t.current = deniedCounts{heavyhitters.New[deniedPair](deniedRoom), now}
	}
	t.current.sketch.Add(pair)
}

// turn ends windows that are over. It needs t.mu.
func (t *topDenied) turn(now time.Time) {
	if t.before.sketch != nil && now.Sub(t.before.since) >= 2*deniedWindow {
		t.before = deniedCounts{}
	}
	if t.current.sketch == nil || now.Sub(t.current.since) < deniedWindow {
		return
	}
	t.before, t.current = t.current, deniedCounts{}
	if now.Sub(t.before.since) >= 2*deniedWindow {
		t.before = deniedCounts{}
	}
}

// TopDenied returns who was denied most in the last ten to twenty minutes.
func (r *Recorder) TopDenied() Denied { return r.top.report() }

func (t *topDenied) report() Denied {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.turn(now)
	d := Denied{Since: now}
	var pairs spans[deniedPair]
	var callers, endpoints spans[string]
	for _, w := range []deniedCounts{t.before, t.current} {
		if w.sketch == nil {
			continue
		}
		if w.since.Before(d.Since) {
			d.Since = w.since
		}
		d.Denials += w.sketch.Total()
		d.Error += w.sketch.Missing()
		pairs.add(ofPairs(w.sketch))
		callers.add(ofGroups(w.sketch, func(p deniedPair) string { return p.caller }))
		endpoints.add(ofGroups(w.sketch, func(p deniedPair) string { return p.endpoint }))
	}
	d.Pairs = top(pairs, func(p deniedPair, c *DeniedCount) { c.IdentityHash, c.EndpointID = p.caller, p.endpoint })
	d.Callers = top(callers, func(caller string, c *DeniedCount) { c.IdentityHash = caller })
	d.Endpoints = top(endpoints, func(id string, c *DeniedCount) { c.EndpointID = id })
	return d
}

// span is the ends of a range.
type span struct{ least, most uint64 }

// spans are the ranges of keys over several windows.
type spans[K comparable] struct {
	byKey  map[K]span
	absent uint64 // the most of a key that is not there
}

// add adds another window.
func (s *spans[K]) add(w spans[K]) {
	if s.byKey == nil {
		*s = w
		return
	}
	for key, old := range s.byKey {
		now, ok := w.byKey[key]
		if !ok {
			now.most = w.absent
		}
		s.byKey[key] = span{old.least + now.least, old.most + now.most}
	}
	for key, now := range w.byKey {
		if _, ok := s.byKey[key]; !ok {
			s.byKey[key] = span{now.least, now.most + s.absent}
		}
	}
	s.absent += w.absent
}

func ofPairs(sketch *heavyhitters.Sketch[deniedPair]) spans[deniedPair] {
	s := spans[deniedPair]{byKey: map[deniedPair]span{}, absent: sketch.Missing()}
	for _, e := range sketch.Entries() {
		s.byKey[e.Key] = span{e.Count - e.Error, e.Count}
	}
	return s
}

// ofGroups returns the ranges of pairs taken together. Counts sum to the number of all denials, and an error is what may
// belong to pairs that are not there: so a group has at least its pairs' certain counts, and at most its pairs' counts and
// the errors of all others.
func ofGroups(sketch *heavyhitters.Sketch[deniedPair], group func(deniedPair) string) spans[string] {
	s := spans[string]{byKey: map[string]span{}}
	errors := map[string]uint64{}
	for _, e := range sketch.Entries() {
		name := group(e.Key)
		g := s.byKey[name]
		s.byKey[name] = span{g.least + e.Count - e.Error, g.most + e.Count}
		errors[name] += e.Error
		s.absent += e.Error
	}
	for name, g := range s.byKey {
		g.most += s.absent - errors[name]
		s.byKey[name] = g
	}
	return s
}

// top returns the largest, the certain counts first.
func top[K comparable](s spans[K], name func(K, *DeniedCount)) []DeniedCount {
	counts := make([]DeniedCount, 0, len(s.byKey))
	for key, g := range s.byKey {
		c := DeniedCount{AtLeast: g.least, AtMost: g.most}
		name(key, &c)
		counts = append(counts, c)
	}
	slices.SortFunc(counts, func(a, b DeniedCount) int {
		return cmp.Or(
			cmp.Compare(b.AtLeast, a.AtLeast), cmp.Compare(b.AtMost, a.AtMost),
			cmp.Compare(a.IdentityHash, b.IdentityHash), cmp.Compare(a.EndpointID, b.EndpointID),
		)
	})
	return counts[:min(len(counts), deniedShown)]
}
