package scheduler_test

import (
	"testing"

	"berth"
	"berth/spec"
)

// The leader keeps jobs of other tenants out of a pool until its rule is lifted.
func TestTheLeaderFollowsTheRulesOfPools(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 0)
	r.exec(`INSERT INTO tenants (id) VALUES ('vision')`)
	if err := r.db.Pools.Set(t.Context(), spec.DefaultPool, spec.PoolRules{Tenants: []berth.TenantID{"vision"}}, "operator:test"); err != nil {
		t.Fatal(err)
	}
	other := r.queued(nil)
	r.lead(nil)
	r.awaitState(r.named("vision", "theirs"), berth.Scheduled)
	if state := r.state(other); state != berth.Queued {
		t.Errorf("the older job of another tenant is %s", state)
	}
	if err := r.db.Pools.Set(t.Context(), spec.DefaultPool, spec.PoolRules{}, "operator:test"); err != nil {
		t.Fatal(err)
	}
	r.awaitState(other, berth.Scheduled)
	if n := value[int](r, `SELECT count(*) FROM allocations WHERE state = 'reserved'`); n != 2 {
		t.Errorf("%d allocations", n)
	}
}
