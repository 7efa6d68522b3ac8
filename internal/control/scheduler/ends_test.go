package scheduler_test

import (
	"testing"
	"time"

	"berth"
	"berth/internal/control/scheduler"
	"berth/spec"
)

// The replica that recorded an end died with the waiter of the member: no other
// process notifies the workflow.
func TestTheLeaderPokesWorkflowsThatHaveNotHeardOfAnEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.lead(func(o *scheduler.Options) {
		o.ReconcileEvery = time.Hour // it is not the reconciler's pass that finds it
		o.Ages.Unheard = 10 * time.Millisecond
	})
	id := r.queued(nil)
	r.awaitState(id, "scheduled")
	r.await("the placement is poked", func() bool { return r.poke.of(id) > 0 })
	before := r.poke.of(id)
	r.seals(id, 0, 0)
	r.await("its workflow is poked", func() bool { return r.poke.of(id) > before })
}

// seals ends one member of a job; the other members run.
func (r *rig) seals(id berth.JobID, rank, code int) {
	r.t.Helper()
	r.exec(`UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now() WHERE job = $1`, id)
	r.exec(`UPDATE allocations SET state = 'exited', phase = 'sealed', exited_at = now(), sealed_at = now(),
		exit = jsonb_build_object('cause', 'exited', 'code', $3::int, 'started_at', '2026-01-01T00:00:00Z')
		WHERE job = $1 AND rank = $2`, id, rank, code)
}

// The poke arrived, but Temporal gave the workflow's task to a worker that is gone:
// it gives the task to another one no sooner than 10 s later.
func TestTheLeaderSettlesAnEndOnWhichNoPokedWorkflowActs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.machine("m1", 4, 0)
	r.lead(func(o *scheduler.Options) {
		o.ReconcileEvery = time.Hour // it is not the reconciler's pass that settles
		o.Ages.Unheard = 10 * time.Millisecond
	})
	alone := r.queued(nil)
	gang := r.queued(func(s *spec.Job) { s.Members = 2 })
	r.awaitState(alone, "scheduled")
	r.awaitState(gang, "scheduled")
	r.seals(alone, 0, 0)
	r.awaitState(alone, "succeeded")
	r.seals(gang, 1, 1)
	r.await("the other member is ordered to stop", func() bool {
		return value[bool](r, `SELECT orders ? 'stop' FROM allocations WHERE job = $1 AND rank = 0`, gang)
	})
}
