package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

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
	dir          string
	binary       string
	storeVersion string
	capacity     float64 // calls per second that the program answers at most; 0: the rate was given
	bare         *load.Bare
	bareConns    load.Conns
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
	if s.bare, err = load.StartBare(ctx); err != nil {
		return nil, err
	}
	if s.bareConns, err = load.Dial(ctx, s.bare.Addr(), connections); err != nil {
		return nil, err
	}
	return s, s.setRate(ctx)
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
	text := fmt.Sprintf("Open loop, %.0f calls/s on each server, deadlines of %v, breaker quarantine %v", s.Rate, s.Deadline, s.Quarantine)
	if s.capacity > 0 {
		text += fmt.Sprintf("; in a closed loop the program answers %.0f calls/s", s.capacity)
	}
	return text + "."
}

// scene is a program on a store of its own, under load beside the bare server.
type scene struct {
	*stage
	store   *testserver.Server
	program *load.Program
	conns   load.Conns
}

// open starts store and program. close ends both.
func (s *stage) open(ctx context.Context, policies string) (_ *scene, err error) {
	c := &scene{stage: s}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.store, err = testserver.Run(ctx, testserver.Redis); err != nil {
		return nil, err
	}
	s.storeVersion = string(c.store.Kind()) + " " + c.store.Version()
	settings := load.Settings{
		Binary: s.binary, Policies: policies, Store: c.store,
		Env: []string{"SENTINEL_BREAKER_QUARANTINE=" + s.Quarantine.String()},
	}
	if s.Budget > 0 {
		settings.Env = append(settings.Env, "SENTINEL_REDIS_BUDGET="+s.Budget.String())
	}
	if c.program, err = load.Start(ctx, settings); err != nil {
		return nil, err
	}
	c.conns, err = load.Dial(ctx, c.program.Addr(), connections)
	return c, err
}

func (c *scene) close() {
	c.conns.Close()
	if c.program != nil {
		c.program.Stop()
	}
	if c.store != nil {
		c.store.Stop()
	}
}

// setRate makes the rate half of what the program answers in a closed loop, unless a rate was given. It also learns the
// store's version.
func (s *stage) setRate(ctx context.Context) error {
	c, err := s.open(ctx, plenty)
	if err != nil {
		return err
	}
	defer c.close()
	if s.Rate > 0 {
		return nil
	}
	ask := load.RateLimit("plenty", 10_000)
	for range capacityTries {
		if _, err := (load.Closed{Callers: callers, For: capacityWarm}).Run(ctx, c.conns, ask); err != nil {
			return err
		}
		calls, err := load.Closed{Callers: callers, For: capacityFor}.Run(ctx, c.conns, ask)
		if err != nil {
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
      - {algorithm: token_bucket, capacity: 1000000000, refill: 1000000/s}
`
