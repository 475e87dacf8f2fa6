package redis

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Unlink removes keys and returns how many there were. It is for an operator who resets a bucket, and needs the right to
// UNLINK, which serving does not. The error wraps one of the classes of store failure.
func (s *Store) Unlink(ctx context.Context, keys ...string) (removed int64, err error) {
	for _, key := range keys { // one by one: they may stand in several slots of a cluster
		cmd := redis.NewIntCmd(ctx, "unlink", key)
		if err := s.servers.do(ctx, key, cmd); err != nil {
			return removed, fmt.Errorf("UNLINK: %w", classify(err))
		}
		removed += cmd.Val()
	}
	return removed, nil
}

func (s *single) do(ctx context.Context, _ string, cmd redis.Cmder) error {
	return s.client.Process(ctx, cmd)
}

func (c *cluster) do(ctx context.Context, key string, cmd redis.Cmder) error {
	if len(c.nodes()) == 0 {
		if err := c.refresh(ctx); err != nil {
			return err
		}
	}
	p := &piece{slot: slotOf(key)}
	for tries := 0; ; tries++ {
		n, err := c.serverOf(p)
		if err != nil {
			return err
		}
		err = n.client.Process(ctx, cmd)
		addr, asking, redirected := redirection(err)
		if !redirected || asking || tries == maxRedirections { // a slot that is on its way is soon there
			return err
		}
		c.move(p, completeAddr(addr, n.addr))
		cmd.SetErr(nil)
	}
}
