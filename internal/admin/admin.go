// Package admin is the HTTP server for operators and their tools: metrics, health, policies, profiles.
//
//	/metrics         Prometheus
//	/healthz         200: the process lives
//	/readyz          200 whenever an answer can be given, with degraded codes in the body; else 503
//	/policies        the active policy set and who is denied most, on loopback or with the token
//	/debug/pprof/    profiles, on loopback or with the token
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
)

// Bounds of the server. Profiles may run for a minute, everything else answers at once.
const (
	// MaxConnections is how many connections operators may have; further ones wait.
	MaxConnections    = 128
	maxHeaderBytes    = 16 << 10
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 65 * time.Second
	idleTimeout       = time.Minute
	maxScrapes        = 4 // at the same time
)

// Config is what a Server is made of.
type Config struct {
	Gatherer prometheus.Gatherer     // required
	Health   *Health                 // required
	Policies func() *Policies        // required; nil result: no set yet
	Denied   func() telemetry.Denied // required; who was denied most, shown with the policies
	Token    string                  // for /policies and profiles from elsewhere than loopback; empty: none is accepted
	Log      *slog.Logger            // required
}

// Policies is the body of /policies.
type Policies struct {
	Hash      string     `json:"hash"`
	Loaded    time.Time  `json:"loaded"`
	Files     []string   `json:"files"`
	Domains   []string   `json:"domains"`
	Endpoints []Endpoint `json:"endpoints"`
	DropIns   []DropIn   `json:"drop_ins,omitempty"`

	// Stale: the files cannot be used, so this set, the last good one, is served. Problems then says why.
	Stale    bool     `json:"stale"`
	Problems []string `json:"problems,omitempty"`

	Denied *telemetry.Denied `json:"denied,omitempty"` // added by the server
}

// Endpoint is one endpoint of Policies.
type Endpoint struct {
	ID       string `json:"id"`
	Domain   string `json:"domain"`
	Version  int64  `json:"policy_version"`
	Identity string `json:"identity"`
	FailMode string `json:"fail_mode"`
	Mode     string `json:"mode"`
	Tenants  int    `json:"tenants"` // replacements for named tenants
}

// DropIn is one domain of Policies in the language of envoyproxy/ratelimit.
type DropIn struct {
	Domain string `json:"domain"`
	Rules  int    `json:"rules"`
}

// Server answers the operator's requests.
type Server struct {
	cfg   Config
	token [sha256.Size]byte
}

// New returns a server; Run serves it.
func New(cfg Config) *Server { return &Server{cfg: cfg, token: sha256.Sum256([]byte(cfg.Token))} }

// Run serves on l until ctx is done, then lets requests in flight finish for at most a second. It closes l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	return Serve(ctx, l, s.Handler(), MaxConnections, s.cfg.Log)
}

// Serve is Run for any handler and so many connections at once, else within the same bounds.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, connections int, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(l, connections)) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // a profile that is still being taken ends here
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler returns the server's routes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError, // what can be gathered is worth more than none
		MaxRequestsInFlight: maxScrapes,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /policies", s.guarded(s.policies))
	mux.HandleFunc("GET /debug/pprof/", s.guarded(pprof.Index)) // heap, goroutine and the other named profiles
	mux.HandleFunc("GET /debug/pprof/cmdline", s.guarded(pprof.Cmdline))
	mux.HandleFunc("GET /debug/pprof/profile", s.guarded(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/symbol", s.guarded(pprof.Symbol))
	mux.HandleFunc("GET /debug/pprof/trace", s.guarded(pprof.Trace))
	return mux
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	status, ready := s.cfg.Health.Status()
	code := http.StatusOK
	if !ready {
		code = http.StatusServiceUnavailable
	}
	WriteJSON(w, code, status)
}

func (s *Server) policies(w http.ResponseWriter, _ *http.Request) {
	p := s.cfg.Policies()
	if p == nil {
		WriteJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "no policies are loaded yet"})
		return
	}
	shown := *p
	denied := s.cfg.Denied()
	shown.Denied = &denied
	WriteJSON(w, http.StatusOK, shown)
}

// guarded lets callers on the same machine and callers with the token through.
func (s *Server) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !fromLoopback(r) && !s.hasToken(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="sentinel-rls admin"`)
			WriteJSON(w, http.StatusUnauthorized, map[string]string{
				"error": "answers on a loopback address, or elsewhere with the token of admin.token_file",
			})
			return
		}
		next(w, r)
	}
}

// hasToken compares digests, so that the time taken tells neither the token nor its length.
func (s *Server) hasToken(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	digest := sha256.Sum256([]byte(token))
	same := subtle.ConstantTimeCompare(digest[:], s.token[:]) == 1
	return ok && same && s.cfg.Token != ""
}

// fromLoopback reports whether a request was made on this machine for this machine. The Host must say so too: a web page
// can make the operator's own browser connect to 127.0.0.1 under the page's name. And a request that a proxy on this
// machine passed on was made elsewhere.
func fromLoopback(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return false
	}
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
		if _, ok := r.Header[header]; ok {
			return false
		}
	}
	return loopbackName(r.Host)
}

func loopbackName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

// WriteJSON answers with a JSON body that no one may keep.
func WriteJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the connection is gone then
}
