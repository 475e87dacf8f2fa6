// Package run starts the parts of a process together and stops them tier by tier.
//
// Data flows from listeners through workers to sinks, and the tiers stop in that order: nothing is taken away from a part
// that still needs it.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
)

// Part is one long-running piece of the process.
type Part struct {
	Name string
	// Run works until ctx is done, ends its work and returns when nothing of it is left running. Returning before ctx is
	// done stops the process, with or without an error.
	Run func(ctx context.Context) error
}

// Tier is a set of parts that stop together.
type Tier struct {
	Name  string
	Bound time.Duration // how long the tier's stop may take; > 0
	Parts []Part
}

// Errors of Tiers. The first is wrapped when a part returned although nobody had asked it to stop, the second when a
// tier's parts were still running at the end of its bound.
var (
	ErrEnded = errors.New("ended by itself")
	ErrStuck = errors.New("did not stop in time")
)

// Tiers starts every part of every tier and waits until ctx is done or a part returns. Then it stops the tiers in order,
// each waited for, at most for its bound; a part that is still running after that is left behind and reported.
//
// It returns nil when ctx ended the process and every part stopped in time without an error, otherwise everything that
// went wrong, joined. A panic in a part becomes that part's error, with its stack in the log.
func Tiers(ctx context.Context, log *slog.Logger, tiers ...Tier) error {
	ended := make(chan struct{}, 1)
	running := make([]*runningTier, len(tiers))
	for i, tier := range tiers {
		running[i] = start(ctx, log, tier, ended)
	}
	select {
	case <-ctx.Done():
		log.Info("stopping", "cause", context.Cause(ctx).Error())
	case <-ended:
		log.Error("stopping, because a part of the process ended")
	}
	var problems []error
	for _, r := range running {
		problems = append(problems, r.stop())
	}
	return errors.Join(problems...)
}

// runningTier is a Tier whose parts run.
type runningTier struct {
	Tier
	cancel context.CancelFunc
	done   chan error // receives the parts' joined outcome once all have returned
}

func start(ctx context.Context, log *slog.Logger, tier Tier, ended chan<- struct{}) *runningTier {
	// Detached: a tier stops when its turn comes, not when ctx is done.
	tierCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &runningTier{Tier: tier, cancel: cancel, done: make(chan error, 1)}
	outcomes := make([]error, len(tier.Parts))
	var group errgroup.Group
	for i, part := range tier.Parts {
		group.Go(func() error {
			outcomes[i] = runPart(tierCtx, log, part)
			select {
			case ended <- struct{}{}:
			default: // one is enough
			}
			return nil
		})
	}
	go func() {
		_ = group.Wait() // the outcomes are kept one by one, since the group would keep the first error only
		r.done <- errors.Join(outcomes...)
	}()
	return r
}

func runPart(ctx context.Context, log *slog.Logger, part Part) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a part of the process panicked", "part", part.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s: panic: %v", part.Name, p)
		}
	}()
	err = part.Run(ctx)
	switch {
	case ctx.Err() == nil && err == nil:
		return fmt.Errorf("%s: %w", part.Name, ErrEnded)
	case ctx.Err() == nil:
		return fmt.Errorf("%s: %w: %w", part.Name, ErrEnded, err)
	case err != nil && !errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", part.Name, err)
	}
	return nil
}

func (r *runningTier) stop() error {
	r.cancel()
	bound := time.NewTimer(r.Bound)
	defer bound.Stop()
	select {
	case err := <-r.done:
		return err
	case <-bound.C:
		return fmt.Errorf("%s: %w: %v", r.Name, ErrStuck, r.Bound)
	}
}
