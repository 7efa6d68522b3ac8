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
