package berth

import "slices"

// Kind distinguishes the rows of the table jobs: a job, or a parent of jobs, which holds no
// capacity itself. "" means KindJob.
type Kind string

// The kinds.
const (
	KindJob      Kind = "job"
	KindArray    Kind = "array"
	KindPipeline Kind = "pipeline"
)

// CanBecome reports whether the state machine for rows of this kind allows the change.
func (k Kind) CanBecome(from, to State) bool {
	if k == KindJob || k == "" {
		return from.CanBecome(to)
	}
	return slices.ContainsFunc(ParentTransitions, func(t Transition) bool { return t.From == from && t.To == to })
}
