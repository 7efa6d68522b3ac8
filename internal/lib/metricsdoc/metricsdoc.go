// Package metricsdoc lists the metrics of a registry for the generated references of metrics. It is part of
// tests only.
package metricsdoc

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is one metric of a registry.
type Metric struct {
	Name   string
	Kind   string // counter, gauge or histogram; "" without a series
	Help   string
	Labels []string
	Series int // that exist now
}

// describedAs parses the text of a description, the only public form of its fields.
var describedAs = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?` +
	`constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// List returns the metrics of Berth in a registry, by name. It leaves out the standard metrics of Go and of the
// process. A description that it cannot parse fails the test.
func List(t testing.TB, registry *prometheus.Registry) (list []Metric) {
	t.Helper()
	descriptions := make(chan *prometheus.Desc, 1000)
	registry.Describe(descriptions)
	close(descriptions)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds, series := map[string]string{}, map[string]int{}
	for _, f := range families {
		kinds[f.GetName()], series[f.GetName()] = strings.ToLower(f.GetType().String()), len(f.GetMetric())
	}
	for desc := range descriptions {
		f := describedAs.FindStringSubmatch(desc.String())
		if f == nil {
			if strings.Contains(desc.String(), `"berth_`) {
				t.Fatalf("cannot parse %s", desc)
			}
			continue
		}
		if !strings.HasPrefix(f[1], "berth_") {
			continue
		}
		m := Metric{Name: f[1], Kind: kinds[f[1]], Series: series[f[1]]}
		if m.Help, err = strconv.Unquote(f[2]); err != nil {
			t.Fatal(err)
		}
		for _, label := range strings.Split(f[3], ",") { // name="value"
			if name, _, ok := strings.Cut(label, "="); ok {
				m.Labels = append(m.Labels, strings.TrimSpace(name))
			}
		}
		for _, label := range strings.Split(f[4], ",") {
			if label = strings.TrimSpace(label); label != "" {
				m.Labels = append(m.Labels, label)
			}
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Table returns the table of a reference. absent has the kinds of the metrics without a series at the start of
// a process; every other metric must have all its series from then on, since a rate over a series that appears
// with its first event misses that event.
func Table(t testing.TB, list []Metric, absent map[string]string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, m := range list {
		kind, isAbsent := absent[m.Name]
		if (m.Series == 0) != isAbsent {
			t.Errorf("%s has %d series at the start", m.Name, m.Series)
		}
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, cmp.Or(m.Kind, kind), strings.Join(labels, ", "),
			strings.ReplaceAll(m.Help, "|", `\|`))
	}
	return b.String()
}
