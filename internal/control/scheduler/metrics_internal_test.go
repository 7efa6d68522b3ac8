package scheduler

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Every kind of repair in the source is shown as 0 from the start.
func TestRepairKindsAreComplete(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	did := regexp.MustCompile(`\.did\("([a-z_]+)"`)
	nudge := regexp.MustCompile(`\.nudge\(ctx, "([a-z_]+)"`)
	var want []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range did.FindAllSubmatch(b, -1) {
			want = append(want, string(m[1]))
		}
		for _, m := range nudge.FindAllSubmatch(b, -1) {
			want = append(want, string(m[1])+"_settled", string(m[1])+"_poked")
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(want), slices.Sorted(slices.Values(repairKinds))); diff != "" {
		t.Errorf("repairKinds (-source +list):\n%s", diff)
	}
}

// After the end of a lead every gauge is 0: its value would be an alert about the past.
func TestTheEndOfALeadLeavesNoGauge(t *testing.T) {
	t.Parallel()
	m, r := NewMetrics(), prometheus.NewRegistry()
	r.MustRegister(m)
	gauges := 0
	for _, c := range m.all() {
		if g, ok := c.(prometheus.Gauge); ok {
			g.Set(1)
			gauges++
		}
	}
	m.endLead()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if series.GetGauge().GetValue() != 0 {
				t.Errorf("%s is %g", f.GetName(), series.GetGauge().GetValue())
			}
		}
	}
	if gauges < 9 {
		t.Errorf("found %d gauges; want at least 9: the search is broken", gauges)
	}
}
