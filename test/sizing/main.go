// Command sizing measures how many bytes of a real server's memory one bucket takes, for each kind of key and algorithm.
// docs/redis-sizing.md has the figures and what follows from them. `make sizing` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/rls"
	"github.com/sentinel-rls/sentinel-rls/store/redis"
	"github.com/sentinel-rls/sentinel-rls/test/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("sizing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	keys := flags.Int("keys", 100_000, "buckets of each kind")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *keys < 1 || flags.NArg() > 0:
		fmt.Fprintln(stderr, "sizing: -keys must be positive, and there are no arguments")
		return 2
	}
	for _, kind := range testserver.Kinds() {
		if err := measureServer(ctx, kind, *keys, stdout); err != nil {
			fmt.Fprintln(stderr, "sizing:", err)
			return 1
		}
	}
	return 0
}

// policies has one endpoint for each kind of bucket. Nothing in them expires while it is measured.
const policies = `
domain: shop
endpoints:
  tenant.bucket: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: token_bucket, capacity: 1000, refill: 1/h}]}
  tenant.slides: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: sliding_window, limit: 1000, window: 1d}]}
  tenant.fixed.: {policy_version: 1, fail_mode: fail_closed, limits: [{algorithm: fixed_window, limit: 1000, window: 1d}]}
  user.bucket..: {policy_version: 1, fail_mode: fail_closed, limits: [{name: each, scope: user, algorithm: token_bucket, capacity: 1000, refill: 1/h}]}
  client.slides:
    policy_version: 1
    identity: anonymous
    fail_mode: fail_closed
    limits: [{name: address, scope: client_ip, algorithm: sliding_window, limit: 1000, window: 1d}]
`

const rules = `
domain: mesh
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}}
`

// bucket is one kind of bucket to measure.
type bucket struct {
	name string
	key  func(i int) string
	rule algorithms.Rule
}

func buckets() ([]bucket, error) {
	set, err := descriptors.Parse([]descriptors.File{
		{Name: "shop.yaml", Data: []byte(policies)}, {Name: "mesh.yaml", Data: []byte(rules)},
	}, descriptors.Options{})
	if err != nil {
		return nil, err
	}
	var all []bucket
	for _, p := range set.Policies() {
		l := &p.Limits[0]
		all = append(all, bucket{
			name: fmt.Sprintf("%s, %s", l.Scope, l.Rule.Kind()), rule: l.Rule,
			key: func(i int) string {
				who := strconv.Itoa(i)
				key, _ := l.Key(&descriptors.Subject{Tenant: "tenant-" + who, User: "user-" + who, ClientIP: who})
				return key
			},
		})
	}
	mesh, _ := set.DropIn("mesh")
	rule := set.DropInRules()[0]
	all = append(all, bucket{name: "drop-in, fixed_window", rule: rule.Limits[0].Rule, key: func(i int) string {
		var m descriptors.Match
		mesh.Match([]descriptors.Entry{{Key: "user", Value: strconv.Itoa(i)}}, &m)
		return m.Key(0)
	}})
	return all, nil
}

func measureServer(ctx context.Context, kind testserver.Kind, keys int, w io.Writer) error {
	server, err := testserver.Run(ctx, kind)
	if err != nil {
		return err
	}
	defer server.Stop()
	options, err := goredis.ParseURL(server.URL())
	if err != nil {
		return err
	}
	client := goredis.NewClient(options)
	defer client.Close()
	all, err := buckets()
	if err != nil {
		return err
	}
	rows := [][]string{{"bucket", "key", "value", "bytes in all"}}
	for _, b := range all {
		row, err := measure(ctx, client, server.URL(), b, keys)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(w, "%s %s, %d buckets of each kind:\n\n", kind, server.Version(), keys)
	load.Table(w, rows)
	fmt.Fprintln(w)
	return nil
}

// measure fills an empty server with one kind of bucket, by the script that serves, and returns a row of the table.
func measure(ctx context.Context, client *goredis.Client, url string, b bucket, keys int) ([]string, error) {
	if err := client.Do(ctx, "FLUSHALL", "SYNC").Err(); err != nil {
		return nil, err
	}
	before, err := used(ctx, client)
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, url, b, keys); err != nil {
		return nil, err
	}
	after, err := used(ctx, client)
	if err != nil {
		return nil, err
	}
	held, err := client.DBSize(ctx).Result()
	if err != nil {
		return nil, err
	}
	if held < int64(keys) {
		return nil, fmt.Errorf("%d keys, want %d: some expired or were never written", held, keys)
	}
	value, err := client.Get(ctx, b.key(0)).Result()
	if err != nil {
		return nil, err
	}
	return []string{
		b.name, strconv.Itoa(len(b.key(0))), strconv.Itoa(len(value)), strconv.FormatFloat(float64(after-before)/float64(held), 'f', 0, 64),
	}, nil
}

// used returns the server's used_memory, what maxmemory is compared with.
func used(ctx context.Context, client *goredis.Client) (int64, error) {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			return strconv.ParseInt(text, 10, 64)
		}
	}
	return 0, errors.New("INFO memory has no used_memory")
}

// callers fill the server at the same time, so that their groups share round trips.
const callers = 64

// fill takes once from each bucket.
func fill(ctx context.Context, url string, b bucket, keys int) error {
	s, err := redis.New(redis.Config{URL: url, Budget: time.Minute, ProbeEvery: time.Hour})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	var next, failed atomic.Int64
	var filling sync.WaitGroup
	for range callers {
		filling.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= keys || ctx.Err() != nil {
					return
				}
				group := rls.Group{{Key: b.key(i), Rule: b.rule, Op: algorithms.OpTake, Cost: 1}}
				if a := s.Decide(ctx, []rls.Group{group})[0]; a.Err != nil || !a.Allowed {
					failed.Add(1)
				}
			}
		})
	}
	filling.Wait()
	stop()
	if n := failed.Load(); n > 0 {
		return fmt.Errorf("%d of %d takes failed", n, keys)
	}
	return errors.Join(ctx.Err(), <-ended)
}
