package descriptors

import (
	"fmt"
	"strings"
)

// FileSummary describes one file for people.
type FileSummary struct {
	File      string
	Domain    string
	Endpoints int
	Limits    int      // written in the file, those of tenant replacements included
	Rules     int      // drop-in: descriptors with a limit, over all files of the domain; then Endpoints and Limits are 0
	Emergency []string // for each emergency bucket, the bound of what it admits
}

// Summary describes each file of the set, in the order given to Parse.
func (s *Set) Summary() []FileSummary {
	files := make([]FileSummary, len(s.files))
	byName := make(map[string]*FileSummary, len(s.files))
	for i, f := range s.files {
		files[i].File = f.Name
		byName[f.Name] = &files[i]
	}
	counted := make(map[*Limit]bool)
	for _, p := range s.policies {
		byName[p.File].add(p, counted)
	}
	for _, d := range s.dropIns {
		for _, name := range d.files {
			byName[name].Domain, byName[name].Rules = d.name, d.rules
		}
	}
	return files
}

func (f *FileSummary) add(p *Policy, counted map[*Limit]bool) {
	f.Domain = p.Domain
	if p.Tenant == "" {
		f.Endpoints++
	}
	for i := range p.Limits {
		if l := &p.Limits[i]; !counted[l] { // a replacement may share the policy's own
			counted[l] = true
			f.Limits++
		}
	}
	if !p.OwnEmergency {
		return
	}
	who := p.Endpoint
	if p.Tenant != "" {
		who += ", tenant " + quote(p.Tenant)
	}
	f.Emergency = append(f.Emergency, who+": "+p.Emergency.Bound())
}

// String returns the summary as `sentinel-rls validate` prints it.
func (f FileSummary) String() string {
	var b strings.Builder
	if f.Endpoints == 0 {
		return fmt.Sprintf("%s: domain %s of envoyproxy/ratelimit, %s", f.File, quote(f.Domain), count(f.Rules, "rule"))
	}
	fmt.Fprintf(&b, "%s: domain %s, %s, %s", f.File, f.Domain, count(f.Endpoints, "endpoint"), count(f.Limits, "limit"))
	for _, e := range f.Emergency {
		b.WriteString("\n  " + e)
	}
	return b.String()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Bound says the most that the cap admits while the store cannot answer, in cost units.
func (e Emergency) Bound() string {
	most := fmt.Sprintf("at most %d + %s x T", e.Capacity, rateText(e.Refill))
	if e.Refill.Tokens == 0 {
		most = fmt.Sprintf("at most %d", e.Capacity)
	}
	if !e.Fleet {
		return most + " per process in an outage of length T"
	}
	return fmt.Sprintf("%s over all processes in an outage of length T, and 1/%d of it more for each process that starts in it",
		most, e.MinProcesses)
}
