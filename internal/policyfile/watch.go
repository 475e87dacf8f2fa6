package policyfile

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"time"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// The defaults of Watcher.
const (
	DefaultEvery  = time.Second
	DefaultSettle = 2 * time.Second
)

// unsettled times Settle is how long files may keep changing before they are applied all the same.
const unsettled = 30

// Watcher notices that the content of policy files has changed. It looks at contents and nothing else: modification times,
// inodes and kernel notifications differ between editors, mounted ConfigMaps and network file systems, contents do not.
type Watcher struct {
	Paths []string // as for Read

	// Read returns the files instead of Read of Paths; nil: that.
	Read func() ([]descriptors.File, error)

	// Every is the time between two looks; DefaultEvery when 0.
	Every time.Duration
	// Settle is how long every look must have shown the same before it is applied, so that a file that is still being
	// written, or half a set of files that is still being copied, is not taken for what its author meant; DefaultSettle
	// when 0. What never settles is applied as it is after 30 times as long.
	Settle time.Duration
	// Now asks to apply at once what is there, settled or not, and even when it is what was applied last.
	Now <-chan os.Signal

	// Applied and AppliedErr are what Read returned, and what was applied, before Run: while it still returns that, nothing
	// has changed.
	Applied    []descriptors.File
	AppliedErr error

	// Apply receives what Read returned after each change, also of what is wrong. Called by Run, one call at a time. Required.
	Apply func(files []descriptors.File, err error)
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	every, settle := w.Every, w.Settle
	if every == 0 {
		every = DefaultEvery
	}
	if settle == 0 {
		settle = DefaultSettle
	}
	read := w.Read
	if read == nil {
		read = func() ([]descriptors.File, error) { return Read(w.Paths) }
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	seen := newLook(w.Applied, w.AppliedErr)
	applied := seen.sum
	since, differsSince := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Now:
			seen = steady(read)
		case <-ticker.C:
			now := newLook(read())
			if now.sum != seen.sum {
				seen, since = now, time.Now()
			}
			if seen.sum == applied {
				differsSince = time.Now()
				continue
			}
			if time.Since(since) < settle && time.Since(differsSince) < unsettled*settle {
				continue
			}
		}
		applied, differsSince = seen.sum, time.Now()
		w.Apply(seen.files, seen.err)
		seen.files = nil // only the sum is needed from here on
	}
}

// look is what Read returned, and a sum that is equal for equal contents or equal errors.
type look struct {
	files []descriptors.File
	err   error
	sum   [sha256.Size]byte
}

func newLook(files []descriptors.File, err error) look {
	l := look{files: files, err: err}
	h := sha256.New()
	part := func(data []byte) { // with its length, so that no two lists of parts give the same text
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(data))))
		h.Write(data)
	}
	for _, f := range files {
		part([]byte(f.Name))
		part(f.Data)
	}
	if err != nil {
		part([]byte(err.Error()))
	}
	h.Sum(l.sum[:0])
	return l
}

// steadyLooks bounds how often steady looks.
const steadyLooks = 10

// steady looks until two looks in a row show the same: reading several files is not atomic, and a directory that is
// swapped in the middle would show files of both.
func steady(read func() ([]descriptors.File, error)) look {
	last := newLook(read())
	for range steadyLooks {
		next := newLook(read())
		if next.sum == last.sum {
			break
		}
		last = next
	}
	return last
}

// ReadSteady is Read for files that may be replaced just now: two reads in a row must give the same, for at most ten reads.
func ReadSteady(paths []string) ([]descriptors.File, error) {
	return Steady(func() ([]descriptors.File, error) { return Read(paths) })
}

// Steady is ReadSteady for another way to read.
func Steady(read func() ([]descriptors.File, error)) ([]descriptors.File, error) {
	l := steady(read)
	return l.files, l.err
}
