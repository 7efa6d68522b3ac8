package spec_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

func TestNeedsOfJobsAreValidated(t *testing.T) {
	t.Parallel()
	const id berth.JobID = "0190b5a0-0000-7000-8000-000000000000"
	need := spec.NeedOf(id)
	many := make([]string, spec.MaxNeeds+1)
	for i := range many {
		many[i] = "job:" + strings.Repeat("x", i+1)
	}
	for what, row := range map[string]struct {
		job  spec.Job
		want string // of the only fault; "" for none
	}{
		"one job":                {spec.Job{Needs: []string{need}}, ""},
		"a condition":            {spec.Job{Needs: []string{need}, When: spec.WhenFailure}, ""},
		"a name":                 {spec.Job{Needs: []string{"job:nightly"}}, ""}, // looked up before the submit
		"a step":                 {spec.Job{Needs: []string{"prepare"}}, `needs[0]: "prepare" names no job`},
		"nothing":                {spec.Job{Needs: []string{"job:"}}, `needs[0]: "job:" names no job`},
		"twice":                  {spec.Job{Needs: []string{need, need}}, "needs[1]: names " + need + " twice"},
		"too many":               {spec.Job{Needs: many}, "needs: names 101 jobs"},
		"an unknown condition":   {spec.Job{Needs: []string{need}, When: "failed"}, `when: "failed" is not known`},
		"a condition alone":      {spec.Job{When: spec.WhenAlways}, "when: has no effect without needs"},
		"an output":              {spec.Job{Needs: []string{need}, Inputs: []spec.Input{{From: "job:" + string(id) + "/a", To: "/a"}}}, ""},
		"one that may not exist": {spec.Job{Needs: []string{need}, When: spec.WhenAlways, Inputs: []spec.Input{{From: "job:" + string(id) + "/a", To: "/a"}}}, "inputs[0].from: the job may start although job " + string(id) + " has not succeeded"},
	} {
		row.job.Name, row.job.Image = "x", "busybox"
		var got []string
		for _, f := range row.job.WithDefaults().Validate() {
			got = append(got, f.Field+": "+f.Detail)
		}
		if text := strings.Join(got, "; "); text != row.want {
			t.Errorf("%s: got %q, want %q", what, text, row.want)
		}
	}
	step := graph("a", "b: a job:x")
	if got := strings.Join(faultsOf(step), "; "); got != "jobs.b.needs[1]: job:x is no step; only the pipeline as a whole may wait for jobs" {
		t.Errorf("a step that waits for a job: %s", got)
	}
	whole := graph("a")
	whole.Needs, whole.When = []string{need, "a"}, spec.WhenAlways
	if got := strings.Join(faultsOf(whole), "; "); got != `needs[1]: "a" names no job` {
		t.Errorf("a pipeline: %s", got)
	}
	if got := spec.UnknownNeeds([]string{need, "job:x", "a"}); len(got) != 1 || got[0].Field != "needs[1]" {
		t.Errorf("unknown needs: %v", got)
	}
	job := spec.Job{Image: "busybox", Needs: []string{need}}
	if got := (spec.Schedule{Name: "s", Cron: "0 3 * * *", Job: &job}).WithDefaults().Validate(); len(got) != 1 || got[0].Field != "needs" {
		t.Errorf("a schedule: %v", got)
	}
}
