package db_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth/spec"
)

// TestChangesOfQuotasAreRecorded: the log has the parent and the limits of a tenant
// from each change on, and nothing where neither changed.
func TestChangesOfQuotasAreRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, n := range []spec.NewTenant{{ID: "faculty"}, {ID: "lab", Parent: "faculty"}} {
		if err := s.db.Tenants.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	running, weight := 3, 2.0
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "lab", MaxRunning: &running}); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Tenants.Update(t.Context(), "lab", spec.TenantPatch{Weight: &weight}); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Tenants.Delete(t.Context(), "lab"); err != nil {
		t.Fatal(err)
	}
	rows, err := s.pool.Query(t.Context(), `
		SELECT concat_ws(' ', tenant, coalesce(parent, '-'), coalesce(max_running::text, 'any'), CASE WHEN deleted THEN 'deleted' END)
		FROM tenant_log
		WHERE tenant IN ('faculty', 'lab')
		ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{"faculty - any", "lab faculty any", "lab faculty 3", "lab faculty any deleted"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q: %v", got, want, err)
	}
}
