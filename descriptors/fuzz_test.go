package descriptors_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// Any bytes give problems, each in one clean line, or a set that holds what it says and can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add("shop.yaml", []byte(shop))
	f.Add("f.json", []byte(`{"domain": "shop", "endpoints": {"a": {"policy_version": 1, "fail_mode": "fail_closed", "limits": "blocked"}}}`))
	f.Add("f.yaml", []byte(good+"---\n"+good))
	f.Add("f.yaml", []byte("a: &a [*a]\n<<: *a\n? [x]\n: !!str 0x10\n"))
	f.Add("f.yaml", []byte(tenantLimits("{algorithm: token_bucket, capacity: 010, refill: 9223372036854775807/9223372036854775807d}")))
	f.Add("f.yaml", []byte("domain: |\n  shop\nendpoints: >-\n  x\n"))
	f.Add("f.yaml", []byte("domain: shop\ndescriptors: []\n"))
	for _, path := range examples(f) {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(filepath.Base(path), data)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if strings.ContainsAny(name, "\r\n") {
			return // the caller's name is shown as it is
		}
		set, err := descriptors.Parse([]descriptors.File{{Name: name, Data: data}}, descriptors.Options{KeyPrefix: "p:"})
		if err != nil {
			if set != nil {
				t.Error("a set beside an error")
			}
			for _, e := range split(err) {
				problem, ok := e.(*descriptors.PolicyError)
				if !ok || problem.Problem == "" || strings.ContainsAny(problem.Path+problem.Problem+problem.Hint, "\r\n\t\x00") {
					t.Errorf("problem %q (%T)", e, e)
				}
			}
			return
		}
		if len(set.DropIns()) > 0 {
			return // FuzzDropIn's
		}
		checkSet(t, set)
		again := writeJSON(set)
		reread, err := descriptors.Parse([]descriptors.File{file("f.json", again)}, descriptors.Options{KeyPrefix: "p:"})
		if err != nil {
			t.Fatalf("Parse of what was written: %v\n%s", err, again)
		}
		if diff := cmp.Diff(set.Policies(), reread.Policies(), anywhere); diff != "" {
			t.Errorf("written and read again (-was +is):\n%s\n%s", diff, again)
		}
	})
}
