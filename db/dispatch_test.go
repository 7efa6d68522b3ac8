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
