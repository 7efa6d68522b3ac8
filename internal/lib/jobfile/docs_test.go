package jobfile_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"berth/internal/lib/jobfile"
	"berth/spec"
)

const document = "../../../docs/guide/job-file.md"

func TestTheDocumentNamesEveryField(t *testing.T) {
	t.Parallel()
	text := string(read(t, document))
	for _, path := range fields(reflect.TypeFor[spec.Job](), "") {
		name := path[strings.LastIndexByte(path, '.')+1:]
		if !strings.Contains(text, "`"+path+"`") && !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, name+":") {
			t.Errorf("docs/guide/job-file.md does not name %s", path)
		}
	}
}

func TestTheDocumentsExamplesAreTrue(t *testing.T) {
	t.Parallel()
	text := string(read(t, document))
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(text)
	if example == nil {
		t.Fatal("docs/guide/job-file.md has no example")
	}
	if _, err := jobfile.Parse("docs/guide/job-file.md", []byte(example[1])); err != nil {
		t.Error(err)
	}
	_, err := jobfile.Parse("job.yaml", []byte("name: a\nimage: b\ncommand: [python, train.py]\nresources: {cpu: 2}\n"))
	if err == nil || !strings.Contains(text, err.Error()) {
		t.Errorf("docs/guide/job-file.md shows another error than\n%v", err)
	}
}

// The document lists the fields that this version refuses.
func TestTheDocumentMarksWhatIsNotSupported(t *testing.T) {
	t.Parallel()
	text := string(read(t, document))
	_, err := jobfile.Parse("unbuilt.yaml", read(t, "testdata/faults/unbuilt.yaml"))
	if err == nil {
		t.Fatal("unbuilt.yaml was read without an error")
	}
	_, section, ok := strings.Cut(text, "## Not supported by this version\n")
	if !ok {
		t.Fatal("docs/guide/job-file.md has no section on what is not supported")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, line := range strings.Split(err.Error(), "\n") {
		before, _, refused := strings.Cut(line, " is not supported by this version")
		field := before[strings.LastIndexByte(before, ' ')+1:]
		if refused && !strings.Contains(section, "`"+regexp.MustCompile(`\[\d+\]`).ReplaceAllString(field, "")) {
			t.Errorf("docs/guide/job-file.md does not say that %s is not supported", field)
		}
	}
}

// fields lists the paths of all fields of a spec.
func fields(t reflect.Type, path string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var out []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		full := strings.TrimPrefix(path+"."+name, ".")
		out = append(out, full)
		out = append(out, fields(t.Field(i).Type, full)...)
	}
	return out
}
