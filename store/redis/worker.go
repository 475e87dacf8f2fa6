package redis

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// work takes calls from the queue and sends them until stop is closed.
func (n *node) work(stop <-chan struct{}) {
	var batch []*call
	for {
		select {
		case <-stop:
			return
		case first := <-n.queue:
			n.keepDistance(first.deadline, stop)
			if first.claim(time.Now()) {
				batch = n.roundTrip(append(batch[:0], first))
				clear(batch) // an idle worker keeps nobody's call alive
			}
		}
	}
}

// roundTrip sends the one call in batch together with what else waits, and returns the batch.
func (n *node) roundTrip(batch []*call) []*call {
	report, err := n.breaker.Allow()
	if err != nil {
		batch[0].finish(errOpen)
		return batch
	}
	if !n.breaker.Probing() { // the probe is one call
		runtime.Gosched() // whoever is about to ask may come along
		batch = n.drain(batch)
	}
	start := time.Now()
	n.departed.Store(int64(start.Sub(n.began)))
	n.underWay.Add(1)
	ok := n.exchange(batch, start)
	n.underWay.Add(-1)
	took := time.Since(start)
	var why error
	if ok {
		n.took.Store(int64(took))
	} else {
		why = failed(batch)
		n.took.Store(0)
	}
	n.heard(why)
	report(ok) // after that, so that the breaker can tell why it opens
	groups := 0
	for _, c := range batch {
		groups += len(c.decisions)
	}
	n.Observer.RoundTrip(groups, took, ok) // before the answers, so that who has one finds it counted
	for _, c := range batch {
		c.finish(nil)
	}
	if errors.Is(why, rls.ErrTimeout) {
		n.spare()
	}
	return batch
}

// farServer is how long a round trip lasts from which on workers keep their distance.
const farServer = 2 * time.Millisecond

// keepDistance waits until this worker's round trip is as far as it should be behind another's that is under way: with two
// workers half a round trip. Otherwise they end up leaving together, and who comes just after that waits for a whole round trip
// before the own one begins. It ends early when the other is back or stop is closed, and leaves who waits for the answer, until
// deadline, time for a round trip and an eighth.
func (n *node) keepDistance(deadline time.Time, stop <-chan struct{}) {
	for {
		wait := n.distance(deadline)
		if wait <= 0 {
			return
		}
		select { // a last round trip that was a long one says little about the other's: it may be back soon
		case <-stop:
			return
		case <-time.After(min(wait, farServer)):
		}
	}
}

// distance is how long keepDistance would wait from now on.
func (n *node) distance(deadline time.Time) time.Duration {
	took := time.Duration(n.took.Load())
	if took < farServer || n.underWay.Load() == 0 {
		return 0
	}
	behind := time.Since(n.began) - time.Duration(n.departed.Load())
	return min(took/time.Duration(n.Workers)-behind, time.Until(deadline)-took-took/8)
}

// spare lets go what waits in the queue: a server that did not answer in time would hold these as long again, which is
// longer than most of them can wait.
func (n *node) spare() {
	now := time.Now()
	for range len(n.queue) {
		select {
		case c := <-n.queue:
			if c.claim(now) {
				c.finish(errSuspect)
			}
		default: // another worker takes from it, too
			return
		}
	}
}

// fairBatch is how many calls a batch may always carry: what shares a command costs the server less.
const fairBatch = commandTakes

// drain adds what is in the queue, without waiting, but of a long queue only half: while the server decides one worker's
// half, the answers to the other's are on their way.
func (n *node) drain(batch []*call) []*call {
	now := time.Now()
	limit, half := n.limit.takes(), max(fairBatch, (len(n.queue)+2)/2)
	for takes := batch[0].takes; takes < limit && len(batch) < half; {
		select {
		case c := <-n.queue:
			if c.claim(now) {
				batch = append(batch, c)
				takes += c.takes
			}
		default:
			return batch
		}
	}
	return batch
}

// exchange sends a batch and sets the outcome of each decision. It reports whether the server answered: nothing was lost
// on the way, and at least one command was carried out or sent elsewhere.
func (n *node) exchange(batch []*call, start time.Time) bool {
	ctx, cancel := context.WithDeadline(context.Background(), n.deadline(batch, start))
	defer cancel()
	commands := n.commands(batch)
	n.evaluate(ctx, commands)
	commands = n.takeApart(ctx, commands)
	n.retryUnknown(ctx, commands)
	return n.settle(commands)
}

// evaluate encodes commands and sends them.
func (n *node) evaluate(ctx context.Context, commands []*command) {
	for _, c := range commands {
		c.encode(n.encoder)
	}
	n.pipeline(ctx, wire(nil, commands))
}

// wire appends what is sent for commands.
func wire(cmds []*redis.Cmd, commands []*command) []*redis.Cmd {
	for _, c := range commands {
		if c.decisions[0].asking {
			cmds = append(cmds, redis.NewCmd(context.Background(), "asking"))
		}
		cmds = append(cmds, c.reply)
	}
	return cmds
}

// pipeline sends cmds in one go. Each of them has its reply or its error afterwards.
func (n *node) pipeline(ctx context.Context, cmds []*redis.Cmd) {
	pipe := n.client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // it is only noted here
	}
	_, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		switch value := cmd.Val(); {
		case whole(value): // answered, also where the library blames it for a connection that broke afterwards
			cmd.SetErr(nil)
		case value == nil && cmd.Err() == nil: // the server refused the login, which the library blames on no command
			cmd.SetErr(err)
		}
	}
}

// whole reports whether a reply came to its end. Of one that was cut off, the library keeps an empty value of its type,
// beside the error.
func whole(value any) bool {
	switch value := value.(type) {
	case nil:
		return false
	case string:
		return value != ""
	case []any:
		return value != nil
	}
	return true
}

// deadline is when a round trip that starts now is given up: when its last caller is gone, but within the budget, and not
// before half of it. What comes later counts as no answer. A batch whose callers have almost no time left would say
// nothing about the server: an overloaded process would drop its connections and open its breaker on a healthy one.
func (n *node) deadline(batch []*call, start time.Time) time.Time {
	latest := start.Add(n.Budget / 2)
	for _, c := range batch {
		if c.deadline.After(latest) {
			latest = c.deadline
		}
	}
	if most := start.Add(n.Budget); latest.After(most) {
		return most
	}
	return latest
}

// takeApart sends again, one by one, the groups of commands that the server refused for their keys, so that nobody is refused
// for another's. None of them ran. Where keys lie in several slots, since a proxy before a cluster speaks like one server, each
// group has a command of its own from then on. They are decided after the batch's other groups, those that share a key with
// them included.
func (n *node) takeApart(ctx context.Context, commands []*command) []*command {
	var others, again []*command
	for _, c := range commands {
		slots, refused := refusedForKeys(c.reply.Err())
		if !refused || len(c.decisions) == 1 {
			others = append(others, c)
			continue
		}
		if slots {
			n.sharded.Store(true)
		}
		for _, d := range c.decisions {
			again = append(again, newCommand(d))
		}
	}
	if len(again) == 0 {
		return commands
	}
	n.evaluate(ctx, again)
	return append(others, again...)
}

// retryUnknown loads the script and sends again, once, the commands that the server refused because it did not know it.
// They did not run, so sending them again takes nothing twice.
func (n *node) retryUnknown(ctx context.Context, commands []*command) {
	var unknown []*command
	for _, c := range commands {
		if err := c.reply.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			c.reply.SetErr(nil)
			unknown = append(unknown, c)
		}
	}
	if len(unknown) == 0 {
		return
	}
	n.Observer.ScriptLoaded()
	load := loadScript(ctx)
	n.pipeline(ctx, wire([]*redis.Cmd{load}, unknown))
	if err := load.Err(); err != nil {
		for _, c := range unknown { // why the script could not be loaded says more than that it is unknown
			c.reply.SetErr(err)
		}
	}
}

func loadScript(ctx context.Context) *redis.Cmd {
	return redis.NewCmd(ctx, "script", "load", lua.Group().Source())
}

// settle classifies the outcome of each command and reports what the round trip was: see exchange.
func (n *node) settle(commands []*command) bool {
	answered, lost, readOnly, astray := 0, false, false, false
	takes := 0
	var last, classified error // commands of one batch mostly fail with the very same error
	for _, c := range commands {
		takes += c.takes
		c.read()
		for _, d := range c.decisions {
			err := d.err
			if err == nil {
				answered++
				continue
			}
			if !errors.Is(err, last) || last == nil {
				last, classified = err, classify(err)
			}
			d.err = classified
			malformed := errors.Is(err, lua.ErrReply)
			lost = lost || !malformed && !isReply(err)
			readOnly = readOnly || redis.IsReadOnlyError(err)
			if malformed || isRedirection(err) || notServed(err) { // the server works
				answered++
				astray = astray || !malformed // the keys are another's
			}
		}
	}
	if readOnly {
		n.dialer.drop() // the name may lead to the new master now
	}
	if lost || readOnly || astray {
		n.astray()
	}
	n.limit.learn(takes, lost && errors.Is(classified, rls.ErrTimeout))
	return answered > 0 && !lost
}

// batchTakes is the number of takes from which on a batch is full. A server is busy with it for about 3 ms.
const batchTakes = 512

// batchLimit is how many takes a batch may carry: fewer than batchTakes for a server that did not answer so many within
// the budget, so that one that is slow under load answers at least some. Safe for concurrent use.
type batchLimit struct{ less atomic.Int64 } // batchTakes less than this

func (l *batchLimit) takes() int { return batchTakes - int(l.less.Load()) }

// learn halves the limit when a batch was late, and raises it by an eighth when a full one was not.
func (l *batchLimit) learn(sent int, late bool) {
	limit := l.takes()
	switch {
	case late:
		limit = max(1, min(limit, sent)/2)
	case sent >= limit && limit < batchTakes:
		limit = min(batchTakes, limit+max(1, limit/8))
	default:
		return
	}
	l.less.Store(int64(batchTakes - limit))
}
