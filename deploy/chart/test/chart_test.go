package charttest

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const folder = "../berthd"

var update = flag.Bool("update", false, "write the golden files")

// values reads the files of testdata/values by their names without extension.
func values(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files of values, %v; want 6 at least", len(files), err)
	}
	found := map[string]map[string]any{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := yaml.UnmarshalStrict(b, &v); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		found[strings.TrimSuffix(filepath.Base(f), ".yaml")] = v
	}
	return found
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render does as helm template does: it returns the objects of the chart with some values, in the order of their files.
func render(c *chart.Chart, v map[string]any) (string, error) {
	o := common.ReleaseOptions{Name: "berthd", Namespace: "berth", IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(c, v, o, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			text.WriteString("---\n# Source: " + name + "\n" + strings.TrimSpace(files[name]) + "\n")
		}
	}
	return text.String(), nil
}

func TestTheChartPassesLintStrict(t *testing.T) {
	for name, v := range values(t) {
		for _, m := range lint.RunAll(folder, v, "berth").Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

func TestTheChartRendersItsGoldenFiles(t *testing.T) {
	c := load(t)
	for name, v := range values(t) {
		got, err := render(c, v)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		path := filepath.Join("testdata", "golden", name+".yaml")
		got = withoutRules(got)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil || string(want) != got {
			t.Errorf("%s differs from the chart; go test -update writes it: read the difference (%v)\n%s", path, err, got)
		}
	}
	goldens, err := filepath.Glob("testdata/golden/*.yaml")
	if err != nil || len(goldens) != len(values(t)) {
		t.Errorf("there are %d golden files for %d files of values, %v", len(goldens), len(values(t)), err)
	}
}

// withoutRules leaves the alerting rules out, which another test compares with deploy/prometheus: a new alert changes no
// golden file.
func withoutRules(text string) string {
	documents := strings.Split(text, "\n---\n")
	for i, d := range documents {
		if before, _, found := strings.Cut(d, "\nspec:\n"); found && strings.Contains(before, "\nkind: PrometheusRule\n") {
			documents[i] = before + "\nspec: {} # deploy/prometheus/berth.rules.yaml"
		}
	}
	return strings.Join(documents, "\n---\n")
}

// A faulty installation is refused before anything is created, with words that name the value.
func TestTheChartRefusesFaultyValues(t *testing.T) {
	c := load(t)
	type v = map[string]any
	for says, change := range map[string]func(v){
		"tls.existingSecret is required":            func(v v) { delete(v, "tls") },
		"temporal.tls.enabled is false":             func(x v) { set(x, "temporal", "tls", v{"enabled": false}) },
		"serviceMonitor.existingSecret is required": func(v v) { set(v, "serviceMonitor", "enabled", true) },
		"'/database/existingSecret'":                func(v v) { delete(v, "database") },
		"'/secretKeys/existingSecret'":              func(v v) { delete(v, "secretKeys") },
		"'/temporal/address'":                       func(v v) { set(v, "temporal", "address", "temporal.internal") },
		"'/objectStore/url'":                        func(v v) { set(v, "objectStore", "url", "file:///blobs") },
		"'replica'":                                 func(v v) { v["replica"] = 2 },
		"'password'":                                func(v v) { set(v, "database", "password", "x") },
		"'database-url'":                            func(v v) { set(v, "settings", "database-url", "postgres://x") },
		"'/replicas'":                               func(v v) { v["replicas"] = 0 },
	} {
		v := values(t)["minimal"]
		change(v)
		if text, err := render(c, v); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want a refusal with %q; got %v\n%s", says, err, text)
		}
	}
}

func set(v map[string]any, part, key string, to any) {
	if v[part] == nil {
		v[part] = map[string]any{}
	}
	v[part].(map[string]any)[key] = to
}
