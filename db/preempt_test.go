package db_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// standing starts a job on both GPUs of m0 and queues another job that needs both.
func (s *stage) standing() (victim berth.JobID, waiting berth.JobID) {
	s.t.Helper()
	victim = s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
	term := s.term()
	s.commit(term, s.start(victim, grantOf("m0", 0, 1)))
	s.claim(victim, 1, 0)
	s.run(victim)
	return victim, s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
}

func grantOf(machine berth.MachineID, gpus ...int) berth.Grant {
	g := berth.Grant{Machine: machine, Epoch: 1, Capacity: berth.Capacity{CPUMilli: 100, MemoryMiB: 100, GPUMilli: 1000 * int64(len(gpus))}}
	for _, i := range gpus {
		g.GPUs = append(g.GPUs, berth.DeviceShare{Index: i, Milli: 1000})
	}
	return g
}

func (s *stage) preemption(waiting, victim berth.JobID) db.Preemption {
	s.t.Helper()
	return db.Preemption{
		For: waiting,
		Victims: []db.Victim{{
			Job: victim, Version: one[int64](s, `SELECT version FROM jobs WHERE id = $1`, victim),
			Attempt: one[int](s, `SELECT attempt FROM jobs WHERE id = $1`, victim), Why: "that one has a higher priority",
		}},
		Nominations: []db.Nomination{{
			Beneficiary: waiting, Machine: "m0", Victim: victim, Capacity: berth.Capacity{CPUMilli: 100, MemoryMiB: 100, GPUMilli: 2000},
			GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}, {Index: 1, Milli: 1000}},
		}},
	}
}

func (s *stage) giveWay(term db.Term, p db.Preemption) (why string) {
	s.t.Helper()
	why, err := s.db.Queue.CommitPreemption(s.t.Context(), term, p)
	if err != nil {
		s.t.Fatal(err)
	}
	return why
}

func TestAVictimIsToldForWhomAndItsRoomIsKept(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	victim, waiting := s.standing()
	term := s.term()
	if why := s.giveWay(term, s.preemption(waiting, victim)); why != "" {
		t.Fatal(why)
	}
	job := s.job(victim)
	if job.Status != berth.Preempting || job.Reason == nil || job.Reason.Code != berth.ReasonPreempted || !strings.Contains(job.Reason.Message, string(waiting)) {
		t.Errorf("the victim is %s, %+v", job.Status, job.Reason)
	}
	if n := one[int](s, `SELECT count(*) FROM allocations WHERE job = $1 AND orders ? 'stop' AND orders ? 'checkpoint' AND stop_by IS NOT NULL`, victim); n != 1 {
		t.Error("the machine was not told to save and stop")
	}
	marks := s.loadQueue().Nominations
	if len(marks) != 1 || !marks[0].Asleep || marks[0].Capacity.GPUMilli != 2000 || len(marks[0].GPUs) != 2 {
		t.Errorf("nominations %+v", marks)
	}
	s.exit(victim, 1, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143})
	if r := s.settle(victim, 1); r.Next != berth.Retrying {
		t.Fatalf("the victim is %s", r.Next)
	}
	after := s.job(victim)
	if after.Failures != 0 || after.Losses != 0 || after.Preemptions != 1 || !after.SubmittedAt.Equal(job.SubmittedAt) || after.Reason.Message != job.Reason.Message || after.Reason.Rule != "preempted" {
		t.Errorf("requeued as %+v, reason %+v", after, after.Reason)
	}
	if marks := s.loadQueue().Nominations; len(marks) != 1 || marks[0].Asleep {
		t.Errorf("nominations once the victim has stopped: %+v", marks)
	}

	// A new term keeps the nomination and refuses every other job, including the victim.
	other := s.queued(func(j *spec.Job) { j.Resources.GPUs = 1000 })
	mustExec(t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s'`)
	term, _ = s.lead("another", 1e12)
	s.mustRefuse(term, s.start(other, grantOf("m0", 1)), "kept for a job that others gave way to")
	s.mustRefuse(term, s.start(victim, grantOf("m0", 0, 1)), "kept for a job that others gave way to")
	if c := s.commit(term, s.start(waiting, grantOf("m0", 0, 1))); len(c.Started) != 1 {
		t.Fatalf("the job it is for: %+v", c.Refused)
	}
	if n := one[int](s, `SELECT count(*) FROM nominations`); n != 0 {
		t.Errorf("%d nominations outlive the placement", n)
	}
	if n := one[int](s, `SELECT count(*) FROM nomination_log WHERE until_seq > from_seq`); n != 3 {
		t.Errorf("%d nominations are on record, want one for each device and one beside", n)
	}
	if why := s.giveWay(term, s.preemption(waiting, victim)); why == "" {
		t.Error("a job that waits no more displaced another")
	}
}

// TestANominationNamesAJobThatAnEarlierOrderStops checks that capacity of a job that stops for another job stays with
// that job until it has stopped, although no order of this preemption concerns it.
func TestANominationNamesAJobThatAnEarlierOrderStops(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	one := func(j *spec.Job) { j.Resources.GPUs = 1000 }
	first, second := s.queued(one), s.queued(one)
	term := s.term()
	s.commit(term, s.start(first, grantOf("m0", 0)))
	s.commit(term, s.start(second, grantOf("m0", 1)))
	for _, id := range []berth.JobID{first, second} {
		s.claim(id, 1, 0)
		s.run(id)
	}
	earlier, waiting := s.queued(one), s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
	p := s.preemption(earlier, first)
	p.Nominations = nil
	if why := s.giveWay(term, p); why != "" {
		t.Fatal(why)
	}
	p = s.preemption(waiting, second)
	p.Nominations = nil
	for gpu, holder := range []berth.JobID{first, second} {
		p.Nominations = append(p.Nominations, db.Nomination{Beneficiary: waiting, Machine: "m0", Victim: holder,
			Capacity: berth.Capacity{GPUMilli: 1000}, GPUs: []berth.DeviceShare{{Index: gpu, Milli: 1000}}})
	}
	if why := s.giveWay(term, p); why != "" {
		t.Fatal(why)
	}
	asleep := func() (n int) {
		for _, m := range s.loadQueue().Nominations {
			if m.Asleep {
				n++
			}
		}
		return n
	}
	if n := asleep(); n != 2 {
		t.Errorf("%d nominations wait for their holders to stop, want 2: %+v", n, s.loadQueue().Nominations)
	}
	s.exit(first, 1, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143})
	if n := asleep(); n != 1 {
		t.Errorf("%d nominations wait once one holder has stopped, want 1: %+v", n, s.loadQueue().Nominations)
	}
}

// TestAPreemptionReplacesTheNominationsOfARepair checks that the capacity kept for the repair of a gang is kept only
// once after the gang has preempted others.
func TestAPreemptionReplacesTheNominationsOfARepair(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	victim, waiting := s.standing()
	mustExec(t, s.pool, `INSERT INTO nominations (beneficiary, machine_id, gpu_idx, milli, victim, victim_attempt, expires_at)
		VALUES ($1, 'm0', 0, 1000, $1, 1, now() + interval '1 hour')`, waiting)
	if why := s.giveWay(s.term(), s.preemption(waiting, victim)); why != "" {
		t.Fatal(why)
	}
	if n := one[int](s, `SELECT count(*) FROM nominations WHERE victim = beneficiary`); n != 0 {
		t.Errorf("%d nominations of the repair outlive the preemption", n)
	}
}

// twoRun starts two jobs on a GPU of m0 each.
func (s *stage) twoRun(term db.Term) (first, second berth.JobID) {
	s.t.Helper()
	one := func(j *spec.Job) { j.Resources.GPUs = 1000 }
	first, second = s.queued(one), s.queued(one)
	for gpu, id := range []berth.JobID{first, second} {
		s.commit(term, s.start(id, grantOf("m0", gpu)))
		s.claim(id, 1, 0)
		s.run(id)
	}
	return first, second
}

// oneGPU is a nomination of one GPU of m0 that the holder still has.
func oneGPU(waiting, holder berth.JobID, gpu int) db.Nomination {
	return db.Nomination{Beneficiary: waiting, Machine: "m0", Victim: holder, Capacity: berth.Capacity{GPUMilli: 1000},
		GPUs: []berth.DeviceShare{{Index: gpu, Milli: 1000}}}
}

// TestANominationNamesNoJobThatRunsOn checks that a preemption is refused as a whole if it counts on a job that is not
// ordered to stop, as after the refusal of an earlier preemption of the same plan.
func TestANominationNamesNoJobThatRunsOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	first, second := s.twoRun(term)
	waiting := s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
	p := s.preemption(waiting, second)
	p.Nominations = []db.Nomination{oneGPU(waiting, first, 0), oneGPU(waiting, second, 1)}
	if why := s.giveWay(term, p); !strings.Contains(why, "is not ordered to stop") {
		t.Errorf("refused with %q", why)
	}
	if state := s.job(second).Status; state != berth.Running {
		t.Errorf("the victim of a refused preemption is %s", state)
	}
	if list := s.loadQueue().Nominations; len(list) != 0 {
		t.Errorf("nominations %+v", list)
	}
}

// TestNominationsOfOneVictimAreAddedUp checks that a preemption may list several nominations of one victim on one
// machine, as one for each member of a gang: they are kept as their sum, also on a device that they share.
func TestNominationsOfOneVictimAreAddedUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	victim, waiting := s.standing()
	p := s.preemption(waiting, victim)
	m := p.Nominations[0]
	m.Capacity = berth.Capacity{CPUMilli: 50, MemoryMiB: 40, GPUMilli: 500}
	p.Nominations = nil
	for _, gpu := range []int{0, 1, 1} {
		m.GPUs = []berth.DeviceShare{{Index: gpu, Milli: 500}}
		p.Nominations = append(p.Nominations, m)
	}
	if why := s.giveWay(s.term(), p); why != "" {
		t.Fatal(why)
	}
	list := s.loadQueue().Nominations
	want := berth.Capacity{CPUMilli: 150, MemoryMiB: 120, GPUMilli: 1500}
	if len(list) != 1 || !list[0].Asleep || list[0].Capacity != want {
		t.Errorf("nominations %+v, want one of %+v", list, want)
	}
	if n := one[int](s, `SELECT milli FROM nominations WHERE gpu_idx = 1`); n != 1000 {
		t.Errorf("%d thousandths of GPU 1 are kept, want 1000", n)
	}
}

// TestDataErrors checks which errors concern the data of a call alone, so that the leader goes on.
func TestDataErrors(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for sql, want := range map[string]bool{
		`SELECT 1 / 0`: true,
		`DO $$ BEGIN RAISE EXCEPTION 'no'; END $$`:                               true,
		`DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '21000'; END $$`:       true,
		`INSERT INTO tenants (id) VALUES ('default')`:                            true,
		`DO $$ BEGIN RAISE EXCEPTION 'too many' USING ERRCODE = '53300'; END $$`: false,
		`DO $$ BEGIN RAISE EXCEPTION 'stop' USING ERRCODE = '57P01'; END $$`:     false,
	} {
		_, err := s.pool.Exec(t.Context(), sql)
		if err == nil || db.IsDataError(err) != want {
			t.Errorf("%s: %v is a data error: %t, want %t", sql, err, !want, want)
		}
	}
	for err, want := range map[error]bool{
		berth.ErrStaleEpoch("term 1 is over"):                     false,
		berth.Errorf(berth.CodeUnavailable, "no answer"):          false,
		berth.Errorf(berth.CodeNotFound, "no such job"):           true,
		berth.Errorf(berth.CodeCapacity, "violates a constraint"): true,
		context.DeadlineExceeded:                                  false,
	} {
		if db.IsDataError(err) != want {
			t.Errorf("%v is a data error: %t, want %t", err, !want, want)
		}
	}
}

func TestAPreemptionHoldsAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *stage, victim, waiting berth.JobID)
		why    string
	}{
		"the victim is canceled": {func(s *stage, v, _ berth.JobID) { s.cancel(v) }, "canceling"},
		"the victim has ended":   {func(s *stage, v, _ berth.JobID) { s.exit(v, 1, 0, failure.Exit{Cause: failure.CauseExited}) }, "has ended"},
		"the waiting job is held": {func(s *stage, _, w berth.JobID) {
			mustExec(s.t, s.pool, `UPDATE jobs SET held = true WHERE id = $1`, w)
		}, "waits no more"},
		"the waiting job is gone": {func(s *stage, _, w berth.JobID) { s.cancel(w) }, "waits no more"},
		"the victim has changed": {func(s *stage, v, _ berth.JobID) {
			mustExec(s.t, s.pool, `UPDATE jobs SET version = version + 1 WHERE id = $1`, v)
		}, "version"},
		"it gave way to it before": {func(s *stage, v, w berth.JobID) {
			mustExec(s.t, s.pool, `UPDATE jobs SET gave_way_to = ARRAY[$2::uuid] WHERE id = $1`, v, w)
		}, "already preempted"},
		"the victim does not budge": {func(s *stage, v, _ berth.JobID) {
			mustExec(s.t, s.pool, `UPDATE jobs SET preemptible = false WHERE id = $1`, v)
		}, "not preemptible"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			victim, waiting := s.standing()
			p := s.preemption(waiting, victim)
			c.change(s, victim, waiting)
			before := one[string](s, `SELECT state FROM jobs WHERE id = $1`, victim)
			if why := s.giveWay(s.term(), p); !strings.Contains(why, c.why) {
				t.Errorf("refused with %q, want %q", why, c.why)
			}
			if got := one[string](s, `SELECT state FROM jobs WHERE id = $1`, victim); got != before {
				t.Errorf("the victim became %s", got)
			}
			if n := one[int](s, `SELECT count(*) FROM nominations`); n != 0 {
				t.Errorf("%d nominations", n)
			}
		})
	}
}

// TestPreemptionRacesWithCancelAndCompletion checks that a preemption, a cancel, a stop and the victim's own
// exit can race. The victim can be settled afterwards, and no nomination outlives the waiting job.
func TestPreemptionRacesWithCancelAndCompletion(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 12 {
		victim, waiting := s.standing()
		p := s.preemption(waiting, victim)
		term := s.term()
		var all sync.WaitGroup
		for _, do := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := s.db.Queue.CommitPreemption(ctx, term, p); return err },
			func(ctx context.Context) error {
				_, err := s.db.Jobs.RequestCancel(ctx, "", victim, "user:test", nil)
				return err
			},
			func(ctx context.Context) error { _, err := s.db.Attempts.Stop(ctx, victim, 1); return err },
			func(context.Context) error {
				s.exit(victim, 1, 0, failure.Exit{Cause: failure.CauseExited})
				return nil
			},
		} {
			all.Go(func() {
				if err := do(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		r := s.settle(victim, 1)
		if r.NotReady || !r.Next.Terminal() && r.Next != berth.Retrying {
			t.Errorf("settled as %+v", r)
		}
		if _, err := s.db.Jobs.RequestCancel(t.Context(), "", waiting, "user:test", nil); err != nil {
			t.Error(err)
		}
		if n := one[int](s, `SELECT count(*) FROM nominations WHERE beneficiary = $1`, waiting); n != 0 {
			t.Errorf("%d nominations of a canceled job", n)
		}
		if got := s.job(victim).Status; got == berth.Retrying {
			s.cancel(victim)
		}
	}
	if list, err := s.db.Cluster.Miscounts(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("counters: %v, %v", list, err)
	}
}

func TestUsageIsChargedOnceAndDecays(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	victim, _ := s.standing()
	mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - interval '1 hour' WHERE job = $1`, victim)
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", Budget: &spec.GPUBudget{GPUHours: 10, Period: spec.Duration(24 * 3600e9)}}); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE tenants SET budget_since = now() - interval '30 minutes'`)
	near := func(what string, got, want float64) {
		t.Helper()
		if got < want*0.98 || got > want*1.02 {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	u := s.tenant("default").Use
	near("GPU hours of what runs", u.GPUHours, 2)
	near("spent of what runs", u.SpentGPUs, 1)
	if u.Running != 1 || u.Waiting != 1 || *u.Holding.GPUs != 2000 {
		t.Errorf("use %+v", u)
	}
	s.exit(victim, 1, 0, failure.Exit{Cause: failure.CauseExited})
	charged := s.tenant("default").Use
	near("GPU hours once it has ended", charged.GPUHours, 2)
	near("spent once it has ended", charged.SpentGPUs, 1)
	term := s.term()
	if n, err := s.db.Tenants.FoldUsage(t.Context(), term, 100); err != nil || n != 1 {
		t.Fatalf("folded %d, %v", n, err)
	}
	if n, err := s.db.Tenants.FoldUsage(t.Context(), term, 100); err != nil || n != 0 {
		t.Errorf("folded %d again, %v", n, err)
	}
	folded := s.tenant("default").Use
	near("GPU hours folded", folded.GPUHours, 2)
	near("spent folded", folded.SpentGPUs, 1)
	mustExec(t, s.pool, `UPDATE tenants SET used_at = used_at - $1::interval, period_at = period_at - interval '24 hours', budget_since = budget_since - interval '24 hours'`, spec.DefaultHalfLife)
	later := s.tenant("default").Use
	near("GPU hours a half-life later", later.GPUHours, 1)
	if later.SpentGPUs != 0 {
		t.Errorf("spent in the next period: %g", later.SpentGPUs)
	}
}

func TestStalledClocksAreWrittenOncePerChange(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	for range 2 {
		if err := s.db.Tenants.SetStalled(t.Context(), term, []berth.TenantID{"default"}); err != nil {
			t.Fatal(err)
		}
	}
	since := s.tenant("default").StalledSince
	if since == nil {
		t.Fatal("the clock does not run")
	}
	mustExec(t, s.pool, `UPDATE tenants SET stalled_since = stalled_since - interval '1 hour'`)
	id := s.submit(nil)
	if ms := one[int64](s, `SELECT stalled_ms FROM jobs WHERE id = $1`, id); ms < 3_599_000 {
		t.Errorf("a new job has its tenant's clock at %d ms", ms)
	}
	if err := s.db.Tenants.SetStalled(t.Context(), term, nil); err != nil {
		t.Fatal(err)
	}
	if got := s.tenant("default"); got.StalledSince != nil || got.Stalled.Hours() < 0.99 {
		t.Errorf("stopped at %s, since %v", got.Stalled, got.StalledSince)
	}
}
