package rls

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// DropInConfig says how domains in the language of envoyproxy/ratelimit are answered. The names in capitals are that
// service's environment variables.
type DropInConfig struct {
	// Compat makes the engine stand in for the service as a whole: a request without domain or descriptors, or one that
	// comes before any policies, gets that service's error instead of a refusal.
	Compat bool

	// Fallback counts a rule's own limit while Store cannot answer, in this process alone: package store/memory. It must
	// not need anything that can fail. Required once a set has drop-in domains.
	Fallback Store

	Headers         *LimitHeaders // LIMIT_RESPONSE_HEADERS_ENABLED; nil: none
	DynamicMetadata bool          // RESPONSE_DYNAMIC_METADATA
	Shadow          bool          // SHADOW_MODE: nothing is over limit but the statuses
	Quota           bool          // QUOTA_MODE: every descriptor is one of quota_mode
	StopWhenOver    bool          // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: what denies alone is counted
	LocalCacheBytes int           // LOCAL_CACHE_SIZE_IN_BYTES: memory for buckets that are over limit; 0: none
	NearRatio       float32       // NEAR_LIMIT_RATIO; 0.8

	Recorder DropInRecorder // nil: nobody is told
	// MaxStats bounds the statistics whose names hold values of requests (detailed_metric, value_to_metric, limits in
	// requests); 10 000. Beyond it a rule counts under its own name, a limit of a request under its domain's "override".
	MaxStats int
}

// LimitHeaders are the names of the headers that tell a client about the limit it is closest to.
type LimitHeaders struct {
	Limit     string // RateLimit-Limit
	Remaining string // RateLimit-Remaining
	Reset     string // RateLimit-Reset
}

// The defaults of DropInConfig.
const (
	DefaultNearRatio = 0.8
	DefaultMaxStats  = 10_000
)

func (c DropInConfig) withDefaults() DropInConfig {
	c.NearRatio = orDefault(c.NearRatio, DefaultNearRatio)
	c.MaxStats = orDefault(c.MaxStats, DefaultMaxStats)
	if c.Recorder == nil {
		c.Recorder = noDropInRecorder{}
	}
	if c.Headers != nil {
		h := *c.Headers
		h.Limit = orDefault(h.Limit, "RateLimit-Limit")
		h.Remaining = orDefault(h.Remaining, "RateLimit-Remaining")
		h.Reset = orDefault(h.Reset, "RateLimit-Reset")
		c.Headers = &h
	}
	return c
}

// check reports header names that would break a response, and numbers that make no sense.
func (c *DropInConfig) check() error {
	if c.NearRatio < 0 || c.NearRatio > 1 {
		return fmt.Errorf("engine: the near limit ratio %v: must be 0 to 1", c.NearRatio)
	}
	if c.LocalCacheBytes < 0 || c.MaxStats < 0 {
		return errors.New("engine: the local cache and the number of statistics must not be negative")
	}
	if c.Headers == nil {
		return nil
	}
	for _, name := range []string{c.Headers.Limit, c.Headers.Remaining, c.Headers.Reset} {
		if !headerName.MatchString(name) {
			return fmt.Errorf("engine: %q is not a header name: use letters, digits and -", name)
		}
	}
	return nil
}

// headerName is what a response header may be called: a token of RFC 9110.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}$")

// DropInRecorder receives the statistics that the users of envoyproxy/ratelimit have on their dashboards. Safe for
// concurrent use; never blocks.
type DropInRecorder interface {
	// Rule returns the recorder of one rule's statistic, the same one for the same name. It is called while policies load,
	// and for names that hold values of requests at most DropInConfig.MaxStats times.
	Rule(name RuleName) RuleRecorder
	GlobalShadow() // SHADOW_MODE turned a denial into an admission
	RedisError()   // a call failed because the store did (fail_mode: error)
	ServiceError() // a call failed because the request is malformed, or nothing is loaded
}

// RuleRecorder receives what happened at one rule.
type RuleRecorder interface {
	Count(c RuleCounts)
}

// RuleCounts is what one descriptor adds to its rule's counters, in hits.
type RuleCounts struct {
	TotalHits               uint64
	OverLimit               uint64
	NearLimit               uint64
	OverLimitWithLocalCache uint64
	WithinLimit             uint64
	ShadowMode              uint64
}

// RuleName names a rule's statistic: its domain, and for each level of the file key_value or key.
type RuleName struct {
	Domain string
	Levels []string
}

// String returns the name as envoyproxy/ratelimit writes it, as "shop.plan_gold.user".
func (n RuleName) String() string { return n.Domain + "." + strings.Join(n.Levels, ".") }

// DropInError is the error on a call that fails as it does with envoyproxy/ratelimit: gRPC UNKNOWN with this text. Envoy
// then goes by its failure_mode_deny.
type DropInError struct{ Text string }

// Error returns the text.
func (e *DropInError) Error() string { return e.Text }

// The texts of envoyproxy/ratelimit's errors.
const (
	errNoDomain      = "rate limit domain must not be empty"
	errNoDescriptors = "rate limit descriptor list must not be empty"
	errNotLoaded     = "no rate limit configuration loaded"
)

// Unit is the unit of time of a drop-in limit.
type Unit = descriptors.Unit

// UnitNamed returns the unit of that name, in any letter case. False: there is none.
func UnitNamed(name string) (Unit, bool) { return descriptors.UnitNamed(name) }

// LimitOverride is a limit that a request brings for one of its descriptors. Drop-in domains honour it.
type LimitOverride struct {
	PerUnit    uint32
	Unit       Unit  // none: the caller sent one that does not exist
	Multiplier int64 // at least 1; 0: the caller sent one that does not exist
}

// Header is a response header.
type Header struct{ Name, Value string }

// rule returns the rule of a limit in a request. False: it makes no sense, and is as if absent.
func (o LimitOverride) rule() (algorithms.Rule, bool) {
	if o.Unit.Length() == 0 || o.Multiplier < 1 || o.Multiplier > int64(algorithms.MaxWindow/o.Unit.Length()) {
		return algorithms.Rule{}, false
	}
	rule, err := algorithms.NewCountingWindow(int64(o.PerUnit), o.Unit.Length()*time.Duration(o.Multiplier))
	return rule, err == nil
}

// noDropInRecorder is told what nobody wants to know.
type noDropInRecorder struct{}

func (noDropInRecorder) Rule(RuleName) RuleRecorder { return noDropInRecorder{} }
func (noDropInRecorder) GlobalShadow()              {}
func (noDropInRecorder) RedisError()                {}
func (noDropInRecorder) ServiceError()              {}
func (noDropInRecorder) Count(RuleCounts)           {}

// ruleState is what the engine keeps for one drop-in rule.
type ruleState struct {
	limits    []Limit          // as shown to callers, by index in DropInRule.Limits
	emergency *emergencyBucket // nil: the rule's own limit is counted
	recorder  RuleRecorder     // of its own name
}

// useDropIns prepares what the engine keeps for the drop-in domains of a set.
func (e *Engine) useDropIns(next *snapshot, before map[bucketID]*emergencyBucket) error {
	set, domains := next.set, next.set.DropIns()
	if len(domains) > 0 && e.cfg.DropIn.Fallback == nil {
		return errors.New("engine: drop-in domains need Config.DropIn.Fallback")
	}
	next.rules = make([]ruleState, len(set.DropInRules()))
	next.dropIns = make(map[string]EndpointRecorder, len(domains))
	next.overrides = make(map[string]RuleRecorder, len(domains))
	for _, d := range domains {
		next.dropIns[d.Name()] = e.cfg.Recorder.Endpoint(DropInEndpoint(d.Name()))
		next.overrides[d.Name()] = e.cfg.DropIn.Recorder.Rule(RuleName{d.Name(), []string{"override"}})
	}
	caps := make(map[string][]descriptors.Emergency, len(domains))
	for _, r := range set.DropInRules() {
		name := RuleName{r.Domain, r.Levels}
		state := ruleState{limits: make([]Limit, len(r.Limits)), recorder: e.cfg.DropIn.Recorder.Rule(name)}
		for i := range r.Limits {
			l := &r.Limits[i]
			state.limits[i] = Limit{Name: l.Name, Rule: l.Rule, PerUnit: l.PerUnit, Unit: l.Unit, Multiplier: l.Multiplier}
		}
		if r.Emergency != nil {
			id := bucketID{DropInEndpoint(r.Domain), strings.Join(r.Levels, "\x00"), ""} // a level may hold what String puts between two
			bucket, err := e.emergencyBucketFor(id, *r.Emergency, next.buckets, before)
			if err != nil {
				return fmt.Errorf("%s:%d: emergency: %w", r.File, r.Line, err)
			}
			state.emergency = bucket
			caps[r.Domain] = append(caps[r.Domain], *r.Emergency)
		}
		next.rules[r.Index] = state
	}
	for name, recorder := range next.dropIns {
		next.caps = append(next.caps, endpointCaps{recorder, caps[name]})
	}
	return nil
}
