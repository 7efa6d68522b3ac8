package watching_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

const (
	rulesFile  = "../../deploy/prometheus/berth.rules.yaml"
	dashboards = "../../deploy/grafana"
	runbooks   = "../../docs/operate/alerts.md"
	reference  = "../../docs/reference/metrics.md"
)

// rule is an alerting rule.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// ruleFile is a file of rules.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

// readRules returns all rules in their order.
func readRules(t *testing.T) (list []rule) {
	t.Helper()
	var file ruleFile
	if err := yaml.UnmarshalWithOptions([]byte(textOf(t, rulesFile)), &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	if len(list) < 20 {
		t.Fatalf("found %d rules; want at least 20", len(list))
	}
	return list
}

func textOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// promtool runs promtool. A machine without it fails the test: the rules would be unproven there.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Fatal("promtool is missing: run scripts/setup.sh test, or apt-get install prometheus")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// exported reads the labels of each metric from the generated reference. A histogram has the series
// that Prometheus gives it.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `(berth_[a-z_]+)` \\| ([a-z]+) \\| (.*?) \\|")
	metrics := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(textOf(t, reference), -1) {
		var labels []string
		for _, label := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(m[3], -1) {
			labels = append(labels, label[1])
		}
		if m[2] != "histogram" {
			metrics[m[1]] = labels
			continue
		}
		metrics[m[1]+"_count"], metrics[m[1]+"_sum"] = labels, labels
		metrics[m[1]+"_bucket"] = append(labels[:len(labels):len(labels)], "le")
	}
	if len(metrics) < 50 {
		t.Fatalf("found %d metrics in the reference; want at least 50", len(metrics))
	}
	return metrics
}
