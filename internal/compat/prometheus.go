package compat

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector shows the statistics to Prometheus under the names that envoyproxy/ratelimit gives them. mapper: nil for that
// service's own mapping.
func (s *Stats) Collector(mapper *Mapper) prometheus.Collector { return &collector{s, mapper} }

// collector describes nothing beforehand: rules come and go, and each has the labels of its own depth.
type collector struct {
	stats  *Stats
	mapper *Mapper
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	merged := make(map[string]*shown)
	var order []string
	for _, m := range c.stats.samples() {
		name, labels := m.metric, m.labels
		if c.mapper != nil {
			kind := "counter"
			if m.gauge {
				kind = "gauge"
			}
			var ok bool
			if name, labels, ok = c.mapper.Map(m.statsd(), kind); !ok {
				continue
			}
		}
		if m.name[0] == "ratelimit" {
			labels = c.tagged(labels)
		}
		key := seriesKey(name, labels)
		if known := merged[key]; known != nil { // two rules that the mapping gives one name
			known.value += m.value
			continue
		}
		merged[key] = &shown{name, labels, m.gauge, m.value}
		order = append(order, key)
	}
	kinds := make(map[string]bool) // one name has one kind
	for _, key := range order {
		m := merged[key]
		if gauge, seen := kinds[m.name]; seen && gauge != m.gauge {
			continue
		}
		kinds[m.name] = m.gauge
		out <- m.metric()
	}
	c.stats.latency.Collect(out)
}

// shown is one series.
type shown struct {
	name   string
	labels []label
	gauge  bool
	value  int64
}

func (m *shown) metric() prometheus.Metric {
	names, values := make([]string, len(m.labels)), make([]string, len(m.labels))
	for i, l := range m.labels {
		names[i], values[i] = l.name, strings.ToValidUTF8(l.value, "\uFFFD")
	}
	kind := prometheus.CounterValue
	if m.gauge {
		kind = prometheus.GaugeValue
	}
	const help = "A statistic of envoyproxy/ratelimit."
	metric, err := prometheus.NewConstMetric(prometheus.NewDesc(m.name, help, names, nil), kind, float64(m.value), values...)
	if err != nil {
		return prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	return metric
}

// tagged adds the extra tags, where a label does not already have the name.
func (c *collector) tagged(labels []label) []label {
	for _, key := range slices.Sorted(maps.Keys(c.stats.tags)) {
		name := metricName(key)
		if !slices.ContainsFunc(labels, func(l label) bool { return l.name == name }) {
			labels = append(slices.Clone(labels), label{name, c.stats.tags[key]})
		}
	}
	return labels
}

func seriesKey(name string, labels []label) string {
	sorted := slices.SortedFunc(slices.Values(labels), func(a, b label) int { return strings.Compare(a.name, b.name) })
	var key strings.Builder
	key.WriteString(name)
	for _, l := range sorted {
		key.WriteString("\x00" + l.name + "\x00" + strings.ToValidUTF8(l.value, "\uFFFD"))
	}
	return key.String()
}

// metricName makes a text one that Prometheus takes for a name.
func metricName(text string) string {
	name := strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, text)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	return name
}
