package spec

import (
	"fmt"
	"slices"
)

// The conditions of a step, in its field when. A step is skipped if its condition does not
// hold. A skipped step is neither a success nor a failure for the steps that need it.
const (
	WhenSuccess = "success" // all steps that it needs have succeeded; the default
	WhenFailure = "failure" // all steps that it needs have ended, and one failed or was canceled
	WhenAlways  = "always"  // all steps that it needs have ended; the default of a final step
)

// ConditionOf returns the condition under which a step runs.
func ConditionOf(s Job) string {
	switch {
	case s.When != "":
		return s.When
	case s.Final:
		return WhenAlways
	}
	return WhenSuccess
}

// Alone returns the spec of a step without the fields that only steps of a pipeline have.
func Alone(s Job) Job {
	s.Needs, s.Cache, s.When, s.Final = nil, false, "", false
	return s
}

// Conditional reports whether a step waits for anything but the success of its needs.
func Conditional(s Job) bool { return s.Final || ConditionOf(s) != WhenSuccess }

// Branches returns the steps of a level that a failure elsewhere does not cancel: final and
// conditional steps, and the steps that need one of them, directly or through others.
func (p Pipeline) Branches() map[string]bool {
	branches := map[string]bool{}
	for _, key := range p.Order() {
		s := p.Jobs[key]
		if Conditional(s) || slices.ContainsFunc(s.Needs, func(n string) bool { return branches[n] }) {
			branches[key] = true
		}
	}
	return branches
}

// assured returns the steps of a level that have succeeded whenever the step starts. A step
// with another condition than success is assured of none.
func (p Pipeline) assured(key string) map[string]bool {
	all := map[string]bool{}
	ahead := []string{key}
	for len(ahead) > 0 {
		s := p.Jobs[ahead[0]]
		ahead = ahead[1:]
		if Conditional(s) {
			continue
		}
		for _, need := range s.Needs {
			if !all[need] {
				all[need] = true
				ahead = append(ahead, need)
			}
		}
	}
	return all
}

// validateConditions checks when and final of the steps of a level.
func (l level) validateConditions(v *validation) {
	plain := 0
	for _, key := range sortedKeys(l.p.Jobs) {
		s, at := l.p.Jobs[key], l.field+"jobs."+key
		if s.When != "" {
			v.oneOf(at+".when", s.When, WhenSuccess, WhenFailure, WhenAlways)
		}
		if !s.Final {
			plain++
		}
		switch {
		case s.Final && len(s.Needs) > 0:
			v.require(false, at+".needs", key+" is a final step, which starts after all other steps",
				"no needs, or a step that is not final")
		case s.When == WhenFailure && !s.Final && len(s.Needs) == 0:
			v.require(false, at+".when", key+" needs no step, so none can fail before it",
				"failure with needs, or on a final step")
		}
		v.require(!s.Cache || !Conditional(s), at+".cache",
			"is not available for a step that is final or has when: "+ConditionOf(s),
			"cache on steps that run when all their needs have succeeded")
		for i, need := range s.Needs {
			v.require(!l.p.Jobs[need].Final, fmt.Sprintf("%s.needs[%d]", at, i),
				need+" is a final step, which starts after all other steps", "steps that are not final")
		}
	}
	v.require(plain > 0 || len(l.p.Jobs) == 0, l.field+"jobs", "has final steps only",
		"at least one step that is not final")
}
