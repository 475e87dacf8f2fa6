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

// AppendCommand appends the whole command that decides calls as one group, EVALSHA of Group's digest, to dst and
// returns it. The keys of calls must be distinct. A server that does not know the script answers NOSCRIPT.
// The error wraps ErrCalls. A zero Rule, an invalid Op and a cost of 0 or less panic.
func (e *Encoder) AppendCommand(dst []any, calls []Call) ([]any, error) {
	if len(calls) == 0 || len(calls) > MaxCalls {
		return dst, fmt.Errorf("%w: %d, must be 1 to %d", ErrCalls, len(calls), MaxCalls)
	}
	dst = append(dst, argEvalSHA, argDigest(), len(calls))
	for i := range calls {
		dst = append(dst, calls[i].Key)
	}
	for i := range calls {
		c := &calls[i]
		p := e.parameters(c.Rule)
		dst = append(dst, p.algorithm, opArg(c.Op), costArg(c.Cost), p.p1, p.p2, p.window(c))
	}
	if e.jitter > 0 {
		dst = append(dst, rand.Int64N(e.jitter))
	}
	return dst, nil
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
