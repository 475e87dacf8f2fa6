package story

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Step is one promise.
type Step struct {
	Name     string
	Expected string // what is got must be this, to the letter, unless Holds says otherwise
	// Holds says whether what is got keeps the promise, where more than one outcome does.
	Holds func(got string) bool
	// Outage says that the step needs a store that can be killed.
	Outage bool
	Play   func(context.Context, *Stack) (got string, err error)
}

// counters are Envoy's counts of questions that its filters got no usable answer to, by name.
type counters map[string]uint64

// Play plays one step and returns what was really got; passed says whether it is what was expected. Requests that Envoy let
// through or refused without sentinel's answer fail a step however well it looks: the limit was not asked.
func (s *Stack) Play(ctx context.Context, step Step) (got string, passed bool) {
	before, err := s.unanswered()
	if err != nil {
		return err.Error(), false
	}
	if got, err = step.Play(ctx, s); err != nil {
		return err.Error(), false
	}
	after, err := s.unanswered()
	if err != nil {
		return err.Error(), false
	}
	if moved := diff(before, after); moved != "" {
		return got + "; and Envoy counted " + moved, false
	}
	if step.Holds != nil {
		return got, step.Holds(got)
	}
	return got, got == step.Expected
}

func (s *Stack) unanswered() (counters, error) {
	return s.Envoy.Stats(`\.(ext_authz|ratelimit)\.(error|failure_mode_allowed|invalid)$`)
}

func diff(before, after counters) string {
	var moved []string
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if n := after[name] - before[name]; n != 0 {
			moved = append(moved, fmt.Sprintf("%s +%d", name, n))
		}
	}
	return strings.Join(moved, ", ")
}
