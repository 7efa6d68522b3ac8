package spec

import (
	"fmt"

	"berth"
)

// Unsent returns a fault for each field that names a folder of the user's own machine. The
// command line uploads such folders and replaces the fields with addresses before it
// submits; the server accepts addresses alone.
func (s Job) Unsent() []berth.FieldError {
	v := &validation{}
	if _, err := berth.ParseAddress(s.Workdir); s.Workdir != "" && err != nil {
		v.require(false, "workdir", "is not the address of an upload", unsentHint)
	}
	for i, in := range s.Inputs {
		_, err := berth.ParseAddress(in.From)
		v.require(err == nil || in.Kind() != InputFolder, fmt.Sprintf("inputs[%d].from", i),
			"is not the address of an upload", unsentHint)
	}
	return v.faults
}

// Uploads returns the uploads in the spec: the code first, then the inputs.
func (s Job) Uploads() []NamedUpload {
	var all []NamedUpload
	if a, err := berth.ParseAddress(s.Workdir); err == nil {
		all = append(all, NamedUpload{"workdir", a})
	}
	for i, in := range s.Inputs {
		if a, err := berth.ParseAddress(in.From); err == nil {
			all = append(all, NamedUpload{fmt.Sprintf("inputs[%d].from", i), a})
		}
	}
	return all
}

// unsentHint is the advice in faults of Unsent.
const unsentHint = "sha256:… of content uploaded to POST /v1/uploads; berth submit uploads folders " +
	"automatically"

// NamedUpload is an upload with the field of the spec that names it.
type NamedUpload struct {
	Field   string
	Address berth.Address
}
