package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

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

// killed returns a gang of two whose members on m0 and m1 were killed since they were not prepared in time, a running job on
// m2, and the preemption of that job for a waiting gang. The preemption counts on m1 as well.
func (s *gangStage) killed() (gang, waiting berth.JobID, attempt int, p db.Preemption) {
	s.t.Helper()
	gang = s.gang(2, nil)
	attempt = s.begin(gang, grantOf("m0", 0), grantOf("m1", 0))
	s.claim(gang, attempt, 0)
	s.claim(gang, attempt, 1)
	victim := s.gang(1, nil)
	s.runs(victim, s.begin(victim, grantOf("m2", 0)), 1)
	s.ago(`UPDATE allocations SET claimed_at = now() - interval '61 min' WHERE phase <> 'running'`)
	if n, err := s.db.Attempts.KillUnprepared(s.t.Context(), s.term, patience, 10); n != 1 || err != nil {
		s.t.Fatal(n, err)
	}
	waiting = s.gang(2, nil)
	p = s.preemption(waiting, victim)
	one, two := oneGPU(waiting, gang, 0), oneGPU(waiting, victim, 0)
	one.Machine, two.Machine = "m1", "m2"
	p.Nominations = []db.Nomination{one, two}
	return gang, waiting, attempt, p
}

// stop reports the end of the member on m0 and has the gang stop.
func (s *gangStage) stop(gang berth.JobID, attempt int) {
	s.t.Helper()
	s.mustTell(gang, attempt, 0, berth.PhaseSealed, ended(failure.CauseNotStarted, 137))
	if stopped, err := s.db.Attempts.Stop(s.t.Context(), gang, attempt); err != nil || !stopped {
		s.t.Fatal(stopped, err)
	}
}

// TestARepairKeepsNoPartThatIsNominatedForOthers checks that a gang which stops after others have counted on its killed
// members does not keep their capacity: with a part that is kept for two jobs, neither starts.
func TestARepairKeepsNoPartThatIsNominatedForOthers(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	gang, waiting, attempt, p := s.killed()
	if why := s.giveWay(s.term, p); why != "" {
		t.Fatal(why)
	}
	s.stop(gang, attempt)
	s.mustTell(gang, attempt, 1, berth.PhaseSealed, ended(failure.CauseNotStarted, 137))
	s.settle(gang, attempt)
	if n := one[int](s.stage, `SELECT count(*) FROM nominations WHERE beneficiary = $1 AND gpu_idx >= 0`, gang); n != 0 {
		t.Errorf("the repair keeps %d GPUs, want none", n)
	}
	if c := s.commit(s.term, s.start(waiting, grantOf("m1", 0), grantOf("m0", 0))); len(c.Started) != 1 {
		t.Errorf("the waiting gang does not start: %+v", c.Refused)
	}
}

// TestNoPreemptionCountsOnCapacityOfARepair checks that a preemption is refused if it counts on a gang that has kept the
// capacity for its repair since the plan.
func TestNoPreemptionCountsOnCapacityOfARepair(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	gang, waiting, attempt, p := s.killed()
	s.stop(gang, attempt)
	if why := s.giveWay(s.term, p); !strings.Contains(why, "for its repair") || s.nominated(waiting) != "" {
		t.Errorf("refused for %q; %q is nominated, want none", why, s.nominated(waiting))
	}
}

// sharing returns a gang whose two members on m0 were killed since they were not prepared in time, and the first of which
// has failed. The capacity of the member with the given GPU is nominated for another gang until the given time.
func (s *gangStage) sharing(gpu int, until time.Time) (gang berth.JobID) {
	s.t.Helper()
	gang = s.gang(2, nil)
	attempt := s.begin(gang, grantOf("m0", 0), grantOf("m0", 1))
	s.claim(gang, attempt, 0)
	s.claim(gang, attempt, 1)
	victim := s.gang(1, nil)
	s.runs(victim, s.begin(victim, grantOf("m2", 0)), 1)
	s.ago(`UPDATE allocations SET claimed_at = now() - interval '61 min' WHERE phase <> 'running'`)
	if n, err := s.db.Attempts.KillUnprepared(s.t.Context(), s.term, patience, 10); n != 1 || err != nil {
		s.t.Fatal(n, err)
	}
	waiting := s.gang(2, nil)
	p := s.preemption(waiting, victim)
	one, two := oneGPU(waiting, gang, gpu), oneGPU(waiting, victim, 0)
	one.Capacity, one.ExpiresAt, two.Machine = s.member(gang), until, "m2"
	p.Nominations = []db.Nomination{one, two}
	if why := s.giveWay(s.term, p); why != "" {
		s.t.Fatal(why)
	}
	s.mustTell(gang, attempt, 0, berth.PhaseSealed, ended(failure.CauseExited, 1)) // the other member survives
	if stopped, err := s.db.Attempts.Stop(s.t.Context(), gang, attempt); err != nil || !stopped {
		s.t.Fatal(stopped, err)
	}
	return gang
}

// member returns the capacity of one member of a gang.
func (s *gangStage) member(gang berth.JobID) (c berth.Capacity) {
	s.t.Helper()
	err := s.pool.QueryRow(s.t.Context(), `SELECT cpu_m, mem_mb, disk_mb, gpu_milli FROM allocations WHERE job = $1 AND rank = 0`,
		gang).Scan(&c.CPUMilli, &c.MemoryMiB, &c.DiskMiB, &c.GPUMilli)
	if err != nil || c.CPUMilli == 0 || c.MemoryMiB == 0 {
		s.t.Fatal(c, err)
	}
	return c
}

// TestARepairKeepsTheRestOfASharedMachine checks that a gang with two members on one machine keeps all capacity of the
// member that still stops, if only the other member's part is nominated for another job or the nomination has expired.
func TestARepairKeepsTheRestOfASharedMachine(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		gpu   int
		until time.Time
	}{"part of the ended member": {0, time.Time{}}, "expired": {1, time.Now().Add(-time.Minute)}} {
		s := newGangStage(t)
		gang := s.sharing(x.gpu, x.until)
		want := s.member(gang)
		got := one[[]int64](s.stage, `SELECT array_agg(v ORDER BY e.gpu_idx, n) FROM nominations e,
			unnest(ARRAY[gpu_idx, milli, cpu_m, memory_mib, disk_mib]) WITH ORDINALITY AS u(v, n) WHERE beneficiary = $1`, gang)
		if !slices.Equal(got, []int64{-1, 0, want.CPUMilli, want.MemoryMiB, want.DiskMiB, 1, 1000, 0, 0, 0}) {
			t.Errorf("%s: the repair keeps %v, want %+v with GPU 1", name, got, want)
		}
	}
}

// withdrawals returns the withdrawals of all nominations as a plan sees them now.
func (s *stage) withdrawals() (list []db.Withdrawal) {
	s.t.Helper()
	for _, m := range s.loadQueue().Nominations {
		list = append(list, db.Withdrawal{Job: m.Beneficiary, Machine: m.Machine, ExpiresAt: m.ExpiresAt})
	}
	return list
}

// withdraws deletes nominations, and returns the number of deleted rows.
func (s *stage) withdraws(term db.Term, list []db.Withdrawal) int {
	s.t.Helper()
	n, err := s.db.Queue.WithdrawNominations(s.t.Context(), term, list)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// TestAWithdrawalDeletesTheNominationsOfItsPlan checks that a withdrawal by a plan older than the latest preemption of the
// job deletes nothing, that one by a former leader is an error, and that the capacity is open to all jobs afterwards.
func TestAWithdrawalDeletesTheNominationsOfItsPlan(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]time.Time{"never": {}, "in an hour": time.Now().Add(time.Hour)} {
		s := newStage(t)
		victim, waiting := s.standing()
		former := s.term()
		p := s.preemption(waiting, victim)
		p.Nominations[0].ExpiresAt = time.Now().Add(time.Minute)
		if why := s.giveWay(former, p); why != "" {
			t.Fatal(why)
		}
		stale := s.withdrawals()
		p.Nominations[0].ExpiresAt = until
		if why := s.giveWay(former, db.Preemption{For: waiting, Nominations: p.Nominations}); why != "" {
			t.Fatal(why)
		}
		mustExec(t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s'`)
		term, ok := s.lead("next", time.Hour)
		if !ok {
			t.Fatal("no lead")
		}
		if n := s.withdraws(term, stale); n != 0 || s.nominated(waiting) != "m0" {
			t.Errorf("%s: a stale plan deletes %d nominations, so that %q is left", name, n, s.nominated(waiting))
		}
		now := s.withdrawals()
		if _, err := s.db.Queue.WithdrawNominations(t.Context(), former, now); err == nil || s.nominated(waiting) != "m0" {
			t.Errorf("%s: a former leader withdraws nominations: %v", name, err)
		}
		s.exit(victim, 1, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143})
		s.settle(victim, 1)
		other := s.start(s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 }), grantOf("m0", 0, 1))
		s.mustRefuse(term, other, "kept for a job that others gave way to")
		if n := s.withdraws(term, now); n != 3 || s.nominated(waiting) != "" {
			t.Errorf("%s: deletes %d nominations and leaves %q, want 3 and none", name, n, s.nominated(waiting))
		}
		if n := s.withdraws(term, now); n != 0 {
			t.Errorf("%s: a second withdrawal deletes %d nominations", name, n)
		}
		if c := s.commit(term, other); len(c.Started) != 1 {
			t.Errorf("%s: the capacity is not free: %+v", name, c.Refused)
		}
	}
}

// TestAWithdrawalLeavesRepairsAlone checks that a plan made before a gang failed does not withdraw the nominations of the
// gang's repair, and that nominations of other jobs and machines stay.
func TestAWithdrawalLeavesRepairsAlone(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, _ := s.failed()
	before := s.nominated(id)
	list := s.withdrawals()
	if n := s.withdraws(s.term, list); n != 0 || len(list) == 0 || before == "" || s.nominated(id) != before {
		t.Errorf("%d of the nominations %v of a repair are withdrawn", n, list)
	}
	victim := s.gang(1, nil)
	s.runs(victim, s.begin(victim, grantOf("m2", 1)), 1)
	waiting := s.gang(1, nil)
	p := s.preemption(waiting, victim)
	p.Nominations[0].Machine = "m2"
	p.Nominations[0].GPUs, p.Nominations[0].Capacity.GPUMilli = p.Nominations[0].GPUs[1:], 1000
	if why := s.giveWay(s.term, p); why != "" {
		t.Fatal(why)
	}
	if n := s.withdraws(s.term, []db.Withdrawal{{Job: waiting, Machine: "m0"}, {Job: victim, Machine: "m2"}}); n != 0 {
		t.Errorf("%d nominations of another machine or job are withdrawn", n)
	}
}
