package main

import (
	"strings"

	"berth/wire"
)

// addNeeds adds the jobs that a job or a pipeline waited for, with its condition. The needs of
// a step are in the table of its pipeline.
func addNeeds(s *sheet, j wire.Job) {
	var needs []string
	when := ""
	switch {
	case j.Step != "":
	case j.Spec != nil:
		needs, when = j.Spec.Needs, j.Spec.When
	case j.Pipeline != nil:
		needs, when = j.Pipeline.Needs, j.Pipeline.When
	}
	if len(needs) == 0 {
		return
	}
	text := strings.Join(needs, ", ")
	if when != "" {
		text += " (" + when + ")"
	}
	s.add("needs jobs", oneLine(text))
}
