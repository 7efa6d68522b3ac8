package jobfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"berth"
	"berth/spec"
)

// MaxBytes is the largest job file read, in bytes. The spec itself may have at most
// spec.MaxSpecBytes; comments and indentation are free up to MaxBytes.
const MaxBytes = 2 * spec.MaxSpecBytes

// specType is the type that suggestions of field names search.
type specType = spec.Job

// File is a job file that was read without faults.
type File struct {
	Name   string // as given to Parse
	Spec   spec.Job
	source string
	places map[string]place
}

// Parse reads the text of a job file. The error is an *Error with every fault that could
// be found. The spec is as written: defaults are not filled in, but the spec is valid
// with them.
func Parse(name string, src []byte) (*File, error) {
	source, fault := readable(src)
	if fault != nil {
		return nil, &Error{Name: name, Faults: []Fault{*fault}}
	}
	root, err := parse(name, source)
	if err != nil {
		return nil, &Error{Name: name, Source: source, Faults: []Fault{syntaxFault(err)}}
	}
	if root == nil || root.kind == null {
		return nil, &Error{Name: name,
			Faults: []Fault{{FieldError: berth.FieldError{Detail: "the file is empty; a job file has at least " +
				"name and image"}}}}
	}
	if fault, is := other(root); is {
		return nil, &Error{Name: name, Source: source, Faults: []Fault{fault}}
	}
	f := &File{Name: name, source: source}
	d := &decoder{places: map[string]place{}}
	d.value(root, reflect.ValueOf(&f.Spec).Elem(), "")
	f.places = d.places
	faults := d.faults
	if root.kind == mapping {
		faults = append(faults, f.semantic(d.faults)...)
	}
	if faults = sorted(faults); len(faults) > 0 {
		return nil, &Error{Name: name, Source: source, Faults: faults}
	}
	return f, nil
}

// commands maps other kinds of files to the commands that submit such a file.
var commands = map[string]string{"pipeline": "berth pipeline submit", spec.KindSchedule: "berth schedule create"}

// other recognises a file of another kind. Its other faults would only hide the wrong
// command.
func other(root *node) (Fault, bool) {
	for _, e := range root.entries {
		if command := commands[e.value.text]; e.key == "kind" && command != "" {
			at := e.value.at
			return Fault{Line: at.line, Column: at.column, Width: at.width, FieldError: berth.FieldError{
				Detail: "this file is a " + e.value.text, Allowed: "use " + command}}, true
		}
	}
	return Fault{}, false
}

// readable checks the conditions under which lines can be shown, and returns the text
// without byte order mark and with plain line feeds.
func readable(src []byte) (string, *Fault) {
	fault := func(detail, allowed string) *Fault {
		return &Fault{FieldError: berth.FieldError{Detail: detail, Allowed: allowed}}
	}
	switch {
	case len(src) > MaxBytes:
		return "", fault(fmt.Sprintf("the file has %d bytes", len(src)), fmt.Sprintf("at most %d", MaxBytes))
	case !utf8.Valid(src):
		return "", fault("the file is not UTF-8 text", "save it as UTF-8")
	case strings.ContainsRune(string(src), 0):
		return "", fault("the file contains a NUL byte", "text")
	}
	text := strings.TrimPrefix(string(src), "\ufeff")
	return strings.ReplaceAll(text, "\r\n", "\n"), nil
}

// parse reads a text as JSON if its name ends in .json or if the text is a valid JSON
// object, and as YAML otherwise.
func parse(name, source string) (*node, error) {
	if strings.HasSuffix(name, ".json") || strings.HasPrefix(strings.TrimSpace(source), "{") &&
		json.Valid([]byte(source)) {
		return parseJSON(source)
	}
	return parseYAML(source)
}

// syntaxFault converts the error of a parser, with its place if the parser knows one.
func syntaxFault(err error) Fault {
	var s *syntaxError
	if !errors.As(err, &s) {
		return Fault{FieldError: berth.FieldError{Detail: err.Error()}}
	}
	return Fault{Line: s.at.line, Column: s.at.column, Width: s.at.width,
		FieldError: berth.FieldError{Detail: s.detail}}
}

// semantic returns the faults that the spec's validation finds, except faults of fields
// that could not be read.
func (f *File) semantic(syntactic []Fault) []Fault {
	unread := map[string]bool{}
	for _, s := range syntactic {
		unread[s.Field] = true
	}
	var faults []Fault
	for _, e := range f.Spec.WithDefaults().Validate() {
		if !covered(unread, e.Field) {
			faults = append(faults, f.locate(e))
		}
	}
	if b, err := json.Marshal(f.Spec); err == nil && len(b) > spec.MaxSpecBytes {
		faults = append(faults, Fault{FieldError: berth.FieldError{Detail: fmt.Sprintf("the job has %d bytes as JSON",
			len(b)), Allowed: fmt.Sprintf("at most %d", spec.MaxSpecBytes)}})
	}
	return faults
}

// covered reports whether the field, or a field around the field, is in the set.
func covered(set map[string]bool, field string) bool {
	for {
		if set[field] {
			return true
		}
		i := strings.LastIndexAny(field, ".[")
		if i < 0 {
			return false
		}
		field = field[:i]
	}
}

// locate finds the place of a field, or of the nearest value around the field. A name or
// an image that the file lacks is reported as missing, without a place.
func (f *File) locate(e berth.FieldError) Fault {
	fault := Fault{FieldError: e}
	if _, written := f.places[e.Field]; !written && (e.Field == "name" || e.Field == "image") {
		return fault
	}
	for path := e.Field; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if at, ok := f.places[path]; ok {
			fault.Line, fault.Column, fault.Width = at.line, at.column, at.width
			return fault
		}
	}
	return fault
}

// Locate converts faults that the server found in the spec into an error that points into
// the file.
func (f *File) Locate(faults []berth.FieldError) error {
	located := make([]Fault, len(faults))
	for i, e := range faults {
		located[i] = f.locate(e)
	}
	return &Error{Name: f.Name, Source: f.source, Faults: sorted(located)}
}
