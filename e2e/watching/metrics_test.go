package watching_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// scraped are the labels that Prometheus itself gives to every series.
var scraped = []string{"instance", "job"}

// process are metrics of Go's and of Prometheus' own collectors, without labels.
var process = []string{"go_goroutines", "process_cpu_seconds_total", "process_max_fds", "process_open_fds",
	"process_resident_memory_bytes"}

var (
	quoted   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	selector = regexp.MustCompile(`\b((?:berth|go|process)_[a-z_]+)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
)

// faults returns the metrics and labels in an expression that Berth does not export.
func faults(expr string, metrics map[string][]string) (list []string) {
	bare := quoted.ReplaceAllString(expr, `""`)
	known := slices.Clone(scraped)
	found := selector.FindAllStringSubmatch(bare, -1)
	if len(found) == 0 {
		list = append(list, "the expression names no metric")
	}
	for _, m := range found {
		labels, ok := metrics[m[1]]
		if !ok && !slices.Contains(process, m[1]) {
			list = append(list, fmt.Sprintf("there is no metric %s", m[1]))
		}
		known = append(known, labels...)
		for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, label[1]) && !slices.Contains(scraped, label[1]) {
				list = append(list, fmt.Sprintf("%s has no label %s", m[1], label[1]))
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(bare, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(known, label) {
				list = append(list, fmt.Sprintf("no metric of the expression has the label %s", label))
			}
		}
	}
	return list
}

func TestRulesNameMetricsAndLabelsThatExist(t *testing.T) {
	t.Parallel()
	metrics := exported(t)
	for _, r := range readRules(t) {
		for _, fault := range faults(r.Expr, metrics) {
			t.Errorf("%s: %s", r.Alert, fault)
		}
		for _, text := range r.Annotations {
			for _, m := range regexp.MustCompile(`\$labels\.([a-z_]+)`).FindAllStringSubmatch(text, -1) {
				if !strings.Contains(r.Expr, m[1]) && !slices.Contains(scraped, m[1]) {
					t.Errorf("%s: the text names the label %s, and the expression does not", r.Alert, m[1])
				}
			}
		}
	}
}

// The search itself finds faults.
func TestTheSearchFindsWrongExpressions(t *testing.T) {
	t.Parallel()
	metrics := map[string][]string{"berth_jobs": {"status"}, "berth_wait_bucket": {"needs", "le"}}
	for expr, want := range map[string]string{
		`max(berth_jobs{status="running"})`:                                  "",
		`sum by (status, instance) (berth_jobs{status=~"a{1}",job="b"})`:     "",
		`histogram_quantile(0.9, sum by (le) (rate(berth_wait_bucket[5m])))`: "",
		`berth_job`:                         "there is no metric berth_job",
		`berth_jobs{state="running"}`:       "berth_jobs has no label state",
		`sum by (tenant) (berth_jobs)`:      "no metric of the expression has the label tenant",
		`berth_jobs and on (le) berth_jobs`: "no metric of the expression has the label le",
		`berth_wait`:                        "there is no metric berth_wait",
		`vector(1)`:                         "the expression names no metric",
		`berth_jobs{status="berth_x"} == 1`: "",
	} {
		if got := strings.Join(faults(expr, metrics), "; "); got != want {
			t.Errorf("%s: %q; want %q", expr, got, want)
		}
	}
}
