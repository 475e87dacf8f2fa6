package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the sentinels of a SentinelSet call its master.
const MasterName = "mymaster"

// SentinelSet is a master, a replica, and three sentinels that watch them, on loopback.
type SentinelSet struct {
	Master, Replica *Server // as they start; a failover swaps them
	Sentinels       []*Server
}

const sentinelCount = 3

// sentinelConfig: a master is down after half a second, which two sentinels must see.
const sentinelConfig = `
bind 127.0.0.1
dir %[1]s
sentinel monitor ` + MasterName + ` 127.0.0.1 %[2]s 2
sentinel down-after-milliseconds ` + MasterName + ` 500
sentinel failover-timeout ` + MasterName + ` 2000
`

// RunSentinelSet starts the set and returns once the sentinels know one another and the replica follows. The caller ends
// it with Stop.
func RunSentinelSet(ctx context.Context, kind Kind, opts ...Option) (_ *SentinelSet, err error) {
	s := new(SentinelSet)
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	opts = slices.Concat([]Option{WithArgs("--repl-diskless-sync-delay", "0")}, opts)
	if s.Master, err = Run(ctx, kind, opts...); err != nil {
		return nil, err
	}
	_, port, _ := strings.Cut(s.Master.addr, ":")
	if s.Replica, err = Run(ctx, kind, slices.Concat(opts, []Option{WithArgs("--replicaof", "127.0.0.1", port)})...); err != nil {
		return nil, err
	}
	if err = eventually(ctx, "the replica", func() error { return follows(ctx, s.Replica) }); err != nil {
		return nil, err
	}
	for range sentinelCount {
		sentinel, err := runSentinel(ctx, kind, s.Master)
		if err != nil {
			return nil, err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	for _, sentinel := range s.Sentinels {
		if err = eventually(ctx, "a sentinel", func() error { return knowsAll(ctx, sentinel) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// StartSentinelSet starts a set for one test and stops it when the test ends, as Start does.
func StartSentinelSet(t testing.TB, kind Kind, opts ...Option) *SentinelSet {
	t.Helper()
	s, err := RunSentinelSet(t.Context(), kind, opts...)
	need(t, err)
	for _, server := range s.servers() {
		end(t, server.Process, server.Stop)
	}
	return s
}

// runSentinel starts a sentinel. It keeps what it learns in its configuration file.
func runSentinel(ctx context.Context, kind Kind, master *Server) (*Server, error) {
	dir, err := os.MkdirTemp("", "sentinel")
	if err != nil {
		return nil, err
	}
	_, port, _ := strings.Cut(master.addr, ":")
	text := fmt.Sprintf(sentinelConfig, dir, port)
	if master.password != "" {
		text += "sentinel auth-pass " + MasterName + " " + master.password + "\n"
	}
	file := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s, err := Run(ctx, kind, func(o *options) { o.sentinel = file })
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func follows(ctx context.Context, s *Server) error {
	client := s.Client()
	defer client.Close()
	info, err := client.Info(ctx, "replication").Result()
	if err == nil && !strings.Contains(info, "master_link_status:up") {
		err = errors.New("it does not follow its master")
	}
	return err
}

func knowsAll(ctx context.Context, s *Server) error {
	sentinel := redis.NewSentinelClient(s.clientOptions())
	defer sentinel.Close()
	info, err := sentinel.Master(ctx, MasterName).Result()
	if err != nil {
		return err
	}
	if info["num-slaves"] != "1" || info["num-other-sentinels"] != fmt.Sprint(sentinelCount-1) {
		return fmt.Errorf("it knows %s replicas and %s other sentinels", info["num-slaves"], info["num-other-sentinels"])
	}
	return nil
}

func (s *SentinelSet) servers() (all []*Server) {
	for _, server := range append([]*Server{s.Master, s.Replica}, s.Sentinels...) {
		if server != nil {
			all = append(all, server)
		}
	}
	return all
}

// Stop kills every server and removes their directories. Stopping twice is legal.
func (s *SentinelSet) Stop() {
	for _, server := range s.servers() {
		server.Stop()
	}
}

// URL returns "redis+sentinel://127.0.0.1:port,127.0.0.1:port,127.0.0.1:port/mymaster".
func (s *SentinelSet) URL() string {
	var addrs []string
	for _, sentinel := range s.Sentinels {
		addrs = append(addrs, sentinel.addr)
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + MasterName
}
