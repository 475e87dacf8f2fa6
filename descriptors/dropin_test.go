package descriptors_test

import (
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
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

// parseDropIn compiles one drop-in file that must be good.
func parseDropIn(t testing.TB, text string) *descriptors.Set {
	t.Helper()
	set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, dropInOnly)
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, text)
	}
	return set
}

// dropInProblems returns the lines of the error that a drop-in file must give, dropInWarnings those of its warnings.
func dropInProblems(t testing.TB, text string) []string {
	t.Helper()
	set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, dropInOnly)
	if err == nil || set != nil {
		t.Fatalf("Parse accepted what must be refused:\n%s", text)
	}
	return strings.Split(err.Error(), "\n")
}

func dropInWarnings(t testing.TB, text string) []string {
	t.Helper()
	var lines []string
	for _, w := range parseDropIn(t, text).Warnings() {
		lines = append(lines, w.Error())
	}
	return lines
}

// node is a drop-in file of one descriptor, whose fields begin in line 3.
func node(fields string) string { return "domain: shop\ndescriptors:\n  - {" + fields + "}\n" }

// limited is a node with the given limit.
func limited(limit string) string { return node("key: k, rate_limit: {" + limit + "}") }

const perMinute = "unit: minute, requests_per_unit: 10"

func entriesOf(words string) []descriptors.Entry {
	var entries []descriptors.Entry
	for w := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(w, "=")
		entries = append(entries, descriptors.Entry{Key: key, Value: value})
	}
	return entries
}

// Entries are looked up from the left: key and value, then patterns in file order, then the key alone; the limit must sit
// at the last entry, and nothing is taken back.
func TestDropInMatching(t *testing.T) {
	t.Parallel()
	set := parseDropIn(t, `
domain: shop
descriptors:
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: plain, value: vip, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: plain, value: exempt}
  - {key: wild, value: "foo*", rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: wild, value: foobar, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: wild, value: "foob*", rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: wild, rate_limit: {unit: hour, requests_per_unit: 6}}
  - {key: mid, value: /api/*/action, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: multi, value: a*b*c, rate_limit: {unit: hour, requests_per_unit: 8}}
  - {key: all, value: "*", rate_limit: {unit: hour, requests_per_unit: 9}}
  - key: both
    value: b1
    rate_limit: {unit: day, requests_per_unit: 10}
    descriptors:
      - {key: leaf, value: l1, rate_limit: {unit: day, requests_per_unit: 11}}
  - key: both
    descriptors:
      - {key: leaf, rate_limit: {unit: day, requests_per_unit: 12}}
  - {key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 13}}
  - {key: "any*", rate_limit: {unit: day, requests_per_unit: 14}}
`)
	domain, _ := set.DropIn("shop")
	for _, c := range []struct {
		entries string
		want    int64 // 0: no limit
	}{
		{"plain=x", 1},
		{"plain=vip", 2},
		{"plain=exempt", 0},
		{"plain=", 1},
		{"PLAIN=x", 0},
		{"plain=x extra=y", 0},
		{"extra=y plain=x", 0},
		{"wild=foobar", 4},
		{"wild=foobaz", 3},
		{"wild=foo", 3},
		{"wild=foo*", 3},
		{"wild=foob*", 5}, // what the file itself names is found first
		{"wild=zz", 6},
		{"mid=/api/v1/action", 7},
		{"mid=/api//action", 7},
		{"mid=/api/action", 0},
		{"mid=/api/v1/actions", 0},
		{"multi=abc", 8},
		{"multi=a-b-b-c", 8},
		{"multi=acb", 0},
		{"all=", 9},
		{"all=anything", 9},
		{"both=b1", 10},
		{"both=b1 leaf=l1", 11},
		{"both=b1 leaf=zz", 0}, // the key alone would have gone on, but is not tried again
		{"both=b2 leaf=zz", 12},
		{"both=b2", 0},
		{"a=b_c", 13},
		{"a_b=c", 13},
		{"anything=x", 14},
		{"nobody=x", 0},
		{"", 0},
	} {
		var m descriptors.Match
		found := domain.Match(entriesOf(c.entries), &m)
		if found != (c.want > 0) || found && m.Rule.Limits[0].PerUnit != c.want {
			t.Errorf("%q: found %v, want the limit %d", c.entries, m.Rule, c.want)
		}
	}
	if m := new(descriptors.Match); domain.Match(make([]descriptors.Entry, 100), m) {
		t.Error("a hundred entries matched")
	}
}

// A pattern means what its regular expression means.
func TestPatternsAgreeWithRegularExpressions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[ab*.]{1,8}`).Draw(t, "pattern")
		text := rapid.StringMatching(`[ab.]{0,12}`).Draw(t, "text")
		set, err := descriptors.Parse([]descriptors.File{file("f.yaml", limitedValue(value))}, dropInOnly)
		if err != nil {
			t.Fatal(err)
		}
		domain, _ := set.DropIn("shop")
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(value), `\*`, ".*") + "$").MatchString(text)
		if got := domain.Match([]descriptors.Entry{{Key: "k", Value: text}}, new(descriptors.Match)); got != want {
			t.Errorf("%q matches %q: %v, want %v", value, text, got, want)
		}
	})
}

func limitedValue(value string) string {
	return node("key: k, value: '" + value + "', rate_limit: {" + perMinute + "}")
}

func TestDropInKeys(t *testing.T) {
	t.Parallel()
	const text = `
domain: shop
descriptors:
  - key: user
    rate_limit:
      - {unit: second, requests_per_unit: 1}
      - {unit: day, unit_multiplier: 2, requests_per_unit: 1}
      - {unit: hour, requests_per_unit: 1, algorithm: token_bucket}
  - {key: file, value: "a*", share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_window}}
  - {key: file, value: "b*", rate_limit: {unit: hour, requests_per_unit: 1}}
`
	set, err := descriptors.Parse([]descriptors.File{file("f.yaml", text)}, descriptors.Options{KeyPrefix: "eu:"})
	if err != nil {
		t.Fatal(err)
	}
	domain, _ := set.DropIn("shop")
	keys := func(words string) []string {
		var m descriptors.Match
		if !domain.Match(entriesOf(words), &m) {
			t.Fatalf("%q: no match", words)
		}
		var keys []string
		for i := range m.Rule.Limits {
			keys = append(keys, m.Key(i))
		}
		return keys
	}
	format := regexp.MustCompile(`^eu:sentinel:d1:\{[0-9a-f]{64}\}:(second:1:fixed_window:0|day:2:fixed_window:1|hour:1:token_bucket:2)$`)
	ann := keys("user=ann")
	for _, key := range ann {
		if !format.MatchString(key) {
			t.Errorf("key %q", key)
		}
	}
	// Length-prefixed: what anyone must be able to recompute. The domain, and each entry's key and value.
	sum := sha256.Sum256([]byte("d4:shopk4:userv3:ann"))
	if want := "eu:sentinel:d1:{" + hex.EncodeToString(sum[:]) + "}:second:1:fixed_window:0"; ann[0] != want {
		t.Errorf("key %q, want %q", ann[0], want)
	}
	if bob := keys("user=bob"); bob[0] == ann[0] {
		t.Error("two users share a bucket")
	}
	if a, b := keys("file=a1")[0], keys("file=a2")[0]; a != b || !strings.HasSuffix(a, "}:hour:1:sliding_window:0") {
		t.Errorf("values of a shared pattern have the keys %q and %q", a, b)
	}
	if a, b := keys("file=b1")[0], keys("file=b2")[0]; a == b {
		t.Error("values of a pattern share a bucket without share_threshold")
	}
	if a, b := keys("file=a*")[0], keys("file=a1")[0]; a != b {
		t.Error("the pattern itself, as a value, has a bucket of its own")
	}
	var m descriptors.Match
	domain.Match(entriesOf("user=ann"), &m)
	m.Override()
	if got := m.OverrideKey(descriptors.Second, 1); got != ann[0] {
		t.Errorf("a limit in the request has the key %q, want that of the same unit: %q", got, ann[0])
	}
	if got := m.OverrideKey(descriptors.Minute, 1); !strings.HasSuffix(got, "}:minute:1:fixed_window:0") {
		t.Errorf("key %q", got)
	}
}

// Two descriptors have one hash only when they are the same, whatever a caller writes into keys and values.
func TestDropInHashesAreInjective(t *testing.T) {
	t.Parallel()
	set := parseDropIn(t, "domain: shop\ndescriptors: []\n")
	domain, _ := set.DropIn("shop")
	entry := rapid.Custom(func(t *rapid.T) descriptors.Entry {
		part := rapid.StringMatching(`[a:_0-9kv]{0,5}`)
		return descriptors.Entry{Key: part.Draw(t, "key"), Value: part.Draw(t, "value")}
	})
	hash := func(entries []descriptors.Entry) string {
		var m descriptors.Match
		domain.Match(entries, &m)
		return m.Hash()
	}
	rapid.Check(t, func(t *rapid.T) {
		one, two := rapid.SliceOfN(entry, 0, 3).Draw(t, "one"), rapid.SliceOfN(entry, 0, 3).Draw(t, "two")
		if (hash(one) == hash(two)) != slices.Equal(one, two) {
			t.Errorf("%q and %q", one, two)
		}
	})
}

func TestDropInRules(t *testing.T) {
	t.Parallel()
	set := parseDropIn(t, `
domain: shop
descriptors:
  - key: plan
    value: gold
    shadow_mode: yes
    quota_mode: True
    metadata: {1: a, n: null, list: [1.5, "x", {deep: on}], yes: no}
    rate_limit: {name: gold, unit: Minute, requests_per_unit: 010, replaces: [{name: base}, {name: other}]}
    descriptors:
      - {key: user, rate_limit: {unlimited: true, replaces: [{name: base}]}}
  - key: many
    all_or_nothing: true
    fail_mode: fail_open
    emergency: {capacity: 50, refill: 25/s, per_key: {capacity: 5, refill: 1/s}}
    rate_limit:
      - {unit: second, requests_per_unit: 10, unit_multiplier: 30}
      - {unit: day, requests_per_unit: 1000, algorithm: sliding_window}
      - {unit: hour, requests_per_unit: 60, algorithm: token_bucket, burst: 5}
      - {unit: hour, requests_per_unit: 0}
  - {key: closed, fail_mode: fail_closed, rate_limit: {`+perMinute+`}}
  - {key: error, fail_mode: error, rate_limit: {`+perMinute+`}}
`)
	counting := func(limit int64, window time.Duration) algorithms.Rule {
		r, err := algorithms.NewCountingWindow(limit, window)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	strict, err := algorithms.NewFixedWindow(10, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	limit := func(perUnit int64, unit descriptors.Unit, multiplier int64, rule algorithms.Rule) descriptors.DropInLimit {
		return descriptors.DropInLimit{PerUnit: perUnit, Unit: unit, Multiplier: multiplier, Rule: rule}
	}
	gold := limit(8, descriptors.Minute, 1, counting(8, time.Minute))
	gold.Name, gold.Replaces = "gold", []string{"base", "other"}
	want := []*descriptors.DropInRule{
		{
			Domain: "shop", Levels: []string{"plan_gold"}, Limits: []descriptors.DropInLimit{gold}, Shadow: true, Quota: true,
			Metadata: map[string]any{"1": "a", "n": nil, "list": []any{1.5, "x", map[string]any{"deep": true}}, "yes": false},
			File:     "f.yaml", Line: 4,
		},
		{
			Domain: "shop", Levels: []string{"plan_gold", "user"}, Unlimited: true,
			Limits: []descriptors.DropInLimit{{Multiplier: 1, Replaces: []string{"base"}}}, File: "f.yaml", Line: 11, Index: 1,
		},
		{
			Domain: "shop", Levels: []string{"many"}, AllOrNothing: true, Limits: []descriptors.DropInLimit{
				limit(10, descriptors.Second, 30, strict),
				limit(1000, descriptors.Day, 1, sliding(t, 1000, 24*time.Hour)),
				limit(60, descriptors.Hour, 1, bucket(t, 5, 60, 3600)),
				limit(0, descriptors.Hour, 1, counting(0, time.Hour)), // a strict window has no limit of 0
			},
			Emergency: &descriptors.Emergency{
				Bucket: descriptors.Bucket{Capacity: 50, Refill: rate(t, 25, 1)}, PerKey: &descriptors.Bucket{Capacity: 5, Refill: rate(t, 1, 1)},
			},
			File: "f.yaml", Line: 12, Index: 2,
		},
		{
			Domain: "shop", Levels: []string{"closed"}, FailMode: descriptors.FailDeny,
			Limits: []descriptors.DropInLimit{limit(10, descriptors.Minute, 1, counting(10, time.Minute))}, File: "f.yaml", Line: 21, Index: 3,
		},
		{
			Domain: "shop", Levels: []string{"error"}, FailMode: descriptors.FailAnswer,
			Limits: []descriptors.DropInLimit{limit(10, descriptors.Minute, 1, counting(10, time.Minute))}, File: "f.yaml", Line: 22, Index: 4,
		},
	}
	if diff := cmp.Diff(want, set.DropInRules(), visible, cmpopts.IgnoreUnexported(descriptors.DropInRule{}, descriptors.DropInLimit{})); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	domain, _ := set.DropIn("shop")
	if domain.Name() != "shop" || domain.Rules() != 5 || len(set.DropIns()) != 1 || set.DropIns()[0] != domain {
		t.Errorf("domain %q with %d rules", domain.Name(), domain.Rules())
	}
	if got := set.Summary(); len(got) != 1 || got[0].String() != `f.yaml: domain "shop" of envoyproxy/ratelimit, 5 rules` {
		t.Errorf("summary %v", got)
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]time.Duration{
		"second": time.Second, "MINUTE": time.Minute, "Hour": time.Hour, "day": 24 * time.Hour, "WEEK": 7 * 24 * time.Hour,
		"month": 30 * 24 * time.Hour, "YEAR": 365 * 24 * time.Hour,
	} {
		u, ok := descriptors.UnitNamed(name)
		if !ok || u.Length() != want || u.String() != strings.ToLower(name) {
			t.Errorf("%s: %v, %v, %v", name, u, u.Length(), ok)
		}
	}
	for _, name := range []string{"", "minutes", " minute", "unknown", "\u017fecond"} {
		if _, ok := descriptors.UnitNamed(name); ok {
			t.Errorf("%q is a unit", name)
		}
	}
	if none := descriptors.Unit(0); none.String() != "" || none.Length() != 0 || descriptors.Unit(200).String() != "" {
		t.Error("no unit has a name")
	}
}

// What the service refuses is refused, with the place and what to do.
func TestDropInRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []string // the beginning of each problem
	}{
		"no domain":       {"descriptors: []\n", []string{"f.yaml:1: domain: config file cannot have empty domain; name the domain"}},
		"a list":          {"- domain: shop\n", []string{"f.yaml:1: a list is not a mapping with domain and descriptors"}},
		"not YAML":        {"domain: [\n", []string{"f.yaml:"}},
		"unknown key":     {node("key: k, valu: x"), []string{"f.yaml:3: descriptors[0].valu: unknown key; did you mean value?"}},
		"unknown at top":  {"x-defaults: {}\ndomain: shop\n", []string{`f.yaml:1: x-defaults: unknown key; use one of:`}},
		"a number as key": {node("1: x, key: k"), []string{`f.yaml:3: descriptors[0].1: a key that is not text`}},
		"empty key":       {node("key: ''"), []string{"f.yaml:3: descriptors[0].key: descriptor has empty key; name the key"}},
		"no key":          {node("value: x"), []string{"f.yaml:3: descriptors[0].key: descriptor has empty key"}},
		"a scalar":        {"domain: shop\ndescriptors:\n  - k\n", []string{`f.yaml:3: descriptors[0]: the text "k" is not a descriptor; write a mapping`}},
		"no list":         {"domain: shop\ndescriptors: {key: k}\n", []string{"f.yaml:2: descriptors: a mapping is not a list of descriptors"}},
		"duplicate": {
			"domain: shop\ndescriptors:\n  - {key: a, value: b, descriptors: [{key: c}, {key: c}]}\n  - {key: a_b}\n",
			[]string{
				`f.yaml:3: descriptors[0].descriptors[1]: duplicate descriptor composite key "shop.a_b.c"; the descriptor with key "c" and value "" stands in its place`,
				`f.yaml:4: descriptors[1]: duplicate descriptor composite key "shop.a_b"; the descriptor with key "a" and value "b" stands in its place: remove or rename one; several limits on one descriptor are a list`,
			},
		},
		"unit":                     {limited("unit: minutes, requests_per_unit: 1"), []string{`f.yaml:3: descriptors[0].rate_limit.unit: invalid rate limit unit "minutes"; use one of: second, minute`}},
		"no unit":                  {limited("requests_per_unit: 1"), []string{`f.yaml:3: descriptors[0].rate_limit.unit: invalid rate limit unit ""`}},
		"limit is no mapping":      {node("key: k, rate_limit: 5"), []string{"f.yaml:3: descriptors[0].rate_limit: 5 is not a mapping"}},
		"negative":                 {limited("unit: minute, requests_per_unit: -1"), []string{"f.yaml:3: descriptors[0].rate_limit.requests_per_unit: -1 is out of range; it must be in 0..4294967295"}},
		"too large":                {limited("unit: minute, requests_per_unit: 4294967296"), []string{"f.yaml:3: descriptors[0].rate_limit.requests_per_unit: 4294967296 is out of range"}},
		"a fraction":               {limited("unit: minute, requests_per_unit: 1.0"), []string{"f.yaml:3: descriptors[0].rate_limit.requests_per_unit: 1.0 is not an integer"}},
		"quoted number":            {limited("unit: minute, requests_per_unit: '10'"), []string{`f.yaml:3: descriptors[0].rate_limit.requests_per_unit: the text "10" is not an integer; remove the quotes`}},
		"quoted boolean":           {node("key: k, shadow_mode: 'true'"), []string{`f.yaml:3: descriptors[0].shadow_mode: the text "true" is not true or false; remove the quotes`}},
		"number as value":          {node("key: k, value: 1e3"), []string{`f.yaml:3: descriptors[0].value: 1e3 is not text; quote it: "1e3"`}},
		"list as value":            {node("key: k, value: [a]"), []string{"f.yaml:3: descriptors[0].value: a list is not text"}},
		"unlimited with unit":      {limited("unlimited: true, unit: day"), []string{"f.yaml:3: descriptors[0].rate_limit.unit: should not specify rate limit unit when unlimited"}},
		"replaces itself":          {limited("name: n, replaces: [{name: n}], " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.replaces[0]: replaces should not contain name of same descriptor"}},
		"replaces nothing":         {limited("replaces: [{}], " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.replaces[0]: should not have an empty replaces entry"}},
		"replaces a text":          {limited("replaces: [a], " + perMinute), []string{`f.yaml:3: descriptors[0].rate_limit.replaces[0]: the text "a" is not a mapping`}},
		"share without pattern":    {node("key: k, value: a, share_threshold: true"), []string{"f.yaml:3: descriptors[0].share_threshold: share_threshold can only be used with wildcard values (containing '*'), but found key \"k_a\"; put a * into value"}},
		"metadata is no mapping":   {node("key: k, metadata: x"), []string{`f.yaml:3: descriptors[0].metadata: the text "x" is not a mapping`}},
		"infinite metadata":        {node("key: k, metadata: {a: .inf}"), []string{"f.yaml:3: descriptors[0].metadata.a: .inf is not a finite number"}},
		"unknown key out of place": {limited("descriptors: [{keys: k}], " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.descriptors[0].keys: unknown key; did you mean key?"}},

		"algorithm":                 {limited("algorithm: leaky_bucket, " + perMinute), []string{`f.yaml:3: descriptors[0].rate_limit.algorithm: unknown word "leaky_bucket"; `}},
		"burst elsewhere":           {limited("burst: 5, " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.burst: burst with algorithm fixed_window; burst is the capacity of a token_bucket"}},
		"burst of 0":                {limited("algorithm: token_bucket, burst: 0, " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.burst: 0 is out of range"}},
		"bucket of 0":               {limited("algorithm: token_bucket, unit: day, requests_per_unit: 0"), []string{"f.yaml:3: descriptors[0].rate_limit.requests_per_unit: capacity 0: must be 1 to"}},
		"sliding window of 0":       {limited("algorithm: sliding_window, unit: day, requests_per_unit: 0"), []string{"f.yaml:3: descriptors[0].rate_limit.requests_per_unit: limit 0: must be 1 to"}},
		"multiplier of 0":           {limited("unit_multiplier: 0, " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.unit_multiplier: 0 is out of range; it must be in 1.."}},
		"multiplier beyond":         {limited("unit_multiplier: 9, unit: year, requests_per_unit: 1"), []string{"f.yaml:3: descriptors[0].rate_limit.unit_multiplier: 9 is out of range; it must be in 1..8"}},
		"multiplier with unlimited": {limited("unit_multiplier: 2, unlimited: true"), []string{"f.yaml:3: descriptors[0].rate_limit.unit_multiplier: unit_multiplier beside unlimited"}},
		"an empty list of limits":   {node("key: k, rate_limit: []"), []string{"f.yaml:3: descriptors[0].rate_limit: a list of 0 limits; list 1 to 16"}},
		"too many limits":           {node("key: k, rate_limit: [" + strings.Repeat("{"+perMinute+"}, ", 17) + "]"), []string{"f.yaml:3: descriptors[0].rate_limit: a list of 17 limits"}},
		"unlimited in a list":       {node("key: k, rate_limit: [{unlimited: true}, {" + perMinute + "}]"), []string{"f.yaml:3: descriptors[0].rate_limit[0].unlimited: an unlimited limit in a list"}},
		"fail mode":                 {node("key: k, fail_mode: open, rate_limit: {" + perMinute + "}"), []string{`f.yaml:3: descriptors[0].fail_mode: unknown word "open"; use one of: fail_open, fail_closed, error`}},
		"fail mode without limit":   {node("key: k, fail_mode: error"), []string{"f.yaml:3: descriptors[0].fail_mode: fail_mode on a descriptor without rate_limit"}},
		"emergency and closed":      {node("key: k, fail_mode: fail_closed, emergency: {capacity: 1, refill: 0}, rate_limit: {" + perMinute + "}"), []string{"f.yaml:3: descriptors[0].emergency: emergency with fail_mode: fail_closed"}},
		"emergency as natively":     {node("key: k, emergency: {capacity: 010}, rate_limit: {" + perMinute + "}"), []string{"f.yaml:3: descriptors[0].emergency.capacity: 010 is not a plain decimal integer", "f.yaml:3: descriptors[0].emergency.refill: missing"}},
		"together and shadow":       {node("key: k, all_or_nothing: true, shadow_mode: true, rate_limit: {" + perMinute + "}"), []string{"f.yaml:3: descriptors[0].all_or_nothing: all_or_nothing beside shadow_mode or quota_mode"}},
		"extension out of place":    {limited("fail_mode: error, " + perMinute), []string{"f.yaml:3: descriptors[0].rate_limit.fail_mode: fail_mode does not belong here; it belongs into a descriptor, beside key"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := dropInProblems(t, c.text)
			if len(got) != len(c.want) {
				t.Fatalf("%d problems, want %d:\n%s", len(got), len(c.want), strings.Join(got, "\n"))
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("got %s\nwant %s", got[i], c.want[i])
				}
			}
		})
	}
}

// Every problem of every file is reported at once.
func TestDropInReportsEveryProblem(t *testing.T) {
	t.Parallel()
	got := dropInProblems(t, "domain: shop\ndescriptors:\n  - {key: a, rate_limit: {unit: x}}\n  - {key: '', foo: 1}\n  - {key: b, rate_limit: {unit: y}}\n")
	if len(got) != 4 || !strings.HasPrefix(got[0], "f.yaml:3:") || !strings.HasPrefix(got[3], "f.yaml:5:") {
		t.Errorf("problems:\n%s", strings.Join(got, "\n"))
	}
}

func TestDropInWarnings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"CFG-16 shadow_mode in rate_limit": {limited("shadow_mode: true, " + perMinute), "f.yaml:3: descriptors[0].rate_limit.shadow_mode: shadow_mode has no meaning here and is ignored; it belongs into a descriptor, beside key"},
		"unit beside the limit":            {node("key: k, unit: day"), "f.yaml:3: descriptors[0].unit: unit has no meaning here and is ignored; it belongs into rate_limit"},
		"a domain below":                   {node("key: k, domain: x"), "f.yaml:3: descriptors[0].domain: domain has no meaning here and is ignored; it belongs to the top of the file"},
		"denies everything":                {limited("unit: minute, requests_per_unit: 0"), "f.yaml:3: descriptors[0].rate_limit.requests_per_unit: 0 denies every request"},
		"denies everything, unsaid":        {limited("unit: minute"), "f.yaml:3: descriptors[0].rate_limit.requests_per_unit: missing: it counts as 0, which denies every request; write requests_per_unit"},
		"a name with CR and LF":            {limited(`name: "a\r\nX-Evil: 1", ` + perMinute), "f.yaml:3: descriptors[0].rate_limit.name: a name that is not 1 to 255 visible ASCII characters"},
		"a name beyond ASCII":              {limited("name: é, " + perMinute), "f.yaml:3: descriptors[0].rate_limit.name: a name that is not"},
		"many patterns":                    {"domain: shop\ndescriptors: [" + manyPatterns(17) + "]\n", "f.yaml:2: descriptors: 17 patterns on one level; they are tried one by one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := dropInWarnings(t, c.text)
			if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
				t.Errorf("warnings %q, want %q", got, c.want)
			}
		})
	}
	if got := dropInWarnings(t, "domain: shop\ndescriptors: ["+manyPatterns(16)+"]\n"); len(got) > 0 {
		t.Errorf("16 patterns: %q", got)
	}
}

func manyPatterns(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "{key: k, value: '%d*'}, ", i)
	}
	return text.String()
}

func TestCFG_01_a_key_that_stands_twice_in_a_drop_in(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"yaml": "domain: shop\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n      requests_per_unit: 1000\n",
		"json": "{\"domain\": \"shop\", \"descriptors\": [\n{\"key\": \"k\", \"rate_limit\": {\n\"unit\": \"minute\",\n\n\n\"requests_per_unit\": 10,\n\"requests_per_unit\": 1000}}]}",
	} {
		set := parseDropIn(t, text)
		if got := set.DropInRules()[0].Limits[0].PerUnit; got != 1000 {
			t.Errorf("%s: %d, want the last", name, got)
		}
		if w := dropInWarnings(t, text); len(w) != 1 || !strings.Contains(w[0], "f.yaml:7: descriptors[0].rate_limit.requests_per_unit: the key stands twice, and the last one counts; remove one: the first is in line 6") {
			t.Errorf("%s: warnings %q", name, w)
		}
	}
}

func TestCFG_04_numbers_of_YAML_1_1_in_a_drop_in(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"010": 8, "0o10": 8, "0x10": 16, "0b11": 3, "1_000": 1000, "+5": 5, "0": 0} {
		set := parseDropIn(t, limited("unit: minute, requests_per_unit: "+text))
		if got := set.DropInRules()[0].Limits[0].PerUnit; got != want {
			t.Errorf("%s: %d, want %d, as the service reads it", text, got, want)
		}
		if len(set.Warnings()) != 1 {
			t.Errorf("%s: warnings %v", text, set.Warnings())
		}
	}
	dropInProblems(t, limited("unit: minute, requests_per_unit: 08"))
}

func TestCFG_05_nulls_in_a_drop_in(t *testing.T) {
	t.Parallel()
	for _, null := range []string{"", "~", "null"} {
		set := parseDropIn(t, "domain: shop\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: minute\n      requests_per_unit: "+null+"\n")
		if got := set.DropInRules()[0].Limits[0].PerUnit; got != 0 || len(set.Warnings()) != 1 {
			t.Errorf("%q: %d, warnings %v", null, got, set.Warnings())
		}
		dropInProblems(t, "domain: shop\ndescriptors:\n  - key: "+null+"\n")
		dropInProblems(t, "domain: "+null+"\ndescriptors: []\n")
	}
}

func TestCFG_07_a_second_document_in_a_drop_in(t *testing.T) {
	t.Parallel()
	first := limited(perMinute)
	for name, rest := range map[string]string{
		"another":  "---\n" + strings.Replace(first, "shop", "other", 1),
		"an empty": "---\n",
		"broken":   "---\n{\n",
	} {
		set := parseDropIn(t, first+rest)
		if _, ok := set.DropIn("other"); ok || len(set.DropInRules()) != 1 || len(set.Warnings()) != 1 {
			t.Errorf("%s: %d rules, warnings %v", name, len(set.DropInRules()), set.Warnings())
		}
	}
}

func TestCFG_08_aliases_in_a_drop_in(t *testing.T) {
	t.Parallel()
	set := parseDropIn(t, `
domain: shop
descriptors:
  - key: a
    rate_limit: &r {unit: minute, requests_per_unit: 5}
  - key: b
    rate_limit: *r
  - key: c
    rate_limit: {<<: *r, requests_per_unit: 7}
  - key: d
    rate_limit: {requests_per_unit: 8, <<: [{unit: hour}, *r]}
  - &e {key: e, rate_limit: *r}
  - {<<: *e, key: f}
`)
	var got []string
	for _, r := range set.DropInRules() {
		got = append(got, fmt.Sprintf("%s %d/%s", r.Levels[0], r.Limits[0].PerUnit, r.Limits[0].Unit))
	}
	want := []string{"a 5/minute", "b 5/minute", "c 7/minute", "d 8/hour", "e 5/minute", "f 5/minute"}
	if !slices.Equal(got, want) || len(set.Warnings()) > 0 {
		t.Errorf("rules %q, want %q, warnings %v", got, want, set.Warnings())
	}

	var bomb strings.Builder
	bomb.WriteString("domain: shop\ndescriptors:\n  - key: k\n    metadata:\n      a0: &b0 [x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&bomb, "      a%d: &b%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*b%d, ", i-1), 9), ", "))
	}
	var problems []string
	took := quickest(func() { problems = dropInProblems(t, bomb.String()) })
	if !strings.Contains(strings.Join(problems, "\n"), "excessive aliasing") || took > 100*time.Millisecond && !raceDetector {
		t.Errorf("after %v:\n%s", took, strings.Join(problems, "\n"))
	}
	for name, text := range map[string]string{
		"in metadata":    node("key: k, metadata: &m {a: *m}"),
		"in a list":      node("key: k, metadata: {a: &a [*a]}"),
		"in descriptors": "domain: shop\ndescriptors: &d\n  - {key: k, descriptors: *d}\n",
		"in a merge":     node("key: k, rate_limit: &r {<<: *r, unit: day}"),
	} {
		if got := strings.Join(dropInProblems(t, text), "\n"); !strings.Contains(got, "stands within what it stands for") {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, text := range []string{limited("<<: 5, " + perMinute), limited("<<: [5], " + perMinute), limited("<<: [[{}]], " + perMinute)} {
		if got := dropInProblems(t, text); !strings.Contains(got[0], "a merge key over") {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestCFG_09_encodings_of_a_drop_in(t *testing.T) {
	t.Parallel()
	plain := limited(perMinute)
	for name, text := range map[string]string{
		"BOM":              "\ufeff" + plain,
		"CRLF":             strings.ReplaceAll(plain, "\n", "\r\n"),
		"both":             "\ufeff" + strings.ReplaceAll(plain, "\n", "\r\n"),
		"tab in a comment": "#\tcomment\n" + plain,
	} {
		if set := parseDropIn(t, text); len(set.DropInRules()) != 1 {
			t.Errorf("%s: %d rules", name, len(set.DropInRules()))
		}
	}
	for name, text := range map[string]string{
		"tab indent":        "domain: shop\ndescriptors:\n\t- key: k\n",
		"control character": "domain: shop\ndescriptors:\n  - key: \"a\x01b\"\n",
		"NBSP for a space":  "domain:\u00a0shop\ndescriptors: []\n",
		"NUL":               plain + "\x00",
		"not UTF-8":         strings.Replace(plain, "key: k", "key: \xff", 1),
	} {
		if got := dropInProblems(t, text); len(got) == 0 || !strings.HasPrefix(got[0], "f.yaml") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestCFG_19_domains_in_several_files(t *testing.T) {
	t.Parallel()
	one := file("a.yaml", "domain: shop\ndescriptors:\n  - {key: k, value: 'a*', rate_limit: {unit: minute, requests_per_unit: 1}}\n")
	two := file("b.yaml", "domain: shop\ndescriptors:\n  - {key: k, value: '*', rate_limit: {unit: minute, requests_per_unit: 2}}\n")
	parse := func(merge bool, files ...descriptors.File) (*descriptors.Set, error) {
		return descriptors.Parse(files, descriptors.Options{DropIn: descriptors.DropInOptions{Only: true, MergeDomains: merge}})
	}
	if _, err := parse(false, one, two); err == nil || err.Error() != `b.yaml:1: domain: duplicate domain "shop" in config file; rename one, or set MERGE_DOMAIN_CONFIG=true: the first is in a.yaml` {
		t.Errorf("without merging: %v", err)
	}
	// Merged in the order given: the pattern of the first file is tried first, every time.
	for want, files := range map[int64][]descriptors.File{1: {one, two}, 2: {two, one}} {
		set, err := parse(true, files...)
		if err != nil {
			t.Fatal(err)
		}
		domain, _ := set.DropIn("shop")
		var m descriptors.Match
		if !domain.Match(entriesOf("k=ab"), &m) || m.Rule.Limits[0].PerUnit != want {
			t.Errorf("%s first: matched %v, want the limit %d", files[0].Name, m.Rule, want)
		}
		for i, s := range set.Summary() {
			if s.File != files[i].Name || s.Rules != 2 || s.Domain != "shop" {
				t.Errorf("summary %+v", s)
			}
		}
	}
	if _, err := parse(true, one, file("b.yaml", string(one.Data))); err == nil || !strings.Contains(err.Error(), `b.yaml:3: descriptors[0]: duplicate descriptor composite key "shop.k_a*"`) {
		t.Errorf("a duplicate, merged: %v", err)
	}
	// A native file and a drop-in file do not share a domain; two domains do share a directory.
	for _, files := range [][]descriptors.File{{one, file("n.yaml", good)}, {file("n.yaml", good), one}} {
		if _, err := descriptors.Parse(files, descriptors.Options{}); err == nil || !strings.Contains(err.Error(), "give one of them another domain") {
			t.Errorf("%s first: %v", files[0].Name, err)
		}
	}
	set := parseFiles(t, one, file("n.yaml", strings.Replace(good, "shop", "bank", 1)))
	if _, ok := set.Domain("bank"); !ok || len(set.DropIns()) != 1 {
		t.Error("a native and a drop-in domain beside each other were not both read")
	}
	if _, ok := set.Domain("shop"); ok {
		t.Error("a drop-in domain is a native one too")
	}
}

func TestCFG_20_JSON_in_a_drop_in(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`, `null`, `[]`, `5`, `{"domain": ""}`, `{"domain": "shop", "descriptors": [{"key": "k", "rate_limit": {"unit": "minute", "requests_per_unit": "5"}}]}`,
		`{"domain": "shop", "descriptors": [{"key": "k", "rate_limit": {"unit": "minute", "requests_per_unit": 5.0}}]}`,
		`{"domain": "shop", "descriptors": [{"key": "k", "rate_limit": {"unit": "minute", "requests_per_unit": 1e400}}]}`,
		`{"domain": "shop", "descriptors": [{"key": "k", "rate_limit": {"unit": "minute", "requests_per_unit": NaN}}]}`,
		`{"domain": "shop", "descriptors": [{"KEY": "k"}]}`,
		`{"domain": "shop", "descriptors": ` + strings.Repeat("[", 10001) + strings.Repeat("]", 10001) + `}`,
		`{"domain": "shop"} // comment`,
	} {
		dropInProblems(t, text)
	}
	huge := descriptors.File{Name: "f.json", Data: make([]byte, 100<<20)}
	var err error
	took := quickest(func() { _, err = descriptors.Parse([]descriptors.File{huge}, dropInOnly) })
	if err == nil || !strings.Contains(err.Error(), "more than 8388608; split it") || took > 5*time.Millisecond {
		t.Errorf("100 MiB after %v: %v", took, err)
	}
}

func TestTenThousandValuesLoadWithinASecond(t *testing.T) {
	f := manyValues(10_000)
	var set *descriptors.Set
	// Processor time: the machine may be busy with other packages' tests.
	before := processorTime(t)
	var err error
	if set, err = descriptors.Parse([]descriptors.File{f}, descriptors.Options{}); err != nil {
		t.Fatal(err)
	}
	if took := processorTime(t) - before; took > time.Second && !raceDetector {
		t.Errorf("10 000 values took %v", took)
	}
	domain, _ := set.DropIn("shop")
	var m descriptors.Match
	allocs := testing.AllocsPerRun(100, func() {
		if !domain.Match(lastValue, &m) || m.Rule.Levels[0] != "plan_v9999" {
			t.Fatal("no match")
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations for a match", allocs)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

var lastValue = []descriptors.Entry{{Key: "plan", Value: "v9999"}}

// Any bytes give problems, each in one clean line, or a set whose rules can be asked.
func FuzzDropIn(f *testing.F) {
	f.Add([]byte(limited(perMinute)), "k", "v")
	f.Add([]byte(node("key: k, value: 'a*b', share_threshold: true, metadata: {1: [x, {y: .5}]}, rate_limit: ["+"{"+perMinute+"}]")), "k", "ab")
	f.Add([]byte("domain: &d shop\ndescriptors:\n- &n {key: *d, rate_limit: {<<: {unit: day}, unlimited: on}}\n- <<: *n\n  key: x\n---\n{"), "x", "")
	f.Add([]byte("domain: 010\ndescriptors: &d [{key: k, descriptors: *d}]\n"), "k", "v")
	f.Add([]byte("{\"domain\": \"shop\", \"descriptors\": [{\"key\": \"k\", \"fail_mode\": \"error\", \"emergency\": {\"capacity\": 1}}]}"), "k", "v")
	f.Fuzz(func(t *testing.T, data []byte, key, text string) {
		set, err := descriptors.Parse([]descriptors.File{{Name: "f", Data: data}}, dropInOnly)
		if err != nil {
			for _, e := range split(err) {
				problem, ok := e.(*descriptors.PolicyError)
				if !ok || problem.Problem == "" || strings.ContainsAny(problem.Path+problem.Problem+problem.Hint, "\r\n\t\x00") {
					t.Errorf("problem %q (%T)", e, e)
				}
			}
			return
		}
		for _, w := range set.Warnings() {
			if w.Problem == "" || strings.ContainsAny(w.Error(), "\r\n\t\x00") {
				t.Errorf("warning %q", w)
			}
		}
		if len(set.DropIns()) != 1 {
			t.Fatalf("%d domains", len(set.DropIns()))
		}
		domain := set.DropIns()[0]
		if domain.Rules() != len(set.DropInRules()) {
			t.Errorf("%d rules of %d", domain.Rules(), len(set.DropInRules()))
		}
		for i, r := range set.DropInRules() {
			if r.Index != i || r.Domain != domain.Name() || len(r.Levels) == 0 || len(r.Limits) == 0 || r.Unlimited == (r.Limits[0].Unit != 0) {
				t.Errorf("rule %+v", r)
			}
			for _, l := range r.Limits {
				if !r.Unlimited && l.Rule.Kind() == 0 {
					t.Errorf("limit %+v", l)
				}
			}
		}
		var m descriptors.Match
		if domain.Match([]descriptors.Entry{{Key: key, Value: text}}, &m) {
			for i := range m.Rule.Limits {
				if !m.Rule.Unlimited && !strings.HasPrefix(m.Key(i), "sentinel:d1:{"+m.Hash()+"}:") {
					t.Errorf("key %q", m.Key(i))
				}
			}
			if levels, _ := m.Levels(); len(levels) != 1 {
				t.Errorf("levels %q", levels)
			}
		}
	})
}
