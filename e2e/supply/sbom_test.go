package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"berth/e2e/commands"
)

// schemas is the module of CycloneDX that brings the schemas of its format.
const schemas = "github.com/CycloneDX/cyclonedx-go@v0.9.3"

// schema compiles the schema of CycloneDX 1.6 and the two schemas that it refers to.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", schemas)
	cmd.Dir = t.TempDir() // outside of our module, whose go.sum need not know it
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("download %s: %v\n%s", schemas, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	for url, file := range map[string]string{
		"bom-1.6.schema.json":  "bom-1.6.schema.json",
		"spdx.schema.json":     "spdx.schema.json",
		"jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		f, err := os.Open(filepath.Join(module.Dir, "schema", file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		document, err := jsonschema.UnmarshalJSON(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("http://cyclonedx.org/schema/"+url, document); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// list runs scripts/sbom.sh on a program and returns the file that it writes.
func list(t *testing.T, program string) []byte {
	t.Helper()
	folder := t.TempDir()
	if out, err := exec.Command("../../scripts/sbom.sh", folder, program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(folder, filepath.Base(program)+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// component is a module in a list.
type component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
	Hashes  []struct {
		Alg     string `json:"alg"`
		Content string `json:"content"`
	} `json:"hashes"`
}

func TestTheListOfModulesIsWholeValidAndReproducible(t *testing.T) {
	t.Parallel()
	valid, dir := schema(t), t.TempDir()
	names := []string{"berth", "berth-agent", "berth-check", "berth-cloud", "berth-deadman", "berthd"}
	if err := commands.Build(dir, commands.Shipped, names...); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(dir, name)
			b := list(t, program)
			if again := list(t, program); !bytes.Equal(b, again) {
				t.Error("a second run writes another list")
			}
			document, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			if err := valid.Validate(document); err != nil {
				t.Errorf("not valid by the schema: %v", err)
			}
			document.(map[string]any)["bomFormat"] = "other"
			if valid.Validate(document) == nil {
				t.Error("the schema accepts another format: it checks nothing")
			}
			holdsEveryModule(t, program, b)
		})
	}
}

// holdsEveryModule compares a list with the build information of its program.
func holdsEveryModule(t *testing.T, program string, list []byte) {
	t.Helper()
	var document struct {
		Metadata struct {
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}
	if err := json.Unmarshal(list, &document); err != nil {
		t.Fatal(err)
	}
	c := document.Metadata.Component
	if c.Name != "berth" || !strings.Contains(c.PURL, "#cmd/"+filepath.Base(program)) {
		t.Errorf("the list is about %s, %s", c.Name, c.PURL)
	}
	listed := map[string]component{}
	for _, c := range document.Components {
		listed[c.Name+"@"+c.Version] = c
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := listed["std@"+info.GoVersion]; !ok {
		t.Errorf("the list lacks the standard library of %s", info.GoVersion)
	}
	for _, m := range info.Deps {
		c, ok := listed[m.Path+"@"+m.Version]
		if !ok {
			t.Errorf("the list lacks %s %s", m.Path, m.Version)
		} else if len(c.Hashes) == 0 || len(c.Hashes[0].Content) != hex.EncodedLen(32) {
			t.Errorf("%s %s is listed without its hash", m.Path, m.Version)
		}
	}
	if len(document.Components) != len(info.Deps)+1 {
		t.Errorf("the list has %d components; the program has %d modules and the standard library",
			len(document.Components), len(info.Deps))
	}
}
