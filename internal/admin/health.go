package admin

import "sync"

// Health is whether this process should be asked. It is ready from the first policy set until it stops; a store that is
// away only degrades it, or the platform would take every replica away in an outage. Safe for concurrent use.
type Health struct {
	degraded func() []string

	mu        sync.Mutex // guards everything below; held while followers are told, so that they learn of changes in order
	loaded    bool
	stopping  bool
	followers []func(ready bool)
}

// NewHealth returns a Health that is not ready yet. degraded returns codes of what is wrong although answers are given, as
// redis_down; it must be safe for concurrent use and not wait. nil: nothing ever is.
func NewHealth(degraded func() []string) *Health { return &Health{degraded: degraded} }

// Loaded says that there is a policy set.
func (h *Health) Loaded() { h.change(func() { h.loaded = true }) }

// Stopping says that the process is about to end. It is not taken back.
func (h *Health) Stopping() { h.change(func() { h.stopping = true }) }

// Follow calls f now and after each change. f must not call h.
func (h *Health) Follow(f func(ready bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.followers = append(h.followers, f)
	f(h.ready())
}

func (h *Health) change(set func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.ready()
	set()
	if now := h.ready(); now != before {
		for _, f := range h.followers {
			f(now)
		}
	}
}

func (h *Health) ready() bool { return h.loaded && !h.stopping }

// Status is the body of /readyz.
type Status struct {
	Status   string   `json:"status"`   // ready, starting, stopping
	Degraded []string `json:"degraded"` // codes; never null
}

// Status returns the state now, and whether it is ready.
func (h *Health) Status() (s Status, ready bool) {
	h.mu.Lock()
	loaded, stopping := h.loaded, h.stopping
	h.mu.Unlock()
	s = Status{Status: "ready", Degraded: []string{}}
	switch {
	case stopping:
		s.Status = "stopping"
	case !loaded:
		s.Status = "starting"
	}
	if h.degraded != nil {
		s.Degraded = append(s.Degraded, h.degraded()...)
	}
	return s, loaded && !stopping
}
