package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/lua"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// classify wraps an error of a command or a connection in the class of store failure that it is. This is the only place
// that knows.
func classify(err error) error {
	return fmt.Errorf("%w: %w", classOf(err), err)
}

func classOf(err error) error {
	if reply, ok := errors.AsType[redis.Error](err); ok {
		if unavailable(reply.Error()) {
			return rls.ErrUnavailable
		}
		return rls.ErrStore
	}
	if errors.Is(err, lua.ErrReply) {
		return rls.ErrStore
	}
	// A full pool reports a timeout, but nothing was sent.
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return rls.ErrUnavailable
	}
	// By a race, the library returns the context's error or the socket's.
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return rls.ErrTimeout
	}
	if failure, ok := errors.AsType[net.Error](err); ok && failure.Timeout() {
		return rls.ErrTimeout
	}
	return rls.ErrUnavailable // refused, reset, closed, no such host, not a Redis at all
}

// isReply reports whether err is what the server answered, so that the connection and its other replies are sound.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// isRedirection reports a reply that names another server of the cluster, or asks to come again: the command did not run.
func isRedirection(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask || redis.IsTryAgainError(err)
}

// refusedForKeys reports a reply that refuses a command because of which keys it names, and whether that is because they lie
// in several slots of a cluster. The command did not run.
func refusedForKeys(err error) (slots, refused bool) {
	// Clusters say CROSSSLOT; the proxy of Alibaba Cloud says "ERR 'EVALSHA' command keys must in same slot".
	slots = redis.HasErrorPrefix(err, "CROSSSLOT") || isReply(err) && strings.Contains(err.Error(), "same slot")
	return slots, slots || redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(err.Error(), " key")
}

// notServed reports a reply about a slot that no server of the cluster keeps, which says nothing about this one.
func notServed(err error) bool {
	return redis.IsClusterDownError(err) && strings.Contains(err.Error(), "slot not served")
}

// passing are the codes of replies by a server that cannot do its work now, whatever it is asked.
var passing = []string{
	"LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY",
}

func unavailable(reply string) bool {
	code, _, _ := strings.Cut(reply, " ")
	if slices.Contains(passing, code) || strings.HasPrefix(reply, "ERR max number of clients reached") {
		return true
	}
	// Redis 6.2 wraps what a command of the script answered: "ERR Error running script (…): … -READONLY You can't …"
	_, inner, ok := strings.Cut(reply, ": -")
	if !ok {
		return false
	}
	code, _, _ = strings.Cut(inner, " ")
	return slices.Contains(passing, code)
}
