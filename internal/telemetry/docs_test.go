package telemetry_test

import (
	"io"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sentinel-rls/sentinel-rls/internal/telemetry"
	"github.com/sentinel-rls/sentinel-rls/rls"
)

// describing is a registry that remembers the description of everything registered on it, so that a metric without a
// sample yet is seen too.
type describing struct {
	*prometheus.Registry
	labels map[string]string // metric name → its variable labels, comma-separated
}

var descText = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

func (d describing) MustRegister(cs ...prometheus.Collector) {
	d.Registry.MustRegister(cs...)
	for _, c := range cs {
		descs := make(chan *prometheus.Desc)
		go func() {
			c.Describe(descs)
			close(descs)
		}()
		for desc := range descs {
			m := descText.FindStringSubmatch(desc.String())
			if m == nil {
				panic("a description of another form: " + desc.String())
			}
			d.labels[m[1]] = m[2]
		}
	}
}

// everything returns a registry with each metric that the program can have.
func everything() describing {
	reg := describing{prometheus.NewPedanticRegistry(), map[string]string{}}
	r := telemetry.New(telemetry.Config{Registerer: reg, Log: slog.New(slog.DiscardHandler)})
	r.WatchBreaker(func() string { return "closed" })
	r.WatchMemoryStore(func() int { return 0 })
	r.WatchLog(telemetry.NewWriter(io.Discard, 1))
	r.PoliciesLoaded(telemetry.Policies{Hash: "h", Loaded: time.Unix(1, 0), Endpoints: []string{"orders"}})
	r.Endpoint("orders").Decision(rls.Allowed, time.Millisecond)
	r.JWKS("https://id.test/jwks").Fetched(time.Second, true)
	r.WatchJWKS(noKeys{})
	telemetry.RegisterProcess(reg, telemetry.ReadBuild(""))
	return reg
}

// noKeys is an issuer whose keys were never read.
type noKeys struct{}

func (noKeys) Name() string                            { return "https://id.test/jwks" }
func (noKeys) Age(time.Time) (_ time.Duration, _ bool) { return 0, false }
func (noKeys) Count() int                              { return 0 }

// docs/metrics.md is the reference: a metric that is not there does not exist, and the other way round.
func TestDocumentationListsEveryMetric(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(sentinel_[a-z_]+)(?:\\{([^}]*)\\})?` \\| (counter|gauge|histogram) \\|")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("docs/metrics.md lists %s twice", m[1])
		}
		documented[m[1]] = m[2]
	}
	registered := everything().labels
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if !strings.HasPrefix(name, "sentinel_") {
			continue // go_* and process_* are documented by their collectors
		}
		labels, ok := documented[name]
		switch {
		case !ok:
			t.Errorf("docs/metrics.md lacks %s", name)
		case name == "sentinel_build_info": // its labels are constant, so its description names no variable ones
		case labels != registered[name]:
			t.Errorf("docs/metrics.md gives %s the labels {%s}, the program {%s}", name, labels, registered[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := registered[name]; !ok {
			t.Errorf("docs/metrics.md lists %s, which the program does not have", name)
		}
	}
}

func TestNamesPassTheLinter(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(everything())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Metric == "sentinel_evaluate_latency_microseconds" {
			continue // the contract's name; it keeps its unit
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
