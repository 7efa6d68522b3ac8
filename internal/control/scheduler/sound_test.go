package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/scheduler"
)

// versions names the version of every row of the tables that repairs write.
func (r *rig) versions() string {
	r.t.Helper()
	return value[string](r, `
		SELECT md5(string_agg(v, ',' ORDER BY v)) FROM (
			SELECT 'j' || ctid || xmin AS v FROM jobs
			UNION ALL SELECT 'a' || ctid || xmin FROM allocations
			UNION ALL SELECT 't' || ctid || xmin FROM attempts
			UNION ALL SELECT 'm' || ctid || xmin FROM machines
			UNION ALL SELECT 'g' || ctid || xmin FROM gpu_devices
			UNION ALL SELECT 'c' || ctid || xmin FROM checkpoints
			UNION ALL SELECT 'e' || tableoid || ctid || xmin FROM job_events
			UNION ALL SELECT 'k' || ctid || xmin FROM earmarks -- the table below nominations: a view has no ctid
			UNION ALL SELECT 'd' || ctid || xmin FROM doomed_objects) x`)
}

// counted is a Temporal that counts how often it was compared with the rows.
type counted struct {
	*temporal
	passes atomic.Int64
}

func (c *counted) Open(ctx context.Context, each func(berth.JobID)) error {
	c.passes.Add(1)
	return c.temporal.Open(ctx, each)
}

// Everything that may come apart has come apart; the first passes repair it, and
// those after them write nothing.
func TestAfterItsRepairsTheReconcilerWritesNothing(t *testing.T) {
	t.Parallel()
	r, objects := newRig(t), store(t)
	r.machine("m0", 8, 2)
	trained, _ := r.trained(objects, 48*time.Hour, map[int64]string{10: "verified", 20: "", 30: "bad"})
	waiting := r.queued(cpus(100)) // no machine has that much
	submitted := r.submitted(nil)  // without a workflow
	expired := r.queued(cpus(100))
	r.exec(`UPDATE jobs SET queue_deadline = now() - interval '1 s' WHERE id = $1`, expired)
	r.exec(`UPDATE jobs SET state_at = now() - interval '1 hour' WHERE id = ANY($1)`, []berth.JobID{waiting, submitted})
	for i, edit := range []string{
		`UPDATE allocations SET reserved_at = now() - interval '1 hour' WHERE job = $1`,                                                            // never claimed
		`UPDATE allocations SET state = 'active', phase = 'pulling', claimed_at = now() - interval '1 day' WHERE job = $1`,                         // never prepared
		`UPDATE allocations SET state = 'active', phase = 'running', stop_by = now() - interval '1 hour', orders = '{"stop":true}' WHERE job = $1`, // never stopped
	} {
		id := r.queued(nil)
		r.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1 WHERE id = $1`, id)
		r.exec(`INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, 1, 1)`, id)
		r.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 1, 0, 'm0', 1, $2, 1, 0, 0)`, id, 100+i)
		r.exec(edit, id)
	}
	x := &counted{temporal: newTemporal()}
	r.lead(func(o *scheduler.Options) {
		o.Workflows, o.Objects = x, objects
		o.ReconcileEvery, o.TidyEvery = 10*time.Millisecond, 10*time.Millisecond
		o.Silence = db.Silence{Suspect: time.Hour, Lost: 2 * time.Hour}
	})
	r.awaitState(expired, berth.Failed)
	r.await("the kills are ordered", func() bool {
		return value[int](r, `SELECT count(*) FROM allocations WHERE orders ? 'kill'`) == 2
	})
	r.await("the closed attempt is swept", func() bool {
		return value[int](r, `SELECT count(*) FROM attempts WHERE swept_at IS NOT NULL AND job = '`+string(trained)+`'`) == 1
	})
	r.await("the unclaimed one is settled", func() bool { return value[int](r, `SELECT count(*) FROM attempts WHERE next_state = 'retrying'`) == 1 })
	// Placing it again is the placer's affair, and none of a repair.
	r.exec(`UPDATE jobs SET held = true WHERE state IN ('queued', 'retrying')`)
	settle := x.passes.Load()
	r.await("another comparison", func() bool { return x.passes.Load() > settle+1 })
	before, passes := r.versions(), x.passes.Load()
	r.await("some passes more", func() bool { return x.passes.Load() > passes+4 })
	if after := r.versions(); after != before {
		t.Errorf("the passes went on writing\n%s", r.log)
	}
}
