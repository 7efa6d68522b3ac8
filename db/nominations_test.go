package db_test

import (
	"slices"
	"testing"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// stoppedTwice returns a job and the waiting job that it has stopped for: its first attempt has released GPU 0 of
// m0, which is nominated, and its second attempt is ordered to stop on GPU 1 for another job.
func (s *stage) stoppedTwice(term db.Term) (victim, waiting berth.JobID) {
	s.t.Helper()
	victim, beside := s.twoRun(term)
	waiting = s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
	p := s.preemption(waiting, victim)
	p.Nominations = []db.Nomination{oneGPU(waiting, victim, 0)}
	if why := s.giveWay(term, p); why != "" {
		s.t.Fatal(why)
	}
	s.exit(victim, 1, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143})
	s.settle(victim, 1)
	s.exit(beside, 1, 0, failure.Exit{Cause: failure.CauseExited})
	s.settle(beside, 1)
	if c := s.commit(term, s.start(victim, grantOf("m0", 1))); len(c.Started) != 1 {
		s.t.Fatalf("the second attempt: %+v", c.Refused)
	}
	s.claim(victim, 2, 0)
	s.run(victim)
	p = s.preemption(s.queued(func(j *spec.Job) { j.Resources.GPUs = 1000 }), victim)
	p.Nominations = nil
	if why := s.giveWay(term, p); why != "" {
		s.t.Fatal(why)
	}
	return victim, waiting
}

// nominatedGPUs lists the GPUs of nominations: of awake ones, whose capacity is kept, and of those that wait for a
// victim.
func (s *stage) nominatedGPUs() (awake, asleep []int) {
	s.t.Helper()
	for _, m := range s.loadQueue().Nominations {
		for _, g := range m.GPUs {
			if m.Asleep {
				asleep = append(asleep, g.Index)
			} else {
				awake = append(awake, g.Index)
			}
		}
	}
	return awake, asleep
}

// TestASecondStopLeavesFreeCapacityNominated checks that the capacity which a job has released for another job stays
// kept when the other job preempts again and counts on a second stop of the same job.
func TestASecondStopLeavesFreeCapacityNominated(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	victim, waiting := s.stoppedTwice(term)
	free := oneGPU(waiting, "", 0)
	free.Capacity.MemoryMiB = 10
	later := oneGPU(waiting, victim, 1)
	later.Capacity.MemoryMiB = 20
	if why := s.giveWay(term, db.Preemption{For: waiting, Nominations: []db.Nomination{free, later}}); why != "" {
		t.Fatal(why)
	}
	if awake, asleep := s.nominatedGPUs(); !slices.Equal(awake, []int{0}) || !slices.Equal(asleep, []int{1}) {
		t.Errorf("GPUs %v are kept and GPUs %v wait for a victim, want 0 and 1", awake, asleep)
	}
	if kept := one[int](s, `SELECT sum(memory_mib) FROM nominations WHERE victim IS NULL`); kept != 10 {
		t.Errorf("%d MiB of free memory are kept, want 10", kept)
	}
	s.mustRefuse(term, s.start(s.queued(func(j *spec.Job) { j.Resources.GPUs = 1000 }), grantOf("m0", 0)),
		"kept for a job that others gave way to")
}

// TestNominationsOfTwoAttemptsAreReadApart checks that rows of one victim whose first attempt has released its part
// and whose second attempt holds another part are two nominations.
func TestNominationsOfTwoAttemptsAreReadApart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	victim, waiting := s.stoppedTwice(s.term())
	mustExec(t, s.pool, `INSERT INTO nominations (beneficiary, machine_id, gpu_idx, milli, victim, victim_attempt)
		VALUES ($1, 'm0', 1, 1000, $2, 2)`, waiting, victim)
	if awake, asleep := s.nominatedGPUs(); !slices.Equal(awake, []int{0}) || !slices.Equal(asleep, []int{1}) {
		t.Errorf("GPUs %v are kept and GPUs %v wait for a victim, want 0 and 1", awake, asleep)
	}
}

// TestANominationMayNameAKilledJob checks that a preemption may count on a member that is killed without an order to
// stop, as one that was not prepared in time.
func TestANominationMayNameAKilledJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	first, second := s.twoRun(term)
	waiting := s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
	mustExec(t, s.pool, `UPDATE allocations SET orders = '{"kill": true}', stop_by = now() WHERE job = $1`, first)
	p := s.preemption(waiting, second)
	p.Nominations = []db.Nomination{oneGPU(waiting, first, 0), oneGPU(waiting, second, 1)}
	if why := s.giveWay(term, p); why != "" {
		t.Errorf("refused: %s", why)
	}
}
