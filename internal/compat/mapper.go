package compat

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Mapper turns names of statistics into names and labels of metrics, by a file in the language of Prometheus' statsd
// exporter (PROMETHEUS_MAPPER_YAML): match, match_type, match_metric_type, name, labels, action and help. What that
// language says about timers and expiry is read and has no effect. Immutable.
type Mapper struct{ rules []mapping }

type mapping struct {
	pattern *regexp.Regexp
	regex   bool
	kind    string // of the statistic; empty: any
	drop    bool
	name    string
	labels  []label
}

type mappingFile struct {
	Defaults map[string]any `yaml:"defaults"`
	Mappings []struct {
		Match     string            `yaml:"match"`
		MatchType string            `yaml:"match_type"`
		Kind      string            `yaml:"match_metric_type"`
		Name      string            `yaml:"name"`
		Labels    map[string]string `yaml:"labels"`
		Action    string            `yaml:"action"`
		Help      string            `yaml:"help"`

		HonorLabels      bool           `yaml:"honor_labels"`
		TimerType        string         `yaml:"timer_type"`
		ObserverType     string         `yaml:"observer_type"`
		TTL              string         `yaml:"ttl"`
		Scale            float64        `yaml:"scale"`
		Buckets          []float64      `yaml:"buckets"`
		Quantiles        []any          `yaml:"quantiles"`
		HistogramOptions map[string]any `yaml:"histogram_options"`
		SummaryOptions   map[string]any `yaml:"summary_options"`
	} `yaml:"mappings"`
}

// ReadMapper reads a mapping file. The error joins one line for each mapping that cannot be used.
func ReadMapper(file string) (*Mapper, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var f mappingFile
	if err := yaml.Load(data, &f, yaml.WithKnownFields()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	kind, _ := f.Defaults["match_type"].(string)
	var globs, regexes []mapping
	var problems []error
	for i, m := range f.Mappings {
		matchType := m.MatchType
		if matchType == "" {
			matchType = kind
		}
		rule, err := newMapping(m.Match, matchType, m.Name, m.Action, m.Labels)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: mappings[%d]: %w", file, i, err))
			continue
		}
		if rule.kind = m.Kind; rule.regex {
			regexes = append(regexes, rule)
		} else {
			globs = append(globs, rule)
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return &Mapper{slices.Concat(globs, regexes)}, nil // that exporter tries the regular expressions last
}

func newMapping(match, matchType, name, action string, labels map[string]string) (m mapping, err error) {
	expression := match
	switch matchType {
	case "", "glob":
		expression = "^" + strings.ReplaceAll(regexp.QuoteMeta(match), `\*`, `([^.]*)`) + "$"
	case "regex":
		m.regex = true
	default:
		return m, fmt.Errorf("match_type %q is neither glob nor regex", matchType)
	}
	switch action {
	case "", "map":
		if name == "" {
			return m, errors.New("name is missing")
		}
	case "drop":
		m.drop = true
	default:
		return m, fmt.Errorf("action %q is neither map nor drop", action)
	}
	if match == "" {
		return m, errors.New("match is missing")
	}
	if m.pattern, err = regexp.Compile(expression); err != nil {
		return m, fmt.Errorf("match: %w", err)
	}
	m.name = braced(name)
	for key, value := range labels {
		m.labels = append(m.labels, label{metricName(key), braced(value)})
	}
	slices.SortFunc(m.labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return m, nil
}

var group = regexp.MustCompile(`\$(\d+)`)

// braced makes $1 ${1}: text may follow it.
func braced(template string) string { return group.ReplaceAllString(template, "$${$1}") }

// Map returns the metric's name and labels for a statistic of a kind (counter or gauge). False: it is dropped. A name that
// nothing matches becomes a metric of the same name.
func (m *Mapper) Map(name, kind string) (metric string, labels []label, ok bool) {
	for i := range m.rules {
		r := &m.rules[i]
		if r.kind != "" && r.kind != kind {
			continue
		}
		at := r.pattern.FindStringSubmatchIndex(name)
		if at == nil {
			continue
		}
		if r.drop {
			return "", nil, false
		}
		for _, l := range r.labels {
			labels = append(labels, label{l.name, string(r.pattern.ExpandString(nil, l.value, name, at))})
		}
		return metricName(string(r.pattern.ExpandString(nil, r.name, name, at))), labels, true
	}
	return metricName(name), nil, true
}
