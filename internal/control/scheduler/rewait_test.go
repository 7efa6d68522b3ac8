package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/internal/control/scheduler"
)

// The task of a waiter was lost between Temporal and a worker: the activity counts as
// started, and no replica has it.
func TestTheLeaderHasALostWaiterRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	lost, waited := r.queued(nil), r.queued(nil)
	x := newTemporal()
	x.open[lost], x.open[waited] = true, true
	r.lead(func(o *scheduler.Options) {
		o.Workflows, o.ReconcileEvery = x, 10*time.Millisecond
		o.Ages.Unwaited = time.Second
	})
	for _, id := range []berth.JobID{lost, waited} {
		r.awaitState(id, "scheduled")
	}
	err := r.db.Attempts.NewWaiterSet("a").Share(t.Context(), []berth.AllocationID{value[berth.AllocationID](r, `SELECT id FROM allocations WHERE job = $1`, waited)}, true)
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now() - interval '1 min', started_at = now()`)
	r.await("its waiter is repeated", func() bool { return slices.Contains(x.did(&x.rewaited), lost) })
	if slices.Contains(x.did(&x.rewaited), waited) {
		t.Error("a waiter that a replica has was repeated")
	}
}

// The poke about a grant was lost with a leader, and the machines have claimed the members: the workflow does not
// know that its job runs.
func TestTheLeaderPokesAWorkflowThatDoesNotKnowItsGrant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	id, known := r.queued(nil), r.queued(nil)
	x := newTemporal()
	x.open[id], x.open[known], x.unaware = true, true, map[berth.JobID]bool{id: true}
	r.lead(func(o *scheduler.Options) {
		o.Workflows, o.ReconcileEvery = x, 10*time.Millisecond
		o.Ages.Unwaited = time.Second
		o.Ages.Unclaimed = time.Hour // no poke of the reconciler is counted
	})
	r.awaitState(id, "scheduled")
	r.awaitState(known, "scheduled")
	if err := r.db.Attempts.NewWaiterSet("a").Share(t.Context(), nil, true); err != nil {
		t.Fatal(err)
	}
	r.await("the grants are poked", func() bool { return r.poke.of(id) > 0 && r.poke.of(known) > 0 })
	before, other := r.poke.of(id), r.poke.of(known)
	r.exec(`UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now() - interval '1 min', started_at = now()`)
	r.await("the workflow is poked again", func() bool { return r.poke.of(id) > before })
	r.await("the other waiter is repeated", func() bool { return slices.Contains(x.did(&x.rewaited), known) })
	if n := r.poke.of(known); n != other {
		t.Errorf("a workflow that has a waiter was poked %d times more", n-other)
	}
}
