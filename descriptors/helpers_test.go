package descriptors_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// parse compiles one file that must be good.
func parse(t testing.TB, text string) *descriptors.Set {
	t.Helper()
	return parseFiles(t, file("shop.yaml", text))
}

func parseFiles(t testing.TB, files ...descriptors.File) *descriptors.Set {
	t.Helper()
	set, err := descriptors.Parse(files, descriptors.Options{})
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, files[0].Data)
	}
	return set
}

// refusals returns the lines of the error that files must give.
func refusals(t testing.TB, files ...descriptors.File) []string {
	t.Helper()
	set, err := descriptors.Parse(files, descriptors.Options{})
	if err == nil || set != nil {
		t.Fatalf("Parse accepted what must be refused:\n%s", files[0].Data)
	}
	for _, e := range split(err) {
		if _, ok := e.(*descriptors.PolicyError); !ok {
			t.Errorf("%T in the error, want only *PolicyError: %v", e, e)
		}
		if strings.ContainsAny(e.Error(), "\r\n\t\x00\u00a0") {
			t.Errorf("problem %q is not one clean line", e)
		}
	}
	return strings.Split(err.Error(), "\n")
}

// split returns the errors of an errors.Join.
func split(err error) []error { return err.(interface{ Unwrap() []error }).Unwrap() }

func file(name, text string) descriptors.File {
	return descriptors.File{Name: name, Data: []byte(text)}
}

// endpoint is a file of one policy, in line 3.
func endpoint(fields string) string { return "domain: shop\nendpoints:\n  a: {" + fields + "}\n" }

// tenantLimits is a good tenant_jwt policy around the given limits.
func tenantLimits(limits string) string {
	return endpoint("policy_version: 1, fail_mode: fail_closed, limits: [" + limits + "]")
}

// anonymousLimits is a good anonymous policy around the given limits.
func anonymousLimits(limits string) string {
	return endpoint("policy_version: 1, identity: anonymous, fail_mode: fail_closed, limits: [" + limits + "]")
}

// Good limits to stand beside a bad one.
const (
	bucketLimit = "algorithm: token_bucket, capacity: 10, refill: 1/s"
	windowLimit = "algorithm: sliding_window, limit: 10, window: 1m"
)

func bucket(t testing.TB, capacity, tokens, seconds int64) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewTokenBucket(capacity, rate(t, tokens, seconds))
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func sliding(t testing.TB, limit int64, window time.Duration) algorithms.Rule {
	t.Helper()
	rule, err := algorithms.NewSlidingWindow(limit, window)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

func rate(t testing.TB, tokens, seconds int64) algorithms.Rate {
	t.Helper()
	r, err := algorithms.NewRate(tokens, seconds)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// visible compares policies by what their users see.
var visible = cmp.Options{
	cmpopts.IgnoreUnexported(descriptors.Policy{}, descriptors.Limit{}),
	cmp.Comparer(func(a, b algorithms.Rule) bool { return a == b }),
}

// anywhere is visible without where things stand.
var anywhere = cmp.Options{
	visible,
	cmpopts.IgnoreFields(descriptors.Policy{}, "File", "Line"),
	cmpopts.IgnoreFields(descriptors.Limit{}, "File", "Line"),
	cmpopts.EquateEmpty(),
}
