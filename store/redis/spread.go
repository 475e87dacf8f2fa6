package redis

import (
	"cmp"
	"context"
	"slices"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// A group whose keys lie in several slots of a cluster cannot be one script. It is decided in steps, so that no bucket
// ever admits more than its limit:
//
//	look    everywhere at once: does every take fit? Charges are recorded here, since they hold whatever else happens.
//	insist  when something does not fit, counting windows that deny count their hits.
//	take    slot by slot, in the order of the keys. The first that denies or fails ends it.
//	refund  what a refund of the group gives back, once everything was taken.
//	undo    after a denial or a failure: what was certainly taken is given back, in the window it was taken from.
//
// Between taking and undoing, others may be denied what would have fitted. A take whose outcome is unknown is not undone,
// nor is one whose undo gets no answer: they stay spent until the bucket refills.

// bySlot returns the indices of a group's takes by slot, in the order of their keys.
func bySlot(g rls.Group) [][]int {
	var parts [][]int
	where := make(map[int]int, len(g))
	for _, i := range byKey(g) {
		slot := slotOf(g[i[0]].Key)
		at, ok := where[slot]
		if !ok {
			at = len(parts)
			where[slot] = at
			parts = append(parts, nil)
		}
		parts[at] = append(parts[at], i[0])
	}
	return parts
}

// byKey returns each index of a group for itself, in the order of the keys.
func byKey(g rls.Group) [][]int {
	parts := make([][]int, len(g))
	for i := range g {
		parts[i] = []int{i}
	}
	slices.SortFunc(parts, func(a, b []int) int { return cmp.Compare(g[a[0]].Key, g[b[0]].Key) })
	return parts
}

// spread decides a group in parts, each of keys in one slot.
func (c *cluster) spread(ctx context.Context, group rls.Group, parts [][]int) rls.Answer {
	s := &spreading{
		cluster: c, group: group, parts: parts,
		answer: rls.Answer{Before: make([]algorithms.State, len(group)), Clocks: make([]algorithms.Micros, len(group))},
	}
	fits, err := s.look(ctx)
	if err == nil && !fits {
		err = s.insist(ctx)
	}
	if err == nil && fits {
		if fits, err = s.take(ctx); err == nil && fits {
			err = s.refund(ctx)
		}
		if err != nil || !fits {
			c.undo(s.taken)
		}
	}
	if err != nil {
		return rls.Answer{Err: err}
	}
	s.answer.Allowed, s.answer.Now = fits, s.answer.Clocks[0]
	return s.answer
}

// spreading is a group on its way through the steps.
type spreading struct {
	cluster *cluster
	group   rls.Group
	parts   [][]int
	answer  rls.Answer
	taken   []rls.Group // refunds of what was taken
}

// ask decides some takes of some parts, all at once, and notes what the servers answered. of returns what is asked about
// the i-th take of the group; false: nothing.
func (s *spreading) ask(ctx context.Context, parts [][]int, of func(i int) (rls.Take, bool)) (answers []rls.Answer, err error) {
	var pieces []*piece
	var asked [][]int
	for _, part := range parts {
		var g rls.Group
		var indices []int
		for _, i := range part {
			if take, ok := of(i); ok {
				g, indices = append(g, take), append(indices, i)
			}
		}
		if len(g) > 0 {
			pieces = append(pieces, &piece{group: g, slot: slotOf(g[0].Key), answer: new(rls.Answer)})
			asked = append(asked, indices)
		}
	}
	s.cluster.decidePieces(ctx, pieces)
	for j, p := range pieces {
		if p.answer.Err != nil {
			return nil, p.answer.Err
		}
		s.answer.Healed += p.answer.Healed
		for k, i := range asked[j] {
			s.answer.Before[i], s.answer.Clocks[i] = p.answer.Before[k], p.answer.Clock(k)
		}
		answers = append(answers, *p.answer)
	}
	return answers, nil
}

// look reports whether everything would fit now.
func (s *spreading) look(ctx context.Context) (fits bool, err error) {
	_, err = s.ask(ctx, s.parts, func(i int) (rls.Take, bool) {
		t := s.group[i]
		switch t.Op {
		case algorithms.OpTake:
			t.Op = algorithms.OpPeek
		case algorithms.OpRefund: // to know its bucket
			t.Op, t.Cost = algorithms.OpPeek, 1
		}
		return t, true
	})
	if err != nil {
		return false, err
	}
	fits = true
	for i, t := range s.group {
		fits = fits && t.Rule.Admits(t.Op, s.answer.Before[i], s.answer.Clocks[i], t.Cost)
	}
	return fits, nil
}

// insist counts the takes of counting windows that did not fit: those count what they deny. A window that has become
// another one meanwhile counts it too, which denies at most a hit too much.
func (s *spreading) insist(ctx context.Context) error {
	looked := slices.Clone(s.answer.Before)
	clocks := slices.Clone(s.answer.Clocks)
	_, err := s.ask(ctx, s.parts, func(i int) (rls.Take, bool) {
		t := s.group[i]
		denied := t.Op == algorithms.OpTake && !t.Rule.Admits(t.Op, looked[i], clocks[i], t.Cost)
		if !denied || !t.Rule.Insists(t.Op, false) {
			return t, false
		}
		t.Op = algorithms.OpCharge
		return t, true
	})
	s.answer.Before, s.answer.Clocks = looked, clocks
	return err
}

// take takes from one part after the other, and reports whether all gave what was asked.
func (s *spreading) take(ctx context.Context) (all bool, err error) {
	takes := func(i int) (rls.Take, bool) { return s.group[i], s.group[i].Op == algorithms.OpTake }
	for _, part := range s.parts {
		answers, err := s.ask(ctx, [][]int{part}, takes)
		if err != nil {
			return false, err
		}
		for _, a := range answers {
			if !a.Allowed {
				return false, nil
			}
			s.taken = append(s.taken, s.refunds(part))
		}
	}
	return true, nil
}

// refunds returns what gives back the takes of a part, which its buckets have just given.
func (s *spreading) refunds(part []int) (back rls.Group) {
	for _, i := range part {
		t := s.group[i]
		if t.Op != algorithms.OpTake {
			continue
		}
		t.Op = algorithms.OpRefund
		if t.Rule.Kind() != algorithms.TokenBucket {
			after, _ := t.Rule.Take(s.answer.Before[i], s.answer.Clocks[i], t.Cost)
			t.Window = after.At
		}
		back = append(back, t)
	}
	return back
}

// refund pays the refunds of the group.
func (s *spreading) refund(ctx context.Context) error {
	_, err := s.ask(ctx, s.parts, func(i int) (rls.Take, bool) { return s.group[i], s.group[i].Op == algorithms.OpRefund })
	return err
}

// undo gives back what was taken, in the background and within a store budget of its own: the caller has none left to
// wait for it. With as many under way as calls may wait, it is left spent.
func (c *cluster) undo(taken []rls.Group) {
	if len(taken) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.undos == c.store.Queue || c.stopping() {
		c.store.Observer.Undone(false)
		return
	}
	c.undos++
	c.undoing.Go(func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.undos--
		}()
		ctx, cancel := context.WithTimeout(context.Background(), c.store.Budget)
		defer cancel()
		pieces := make([]*piece, len(taken))
		for i, g := range taken {
			pieces[i] = &piece{group: g, slot: slotOf(g[0].Key), answer: new(rls.Answer)}
		}
		c.decidePieces(ctx, pieces)
		ok := !slices.ContainsFunc(pieces, func(p *piece) bool { return p.answer.Err != nil })
		c.store.Observer.Undone(ok)
	})
}
