package admission_test

import (
	"slices"
	"testing"

	"berth"
	"berth/internal/control/admission"
	"berth/spec"
)

// A file with checkpoint.reshard must name the checkpoint, unless it retries a job, which names it.
func TestReshardNeedsACheckpoint(t *testing.T) {
	t.Parallel()
	file := func(from, reshard string) spec.Job {
		return spec.Job{Name: "fit", Image: "busybox", Checkpoint: &spec.CheckpointPolicy{Path: "/c", From: from, Reshard: reshard}}.WithDefaults()
	}
	pipeline := func(j spec.Job) spec.Pipeline {
		j.Name = ""
		return spec.Pipeline{Kind: string(berth.KindPipeline), Name: "p", Jobs: map[string]spec.Job{"fit": j}}.WithDefaults()
	}
	schedule := func(j spec.Job) spec.Schedule {
		return spec.Schedule{Name: "nightly", Cron: "0 3 * * *", Job: &j}.WithDefaults()
	}
	const source = "01920000-0000-7000-8000-00000000000a@7"
	whole, alone := file(source, spec.ReshardAll), file("", spec.ReshardAll)
	for claim, c := range map[string]struct {
		faults []berth.FieldError
		field  string
	}{
		"with a checkpoint":               {admission.Check(whole), ""},
		"without":                         {admission.Check(alone), "checkpoint.reshard"},
		"in a retry":                      {admission.CheckRetry(alone), ""},
		"another value":                   {admission.Check(file(source, "even")), "checkpoint.reshard"},
		"another value in a retry":        {admission.CheckRetry(file("", "even")), "checkpoint.reshard"},
		"in a step":                       {admission.CheckPipeline(pipeline(alone)), "jobs.fit.checkpoint.reshard"},
		"in a step with a checkpoint":     {admission.CheckPipeline(pipeline(whole)), ""},
		"in a step of a resumed run":      {admission.CheckResumed(pipeline(alone)), ""},
		"in a schedule":                   {admission.CheckSchedule(schedule(alone)), "job.checkpoint.reshard"},
		"in a schedule with a checkpoint": {admission.CheckSchedule(schedule(whole)), ""},
	} {
		fields := []string{}
		for _, f := range c.faults {
			fields = append(fields, f.Field)
			if f.Allowed == "" {
				t.Errorf("%s: the fault %+v allows nothing", claim, f)
			}
		}
		if want := []string{c.field}; c.field == "" && len(fields) > 0 || c.field != "" && !slices.Equal(fields, want) {
			t.Errorf("%s: faults of %q, want %q", claim, fields, c.field)
		}
	}
}
