package watching_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"berth/internal/lib/golden"
)

// dashboard is a dashboard of Grafana: rows of panels, each with a title.
type dashboard struct {
	uid, title, about string
	rows              []row
}

type row struct {
	title  string
	panels []panel
}

// panel is a graph over time, or with stat set a single number.
type panel struct {
	title, about, unit string
	stat               bool
	lines              []line
}

// line is an expression, with the legend of its series in Grafana's notation.
type line struct{ expr, legend string }

// Sizes of panels, of the 24 columns of a dashboard.
const (
	graphWidth, graphHeight = 8, 8
	statWidth, statHeight   = 4, 4
)

// object is a JSON object.
type object = map[string]any

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

// render returns the JSON of a dashboard, without an id, so that Grafana creates it or updates the one
// with the uid.
func (d dashboard) render(t *testing.T) string {
	t.Helper()
	var panels []object
	id, y := 0, 0
	next := func() int { id++; return id }
	for _, r := range d.rows {
		panels = append(panels, object{"id": next(), "type": "row", "title": r.title, "collapsed": false, "panels": []any{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x, height := 0, 0
		for _, p := range r.panels {
			w, h := graphWidth, graphHeight
			if p.stat {
				w, h = statWidth, statHeight
			}
			if x+w > 24 {
				x, y = 0, y+height
			}
			panels = append(panels, p.render(next(), object{"x": x, "y": y, "w": w, "h": h}))
			x, height = x+w, h
		}
		y += height
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(object{
		"uid": d.uid, "title": d.title, "description": d.about, "tags": []string{"berth"}, "schemaVersion": 38,
		"editable": true, "refresh": "30s", "time": object{"from": "now-6h", "to": "now"}, "timezone": "",
		"templating": object{"list": []object{{"name": "datasource", "label": "Prometheus", "type": "datasource",
			"query": "prometheus", "hide": 0}}},
		"links": []object{{"title": "Berth", "type": "dashboards", "tags": []string{"berth"}, "asDropdown": true,
			"includeVars": true, "keepTime": true}},
		"panels": panels,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (p panel) render(id int, at object) object {
	targets := []object{}
	for i, l := range p.lines {
		targets = append(targets, object{"refId": string(rune('A' + i)), "datasource": datasource, "expr": l.expr,
			"legendFormat": l.legend, "range": true})
	}
	out := object{"id": id, "title": p.title, "description": p.about, "datasource": datasource, "gridPos": at,
		"targets": targets, "type": "timeseries",
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": object{"fillOpacity": 10, "showPoints": "never"}},
			"overrides": []any{}},
		"options": object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}},
	}
	if p.stat {
		out["type"] = "stat"
		out["fieldConfig"] = object{"defaults": object{"unit": p.unit}, "overrides": []any{}}
		out["options"] = object{"colorMode": "none", "graphMode": "area", "reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	}
	return out
}

// The files of deploy/grafana are the tables of boards_test.go.
func TestGoldenDashboardsAreTheirTables(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"README.md": true}
	for _, d := range boards {
		name := d.uid + ".json"
		seen[name] = true
		golden.Check(t, filepath.Join(dashboards, name), d.render(t))
	}
	files, err := os.ReadDir(dashboards)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("%s/%s belongs to no table", dashboards, f.Name())
		}
	}
}

// The expressions of the files parse, and name metrics and labels that exist. The files are read, and
// not the tables, so that the test holds for files that were edited in Grafana.
func TestExpressionsOfDashboardsParse(t *testing.T) {
	t.Parallel()
	metrics := exported(t)
	type recording struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []recording
	// promtool does not know Grafana's variable, which is a duration.
	interval := regexp.MustCompile(`\$__rate_interval\b`)
	for _, name := range glob(t, filepath.Join(dashboards, "*.json")) {
		var board struct {
			Panels []struct {
				Title   string
				Type    string
				Targets []struct{ Expr, LegendFormat string }
			}
		}
		if err := json.Unmarshal([]byte(textOf(t, name)), &board); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, p := range board.Panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s: panel %q has no expression", name, p.Title)
			}
			for _, target := range p.Targets {
				expr := interval.ReplaceAllString(target.Expr, "5m")
				for _, fault := range faults(expr, metrics) {
					t.Errorf("%s: panel %q: %s", name, p.Title, fault)
				}
				if strings.Contains(expr, "$") {
					t.Errorf("%s: panel %q has a variable other than $__rate_interval: %s", name, p.Title, target.Expr)
				}
				rules = append(rules, recording{fmt.Sprintf("panel:%d", len(rules)), expr})
			}
		}
	}
	if len(rules) < 60 {
		t.Fatalf("found %d expressions; want at least 60", len(rules))
	}
	text, err := yaml.Marshal(object{"groups": []object{{"name": "panels", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "panels.rules.yaml")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", name)
}

// Panels have a title, an explanation and a unit, and rates follow the interval of the scrapes.
func TestPanelsExplainThemselves(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for _, d := range boards {
		if uids[d.uid] || !strings.HasPrefix(d.uid, "berth-") || d.title == "" || d.about == "" {
			t.Errorf("dashboard %q has no uid of its own, no title or no explanation", d.uid)
		}
		uids[d.uid] = true
		for _, r := range d.rows {
			for _, p := range r.panels {
				if p.title == "" || p.unit == "" || !strings.HasSuffix(p.about, ".") || len(p.lines) == 0 {
					t.Errorf("%s: panel %q has no title, unit, expression or explanation", d.uid, p.title)
				}
				for _, l := range p.lines {
					if strings.Contains(l.expr, "rate(") && !strings.Contains(l.expr, "$__rate_interval") {
						t.Errorf("%s: panel %q has a rate over a fixed time", d.uid, p.title)
					}
					if l.legend == "" && !p.stat {
						t.Errorf("%s: panel %q has no legend", d.uid, p.title)
					}
				}
			}
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s (%v)", pattern, err)
	}
	return names
}
