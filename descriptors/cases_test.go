package descriptors_test

import (
	"encoding/binary"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/testserver"
)

const good = "domain: shop\nendpoints:\n  a: {policy_version: 1, fail_mode: fail_closed, limits: unlimited}\n"

// refusedWith checks that a file gives a problem whose line begins and goes on as want says.
func refusedWith(t *testing.T, name, text, begins, contains string) {
	t.Helper()
	got := refusals(t, file(name, text))
	for _, line := range got {
		if strings.HasPrefix(line, begins) && strings.Contains(line, contains) {
			return
		}
	}
	t.Errorf("problems of %.300q:\n%s\nwant one that begins %q and contains %q", text, strings.Join(got, "\n"), begins, contains)
}

func TestCFG_01_DuplicateKeysAreRefusedWithTheirLine(t *testing.T) {
	t.Parallel()
	const twice = "domain: shop\nendpoints:\n  a:\n    policy_version: 1\n    fail_mode: fail_closed\n    limits:\n" +
		"      - algorithm: sliding_window\n        limit: 10\n        limit: 1000\n        window: 1m\n"
	refusedWith(t, "f.yaml", twice, "f.yaml:9: endpoints.a.limits[0].limit: the key stands twice", "the first is in line 8")

	const inJSON = `{"domain": "shop", "endpoints": {"a": {"policy_version": 1, "fail_mode": "fail_closed",
 "limits": [{"algorithm": "sliding_window", "limit": 10,
  "limit": 1000, "window": "1m"}]}}}`
	refusedWith(t, "f.json", inJSON, "f.json:3: endpoints.a.limits[0].limit: the key stands twice", "the first is in line 2")
	refusedWith(t, "f.yaml", inJSON, "f.yaml:3: endpoints.a.limits[0].limit: the key stands twice", "the first is in line 2")

	// However the two are written, and however deep below a key that is unknown anyway.
	refusedWith(t, "f.yaml", good+"x: {b: 1, 'b': 2}\n", "f.yaml:4: x.b: the key stands twice", "line 4")
	refusedWith(t, "f.yaml", good+`x: [{"b": 1, "\u0062": 2}]`+"\n", "f.yaml:4: x[0].b: the key stands twice", "line 4")
	refusedWith(t, "f.yaml", good+"endpoints: {}\n", "f.yaml:4: endpoints: the key stands twice", "line 2")
	refusedWith(t, "f.yaml", good+"  a: {}\n", "f.yaml:4: endpoints.a: the key stands twice", "line 3")
}

func TestCFG_04_NumbersAreDecimalOrRefused(t *testing.T) {
	t.Parallel()
	for _, number := range []string{
		"010", "0o10", "0x10", "0X1F", "0b11", "1_000", "08", "+10", "-0", "00", "1e3", "1E3", "5.0", "5.", ".5", "1.5e1", "1:30",
	} {
		refusedWith(t, "f.yaml", tenantLimits("{algorithm: sliding_window, window: 1m, limit: "+number+"}"),
			"f.yaml:3: endpoints.a.limits[0].limit: "+number+" is not a plain decimal integer", "write digits only")
	}
	for _, number := range []string{".inf", ".nan", "NaN", "ten", "0d10"} {
		refusals(t, file("f.yaml", tenantLimits("{algorithm: sliding_window, window: 1m, limit: "+number+"}")))
	}
	set := parse(t, tenantLimits("{algorithm: sliding_window, window: 1m, limit: 10}"))
	if got := set.Policies()[0].Limits[0].Rule.Limit(); got != 10 {
		t.Errorf("limit: 10 reads as %d", got)
	}
}

func TestCFG_05_NothingIsNotZero(t *testing.T) {
	t.Parallel()
	for _, nothing := range []string{"", "~", "null", "Null", "NULL"} {
		refusedWith(t, "f.yaml", tenantLimits("{algorithm: sliding_window, window: 1m, limit: "+nothing+"}"),
			"f.yaml:3: endpoints.a.limits[0].limit: no value", "an integer")
		refusedWith(t, "f.yaml", tenantLimits("{algorithm: token_bucket, capacity: 1, refill: "+nothing+"}"),
			"f.yaml:3: endpoints.a.limits[0].refill: no value", "a refill rate")
	}
	refusedWith(t, "f.json",
		`{"domain": "shop", "endpoints": {"a": {"policy_version": 1, "fail_mode": "fail_closed", "limits": [{"algorithm": "sliding_window", "limit": null, "window": "1m"}]}}}`,
		"f.json:1: endpoints.a.limits[0].limit: no value", "an integer")
	refusedWith(t, "f.yaml", tenantLimits("{algorithm: sliding_window, window: 1m}"), "f.yaml:3: endpoints.a.limits[0].limit: missing", "")

	// Every key of the language, present without a value.
	for key, text := range withoutValue(shop) {
		got := refusals(t, file("f.yaml", text))
		if !strings.Contains(strings.Join(got, "\n"), "no value") {
			t.Errorf("%s without value: %q", key, got)
		}
	}

	// 0 only when written, and only where it means what it says.
	set := parse(t, tenantLimits("{algorithm: token_bucket, capacity: 1, refill: 0}"))
	if got := set.Policies()[0].Limits[0].Rule.Refill().Tokens; got != 0 {
		t.Errorf("refill: 0 reads as %d", got)
	}
}

// withoutValue returns text with the value of one `key: value` in a line of its own removed, for each such line.
func withoutValue(text string) map[string]string {
	texts := make(map[string]string)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		key, value, found := strings.Cut(line, ": ")
		if !found || value == "" || strings.Contains(key, "{") {
			continue
		}
		changed := append([]string(nil), lines...)
		changed[i] = key + ":"
		texts[line] = strings.Join(changed, "\n")
	}
	return texts
}

func TestCFG_07_OneDocumentPerFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, begins string }{
		"second policy":          {good + "---\n" + strings.ReplaceAll(good, "shop", "bank"), "f.yaml:4: a second document"},
		"second null":            {good + "---\n", "f.yaml:4: a second document"},
		"end and garbage":        {good + "...\ngarbage: [\n", "f.yaml:6: not YAML"},
		"end and more":           {good + "...\nmore: 1\n", "f.yaml:5: a second document"},
		"start and broken text":  {good + "---\n}{", "f.yaml:5: not YAML"},
		"two objects":            {`{"domain": "shop"}{"domain": "bank"}`, "f.yaml:1: not YAML"},
		"two objects in a file":  {"{\"domain\": \"shop\"}\n{\"domain\": \"bank\"}", "f.yaml:2: not YAML"},
		"second after a comment": {"# one\n---\n" + good + "# two\n---\n" + good, "f.yaml:7: a second document"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedWith(t, "f.yaml", c.text, c.begins, "")
		})
	}
	refusedWith(t, "f.json", `{"domain": "shop"}{"domain": "bank"}`, "f.json:1: not JSON", "after top-level value")
	// A second document hides no problem, neither of its own nor of the first.
	bad := strings.Replace(good, "fail_mode: fail_closed", "fail_mode: maybe", 1)
	if bad == good {
		t.Fatal("the good file has another fail_mode")
	}
	_, err := descriptors.Parse([]descriptors.File{{Name: "f.yaml", Data: []byte(bad + "---\n" + strings.ReplaceAll(bad, "shop", "bank"))}}, descriptors.Options{})
	for _, want := range []string{"f.yaml:3: ", "f.yaml:4: a second document", "f.yaml:7: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %q", err, want)
		}
	}
	// One document, with its marks or without.
	for _, text := range []string{good, "---\n" + good, good + "...\n", good + "# end\n"} {
		parse(t, text)
	}
}

func TestCFG_08_AnchorsAliasesAndMergeKeysAreRefused(t *testing.T) {
	t.Parallel()
	const limits = "domain: shop\nendpoints:\n  a:\n    policy_version: 1\n    fail_mode: fail_closed\n    limits:\n"
	for name, c := range map[string]struct{ text, begins, contains string }{
		"anchor":         {limits + "      - &l {" + bucketLimit + "}\n", "f.yaml:7: endpoints.a.limits[0]: the anchor &l", "remove it"},
		"alias":          {limits + "      - &l {" + bucketLimit + "}\n      - *l\n", "f.yaml:8: endpoints.a.limits[1]: the alias *l", "write the value itself"},
		"merge":          {limits + "      - {<<: {" + bucketLimit + "}, capacity: 5}\n", `f.yaml:7: endpoints.a.limits[0]."<<": a merge key`, "write the values themselves"},
		"merge of two":   {limits + "      - &a {" + bucketLimit + "}\n      - <<: [*a, *a]\n", `f.yaml:8: endpoints.a.limits[1]."<<": a merge key`, ""},
		"two merge keys": {limits + "      - <<: {" + bucketLimit + "}\n        <<: {name: x}\n", `f.yaml:8: endpoints.a.limits[0]."<<": a merge key`, ""},
		"recursion":      {limits + "      - &l {limits: [*l]}\n", "f.yaml:7: endpoints.a.limits[0].limits[0]: the alias *l", ""},
		"unknown anchor": {limits + "      - *nowhere\n", "f.yaml:7: not YAML", "nowhere"},
		"anchor on key":  {limits + "      - {&k name: x, " + bucketLimit + "}\n", "f.yaml:7: endpoints.a.limits[0].name: the anchor &k", ""},
		"alias as key":   {limits + "      - {name: &k x, *k : y, " + bucketLimit + "}\n", "f.yaml:7: endpoints.a.limits[0].", "the alias *k"},
		"holder key":     {"x-base: &b {" + bucketLimit + "}\n" + good, "f.yaml:1: x-base: unknown key", "domain, endpoints"},
		"tag":            {limits + "      - !!map {" + bucketLimit + "}\n", "f.yaml:7: endpoints.a.limits[0]: the tag !!map", "remove it"},
		"own tag":        {limits + "      - !env {" + bucketLimit + "}\n", "f.yaml:7: endpoints.a.limits[0]: the tag !env", "remove it"},
		"text by tag":    {strings.Replace(good, "shop", "!!str 5", 1), "f.yaml:1: domain: the tag !!str", ""},
		"bare tag":       {strings.Replace(good, "shop", "! shop", 1), "f.yaml:1: domain: the tag !", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedWith(t, "f.yaml", c.text, c.begins, c.contains)
		})
	}
	t.Run("bomb", func(t *testing.T) {
		t.Parallel()
		var bomb strings.Builder
		bomb.WriteString("a: &a [x, x, x, x, x, x, x, x, x]\n")
		for c := 'a'; c < 'i'; c++ {
			bomb.WriteString(string(c+1) + ": &" + string(c+1) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(c)+", ", 9), ", ") + "]\n")
		}
		took := quickest(func() { refusedWith(t, "f.yaml", bomb.String(), "f.yaml:2: b[0]: the alias *a", "") })
		if took > 100*time.Millisecond {
			t.Errorf("9^9 aliases were refused after %v, want less than 100 ms", took)
		}
	})
	// Quoted, they are text.
	refusedWith(t, "f.yaml", good+`"<<": x`+"\n", `f.yaml:4: "<<": unknown key`, "")
	if _, ok := parse(t, endpoint("policy_version: 1, fail_mode: fail_closed, limits: unlimited, tenants: {'*x': {mode: shadow}, '&y': {mode: shadow}}")).Domain("shop"); !ok {
		t.Error("no domain")
	}
}

func TestCFG_09_OnlyPlainUTF8Text(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"BOM":          "\ufeff" + good,
		"CRLF":         strings.ReplaceAll(good, "\n", "\r\n"),
		"BOM and CRLF": "\ufeff" + strings.ReplaceAll(good, "\n", "\r\n"),
		"umlaut":       good + "# für alle\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parse(t, text)
		})
	}
	// CRLF counts as one line end.
	refusedWith(t, "f.yaml", "\ufeff"+strings.ReplaceAll(good, "\n", "\r\n")+"x: 1\r\n", "f.yaml:4: x: unknown key", "")

	for name, c := range map[string]struct{ text, begins, contains string }{
		"tab indent":             {"domain: shop\nendpoints:\n\ta: {}\n", "f.yaml:3: a tab", "use spaces"},
		"tab between":            {"domain:\tshop\n", "f.yaml:1: a tab", "use spaces"},
		"tab in a comment":       {good + "# a\tb\n", "f.yaml:4: a tab", "use spaces"},
		"U+0001":                 {"domain: a\x01b\n", "f.yaml:1: control character U+0001", "remove it"},
		"NUL":                    {good + "# a\x00b\n", "f.yaml:4: control character U+0000", "remove it"},
		"NUL at the end":         {good + "\x00", "f.yaml:4: control character U+0000", "remove it"},
		"DEL":                    {good + "# \x7f\n", "f.yaml:4: control character U+007F", "remove it"},
		"next line":              {good + "# \u0085\n", "f.yaml:4: control character U+0085", "remove it"},
		"NBSP":                   {"domain:\u00a0a\n", "f.yaml:1: invisible character U+00A0", "a plain space"},
		"NBSP in a name":         {good + "x\u00a0y: 1\n", "f.yaml:4: invisible character U+00A0", "a plain space"},
		"zero width space":       {good + "\u200b", "f.yaml:4: invisible character U+200B", "remove it"},
		"right to left override": {good + "# \u202e\n", "f.yaml:4: invisible character U+202E", "remove it"},
		"line separator":         {good + "# \u2028\n", "f.yaml:4: invisible character U+2028", "remove it"},
		"BOM inside":             {good + "\ufeff", "f.yaml:4: invisible character U+FEFF", "remove it"},
		"CR alone":               {"domain: shop\rendpoints: {}\r", "f.yaml:1: control character U+000D", "remove it"},
		"not UTF-8":              {good + "# caf\xe9\n", "f.yaml:4: byte 0xe9 is not UTF-8", "save the file as UTF-8"},
		"cut UTF-8":              {good + "# caf\xc3", "f.yaml:4: byte 0xc3 is not UTF-8", "save the file as UTF-8"},
		"surrogate":              {good + "# \xed\xa0\x80\n", "f.yaml:4: byte 0xed is not UTF-8", "save the file as UTF-8"},
		"UTF-16LE":               {"\xff\xfe" + utf16Text(binary.LittleEndian, good), "f.yaml: the file is UTF-16", "save it as UTF-8"},
		"UTF-16BE":               {"\xfe\xff" + utf16Text(binary.BigEndian, good), "f.yaml: the file is UTF-16", "save it as UTF-8"},
		"UTF-16LE without BOM":   {utf16Text(binary.LittleEndian, good), "f.yaml: the file is UTF-16", "save it as UTF-8"},
		"UTF-16BE without BOM":   {utf16Text(binary.BigEndian, good), "f.yaml: the file is UTF-16", "save it as UTF-8"},
		"UTF-32LE":               {"\xff\xfe\x00\x00d\x00\x00\x00", "f.yaml: the file is UTF-32", "save it as UTF-8"},
		"UTF-32BE":               {"\x00\x00\xfe\xff\x00\x00\x00d", "f.yaml: the file is UTF-32", "save it as UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedWith(t, "f.yaml", c.text, c.begins, c.contains)
		})
	}
	// Written as an escape they reach no name either.
	for _, escape := range []string{`\x01`, `\0`, `\t`, `\n`, `\_`, `\N`, `\u200b`, `\u202e`} {
		refusedWith(t, "f.yaml", strings.Replace(good, "shop", `"sh`+escape+`op"`, 1), "f.yaml:1: domain: ", "is not allowed here")
		refusedWith(t, "f.yaml", strings.Replace(good, "a:", `"a`+escape+`":`, 1), "f.yaml:3: endpoints.", "is not an endpoint id")
		refusedWith(t, "f.yaml", endpoint(`policy_version: 1, fail_mode: fail_closed, limits: blocked, tenants: {"a`+escape+`b": {mode: shadow}}`),
			"f.yaml:3: endpoints.a.tenants.", "is not a tenant name")
	}
	// One line, one problem; every such line is reported.
	if got := refusals(t, file("f.yaml", "\t\t\t\u00a0\n\t\n")); len(got) != 2 {
		t.Errorf("problems %q, want one for each line", got)
	}
}

func utf16Text(order binary.AppendByteOrder, text string) string {
	var b []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

func TestCFG_19_OverlappingPoliciesAreRefused(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(good, "shop", "bank")
	for name, c := range map[string]struct {
		files []descriptors.File
		want  string
	}{
		"one domain in two files":      {[]descriptors.File{file("a.yaml", good), file("b.yaml", good)}, `the first is in a.yaml:3, domain "shop"`},
		"two domains in two files":     {[]descriptors.File{file("a.yaml", good), file("b.yaml", other)}, `the first is in a.yaml:3, domain "shop"`},
		"the same file under one name": {[]descriptors.File{file("b.yaml", good), file("b.yaml", good)}, `the first is in b.yaml:3, domain "shop"`},
		"default in two domains": {[]descriptors.File{
			file("a.yaml", strings.Replace(good, "a:", "default:", 1)), file("b.yaml", strings.Replace(other, "a:", "default:", 1)),
		}, `the first is in a.yaml:3, domain "shop"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := refusals(t, c.files...)
			if len(got) != 1 || !strings.HasPrefix(got[0], "b.yaml:3: endpoints.") || !strings.Contains(got[0], "stands twice") || !strings.Contains(got[0], c.want) {
				t.Errorf("problems %q, want one at b.yaml:3 that says %s", got, c.want)
			}
		})
	}
	// Beside each other in one file: the same key twice.
	refusedWith(t, "f.yaml", good+"  a: {}\n", "f.yaml:4: endpoints.a: the key stands twice", "line 3")
}

func TestCFG_20_JSONIsHeldToTheSameRules(t *testing.T) {
	t.Parallel()
	limit := func(number string) string {
		return `{"domain": "shop", "endpoints": {"a": {"policy_version": 1, "fail_mode": "fail_closed", "limits": [{"algorithm": "sliding_window", "limit": ` +
			number + `, "window": "1m"}]}}}`
	}
	parseFiles(t, file("f.json", limit("5")))
	parseFiles(t, file("f.yaml", limit("5")))

	// Whatever the file is called.
	for number, want := range map[string]string{
		"NaN": "", "1e400": "is not a plain decimal integer", `"5"`: "remove the quotes", "5.0": "is not a plain decimal integer",
		"1e3": "is not a plain decimal integer", "-5": "it must be in 1..4294967295", "null": "no value", "true": "true is not an integer",
	} {
		for _, name := range []string{"f.json", "f.yaml", "f.JSON"} {
			want := want
			if number == "NaN" {
				want = map[string]string{"f.json": "not JSON", "f.JSON": "not JSON", "f.yaml": `the text "NaN" is not an integer`}[name]
			}
			refusedWith(t, name, limit(number), name+":1: ", want)
		}
	}
	for _, name := range []string{"f.json", "f.yaml"} {
		refusedWith(t, name, "{}", name+":1: domain: missing", "")
		refusedWith(t, name, "null", name+":1: no value", "a mapping")
		refusedWith(t, name, limit("5")+limit("5"), name+":1: not ", "")
		refusedWith(t, name, strings.Replace(limit("5"), `"limit"`, `"LIMIT"`, 1), name+":1: endpoints.a.limits[0].LIMIT: unknown key", "did you mean limit?")
		refusedWith(t, name, strings.Replace(limit("5"), "shop", `sh\ud800op`, 1), name+":1: not YAML", "Unicode")
		refusedWith(t, name, strings.Replace(limit("5"), "1m", strings.Repeat("1", descriptors.MaxFileBytes), 1), name+": the file holds 1048", "split it")
	}
	refusedWith(t, "f.yaml", strings.Repeat("[", 10001)+strings.Repeat("]", 10001), "f.yaml:1: not YAML", "max depth of 64")
	refusedWith(t, "f.json", strings.Repeat("[", 65)+strings.Repeat("]", 65), "f.json:1: not YAML", "max depth of 64")
	refusedWith(t, "f.json", strings.Repeat("[", 10001)+strings.Repeat("]", 10001), "f.json:1: not JSON", "max depth")

	// What only a JSON file may not hold, since YAML gives it a meaning.
	refusedWith(t, "f.json", strings.Replace(limit("5"), `"1m"}`, `"1m",}`, 1), "f.json:1: not JSON", "mend it")
	refusedWith(t, "f.json", limit("5")+" // comment", "f.json:1: not JSON", "mend it")
	refusedWith(t, "f.json", limit("5")+" # comment", "f.json:1: not JSON", "mend it")
	refusedWith(t, "f.json", "\ufeff"+limit("5"), "f.json:1: a byte order mark in a JSON file", "RFC 8259")
	refusedWith(t, "f.json", good, "f.json:1: not JSON", "mend it, or name the file .yaml")
	refusedWith(t, "f.json", "{\n\n  \"domain\": \"shop\",\n  bad\n}", "f.json:4: not JSON", "")
	refusedWith(t, "f.json", "", "f.json", "not JSON")
}

func TestCFG_20_AHugeFileIsRefusedUnread(t *testing.T) {
	t.Parallel()
	huge := descriptors.File{Name: "f.json", Data: make([]byte, 100<<20)}
	var err error
	took := quickest(func() { _, err = descriptors.Parse([]descriptors.File{huge}, descriptors.Options{}) })
	if want := "f.json: the file holds 104857600 bytes, more than 1048576; split it: one domain may stand in several files"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if took > 10*time.Millisecond {
		t.Errorf("100 MiB were refused after %v: they were read", took)
	}
}

// quickest runs f a few times and returns the shortest: the machine may be busy with other tests.
func quickest(f func()) time.Duration {
	best := time.Duration(math.MaxInt64)
	for range 5 {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return best
}

func TestHD_04_NamesThatReachHeadersAreVisibleASCII(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`a\r\nX-Evil: 1`, `a\nb`, `a\0`, `a\x7f`, "é", `a\u00e9`, "a b", "A", ""} {
		refusedWith(t, "f.yaml", strings.Replace(good, "a:", `"`+name+`":`, 1), "f.yaml:3: endpoints.", "is not an endpoint id")
		refusedWith(t, "f.yaml", tenantLimits(`{name: "`+name+`", `+bucketLimit+"}"), "f.yaml:3: endpoints.a.limits[0].name: ", "is not allowed here")
		if name != "A" {
			refusedWith(t, "f.yaml", strings.Replace(good, "shop", `"`+name+`"`, 1), "f.yaml:1: domain: ", "is not allowed here")
		}
	}
	// A scope reaches WWW-Authenticate.
	for _, scope := range []string{`a\r\nX-Evil: 1`, `a\"b`, `a\\b`, "é", "a b", ""} {
		refusedWith(t, "f.yaml", endpoint(`policy_version: 1, fail_mode: fail_closed, limits: blocked, required_scopes: ["`+scope+`"]`),
			"f.yaml:3: endpoints.a.required_scopes[0]: ", "is not allowed here")
	}
	// A tenant is any text of a token; in a file it is what a reader can see.
	set := parse(t, endpoint(`policy_version: 1, fail_mode: fail_closed, limits: blocked, tenants: {"caf\u00e9": {mode: shadow}}`))
	if p, _ := set.Endpoint("a"); p.For("café") == p {
		t.Error("no replacement for café")
	}
	refusedWith(t, "f.yaml", endpoint(`policy_version: 1, fail_mode: fail_closed, limits: blocked, tenants: {"a\r\nX-Evil: 1": {mode: shadow}}`),
		"f.yaml:3: endpoints.a.tenants.", "is not a tenant name")
}

// natively says by what native content each noted file of the oracle is made: the same trap in the native language.
var natively = map[string]struct{ text, problem string }{
	"descriptors-empty.yaml":        {"domain: a\nendpoints: {}\n", "an empty mapping"},
	"no-descriptors.yaml":           {"domain: a\n", "endpoints: missing"},
	"dup-map-key.yaml":              {tenantLimits("{algorithm: sliding_window, limit: 10, limit: 1000, window: 1m}"), "the key stands twice"},
	"int-domain.yaml":               {strings.Replace(good, "shop", "123", 1), `quote it: "123"`},
	"metadata-int-key.yaml":         {strings.Replace(good, "a:", "1:", 1), `quote it: "1"`},
	"multi-doc.yaml":                {good + "---\n" + strings.ReplaceAll(good, "shop", "other"), "a second document"},
	"rate_limit-null.yaml":          {endpoint("policy_version: 1, fail_mode: fail_closed, limits: "), "no value"},
	"rpu_0.yaml":                    {tenantLimits("{algorithm: sliding_window, limit: 0, window: 1m}"), "limits: blocked"},
	"rpu_0x10.yaml":                 {tenantLimits("{algorithm: sliding_window, limit: 0x10, window: 1m}"), "not a plain decimal integer"},
	"rpu_1_000.yaml":                {tenantLimits("{algorithm: sliding_window, limit: 1_000, window: 1m}"), "not a plain decimal integer"},
	"rpu-missing.yaml":              {tenantLimits("{algorithm: sliding_window, window: 1m}"), "limit: missing"},
	"shadow-inside-rate_limit.yaml": {tenantLimits("{" + windowLimit + ", mode: shadow}"), "mode: unknown key"},
	"unlimited-unknown-unit.yaml":   {tenantLimits("{unlimited: true, window: unknown}"), "unlimited: unknown key"},
	"unlimited-with-rpu.yaml":       {tenantLimits("{unlimited: true, limit: 5}"), "unlimited: unknown key"},
	"value_010.yaml":                {strings.Replace(good, "a:", "010:", 1), `quote it: "010"`},
	"value_2024-01-01.yaml":         {strings.Replace(good, "a:", "2024-01-01:", 1), `quote it: "2024-01-01"`},
	"value_on.yaml":                 {strings.Replace(good, "a:", "on:", 1), `quote it: "on"`},
	"value_true.yaml":               {strings.Replace(good, "a:", "true:", 1), `quote it: "true"`},
	"value_.yaml":                   {strings.Replace(good, "a:", "~:", 1), "is not text to every reader"},
}

// What the reference accepts and silently reads otherwise than it seems to say, a native file may not hold.
func TestOracleNotedFilesAreRefusedNatively(t *testing.T) {
	t.Parallel()
	dir := shared(t, "cases/oracle")
	for _, name := range notedFiles(t, filepath.Join(dir, "expected.tsv")) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ok := natively[name]
			if !ok {
				t.Fatal("no native content for this file: add it to natively")
			}
			refusedWith(t, name, c.text, name+":", c.problem)
		})
	}
}

// notedFiles returns the files of the oracle whose row has a note.
func notedFiles(t *testing.T, table string) []string {
	t.Helper()
	f, err := os.Open(table)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.Comment, r.LazyQuotes, r.FieldsPerRecord = '\t', '#', true, 4
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, row := range rows[1:] {
		if row[3] != "" {
			names = append(names, row[0])
		}
	}
	if len(names) == 0 {
		t.Fatal("the table has no notes")
	}
	return names
}

// shared returns a path of the shared folder beside the project.
func shared(t *testing.T, path string) string {
	t.Helper()
	full := filepath.Join("..", "..", "shared", path)
	if _, err := os.Stat(full); err != nil {
		testserver.SkipUnlessCI(t, "without the shared cases: %v", err)
	}
	return full
}
