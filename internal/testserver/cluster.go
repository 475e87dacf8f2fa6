package testserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster on loopback: masters that share the slots evenly, and a replica of each.
type Cluster struct {
	Masters, Replicas []*Server // Replicas[i] starts as the replica of Masters[i]; a failover swaps them
}

const (
	clusterMasters = 3
	clusterSlots   = 16384

	// nodeTimeout is how long a server must be silent for the others to think it dead: longer than a busy machine pauses.
	nodeTimeout = 5 * time.Second
)

// QuickFailover is for clusters whose masters are to be killed: the others miss one after a second, not five.
func QuickFailover() Option { return WithArgs("--cluster-node-timeout", "1000") }

// RunCluster starts three masters and three replicas and returns once the cluster works and the replicas follow. The
// caller ends it with Stop.
func RunCluster(ctx context.Context, kind Kind, opts ...Option) (_ *Cluster, err error) {
	c := new(Cluster)
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	servers := make([]*Server, 2*clusterMasters)
	errs := make([]error, len(servers))
	var starts sync.WaitGroup
	for i := range servers {
		starts.Go(func() { servers[i], errs[i] = runClusterNode(ctx, kind, opts) })
	}
	starts.Wait()
	for i, s := range servers {
		switch {
		case s == nil:
		case i < clusterMasters:
			c.Masters = append(c.Masters, s)
		default:
			c.Replicas = append(c.Replicas, s)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, c.join(ctx)
}

// StartCluster starts a cluster for one test and stops it when the test ends, as Start does.
func StartCluster(t testing.TB, kind Kind, opts ...Option) *Cluster {
	t.Helper()
	c, err := RunCluster(t.Context(), kind, opts...)
	need(t, err)
	for _, s := range c.Servers() {
		end(t, s.Process, s.Stop)
	}
	return c
}

func runClusterNode(ctx context.Context, kind Kind, opts []Option) (*Server, error) {
	bus, err := FreePort() // the default, 10000 above the other, would often be taken
	if err != nil {
		return nil, err
	}
	return Run(ctx, kind, append([]Option{WithArgs(
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
		"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
		"--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0",
		// Redis 7.0 does not show a replica before the first byte of its stream, and that is a ping.
		"--repl-ping-replica-period", "1",
	)}, opts...)...)
}

// Servers returns every server.
func (c *Cluster) Servers() []*Server {
	return append(append([]*Server{}, c.Masters...), c.Replicas...)
}

// Stop kills every server and removes their directories. Stopping twice is legal.
func (c *Cluster) Stop() {
	for _, s := range c.Servers() {
		s.Stop()
	}
}

// URL returns "redis+cluster://127.0.0.1:port,127.0.0.1:port,…", of all servers.
func (c *Cluster) URL() string {
	var addrs []string
	for _, s := range c.Servers() {
		addrs = append(addrs, s.addr)
	}
	return strings.Replace(c.Masters[0].URL(), "://", "+cluster://", 1) + "," + strings.Join(addrs[1:], ",")
}

// Client returns a client of the server that is not the store; the caller closes it. It never retries.
func (s *Server) Client() *redis.Client { return redis.NewClient(s.clientOptions()) }

func (s *Server) clientOptions() *redis.Options {
	return &redis.Options{
		Network: s.network, Addr: s.addr, Password: s.password, TLSConfig: s.tls,
		Protocol: 2, DisableIdentity: true, MaxRetries: -1, ContextTimeoutEnabled: true,
	}
}

// join makes a cluster of the servers.
func (c *Cluster) join(ctx context.Context) error {
	servers := c.Servers()
	clients := make([]*redis.Client, len(servers))
	for i, s := range servers {
		clients[i] = s.Client()
		defer clients[i].Close()
	}
	for i, client := range clients {
		if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
		if i < clusterMasters {
			from, to := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1
			if err := client.ClusterAddSlotsRange(ctx, from, to).Err(); err != nil {
				return err
			}
		}
		// Each meets each: hearsay takes seconds.
		for _, other := range servers[:i] {
			host, port, _ := strings.Cut(other.addr, ":")
			if err := client.Do(ctx, "cluster", "meet", host, port, other.busPort()).Err(); err != nil {
				return err
			}
		}
	}
	for i, replica := range clients[clusterMasters:] {
		id, err := clients[i].Do(ctx, "cluster", "myid").Text()
		if err != nil {
			return err
		}
		err = eventually(ctx, "replica of "+servers[i].addr, func() error { return replica.ClusterReplicate(ctx, id).Err() })
		if err != nil {
			return err
		}
	}
	for i, client := range clients {
		if err := eventually(ctx, servers[i].addr, func() error { return joined(ctx, client, i >= clusterMasters) }); err != nil {
			return err
		}
	}
	return nil
}

// busPort returns the port on which servers of a cluster talk to one another.
func (s *Server) busPort() string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return "0"
}

// joined says what a server still lacks; nil: it sees a working cluster with all replicas, and follows its master.
func joined(ctx context.Context, client *redis.Client, replica bool) error {
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if !strings.Contains(info, "cluster_state:ok") {
		return errors.New("the cluster does not work")
	}
	//lint:ignore SA1019 CLUSTER SHARDS came with Redis 7
	slots, err := client.ClusterSlots(ctx).Result()
	if err != nil {
		return err
	}
	if len(slots) != clusterMasters {
		return errors.New("it does not see every slot")
	}
	for _, r := range slots {
		if len(r.Nodes) != 2 {
			return errors.New("it does not see every replica")
		}
	}
	if replica {
		info, err := client.Info(ctx, "replication").Result()
		if err != nil || !strings.Contains(info, "master_link_status:up") {
			return fmt.Errorf("it does not follow its master: %w", errors.Join(err))
		}
	}
	return nil
}

// eventually asks until there is no error.
func eventually(ctx context.Context, what string, ask func() error) error {
	for deadline := time.Now().Add(startTimeout); ; {
		err := ask()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready: %w", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
