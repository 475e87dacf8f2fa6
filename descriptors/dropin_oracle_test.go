package descriptors_test

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

// dropInOnly reads every file in the language of envoyproxy/ratelimit.
var dropInOnly = descriptors.Options{DropIn: descriptors.DropInOptions{Only: true}}

// TestCFG_18_every_oracle_file has the verdict of the real service on small files, and demands a warning exactly where its
// author noted what the accepted text silently means.
func TestCFG_18_every_oracle_file(t *testing.T) {
	t.Parallel()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "..", "shared", "cases", "oracle")
	table, err := os.Open(filepath.Join(dir, "expected.tsv"))
	if err != nil {
		testserver.SkipUnlessCI(t, "no oracle beside the project: %v", err)
	}
	defer table.Close()
	r := csv.NewReader(table)
	r.Comma, r.Comment, r.LazyQuotes, r.FieldsPerRecord = '\t', '#', true, 4
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 50 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows[1:] {
		name, verdict, note := row[0], row[1], row[3]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			set, err := descriptors.Parse([]descriptors.File{{Name: name, Data: data}}, dropInOnly)
			if (err == nil) != (verdict == "accept") {
				t.Fatalf("got %v, want %s\n%s", err, verdict, data)
			}
			if err != nil {
				for _, e := range split(err) {
					if p := e.(*descriptors.PolicyError); p.File != name || p.Problem == "" || !strings.HasPrefix(e.Error(), name) {
						t.Errorf("problem %q", e)
					}
				}
				return
			}
			if got, want := len(set.Warnings()) > 0, note != ""; got != want {
				t.Errorf("warnings %v, want %v: %s\n%s", set.Warnings(), want, note, data)
			}
		})
	}
}
