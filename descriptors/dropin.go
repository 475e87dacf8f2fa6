package descriptors

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// MaxDropInFileBytes is the most that a file in the language of envoyproxy/ratelimit may hold: some 90 000 values.
const MaxDropInFileBytes = 8 << 20

// MaxNodeLimits bounds the list of limits on one node.
const MaxNodeLimits = 16

// Entry is one key and value of a request's descriptor, the caller's word.
type Entry struct{ Key, Value string }

// Unit is the unit of time of a drop-in limit. The zero Unit is none. Its windows are aligned to the epoch: weeks turn
// over on Thursday at 00:00 UTC, a month is 30 days, a year 365.
type Unit uint8

// The units.
const (
	Second Unit = iota + 1
	Minute
	Hour
	Day
	Week
	Month
	Year
)

const aDay = 24 * time.Hour

var units = [...]struct {
	name   string
	length time.Duration
}{
	Second: {"second", time.Second}, Minute: {"minute", time.Minute}, Hour: {"hour", time.Hour}, Day: {"day", aDay},
	Week: {"week", 7 * aDay}, Month: {"month", 30 * aDay}, Year: {"year", 365 * aDay},
}

// String returns the unit in lower case, as "minute"; empty for none.
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].name
	}
	return ""
}

// Length returns the unit's length; 0 for none.
func (u Unit) Length() time.Duration {
	if int(u) < len(units) {
		return units[u].length
	}
	return 0
}

// UnitNamed returns the unit of that name, in any letter case. False: there is none.
func UnitNamed(name string) (Unit, bool) {
	for u := Second; u <= Year; u++ {
		if strings.EqualFold(name, units[u].name) && len(name) == len(units[u].name) {
			return u, true
		}
	}
	return 0, false
}

// RuleFailMode says what a drop-in rule answers while the store cannot. The zero value is FailLocal.
type RuleFailMode uint8

// The fail modes of drop-in rules.
const (
	FailLocal  RuleFailMode = iota // fail_open: the rule's own limit, or its emergency cap, counted in this process
	FailDeny                       // fail_closed: over limit
	FailAnswer                     // error: the call fails, as with the service that the files are for
)

// DropIn is one domain in the configuration language of envoyproxy/ratelimit. Immutable, safe for concurrent use.
type DropIn struct {
	name  string
	root  level
	rules int
	files []string

	keyHead string // [prefix]sentinel:d1:{
}

// Name returns the domain's name.
func (d *DropIn) Name() string { return d.name }

// Rules returns the number of nodes with a limit.
func (d *DropIn) Rules() int { return d.rules }

// DropInRule is what one node says that has a limit. Its fields are never modified.
type DropInRule struct {
	Domain string
	// Levels are the parts of the rule's statistic below the domain, one for each level, as key_value or key.
	Levels       []string
	Limits       []DropInLimit // in file order; one, unless the file lists several
	Unlimited    bool          // admits everything without a store call; Limits then holds one without numbers
	Shadow       bool          // shadow_mode
	Quota        bool          // quota_mode
	AllOrNothing bool          // decided together with the request's other rules of this kind; a denied request spends nothing
	FailMode     RuleFailMode
	Emergency    *Emergency     // with FailLocal: the cap instead of the limit's own numbers; nil: none
	Metadata     map[string]any // nil: none. Values as encoding/json has them
	File         string
	Line         int
	Index        int // dense over Set.DropInRules, for tables beside the Set

	dynamic  []bool // levels whose run-time value belongs into the statistic's name; nil: none
	detailed bool
}

// NamesValues reports whether the names of the rule's statistics hold values of requests.
func (r *DropInRule) NamesValues() bool { return r.dynamic != nil }

// DropInLimit is one limit of a rule.
type DropInLimit struct {
	Name       string   // echoed, and what Replaces refers to; empty: none
	Replaces   []string // names of limits that do not apply to a request that this one applies to
	PerUnit    int64    // requests_per_unit
	Unit       Unit     // none when unlimited
	Multiplier int64    // unit_multiplier; at least 1
	Rule       algorithms.Rule

	keyTail string // }:<unit>:<multiplier>:<algorithm>:<index>
}

// DropIn returns the drop-in domain of that name.
func (s *Set) DropIn(name string) (*DropIn, bool) {
	d, ok := s.dropIns[name]
	return d, ok
}

// DropIns returns the drop-in domains, by name.
func (s *Set) DropIns() []*DropIn {
	return slices.SortedFunc(maps.Values(s.dropIns), func(a, b *DropIn) int { return strings.Compare(a.name, b.name) })
}

// DropInRules returns every rule of every drop-in domain, in the order of DropInRule.Index.
func (s *Set) DropInRules() []*DropInRule { return s.rules }

// Warnings returns what was accepted and probably means something else than its author thinks, in the order of files and
// lines. Only drop-in files have any: the native language refuses such things.
func (s *Set) Warnings() []*PolicyError { return s.warnings }
