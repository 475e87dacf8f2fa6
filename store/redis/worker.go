package redis

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
)

// batchTakes is the number of takes from which on a batch is full. A server is busy with it for about 3 ms.
const batchTakes = 512

// minRoundTrip is the least time that a round trip gets. A batch whose callers have almost no time left would say
// nothing about the server: an overloaded process would drop its connections and open its breaker on a healthy one.
const minRoundTrip = 5 * time.Millisecond

// work takes calls from the queue and sends them until stop is closed.
func (s *Store) work(stop <-chan struct{}) {
	var batch []*call
	for {
		select {
		case <-stop:
			return
		case first := <-s.queue:
			if first.claim(time.Now()) {
				batch = s.roundTrip(append(batch[:0], first))
				clear(batch) // an idle worker keeps nobody's call alive
			}
		}
	}
}

// roundTrip sends the one call in batch together with what else waits, and returns the batch.
func (s *Store) roundTrip(batch []*call) []*call {
	report, err := s.breaker.Allow()
	if err != nil {
		batch[0].finish(errOpen)
		return batch
	}
	if !s.breaker.Probing() { // the probe is one call
		batch = s.drain(batch)
	}
	start := time.Now()
	ok := s.exchange(batch, start)
	took := time.Since(start)
	report(ok)
	s.down.Store(!ok)
	groups := 0
	for _, c := range batch {
		groups += len(c.commands)
	}
	s.observer.RoundTrip(groups, took, ok) // before the answers, so that who has one finds it counted
	for _, c := range batch {
		c.finish(nil)
	}
	return batch
}

// drain adds what is in the queue, without waiting.
func (s *Store) drain(batch []*call) []*call {
	now := time.Now()
	for takes := batch[0].takes; takes < batchTakes; {
		select {
		case c := <-s.queue:
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

// exchange sends a batch and sets the outcome of each command. It reports whether the server answered: nothing was lost
// on the way, and at least one command was carried out.
func (s *Store) exchange(batch []*call, start time.Time) bool {
	ctx, cancel := context.WithDeadline(context.Background(), s.deadline(batch, start))
	defer cancel()
	commands := make([]*command, 0, len(batch))
	replies := make([]*redis.Cmd, 0, len(batch))
	for _, c := range batch {
		for i := range c.commands {
			if cmd := &c.commands[i]; cmd.reply != nil {
				commands = append(commands, cmd)
				replies = append(replies, cmd.reply)
			}
		}
	}
	s.pipeline(ctx, replies)
	s.retryUnknown(ctx, replies)
	return s.settle(commands)
}

// pipeline sends cmds in one go. Each of them has its reply or its error afterwards.
func (s *Store) pipeline(ctx context.Context, cmds []*redis.Cmd) {
	pipe := s.client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // it is only noted here
	}
	_, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		switch {
		case cmd.Val() != nil: // answered, also where the library blames it for a connection that broke afterwards
			cmd.SetErr(nil)
		case cmd.Err() == nil: // the server refused the login, which the library blames on no command
			cmd.SetErr(err)
		}
	}
}

// deadline is when a round trip that starts now is given up: when its last caller is gone, but within the budget. What
// comes later counts as no answer.
func (s *Store) deadline(batch []*call, start time.Time) time.Time {
	latest := start.Add(min(minRoundTrip, s.cfg.Budget))
	for _, c := range batch {
		if c.deadline.After(latest) {
			latest = c.deadline
		}
	}
	if most := start.Add(s.cfg.Budget); latest.After(most) {
		return most
	}
	return latest
}

// retryUnknown loads the script and sends again, once, the commands that the server refused because it did not know it.
// They did not run, so sending them again takes nothing twice.
func (s *Store) retryUnknown(ctx context.Context, replies []*redis.Cmd) {
	var unknown []*redis.Cmd
	for _, reply := range replies {
		if redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
			reply.SetErr(nil)
			unknown = append(unknown, reply)
		}
	}
	if len(unknown) == 0 {
		return
	}
	s.observer.ScriptLoaded()
	load := loadScript(ctx)
	s.pipeline(ctx, append([]*redis.Cmd{load}, unknown...))
	if err := load.Err(); err != nil {
		for _, reply := range unknown { // why the script could not be loaded says more than that it is unknown
			reply.SetErr(err)
		}
	}
}

func loadScript(ctx context.Context) *redis.Cmd {
	return redis.NewCmd(ctx, "script", "load", lua.Group().Source())
}

// settle classifies the outcome of each command and reports what the round trip was: see exchange.
func (s *Store) settle(commands []*command) bool {
	answered, lost, readOnly := 0, false, false
	var last, classified error // commands of one batch mostly fail with the very same error
	for _, cmd := range commands {
		err := cmd.reply.Err()
		if err == nil {
			answered++
			continue
		}
		if !errors.Is(err, last) || last == nil {
			last, classified = err, classify(err)
		}
		cmd.err = classified
		lost = lost || !isReply(err)
		readOnly = readOnly || redis.IsReadOnlyError(err)
	}
	if readOnly {
		s.dialer.drop() // the name may lead to the new master now
	}
	return answered > 0 && !lost
}
