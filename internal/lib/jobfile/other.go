package jobfile

import (
	"reflect"

	"berth"
)

// Decode reads a file of another kind, such as a pipeline, into a struct by its JSON
// tags, and validates the result. into points to the struct, and validate must look at
// the same struct. The error is an *Error with all faults; faults of validate about
// fields that could not be read are left out.
func Decode(name string, src []byte, into any, validate func() []berth.FieldError) error {
	source, fault := readable(src)
	if fault != nil {
		return &Error{Name: name, Faults: []Fault{*fault}}
	}
	root, err := parse(name, source)
	if err != nil {
		return &Error{Name: name, Source: source, Faults: []Fault{syntaxFault(err)}}
	}
	if root == nil || root.kind == null {
		return &Error{Name: name, Faults: []Fault{{FieldError: berth.FieldError{Detail: "the file is empty"}}}}
	}
	d := &decoder{places: map[string]place{}}
	d.value(root, reflect.ValueOf(into).Elem(), "")
	f := &File{Name: name, places: d.places}
	unread := map[string]bool{}
	for _, s := range d.faults {
		unread[s.Field] = true
	}
	faults := d.faults
	if root.kind == mapping {
		for _, e := range validate() {
			if !covered(unread, e.Field) {
				faults = append(faults, f.locate(e))
			}
		}
	}
	if faults = sorted(faults); len(faults) > 0 {
		return &Error{Name: name, Source: source, Faults: faults}
	}
	return nil
}

// Kind returns the kind in a file. It is "" for a job file, and for an unreadable text,
// whose faults Parse reports.
func Kind(name string, src []byte) string {
	source, fault := readable(src)
	if fault != nil {
		return ""
	}
	root, err := parse(name, source)
	if err != nil || root == nil {
		return ""
	}
	for _, e := range root.entries {
		if e.key == "kind" {
			return e.value.text
		}
	}
	return ""
}
