package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelTimeout bounds one question to the sentinels. Those that are well answer within milliseconds.
const sentinelTimeout = 500 * time.Millisecond

// masterEvery is how often the sentinels are asked whether connections still lead to the master.
const masterEvery = time.Second

// replicated is one master that sentinels name. Each new connection asks them where it is.
type replicated struct {
	single
	sentinels *sentinels
}

func newFailover(s *Store) *replicated {
	asked := newSentinels(s)
	f := &replicated{sentinels: asked}
	f.single = single{node: s.newNode(s.master, asked.lookup), store: s}
	return f
}

func (f *replicated) run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { f.follow(ctx) })
	err := f.single.run(ctx)
	following.Wait()
	return errors.Join(err, f.sentinels.close())
}

// follow drops connections to a server that is no longer the master. One that was demoted closes them itself; one that is
// cut off from the sentinels, but not from this process, would go on counting beside the new master.
func (f *replicated) follow(ctx context.Context) {
	tick := time.NewTicker(masterEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if master, err := f.sentinels.lookup(ctx); err == nil {
				f.dialer.dropOthers(master)
			}
		}
	}
}

// sentinels are asked where the master is. Safe for concurrent use.
type sentinels struct {
	master  string
	clients []*redis.SentinelClient
	dialers []*dialer
	asking  sync.WaitGroup
}

func newSentinels(s *Store) *sentinels {
	all := &sentinels{master: s.master}
	who := login{s.SentinelUsername, s.SentinelPassword, s.SentinelPasswordFile}
	for _, addr := range s.addresses {
		d := newDialer("tcp", addr, s.tlsConfig(), func(int) {}) // the connections that are counted are the store's
		o := s.options(d, who)
		o.DB = 0
		o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = sentinelTimeout, sentinelTimeout, sentinelTimeout
		all.dialers = append(all.dialers, d)
		all.clients = append(all.clients, redis.NewSentinelClient(o))
	}
	return all
}

// lookup asks all sentinels at once and returns the address that more than half of them name, or most of those that
// answered in time: one that is cut off may still name the old master.
func (s *sentinels) lookup(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sentinelTimeout)
	defer cancel()
	type answer struct {
		addr string
		err  error
	}
	answers := make(chan answer, len(s.clients))
	for i := range s.clients {
		s.asking.Go(func() {
			addr, err := s.ask(ctx, i)
			answers <- answer{addr, err}
		})
	}
	votes := make(map[string]int)
	best := ""
	var errs []error
	for range s.clients {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		if votes[a.addr]++; votes[a.addr] > votes[best] {
			best = a.addr
		}
		if votes[a.addr] > len(s.clients)/2 {
			break
		}
	}
	if best == "" {
		return "", &sentinelError{errors.Join(errs...)}
	}
	return best, nil
}

// ask asks the i-th sentinel.
func (s *sentinels) ask(ctx context.Context, i int) (addr string, err error) {
	words, err := s.clients[i].GetMasterAddrByName(ctx, s.master).Result()
	switch {
	case errors.Is(err, redis.Nil):
		err = errUnknownMaster
	case err == nil && len(words) != 2:
		err = errors.New("no address of two words")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.dialers[i].addr, err)
	}
	return net.JoinHostPort(words[0], words[1]), nil
}

var errUnknownMaster = errors.New("no master of that name")

// sentinelError says why no sentinel names the master.
type sentinelError struct{ cause error }

// Error implements error.
func (e *sentinelError) Error() string { return "no sentinel names the master: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *sentinelError) Unwrap() error { return e.cause }

// fault is the configuration fault behind the error; nil when there is none.
func (e *sentinelError) fault() *ConfigFault {
	if errors.Is(e, errUnknownMaster) {
		return &ConfigFault{
			"the sentinels know no such master: " + e.cause.Error(),
			"name it after the hosts in redis.url, as in redis+sentinel://host:26379/mymaster",
		}
	}
	if reply, ok := errors.AsType[redis.Error](e.cause); ok {
		return &ConfigFault{
			"a sentinel refuses the question for the master: " + reply.Error(),
			"check redis.sentinel.username and redis.sentinel.password_file, and allow the user +sentinel|get-master-addr-by-name",
		}
	}
	return nil
}

func (s *sentinels) close() error {
	var errs []error
	for i, client := range s.clients {
		errs = append(errs, client.Close())
		s.dialers[i].close()
	}
	s.asking.Wait()
	return errors.Join(errs...)
}
