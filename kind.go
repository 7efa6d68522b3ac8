package berth

import "slices"

// Kind distinguishes rows of jobs: a job, or a parent of others, which holds no
// capacity itself.
type Kind string

// The kinds.
const (
	KindJob      Kind = "job"
	KindArray    Kind = "array"
	KindPipeline Kind = "pipeline"
)

// CanBecome reports whether the state machine of such rows has this change.
func (k Kind) CanBecome(from, to State) bool {
	if k == KindJob || k == "" {
		return from.CanBecome(to)
	}
	return slices.ContainsFunc(ParentTransitions, func(t Transition) bool { return t.From == from && t.To == to })
}
