package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinel-rls/sentinel-rls/rls"
)

const (
	// maxNodes bounds the servers of a cluster, whatever a server says that there are.
	maxNodes = 1000

	// maxRedirections is how often one command follows a redirection. A slot on its way takes two.
	maxRedirections = 4

	layoutTimeout = 500 * time.Millisecond // for one server to say what the layout is
	layoutPause   = 100 * time.Millisecond // at least, between two questions
	layoutSick    = 500 * time.Millisecond // at most, while a server is away
)

// cluster is the servers of a Redis Cluster, each with its slots.
//
// Masters alone are asked: a replica would answer from a state of the past. The layout is asked for at the start, from
// time to time, and whenever a server does not answer or sends a command elsewhere; redirections are followed before the
// layout says so.
type cluster struct {
	store *Store
	seeds []*node // the servers that the URL names; they are asked for the layout only

	slots [slotCount]atomic.Pointer[node] // nil: no server that we know of

	mu      sync.Mutex // guards what follows
	masters map[string]*master
	ctx     context.Context // of run; nil before
	undos   int             // under way

	// While ctx is not done, and mu is held, these may grow.
	running sync.WaitGroup // the masters' run
	undoing sync.WaitGroup

	changed chan struct{} // holds one element once the layout may be another
	asked   chan struct{} // closed once the layout has been asked for, with or without success
}

// master is a node that is in use.
type master struct {
	*node
	stop context.CancelFunc // nil before run
}

func newCluster(s *Store) *cluster {
	c := &cluster{
		store: s, masters: make(map[string]*master),
		changed: make(chan struct{}, 1), asked: make(chan struct{}),
	}
	for _, addr := range s.addresses {
		c.seeds = append(c.seeds, s.newNode(addr, nil))
	}
	return c
}

func (c *cluster) run(ctx context.Context) error {
	c.mu.Lock()
	c.ctx = ctx
	for _, m := range c.masters {
		c.start(m)
	}
	c.mu.Unlock()
	c.follow(ctx)
	c.mu.Lock() // whoever holds it from now on finds ctx done
	//lint:ignore SA2001 an empty critical section is what is meant
	c.mu.Unlock()
	c.undoing.Wait()
	c.running.Wait()
	var errs []error
	for _, n := range c.seeds {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// stopping reports whether run is over, or soon will be. c.mu is held.
func (c *cluster) stopping() bool { return c.ctx != nil && c.ctx.Err() != nil }

// start runs a master until it is stopped or the cluster is. c.mu is held.
func (c *cluster) start(m *master) {
	var ctx context.Context
	ctx, m.stop = context.WithCancel(c.ctx)
	c.running.Go(func() { _ = m.run(ctx) }) // what fails is the closing of a connection
}

func (c *cluster) nodes() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make([]*node, 0, len(c.masters))
	for _, m := range c.masters {
		nodes = append(nodes, m.node)
	}
	return nodes
}

// node returns the master at an address, which is new where a redirection names one that no layout did.
func (c *cluster) node(addr string) (*node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lockedNode(addr)
}

// lockedNode is node with c.mu held.
func (c *cluster) lockedNode(addr string) (*node, error) {
	if m, ok := c.masters[addr]; ok {
		return m.node, nil
	}
	if len(c.masters) >= maxNodes {
		return nil, fmt.Errorf("%w: %w: the cluster names more than %d servers", rls.ErrUnavailable, ErrNotSent, maxNodes)
	}
	if c.stopping() {
		return nil, errStopped
	}
	m := &master{node: c.store.newNode(addr, nil)}
	m.astray = c.noteChange
	c.masters[addr] = m
	if c.ctx != nil {
		c.start(m)
	}
	return m.node, nil
}

// noteChange has the layout asked for soon. It never blocks.
func (c *cluster) noteChange() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// follow keeps the layout up to date until ctx is done.
func (c *cluster) follow(ctx context.Context) {
	for first := true; ; first = false {
		err := c.refresh(ctx)
		if first {
			close(c.asked)
		}
		wait := c.store.ProbeEvery
		if err != nil || c.sick() {
			wait = min(wait, layoutSick)
		}
		if !sleep(ctx, layoutPause, nil) || !sleep(ctx, wait, c.changed) {
			return
		}
	}
}

// sleep waits for d, or less when something comes; false: ctx is done.
func sleep(ctx context.Context, d time.Duration, less <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-less:
	case <-timer.C:
	}
	return true
}

// sick reports whether a server does not answer.
func (c *cluster) sick() bool {
	return slices.ContainsFunc(c.nodes(), func(n *node) bool { return n.down.Load() || n.breaker.Probing() })
}

// refresh asks one server after the other for the layout, those first that answered last.
func (c *cluster) refresh(ctx context.Context) error {
	nodes := append(c.nodes(), c.seeds...)
	slices.SortStableFunc(nodes, func(a, b *node) int {
		switch {
		case a.down.Load() == b.down.Load():
			return 0
		case a.down.Load():
			return 1
		}
		return -1
	})
	var errs []error
	for _, n := range nodes {
		ranges, err := n.layout(ctx)
		if err == nil {
			return c.apply(ranges, n.addr)
		}
		errs = append(errs, fmt.Errorf("%s: %w", n.addr, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// layout asks the server who keeps which slots.
func (n *node) layout(ctx context.Context) ([]redis.ClusterSlot, error) {
	ctx, cancel := context.WithTimeout(ctx, max(layoutTimeout, n.Budget))
	defer cancel()
	//lint:ignore SA1019 CLUSTER SHARDS came with Redis 7, and 6.2 is served too
	return n.client.ClusterSlots(ctx).Result()
}

// apply makes a layout the current one. asked is the server that it comes from, whose host an empty one means.
func (c *cluster) apply(ranges []redis.ClusterSlot, asked string) error {
	c.mu.Lock() // so that no slot is left to a master that is retired
	defer c.mu.Unlock()
	owners := make([]*node, slotCount)
	known := make(map[string]*node)
	var errs []error
	for _, r := range ranges {
		if len(r.Nodes) == 0 || r.Start < 0 || r.End >= slotCount || r.Start > r.End {
			continue
		}
		addr := completeAddr(r.Nodes[0].Addr, asked)
		if known[addr] == nil {
			n, err := c.lockedNode(addr)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			known[addr] = n
		}
		for slot := r.Start; slot <= r.End; slot++ {
			owners[slot] = known[addr]
		}
	}
	if len(known) == 0 {
		return errors.Join(append(errs, errors.New("no server keeps any slot"))...)
	}
	for slot, n := range owners {
		c.slots[slot].Store(n)
	}
	c.retire(known)
	return errors.Join(errs...)
}

// completeAddr replaces an empty host by that of the server that named it.
func completeAddr(addr, asked string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host != "" {
		return addr
	}
	host, _, _ = net.SplitHostPort(asked)
	return net.JoinHostPort(host, port)
}

// retire stops masters that keep no slot. c.mu is held.
func (c *cluster) retire(known map[string]*node) {
	for addr, m := range c.masters {
		if known[addr] != nil {
			continue
		}
		delete(c.masters, addr)
		if m.stop != nil {
			m.stop()
		} else {
			_ = m.close() // before run there is no connection but the probe's
		}
	}
}

// probe asks every master, all at once.
func (c *cluster) probe(ctx context.Context) error {
	if len(c.nodes()) == 0 {
		if err := c.probeSeeds(ctx); err != nil {
			return err
		}
	}
	nodes := c.nodes()
	errs := make([]error, len(nodes))
	var probes sync.WaitGroup
	for i, n := range nodes {
		probes.Go(func() { errs[i] = c.store.probeNode(ctx, n, c.keyOn(n, c.store.ProbeKey)) })
	}
	probes.Wait()
	// What waiting does not mend counts for more.
	for i, err := range errs {
		if fault, ok := errors.AsType[*ConfigFault](err); ok {
			return &ConfigFault{nodes[i].addr + ": " + fault.Problem, fault.Mend}
		}
	}
	return errors.Join(errs...)
}

// probeSeeds learns the layout for the first time, or what is in its way.
func (c *cluster) probeSeeds(ctx context.Context) error {
	err := c.refresh(ctx)
	if err == nil {
		return nil
	}
	for _, n := range c.seeds {
		// A server that is none of a cluster says so in INFO better than in its answer to CLUSTER.
		if fault, ok := errors.AsType[*ConfigFault](c.store.probeServer(ctx, n)); ok {
			return fault
		}
	}
	return problem(err)
}

func (c *cluster) keyOn(n *node, key string) string {
	for i := range taggedKeys {
		if key := tagged(key, i); c.slots[slotOf(key)].Load() == n {
			return key
		}
	}
	return ""
}

// piece is a group whose keys lie in one slot, on its way to the server that keeps it.
type piece struct {
	group  rls.Group
	answer *rls.Answer
	slot   int
	addr   string // where the last redirection sent it; empty: to the slot's server
	asking bool   // and there the slot is only arriving
}

func (c *cluster) decide(ctx context.Context, groups []rls.Group, answers []rls.Answer) {
	select {
	case <-c.asked:
	case <-ctx.Done(): // whoever is sent it says so
	}
	for _, wave := range waves(groups, answers) {
		pieces := make([]*piece, 0, len(wave))
		var spreads sync.WaitGroup
		for _, i := range wave {
			if slot, ok := oneSlot(groups[i]); ok {
				pieces = append(pieces, &piece{group: groups[i], answer: &answers[i], slot: slot})
			} else if len(wave) == 1 {
				answers[i] = c.spread(ctx, groups[i], bySlot(groups[i]))
			} else {
				spreads.Go(func() { answers[i] = c.spread(ctx, groups[i], bySlot(groups[i])) })
			}
		}
		c.decidePieces(ctx, pieces)
		spreads.Wait()
	}
}

func oneSlot(g rls.Group) (slot int, ok bool) {
	slot = slotOf(g[0].Key)
	for i := range g[1:] {
		if slotOf(g[i+1].Key) != slot {
			return 0, false
		}
	}
	return slot, true
}

// waves puts the groups without an error in order: groups that share a key with an earlier one over several slots wait
// for it, and the other way round. Others go together, and keep their order where they meet at one server.
func waves(groups []rls.Group, answers []rls.Answer) (all [][]int) {
	if len(groups) == 1 && answers[0].Err == nil {
		return [][]int{{0}}
	}
	type visit struct {
		wave   int
		spread bool
	}
	last := make(map[string]visit)
	for i, g := range groups {
		if answers[i].Err != nil {
			continue
		}
		_, together := oneSlot(g)
		wave := 0
		for _, take := range g {
			if v, ok := last[take.Key]; ok && (v.spread || !together) {
				wave = max(wave, v.wave+1)
			} else if ok {
				wave = max(wave, v.wave)
			}
		}
		for _, take := range g {
			last[take.Key] = visit{wave, !together}
		}
		if wave == len(all) {
			all = append(all, nil)
		}
		all[wave] = append(all[wave], i)
	}
	return all
}

// decidePieces sends every piece to its server and follows redirections: a redirected command did not run.
func (c *cluster) decidePieces(ctx context.Context, pieces []*piece) {
	for tries := 0; len(pieces) > 0; tries++ {
		var again []*piece
		for _, p := range c.sendPieces(ctx, pieces) {
			err := p.answer.Err
			p.addr, p.asking = "", false
			switch addr, asking, ok := redirection(err); {
			case redis.IsTryAgainError(err) && len(p.group) > 1:
				// The slot is on its way, and some of the keys are here and some there: each for itself can be decided.
				*p.answer = c.spread(ctx, p.group, byKey(p.group))
				continue
			case ok:
				p.addr, p.asking = addr, asking
			case !errors.Is(err, errStopped): // this one's server left the cluster before it was sent
				continue
			}
			if tries == maxRedirections {
				p.answer.Err = fmt.Errorf("%w: %w: sent from one server to the next", rls.ErrUnavailable, err)
				continue
			}
			again = append(again, p)
		}
		pieces = again
	}
}

// redirection returns where a reply sends a command.
func redirection(err error) (addr string, asking, ok bool) {
	if addr, ok = redis.IsMovedError(err); ok {
		return addr, false, true
	}
	addr, ok = redis.IsAskError(err)
	return addr, true, ok
}

// delivery is a call to one server with the pieces it carries.
type delivery struct {
	node   *node
	call   *call
	pieces []*piece
	err    error // it was not put into the queue
}

// sendPieces sends each piece once, fills in the answers, and returns the pieces that failed.
func (c *cluster) sendPieces(ctx context.Context, pieces []*piece) (failed []*piece) {
	deliveries := c.deliveries(ctx, pieces)
	for _, d := range deliveries {
		d.err = d.node.submit(ctx, d.call)
	}
	for _, d := range deliveries {
		if d.err == nil {
			d.err = d.node.await(ctx, d.call)
		}
		for i, p := range d.pieces {
			*p.answer = d.call.decisions[i].answer(d.err)
			if addr, ok := redis.IsMovedError(p.answer.Err); ok {
				c.move(p, completeAddr(addr, d.node.addr))
			}
		}
	}
	for _, p := range pieces {
		if p.answer.Err != nil {
			failed = append(failed, p)
		}
	}
	return failed
}

// move notes that the server of a slot is another.
func (c *cluster) move(p *piece, addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, err := c.lockedNode(addr); err == nil {
		c.slots[p.slot].Store(n)
	}
}

// deliveries groups pieces by server. A piece without a server gets its error.
func (c *cluster) deliveries(ctx context.Context, pieces []*piece) []*delivery {
	var deliveries []*delivery
	for _, p := range pieces {
		n, err := c.serverOf(p)
		if err != nil {
			*p.answer = rls.Answer{Err: err}
			continue
		}
		i := slices.IndexFunc(deliveries, func(d *delivery) bool { return d.node == n })
		if i < 0 {
			i = len(deliveries)
			deliveries = append(deliveries, &delivery{node: n})
		}
		deliveries[i].pieces = append(deliveries[i].pieces, p)
	}
	for _, d := range deliveries {
		d.call = newCall(ctx, len(d.pieces))
		for i, p := range d.pieces {
			d.call.decisions[i].asking = p.asking
			d.call.put(i, p.group)
		}
	}
	return deliveries
}

func (c *cluster) serverOf(p *piece) (*node, error) {
	if p.addr != "" {
		return c.node(p.addr)
	}
	if n := c.slots[p.slot].Load(); n != nil {
		return n, nil
	}
	c.noteChange()
	return nil, errNoServer
}

var errNoServer = fmt.Errorf("%w: %w: no known server keeps the slot", rls.ErrUnavailable, ErrNotSent)
