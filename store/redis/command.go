package redis

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// command is one run of the script, about one or several groups.
type command struct {
	decisions []*decision
	groups    [][]lua.Call // of decisions
	takes     int          // over all groups
	reply     *redis.Cmd   // nil until encode
}

func newCommand(decisions ...*decision) *command {
	c := new(command)
	for _, d := range decisions {
		c.add(d)
	}
	return c
}

func (c *command) add(d *decision) {
	c.decisions = append(c.decisions, d)
	c.groups = append(c.groups, d.calls)
	c.takes += len(d.calls)
}

// encode writes the command down.
func (c *command) encode(encoder *lua.Encoder) {
	const perRun, perTake = 6, 7
	args, err := encoder.AppendCommand(make([]any, 0, perRun+perTake*c.takes), c.groups...)
	if err != nil { // it is too large, which Group.Validate has refused
		panic("store/redis: " + err.Error())
	}
	c.reply = redis.NewCmd(context.Background(), args...)
}

const _ = uint(lua.MaxCalls - rls.MaxTakes) // any group fits into a command

// read gives each decision what the server answered, an error as it came: of the whole command, about a reply that makes no
// sense, or of a write that the server refused.
func (c *command) read() {
	err := c.reply.Err()
	var replies []lua.Reply
	if err == nil {
		replies, err = lua.Decode(c.reply.Val(), c.groups...)
	}
	for i, d := range c.decisions {
		switch d.err = err; {
		case err != nil:
		case replies[i].Refused != "":
			d.err = refusal(strings.TrimSpace(replies[i].Refused)) // Redis 6.2 ends it with line ends
		default:
			d.reply = replies[i]
		}
	}
}

// refusal is what the server said when it refused a write, an error as the library would make one of it.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError makes it a redis.Error.
func (refusal) RedisError() {}

var _ redis.Error = refusal("")

// commandTakes is how many takes a command of several groups carries at most. More would make it no cheaper, and the server
// does nothing else for as long as it runs.
const commandTakes = 64

// commands puts what a batch asks into commands, in order: running a script costs a server as much as one bucket.
func (n *node) commands(batch []*call) []*command {
	var all []*command
	together := n.together()
	for _, call := range batch {
		for i := range call.decisions {
			d := &call.decisions[i]
			if d.calls == nil {
				continue
			}
			if last := len(all) - 1; last >= 0 && together && all[last].takes+len(d.calls) <= commandTakes {
				all[last].add(d)
			} else {
				all = append(all, newCommand(d))
			}
		}
	}
	return all
}
