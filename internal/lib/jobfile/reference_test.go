package jobfile_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"berth/internal/lib/golden"
	"berth/spec"
)

const reference = "../../../docs/reference/job-file.md"

// docs/reference/job-file.md is generated from the types that the decoder reads
// into, so it lists every field with the default that Berth uses.
func TestTheReferenceIsTheTypes(t *testing.T) {
	t.Parallel()
	want := fileReference(t)
	golden.Check(t, reference, want)
}

func fileReference(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Fields of files\nGenerated from the types of the decoder by `make generate`. " +
		"[The job file](../guide/job-file.md) explains the fields, their\nlimits and their effects.\n\n" +
		"| type | written as |\n| --- | --- |\n" +
		"| duration | `90s`, `15m`, `4h`, `1h30m` |\n" +
		"| size | `4GiB`, `512MiB`, `2GB`, or a number of bytes |\n" +
		"| exit codes | numbers and ranges: `42,100-110` |\n")
	job := spec.Job{Checkpoint: &spec.CheckpointPolicy{}, Notify: []spec.Notify{{}}}.WithDefaults()
	table(t, &b, "Job", "A file with one job.", reflect.TypeFor[spec.Job](), job)
	pipeline := spec.Pipeline{Notify: []spec.Notify{{}}}.WithDefaults()
	table(t, &b, "Pipeline", "A file with `kind: pipeline`.", reflect.TypeFor[spec.Pipeline](), pipeline)
	schedule := spec.Schedule{Cron: "@daily"}.WithDefaults()
	schedule.Cron = ""
	table(t, &b, "Schedule", "A file with `kind: schedule`.", reflect.TypeFor[spec.Schedule](), schedule)
	return b.String()
}

// table writes a row for each field of a type. Defaults are read from a value after
// WithDefaults.
func table(t *testing.T, b *strings.Builder, title, intro string, of reflect.Type, defaults any) {
	t.Helper()
	raw, err := json.Marshal(defaults)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := json.Unmarshal(raw, &values); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(b, "\n## %s\n%s\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n", title, intro)
	rows(t, b, of, "", values)
}

func rows(t *testing.T, b *strings.Builder, of reflect.Type, path string, values any) {
	t.Helper()
	for i := range of.NumField() {
		f := of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		full := strings.TrimPrefix(path+"."+name, ".")
		meaning := f.Tag.Get("doc")
		if meaning == "" {
			t.Errorf("%s.%s (%s) has no doc tag", of.Name(), f.Name, full)
		}
		value := member(values, name)
		kind, inner := kindOf(f.Type)
		shown := ""
		switch {
		case options == "":
			shown = "required"
		case inner == nil && value != nil && value != "" && fmt.Sprint(value) != "false":
			shown = "`" + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(value), "[]")), ", ") + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", full, kind, shown, meaning)
		if inner != nil {
			rows(t, b, inner, full, value)
		}
	}
}

// member is a field of a document, or of the first entry of a list.
func member(of any, name string) any {
	if list, ok := of.([]any); ok && len(list) > 0 {
		of = list[0]
	}
	fields, _ := of.(map[string]any)
	return fields[name]
}

// kindOf names a type as users know it, and returns the type of a mapping's fields.
func kindOf(of reflect.Type) (name string, inner reflect.Type) {
	named := map[reflect.Type]string{
		reflect.TypeFor[spec.MilliCPU]():       "number",
		reflect.TypeFor[spec.MiB]():            "size",
		reflect.TypeFor[spec.MilliGPU]():       "number",
		reflect.TypeFor[spec.Duration]():       "duration",
		reflect.TypeFor[spec.Priority]():       "text or number",
		reflect.TypeFor[spec.StringList]():     "text, or list of texts",
		reflect.TypeFor[spec.ExitCodes]():      "exit codes",
		reflect.TypeFor[spec.Instant]():        "time",
		reflect.TypeFor[map[string]spec.Job](): "steps by name",
		reflect.TypeFor[spec.Pipeline]():       "pipeline",
		reflect.TypeFor[[]map[string]string](): "list of mappings of texts",
	}
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if name, ok := named[of]; ok {
		return name, nil
	}
	switch of.Kind() {
	case reflect.Bool:
		return "true or false", nil
	case reflect.Int, reflect.Int64, reflect.Float64:
		return "number", nil
	case reflect.Map:
		return "mapping of texts", nil
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Struct {
			return "list of mappings", of.Elem()
		}
		return "list of texts", nil
	case reflect.Struct:
		if of == reflect.TypeFor[spec.Job]() {
			return "job", nil
		}
		return "mapping", of
	}
	return "text", nil
}
