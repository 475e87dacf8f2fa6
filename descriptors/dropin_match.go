package descriptors

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// level is the nodes that an entry may match.
//
// An entry is looked up by its key and value joined by an underscore, as the service that the files are for does it: a
// request's (a_b, c) is the same to it as (a, b_c), and finds what the file has for either.
type level struct {
	byName map[string]*node // by node.name
	wild   []*node          // those with a pattern, in file order
}

// node is one descriptor of a file. What matching reads stands first, in one line of the processor's cache.
type node struct {
	rule    *DropInRule
	next    *level // nil: none below
	share   bool   // share_threshold
	keyTail string // of the rule's first limit
	key     string
	value   string // empty for none
	pattern *pattern

	name     string // key_value, or key
	toMetric bool   // value_to_metric
}

// find returns the node that an entry matches: the one of that key and value, else the first pattern in file order, else
// the one of the key alone. exact says that it was the first way. joined is room for the joined text.
func (l *level) find(e *Entry, joined []byte) (n *node, exact bool) {
	joined = append(append(append(joined, e.Key...), '_'), e.Value...)
	if n = l.byName[string(joined)]; n != nil {
		return n, true
	}
	for _, n := range l.wild {
		if n.pattern.matches(joined) {
			return n, false
		}
	}
	return l.byName[e.Key], false
}

// pattern is a text with any number of *, each of which stands for zero or more characters.
type pattern struct {
	first, last []byte
	between     [][]byte // in order, not empty
}

// newPattern returns nil for a text without *.
func newPattern(text string) *pattern {
	parts := strings.Split(text, "*")
	if len(parts) == 1 {
		return nil
	}
	p := &pattern{first: []byte(parts[0]), last: []byte(parts[len(parts)-1])}
	for _, part := range parts[1 : len(parts)-1] {
		if part != "" {
			p.between = append(p.between, []byte(part))
		}
	}
	return p
}

// matches takes time in proportion to the text: each part is sought from where the one before ended.
func (p *pattern) matches(text []byte) bool {
	if len(text) < len(p.first)+len(p.last) || !bytes.HasPrefix(text, p.first) || !bytes.HasSuffix(text, p.last) {
		return false
	}
	text = text[len(p.first) : len(text)-len(p.last)]
	for _, part := range p.between {
		i := bytes.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}

// Match is what one descriptor of a request matched. It refers to the request's entries. Not safe for concurrent use.
type Match struct {
	Rule *DropInRule

	domain  *DropIn
	entries []Entry
	path    []*node // the node of each entry
	exact   uint64  // bit i: entry i was found by key and value
	room    [4]*node

	hashed bool
	hash   [2 * sha256.Size]byte
}

// maxExact is the number of levels that Match.exact has bits for. Deeper files are refused.
const maxExact = 64

// Match finds the rule for the entries of one descriptor and leaves it in m. It must sit exactly at the last entry: a
// request that is shorter or longer than the file has none, and a match with a dead end below it is not taken back.
// False: no limit applies; m then serves to name the descriptor's own bucket, which a limit in the request needs.
func (d *DropIn) Match(entries []Entry, m *Match) bool {
	m.Rule, m.domain, m.entries, m.hashed, m.exact = nil, d, entries, false, 0
	m.path = m.room[:0]
	if len(entries) > maxExact {
		return false
	}
	var room [256]byte
	at := &d.root
	for i := range entries {
		if at == nil {
			m.path = m.path[:0]
			return false
		}
		n, exact := at.find(&entries[i], room[:0])
		if n == nil {
			m.path = m.path[:0]
			return false
		}
		if exact {
			m.exact |= 1 << i
		}
		m.path = append(m.path, n)
		at = n.next
	}
	if len(entries) == 0 || m.path[len(m.path)-1].rule == nil {
		m.path = m.path[:0]
		return false
	}
	m.Rule = m.path[len(m.path)-1].rule
	return true
}

// Override forgets the rule: the descriptor has a limit of its own in the request, which counts under its own entries.
func (m *Match) Override() { m.Rule, m.path, m.hashed = nil, m.path[:0], false }

// Hash returns, in hex, the SHA-256 that names whose bucket this is. It is made of the domain and the entries, each text
// with its length before it, so no two descriptors share one: what a caller writes into a value never spends another's
// budget. A share_threshold pattern, marked as such, stands for the values that match it.
func (m *Match) Hash() string { return string(m.sum()[:]) }

func (m *Match) sum() *[2 * sha256.Size]byte {
	if m.hashed {
		return &m.hash
	}
	var room [512]byte
	text := appendText(room[:0], 'd', m.domain.name)
	for i := range m.entries {
		key, mark, value := m.entries[i].Key, byte('v'), m.entries[i].Value
		if i < len(m.path) {
			switch n := m.path[i]; {
			case n.share:
				key, mark, value = n.key, 'p', n.value
			case m.exact&(1<<i) != 0 && len(n.key) != len(key) && n.value != "":
				key, value = n.key, n.value // one bucket, however the request splits what the file names
			}
		}
		text = appendText(appendText(text, 'k', key), mark, value)
	}
	sum := sha256.Sum256(text)
	hex.Encode(m.hash[:], sum[:])
	m.hashed = true
	return &m.hash
}

func appendText(to []byte, mark byte, text string) []byte {
	to = strconv.AppendInt(append(to, mark), int64(len(text)), 10)
	return append(append(to, ':'), text...)
}

// Key returns the store key of the bucket that the rule's limit i keeps for this descriptor.
func (m *Match) Key(i int) string {
	if i == 0 {
		return m.key(m.path[len(m.path)-1].keyTail)
	}
	return m.key(m.Rule.Limits[i].keyTail)
}

// OverrideKey returns the store key for a limit that the request itself brings. It is the key of a configured limit with
// the same unit: they share the counter.
func (m *Match) OverrideKey(u Unit, multiplier int64) string {
	return m.key(keyTail(u, multiplier, "fixed_window", 0))
}

func (m *Match) key(tail string) string {
	hash := m.sum()
	var room [256]byte
	return string(append(append(append(room[:0], m.domain.keyHead...), hash[:]...), tail...))
}

func keyTail(u Unit, multiplier int64, algorithm string, index int) string {
	return "}:" + u.String() + ":" + strconv.FormatInt(multiplier, 10) + ":" + algorithm + ":" + strconv.Itoa(index)
}

// Levels returns the parts of the statistic's name below the domain. dynamic says that they hold values of the request,
// as detailed_metric and value_to_metric ask for: there may be any number of them, which the caller must bound.
func (m *Match) Levels() (levels []string, dynamic bool) {
	if m.Rule == nil {
		levels = make([]string, len(m.entries))
		for i, e := range m.entries {
			levels[i] = joinedName(e.Key, e.Value)
		}
		return levels, true
	}
	if m.Rule.dynamic == nil {
		return m.Rule.Levels, false
	}
	levels = make([]string, len(m.entries))
	for i, e := range m.entries {
		levels[i] = m.Rule.Levels[i]
		if m.Rule.dynamic[i] {
			levels[i] = joinedName(e.Key, e.Value)
		}
	}
	return levels, true
}

// Metadata returns the rule's metadata. As with the service that the files are for, there is none where the statistic's
// name depends on the request.
func (m *Match) Metadata() map[string]any {
	if m.Rule == nil || m.Rule.dynamic != nil {
		return nil
	}
	return m.Rule.Metadata
}

func joinedName(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}
