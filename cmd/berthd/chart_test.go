package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestTheSettingsOfTheChartAreValid reads the files of settings that the Helm chart renders, as berthd does in a pod.
func TestTheSettingsOfTheChartAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/chart/test/testdata/golden/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d golden files, %v; want 6 at least", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		settings := ""
		for document := range bytes.SplitSeq(b, []byte("\n---\n")) {
			var o struct {
				Kind string
				Data map[string]string
			}
			if err := yaml.Unmarshal(document, &o); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if o.Kind == "ConfigMap" {
				settings = o.Data["berthd.yaml"]
			}
		}
		if !strings.Contains(settings, "listen: 0.0.0.0:7070") {
			t.Fatalf("%s has the settings %q", file, settings)
		}
		s, f := newFlags()
		if err := f.Parse([]string{"--settings-file", settingsFile(t, settings)}); err != nil {
			t.Fatal(err)
		}
		variables := map[string]string{"BERTH_DATABASE_URL": "postgres://berth@db.internal/berth?sslmode=verify-full"}
		if err := load(f, func(name string) (string, bool) { v, ok := variables[name]; return v, ok }); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if err := s.parse(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestTheChartHasTheAlertingRules compares the chart's copy of the rules, which Helm reads from the folder of the chart.
func TestTheChartHasTheAlertingRules(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../deploy/prometheus/berth.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if chart, err := os.ReadFile("../../deploy/chart/berthd/files/berth.rules.yaml"); err != nil || !bytes.Equal(chart, rules) {
		t.Errorf("the alerting rules of the chart differ from deploy/prometheus/berth.rules.yaml, copy them again: %v", err)
	}
}
