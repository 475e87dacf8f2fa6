package rls

import (
	"fmt"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// MaxTakes bounds a group. A server would be blocked by more.
const MaxTakes = 1000

// fewTakes is the size up to which comparing every pair of keys is cheaper than a set of them.
const fewTakes = 8

// Validate reports a group that breaks the contract of Group or Take: no take or more than MaxTakes, an op, a rule or a
// cost that is none, or a key that stands twice. Each is a bug of the caller. Stores answer such a group with this
// error, which wraps ErrStore, and decide nothing in it.
func (g Group) Validate() error {
	if len(g) == 0 || len(g) > MaxTakes {
		return fmt.Errorf("%w: a group of %d takes: must be 1 to %d", ErrStore, len(g), MaxTakes)
	}
	for i, take := range g {
		switch {
		case take.Op < algorithms.OpTake || take.Op > algorithms.OpRefund:
			return fmt.Errorf("%w: take %d of the group has no operation", ErrStore, i)
		case take.Rule.Kind() == 0:
			return fmt.Errorf("%w: take %d of the group has no rule", ErrStore, i)
		case take.Cost <= 0:
			return fmt.Errorf("%w: take %d of the group has the cost %d: must be positive", ErrStore, i, take.Cost)
		}
	}
	if i, j, twice := g.sameKey(); twice {
		return fmt.Errorf("%w: takes %d and %d of the group have the same key: merge them", ErrStore, i, j)
	}
	return nil
}

func (g Group) sameKey() (i, j int, twice bool) {
	if len(g) <= fewTakes {
		for j = range g {
			for i = range j {
				if g[i].Key == g[j].Key {
					return i, j, true
				}
			}
		}
		return 0, 0, false
	}
	seen := make(map[string]int, len(g))
	for j = range g {
		if i, twice = seen[g[j].Key]; twice {
			return i, j, true
		}
		seen[g[j].Key] = j
	}
	return 0, 0, false
}
