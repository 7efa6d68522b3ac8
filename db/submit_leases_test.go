package db_test

import (
	"math"
	"testing"
	"time"

	"berth"
	"berth/db"
)

// unstarted gives the stage's tenant that many copies of a submitted job.
func (s *stage) unstarted(n int) {
	s.t.Helper()
	id := s.submit(nil)
	mustExec(s.t, s.pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		SELECT gen_random_uuid(), tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor
		FROM jobs
		CROSS JOIN generate_series(2, $2::int)
		WHERE id = $1`, id, n)
}

func TestSubmitsOfATenantWhoseJobsWaitForTheirWorkflowsSlowDown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const tenant = berth.TenantID("default")
	take := func(most int) db.SubmitGrant {
		t.Helper()
		g, err := s.db.Tenants.TakeSubmits(t.Context(), tenant, []db.SubmitLimit{{Tenant: tenant, Rate: 100}, {Tenant: "above", Rate: 1000}}, most)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if g := take(200); g.Share != 1 || g.Granted != 200 {
		t.Errorf("an idle tenant gets %+v, want its burst of 200", g)
	}
	for _, c := range []struct {
		more int
		want float64
	}{{250, 1}, {125, 0.5}, {1000, 0.1}} {
		s.unstarted(c.more)
		if g := take(1); math.Abs(g.Share-c.want) > 0.01 {
			t.Errorf("with %d more jobs that wait for workflows: %+v, want the share %g", c.more, g, c.want)
		}
	}
	mustExec(t, s.pool, `UPDATE submit_leases SET due = now() - interval '1 hour'`)
	if g := take(200); g.Granted != 20 {
		t.Errorf("a tenth of the rate of 100 gives a burst of %d, want 20", g.Granted)
	}
	if g := take(1); g.Granted != 0 || g.Wait < 20*time.Millisecond {
		t.Errorf("after the burst: %+v, want nothing for about 100 ms", g)
	}
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceled', version = version + 1, actor = 'test' WHERE state = 'submitted'`)
	if g := take(1); g.Share != 1 {
		t.Errorf("without waiting jobs: %+v, want the whole rate", g)
	}
}
