package berth

import (
	"fmt"
	"slices"
	"strings"
)

// MaxSteps is how many steps a pipeline may have.
const MaxSteps = 500

// What becomes of a pipeline when a step does not succeed.
const (
	FailFast = "fail_fast" // the rest is canceled
	Continue = "continue"  // what does not need it goes on
)

// PipelineSpec is a file of kind pipeline: jobs, and which of them need which
// others to have succeeded.
type PipelineSpec struct {
	Kind      string             `json:"kind" doc:"pipeline"`
	Name      string             `json:"name" doc:"a DNS label; unique only by id"`
	OnFailure string             `json:"on_failure,omitempty" doc:"fail_fast (default) or continue"`
	NoCache   bool               `json:"no_cache,omitempty" doc:"run every step, those that say cache: true as well; what they leave is taken by later runs"`
	Labels    map[string]string  `json:"labels,omitempty"`
	Notify    []Notify           `json:"notify,omitempty" doc:"told of the pipeline as a whole"`
	Jobs      map[string]JobSpec `json:"jobs" doc:"steps by name; each is a job, with needs: the names of steps that must have succeeded"`
}

// WithDefaults returns the pipeline with every unset field that has a default
// filled in, of its steps too: a step without a name has that of its key.
func (p PipelineSpec) WithDefaults() PipelineSpec {
	if p.OnFailure == "" {
		p.OnFailure = FailFast
	}
	p.Notify = withNotifyDefaults(p.Notify)
	jobs := make(map[string]JobSpec, len(p.Jobs))
	for key, s := range p.Jobs {
		if s.Name == "" {
			s.Name = key
		}
		jobs[key] = s.WithDefaults()
	}
	p.Jobs = jobs
	return p
}

// Validate checks a pipeline after WithDefaults and returns every fault at once,
// nil if there is none.
func (p PipelineSpec) Validate() []FieldError {
	v := &validation{}
	v.oneOf("kind", p.Kind, string(KindPipeline))
	v.require(isName(p.Name), "name", fmt.Sprintf("%q is not a name", p.Name), "1 to 63 of a-z, 0-9 and '-', not at either end")
	v.oneOf("on_failure", p.OnFailure, FailFast, Continue)
	v.require(len(p.Labels) <= MaxLabels, "labels", "too many labels", fmt.Sprintf("at most %d", MaxLabels))
	for _, k := range sortedKeys(p.Labels) {
		v.label(k, p.Labels[k])
	}
	v.notify(p.Notify)
	v.require(len(p.Jobs) >= 1 && len(p.Jobs) <= MaxSteps, "jobs", fmt.Sprintf("has %d steps", len(p.Jobs)), fmt.Sprintf("1 to %d", MaxSteps))
	for _, key := range sortedKeys(p.Jobs) {
		s, at := p.Jobs[key], "jobs."+key
		v.require(isName(key), at, fmt.Sprintf("%q is not a name", key), "1 to 63 of a-z, 0-9 and '-', not at either end")
		p.validateNeeds(v, key, s.Needs)
		v.require(len(s.Notify) == 0, at+".notify", "is told of the whole", "notify beside jobs")
		s.validateCache(v, at)
		s = p.validateSteps(v, key, s)
		s.Needs, s.Cache = nil, false
		for _, f := range s.Validate() {
			f.Field = at + "." + f.Field
			v.faults = append(v.faults, f)
		}
	}
	if n := p.arrayBytes(); n > MaxArrayBytes && len(v.faults) == 0 { // else an array alone is too much
		v.require(false, "jobs", fmt.Sprintf("the elements of all arrays, each with its copy of its job, come to %s", BytesText(n)), fmt.Sprintf("at most %s in all", BytesText(MaxArrayBytes)))
	}
	if cycle := p.cycle(); cycle != nil {
		v.require(false, "jobs."+cycle[0]+".needs", "is a cycle: "+strings.Join(cycle, " needs "), "steps that do not need each other in a circle")
	}
	return v.faults
}

// arrayBytes is what the elements of all arrays among the steps store.
func (p PipelineSpec) arrayBytes() (sum int64) {
	for _, s := range p.Jobs {
		sum += s.arrayBytes()
	}
	return sum
}

func (p PipelineSpec) validateNeeds(v *validation, key string, needs []string) {
	for i, need := range needs {
		at := fmt.Sprintf("jobs.%s.needs[%d]", key, i)
		_, known := p.Jobs[need]
		switch {
		case need == key:
			v.require(false, at, fmt.Sprintf("%s needs itself", key), "other steps")
		case !known:
			v.require(false, at, fmt.Sprintf("there is no step %q", need), "names under jobs")
		case slices.Contains(needs[:i], need):
			v.require(false, at, fmt.Sprintf("names %s twice", need), "once")
		}
	}
}

// validateSteps checks the outputs of other steps that a step takes, and returns
// it as if they were those of jobs.
func (p PipelineSpec) validateSteps(v *validation, key string, s JobSpec) JobSpec {
	steps := map[string]JobID{}
	needed := p.needed(key)
	for _, o := range s.OutputsNamed() {
		if o.Step == "" {
			continue
		}
		steps[o.Step] = placeholder
		of, known := p.Jobs[o.Step]
		at := fmt.Sprintf("jobs.%s.inputs[%d].from", key, o.Input)
		leaves := slices.ContainsFunc(of.Outputs, func(out Output) bool { return out.Name == o.Name })
		switch {
		case !known:
			v.require(false, at, fmt.Sprintf("there is no step %q", o.Step), "names under jobs, or the whole id of another job")
		case !needed[o.Step]:
			v.require(false, at, fmt.Sprintf("%s does not need %s", key, o.Step), "steps that it needs, itself or through others: add it to needs")
		case of.Array != nil:
			v.require(false, at, fmt.Sprintf("%s is an array, whose elements have outputs of their own", o.Step), "steps that are no arrays")
		case !leaves:
			v.require(false, at, fmt.Sprintf("%s has no output %q", o.Step, o.Name), "names under its outputs")
		}
	}
	return s.OfJobs(steps)
}

// placeholder stands for a job that is not there yet.
const placeholder JobID = "00000000-0000-0000-0000-000000000000"

// needed are the steps that must have succeeded before one starts.
func (p PipelineSpec) needed(key string) map[string]bool {
	all := map[string]bool{}
	ahead := slices.Clone(p.Jobs[key].Needs)
	for len(ahead) > 0 {
		need := ahead[0]
		ahead = ahead[1:]
		if !all[need] {
			all[need] = true
			ahead = append(ahead, p.Jobs[need].Needs...)
		}
	}
	return all
}

// cycle spells out a cycle of needs, its first step again at its end; nil if
// there is none. A step that needs itself is told elsewhere.
func (p PipelineSpec) cycle() []string {
	const (
		fresh = iota
		open
		done
	)
	state := make(map[string]int, len(p.Jobs))
	var path []string
	var visit func(key string) []string
	visit = func(key string) []string {
		state[key] = open
		path = append(path, key)
		for _, need := range p.Jobs[key].Needs {
			if _, known := p.Jobs[need]; !known || need == key {
				continue
			}
			switch state[need] {
			case open:
				return append(slices.Clone(path[slices.Index(path, need):]), need)
			case fresh:
				if c := visit(need); c != nil {
					return c
				}
			}
		}
		path = path[:len(path)-1]
		state[key] = done
		return nil
	}
	for _, key := range sortedKeys(p.Jobs) {
		if state[key] == fresh {
			if c := visit(key); c != nil {
				return c
			}
		}
	}
	return nil
}

// Order lists the steps so that each comes after all it needs; among those that
// may come next, by name. The pipeline is valid.
func (p PipelineSpec) Order() []string {
	order := make([]string, 0, len(p.Jobs))
	placed := map[string]bool{}
	var place func(key string)
	place = func(key string) {
		if placed[key] {
			return
		}
		placed[key] = true
		for _, need := range p.Jobs[key].Needs {
			place(need)
		}
		order = append(order, key)
	}
	for _, key := range sortedKeys(p.Jobs) {
		place(key)
	}
	return order
}

// Without is the pipeline without some steps, which have succeeded as these
// jobs: nothing needs them any more, and what they have left is theirs.
func (p PipelineSpec) Without(succeeded map[string]JobID) PipelineSpec {
	rest := make(map[string]JobSpec, len(p.Jobs))
	for key, s := range p.Jobs {
		if _, done := succeeded[key]; !done {
			s.Needs = slices.DeleteFunc(slices.Clone(s.Needs), func(n string) bool { return succeeded[n] != "" })
			rest[key] = s.OfJobs(succeeded)
		}
	}
	p.Jobs = rest
	return p
}

// Step is a step of a pipeline as users see it.
type Step struct {
	Name   string   `json:"name"`
	Job    JobID    `json:"job"`
	Status State    `json:"status"`
	Needs  []string `json:"needs,omitempty"`
	Reason *Reason  `json:"reason,omitempty"`
	// CachedFrom is the job that did the work before, of a step that was skipped.
	CachedFrom *JobID `json:"cached_from,omitempty"`
}

// Ready is a step that may start.
type Ready struct {
	Job  JobID `json:"job"`
	Kind Kind  `json:"kind"`
}
