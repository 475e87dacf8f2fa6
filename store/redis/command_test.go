package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// TestCommandsOfABatch: whatever a batch asks, each group goes into one command, in order; commands of several groups are
// bounded, and none of them could be left out.
func TestCommandsOfABatch(t *testing.T) {
	t.Parallel()
	rule, err := algorithms.NewTokenBucket(1, algorithms.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := new(node)
		n.standalone.Store(rapid.Bool().Draw(t, "standalone"))
		n.sharded.Store(rapid.IntRange(0, 3).Draw(t, "sharded") == 0)
		keys := rapid.IntRange(1, 200).Draw(t, "keys")
		var batch []*call
		var order []*decision
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			c := newCall(t.Context(), rapid.IntRange(1, 4).Draw(t, "groups"))
			for i := range c.decisions {
				var group rls.Group
				first := rapid.IntRange(0, keys-1).Draw(t, "first")
				for k := range rapid.IntRange(0, min(keys, 70)).Draw(t, "takes") {
					group = append(group, rls.Take{Key: fmt.Sprint((first + k) % keys), Rule: rule, Op: algorithms.OpTake, Cost: 1})
				}
				if len(group) > 0 { // else it is one that is not sent
					c.put(i, group)
					order = append(order, &c.decisions[i])
				}
			}
			batch = append(batch, c)
		}

		var sent []*decision
		left := 0 // room in the command before
		for i, c := range n.commands(batch) {
			takes := 0
			for j, d := range c.decisions {
				if len(c.groups[j]) != len(d.calls) {
					t.Fatalf("command %d: group %d is not what is sent", i, j)
				}
				takes += len(d.calls)
			}
			if takes != c.takes || len(c.decisions) > 1 && (takes > commandTakes || !n.together()) {
				t.Fatalf("command %d: %d groups of %d takes, said to be %d", i, len(c.decisions), takes, c.takes)
			}
			if n.together() && len(c.decisions[0].calls) <= left {
				t.Fatalf("command %d: its first group of %d fitted into the one before", i, len(c.decisions[0].calls))
			}
			left = commandTakes - takes
			sent = append(sent, c.decisions...)
		}
		if !slices.Equal(sent, order) {
			t.Fatalf("%d groups are sent for %d, or in another order", len(sent), len(order))
		}
	})
}

// TestKeysInSeveralSlots: a server that says it is none of a cluster, as a proxy before one does, and refuses the first command
// of several groups: each gets one of its own, then and from then on, and nothing is taken twice.
func TestKeysInSeveralSlots(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis, testserver.WithArgs("--cluster-enabled", "yes"))
	client := server.Client()
	defer client.Close()
	if err := client.ClusterAddSlotsRange(t.Context(), 0, slotCount-1).Err(); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{
		URL: server.URL(), Budget: time.Minute, ProbeEvery: time.Hour, Startup: Startup{Every: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := s.servers.nodes()[0]
	n.standalone.Store(true)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	defer running.Wait()
	defer stop()
	for client.ClusterInfo(ctx).Val() == "" || !strings.Contains(client.ClusterInfo(ctx).Val(), "cluster_state:ok") {
		time.Sleep(10 * time.Millisecond)
	}

	rule, err := algorithms.NewTokenBucket(3, algorithms.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	groups := make([]rls.Group, 5)
	for i := range groups {
		groups[i] = rls.Group{{Key: fmt.Sprint("k", i), Rule: rule, Op: algorithms.OpTake, Cost: 1}}
	}
	for round := range 4 {
		for i, a := range s.Decide(t.Context(), groups) {
			if a.Err != nil || a.Allowed != (round < 3) {
				t.Errorf("round %d, group %d: %+v", round, i, a)
			}
		}
		if n.together() {
			t.Fatal("the server is still asked about several groups at once")
		}
	}
}

// TestRefusalIsOneLine: on Redis 6.2 the words of a refusal begin with the place in the script, and end with line ends.
func TestRefusalIsOneLine(t *testing.T) {
	t.Parallel()
	rule, err := algorithms.NewTokenBucket(1, algorithms.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	for words, class := range map[string]error{
		"OOM command not allowed when used memory > 'maxmemory'.":                            rls.ErrStore,
		"@user_script: 86: -OOM command not allowed when used memory > 'maxmemory'.\r\n\r\n": rls.ErrStore,
		"@user_script: 86: -READONLY You can't write against a read only replica.\r\n\r\n":   rls.ErrUnavailable,
		"@user_script: 86: -NOREPLICAS Not enough good replicas to write.\r\n\r\n":           rls.ErrUnavailable,
	} {
		call := newCall(t.Context(), 1)
		call.put(0, rls.Group{{Key: "k", Rule: rule, Op: algorithms.OpTake, Cost: 1}})
		c := newCommand(&call.decisions[0])
		c.encode(lua.NewEncoder(0))
		c.reply.SetVal([]any{"1800000000 0 ! -", words})
		c.read()
		got := classify(call.decisions[0].err)
		if !errors.Is(got, class) || !strings.HasSuffix(got.Error(), ": "+strings.TrimSpace(words)) {
			t.Errorf("got %q", got)
		}
	}
}
