package cloudinit_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"berth/internal/control/cloud/cloudinit"
)

// schemaFile is the schema of cloud-init itself; testdata/README.md has its origin and its license.
const schemaFile = "testdata/schema-cloud-config-v1.json"

// cloudConfig is the schema of cloud-init, and the keys that it has at the top of a document with the schema of each.
type cloudConfig struct {
	schema *jsonschema.Schema
	keys   map[string]any
}

func readSchema(t *testing.T) cloudConfig {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := cloudConfig{keys: map[string]any{}}
	compiler := jsonschema.NewCompiler()
	if err = compiler.AddResource("cloud-config.json", document); err == nil {
		c.schema, err = compiler.Compile("cloud-config.json")
	}
	if err != nil {
		t.Fatal(err)
	}
	// The schema refuses no unknown key at the top: it is the sum of its modules, and each module allows the keys of others.
	var parts struct {
		Modules map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
		AllOf []struct {
			Ref string `json:"$ref"`
		} `json:"allOf"`
	}
	if err := json.Unmarshal(text, &parts); err != nil {
		t.Fatal(err)
	}
	for _, part := range parts.AllOf {
		maps.Copy(c.keys, parts.Modules[strings.TrimPrefix(part.Ref, "#/$defs/")].Properties)
	}
	return c
}

// faults returns the faults of a document, read as cloud-init reads it.
func (c cloudConfig) faults(t *testing.T, text []byte) (faults []string) {
	t.Helper()
	body, marked := bytes.CutPrefix(text, []byte("#cloud-config\n"))
	if !marked {
		return []string{"the first line is not #cloud-config"}
	}
	asJSON, err := yaml.YAMLToJSON(body)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.schema.Validate(document); err != nil {
		faults = append(faults, err.Error())
	}
	top, _ := document.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(top)) {
		switch schema, known := c.keys[key]; {
		case !known:
			faults = append(faults, "unknown key "+key)
		case strings.Contains(mustJSON(t, schema), `"deprecated":true`):
			faults = append(faults, "deprecated key "+key)
		}
	}
	return faults
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The schema is cloud-init's own, for both sources of the agent and with and without an authority of certificates.
func TestUserDataFollowsTheSchemaOfCloudInit(t *testing.T) {
	t.Parallel()
	c := readSchema(t)
	public := machine()
	public.Bootstrap.CA = ""
	for name, m := range map[string]cloudinit.Machine{
		"agent of the pool": machine(), "no authority": public,
		"agent of the cluster": served(map[string]string{"linux-amd64": strings.Repeat("a", 64)}),
	} {
		text, err := cloudinit.Render(m)
		if err != nil {
			t.Fatal(err)
		}
		if faults := c.faults(t, text); len(faults) > 0 {
			t.Errorf("%s: %s\n%s", name, strings.Join(faults, "\n"), text)
		}
	}
}

// The check of the schema finds the faults that an edit of the document may bring.
func TestTheSchemaOfCloudInitRefusesFaults(t *testing.T) {
	t.Parallel()
	c := readSchema(t)
	for text, want := range map[string]string{
		`{"runcmd": [["a"]]}`:                                                              "the first line is not #cloud-config",
		"#cloud-config\n" + `{"write_file": []}`:                                           "unknown key write_file",
		"#cloud-config\n" + `{"ca-certs": {"trusted": ["x"]}}`:                             "deprecated key ca-certs",
		"#cloud-config\n" + `{"write_files": []}`:                                          "minItems",
		"#cloud-config\n" + `{"write_files": [{"content": "x"}]}`:                          "missing property 'path'",
		"#cloud-config\n" + `{"write_files": [{"path": "/x", "mode": "0600"}]}`:            "additional properties 'mode'",
		"#cloud-config\n" + `{"write_files": [{"path": "/x", "permissions": 600}]}`:        "got number, want string",
		"#cloud-config\n" + `{"write_files": [{"path": "/x", "encoding": "base32"}]}`:      "value must be one of",
		"#cloud-config\n" + `{"runcmd": [{"command": "x"}]}`:                               "got object, want array",
		"#cloud-config\n" + `{"ca_certs": {"trusted": "x"}}`:                               "got string, want array",
		"#cloud-config\n" + `{"ca_certs": {"trust": ["x"]}}`:                               "additional properties 'trust'",
		"#cloud-config\n" + `{"runcmd": [["/usr/local/sbin/berth-install"]], "x-y": true}`: "unknown key x-y",
	} {
		if faults := strings.Join(c.faults(t, []byte(text)), "\n"); !strings.Contains(faults, want) {
			t.Errorf("%s: the faults are %q, want %q", text, faults, want)
		}
	}
}
