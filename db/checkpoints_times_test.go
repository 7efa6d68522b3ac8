package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// A checkpoint has the times of its slowest member. An agent of the version before reports none.
func TestACheckpointHasTheTimesOfItsSlowestMember(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) { saves(2)(j); j.Members = 2 })
	attempt := s.place(id, "m0", "m0")
	mustExec(t, s.pool, `UPDATE allocations SET state = 'active' WHERE job = $1`, id) // as claims do
	short, long := 1500*time.Millisecond, time.Minute
	for step, members := range [][]wire.CheckpointReport{
		{{WriteTime: &short, StoreTime: &long}, {WriteTime: &long, StoreTime: &short}},
		{{}, {WriteTime: &short}}, // an agent of the version before, and a new one
	} {
		for member, p := range members {
			alloc := one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND rank = $2`, id, member)
			p.AgentBoot, p.Epoch, p.Alloc, p.Job = a.boot, a.epoch, berth.AllocationID(alloc), id
			p.Attempt, p.OfAttempt, p.Rank, p.Step = attempt, attempt, member, int64(step)
			p.Manifest, p.SHA256, p.Bytes = manifestKey(id, attempt, member, p.Step), "x", 1
			if _, err := s.db.Objects.RegisterCheckpoint(t.Context(), a.machine, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := s.job(id).Checkpoints
	if c := list[1]; c.Write == nil || *c.Write != 60 || c.Store == nil || *c.Store != 60 {
		t.Errorf("checkpoint is %+v, want 60 s for both times", c)
	}
	if c := list[0]; c.Write == nil || *c.Write != 1.5 || c.Store != nil {
		t.Errorf("checkpoint is %+v, want 1.5 s to write it, and no time to store it", c)
	}
}
