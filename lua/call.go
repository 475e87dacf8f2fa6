package lua

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// MaxCalls is the largest number of buckets that one script call decides; a server blocks about 5 µs for each.
const MaxCalls = 1000

// ErrCalls is the error on a command for no bucket at all, or for more than MaxCalls.
var ErrCalls = errors.New("number of buckets in a script call")

// Call is one operation on one bucket. Rule must not be zero, Cost must be positive; Window is for refunds, as in
// algorithms.Rule.Refund.
type Call struct {
	Key    string
	Rule   algorithms.Rule
	Op     algorithms.Op
	Cost   int64
	Window algorithms.Micros
}

// maxRules bounds an Encoder's memory. Rules come from policies and are few; one that meets more starts to learn anew.
const maxRules = 4096

// Encoder writes script commands. It remembers how each rule is written, so that a command formats no numbers but
// costs other than 1. Safe for concurrent use.
type Encoder struct {
	jitter int64 // milliseconds

	mu    sync.RWMutex // protects known
	known map[algorithms.Rule]*parameters
}

// NewEncoder returns an Encoder that knows no rule yet. What each of its commands writes lives on by a random time below
// jitter after it is of no more use, so that keys that were written together do not expire together; answers do not
// depend on it. 0: nothing does. A part of a millisecond is cut off.
func NewEncoder(jitter time.Duration) *Encoder {
	return &Encoder{jitter: jitter.Milliseconds(), known: make(map[algorithms.Rule]*parameters)}
}

// parameters are a rule's constant arguments: the algorithm and its three numbers. They are kept as interface values,
// as clients take them, since making one allocates.
type parameters struct{ algorithm, p1, p2, p3 any }

// AppendCommand appends the whole command that decides groups, each all or nothing, in order, EVALSHA of Group's digest,
// to dst and returns it. The keys of a group must be distinct. Neighbours that are alike but for their keys make the
// command shorter. A server that does not know the script answers NOSCRIPT.
// The error wraps ErrCalls: no group or bucket, or more than MaxCalls buckets. A zero Rule, an invalid Op and a cost of 0 or
// less panic.
func (e *Encoder) AppendCommand(dst []any, groups ...[]Call) ([]any, error) {
	keys := 0
	for _, calls := range groups {
		if len(calls) == 0 {
			return dst, fmt.Errorf("%w: a group of none", ErrCalls)
		}
		keys += len(calls)
	}
	if keys == 0 || keys > MaxCalls {
		return dst, fmt.Errorf("%w: %d, must be 1 to %d", ErrCalls, keys, MaxCalls)
	}
	dst = append(dst, argEvalSHA, argDigest(), keys)
	for _, calls := range groups {
		for i := range calls {
			dst = append(dst, calls[i].Key)
		}
	}
	dst = append(dst, e.extra())
	for len(groups) > 0 {
		calls, run := groups[0], 1
		for run < len(groups) && alike(groups[run], calls) {
			run++
		}
		dst = append(dst, smallArg(run), smallArg(len(calls)))
		for i := range calls {
			c := &calls[i]
			p := e.parameters(c.Rule)
			dst = append(dst, p.algorithm, opArg(c.Op), costArg(c.Cost), p.p1, p.p2, p.window(c))
		}
		groups = groups[run:]
	}
	return dst, nil
}

// alike reports whether two groups differ in nothing but their keys.
func alike(a, b []Call) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Rule != y.Rule || x.Op != y.Op || x.Cost != y.Cost || x.Window != y.Window {
			return false
		}
	}
	return true
}

// extra is the argument that says how long what is written lives beyond its use.
func (e *Encoder) extra() any {
	if e.jitter <= 0 {
		return argZero
	}
	return rand.Int64N(e.jitter)
}

func (e *Encoder) parameters(r algorithms.Rule) *parameters {
	e.mu.RLock()
	p, ok := e.known[r]
	e.mu.RUnlock()
	if ok {
		return p
	}
	p = newParameters(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.known) >= maxRules {
		clear(e.known)
	}
	e.known[r] = p
	return p
}

func newParameters(r algorithms.Rule) *parameters {
	number := func(n int64) any { return strconv.FormatInt(n, 10) }
	switch r.Kind() {
	case algorithms.TokenBucket:
		return &parameters{"tb", number(r.Limit()), number(r.Refill().Tokens), number(r.Refill().Seconds)}
	case algorithms.SlidingWindow:
		return &parameters{"sw", number(r.Limit()), number(int64(r.Window())), argZero}
	case algorithms.FixedWindow:
		algorithm := "fw"
		if r.Counting() {
			algorithm = "cw"
		}
		return &parameters{algorithm, number(r.Limit()), number(int64(r.Window())), argZero}
	}
	panic("lua: zero Rule")
}

// window is the sixth argument: the window of a refund where there is one.
func (p *parameters) window(c *Call) any {
	if c.Window == 0 || c.Op != algorithms.OpRefund || c.Rule.Kind() == algorithms.TokenBucket {
		return p.p3
	}
	return int64(c.Window)
}

var (
	argEvalSHA any = "evalsha"
	argZero    any = "0"
	argOne     any = "1"
	argOps         = [...]any{algorithms.OpTake: "take", algorithms.OpCharge: "charge", algorithms.OpPeek: "peek", algorithms.OpRefund: "refund"}
	argDigest      = sync.OnceValue(func() any { return Group().SHA1() })
)

// smallArg is a number that is mostly 1.
func smallArg(n int) any {
	if n == 1 {
		return argOne
	}
	return n
}

func opArg(op algorithms.Op) any {
	if op == 0 || int(op) >= len(argOps) {
		panic("lua: invalid Op")
	}
	return argOps[op]
}

func costArg(cost int64) any {
	switch {
	case cost == 1:
		return argOne
	case cost <= 0:
		panic("lua: cost must be positive")
	}
	return cost
}
