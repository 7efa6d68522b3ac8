package db_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
)

func TestMembersThatNoReplicaWaitsForAreFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	unwaited := func() (list []berth.JobID) {
		t.Helper()
		jobs, err := s.db.Attempts.Unwaited(t.Context(), 20*time.Second, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			list = append(list, j.ID)
		}
		return list
	}
	share := func(replica string, changed bool, members ...berth.AllocationID) {
		t.Helper()
		if err := s.db.Attempts.NewWaiterSet(replica).Share(t.Context(), members, changed); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, jobs ...berth.JobID) {
		t.Helper()
		if diff := cmp.Diff(jobs, unwaited()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	var jobs []berth.JobID
	var allocs []berth.AllocationID
	for range 3 {
		id, attempt := s.started(nil)
		if len(jobs) == 1 { // m0 has two devices
			s.exit(id, attempt, 0, exited(0))
			s.settle(id, attempt) // ended: no replica has to wait for it
		}
		mustExec(t, s.pool, `UPDATE allocations SET claimed_at = now() - interval '1 min' - id * interval '-1 s' WHERE job = $1`, id)
		jobs, allocs = append(jobs, id), append(allocs, s.alloc(id, attempt))
	}
	first, second := jobs[0], jobs[2]
	want("no replica has said anything")
	share("a", true)
	want("a replica waits for nobody", first, second)
	share("a", true, allocs[0])
	want("it waits for the first", second)
	share("b", true, allocs[2])
	want("another waits for the second")
	mustExec(t, s.pool, `UPDATE waiter_sets SET at = now() - interval '2 min' WHERE replica = 'b'`)
	want("the other has been silent for long", second)
	share("b", false, allocs[2])
	want("it answers again")
	mustExec(t, s.pool, `DELETE FROM waiter_sets WHERE replica = 'b'`) // as after a crash of the database
	share("b", false, allocs[2])
	want("its set was lost and came again")
	if err := s.db.Attempts.NewWaiterSet("b").Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("it stopped", second)
	mustExec(t, s.pool, `UPDATE allocations SET claimed_at = now() WHERE job = $1`, second)
	want("its waiter may be on its way")
}
