package db_test

import (
	"slices"
	"testing"

	"berth"
	"berth/db"
)

// A tenant with a long backlog does not hide the jobs of others from the sweep.
func TestSubmittedJobsAreReadTenantByTenant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, tenant := range []berth.TenantID{"big", "big", "big", "big", "small"} {
		if _, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: tenant, Spec: s.spec(nil), Actor: "user:test"}); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.db.Jobs.SubmittedBefore(t.Context(), 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	var got []berth.TenantID
	for _, r := range rows {
		got = append(got, r.Tenant)
	}
	if want := []berth.TenantID{"big", "small", "big"}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

// The workflow of a job names the submitter, also if another caller has changed the job since, or
// if the version before has stored it.
func TestDispatchNamesTheSubmitter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	job, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(nil), Actor: "user:ann"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Jobs.Hold(t.Context(), "default", job.ID, "user:bob"); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		one, err := s.db.Jobs.Submitted(t.Context(), []berth.JobID{job.ID})
		if err != nil {
			t.Fatal(err)
		}
		swept, err := s.db.Jobs.SubmittedBefore(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		live, err := s.db.Jobs.Live(t.Context(), []berth.JobID{job.ID})
		if err != nil {
			t.Fatal(err)
		}
		for name, rows := range map[string][]db.Dispatch{"Submitted": one, "SubmittedBefore": swept, "Live": live} {
			if len(rows) != 1 || rows[0].User != "ann" {
				t.Errorf("%s: %s returns %+v, want the user ann", when, name, rows)
			}
		}
	}
	check("after a hold by another user")
	mustExec(t, s.pool, `UPDATE jobs SET submitted_by = NULL WHERE id = $1`, job.ID)
	check("without submitted_by")
}
