package scheduler_test

import (
	"log/slog"
	"testing"
	"time"

	"berth"
	"berth/internal/control/scheduler"
	"berth/spec"
)

// canceling is an array that is to stop and whose coordinator does nothing about it.
// Its elements run.
func (r *rig) canceling(size int) berth.JobID {
	r.t.Helper()
	id := r.submitted(func(j *spec.Job) { j.Array = &spec.Array{Size: size} })
	if _, err := r.db.Parents.ReconcileThrough(r.t.Context(), id, new(0)); err != nil {
		r.t.Fatal(err)
	}
	for _, state := range []berth.State{berth.Queued, berth.Scheduled, berth.Running} {
		r.exec(`UPDATE jobs SET state = $2, version = version + 1 WHERE parent = $1`, id, state)
	}
	for _, state := range []berth.State{berth.Running, berth.Canceling} {
		r.exec(`UPDATE jobs SET state = $2, version = version + 1 WHERE id = $1 AND state <> $2`, id, state)
	}
	r.exec(`UPDATE jobs SET state_at = now() - interval '1 hour' WHERE id = $1`, id)
	return id
}

// While Temporal is away the reconciler stops the running children of parents: a
// bounded number per pass, so that overdue kills and deadlines are checked in between,
// and in turn, so that a small array does not wait for a large one.
func TestAPassTellsSoManyElementsToStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const size, stops = 50, 20
	large, small := r.canceling(size), r.canceling(1)
	told := func(id berth.JobID) int {
		return value[int](r, `SELECT count(*)::int FROM jobs WHERE parent = $1 AND state = 'canceling'`, id)
	}
	pass := scheduler.New(scheduler.Options{
		DB: r.db, Poker: r.poke, Logger: slog.New(slog.NewTextHandler(r.log, nil)), Ages: scheduler.Ages{Untended: time.Second},
	}).Parents(stops)
	inTurn, before := false, 0
	for passes := 0; before < size+1; passes++ {
		if passes == 20 { // four are enough, if none comes so late that it pokes once more
			t.Fatalf("after %d passes %d of %d elements were told to stop", passes, before, size+1)
		}
		if err := pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := told(large) + told(small)
		if now-before > stops {
			t.Errorf("a pass told %d elements to stop, want at most %d", now-before, stops)
		}
		before, inTurn = now, inTurn || told(small) == 1 && told(large) < size
	}
	if !inTurn {
		t.Error("the small array waited for the large one")
	}
}
