package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/test/load"
)

// drills are all there are, in the order in which they are held.
var drills = []drill{
	{"killed", "Redis is killed (SIGKILL) and started again, empty, when the load is over", "RF-24", fault{
		class: unavailable, losses: 1,
		hurt: func(_ context.Context, c *scene) error { c.store.Kill(); return nil },
		heal: func(_ context.Context, c *scene) error { return c.store.Restart() },
	}},
	{"frozen", "Redis is stopped (SIGSTOP) under load and thawed afterwards", "RF-12", fault{
		class: timedOut,
		hurt:  func(_ context.Context, c *scene) error { return c.store.Freeze() },
		heal:  func(_ context.Context, c *scene) error { return c.store.Thaw() },
	}},
	{"stutter", "Redis is stopped for 8 ms, less than the store's budget, ten times a second", "RF-11", fault{
		during: func(ctx context.Context, c *scene) error {
			return again(ctx, 100*time.Millisecond, func() error {
				return errors.Join(c.store.Freeze(), pause(8*time.Millisecond), c.store.Thaw())
			})
		},
	}},
	{"restarted-empty", "Redis is restarted and has forgotten everything", "RF-24", fault{
		losses: 1,
		during: func(_ context.Context, c *scene) error { return c.store.Restart() },
	}},
	{"restarted-old", "Redis is restarted from an old dump", "RF-24", fault{
		losses:  1,
		prepare: func(ctx context.Context, c *scene) error { return c.client.Save(ctx).Err() },
		during:  func(_ context.Context, c *scene) error { return c.store.Restart() },
	}},
	{"out-of-memory", "Redis refuses writes: maxmemory 1 under noeviction", "RF-06", configured(refused, "maxmemory", "1", "0")},
	{"no-replicas", "Redis refuses writes: min-replicas-to-write 3", "RF-07", configured(unavailable, "min-replicas-to-write", "3", "0")},
	{"read-only", "Redis answers READONLY: it has become a replica", "", fault{
		class: unavailable, wet: true,
		hurt: func(ctx context.Context, c *scene) error {
			return c.client.Do(ctx, "replicaof", "127.0.0.1", "1").Err()
		},
		heal: func(ctx context.Context, c *scene) error { return c.client.Do(ctx, "replicaof", "no", "one").Err() },
	}},
	{"loading", "Redis answers LOADING: it reads its dump for a second", "RF-05", fault{
		args:    []string{"--enable-debug-command", "yes"},
		class:   anyClass, // between LOADING and LOADING it answers nothing for a while
		prepare: fill,
		during:  reload,
		lasts:   2 * time.Second,
	}},
	{"busy", "Redis answers BUSY: somebody's script does not end", "RF-08", fault{
		class: anyClass, // as with LOADING
		args:  []string{"--lua-time-limit", "10"},
		during: func(ctx context.Context, c *scene) error {
			hung := c.store.Client()
			defer hung.Close()
			if err := hung.Ping(ctx).Err(); err != nil { // so that there is a connection
				return err
			}
			// The script is to take what nobody else here wants of the processor: elsewhere Redis has cores of its own.
			if err := syscall.Setpriority(syscall.PRIO_PROCESS, c.store.PID(), 19); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_ = hung.Eval(ctx, "while true do end", nil).Err() // nobody waits for it, and it goes on
			return nil
		},
		heal: func(ctx context.Context, c *scene) error {
			other := c.store.Client()
			defer other.Close()
			if err := eventually(ctx, func() error { return other.ScriptKill(ctx).Err() }); err != nil {
				return err
			}
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, c.store.PID(), 0) // root's to do; else it stays polite
			return nil
		},
	}},
	{"password", "the password is changed at run time and the file later", "RF-10", fault{
		class:    refused,
		password: "first",
		hurt: func(ctx context.Context, c *scene) error {
			return errors.Join(
				c.client.ConfigSet(ctx, "requirepass", "second").Err(),
				c.client.ClientKillByFilter(ctx, "type", "normal", "skipme", "yes").Err(),
			)
		},
		heal: func(_ context.Context, c *scene) error { return c.writePassword("second") },
	}},
	{"cut", "connections are cut in the middle of a reply", "RF-13", fault{
		class:   unavailable,
		proxied: true,
		hurt:    func(_ context.Context, c *scene) error { c.proxy.SetCut(2 * c.Calls); return nil },
		heal:    func(_ context.Context, c *scene) error { c.proxy.SetCut(0); return nil },
	}},
	{"half-open", "the network swallows everything and closes nothing", "RF-12", fault{
		class:   timedOut,
		proxied: true,
		hurt:    func(_ context.Context, c *scene) error { c.proxy.SetHole(true); return nil },
		heal:    func(_ context.Context, c *scene) error { c.proxy.SetHole(false); return nil },
	}},
	slow(5), slow(15), slow(25), slow(100),
	{"sentinel-failover", "the master is killed, and the sentinels promote its replica", "", fault{
		class: unavailable, topology: sentinel, lasts: 5 * time.Second, losses: 1, wet: true,
		hurt: killMaster, during: promoted,
	}},
	{"cluster-failover", "a master of the cluster is killed, and its replica takes over", "CL-07", fault{
		class: unavailable, topology: cluster, lasts: 5 * time.Second, losses: 1, wet: true,
		hurt: killMaster, during: promoted,
	}},
	{"migration", "slots of the cluster move from one master to another and back, 100 moves a second", "CL-04", fault{
		topology: cluster, lasts: 2 * time.Second, wet: true,
		during: migrate,
	}},
	{"flapping", "Redis is stopped for a second and thawed for a second, for a minute", "RF-12", fault{
		class: timedOut, lasts: time.Minute, short: 4 * time.Second,
		during: func(ctx context.Context, c *scene) error {
			defer func() { _ = c.store.Thaw() }()
			return again(ctx, 2*time.Second, func() error {
				return errors.Join(c.store.Freeze(), sleepOr(ctx, time.Second), c.store.Thaw())
			})
		},
	}},
	{"restarted", "sentinel-rls is killed and started again", "", fault{
		dies: true, lasts: 2 * time.Second,
		hurt: func(ctx context.Context, c *scene) error {
			a, err := c.account(ctx)
			c.buried = a.byStore
			c.program.Kill()
			return err
		},
		during: func(ctx context.Context, c *scene) error {
			ctx = context.WithoutCancel(ctx)
			if err := c.program.Again(ctx); err != nil {
				return err
			}
			return c.conns.Await(ctx)
		},
	}},
	{"two-versions", "half of the calls go to another version of sentinel-rls on the same Redis, which forgets scripts", "DP-03", fault{
		other: true,
		during: func(ctx context.Context, c *scene) error {
			return again(ctx, 100*time.Millisecond, func() error { return c.client.ScriptFlush(ctx).Err() })
		},
	}},
	{"overload", "Redis is held to 2000 decisions/s, and 4000 are asked", "", fault{
		proxied: true, rate: 4000, inTime: 0.99, lasts: 5 * time.Second, short: 2 * time.Second,
		hurt: func(_ context.Context, c *scene) error { c.proxy.SetPace(int(c.scaled(2000))); return nil },
		heal: func(_ context.Context, c *scene) error { c.proxy.SetPace(0); return nil },
	}},
}

// slow is a Redis that answers late.
func slow(ms int) drill {
	by := time.Duration(ms) * time.Millisecond
	return drill{fmt.Sprintf("slow-%d", ms), fmt.Sprintf("each reply of Redis comes %v late", by), "RF-11", fault{
		proxied: true,
		hurt: func(_ context.Context, c *scene) error {
			c.proxy.SetDelay(func() time.Duration { return by })
			return nil
		},
		heal: func(_ context.Context, c *scene) error { c.proxy.SetDelay(nil); return nil },
	}}
}

// configured is a Redis whose configuration is changed and changed back.
func configured(class, name, sick, well string) fault {
	set := func(value string) func(context.Context, *scene) error {
		return func(ctx context.Context, c *scene) error { return c.client.ConfigSet(ctx, name, value).Err() }
	}
	return fault{class: class, wet: true, hurt: set(sick), heal: set(well)}
}

// again does something at once and then every so often until ctx is done.
func again(ctx context.Context, every time.Duration, do func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := do(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func pause(d time.Duration) error { time.Sleep(d); return nil }

// sleepOr sleeps, or less when ctx is done.
func sleepOr(ctx context.Context, d time.Duration) error { _ = sleep(ctx, d); return nil }

// eventually asks until there is no error.
func eventually(ctx context.Context, ask func() error) error {
	for start := time.Now(); ; {
		err := ask()
		if err == nil || time.Since(start) > 20*time.Second {
			return err
		}
		if sleep(ctx, 5*time.Millisecond) != nil {
			return err
		}
	}
}

const fillers = 5000

// fill writes keys that take a second to read back.
func fill(ctx context.Context, c *scene) error {
	_, err := c.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range fillers {
			p.Set(ctx, "filler:"+strconv.Itoa(i), "x", 0)
		}
		return nil
	})
	return err
}

// reload has the server write its dump and read it back, slowly, and answer LOADING meanwhile.
func reload(ctx context.Context, c *scene) error {
	patient := c.store.Client()
	defer patient.Close()
	ctx = context.WithoutCancel(ctx)
	for _, set := range [][2]string{{"key-load-delay", "100"}, {"loading-process-events-interval-bytes", "1024"}} {
		if err := patient.ConfigSet(ctx, set[0], set[1]).Err(); err != nil {
			return err
		}
	}
	return patient.Do(ctx, "debug", "reload").Err()
}

// killMaster kills the master, and notes how much it had written.
func killMaster(ctx context.Context, c *scene) (err error) {
	if c.written, err = offset(ctx, c.client, "master_repl_offset"); err != nil {
		return err
	}
	c.store.Kill()
	return nil
}

// bytesPerTake is the least that the replication stream holds of one admitted take: a SET of some 90 bytes of key and 20 of
// value.
const bytesPerTake = 150

// promoted waits until the replica is the master, and notes how far behind it was, as the time in which the load writes what
// it lacks, and how long it then takes to be used, under the load.
func promoted(ctx context.Context, c *scene) (err error) {
	ctx = context.WithoutCancel(ctx) // it may outlast the load
	client := c.replica.Client()
	defer client.Close()
	if err := eventually(ctx, func() error {
		info, err := client.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "role:master") {
			err = errors.New("the replica is not promoted")
		}
		return err
	}); err != nil {
		return err
	}
	// Where its own history begins is one beyond the last byte that it had read.
	begins, err := offset(ctx, client, "second_repl_offset")
	if err != nil {
		return err
	}
	behind := max(0, c.written-(begins-1))
	c.lag = time.Duration(float64(behind) / bytesPerTake / c.Rate * float64(time.Second))
	c.recovered, err = c.recovery(ctx)
	return err
}

func offset(ctx context.Context, client *redis.Client, field string) (int64, error) {
	info, err := client.Info(ctx, "replication").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("INFO replication has no %s", field)
}

// migrateEvery is how often a slot moves there and back, 100 moves a second. As fast as they can, they would keep a core busy
// that the drill shares with seven servers.
const migrateEvery = 20 * time.Millisecond

// migrate moves slots with keys in them from one master to another, and back.
func migrate(ctx context.Context, c *scene) error {
	from, to := c.cluster.Masters[0].Client(), c.cluster.Masters[1].Client()
	defer from.Close()
	defer to.Close()
	var slots []int64
	if err := eventually(ctx, func() (err error) { slots, err = slotsOf(ctx, from); return err }); err != nil {
		return err
	}
	whole, i := context.WithoutCancel(ctx), 0
	return again(ctx, migrateEvery, func() error {
		slot := slots[i%len(slots)]
		i++
		if err := moveSlot(whole, from, to, slot); err != nil {
			return err
		}
		return moveSlot(whole, to, from, slot)
	})
}

// slotsOf returns slots of a server in which buckets of the load lie.
func slotsOf(ctx context.Context, client *redis.Client) (slots []int64, err error) {
	for i := range uint64(100) {
		key := fmt.Sprintf("sentinel:v1:{%x}:scarce:1", sha256.Sum256([]byte(load.Tenant(i))))
		if client.Get(ctx, key).Err() != nil {
			continue // another server's, or nobody has asked yet
		}
		slot, err := client.ClusterKeySlot(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		slots = append(slots, slot)
	}
	if len(slots) == 0 {
		return nil, errors.New("the server keeps no bucket of the load")
	}
	return slots, nil
}

// knowsEpoch says whether a server has heard of another one's configuration epoch.
func knowsEpoch(ctx context.Context, server, other *redis.Client, id string) error {
	info, err := other.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	_, epoch, _ := strings.Cut(info, "cluster_my_epoch:")
	epoch, _, _ = strings.Cut(epoch, "\r\n")
	nodes, err := server.ClusterNodes(ctx).Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(nodes) {
		const at = 6
		if fields := strings.Fields(line); len(fields) > at && fields[0] == id && fields[at] == epoch {
			return nil
		}
	}
	return errors.New("a server does not know another one's epoch")
}

// moveSlot moves one slot as redis-cli does.
func moveSlot(ctx context.Context, from, to *redis.Client, slot int64) error {
	fromID, err := from.ClusterMyID(ctx).Result()
	if err != nil {
		return err
	}
	toID, err := to.ClusterMyID(ctx).Result()
	if err != nil {
		return err
	}
	host, port, _ := strings.Cut(to.Options().Addr, ":")
	steps := []func() error{
		func() error { return to.Do(ctx, "cluster", "setslot", slot, "importing", fromID).Err() },
		func() error { return from.Do(ctx, "cluster", "setslot", slot, "migrating", toID).Err() },
		func() error {
			for {
				keys, err := from.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
				if err != nil || len(keys) == 0 {
					return err
				}
				args := []any{"migrate", host, port, "", 0, 5000, "keys"}
				for _, key := range keys {
					args = append(args, key)
				}
				if err := from.Do(ctx, args...).Err(); err != nil {
					return err
				}
			}
		},
		func() error { return to.Do(ctx, "cluster", "setslot", slot, "node", toID).Err() },
		func() error { return from.Do(ctx, "cluster", "setslot", slot, "node", toID).Err() },
		// Else the next move could be made by the same epoch, and undone.
		func() error { return eventually(ctx, func() error { return knowsEpoch(ctx, from, to, toID) }) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
