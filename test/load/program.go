package load

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// Build builds sentinel-rls from the source, as it is released, and returns the path of the binary in dir.
func Build(ctx context.Context, dir string) (string, error) {
	root, err := testserver.Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "sentinel-rls")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=grpcnotrace", "-o", binary, "./cmd/sentinel-rls")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building sentinel-rls: %w\n%s", err, out)
	}
	return binary, nil
}

// Settings are what a Program is started with.
type Settings struct {
	Binary   string             // from Build
	Policies string             // a policy file's text; its domain is Domain
	More     []string           // the texts of further policy files
	Store    *testserver.Server // nil: the program's own memory, or StoreURL
	StoreURL string             // of a store that is no single server
	Port     int                // where it serves gRPC on loopback; 0: it chooses itself
	Env      []string           // settings beside the defaults, as SENTINEL_…=value
}

// Program is a running sentinel-rls with a temporary directory of its own. Safe for concurrent use.
type Program struct {
	*testserver.Process
	dir    string
	secret []byte
	at     atomic.Pointer[addresses] // Again changes it while others ask
}

// addresses are where a program listens, host and port each.
type addresses struct{ grpc, admin string }

// Start starts the program and returns once it is ready and, where it has a store, connected. The caller ends it with Stop.
func Start(ctx context.Context, s Settings) (_ *Program, err error) {
	p := &Program{secret: []byte(rand.Text() + rand.Text())}
	p.at.Store(&addresses{})
	if p.dir, err = os.MkdirTemp("", "sentinel-rls"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Stop()
		}
	}()
	config, err := p.write(s)
	if err != nil {
		return nil, err
	}
	args := []string{"serve", "--config", config, "--grpc", testserver.LoopbackAddr(s.Port), "--admin", "127.0.0.1:0"}
	if s.Store != nil {
		args = append(args, "--redis", s.Store.URL())
	} else if s.StoreURL != "" {
		args = append(args, "--redis", s.StoreURL)
	}
	if p.Process, err = testserver.Exec("sentinel-rls", s.Binary, args, s.Env); err != nil {
		return nil, err
	}
	if err := await(ctx, p.Process, func() bool { return p.readAddresses() && p.ready(ctx) }); err != nil {
		return nil, fmt.Errorf("sentinel-rls: %w", err)
	}
	return p, nil
}

// Again starts a program that was killed with the same settings and returns once it is ready. With Settings.Port it serves
// where it did before.
func (p *Program) Again(ctx context.Context) error {
	p.at.Store(&addresses{})
	if err := p.Restart(); err != nil {
		return err
	}
	if err := await(ctx, p.Process, func() bool { return p.readAddresses() && p.ready(ctx) }); err != nil {
		return fmt.Errorf("sentinel-rls, started again: %w", err)
	}
	return nil
}

// write writes configuration, policies and secret, and returns the configuration's path.
func (p *Program) write(s Settings) (config string, err error) {
	var names []string
	for i, text := range append([]string{s.Policies}, s.More...) {
		names = append(names, fmt.Sprintf("policies-%d.yaml", i))
		err = errors.Join(err, os.WriteFile(filepath.Join(p.dir, names[i]), []byte(text), 0o600))
	}
	text := fmt.Sprintf("policies: [%s]\njwt: {keys: [{alg: HS256, secret_file: secret}]}\n", strings.Join(names, ", "))
	config = filepath.Join(p.dir, "sentinel.yaml")
	return config, errors.Join(
		err,
		os.WriteFile(filepath.Join(p.dir, "secret"), p.secret, 0o600),
		os.WriteFile(config, []byte(text), 0o600),
	)
}

// readAddresses finds in the log where the program listens, since it chose its ports itself: the last time that it
// started.
func (p *Program) readAddresses() bool {
	found := false
	for line := range strings.Lines(p.Log()) {
		var record struct{ Msg, GRPC, Admin string }
		if json.Unmarshal([]byte(line), &record) == nil && record.Msg == "serving" {
			p.at.Store(&addresses{record.GRPC, record.Admin})
			found = true
		}
	}
	return found
}

// ready says whether /readyz reports neither a reason to wait nor a degradation.
func (p *Program) ready(ctx context.Context) bool {
	text, err := p.Get(ctx, "/readyz")
	var body struct{ Degraded []string }
	return err == nil && json.Unmarshal(text, &body) == nil && len(body.Degraded) == 0
}

// Get returns what the admin address answers for a path. It waits a minute at most.
func (p *Program) Get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.AdminURL()+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", path, answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// Metric is Metrics.Sum of the metrics of this moment.
func (p *Program) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	m, err := p.Metrics(ctx)
	return m.Sum(name, labels...), err
}

// Metrics are the metrics of one moment.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the program's metrics.
func (p *Program) Metrics(ctx context.Context) (Metrics, error) {
	text, err := p.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	return families, nil
}

// Sum returns the sum over all series of a counter or gauge, or what a histogram's observations add up to; 0 when there is
// none. Only series with every label in labels count, each written name=value.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for _, s := range m[name].GetMetric() {
		matching := 0
		for _, l := range s.GetLabel() {
			if slices.Contains(labels, l.GetName()+"="+l.GetValue()) {
				matching++
			}
		}
		if matching == len(labels) {
			sum += s.GetCounter().GetValue() + s.GetGauge().GetValue() + s.GetHistogram().GetSampleSum()
		}
	}
	return sum
}

// Collect has the program collect its garbage, so that what it holds is what it needs.
func (p *Program) Collect(ctx context.Context) error {
	_, err := p.Get(ctx, "/debug/pprof/heap?gc=1")
	return err
}

// Token returns a bearer token of a tenant that the program accepts for an hour.
func (p *Program) Token(tenant string) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject: tenant, ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).SignedString(p.secret)
}

// Addr returns host and port of the gRPC services.
func (p *Program) Addr() string { return p.at.Load().grpc }

// AdminURL returns where metrics and profiles are served.
func (p *Program) AdminURL() string { return "http://" + p.at.Load().admin }

// Stop kills the program and removes its directory. Stopping twice is legal.
func (p *Program) Stop() {
	if p.Process != nil {
		p.Kill()
	}
	_ = os.RemoveAll(p.dir)
}
