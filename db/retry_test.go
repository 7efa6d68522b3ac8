package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
)

func TestARetryMayHaveAnotherSpec(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old := s.ended()
	as := *s.job(old).Spec
	as.Command = []string{"fixed"}
	for _, first := range []bool{true, false} {
		job, created, err := s.db.Retries.Retry(t.Context(), "default", old, db.RetryOptions{Spec: &as}, "user:test")
		if err != nil || created != first || *s.job(job.ID).RetryOf != old || job.ID != *s.job(old).RetriedBy {
			t.Fatalf("first %t: created %t, %+v, %v", first, created, job, err)
		}
		if got := s.job(job.ID).Spec.Command; len(got) != 1 || got[0] != "fixed" {
			t.Errorf("it runs %v", got)
		}
	}
	as.Command = []string{"fixed", "again"}
	if _, _, err := s.db.Retries.Retry(t.Context(), "default", old, db.RetryOptions{Spec: &as},
		"user:test"); berth.CodeOf(err) != berth.CodeConflict ||
		!strings.Contains(err.Error(), "already retried as") {
		t.Errorf("a second spec: %v", err)
	}
	if _, _, err := s.db.Retries.Retry(t.Context(), "default", s.submit(nil), db.RetryOptions{Spec: &as},
		"user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a live job: %v", err)
	}
	if _, _, err := s.db.Retries.Retry(t.Context(), "other", s.ended(), db.RetryOptions{Spec: &as},
		"user:test"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a job of another tenant: %v", err)
	}
}

// TestARetriedElementKeepsItsIndex checks that an element that is retried with another spec still knows its index,
// and that a step keeps the outputs that it reads.
func TestARetriedElementKeepsItsIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	array := s.array(3, nil)
	s.tend(array)
	element := s.element(array, 1)
	s.finish(element, 1)
	as := *s.job(element).Spec
	as.Env = map[string]string{"LR": "1"}
	job, _, err := s.db.Retries.Retry(t.Context(), "default", element, db.RetryOptions{Spec: &as}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	if env := s.job(job.ID).Spec.Env; env["BERTH_ARRAY_INDEX"] != "1" || env["BERTH_ARRAY_SIZE"] != "3" ||
		env["LR"] != "1" {
		t.Errorf("the element has %v", env)
	}

	run := s.studied(0, 0, 0)
	prep, sweep := s.step(run, "prep"), s.step(run, "sweep")
	step, err := s.db.Retries.AsJob(t.Context(), sweep, *s.job(sweep).Spec)
	if err != nil || len(step.Needs) > 0 || step.Inputs[0].From != (spec.OutputRef{Job: prep, Name: "data"}).String() {
		t.Fatalf("as a job the step is %+v, %v", step, err)
	}
	if faults := step.Validate(); len(faults) > 0 {
		t.Errorf("it is refused: %v", faults)
	}
	job, created, err := s.db.Retries.Retry(t.Context(), "default", sweep, db.RetryOptions{Spec: &step}, "user:test")
	if err != nil || !created || job.Parent != nil {
		t.Errorf("the retry is %+v, %t, %v", job, created, err)
	}
}
