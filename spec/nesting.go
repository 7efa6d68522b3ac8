package spec

import (
	"iter"
	"reflect"
	"slices"
	"strings"

	"berth"
)

// Nests reports whether a step of a pipeline is a nested pipeline.
func (s Job) Nests() bool { return s.Jobs != nil }

// Nested returns the nested pipeline of a step. It inherits NoCache of the outer pipeline.
func (p Pipeline) Nested(key string) Pipeline {
	s := p.Jobs[key]
	return Pipeline{Kind: string(berth.KindPipeline), Name: s.Name, OnFailure: s.OnFailure, NoCache: p.NoCache,
		Labels: s.Labels, Jobs: s.Jobs}
}

// beyondPipeline returns the set fields of a step that a nested pipeline may not have, in
// the order of the file format. It uses reflection, so that a new field of Job is
// refused unless it is listed here.
func (s Job) beyondPipeline() (fields []string) {
	s.Name, s.Needs, s.Labels, s.OnFailure, s.Jobs = "", nil, nil, "", nil
	s.When, s.Final = "", false
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			fields = append(fields, name)
		}
	}
	return fields
}

// StepPath returns the path of a step from the outermost pipeline, such as train.fit.
// within is the path of the pipeline that contains the step, "" for the outermost. Names of
// steps contain no dot.
func StepPath(within, step string) string {
	if within == "" {
		return step
	}
	return within + "." + step
}

// StepField returns the field of the outermost pipeline's file that contains the step of a
// path: jobs.train.jobs.fit for train.fit.
func StepField(path string) string { return "jobs." + strings.ReplaceAll(path, ".", ".jobs.") }

// FindStep resolves the name of a step to the step's path, for a name in the pipeline
// within. known reports whether a path names a step. FindStep searches the first part of
// the name in that pipeline, then outwards, and uses the first match; the remaining parts
// lead into nested pipelines of that step. ok is false if no such step exists.
func FindStep(within, name string, known func(path string) bool) (path string, ok bool) {
	first, _, _ := strings.Cut(name, ".")
	for {
		if known(StepPath(within, first)) {
			path = StepPath(within, name)
			return path, known(path)
		}
		if within == "" {
			return "", false
		}
		within = within[:max(0, strings.LastIndexByte(within, '.'))]
	}
}

// All yields the steps of every level by path. Each step comes after all steps that it
// needs, and a nested pipeline comes before its own steps.
func (p Pipeline) All() iter.Seq2[string, Job] {
	return func(yield func(string, Job) bool) { p.all("", yield) }
}

// all yields the steps of All; false if the caller has stopped the iteration.
func (p Pipeline) all(within string, yield func(string, Job) bool) bool {
	for _, key := range p.Order() {
		path, s := StepPath(within, key), p.Jobs[key]
		if !yield(path, s) || s.Nests() && !p.Nested(key).all(path, yield) {
			return false
		}
	}
	return true
}

// Count returns the number of steps of all levels, nested pipelines included.
func (p Pipeline) Count() int {
	n := len(p.Jobs)
	for key, s := range p.Jobs {
		if s.Nests() {
			n += p.Nested(key).Count()
		}
	}
	return n
}

// paths returns the paths of all steps.
func (p Pipeline) paths() map[string]bool {
	all := make(map[string]bool, len(p.Jobs))
	for path := range p.All() {
		all[path] = true
	}
	return all
}

// Binding maps the path of a step to the job that provides the step's outputs, for an
// input in the pipeline within. It returns false to leave the name of the step.
type Binding func(within, path string) (berth.JobID, bool)

// Bound returns the pipeline with the steps in its inputs replaced by jobs, as far as the
// binding returns one.
func (p Pipeline) Bound(bind Binding) Pipeline {
	known := p.paths()
	return p.each("", func(within, _ string, s Job) (Job, bool) {
		return s.bound(within, known, bind), true
	})
}

// bound is OfJobs for names that are resolved from the pipeline within.
func (s Job) bound(within string, known map[string]bool, bind Binding) Job {
	steps := map[string]berth.JobID{}
	for _, o := range s.OutputsNamed() {
		if o.Step == "" {
			continue
		}
		if path, ok := FindStep(within, o.Step, func(path string) bool { return known[path] }); ok {
			if id, ok := bind(within, path); ok {
				steps[o.Step] = id
			}
		}
	}
	if len(steps) == 0 {
		return s
	}
	return s.OfJobs(steps)
}

// Without returns the pipeline without the steps that have succeeded. The map contains the
// job of each succeeded step, by path. The remaining steps no longer need the removed
// steps, and read outputs from the jobs. A nested pipeline that has not succeeded keeps
// its remaining steps.
//
// A level with work left keeps its final steps, and the conditional steps that need a
// remaining step, although they have succeeded: their conditions are decided again. Steps
// that can only be skipped are removed.
func (p Pipeline) Without(succeeded map[string]berth.JobID) Pipeline {
	known, removed := p.paths(), map[string]bool{}
	p.removable("", succeeded, removed)
	bind := func(_, path string) (berth.JobID, bool) {
		return succeeded[path], removed[path] && succeeded[path] != ""
	}
	return p.each("", func(within, key string, s Job) (Job, bool) {
		if removed[StepPath(within, key)] {
			return s, false
		}
		s.Needs = slices.DeleteFunc(slices.Clone(s.Needs),
			func(n string) bool { return removed[StepPath(within, n)] })
		return s.bound(within, known, bind), true
	})
}

// removable adds the paths of the steps that Without removes from the level within, and from
// the levels below.
func (p Pipeline) removable(within string, succeeded map[string]berth.JobID, removed map[string]bool) {
	branches, work := p.Branches(), false
	for _, key := range p.Order() { // needs come first, final steps last
		path, s := StepPath(within, key), p.Jobs[key]
		done := succeeded[path] != ""
		left := slices.ContainsFunc(s.Needs, func(n string) bool { return !removed[StepPath(within, n)] })
		skipped := slices.ContainsFunc(s.Needs, func(n string) bool {
			need := StepPath(within, n)
			return removed[need] && succeeded[need] == ""
		})
		switch {
		case s.Final:
			removed[path] = !work && (done || ConditionOf(s) == WhenFailure)
		case ConditionOf(s) == WhenFailure:
			removed[path] = !left
		case ConditionOf(s) == WhenSuccess && skipped:
			removed[path] = true
		case branches[key]:
			removed[path] = done && !left
		default:
			removed[path] = done
		}
		switch {
		case !s.Nests():
		case removed[path]:
			for inside := range p.Nested(key).All() {
				removed[StepPath(path, inside)] = true
			}
		case !done:
			p.Nested(key).removable(path, succeeded, removed)
		}
		work = work || !removed[path]
	}
}

// each returns a copy of the pipeline in which change has replaced or removed each step,
// an outer step before the steps in it.
func (p Pipeline) each(within string, change func(within, key string, s Job) (Job, bool)) Pipeline {
	steps := make(map[string]Job, len(p.Jobs))
	for key, s := range p.Jobs {
		s, keep := change(within, key, s)
		if !keep {
			continue
		}
		if s.Nests() {
			s.Jobs = Pipeline{Jobs: s.Jobs}.each(StepPath(within, key), change).Jobs
		}
		steps[key] = s
	}
	p.Jobs = steps
	return p
}
