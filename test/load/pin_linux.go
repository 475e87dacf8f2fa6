package load

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// OnCore runs start, which starts processes, so that they and all their threads stay on one core, numbered from 0.
func OnCore(core int, start func() error) (err error) {
	// A process inherits the cores of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("reading the cores of a thread: %w", err)
	}
	if err := setCores(0, one(core)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, setCores(0, before)) }()
	return start()
}

// MoveToCore moves every thread of this process to one core, and returns what moves them back.
func MoveToCore(core int) (back func() error, err error) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("reading the cores of a thread: %w", err)
	}
	return func() error { return moveThreads(before) }, moveThreads(one(core))
}

// moveThreads goes on until it finds no thread that it has not moved: a thread that was started meanwhile by one that had
// not been moved is on the old cores.
func moveThreads(cores unix.CPUSet) error {
	moved := make(map[int]bool)
	for news := true; news; {
		news = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("listing the threads: %w", err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || moved[id] {
				continue
			}
			if err := setCores(id, cores); err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
			moved[id], news = true, true
		}
	}
	return nil
}

func one(core int) (set unix.CPUSet) {
	set.Set(core)
	return set
}

func setCores(thread int, cores unix.CPUSet) error {
	if err := unix.SchedSetaffinity(thread, &cores); err != nil {
		return fmt.Errorf("setting the cores of a thread: %w", err)
	}
	return nil
}
