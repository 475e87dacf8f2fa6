package descriptors

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v4"
)

// File is one policy file: its name as shown in errors, and its bytes. A name that ends in .json holds the file to
// JSON's grammar; every other file is YAML 1.2.
type File struct {
	Name string
	Data []byte
}

// Options change how policies compile.
type Options struct {
	// KeyPrefix stands before every key, so that several environments share one Redis: ^[A-Za-z0-9._:-]*$, at most 128.
	KeyPrefix string

	DropIn DropInOptions
}

// DropInOptions change how files in the language of envoyproxy/ratelimit are read.
type DropInOptions struct {
	Only         bool // every file is in that language. False: those with domain and descriptors are
	MergeDomains bool // a domain may stand in several files (MERGE_DOMAIN_CONFIG): later ones add to it, in the order given
}

// Set is every policy of the active files. Immutable, safe for concurrent use. The zero Set knows no domain.
type Set struct {
	domains   map[string]*Domain
	endpoints map[string]*Policy
	policies  []*Policy
	dropIns   map[string]*DropIn
	rules     []*DropInRule
	warnings  []*PolicyError
	files     []File // names only
	hash      string
	ordered   [sha256.Size]byte // of the files' names and contents, in the order given
}

// Domain is the policies of one native domain.
type Domain struct {
	name      string
	endpoints map[string]*Policy
}

// Subject is whose buckets a request asks for. Empty fields are missing. Set the fields before the first use: a Subject
// remembers the hashes of what it held then, so each is computed once per request. Not safe for concurrent use.
type Subject struct {
	Tenant   string
	User     string // subject within the tenant
	ClientIP string // address key
	Cookie   string // client id of a verified cookie

	hashes struct{ tenant, user, clientIP, cookie hash }
}

// Parse compiles files into a Set. The error joins one *PolicyError for every problem in every file (beyond 1000 they
// are counted), in the order of files and lines.
func Parse(files []File, opts Options) (*Set, error) {
	b := builder{opts: opts, set: &Set{
		domains: make(map[string]*Domain), endpoints: make(map[string]*Policy), dropIns: make(map[string]*DropIn),
	}}
	if !prefixGrammar.MatchString(opts.KeyPrefix) {
		b.problems.add(0, &PolicyError{Problem: "the key prefix " + quote(opts.KeyPrefix) + " is not allowed", Hint: "use at most 128 of A-Z a-z 0-9 . _ : -"})
	}
	if len(files) == 0 {
		b.problems.add(0, &PolicyError{Problem: "no policy files", Hint: "name at least one file with domain and endpoints"})
	}
	for i, f := range files {
		b.read(&source{f, i, &b.problems})
	}
	if err := b.problems.err(); err != nil {
		return nil, err
	}
	b.finish(files, opts.KeyPrefix)
	b.set.warnings = b.warnings.sorted()
	return b.set, nil
}

// builder is a Set in the making.
type builder struct {
	opts     Options
	problems problems
	warnings problems
	set      *Set
}

// read reads one file as the kind that its keys say it is.
func (b *builder) read(s *source) {
	if first := s.dropInDocument(); first != nil || b.opts.DropIn.Only {
		(&looseSource{source: s, warnings: &b.warnings}).dropIn(b, first)
		return
	}
	text, ok := s.checkText(s.file.Data)
	if !ok {
		return
	}
	for _, root := range s.trees(text) {
		if key, ok := root.lookUp("descriptors"); ok {
			s.report(key.Line, key.at, "descriptors beside endpoints",
				"a file is native (domain and endpoints), or in the language of envoyproxy/ratelimit (domain and descriptors)")
			continue
		}
		s.native(root, b)
	}
}

// lookUp returns the key of a mapping, where it stands.
func (v value) lookUp(name string) (value, bool) {
	for i := 0; i+1 < len(v.Content); i += 2 {
		if key := v.Content[i]; key.Kind == yaml.ScalarNode && key.Value == name {
			return value{key, v.at.key(name)}, true
		}
	}
	return value{}, false
}

// add puts an endpoint's policy into the set, unless another file or domain has that endpoint.
func (b *builder) add(s *source, at *place, p *Policy) {
	if first, ok := b.set.endpoints[p.Endpoint]; ok {
		s.report(p.Line, at, fmt.Sprintf("the endpoint %s stands twice", quote(p.Endpoint)),
			fmt.Sprintf("rename or remove one: the first is in %s:%d, domain %s", first.File, first.Line, quote(first.Domain)))
		return
	}
	b.set.endpoints[p.Endpoint] = p
	if _, ok := b.set.dropIns[p.Domain]; ok {
		s.report(p.Line, at, "the domain "+quote(p.Domain)+" stands in a file of descriptors too", "give one of them another domain")
	}
	d, ok := b.set.domains[p.Domain]
	if !ok {
		d = &Domain{p.Domain, make(map[string]*Policy)}
		b.set.domains[p.Domain] = d
	}
	d.endpoints[p.Endpoint] = p
	for _, p := range append([]*Policy{p}, p.replacements...) {
		p.Index = len(b.set.policies)
		b.set.policies = append(b.set.policies, p)
	}
}

// finish computes what needs every policy to be good.
func (b *builder) finish(files []File, prefix string) {
	for _, p := range b.set.policies {
		for i := range p.Limits {
			p.Limits[i].key = newKeyParts(prefix, p, &p.Limits[i])
		}
	}
	sums := make([][sha256.Size]byte, len(files))
	ordered := sha256.New()
	for i, f := range files {
		b.set.files = append(b.set.files, File{Name: f.Name})
		sums[i] = sha256.Sum256(f.Data)
		fmt.Fprintf(ordered, "%d:%s%x", len(f.Name), f.Name, sums[i])
	}
	ordered.Sum(b.set.ordered[:0])
	slices.SortFunc(sums, func(a, b [sha256.Size]byte) int { return slices.Compare(a[:], b[:]) })
	all := sha256.New()
	for _, sum := range sums {
		all.Write(sum[:])
	}
	b.set.hash = hex.EncodeToString(all.Sum(nil))
}

// Hash returns the SHA-256, in hex, of the files' own SHA-256 sums in ascending order: equal for equal contents,
// whatever the files' names and order.
func (s *Set) Hash() string { return s.hash }

// SameFiles reports whether two sets are of the same files: names, contents, and order, which says whose patterns of a
// drop-in domain are tried first.
func (s *Set) SameFiles(other *Set) bool { return s.ordered == other.ordered }

// Policies returns every policy, tenant replacements included, in the order of Policy.Index.
func (s *Set) Policies() []*Policy { return s.policies }

// Domain returns the native domain of that name.
func (s *Set) Domain(name string) (*Domain, bool) {
	d, ok := s.domains[name]
	return d, ok
}

// Endpoint returns the policy for an endpoint id over all native domains: the exact one, else that of the endpoint
// `default`. An empty id is unknown.
func (s *Set) Endpoint(id string) (*Policy, bool) { return lookUp(s.endpoints, id) }

// Name returns the domain's name.
func (d *Domain) Name() string { return d.name }

// Lookup is Endpoint within one domain.
func (d *Domain) Lookup(id string) (*Policy, bool) { return lookUp(d.endpoints, id) }

// lookUp needs no check for the empty id: it is no endpoint's.
func lookUp(endpoints map[string]*Policy, id string) (*Policy, bool) {
	p, ok := endpoints[id]
	if !ok {
		p, ok = endpoints[DefaultEndpoint]
	}
	return p, ok
}

// For returns the replacement for a tenant, or p itself.
func (p *Policy) For(tenant string) *Policy {
	if r, ok := p.tenants[tenant]; ok {
		return r
	}
	return p
}
