package descriptors_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

func TestLookupFindsTheExactEndpointElseDefault(t *testing.T) {
	t.Parallel()
	const blocked = "{policy_version: 1, fail_mode: fail_closed, limits: blocked}"
	set := parseFiles(t,
		file("shop.yaml", "domain: shop\nendpoints:\n  a: "+blocked+"\n  default: "+blocked+"\n"),
		file("bank.yaml", "domain: bank\nendpoints:\n  b: "+blocked+"\n"))
	shopDomain, _ := set.Domain("shop")
	bank, _ := set.Domain("bank")
	if shopDomain.Name() != "shop" || bank.Name() != "bank" {
		t.Errorf("domains %q and %q", shopDomain.Name(), bank.Name())
	}
	for _, c := range []struct{ id, anywhere, shop, bank string }{
		{"a", "a", "a", ""},
		{"b", "b", "default", "b"},
		{"", "default", "default", ""},
		{"default", "default", "default", ""},
		{"A", "default", "default", ""},
		{"a ", "default", "default", ""},
	} {
		for where, look := range map[string]func(string) (*descriptors.Policy, bool){
			c.anywhere: set.Endpoint, c.shop: shopDomain.Lookup, c.bank: bank.Lookup,
		} {
			p, ok := look(c.id)
			if ok != (where != "") || ok && p.Endpoint != where {
				t.Errorf("%q: found %v, want %q", c.id, p, where)
			}
		}
	}
	if _, ok := set.Domain("Shop"); ok {
		t.Error("domains match whatever their case")
	}
	if _, ok := (&descriptors.Set{}).Endpoint("a"); ok {
		t.Error("the zero Set has an endpoint")
	}
	if _, ok := (&descriptors.Set{}).Domain("shop"); ok {
		t.Error("the zero Set has a domain")
	}
}

func TestForReturnsTheReplacementOrThePolicy(t *testing.T) {
	t.Parallel()
	orders, _ := parse(t, shop).Endpoint("orders.create")
	for _, tenant := range []string{"acme", "42", "partner@example.com"} {
		r := orders.For(tenant)
		if r.Tenant != tenant || r.Endpoint != "orders.create" || r.For(tenant) != r {
			t.Errorf("For(%q) = %q of %q", tenant, r.Tenant, r.Endpoint)
		}
	}
	for _, tenant := range []string{"", "ACME", "acme ", "042"} {
		if r := orders.For(tenant); r != orders {
			t.Errorf("For(%q) is the replacement for %q, want the policy itself", tenant, r.Tenant)
		}
	}
}

func TestHashIsThatOfTheContents(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(good, "a:", "b:")
	one := parseFiles(t, file("x/a.yaml", good), file("x/b.yaml", other)).Hash()
	if len(one) != 64 {
		t.Errorf("hash %q, want 64 hex digits", one)
	}
	if got := parseFiles(t, file("y/2.yaml", other), file("y/1.yaml", good)).Hash(); got != one {
		t.Errorf("the same contents under other names and in another order: %s, want %s", got, one)
	}
	for name, files := range map[string][]descriptors.File{
		"a file less":   {file("x/a.yaml", good)},
		"joined":        {file("x/a.yaml", good+"  b: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}\n")},
		"a comment":     {file("x/a.yaml", good+"#"), file("x/b.yaml", other)},
		"moved comment": {file("x/a.yaml", good), file("x/b.yaml", other+"#")},
	} {
		if got := parseFiles(t, files...).Hash(); got == one {
			t.Errorf("%s: the hash did not change", name)
		}
	}
}

func TestSameFilesTellsTheOrder(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(good, "a:", "b:")
	one := parseFiles(t, file("a.yaml", good), file("b.yaml", other))
	for name, c := range map[string]struct {
		files []descriptors.File
		same  bool
	}{
		"the same":      {[]descriptors.File{file("a.yaml", good), file("b.yaml", other)}, true},
		"exchanged":     {[]descriptors.File{file("a.yaml", other), file("b.yaml", good)}, false},
		"another order": {[]descriptors.File{file("b.yaml", other), file("a.yaml", good)}, false},
		"another name":  {[]descriptors.File{file("a.yaml", good), file("c.yaml", other)}, false},
		"a file less":   {[]descriptors.File{file("a.yaml", good)}, false},
	} {
		if got := parseFiles(t, c.files...).SameFiles(one); got != c.same {
			t.Errorf("%s: %v, want %v", name, got, c.same)
		}
	}
}

// What a set says of itself holds, whatever was parsed.
func checkSet(t rapidT, set *descriptors.Set) {
	t.Helper()
	policies := set.Policies()
	if len(policies) == 0 {
		t.Errorf("a set without policies")
	}
	for i, p := range policies {
		if p.Index != i {
			t.Errorf("policy %d has Index %d", i, p.Index)
		}
		own, ok := set.Endpoint(p.Endpoint)
		if !ok || own.Endpoint != p.Endpoint || own.For(p.Tenant) != p {
			t.Errorf("%s of tenant %q is not found where it says", p.Endpoint, p.Tenant)
		}
		d, ok := set.Domain(p.Domain)
		if !ok {
			t.Fatalf("no domain %q", p.Domain)
		}
		if inDomain, _ := d.Lookup(p.Endpoint); inDomain != own {
			t.Errorf("%s is another policy in its domain", p.Endpoint)
		}
		if (p.FailMode == descriptors.FailOpen) != (p.Emergency.Capacity > 0) || (p.Verdict == descriptors.Limited) != (len(p.Limits) > 0) {
			t.Errorf("%s: fail mode, emergency, verdict and limits do not fit together: %+v", p.Endpoint, p)
		}
		keys := make([]string, 0, len(p.Limits))
		for j := range p.Limits {
			l := &p.Limits[j]
			if l.MaxCost < 1 || l.MaxCost > l.Rule.Limit() || l.Scope.String() == "invalid" {
				t.Errorf("%s: limit %+v", p.Endpoint, l)
			}
			key, _ := l.Key(&descriptors.Subject{Tenant: "t", User: "u", ClientIP: "i", Cookie: "c"})
			if slices.Contains(keys, key) {
				t.Errorf("%s: two limits with the key %s", p.Endpoint, key)
			}
			keys = append(keys, key)
		}
	}
	if err := set.CheckReload(set); err != nil {
		t.Errorf("the set may not follow itself: %v", err)
	}
}

type rapidT interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// A set written back as policies, in YAML or JSON, parses to an equal set.
func TestPoliciesRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := drawFile(t)
		set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, descriptors.Options{})
		if err != nil {
			t.Fatalf("Parse: %v\n%s", err, text)
		}
		checkSet(t, set)
		for name, again := range map[string]string{"f.json": writeJSON(set), "f.yaml": writeJSON(set)} {
			reread, err := descriptors.Parse([]descriptors.File{file(name, again)}, descriptors.Options{})
			if err != nil {
				t.Fatalf("Parse of what was written: %v\n%s", err, again)
			}
			if diff := cmp.Diff(set.Policies(), reread.Policies(), anywhere); diff != "" {
				t.Fatalf("written and read again (-was +is):\n%s\n%s", diff, again)
			}
		}
	})
}
