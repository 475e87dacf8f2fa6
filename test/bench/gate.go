package main

import (
	"context"
	"io"
	"time"
)

// gateSize is how much is measured before a change is merged.
func gateSize() Size {
	s := fullSize()
	s.Window, s.WarmUp, s.Quick = 700*time.Millisecond, 500*time.Millisecond, true
	return s
}

// gateTries is how often a measure is made until its figures hold their floors.
const gateTries = 3

// runGate makes the measures that have floors and returns their figures, held to the floors. A measure that misses one is
// made again: a change that costs so much costs it each time. What other work disturbs is measured again round by round, and
// is not judged when that does not help.
func runGate(ctx context.Context, size Size, progress io.Writer) (*Report, error) {
	b, err := openBench(ctx, size, progress)
	if err != nil {
		return nil, err
	}
	defer b.close()
	r := newReport(size, b.store)
	for _, m := range measures {
		if !m.gated {
			continue
		}
		for try := 1; ; try++ {
			one := new(Report)
			if err := b.make(ctx, m, one); err != nil {
				return nil, err
			}
			one.Figures = gated(one.figures())
			if try == gateTries || len(one.missed()) == 0 {
				r.Figures = append(r.Figures, one.Figures...)
				break
			}
		}
	}
	return r, nil
}
