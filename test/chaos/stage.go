package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

const (
	callers       = 64
	connections   = 4
	capacityFor   = 2 * time.Second
	capacityWarm  = time.Second
	capacityTries = 3
)

// stage is what all drills share: the program's binary, the bare server, and how much load there is.
type stage struct {
	options
	dir         string
	binary      string
	otherBinary string   // another version; empty until it is needed
	servers     []string // the kinds of store servers and their versions
	capacity    float64  // calls per second that the program answers at most; 0: the rate was given
	bare        *load.Bare
	bareConns   load.Conns
}

func newStage(ctx context.Context, o options) (_ *stage, err error) {
	s := &stage{options: o}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "chaos"); err != nil {
		return nil, err
	}
	if s.binary, err = load.Build(ctx, s.dir); err != nil {
		return nil, err
	}
	if s.otherBinary, err = buildOther(ctx, s.dir); err != nil {
		return nil, err
	}
	for _, kind := range o.Kinds {
		server, err := testserver.Run(ctx, kind)
		if err != nil {
			return nil, err
		}
		s.servers = append(s.servers, fmt.Sprintf("%s %s", kind, server.Version()))
		server.Stop()
	}
	if s.bare, err = load.StartBare(ctx); err != nil {
		return nil, err
	}
	if s.bareConns, err = load.Dial(ctx, s.bare.Addr(), connections); err != nil {
		return nil, err
	}
	return s, s.setRate(ctx)
}

// buildOther builds another version of the program: its script has another digest, so that each has to load its own.
func buildOther(ctx context.Context, dir string) (string, error) {
	root, err := testserver.Root()
	if err != nil {
		return "", err
	}
	script := filepath.Join(root, "lua", "group.lua")
	text, err := os.ReadFile(script)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "group.lua"), filepath.Join(dir, "overlay.json")
	binary := filepath.Join(dir, "other-sentinel-rls")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {script: changed}})
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.WriteFile(changed, append([]byte("-- Another version.\n"), text...), 0o600),
		os.WriteFile(overlay, replace, 0o600),
	)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-overlay", overlay, "-o", binary, "./cmd/sentinel-rls")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building another version: %w\n%s", err, out)
	}
	return binary, nil
}

func (s *stage) close() {
	s.bareConns.Close()
	if s.bare != nil {
		s.bare.Kill()
	}
	_ = os.RemoveAll(s.dir)
}

// load describes the load in words.
func (s *stage) load() string {
	text := fmt.Sprintf("Open loop, %.0f calls/s on each server", s.Rate)
	if s.capacity > 0 {
		text += fmt.Sprintf(", half of the %.0f that the program answered on %s in a closed loop (`rls_redis`) just before, with as many callers at the bare server", s.capacity, s.servers[0])
	}
	text += fmt.Sprintf("; deadlines of %v, breaker quarantine %v; of %d runs of each drill", s.Deadline, s.Quarantine, s.Runs)
	if s.Short {
		text += ", in the short form,"
	}
	return text + " the middle one."
}

// scene is a program on a store of its own, under load beside the bare server.
type scene struct {
	*stage
	store    *testserver.Server      // the server, or the master that a failover drill kills
	replica  *testserver.Server      // of that master; nil: there is none
	cluster  *testserver.Cluster     // nil: there is none
	sentinel *testserver.SentinelSet // nil: there is none
	proxy    *testserver.Proxy       // nil: there is none
	client   *redis.Client           // of store, beside the program
	password string                  // the file that the program reads the password from; empty: none

	program *load.Program
	other   *load.Program // another version; nil: there is none
	conns   load.Conns
	watch   watch
	written int64         // the replication offset of a master when it was killed
	lag     time.Duration // of the replica that took over; negative: there is none
	// recovered is how long after it took over every answer was the store's own; negative: that did not come.
	recovered time.Duration
	buried    int64 // what a program had counted as admitted by the store when it was killed
}

// open starts store and program. close ends both.
func (s *stage) open(ctx context.Context, kind testserver.Kind, policies string, f fault) (_ *scene, err error) {
	c := &scene{stage: s, lag: -1}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	url, err := c.openStore(ctx, kind, f)
	if err != nil {
		return nil, err
	}
	c.client = c.store.Client()
	settings := load.Settings{
		Binary: s.binary, Policies: policies, StoreURL: url,
		Env: []string{
			"SENTINEL_BREAKER_QUARANTINE=" + s.Quarantine.String(),
			"SENTINEL_DENY_CACHE_MAX_AGE=0s", // so that every call asks the store, and a probe's denial is the store's own
		},
	}
	if s.Budget > 0 {
		settings.Env = append(settings.Env, "SENTINEL_REDIS_BUDGET="+s.Budget.String())
	}
	if f.password != "" {
		c.password = filepath.Join(s.dir, "password-"+filepath.Base(c.store.Dir()))
		if err := c.writePassword(f.password); err != nil {
			return nil, err
		}
		settings.Env = append(settings.Env, "SENTINEL_REDIS_PASSWORD_FILE="+c.password)
	}
	if settings.Port, err = testserver.FreePort(); err != nil {
		return nil, err
	}
	if c.program, err = load.Start(ctx, settings); err != nil {
		return nil, err
	}
	if c.conns, err = load.Dial(ctx, c.program.Addr(), connections); err != nil {
		return nil, err
	}
	if f.other {
		settings.Binary, settings.Port = s.otherBinary, 0
		if c.other, err = load.Start(ctx, settings); err != nil {
			return nil, err
		}
		conns, err := load.Dial(ctx, c.other.Addr(), connections)
		if err != nil {
			return nil, err
		}
		c.conns = append(c.conns, conns...)
	}
	return c, nil
}

// programs returns those that run.
func (c *scene) programs() []*load.Program {
	if c.other != nil {
		return []*load.Program{c.program, c.other}
	}
	return []*load.Program{c.program}
}

func (c *scene) writePassword(text string) error {
	return os.WriteFile(c.password, []byte(text), 0o600)
}

// probeKey is the bucket of the tenant by whom recovery is told: see spend.
const probeKey = "sentinel:v1:{ba9c736f19e7f60b7f6764adb0b7908c0a2b394e09b6c09863528c7f2bc86095}:spent:1"

// openStore starts the servers and returns the URL that the program is given.
func (c *scene) openStore(ctx context.Context, kind testserver.Kind, f fault) (url string, err error) {
	opts := []testserver.Option{testserver.WithArgs(f.args...)}
	if f.password != "" {
		opts = append(opts, testserver.WithPassword(f.password))
	}
	switch f.topology {
	case cluster:
		if f.losses > 0 { // a master is to be killed
			opts = append(opts, testserver.QuickFailover())
		}
		if c.cluster, err = testserver.RunCluster(ctx, kind, opts...); err != nil {
			return "", err
		}
		url = c.cluster.URL()
		return url, c.findMaster(ctx)
	case sentinel:
		if c.sentinel, err = testserver.RunSentinelSet(ctx, kind, opts...); err != nil {
			return "", err
		}
		c.store, c.replica = c.sentinel.Master, c.sentinel.Replica
		return c.sentinel.URL(), nil
	}
	if c.store, err = testserver.Run(ctx, kind, opts...); err != nil {
		return "", err
	}
	if f.proxied {
		if c.proxy, err = testserver.NewProxy(ctx, c.store.Addr()); err != nil {
			return "", err
		}
		return "redis://" + c.proxy.Addr(), nil
	}
	return "redis://" + c.store.Addr(), nil
}

// findMaster makes the server that keeps the probe's bucket the one that matters.
func (c *scene) findMaster(ctx context.Context) error {
	for i, m := range c.cluster.Masters {
		client := m.Client()
		err := client.Get(ctx, probeKey).Err()
		_ = client.Close()
		if err == nil || errors.Is(err, redis.Nil) {
			c.store, c.replica = m, c.cluster.Replicas[i]
			return nil
		}
		if !strings.HasPrefix(err.Error(), "MOVED") {
			return err
		}
	}
	return errors.New("no server keeps the probe's bucket")
}

func (c *scene) close() {
	c.conns.Close()
	for _, p := range []*load.Program{c.program, c.other} {
		if p != nil {
			p.Stop()
		}
	}
	if c.proxy != nil {
		c.proxy.Close()
	}
	if c.client != nil {
		_ = c.client.Close()
	}
	switch {
	case c.cluster != nil:
		c.cluster.Stop()
	case c.sentinel != nil:
		c.sentinel.Stop()
	case c.store != nil:
		c.store.Stop()
	}
}

// setRate makes the rate half of what the program answers in a closed loop while the bare server is driven, too, as in the
// drills, unless a rate was given.
func (s *stage) setRate(ctx context.Context) error {
	if s.Rate > 0 {
		return nil
	}
	c, err := s.open(ctx, s.Kinds[0], plenty, fault{})
	if err != nil {
		return err
	}
	defer c.close()
	ask := load.RateLimit("plenty", 10_000)
	for range capacityTries {
		if _, err := (load.Closed{Callers: callers, For: capacityWarm}).Run(ctx, c.conns, ask); err != nil {
			return err
		}
		var calls *load.Report
		both, ctx := errgroup.WithContext(ctx)
		loop := load.Closed{Callers: callers, For: capacityFor}
		both.Go(func() error { _, err := loop.Run(ctx, s.bareConns, ask); return err })
		both.Go(func() (err error) { calls, err = loop.Run(ctx, c.conns, ask); return err })
		if err := both.Wait(); err != nil {
			return err
		}
		// Answers that are not the store's own are denials here. They are quick and would feign a capacity.
		if calls.Share(load.Allowed) > 0.999 {
			s.capacity = calls.Rate()
			s.Rate = math.Round(s.capacity / 2)
			return nil
		}
	}
	return errors.New("the machine is too busy to tell what the program answers at most: choose a -rate")
}

// plenty admits every call while the store answers, and hardly any when it does not.
const plenty = `
domain: load
endpoints:
  plenty:
    policy_version: 1
    fail_mode: fail_open
    emergency: {capacity: 1, refill: 0}
    limits:
      - {algorithm: token_bucket, capacity: 1000000000, refill: 1/s}
`
