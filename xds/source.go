// Package xds is an adapter: it gets limits in the language of envoyproxy/ratelimit from a control plane, as RateLimitConfig
// resources over the aggregated discovery service, state of the world. It is what that service calls GRPC_XDS_SOTW, and
// what Envoy Gateway serves.
package xds

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// The defaults of Config.
const (
	DefaultRetry          = 3 * time.Second
	DefaultBackoffInitial = 10 * time.Second
	DefaultBackoffMax     = time.Minute
	DefaultMaxMessage     = 4 << 20
)

const connectTimeout = 5 * time.Second

// Config is what a Source is made of. Zero durations and sizes take the defaults named above.
type Config struct {
	Server          string            // host:port; required
	NodeID          string            // by which the control plane knows whose limits are asked for
	NodeMetadata    map[string]string // what else it is told
	Headers         map[string]string // of the stream
	TLS             *tls.Config       // nil: plain text
	MaxMessageBytes int

	Retry                      time.Duration // before another try at a server that cannot be reached
	BackoffInitial, BackoffMax time.Duration // before another stream after one that broke; doubled up to the latter
	Random                     float64       // part of each wait, 0 to 1, by which it is longer or shorter at random

	// Apply makes the resources the limits in use: all of them, or none when it returns an error, whose text the control
	// plane is told. Each file is one resource. Called by Run, one call at a time. Required.
	Apply func(files []descriptors.File) error

	Log *slog.Logger // required
}

// Status is what a Source knows of its control plane. Versions are the control plane's own words.
type Status struct {
	Server    string `json:"server"`
	Connected bool   `json:"connected"`
	Active    string `json:"active_version"`             // of the resources in use; empty: none yet
	Rejected  string `json:"rejected_version,omitempty"` // what came after it and could not be used
	Reason    string `json:"rejected_reason,omitempty"`
}

// Source keeps the limits in step with a control plane. What it has stays in use while the control plane is away or sends
// something that cannot be used. Safe for concurrent use.
type Source struct {
	cfg  Config
	node *corev3.Node

	mu      sync.Mutex // guards status and loaded
	status  Status
	loaded  chan struct{} // closed once resources are in use
	refused [sha256.Size]byte
	refusal int // how often in a row the refused ones have come
}

// New returns a source; Run runs it. It connects to nothing.
func New(cfg Config) (*Source, error) {
	if cfg.Server == "" || cfg.Apply == nil || cfg.Log == nil {
		return nil, errors.New("xds: server, apply and log are required")
	}
	cfg.Retry = cmp.Or(cfg.Retry, DefaultRetry)
	cfg.BackoffInitial = cmp.Or(cfg.BackoffInitial, DefaultBackoffInitial)
	cfg.BackoffMax = cmp.Or(cfg.BackoffMax, DefaultBackoffMax)
	cfg.MaxMessageBytes = cmp.Or(cfg.MaxMessageBytes, DefaultMaxMessage)
	if min(cfg.Retry, cfg.BackoffInitial, cfg.BackoffMax) < 0 || cfg.MaxMessageBytes < 0 || cfg.Random < 0 || cfg.Random > 1 {
		return nil, errors.New("xds: times and sizes must not be negative, and the random part must be 0 to 1")
	}
	fields := make(map[string]*structpb.Value, len(cfg.NodeMetadata))
	for key, value := range cfg.NodeMetadata {
		fields[key] = structpb.NewStringValue(value)
	}
	return &Source{
		cfg:    cfg,
		node:   &corev3.Node{Id: cfg.NodeID, Metadata: &structpb.Struct{Fields: fields}, UserAgentName: "sentinel-rls"},
		status: Status{Server: cfg.Server},
		loaded: make(chan struct{}),
	}, nil
}

// Status returns what is known now.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Loaded is closed once the first resources are in use.
func (s *Source) Loaded() <-chan struct{} { return s.loaded }

// Run follows the control plane until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	for broken := time.Duration(0); ; { // the wait after the last stream that broke
		answered, err := s.stream(ctx, conn)
		s.connected(false)
		if ctx.Err() != nil {
			return nil
		}
		pause := s.cfg.Retry
		if status.Code(err) != codes.Unavailable {
			broken = s.next(broken, answered)
			pause = broken
		}
		pause = s.jittered(pause)
		s.cfg.Log.Warn("no limits come from the control plane: the last ones stay in use", "server", s.cfg.Server,
			"error", status.Convert(err).Message(), "retry_in", pause)
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

func (s *Source) dial() (*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if s.cfg.TLS != nil {
		security = credentials.NewTLS(s.cfg.TLS)
	}
	return grpc.NewClient(s.cfg.Server,
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.cfg.MaxMessageBytes)),
		// Run waits by itself: the library's own waits grow to minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: s.cfg.Retry / 2, Multiplier: 1, MaxDelay: s.cfg.Retry / 2},
			MinConnectTimeout: connectTimeout,
		}),
		// A stream on which nothing changes for hours is otherwise not told from one whose other end is gone.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute, Timeout: 20 * time.Second}),
	)
}

// next returns the wait after a stream that broke, given the one before it: twice as long each time, until something comes.
func (s *Source) next(before time.Duration, answered bool) time.Duration {
	if before == 0 || answered {
		return min(s.cfg.BackoffInitial, s.cfg.BackoffMax)
	}
	return min(2*before, s.cfg.BackoffMax)
}

func (s *Source) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + s.cfg.Random*(2*rand.Float64()-1)))
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (s *Source) connected(yes bool) {
	s.mu.Lock()
	s.status.Connected = yes
	s.mu.Unlock()
}

// stream follows one stream to its end, and says whether anything came.
func (s *Source) stream(ctx context.Context, conn *grpc.ClientConn) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for key, value := range s.cfg.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, key, value)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	// Without the version of what is in use: a control plane that began anew may count its versions from the start, and
	// would send nothing for one that it takes for its own.
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: s.node, TypeUrl: TypeURL}); err != nil {
		_, err = stream.Recv() // the stream's own error
		return false, err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		s.connected(true)
		if resp.GetTypeUrl() != TypeURL {
			continue
		}
		refusal := s.take(resp)
		if refusal != nil && !sleep(ctx, s.pace()) {
			return answered, ctx.Err()
		}
		if err := stream.Send(s.request(resp, refusal)); err != nil {
			_, err = stream.Recv()
			return answered, err
		}
	}
}

// request acknowledges or refuses a response.
func (s *Source) request(resp *discoveryv3.DiscoveryResponse, refusal error) *discoveryv3.DiscoveryRequest {
	r := &discoveryv3.DiscoveryRequest{
		Node: s.node, TypeUrl: TypeURL, VersionInfo: s.Status().Active, ResponseNonce: resp.GetNonce(),
	}
	if refusal != nil {
		r.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: bounded(refusal.Error())}
	}
	return r
}

// take makes the resources of a response the limits in use, or says why not.
func (s *Source) take(resp *discoveryv3.DiscoveryResponse) error {
	sum := contentOf(resp)
	s.mu.Lock()
	again := s.refusal > 0 && s.refused == sum
	reason := s.status.Reason
	s.mu.Unlock()
	if again { // nothing to find out, and nothing to log
		s.mu.Lock()
		s.refusal++
		s.mu.Unlock()
		return errors.New(reason)
	}
	files, err := filesOf(resp.GetResources())
	if err == nil {
		err = s.cfg.Apply(files)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.status.Rejected, s.status.Reason = resp.GetVersionInfo(), bounded(err.Error())
		s.refused, s.refusal = sum, 1
		s.cfg.Log.Error("limits from the control plane refused: the last ones stay in use",
			"version", resp.GetVersionInfo(), "active_version", s.status.Active, "reason", s.status.Reason)
		return err
	}
	s.status.Active, s.status.Rejected, s.status.Reason, s.refusal = resp.GetVersionInfo(), "", "", 0
	select {
	case <-s.loaded:
	default:
		close(s.loaded)
	}
	return nil
}

// pace returns how long to wait before a refusal is sent. The first one of a content goes at once; a control plane that
// answers each with the same again is slowed down, up to ten seconds.
func (s *Source) pace() time.Duration {
	s.mu.Lock()
	n := s.refusal
	s.mu.Unlock()
	if n <= 1 {
		return 0
	}
	return min(10*time.Second, 100*time.Millisecond<<min(n-2, 10))
}

// contentOf returns a sum of a response's version and resources.
func contentOf(resp *discoveryv3.DiscoveryResponse) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(resp.GetVersionInfo()), resp.GetVersionInfo())
	for _, r := range resp.GetResources() {
		fmt.Fprintf(h, "%d:%s%d:", len(r.GetTypeUrl()), r.GetTypeUrl(), len(r.GetValue()))
		h.Write(r.GetValue())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// bounded cuts a text that would be too long for a log, or for a control plane's status.
func bounded(text string) string {
	const most = 4096
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
