package spec

import (
	"iter"
	"reflect"
	"slices"
	"strings"

	"berth"
)

// Nests reports whether a step of a pipeline is a pipeline itself.
func (s Job) Nests() bool { return s.Jobs != nil }

// Nested returns the nested pipeline of a step. It runs cached steps again if the
// outer pipeline does.
func (p Pipeline) Nested(key string) Pipeline {
	s := p.Jobs[key]
	return Pipeline{Kind: string(berth.KindPipeline), Name: s.Name, OnFailure: s.OnFailure, NoCache: p.NoCache,
		Labels: s.Labels, Jobs: s.Jobs}
}

// beyondPipeline are the fields that are set of a step, and say nothing of a
// pipeline, in the order of the file format.
func (s Job) beyondPipeline() (fields []string) {
	s.Name, s.Needs, s.Labels, s.OnFailure, s.Jobs = "", nil, nil, "", nil
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			fields = append(fields, name)
		}
	}
	return fields
}

// StepPath is how a step of a pipeline is called from the outermost one, within
// being how that pipeline is: "" for the outermost itself. Names of steps hold no
// dot.
func StepPath(within, step string) string {
	if within == "" {
		return step
	}
	return within + "." + step
}

// StepField is the field of the outermost pipeline that holds the step of a path:
// jobs.train.jobs.fit.
func StepField(path string) string { return "jobs." + strings.ReplaceAll(path, ".", ".jobs.") }

// FindStep resolves the name of a step, as a step of the pipeline within writes it,
// to its path. known reports whether a path names a step. The first part of the name
// is searched in that pipeline, then outwards, and the first match counts; the rest
// leads into that step.
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

// All are the steps of every level by their paths, each after all it needs and a
// nested pipeline before its own steps.
func (p Pipeline) All() iter.Seq2[string, Job] {
	return func(yield func(string, Job) bool) { p.all("", yield) }
}

func (p Pipeline) all(within string, yield func(string, Job) bool) bool {
	for _, key := range p.Order() {
		path, s := StepPath(within, key), p.Jobs[key]
		if !yield(path, s) || s.Nests() && !p.Nested(key).all(path, yield) {
			return false
		}
	}
	return true
}

// Count is how many steps there are in all, nested pipelines included.
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

// Binding is which job an input of a step is to take an output of, by the path of
// the step that it names; false leaves the name.
type Binding func(within, path string) (berth.JobID, bool)

// Bound returns the pipeline with steps in its inputs replaced by jobs, for the steps
// that the binding contains.
func (p Pipeline) Bound(bind Binding) Pipeline {
	known := p.paths()
	return p.each("", func(within, _ string, s Job) (Job, bool) {
		return s.bound(within, known, bind), true
	})
}

// bound is OfJobs for names as they are meant in the pipeline within.
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

// Without returns the pipeline without steps that have succeeded, by their paths, as
// these jobs: other steps no longer need them, and read the outputs of these jobs. A
// nested pipeline that has not succeeded keeps its remaining steps.
func (p Pipeline) Without(succeeded map[string]berth.JobID) Pipeline {
	known := p.paths()
	bind := func(_, path string) (berth.JobID, bool) { return succeeded[path], succeeded[path] != "" }
	return p.each("", func(within, key string, s Job) (Job, bool) {
		if succeeded[StepPath(within, key)] != "" {
			return s, false
		}
		s.Needs = slices.DeleteFunc(slices.Clone(s.Needs),
			func(n string) bool { return succeeded[StepPath(within, n)] != "" })
		return s.bound(within, known, bind), true
	})
}

// each is the pipeline with every step changed, or left out, the outer ones first.
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
