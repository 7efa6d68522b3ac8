package spec_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
)

// line is a pipeline of prep, train and report, with a step aside, of which each needs the
// one before.
func line(edit func(map[string]spec.Job)) spec.Pipeline {
	jobs := map[string]spec.Job{
		"prep": {Image: "busybox", Outputs: []spec.Output{{Name: "data", Path: "/data"}}},
		"train": {Image: "busybox", Needs: []string{"prep"},
			Inputs: []spec.Input{{From: "job:prep/data", To: "/data"}}},
		"sweep": {Image: "busybox", Needs: []string{"train"}, Array: &spec.Array{Size: 3}},
		"fit": {Needs: []string{"prep"}, Jobs: map[string]spec.Job{
			"a": {Image: "busybox", Inputs: []spec.Input{{From: "job:prep/data", To: "/data"}}},
			"b": {Image: "busybox", Needs: []string{"a"}},
		}},
		"report": {Image: "busybox", Needs: []string{"sweep", "fit"}},
		"aside":  {Image: "busybox"},
	}
	if edit != nil {
		edit(jobs)
	}
	return spec.Pipeline{Kind: "pipeline", Name: "p", Jobs: jobs}.WithDefaults()
}

// ran is the earlier run of a pipeline, in which every step has succeeded.
func ran(p spec.Pipeline, edit func(map[string]spec.Earlier)) map[string]spec.Earlier {
	ids := map[string]berth.JobID{}
	n := 0
	for path := range p.All() {
		n++
		ids[path] = berth.JobID("00000000-0000-7000-8000-0000000000" + string(rune('0'+n/10)) + string(rune('0'+n%10)))
	}
	steps := map[string]spec.Earlier{}
	for path, s := range p.Bound(func(_, path string) (berth.JobID, bool) { return ids[path], true }).All() {
		steps[path] = spec.Earlier{Job: ids[path], Spec: s, Succeeded: true}
	}
	if edit != nil {
		edit(steps)
	}
	return steps
}

func TestAResumedPipelineRunsWhatChangedAndAllBelow(t *testing.T) {
	t.Parallel()
	change := func(step string, f func(*spec.Earlier)) func(map[string]spec.Earlier) {
		return func(m map[string]spec.Earlier) { e := m[step]; f(&e); m[step] = e }
	}
	edit := func(step string, f func(*spec.Job)) func(map[string]spec.Job) {
		return func(m map[string]spec.Job) { s := m[step]; f(&s); m[step] = s }
	}
	inside := "it is part of fit, which waits for a step that runs"
	for name, row := range map[string]struct {
		file    func(map[string]spec.Job)
		earlier func(map[string]spec.Earlier)
		runs    map[string]string
	}{
		"nothing changed": {nil, nil, map[string]string{}},
		"a change without effect on containers": {edit("train",
			func(s *spec.Job) { s.TimeLimit, s.Name = 3600e9, "other" }), nil,
			map[string]string{}},
		"the last failed": {nil, change("report", func(e *spec.Earlier) { e.Succeeded = false }),
			map[string]string{"report": "it did not succeed"}},
		"the first changed": {edit("prep", func(s *spec.Job) {
			s.Command, s.Env = []string{"true"},
				map[string]string{"A": "1"}
		}), nil,
			map[string]string{"prep": "changed: command, env", "train": "it needs prep, which runs",
				"sweep": "it needs train, which runs",
				"fit":   "it needs prep, which runs", "fit.a": inside, "fit.b": inside,
				"report": "it needs sweep, which runs"}},
		"an inner step changed": {edit("fit", func(s *spec.Job) {
			a := s.Jobs["a"]
			a.Resources.GPUs = 1000
			s.Jobs["a"] = a
		}), nil, map[string]string{"fit.a": "changed: resources", "fit.b": "it needs a, which runs",
			"fit":    "a step of it runs",
			"report": "it needs fit, which runs"}},
		"an inner step removed": {edit("fit", func(s *spec.Job) { delete(s.Jobs, "b") }), nil,
			map[string]string{"fit": "its steps are others", "report": "it needs fit, which runs"}},
		"a new step": {func(m map[string]spec.Job) { m["more"] = spec.Job{Image: "busybox", Needs: []string{"prep"}} },
			nil,
			map[string]string{"more": "it is new"}},
		"another element": {edit("sweep", func(s *spec.Job) { s.Array = &spec.Array{Size: 4} }), nil,
			map[string]string{"sweep": "changed: array", "report": "it needs sweep, which runs"}},
		"outputs are gone": {nil, change("prep", func(
			e *spec.Earlier) {
			e.Lacks = "its outputs are no longer stored"
		}),
			map[string]string{"prep": "its outputs are no longer stored", "train": "it needs prep, which runs",
				"sweep": "it needs train, which runs", "fit": "it needs prep, which runs", "fit.a": inside,
				"fit.b":  inside,
				"report": "it needs sweep, which runs"}},
		"it read the output of another job": {nil, change("train", func(e *spec.Earlier) {
			e.Spec.Inputs = []spec.Input{{From: "job:00000000-0000-7000-8000-00000000aaaa/data", To: "/data"}}
		}), map[string]string{"train": "changed: inputs", "sweep": "it needs train, which runs",
			"report": "it needs sweep, which runs"}},
	} {
		earlier := ran(line(nil), row.earlier)
		file := line(row.file)
		got := file.Resume(earlier)
		if diff := cmp.Diff(row.runs, got.Runs); diff != "" {
			t.Errorf("%s: other steps run (-want +got):\n%s", name, diff)
		}
		for path, s := range file.All() {
			_, runs := got.Runs[path]
			job, taken := got.Taken[path]
			if taken != (!runs && !s.Nests() && s.Array == nil) || taken && job != earlier[path].Job {
				t.Errorf("%s: %s is taken over from %q", name, path, job)
			}
		}
	}
}

// TestAnUnchangedArrayKeepsItsElements checks that an array that failed in part is still named, for the elements
// that succeeded.
func TestAnUnchangedArrayKeepsItsElements(t *testing.T) {
	t.Parallel()
	earlier := ran(line(nil), func(m map[string]spec.Earlier) { e := m["sweep"]; e.Succeeded = false; m["sweep"] = e })
	got := line(nil).Resume(earlier)
	if got.Runs["sweep"] != "it did not succeed" || got.Arrays["sweep"] != earlier["sweep"].Job {
		t.Errorf("got %+v", got)
	}
	got = line(func(m map[string]spec.Job) { s := m["train"]; s.Command = []string{"x"}; m["train"] = s }).Resume(
		earlier)
	if len(got.Arrays) > 0 {
		t.Errorf("an array below a changed step takes over elements of %v", got.Arrays)
	}
}
