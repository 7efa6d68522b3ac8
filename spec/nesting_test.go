package spec_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
)

// nest makes a step of a pipeline one that is the inner pipeline.
func nest(p spec.Pipeline, step string, inner spec.Pipeline) spec.Pipeline {
	p.Jobs = maps.Clone(p.Jobs)
	p.Jobs[step] = spec.Job{Needs: p.Jobs[step].Needs, OnFailure: inner.OnFailure, Jobs: inner.Jobs}
	return p.WithDefaults()
}

// change edits one step.
func change(p spec.Pipeline, step string, edit func(*spec.Job)) spec.Pipeline {
	p.Jobs = maps.Clone(p.Jobs)
	s := p.Jobs[step]
	edit(&s)
	p.Jobs[step] = s
	return p
}

func leaves(outputs ...string) func(*spec.Job) {
	return func(s *spec.Job) {
		for _, o := range outputs {
			s.Outputs = append(s.Outputs, spec.Output{Name: o, Path: "/" + o})
		}
	}
}

func takes(from ...string) func(*spec.Job) {
	return func(s *spec.Job) {
		for i, f := range from {
			s.Inputs = append(s.Inputs, spec.Input{From: f, To: fmt.Sprintf("/in%d", i)})
		}
	}
}

// trained is a pipeline: prep has the output data; train is a pipeline with a step
// fit, which has the output model; report comes last. fit and report change these
// steps.
func trained(fit, report func(*spec.Job)) spec.Pipeline {
	inner := change(change(graph("load", "fit: load"), "load", leaves("data")), "fit", leaves("model"))
	inner = change(inner, "fit", fit)
	outer := change(graph("prep", "other", "train: prep", "report: train"), "prep", leaves("data"))
	return change(nest(outer, "train", inner), "report", report)
}

func none(*spec.Job) {}

func faultsOf(p spec.Pipeline) []string {
	var got []string
	for _, f := range p.Validate() {
		got = append(got, f.Field+": "+f.Detail)
	}
	return got
}

func TestNestedPipelinesAreValidated(t *testing.T) {
	t.Parallel()
	deep := graph("a")
	for range spec.MaxLevels - 1 {
		deep = nest(graph("a"), "a", deep)
	}
	wide := make([]string, spec.MaxSteps)
	for i := range wide {
		wide[i] = fmt.Sprintf("s%d", i)
	}
	full := graph(wide[:spec.MaxAllSteps/spec.MaxSteps]...)
	for key := range full.Jobs {
		full = nest(full, key, graph(wide...))
	}
	for what, row := range map[string]struct {
		pipeline spec.Pipeline
		want     string
	}{
		"two levels":          {trained(none, none), ""},
		"as deep as may be":   {deep, ""},
		"too deep":            {nest(graph("a"), "a", deep), "jobs.a" + strings.Repeat(".jobs.a", spec.MaxLevels-1) + ".jobs: is level 9 of nested pipelines"},
		"too many in all":     {full, "jobs: has 2004 steps, including nested pipelines"},
		"too many of a level": {nest(graph("a"), "a", graph(append(wide, "x")...)), "jobs.a.jobs: has 501 steps"},
		"nothing in it":       {nest(graph("a"), "a", graph()), "jobs.a.jobs: has 0 steps"},
		"no image":            {nest(graph("a"), "a", change(graph("fit"), "fit", func(s *spec.Job) { s.Image = "" })), `jobs.a.jobs.fit.image: required`},
		"an odd policy":       {nest(graph("a"), "a", spec.Pipeline{OnFailure: "never", Jobs: graph("b").Jobs}), `jobs.a.on_failure: "never" is not known`},
		"an odd name":         {change(trained(none, none), "train", func(s *spec.Job) { s.Name = "T" }), `jobs.train.name: "T" is not a valid name`},
		"an odd label":        {change(trained(none, none), "train", func(s *spec.Job) { s.Labels = map[string]string{"a=b": ""} }), `jobs.train.labels`},
		"a cycle inside":      {nest(graph("a"), "a", graph("x: y", "y: x")), "jobs.a.jobs.x.needs: is a cycle: x needs y needs x"},
		"a cycle around":      {nest(graph("a: b", "b: a"), "a", graph("x")), "jobs.a.needs: is a cycle: a needs b needs a"},
		"needs across levels": {nest(graph("a", "b"), "a", graph("x: b")), `jobs.a.jobs.x.needs[0]: there is no step "b"`},
		"of a job": {change(trained(none, none), "train", func(s *spec.Job) {
			s.Image, s.Cache, s.Notify = "busybox", true, []spec.Notify{{URL: "https://a.example"}}
		}), "jobs.train.image: is a field of jobs, but train is a nested pipeline; jobs.train.cache: is a field of jobs, but train is a nested pipeline; jobs.train.notify: is a field of jobs, but train is a nested pipeline"},
		"a policy of a job": {change(graph("a"), "a", func(s *spec.Job) { s.OnFailure = spec.Continue }), "jobs.a.on_failure: is only for pipelines and nested pipelines"},

		"an output of its level":    {trained(takes("job:load/data"), none), ""},
		"one of a level around":     {trained(takes("job:prep/data"), none), ""},
		"one that is inside":        {trained(none, takes("job:train.fit/model")), ""},
		"of nobody":                 {trained(takes("job:nobody/data"), none), `jobs.train.jobs.fit.inputs[0].from: there is no step "nobody"`},
		"of nobody inside":          {trained(none, takes("job:train.nobody/data")), `jobs.report.inputs[0].from: there is no step "nobody" in train`},
		"one that train needs not":  {trained(takes("job:other/data"), none), "jobs.train.jobs.fit.inputs[0].from: train does not need other"},
		"one that report needs not": {change(trained(none, none), "other", takes("job:train.fit/model")), "jobs.other.inputs[0].from: other does not need train"},
		"what it is in":             {trained(takes("job:train.load/data"), none), "jobs.train.jobs.fit.inputs[0].from: fit is inside train and cannot wait for it"},
		"a pipeline":                {trained(none, takes("job:train/model")), "jobs.report.inputs[0].from: train is a pipeline; its steps have the outputs"},
		"inside of a job":           {trained(none, takes("job:prep.fit/model")), "jobs.report.inputs[0].from: prep is not a pipeline"},
		"no such output inside":     {trained(none, takes("job:train.load/model")), `jobs.report.inputs[0].from: train.load has no output "model"`},
		"no step's name":            {trained(none, takes("job:train./model")), `jobs.report.inputs[0].from: "job:train./model" is not an output of a job`},
	} {
		if got := strings.Join(faultsOf(row.pipeline), "; "); got != row.want && (row.want == "" || !strings.HasPrefix(got, row.want)) {
			t.Errorf("%s: got %q, want %q", what, got, row.want)
		}
	}
	alone := spec.Job{Name: "x", Image: "busybox", Jobs: graph("a").Jobs}.WithDefaults()
	if got := alone.Validate(); len(got) != 1 || got[0].Field != "jobs" {
		t.Errorf("a job with steps is refused by %v", got)
	}
}

func TestDefaultsReachEveryLevel(t *testing.T) {
	t.Parallel()
	p := trained(none, none)
	train := p.Jobs["train"]
	if train.Name != "train" || train.OnFailure != spec.FailFast || train.Priority != nil || train.Jobs["fit"].Name != "fit" || train.Jobs["fit"].Members != 1 {
		t.Errorf("it is %+v", train)
	}
	if diff := cmp.Diff(p, p.WithDefaults()); diff != "" {
		t.Error(diff)
	}
}

func TestAllStepsComeOuterFirstAndAfterTheirNeeds(t *testing.T) {
	t.Parallel()
	var got []string
	p := trained(none, none)
	for path := range p.All() {
		got = append(got, path)
	}
	if want := "[other prep train train.load train.fit report]"; fmt.Sprint(got) != want || p.Count() != len(got) {
		t.Errorf("%d steps: %v, want %s", p.Count(), got, want)
	}
	if field := spec.StepField("train.fit"); field != "jobs.train.jobs.fit" {
		t.Errorf("field is %s", field)
	}
	for range p.All() { // a caller may stop early
		break
	}
}

// Succeeded steps are dropped at every level, and the remaining steps read their
// outputs by id.
func TestWithoutGoesIntoHalfDonePipelines(t *testing.T) {
	t.Parallel()
	p := trained(takes("job:load/data", "job:prep/data"), takes("job:train.fit/model", "job:train.load/data"))
	prep, load, fit := berth.JobID("01900000-0000-7000-8000-000000000001"), berth.JobID("01900000-0000-7000-8000-000000000002"), berth.JobID("01900000-0000-7000-8000-000000000003")
	rest := p.Without(map[string]berth.JobID{"prep": prep, "train.load": load})
	if faults := rest.Validate(); len(faults) > 0 {
		t.Errorf("it is not valid: %v", faults)
	}
	var got []string
	for path, s := range rest.All() {
		got = append(got, path)
		for _, in := range s.Inputs {
			got = append(got, in.From)
		}
	}
	want := []string{"other", "train", "train.fit", "job:" + string(load) + "/data", "job:" + string(prep) + "/data",
		"report", "job:train.fit/model", "job:" + string(load) + "/data"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if needs := slices.Concat(rest.Jobs["train"].Needs, rest.Jobs["train"].Jobs["fit"].Needs); len(needs) > 0 {
		t.Errorf("what is left needs %v", needs)
	}
	end := p.Without(map[string]berth.JobID{"prep": prep, "other": prep, "train": prep, "train.load": load, "train.fit": fit})
	if len(end.Jobs) != 1 || end.Jobs["report"].Inputs[0].From != "job:"+string(fit)+"/model" {
		t.Errorf("at the end it is %+v", end.Jobs)
	}
}

// The nearest step of a name counts.
func TestNamesAreLookedForOutwards(t *testing.T) {
	t.Parallel()
	steps := []string{"a", "b", "b.a", "b.c", "b.c.d", "e", "e.f"}
	known := func(path string) bool { return slices.Contains(steps, path) }
	for _, row := range []struct{ within, name, want string }{
		{"", "a", "a"}, {"b", "a", "b.a"}, {"b.c", "a", "b.a"}, {"b.c", "e", "e"}, {"b.c", "e.f", "e.f"},
		{"", "b.c.d", "b.c.d"}, {"b", "c.d", "b.c.d"}, {"b.c", "x", ""}, {"b", "a.f", ""}, {"e", "b.a", "b.a"},
	} {
		if got, ok := spec.FindStep(row.within, row.name, known); ok != (row.want != "") || ok && got != row.want {
			t.Errorf("in %q %s is %q", row.within, row.name, got)
		}
	}
}
