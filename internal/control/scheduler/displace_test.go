package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/control/scheduler"
	"berth/placement"
	"berth/spec"
)

func displacing(o *scheduler.Options) {
	o.Policy = placement.Policy{Preempt: true, PreemptAfter: time.Millisecond}
}

func TestAJobOfAHigherPriorityDisplacesALowerOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	r.lead(displacing)
	low := r.queued(wants(200, 2))
	r.awaitState(low, berth.Scheduled)
	r.run(low)
	high := r.queued(wants(800, 2))
	r.awaitState(low, berth.Preempting)
	if why := value[string](r, `SELECT reason ->> 'message' FROM jobs WHERE id = $1`, low); !strings.Contains(why, string(high)) || !strings.Contains(why, "higher priority") {
		t.Errorf("the victim is told %q", why)
	}
	r.await("the victim's workflow is poked", func() bool { return r.poke.of(low) > 0 })
	if n := value[int](r, `SELECT count(*) FROM allocations WHERE job = $1 AND orders ? 'stop' AND orders ? 'checkpoint'`, low); n != 1 {
		t.Error("its machine was not told")
	}
	r.stops(low)
	r.awaitState(high, berth.Scheduled)
	r.run(high)
	if state := r.state(low); state != berth.Retrying {
		t.Errorf("the victim is %s", state)
	}
	if n := value[int](r, `SELECT count(*) FROM nominations`); n != 0 {
		t.Errorf("%d nominations outlive the placement", n)
	}
	if n := value[int](r, `SELECT preemptions + failures + losses FROM jobs WHERE id = $1`, low); n != 1 {
		t.Errorf("the victim was charged %d in all, want its preemption alone", n)
	}
	r.sound()
}

// TestAGangWithTwoMembersOnAMachineIsPreempted checks that a gang gives way although several of its members hold
// capacity of one machine.
func TestAGangWithTwoMembersOnAMachineIsPreempted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	r.lead(displacing)
	low := r.queued(func(j *spec.Job) { gang(2)(j); wants(200, 1)(j) })
	r.awaitState(low, berth.Scheduled)
	r.run(low)
	high := r.queued(wants(800, 2))
	r.awaitState(low, berth.Preempting)
	r.stops(low)
	r.awaitState(high, berth.Scheduled)
	r.run(high)
	r.sound()
}

// TestAFailedPreemptionDoesNotEndTheTerm checks that the leader goes on with all other jobs while the database rejects
// the preemption for one job, and that it preempts for that job once the database accepts it.
func TestAFailedPreemptionDoesNotEndTheTerm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	r.machine("m1", 8, 1)
	r.exec(`CREATE FUNCTION reject_large() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.gpu_idx = 1 THEN RAISE EXCEPTION 'a nomination of GPU 1 is rejected' USING ERRCODE = '21000'; END IF;
			RETURN NEW;
		END $$`)
	r.exec(`CREATE TRIGGER reject_large BEFORE INSERT ON earmarks FOR EACH ROW EXECUTE FUNCTION reject_large()`)
	r.lead(displacing)
	low, small := r.queued(wants(200, 2)), r.queued(wants(200, 1))
	for _, id := range []berth.JobID{low, small} {
		r.awaitState(id, berth.Scheduled)
		r.run(id)
	}
	large := r.queued(wants(900, 2))
	r.await("the preemption fails", func() bool { return strings.Contains(r.log.String(), "preemption failed, will retry") })
	next := r.queued(func(j *spec.Job) { wants(500, 0)(j) })
	r.awaitState(next, berth.Scheduled)
	r.queued(wants(800, 1))
	r.awaitState(small, berth.Preempting)
	if n := strings.Count(r.log.String(), "lost leadership"); n != 0 {
		t.Errorf("the leader lost its term %d times:\n%s", n, r.log)
	}
	r.exec(`DROP TRIGGER reject_large ON earmarks`)
	r.awaitState(low, berth.Preempting)
	r.stops(low)
	r.awaitState(large, berth.Scheduled)
	r.sound()
}

// Every leader keeps the capacity that a victim released.
func TestANewLeaderKeepsWhatWasFreedForAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	stop := r.lead(displacing)
	low := r.queued(wants(200, 2))
	r.awaitState(low, berth.Scheduled)
	r.run(low)
	high := r.queued(wants(800, 2))
	r.awaitState(low, berth.Preempting)
	stop()
	r.exec(`UPDATE jobs SET held = true WHERE id = $1`, high) // so that it does not come for it at once
	thief := r.queued(wants(500, 1))
	r.stops(low)
	r.lead(nil)
	other := r.queued(func(j *spec.Job) { wants(500, 0)(j) }) // needs no GPU: the leader is at work
	r.awaitState(other, berth.Scheduled)
	if state := r.state(thief); state != berth.Queued {
		t.Errorf("another job is %s in the room that was freed", state)
	}
	r.exec(`UPDATE jobs SET held = false WHERE id = $1`, high)
	r.hint()
	r.awaitState(high, berth.Scheduled)
	if state := r.state(thief); state != berth.Queued {
		t.Errorf("another job is %s", state)
	}
	r.sound()
}

func TestAVictimThatEndsByItselfIsNotPreempted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	r.lead(displacing)
	low := r.queued(wants(200, 2))
	r.awaitState(low, berth.Scheduled)
	r.run(low)
	r.exec(`UPDATE allocations SET state = 'exited', phase = 'sealed', exit = $2, exited_at = now(), sealed_at = now() WHERE job = $1`,
		low, failure.Exit{Cause: failure.CauseExited, StartedAt: time.Now(), FinishedAt: time.Now()})
	high := r.queued(wants(800, 2))
	r.awaitState(high, berth.Scheduled)
	if _, err := r.db.Attempts.Settle(t.Context(), low, 1); err != nil {
		t.Fatal(err)
	}
	if state := r.state(low); state != berth.Succeeded {
		t.Errorf("what had ended is %s", state)
	}
	r.sound()
}

func TestATenantHoldsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 4)
	limit := func(gpus spec.MilliGPU) {
		t.Helper()
		if err := r.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", Limit: &spec.Amounts{GPUs: &gpus}}); err != nil {
			t.Fatal(err)
		}
	}
	limit(2000)
	ids := []berth.JobID{r.queued(wants(500, 1)), r.queued(wants(500, 1)), r.queued(wants(500, 1))}
	r.lead(nil)
	free := r.queued(wants(500, 0))
	r.awaitState(free, berth.Scheduled)
	r.awaitState(ids[1], berth.Scheduled)
	r.await("the tenant's clock stands", func() bool {
		return value[bool](r, `SELECT stalled_since IS NOT NULL FROM tenants WHERE id = 'default'`)
	})
	if state := r.state(ids[2]); state != berth.Queued {
		t.Errorf("beyond the limit a job is %s", state)
	}
	limit(3000)
	r.awaitState(ids[2], berth.Scheduled)
	r.await("the tenant's clock runs", func() bool {
		return value[bool](r, `SELECT stalled_since IS NULL FROM tenants WHERE id = 'default'`)
	})
	r.sound()
}

// limited edits the time limit of a job.
func limited(limit time.Duration, edit func(*spec.Job)) func(*spec.Job) {
	return func(j *spec.Job) {
		edit(j)
		j.TimeLimit = spec.Duration(limit)
	}
}

// TestNominationsEndWithAReservedStart checks that the leader withdraws the nominations of a job that gets its start only
// after they expire, so that shorter jobs use the capacity until then. A leader may die right after the withdrawal: the next
// one goes on, and the job starts when it has room.
func TestNominationsEndWithAReservedStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 1)
	r.machine("m1", 8, 1)
	planning := func(o *scheduler.Options) {
		displacing(o)
		o.Policy.Backfill, o.Policy.NominationFor = 4, 10*time.Minute
	}
	r.exec(`UPDATE machines SET state = 'draining' WHERE id = 'm0'`)
	stop := r.lead(planning)
	firm := r.queued(limited(time.Hour, wants(900, 1)))
	r.awaitState(firm, berth.Scheduled)
	r.run(firm)
	stop()
	waiting := r.queued(limited(time.Hour, func(j *spec.Job) { gang(2)(j); wants(800, 1)(j) }))
	r.exec(`INSERT INTO nominations (beneficiary, machine_id, gpu_idx, milli, expires_at)
		VALUES ($1, 'm0', 0, 1000, now() + interval '10 min'), ($1, 'm0', -1, 0, now() + interval '10 min')`, waiting)
	r.exec(`UPDATE machines SET state = 'ready' WHERE id = 'm0'`)
	stop = r.lead(planning)
	r.await("the nominations are withdrawn", func() bool { return value[int](r, `SELECT count(*) FROM nominations`) == 0 })
	stop()
	long, short := r.queued(limited(10*time.Hour, wants(500, 1))), r.queued(limited(10*time.Minute, wants(200, 1)))
	r.lead(planning)
	r.awaitState(short, berth.Scheduled)
	r.run(short)
	if r.state(waiting) != berth.Queued || r.state(long) != berth.Queued {
		t.Errorf("the job with the reserved start is %s, and one that would delay it %s", r.state(waiting), r.state(long))
	}
	for _, id := range []berth.JobID{firm, short} {
		r.exec(`UPDATE allocations SET state = 'exited', phase = 'sealed', exit = $2, exited_at = now(), sealed_at = now() WHERE job = $1`,
			id, failure.Exit{Cause: failure.CauseExited, StartedAt: time.Now(), FinishedAt: time.Now()})
		if _, err := r.db.Attempts.Settle(t.Context(), id, 1); err != nil {
			t.Fatal(err)
		}
	}
	r.awaitState(waiting, berth.Scheduled)
	r.sound()
}

// TestAWithdrawalOnTwoMachinesKeepsTheTerm checks that the leader goes on planning after it has withdrawn the nominations
// of a job on more than one machine.
func TestAWithdrawalOnTwoMachinesKeepsTheTerm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, m := range []string{"m0", "m1", "m2"} {
		r.machine(m, 8, 1)
	}
	planning := func(o *scheduler.Options) {
		displacing(o)
		o.Policy.Backfill, o.Policy.NominationFor = 4, 10*time.Minute
	}
	r.exec(`UPDATE machines SET state = 'draining' WHERE id <> 'm1'`)
	stop := r.lead(planning)
	firm := r.queued(limited(time.Hour, wants(900, 1)))
	r.awaitState(firm, berth.Scheduled)
	r.run(firm)
	stop()
	waiting := r.queued(limited(time.Hour, func(j *spec.Job) { gang(3)(j); wants(800, 1)(j) }))
	for _, m := range []string{"m0", "m2"} {
		r.exec(`INSERT INTO nominations (beneficiary, machine_id, gpu_idx, milli, expires_at)
			VALUES ($1, $2, 0, 1000, now() + interval '10 min'),
				($1, $2, -1, 0, now() + interval '10 min')`, waiting, m)
	}
	r.exec(`UPDATE machines SET state = 'ready' WHERE id <> 'm1'`)
	r.lead(planning)
	r.await("the nominations are withdrawn", func() bool {
		return value[int](r, `SELECT count(*) FROM nominations`) == 0
	})
	short := r.queued(limited(10*time.Minute, wants(200, 1)))
	r.awaitState(short, berth.Scheduled)
	if n := strings.Count(r.log.String(), "lost leadership"); n != 0 {
		t.Errorf("the leader lost its term %d times:\n%s", n, r.log)
	}
	if n := strings.Count(r.log.String(), "nominations withdrawn"); n != 1 {
		t.Errorf("nominations were withdrawn %d times, want both in one plan:\n%s", n, r.log)
	}
	r.sound()
}
