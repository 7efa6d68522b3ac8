package spec_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

// changed returns the pipeline with a changed step.
func changed(p spec.Pipeline, key string, edit func(*spec.Job)) spec.Pipeline {
	p.Jobs = maps.Clone(p.Jobs)
	s := p.Jobs[key]
	edit(&s)
	p.Jobs[key] = s
	return p
}

func when(condition string) func(*spec.Job) { return func(s *spec.Job) { s.When = condition } }

func final(s *spec.Job) { s.Final = true }

func output(s *spec.Job) {
	s.Outputs = []spec.Output{{Name: "log", Path: "/log", When: spec.OutputAlways}}
}

func reads(from string) func(*spec.Job) {
	return func(s *spec.Job) { s.Inputs = []spec.Input{{From: from, To: "/in"}} }
}

func TestConditionsAreValidated(t *testing.T) {
	t.Parallel()
	line := changed(graph("a", "b: a", "c: b"), "a", output)
	inner := nest(graph("x", "y: in"), "in", changed(changed(graph("p", "q: p"), "q", when(spec.WhenFailure)), "q", output))
	for what, row := range map[string]struct {
		pipeline spec.Pipeline
		want     string // of the only fault; "" for none
	}{
		"failure":                   {changed(line, "b", when(spec.WhenFailure)), ""},
		"always, and a final step":  {changed(changed(graph("a", "b: a", "z"), "b", when(spec.WhenAlways)), "z", final), ""},
		"a final step on failure":   {changed(changed(graph("a", "z"), "z", final), "z", when(spec.WhenFailure)), ""},
		"an unknown condition":      {changed(line, "b", when("failed")), `jobs.b.when: "failed" is not known`},
		"failure without needs":     {changed(line, "a", when(spec.WhenFailure)), "jobs.a.when: a needs no step, so none can fail before it"},
		"a final step with needs":   {changed(line, "c", final), "jobs.c.needs: c is a final step, which starts after all other steps"},
		"the need of a final step":  {changed(line, "a", final), "jobs.b.needs[0]: a is a final step, which starts after all other steps"},
		"final steps alone":         {changed(graph("a"), "a", final), "jobs: has final steps only"},
		"a cached failure step":     {changed(changed(line, "b", when(spec.WhenFailure)), "b", func(s *spec.Job) { s.Cache = true }), "jobs.b.cache: is not available for a step that is final or has when: failure"},
		"the output of a need":      {changed(line, "c", reads("job:a/log")), ""},
		"of a need that may fail":   {changed(changed(line, "b", when(spec.WhenAlways)), "b", reads("job:a/log")), "jobs.b.inputs[0].from: b may start although a has not succeeded"},
		"of one before it":          {changed(changed(line, "b", when(spec.WhenAlways)), "c", reads("job:a/log")), "jobs.c.inputs[0].from: c may start although a has not succeeded"},
		"in a final step":           {changed(changed(changed(line, "a", output), "z", final), "z", reads("job:a/log")), "jobs.z.inputs[0].from: z is a final step, and starts although a has not succeeded"},
		"of a step that is skipped": {changed(inner, "y", reads("job:in.q/log")), "jobs.y.inputs[0].from: in.q may be skipped although in succeeds"},
	} {
		if z, ok := row.pipeline.Jobs["z"]; ok && z.Image == "" {
			row.pipeline = changed(row.pipeline, "z", func(s *spec.Job) { s.Name, s.Image = "z", "busybox" })
		}
		if text := strings.Join(faultsOf(row.pipeline.WithDefaults()), "; "); text != row.want {
			t.Errorf("%s: got %q, want %q", what, text, row.want)
		}
	}
	alone := spec.Job{Name: "x", Image: "busybox", When: spec.WhenAlways, Final: true}.WithDefaults()
	if got := alone.Validate(); len(got) != 2 || got[0].Field != "when" || got[1].Field != "final" {
		t.Errorf("a job with conditions is refused by %v", got)
	}
}

func TestFinalStepsComeLast(t *testing.T) {
	t.Parallel()
	p := changed(graph("a: z", "b", "z"), "b", final)
	if got := strings.Join(p.Order(), " "); got != "z a b" {
		t.Errorf("the order is %s", got)
	}
}

func TestBranchesAreConditionalStepsAndTheirDependents(t *testing.T) {
	t.Parallel()
	p := changed(changed(graph("a", "b: a", "c: b", "d: a", "z"), "b", when(spec.WhenFailure)), "z", final)
	if got := fmt.Sprint(slices.Sorted(maps.Keys(p.Branches()))); got != "[b c z]" {
		t.Errorf("the branches are %s", got)
	}
}

func TestWithoutKeepsStepsThatAreDecidedAgain(t *testing.T) {
	t.Parallel()
	p := changed(changed(changed(graph("a", "b: a", "c: b", "d: a", "e: c", "z"), "c", when(spec.WhenFailure)), "d",
		when(spec.WhenAlways)), "z", final)
	for succeeded, want := range map[string]string{
		"a c d e z": "b c e z",   // b failed: its branch is decided again
		"a":         "b c d e z", // canceled before the branches
		"a b d z":   "",          // c and e were skipped
		"a b z":     "d",         // d failed, and z runs again
		"a b c d e": "z",         // z failed
	} {
		done := map[string]berth.JobID{}
		for _, key := range strings.Fields(succeeded) {
			done[key] = "0190b5a0-0000-7000-8000-000000000000"
		}
		got := strings.Join(slices.Sorted(maps.Keys(p.Without(done).Jobs)), " ")
		if want == "d" {
			want = "d z"
		}
		if got != want {
			t.Errorf("without %s: %q, want %q", succeeded, got, want)
		}
	}
}
