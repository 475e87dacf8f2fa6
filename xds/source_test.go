package xds_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/xds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// controlPlane is an aggregated discovery service whose every response a test sends.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	addr     string
	server   *grpc.Server
	requests chan *discoveryv3.DiscoveryRequest
	headers  chan metadata.MD
	send     chan *discoveryv3.DiscoveryResponse
}

func (c *controlPlane) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	select {
	case c.headers <- md:
	default:
	}
	received := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			select {
			case c.requests <- r:
			case <-stream.Context().Done():
			}
		}
	}()
	for {
		select {
		case err := <-received:
			return err
		case r := <-c.send:
			if r == nil {
				return errors.New("the stream breaks")
			}
			if err := stream.Send(r); err != nil {
				return err
			}
		}
	}
}

// startControlPlane serves on addr, or any port when it is empty, until the test ends or stop is called.
func startControlPlane(t *testing.T, addr string) *controlPlane {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &controlPlane{
		addr: l.Addr().String(), server: grpc.NewServer(), requests: make(chan *discoveryv3.DiscoveryRequest, 100),
		headers: make(chan metadata.MD, 1), send: make(chan *discoveryv3.DiscoveryResponse),
	}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.server, c)
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.server.Serve(l) })
	t.Cleanup(func() {
		c.server.Stop()
		wg.Wait()
	})
	return c
}

// next returns the next request; it must come within 20 s.
func (c *controlPlane) next(t *testing.T) *discoveryv3.DiscoveryRequest {
	t.Helper()
	select {
	case r := <-c.requests:
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("no request")
		return nil
	}
}

// push sends resources and returns the answer to them.
func (c *controlPlane) push(t *testing.T, version string, resources ...*configv3.RateLimitConfig) *discoveryv3.DiscoveryRequest {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: xds.TypeURL, Nonce: "n" + version}
	for _, config := range resources {
		any, err := anypb.New(config)
		if err != nil {
			t.Fatal(err)
		}
		r.Resources = append(r.Resources, any)
	}
	select {
	case c.send <- r:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody takes the response")
	}
	answer := c.next(t)
	if answer.GetResponseNonce() != r.GetNonce() {
		t.Errorf("the answer is to %q, not %q", answer.GetResponseNonce(), r.GetNonce())
	}
	return answer
}

// limits keep what was applied last.
type limits struct {
	mu      sync.Mutex
	set     *descriptors.Set
	applied int
}

func (l *limits) apply(files []descriptors.File) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applied++
	if len(files) == 0 {
		l.set = new(descriptors.Set)
		return nil
	}
	set, err := descriptors.Parse(files, descriptors.Options{DropIn: descriptors.DropInOptions{Only: true}})
	if err == nil {
		l.set = set
	}
	return err
}

// of returns the rule for entries, nil for none.
func (l *limits) of(domain string, entries ...descriptors.Entry) *descriptors.DropInRule {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.set == nil {
		return nil
	}
	d, ok := l.set.DropIn(domain)
	if !ok {
		return nil
	}
	var m descriptors.Match
	d.Match(entries, &m)
	return m.Rule
}

func (l *limits) perUnit(domain string) int64 {
	r := l.of(domain, descriptors.Entry{Key: "plan", Value: "gold"})
	if r == nil {
		return -1
	}
	return r.Limits[0].PerUnit
}

// log counts records by message.
type log struct {
	slog.Handler

	mu     sync.Mutex
	counts map[string]int
}

func newLog() *log { return &log{Handler: slog.DiscardHandler, counts: make(map[string]int)} }

func (l *log) Enabled(context.Context, slog.Level) bool { return true }
func (l *log) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	l.counts[r.Message]++
	l.mu.Unlock()
	return nil
}

const refusedMessage = "limits from the control plane refused: the last ones stay in use"

// follow runs a source until the test ends.
func follow(t *testing.T, addr string, l *limits, change func(*xds.Config)) (*xds.Source, *log) {
	t.Helper()
	records := newLog()
	cfg := xds.Config{
		Server: addr, NodeID: "test-node", NodeMetadata: map[string]string{"zone": "z1"}, Headers: map[string]string{"x-extra": "yes"},
		Apply: l.apply, Log: slog.New(records),
		Retry: 10 * time.Millisecond, BackoffInitial: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond, Random: 0.5,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := xds.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, records
}

// plan returns the limits of a domain with one rule.
func plan(domain string, perUnit uint32) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*configv3.RateLimitDescriptor{{
		Key: "plan", RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_HOUR, RequestsPerUnit: perUnit},
	}}}
}

// XD-01: a bad version after a good one is refused with the reason and the good one's version, once in the log, whatever
// the control plane repeats; the good one stays, and the next good one is used. XD-07: the status tells which is which.
func TestXD_01_and_XD_07_a_bad_version_leaves_the_good_one(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	var l limits
	s, records := follow(t, c.addr, &l, nil)
	hello := c.next(t)
	if hello.GetNode().GetId() != "test-node" || hello.GetNode().GetMetadata().GetFields()["zone"].GetStringValue() != "z1" ||
		hello.GetTypeUrl() != xds.TypeURL || hello.GetVersionInfo() != "" {
		t.Errorf("the first request is %v", hello)
	}
	if md := <-c.headers; !slices.Equal(md.Get("x-extra"), []string{"yes"}) {
		t.Errorf("headers %v", md)
	}
	if ack := c.push(t, "v1", plan("shop", 10)); ack.GetErrorDetail() != nil || ack.GetVersionInfo() != "v1" {
		t.Errorf("the answer to v1 is %v", ack)
	}
	<-s.Loaded()
	bad := plan("shop", 20)
	bad.Descriptors[0].RateLimit.Unit = 99
	start := time.Now()
	for i := range 5 {
		nack := c.push(t, "v2", plan("other", 1), bad)
		if nack.GetVersionInfo() != "v1" || !strings.Contains(nack.GetErrorDetail().GetMessage(), "invalid rate limit unit") {
			t.Fatalf("answer %d to v2 is %v", i, nack)
		}
	}
	if took := time.Since(start); took < 1400*time.Millisecond { // 0, 0.1, 0.2, 0.4, 0.8 s
		t.Errorf("a control plane that repeats itself is answered five times in %v", took)
	}
	if l.perUnit("shop") != 10 || l.perUnit("other") != -1 || l.applied != 2 {
		t.Errorf("limits %d, %d after %d applications", l.perUnit("shop"), l.perUnit("other"), l.applied)
	}
	if got := s.Status(); got.Active != "v1" || got.Rejected != "v2" || !strings.Contains(got.Reason, "unit") || !got.Connected {
		t.Errorf("status %+v", got)
	}
	if ack := c.push(t, "v3", plan("shop", 30)); ack.GetVersionInfo() != "v3" || ack.GetErrorDetail() != nil || l.perUnit("shop") != 30 {
		t.Errorf("after v3: %v, limit %d", ack, l.perUnit("shop"))
	}
	if got := s.Status(); got.Active != "v3" || got.Rejected != "" || got.Reason != "" {
		t.Errorf("status %+v", got)
	}
	records.mu.Lock()
	defer records.mu.Unlock()
	if n := records.counts[refusedMessage]; n != 1 {
		t.Errorf("%d log records about v2, want one", n)
	}
}

// XD-02: a duplicate in one resource is refused by name, and no domain loses what it had.
func TestXD_02_duplicate_composite_key(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	var l limits
	follow(t, c.addr, &l, nil)
	c.next(t)
	c.push(t, "1", plan("shop", 10), plan("other", 5))
	twice := plan("shop", 20)
	for range 2 {
		twice.Descriptors = append(twice.Descriptors, &configv3.RateLimitDescriptor{
			Key: "masked_remote_address", Value: "0.0.0.0/0", RateLimit: twice.Descriptors[0].GetRateLimit(),
		})
	}
	nack := c.push(t, "2", twice, plan("other", 6))
	if text := nack.GetErrorDetail().GetMessage(); !strings.Contains(text, "duplicate descriptor composite key") || !strings.Contains(text, "xds:shop") {
		t.Errorf("the answer is %v", nack)
	}
	if l.perUnit("shop") != 10 || l.perUnit("other") != 5 {
		t.Errorf("limits %d and %d, want those of before", l.perUnit("shop"), l.perUnit("other"))
	}
}

// XD-03: the control plane breaks its stream, goes away, and comes back with a version that it has used before for other
// limits. Limits stay meanwhile, and those of the new one are taken.
func TestXD_03_control_plane_redeployed(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	var l limits
	s, _ := follow(t, c.addr, &l, nil)
	c.next(t)
	c.push(t, "7", plan("shop", 10))
	c.send <- nil // the stream breaks
	if hello := c.next(t); hello.GetVersionInfo() != "" {
		t.Errorf("the new stream begins with the version %q: a control plane that counts anew would send nothing", hello.GetVersionInfo())
	}
	c.server.Stop()
	deadline := time.Now().Add(20 * time.Second)
	for s.Status().Connected {
		if time.Now().After(deadline) {
			t.Fatal("it does not notice that the control plane is gone")
		}
		time.Sleep(time.Millisecond)
	}
	if l.perUnit("shop") != 10 || s.Status().Active != "7" {
		t.Errorf("without a control plane: limit %d, %+v", l.perUnit("shop"), s.Status())
	}
	again := startControlPlane(t, c.addr)
	again.next(t)
	for i, version := range []string{"7", "1", ""} {
		want := int64(20 + i)
		if ack := again.push(t, version, plan("shop", uint32(want))); ack.GetErrorDetail() != nil || l.perUnit("shop") != want {
			t.Errorf("version %q: %v, limit %d, want %d", version, ack, l.perUnit("shop"), want)
		}
	}
}

// XD-03, too: after a long time away it is back within the retry interval, and not after waits that have grown to minutes.
func TestXD_03_a_long_time_away(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	var l limits
	s, records := follow(t, c.addr, &l, func(cfg *xds.Config) { cfg.Retry, cfg.Random = 200*time.Millisecond, 0 })
	c.next(t)
	c.push(t, "1", plan("shop", 10))
	c.server.Stop()
	time.Sleep(3 * time.Second)
	again := startControlPlane(t, c.addr)
	start := time.Now()
	again.next(t)
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it came back after %v", took)
	}
	records.mu.Lock()
	defer records.mu.Unlock()
	if n := records.counts["no limits come from the control plane: the last ones stay in use"]; n < 3 || n > 20 {
		t.Errorf("%d tries in 3 s, want one each 0.2 s: %+v", n, s.Status())
	}
}

// XD-05: what is in no enumeration, or stands twice, is judged as in files.
func TestXD_05_values(t *testing.T) {
	t.Parallel()
	with := func(p *configv3.RateLimitPolicy) *configv3.RateLimitConfig {
		c := plan("shop", 0)
		c.Descriptors[0].RateLimit = p
		return c
	}
	renamed := plan("shop", 4)
	renamed.Name = "another name"
	quota := plan("shop", 5)
	quota.Descriptors[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1))
	described := plan("shop", 7)
	described.Descriptors[0].ProtoReflect().SetUnknown(newer(t, 8, map[string]any{
		"to": "backend-1", "weights": []any{1.5, true, nil}, "on": map[string]any{"a": "<&>\u00e9"},
	}))
	mistaken := plan("shop", 8)
	mistaken.Descriptors[0].ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 8, protowire.BytesType), "\xff\xff"))
	nested := plan("shop", 6)
	nested.Descriptors = []*configv3.RateLimitDescriptor{{Key: "a", Value: "emoji \U0001F600 <&>", Descriptors: nested.GetDescriptors()}}

	c := startControlPlane(t, "")
	var l limits
	follow(t, c.addr, &l, nil)
	c.next(t)
	for i, tt := range []struct {
		name  string
		sent  []*configv3.RateLimitConfig
		wrong string // in the reason; empty: taken
		want  func() bool
	}{
		{"unit 99", []*configv3.RateLimitConfig{with(&configv3.RateLimitPolicy{Unit: 99})}, `invalid rate limit unit "99"`, nil},
		{"no unit", []*configv3.RateLimitConfig{with(&configv3.RateLimitPolicy{RequestsPerUnit: 1})}, `invalid rate limit unit "unknown"`, nil},
		{"unit beside unlimited", []*configv3.RateLimitConfig{with(&configv3.RateLimitPolicy{Unlimited: true, Unit: 1})}, "when unlimited", nil},
		{"no domain", []*configv3.RateLimitConfig{plan("", 1)}, "empty domain", nil},
		{"one domain twice", []*configv3.RateLimitConfig{plan("shop", 1), renamed}, "duplicate domain", nil},
		{"unlimited", []*configv3.RateLimitConfig{with(&configv3.RateLimitPolicy{Unlimited: true})}, "", func() bool { return l.of("shop", gold).Unlimited }},
		{"0 denies", []*configv3.RateLimitConfig{plan("shop", 0)}, "", func() bool { return l.perUnit("shop") == 0 }},
		{"week", []*configv3.RateLimitConfig{with(&configv3.RateLimitPolicy{Unit: 7, RequestsPerUnit: 3})}, "", func() bool { return l.of("shop", gold).Limits[0].Unit == descriptors.Week }},
		{"another name than the domain", []*configv3.RateLimitConfig{renamed}, "", func() bool { return l.perUnit("shop") == 4 }},
		{"quota mode", []*configv3.RateLimitConfig{quota}, "", func() bool { return l.of("shop", gold).Quota }},
		{"metadata", []*configv3.RateLimitConfig{described}, "", func() bool {
			return reflect.DeepEqual(l.of("shop", gold).Metadata, map[string]any{
				"to": "backend-1", "weights": []any{1.5, true, nil}, "on": map[string]any{"a": "<&>\u00e9"},
			})
		}},
		{"no metadata", []*configv3.RateLimitConfig{mistaken}, "", func() bool { return l.perUnit("shop") == 8 && l.of("shop", gold).Metadata == nil }},
		{"nested", []*configv3.RateLimitConfig{nested}, "", func() bool {
			return l.of("shop", descriptors.Entry{Key: "a", Value: "emoji \U0001F600 <&>"}, gold).Limits[0].PerUnit == 6
		}},
		{"nothing", nil, "", func() bool { return l.of("shop", gold) == nil }},
	} {
		answer := c.push(t, tt.name, tt.sent...)
		if text := answer.GetErrorDetail().GetMessage(); !strings.Contains(text, tt.wrong) || (tt.wrong == "") != (answer.GetErrorDetail() == nil) {
			t.Errorf("%d %s: answered %v, want %q", i, tt.name, answer, tt.wrong)
		}
		if tt.want != nil && !tt.want() {
			t.Errorf("%d %s: the limits are not those that were sent", i, tt.name)
		}
	}
}

// newer is a field that the generated types do not know.
func newer(t *testing.T, number protowire.Number, value map[string]any) []byte {
	t.Helper()
	s, err := structpb.NewStruct(value)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), encoded)
}

var gold = descriptors.Entry{Key: "plan", Value: "gold"}

// A resource that is no RateLimitConfig is refused; a response of another type is none of ours.
func TestOtherTypes(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	var l limits
	follow(t, c.addr, &l, nil)
	c.next(t)
	c.send <- &discoveryv3.DiscoveryResponse{TypeUrl: "type.googleapis.com/other", Nonce: "x"}
	for _, r := range []*anypb.Any{{TypeUrl: "type.googleapis.com/other"}, {TypeUrl: xds.TypeURL, Value: []byte{0xff}}} {
		c.send <- &discoveryv3.DiscoveryResponse{TypeUrl: xds.TypeURL, Nonce: "y", Resources: []*anypb.Any{r}}
		if answer := c.next(t); answer.GetErrorDetail() == nil || answer.GetResponseNonce() != "y" {
			t.Errorf("%v was answered %v", r, answer)
		}
	}
	if l.applied != 0 {
		t.Error("it was applied")
	}
}

// A message beyond the bound ends the stream, and the limits stay.
func TestMessageBound(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	var l limits
	follow(t, c.addr, &l, func(cfg *xds.Config) { cfg.MaxMessageBytes = 2000 })
	c.next(t)
	c.push(t, "1", plan("shop", 10))
	big := plan("shop", 20)
	big.Descriptors[0].Value = strings.Repeat("x", 3000)
	any, err := anypb.New(big)
	if err != nil {
		t.Fatal(err)
	}
	c.send <- &discoveryv3.DiscoveryResponse{VersionInfo: "2", TypeUrl: xds.TypeURL, Resources: []*anypb.Any{any}}
	if hello := c.next(t); hello.GetResponseNonce() != "" || l.perUnit("shop") != 10 {
		t.Errorf("after a message that is too large: %v, limit %d", hello, l.perUnit("shop"))
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := xds.Config{Server: "a:1", Apply: new(limits).apply, Log: slog.New(slog.DiscardHandler)}
	for name, change := range map[string]func(*xds.Config){
		"server": func(c *xds.Config) { c.Server = "" }, "apply": func(c *xds.Config) { c.Apply = nil }, "log": func(c *xds.Config) { c.Log = nil },
		"retry": func(c *xds.Config) { c.Retry = -1 }, "random": func(c *xds.Config) { c.Random = 2 }, "size": func(c *xds.Config) { c.MaxMessageBytes = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := xds.New(cfg); err == nil {
			t.Errorf("a wrong %s is taken", name)
		}
	}
}
