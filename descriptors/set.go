package descriptors

// File is one policy file: its name as shown in errors, and its bytes.
type File struct {
	Name string
	Data []byte
}

// Options change how policies compile.
type Options struct {
	// KeyPrefix stands before every key, so that several environments share one Redis: ^[A-Za-z0-9._:-]*$.
	KeyPrefix string
}

// Set is every policy of the active files. Immutable, safe for concurrent use.
type Set struct{}

// Domain is the policies of one native domain.
type Domain struct{}

// Subject is whose buckets a request asks for. Empty fields are missing. Not safe for concurrent use: it remembers hashes.
type Subject struct {
	Tenant   string
	User     string // subject within the tenant
	ClientIP string // address key
	Cookie   string // client id of a verified cookie
}

// Parse compiles files into a Set. The error joins one *PolicyError for every problem in every file.
func Parse(files []File, opts Options) (*Set, error) { return &Set{}, nil }

// Policies returns every policy, tenant replacements included, in the order of Policy.Index.
func (s *Set) Policies() []*Policy { return nil }

// Domain returns the native domain of that name.
func (s *Set) Domain(name string) (*Domain, bool) { return nil, false }

// Endpoint returns the policy for an endpoint id over all native domains: the exact one, else that of the endpoint
// `default`. An empty id is unknown.
func (s *Set) Endpoint(id string) (*Policy, bool) { return nil, false }

// Lookup is Endpoint within one domain.
func (d *Domain) Lookup(id string) (*Policy, bool) { return nil, false }

// For returns the replacement for a tenant, or p itself.
func (p *Policy) For(tenant string) *Policy { return p }

// Key returns the store key of the bucket that l keeps for s. False: the limit does not apply (scope cookie without a
// cookie). Any other missing identity gives the limit's {unknown} bucket.
func (l *Limit) Key(s *Subject) (string, bool) { return "", false }
