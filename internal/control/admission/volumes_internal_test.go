package admission

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

// A tenant that another process has created may read the folders of the tenants
// above it, even if this process does not know the tenant yet.
func TestATenantThatIsNotRememberedIsLookedForAnew(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	for _, n := range []spec.NewTenant{{ID: "vision"}, {ID: "team", Parent: "vision"}} {
		if err := d.Tenants.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	i := New(d, owned(t), Rules{Volumes: Volumes{"all": nil, "models": {"vision"}}})
	i.quotas.rows = map[berth.TenantID]db.TenantRow{"default": {}}
	i.quotas.at = time.Now().Add(time.Hour)
	for tenant, want := range map[berth.TenantID][]spec.Volume{"team": {"all", "models"}, "nobody": {"all"}} {
		if got, err := i.Allowed(t.Context(), tenant); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s may read %v, want %v; %v", tenant, got, want, err)
		}
	}
}
