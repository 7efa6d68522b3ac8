package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"berth"
)

// Earlier is a step of an earlier run of a pipeline, or one of an earlier attempt of that run.
type Earlier struct {
	Job       berth.JobID
	Spec      Job  // as it was submitted; inputs that are outputs of steps name the jobs of these steps
	Succeeded bool // for an array: all its elements have succeeded

	// Lacks is the reason why its result cannot be taken over even if it is unchanged and
	// succeeded, such as "its outputs are no longer stored"; "" for none. An array that
	// lacks something may still have elements that can be taken over.
	Lacks string
}

// Resumption is the part of a pipeline that a run takes over from an earlier one.
type Resumption struct {
	// Taken has the earlier job of each step that is not run, by path. A nested pipeline is
	// not in it; its steps are.
	Taken map[string]berth.JobID

	// Arrays has the earlier array of each array that is unchanged, by path. Its succeeded
	// elements are taken over, and the others run.
	Arrays map[string]berth.JobID

	// Runs has the reason why each other step runs, by path, nested pipelines included.
	Runs map[string]string

	// Skipped has the steps whose condition is known not to hold, since all steps before them
	// are taken over, by path, with everything inside.
	Skipped map[string]bool
}

// Resume compares the pipeline, which must be valid and have its defaults, with an earlier
// run of it. A step is taken over if it is unchanged and succeeded, if it lacks nothing, and
// if all steps that it waits for are taken over as well: directly, through
// others, or as a part of a nested pipeline that waits. Thus every step below a changed one
// runs, whether or not it reads an output.
//
// Unchanged means equal in every part of the spec that a container can notice, as for a
// cached step. In contrast to a cached step, URLs count by their text and secrets by their
// names, since the user decides that the earlier run still counts.
func (p Pipeline) Resume(earlier map[string]Earlier) Resumption {
	r := resuming{
		Resumption: Resumption{Taken: map[string]berth.JobID{}, Arrays: map[string]berth.JobID{},
			Runs: map[string]string{}, Skipped: map[string]bool{}},
		earlier: earlier, known: p.paths(), done: map[string]bool{},
	}
	r.level(p, "", "")
	return r.Resumption
}

// resuming collects a Resumption, from the outside in.
type resuming struct {
	Resumption
	earlier map[string]Earlier
	known   map[string]bool // the paths of all steps
	done    map[string]bool // steps whose dependents may be taken over
}

// level decides the steps of one level and reports whether all of them are done. waits is
// the reason why no step of the level can be taken over; "" for none.
func (r *resuming) level(p Pipeline, within, waits string) (all bool) {
	all = true
	for _, key := range p.Order() {
		path, s := StepPath(within, key), p.Jobs[key]
		why, skips := waits, ConditionOf(s) == WhenFailure
		if s.Final && !all && why == "" {
			why = "it is a final step, and others run"
		}
		for _, need := range s.Needs {
			if why == "" && !r.done[StepPath(within, need)] {
				why = "it needs " + need + ", which runs"
			}
			skips = skips || r.Skipped[StepPath(within, need)] && ConditionOf(s) == WhenSuccess
		}
		switch {
		case skips && why == "":
			r.skip(path, s)
		case s.Nests():
			r.done[path] = r.nested(p.Nested(key), path, why)
		default:
			r.done[path] = r.leaf(path, s.bound(within, r.known, r.bind), why)
		}
		all = all && r.done[path]
	}
	return all
}

// skip marks a step as skipped, with everything inside.
func (r *resuming) skip(path string, s Job) {
	r.Skipped[path], r.done[path] = true, true
	for key, inner := range s.Jobs {
		r.skip(StepPath(path, key), inner)
	}
}

// nested decides the steps of a nested pipeline. It is done if it succeeded with the same
// steps, and all of them are done.
func (r *resuming) nested(p Pipeline, path, why string) bool {
	e, known := r.earlier[path]
	inside := ""
	if why != "" {
		inside = "it is part of " + path + ", which waits for a step that runs"
	}
	all := r.level(p, path, inside)
	switch {
	case why != "":
	case !known:
		why = "it is new"
	case !all:
		why = "a step of it runs"
	case !e.Succeeded || !slices.Equal(sortedKeys(p.Jobs), sortedKeys(e.Spec.Jobs)):
		why = "its steps are others"
	default:
		return true
	}
	r.Runs[path] = why
	return false
}

// leaf decides a step that is a job or an array. The inputs of s name the jobs of steps that
// are taken over.
func (r *resuming) leaf(path string, s Job, why string) bool {
	e, known := r.earlier[path]
	if why == "" && !known {
		why = "it is new"
	}
	if why == "" {
		if changed := changedFields(e.Spec, s); len(changed) > 0 {
			why = "changed: " + strings.Join(changed, ", ")
		}
	}
	if why == "" && s.Array != nil && s.Array.From == "" {
		r.Arrays[path] = e.Job
	}
	switch {
	case why != "":
	case !e.Succeeded:
		why = "it did not succeed"
	case e.Lacks != "":
		why = e.Lacks
	default:
		if s.Array == nil {
			r.Taken[path] = e.Job
		}
		return true
	}
	r.Runs[path] = why
	return false
}

// bind is the Binding to the jobs of steps that are taken over.
func (r *resuming) bind(_, path string) (berth.JobID, bool) {
	id, ok := r.Taken[path]
	return id, ok
}

// changedFields returns the fields of a job file in which two steps differ for their
// containers, in alphabetical order.
func changedFields(before, after Job) []string {
	a, b := noticed(before), noticed(after)
	var changed []string
	for _, field := range sortedKeys(a) {
		if a[field] != b[field] {
			changed = append(changed, field)
		}
	}
	return changed
}

// noticed returns the parts of a spec that a container can notice, as JSON by field: the parts
// of cacheKey, and the elements of an array. Empty and absent values are equal.
func noticed(s Job) map[string]string {
	s = s.WithDefaults()
	inputs := make([]cachedInput, len(s.Inputs))
	for i, in := range s.Inputs {
		content := in.fixedContent()
		if content == "" { // a URL, or an output of a job
			content = strings.Join([]string{in.From, in.Endpoint, in.Region, in.SHA256}, " ")
			if in.Mounted() {
				content += " mounted"
			}
		}
		inputs[i] = cachedInput{in.To, content}
	}
	slices.SortFunc(inputs, func(a, b cachedInput) int { return strings.Compare(a.To, b.To) })
	outputs := slices.Clone(s.Outputs)
	slices.SortFunc(outputs, func(a, b Output) int { return strings.Compare(a.Name, b.Name) })
	secrets := slices.Sorted(slices.Values(s.Secrets))
	secretsAs := ""
	if len(secrets) > 0 {
		secretsAs = s.SecretsAs
	}
	alternatives := make([]Resources, len(s.Alternatives))
	for i := range alternatives {
		alternatives[i] = s.ResourcesOf(i + 1)
	}
	var array any
	if s.Array != nil {
		array = Array{Size: s.Array.Count(), Each: s.Array.Each, From: s.Array.From}
	}
	parts := map[string]any{
		"image": s.Image, "entrypoint": s.Entrypoint, "command": s.Command, "env": s.Env, "workdir": s.Workdir,
		"resources": s.Resources, "members": s.Members, "checkpoint": s.Checkpoint, "inputs": inputs,
		"outputs": outputs, "secrets": secrets, "secrets_as": secretsAs, "array": array, "alternatives": alternatives,
		"user": s.User, "read_only_root": s.ReadOnlyRoot, "tmp_size": TmpOf(s), "groups": s.Groups,
	}
	texts := make(map[string]string, len(parts))
	for field, part := range parts {
		raw, err := json.Marshal(part)
		if err != nil {
			panic(fmt.Sprintf("a spec that was stored cannot be written: %v", err))
		}
		if text := string(raw); text != "null" && text != "[]" && text != "{}" {
			texts[field] = text
			continue
		}
		texts[field] = ""
	}
	return texts
}
