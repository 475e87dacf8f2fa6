package main

import (
	"context"
	"time"
)

// watch samples the program's goroutines and memory: what its heap and stacks hold, before and afterwards without garbage.
type watch struct {
	goroutines, memory Levels // the sampler's until it has ended

	cancel context.CancelFunc
	ended  chan struct{}
}

const (
	sampleEvery = 200 * time.Millisecond

	// settle is how long the program may take to give back what it needed: buffers that were pooled, idle stacks.
	settle = 10 * time.Second
)

// start takes the levels of a healthy program as those before, and samples from then on.
func (w *watch) start(ctx context.Context, c *scene) (err error) {
	if _, _, err := c.levels(ctx); err != nil { // for the first time, so that what the asking itself takes is there
		return err
	}
	if err := c.program.Collect(ctx); err != nil {
		return err
	}
	if w.goroutines.Before, w.memory.Before, err = c.levels(ctx); err != nil {
		return err
	}
	ctx, w.cancel = context.WithCancel(ctx)
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		for sleep(ctx, sampleEvery) == nil {
			goroutines, memory, err := c.levels(ctx)
			if err != nil {
				continue // a program that was killed cannot be asked
			}
			w.goroutines.Peak, w.memory.Peak = max(w.goroutines.Peak, goroutines), max(w.memory.Peak, memory)
		}
	}()
	return nil
}

func (w *watch) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.ended
		w.cancel = nil
	}
}

// levels ends the sampling, waits until the program is as before or does not come to be, and returns what was seen.
func (w *watch) levels(ctx context.Context, c *scene) (goroutines, memory Levels, err error) {
	w.stop()
	w.goroutines.Peak, w.memory.Peak = max(w.goroutines.Peak, w.goroutines.Before), max(w.memory.Peak, w.memory.Before)
	for start := time.Now(); ; {
		if err := c.program.Collect(ctx); err != nil {
			return goroutines, memory, err
		}
		w.goroutines.After, w.memory.After, err = c.levels(ctx)
		if err != nil {
			return goroutines, memory, err
		}
		calm := 10*w.goroutines.After <= 11*w.goroutines.Before && 10*w.memory.After <= 11*w.memory.Before
		if calm || time.Since(start) > settle {
			return w.goroutines, w.memory, nil
		}
		if err := sleep(ctx, sampleEvery); err != nil {
			return goroutines, memory, err
		}
	}
}

// levels asks the program how many goroutines it has, and how many bytes its heap and stacks hold.
func (c *scene) levels(ctx context.Context) (goroutines, memory int64, err error) {
	m, err := c.program.Metrics(ctx)
	memory = int64(m.Sum("go_memstats_heap_alloc_bytes") + m.Sum("go_memstats_stack_inuse_bytes"))
	return int64(m.Sum("go_goroutines")), memory, err
}
