package story

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Upstream is the service behind Envoy. It answers 200 and says what it was asked.
type Upstream struct {
	Addr     string
	requests atomic.Int64
	server   *httptest.Server
}

// Seen is what the upstream saw of a request; the body of its answer.
type Seen struct {
	Path   string      `json:"path"`
	Header http.Header `json:"header"`
}

func startUpstream(port int) (*Upstream, error) {
	l, err := net.Listen("tcp", testserver.LoopbackAddr(port))
	if err != nil {
		return nil, err
	}
	u := &Upstream{Addr: l.Addr().String()}
	u.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: u}}
	u.server.Start()
	return u, nil
}

// ServeHTTP answers one request.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.requests.Add(1)
	w.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(w).Encode(Seen{Path: r.URL.RequestURI(), Header: r.Header})
}

// Requests returns how many requests reached the upstream.
func (u *Upstream) Requests() int64 { return u.requests.Load() }

func (u *Upstream) stop() { u.server.Close() }
