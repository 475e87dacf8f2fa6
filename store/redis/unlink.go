package redis

import (
	"context"
	"fmt"
)

// Unlink removes keys and returns how many there were. It is for an operator who resets a bucket, and needs the right to
// UNLINK, which serving does not. The error wraps one of the classes of store failure.
func (s *Store) Unlink(ctx context.Context, keys ...string) (removed int64, err error) {
	for _, key := range keys { // one by one: they may stand in several slots of a cluster
		n, err := s.client.Unlink(ctx, key).Result()
		if err != nil {
			return removed, fmt.Errorf("UNLINK: %w", classify(err))
		}
		removed += n
	}
	return removed, nil
}
