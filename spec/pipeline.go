package spec

import (
	"fmt"
	"slices"
	"strings"

	"berth"
)

// Limits of a pipeline.
const (
	MaxSteps    = 500  // steps of one level; this bounds the work of one reconciliation
	MaxLevels   = 8    // levels of nesting, the outermost pipeline included
	MaxAllSteps = 2000 // steps of all levels together, which one transaction stores
)

// The effects of a step that does not succeed on its pipeline.
const (
	FailFast = "fail_fast" // the other steps are canceled
	Continue = "continue"  // steps that do not need the failed step continue
)

// Pipeline is a file of kind pipeline: jobs, with the dependencies between these jobs.
type Pipeline struct {
	Kind      string            `json:"kind" doc:"pipeline"`
	Name      string            `json:"name" doc:"name for people; need not be unique, unlike the id"`
	OnFailure string            `json:"on_failure,omitempty" doc:"fail_fast (default) or continue"`
	NoCache   bool              `json:"no_cache,omitempty" doc:"run every step; later runs may use the results"`
	Labels    map[string]string `json:"labels,omitempty" doc:"labels for searches"`
	Notify    []Notify          `json:"notify,omitempty" doc:"calls about the pipeline as a whole"`
	Needs     []string          `json:"needs,omitempty" doc:"jobs (job:ID) that must end before the pipeline starts"`
	When      string            `json:"when,omitempty" doc:"condition on needs: success (default), failure or always"`
	Jobs      map[string]Job    `json:"jobs" doc:"steps by name; each is a job or a nested pipeline"`
}

// WithDefaults returns the pipeline with a value in every unset field that has a default,
// also in its steps. The default name of a step is its key in Jobs. It does not change p.
func (p Pipeline) WithDefaults() Pipeline {
	if p.OnFailure == "" {
		p.OnFailure = FailFast
	}
	p.Notify = withNotifyDefaults(p.Notify)
	p.Jobs = stepsWithDefaults(p.Jobs, 1)
	return p
}

// stepsWithDefaults fills in the steps of a level and of the levels below, down to
// MaxLevels. Deeper levels stay as they are; Validate refuses them.
func stepsWithDefaults(steps map[string]Job, level int) map[string]Job {
	jobs := make(map[string]Job, len(steps))
	for key, s := range steps {
		if s.Name == "" {
			s.Name = key
		}
		switch {
		case !s.Nests():
			s = s.WithDefaults()
		case level < MaxLevels:
			if s.OnFailure == "" {
				s.OnFailure = FailFast
			}
			s.Jobs = stepsWithDefaults(s.Jobs, level+1)
		}
		jobs[key] = s
	}
	return jobs
}

// Validate checks a pipeline after WithDefaults and returns all faults at once, or nil. The
// field of a nested step is its full path: jobs.train.jobs.fit.image. If there are too
// many steps, Validate reports their number and does not check the steps themselves.
func (p Pipeline) Validate() []berth.FieldError {
	v := &validation{}
	v.oneOf("kind", p.Kind, string(berth.KindPipeline))
	v.notify(p.Notify)
	v.jobNeeds(p.Needs, p.When)
	whole := newLevel(p, nil, "")
	sizes := &validation{}
	whole.oversized(sizes)
	n := p.Count()
	sizes.require(n <= MaxAllSteps, "jobs", fmt.Sprintf("has %d steps, including nested pipelines", n),
		fmt.Sprintf("at most %d in total", MaxAllSteps))
	if len(sizes.faults) > 0 {
		return append(v.faults, sizes.faults...)
	}
	whole.validate(v)
	// With other faults, a single array may be too large already, and is reported itself.
	if n := p.arrayBytes(); n > maxArrayBytes && len(v.faults) == 0 {
		v.require(false, "jobs", fmt.Sprintf("the elements of all arrays need %s",
			berth.BytesText(n)), fmt.Sprintf("at most %s in total", berth.BytesText(maxArrayBytes)))
	}
	return v.faults
}

// arrayBytes returns the length of the specs that the elements of all arrays among the
// steps store, on every level.
func (p Pipeline) arrayBytes() (sum int64) {
	for _, s := range p.All() {
		sum += s.arrayBytes()
	}
	return sum
}

// level is a pipeline with its position among the pipelines that contain it.
type level struct {
	p     Pipeline
	depth int    // 1 for the outermost pipeline
	field string // prefix of its fields, such as jobs.train.
	outer *level // nil for the outermost pipeline
	key   string // the step of outer that this pipeline is

	reach map[string]map[string]bool // direct and indirect needs of steps, computed on demand
	sure  map[string]map[string]bool // the needs that have succeeded whenever the step starts, as reach
}

// newLevel returns the level of a nested pipeline, which is the step key of outer. For the
// outermost pipeline, outer is nil.
func newLevel(p Pipeline, outer *level, key string) level {
	l := level{p: p, depth: 1, outer: outer, key: key, reach: map[string]map[string]bool{},
		sure: map[string]map[string]bool{}}
	if outer != nil {
		l.depth, l.field = outer.depth+1, outer.field+"jobs."+key+"."
	}
	return l
}

// nested yields the nested pipelines among the steps, down to MaxLevels.
func (l level) nested(yield func(level) bool) {
	if l.depth == MaxLevels {
		return
	}
	for _, key := range sortedKeys(l.p.Jobs) {
		if l.p.Jobs[key].Nests() && !yield(newLevel(l.p.Nested(key), &l, key)) {
			return
		}
	}
}

// oversized reports levels with too many steps.
func (l level) oversized(v *validation) {
	if len(l.p.Jobs) > MaxSteps {
		l.countSteps(v)
	}
	for inner := range l.nested {
		inner.oversized(v)
	}
}

// countSteps checks the number of steps of the level.
func (l level) countSteps(v *validation) {
	n := len(l.p.Jobs)
	v.require(n >= 1 && n <= MaxSteps, l.field+"jobs", fmt.Sprintf("has %d steps", n),
		fmt.Sprintf("1 to %d; put more into nested pipelines", MaxSteps))
}

// needed returns the direct and indirect needs of a step, computed once.
func (l level) needed(key string) map[string]bool {
	all, known := l.reach[key]
	if !known {
		all = l.p.needed(key)
		l.reach[key] = all
	}
	return all
}

// assured returns the steps that have succeeded whenever a step starts, computed once.
func (l level) assured(key string) map[string]bool {
	all, known := l.sure[key]
	if !known {
		all = l.p.assured(key)
		l.sure[key] = all
	}
	return all
}

// validate checks the level's own fields, its steps and the levels below.
func (l level) validate(v *validation) {
	p := l.p
	v.require(isName(p.Name), l.field+"name", fmt.Sprintf("%q is not a valid name", p.Name),
		"1 to 63 of a-z, 0-9 and '-', not at either end")
	v.oneOf(l.field+"on_failure", p.OnFailure, FailFast, Continue)
	v.require(len(p.Labels) <= MaxLabels, l.field+"labels", "too many labels", fmt.Sprintf("at most %d", MaxLabels))
	labels := &validation{}
	for _, k := range sortedKeys(p.Labels) {
		labels.label(k, p.Labels[k])
	}
	v.within(l.field, labels.faults)
	l.countSteps(v)
	for _, key := range sortedKeys(p.Jobs) {
		s, at := p.Jobs[key], l.field+"jobs."+key
		v.require(isName(key), at, fmt.Sprintf("%q is not a valid name", key),
			"1 to 63 of a-z, 0-9 and '-', not at either end")
		l.validateNeeds(v, key, s.Needs)
		if s.Nests() {
			l.validateNested(v, key, s)
			continue
		}
		v.require(len(s.Notify) == 0, at+".notify", "is not available for a step; webhooks report the whole pipeline",
			"notify next to jobs")
		s.validateCache(v, at)
		s = validateList(v, at, l.validateSteps(v, key, s))
		s = Alone(s) // checked above; a job outside of pipelines has none of these
		v.within(at+".", s.Validate())
	}
	l.validateConditions(v)
	if cycle := p.cycle(); cycle != nil {
		v.require(false, l.field+"jobs."+cycle[0]+".needs", "is a cycle: "+strings.Join(cycle, " needs "),
			"steps without a cycle")
	}
}

// validateNested checks a step that is a nested pipeline.
func (l level) validateNested(v *validation, key string, s Job) {
	at := l.field + "jobs." + key
	for _, field := range s.beyondPipeline() {
		v.require(false, at+"."+field, "is a field of jobs, but "+key+" is a nested pipeline",
			"name, needs, when, final, labels, on_failure and jobs; set the other fields in its jobs")
	}
	if l.depth == MaxLevels {
		v.require(false, at+".jobs", fmt.Sprintf("is level %d of nested pipelines", l.depth+1),
			fmt.Sprintf("at most %d levels", MaxLevels))
		return
	}
	newLevel(l.p.Nested(key), &l, key).validate(v)
}

// validateNeeds checks the names in a step's needs. Cycles are found for the whole level.
func (l level) validateNeeds(v *validation, key string, needs []string) {
	for i, need := range needs {
		at := fmt.Sprintf("%sjobs.%s.needs[%d]", l.field, key, i)
		_, known := l.p.Jobs[need]
		_, job := NeededName(need)
		switch {
		case job:
			v.require(false, at, fmt.Sprintf("%.200s is no step; only the pipeline as a whole may wait for jobs", need),
				"steps under the same jobs; put job:ID into needs next to jobs")
		case need == key:
			v.require(false, at, fmt.Sprintf("%s needs itself", key), "other steps")
		case !known:
			v.require(false, at, fmt.Sprintf("there is no step %q", need), "steps under the same jobs")
		case slices.Contains(needs[:i], need):
			v.require(false, at, fmt.Sprintf("names %s twice", need), "once")
		}
	}
}

// validateSteps checks a step's inputs that are outputs of other steps. It returns the step
// with a placeholder for the jobs of these steps, so that Job.Validate accepts the inputs.
func (l level) validateSteps(v *validation, key string, s Job) Job {
	steps := map[string]berth.JobID{}
	for _, o := range s.OutputsNamed() {
		if o.Step == "" {
			continue
		}
		steps[o.Step] = placeholder
		if detail, allowed := l.missing(key, o.OutputRef); detail != "" {
			v.require(false, fmt.Sprintf("%sjobs.%s.%s", l.field, key, o.Field()), detail, allowed)
		}
	}
	return s.OfJobs(steps)
}

// missing returns the reason why a step may not read the output of another step, with the
// allowed steps, or "" for an allowed output. It searches the first name on the step's own
// level, then outwards; further names lead into nested pipelines. The reader, or the step
// around it on that level, must need the step, so that the output exists at its start.
func (l level) missing(key string, o OutputRef) (detail, allowed string) {
	names := strings.Split(o.Step, ".")
	// at becomes the level with the first name; from is the step of that level which is the
	// reader or contains it.
	at, from := &l, key
	for {
		if _, known := at.p.Jobs[names[0]]; known {
			break
		}
		if at.outer == nil {
			return fmt.Sprintf("there is no step %q", names[0]),
				"a step of this or an outer pipeline, or the full id of another job"
		}
		at, from = at.outer, at.key
	}
	switch {
	case names[0] == from && at != &l:
		return fmt.Sprintf("%s is inside %s and cannot wait for it", key, from),
			"steps next to " + key + ", or next to " + from
	case at.p.Jobs[from].Final:
		return fmt.Sprintf("%s is a final step, and starts although %s has not succeeded", from, names[0]),
			"outputs of earlier pipelines and jobs, by id"
	case !at.needed(from)[names[0]]:
		return fmt.Sprintf("%s does not need %s", from, names[0]),
			"steps in needs, directly or indirectly; add it to needs"
	case !at.assured(from)[names[0]]:
		return fmt.Sprintf("%s may start although %s has not succeeded", from, names[0]),
			"outputs of steps that have succeeded whenever " + from + " starts"
	}
	p, of := at.p, Job{}
	for i, name := range names {
		step, known := p.Jobs[name]
		if !known {
			return fmt.Sprintf("there is no step %q in %s", name, strings.Join(names[:i], ".")), "its steps"
		}
		if of = step; i == len(names)-1 {
			break
		}
		if !step.Nests() {
			return fmt.Sprintf("%s is not a pipeline", strings.Join(names[:i+1], ".")),
				"job:" + strings.Join(names[:i+1], ".") + "/OUTPUT"
		}
		p = Pipeline{Jobs: step.Jobs}
	}
	if len(names) > 1 && at.p.inBranch(names) {
		return fmt.Sprintf("%s may be skipped although %s succeeds", o.Step, names[0]),
			"steps that always run in " + strings.Join(names[:len(names)-1], ".")
	}
	return lacks(of, o)
}

// lacks returns the reason why a step has no output of a name, with the allowed steps, or "".
func lacks(of Job, o OutputRef) (detail, allowed string) {
	switch {
	case of.Nests():
		return fmt.Sprintf("%s is a pipeline; its steps have the outputs", o.Step),
			"job:" + o.Step + ".STEP/OUTPUT"
	case of.Array != nil:
		return fmt.Sprintf("%s is an array; its elements have the outputs", o.Step),
			"steps that are not arrays"
	case !slices.ContainsFunc(of.Outputs, func(out Output) bool { return out.Name == o.Name }):
		return fmt.Sprintf("%s has no output %q", o.Step, o.Name), "its outputs"
	}
	return "", ""
}

// inBranch reports whether a step inside a nested pipeline may be skipped although the
// pipelines around it succeed. names is its path.
func (p Pipeline) inBranch(names []string) bool {
	for i, name := range names[:len(names)-1] {
		p = Pipeline{Jobs: p.Jobs[name].Jobs}
		if p.Branches()[names[i+1]] {
			return true
		}
	}
	return false
}

// placeholder is the id of a step's job in validation, before the job exists.
const placeholder berth.JobID = "00000000-0000-0000-0000-000000000000"

// needed returns the direct and indirect needs of a step: the steps that must end before it
// starts. It ends on cycles, too.
func (p Pipeline) needed(key string) map[string]bool {
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

// cycle returns the steps of a cycle of needs, with the first step again at the end, or
// nil. It ignores a step that needs itself, which validateNeeds reports. The search is
// depth-first by name, so that equal pipelines report the same cycle.
func (p Pipeline) cycle() []string {
	const (
		fresh = iota
		open  // on the present path
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

// Order returns the steps so that each step comes after all its needs, and final steps after
// all others. It is deterministic: the steps are placed by name, each after its needs in
// their order. The pipeline must be valid.
func (p Pipeline) Order() []string {
	order := make([]string, 0, len(p.Jobs))
	placed := map[string]bool{}
	var place func(key string)
	place = func(key string) {
		if placed[key] {
			return
		}
		placed[key] = true
		for _, need := range p.Jobs[key].Needs {
			if _, known := p.Jobs[need]; known {
				place(need)
			}
		}
		order = append(order, key)
	}
	for _, final := range []bool{false, true} {
		for _, key := range sortedKeys(p.Jobs) {
			if p.Jobs[key].Final == final {
				place(key)
			}
		}
	}
	return order
}
