package watching_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// series are the samples of a case: by metric with its labels, a value, or values in promtool's
// notation, one for each minute.
type series map[string]string

// with returns a healthy cluster with other samples. An empty value removes the series.
func with(others series) series {
	all := maps.Clone(healthy)
	maps.Copy(all, others)
	maps.DeleteFunc(all, func(_, values string) bool { return values == "" })
	return all
}

// promtoolCase is a test group in promtool's form.
type promtoolCase struct {
	Name     string              `yaml:"name"`
	Interval string              `yaml:"interval"`
	Series   []map[string]string `yaml:"input_series"`
	Alerts   []map[string]any    `yaml:"alert_rule_test,omitempty"`
	Exprs    []map[string]any    `yaml:"promql_expr_test"`
}

// group returns the case in which exactly the alerts of want fire at a time. The texts of the alerts
// follow from their rules, with the summary as given.
func (c alertCase) group(name string, samples series, r rule, fires bool) promtoolCase {
	g := promtoolCase{Name: name, Interval: "1m"}
	for _, metric := range slices.Sorted(maps.Keys(samples)) {
		values := samples[metric]
		if !strings.ContainsAny(values, "x ") {
			values += "+0x300"
		}
		g.Series = append(g.Series, map[string]string{"series": metric, "values": values})
	}
	at := c.at
	if at == 0 {
		at = 30 * time.Minute
	}
	// All alerts that fire, so that one fault gives one alert, and a silent case is silent.
	firing := []map[string]any{}
	if fires {
		firing = append(firing, map[string]any{"labels": fmt.Sprintf(`{alertname=%q}`, r.Alert), "value": 1})
	}
	g.Exprs = []map[string]any{{"expr": `group by (alertname) (ALERTS{alertstate="firing"})`,
		"eval_time": at.String(), "exp_samples": firing}}
	if !fires {
		return g
	}
	labels := maps.Clone(r.Labels)
	maps.Copy(labels, c.labels)
	notes := maps.Clone(r.Annotations)
	notes["summary"] = c.summary
	g.Alerts = []map[string]any{{"eval_time": at.String(), "alertname": r.Alert,
		"exp_alerts": []map[string]any{{"exp_labels": labels, "exp_annotations": notes}}}}
	return g
}

// Each alert fires in its case, with the text of its case, and is silent in the other one. No other
// alert fires in either.
func TestEachAlertFiresAndIsSilentInItsCases(t *testing.T) {
	t.Parallel()
	rules := readRules(t)
	file, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
	groups := []promtoolCase{alertCase{}.group("a healthy cluster", healthy, rule{}, false)}
	used := 0
	for _, r := range rules {
		c, ok := cases[r.Alert]
		if !ok || c.fires == nil || c.silent == nil || c.summary == "" {
			t.Errorf("%s has no case in which it fires, or none in which it is silent", r.Alert)
			continue
		}
		used++
		groups = append(groups, c.group(r.Alert+" fires", with(c.fires), r, true),
			c.group(r.Alert+" is silent", with(c.silent), r, false))
	}
	if used != len(cases) {
		t.Errorf("%d cases belong to no alert", len(cases)-used)
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{file}, "evaluation_interval": "1m", "tests": groups})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "berth.test.yaml")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", name)
}

// Each rule has the fields that a receiver of alerts relies on.
func TestEachRuleIsComplete(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range readRules(t) {
		if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Berth") {
			t.Errorf("%q is there twice, or does not begin with Berth", r.Alert)
		}
		seen[r.Alert] = true
		if d, err := time.ParseDuration(r.For); err != nil || d < time.Minute {
			t.Errorf("%s: for is %q; want a minute or more", r.Alert, r.For)
		}
		if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) || len(r.Labels) != 1 {
			t.Errorf("%s: labels are %v; want a severity of critical, warning or info, and no more", r.Alert, r.Labels)
		}
		if want := "docs/operate/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q; want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		for _, name := range []string{"summary", "description"} {
			if text := r.Annotations[name]; len(strings.Fields(text)) < 4 || !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %s is %q; want a sentence", r.Alert, name, text)
			}
		}
		if strings.Contains(r.Annotations["description"], "{{") {
			t.Errorf("%s: values belong in the summary, whose text the cases prove", r.Alert)
		}
	}
}
