package install_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"berth/internal/lib/buildinfo"
)

const chart = "../../deploy/chart/berthd"

// chartObject is the part of an object of the chart that the tests below look at.
type chartObject struct {
	Kind string `yaml:"kind"`
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Image string `yaml:"image"`
					Env   []struct {
						Name string `yaml:"name"`
					} `yaml:"env"`
				} `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

// chartObjects reads the objects that the chart renders, which make chart-test compares with the chart.
func chartObjects(t *testing.T) map[string][]chartObject {
	t.Helper()
	files, err := filepath.Glob("../../deploy/chart/test/testdata/golden/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d golden files, %v; want 6 at least", len(files), err)
	}
	found := map[string][]chartObject{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for document := range bytes.SplitSeq(b, []byte("\n---\n")) {
			var o chartObject
			if err := yaml.Unmarshal(document, &o); err != nil {
				t.Fatalf("%s: %v\n%s", f, err, document)
			}
			found[o.Kind] = append(found[o.Kind], o)
		}
	}
	return found
}

// berthd would ignore an unknown variable, and start without the setting. Package cmd/berthd reads the settings.
func TestTheChartSetsVariablesOfBerthd(t *testing.T) {
	t.Parallel()
	reference, err := os.ReadFile("../../docs/reference/berthd.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, o := range chartObjects(t)["Deployment"] {
		for _, e := range o.Spec.Template.Spec.Containers[0].Env {
			seen[e.Name] = true
			if strings.HasPrefix(e.Name, "BERTH_") && !bytes.Contains(reference, []byte("| `"+e.Name+"` |")) {
				t.Errorf("the chart sets %s, which berthd does not read", e.Name)
			}
		}
	}
	if !seen["BERTH_DATABASE_URL"] || !seen["TEMPORAL_TLS"] {
		t.Errorf("the golden files set the variables %v", seen)
	}
}

func TestTheChartNamesTheImageOfTheRelease(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct {
		Version    string `yaml:"version"`
		AppVersion string `yaml:"appVersion"`
	}
	if err := yaml.Unmarshal(b, &about); err != nil {
		t.Fatal(err)
	}
	if about.Version != buildinfo.Number || about.AppVersion != buildinfo.Number {
		t.Errorf("the chart has the versions %+v; the programs have %s", about, buildinfo.Number)
	}
	release, err := os.ReadFile("../../scripts/release.sh")
	if err != nil || !bytes.Contains(release, []byte(`-tag "localhost/berth/$name:$version"`)) {
		t.Errorf("the release does not name its images as the chart does: %v", err)
	}
	var images []string
	for _, o := range chartObjects(t)["Deployment"] {
		images = append(images, o.Spec.Template.Spec.Containers[0].Image)
	}
	if want := "localhost/berth/berthd:" + buildinfo.Number; !slices.Contains(images, want) {
		t.Errorf("the chart runs %q, never %s", images, want)
	}
}
