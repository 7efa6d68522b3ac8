package db_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

var silence = db.Silence{Suspect: 20 * time.Second, Lost: 90 * time.Second, Margin: time.Minute}

// quiet makes a machine silent for a while.
func (s *stage) quiet(machine string, d time.Duration) {
	s.t.Helper()
	mustExec(s.t, s.pool, `INSERT INTO machine_leases (machine_id, epoch, until, seen_at)
		VALUES ($1, 1, now() - $2::interval + interval '20 s', now() - $2::interval)
		ON CONFLICT (machine_id) DO UPDATE SET until = excluded.until, seen_at = excluded.seen_at`, machine, d)
}

func (s *stage) state(machine string) berth.MachineState {
	s.t.Helper()
	return one[berth.MachineState](s, `SELECT state FROM machines WHERE id = $1`, machine)
}

func (s *stage) overdue() ([]db.Overdue, int) {
	s.t.Helper()
	due, budget, err := s.db.Machines.Overdue(s.t.Context(), silence)
	if err != nil {
		s.t.Fatal(err)
	}
	return due, budget
}

func (s *stage) judge(term db.Term, machine berth.MachineID) db.Verdict {
	s.t.Helper()
	v, err := s.db.Machines.PassVerdict(s.t.Context(), term, machine, silence)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func TestSilentMachinesBecomeSuspect(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.quiet("m0", 21*time.Second)
	s.quiet("m1", 5*time.Second)
	ids, err := s.db.Machines.MarkSuspect(t.Context(), term, silence)
	if err != nil || len(ids) != 1 || ids[0] != "m0" || s.state("m0") != berth.MachineSuspect || s.state("m1") != berth.MachineReady {
		t.Errorf("suspect %v, %v", ids, err)
	}
	if ids, err := s.db.Machines.MarkSuspect(t.Context(), term, silence); err != nil || len(ids) != 0 {
		t.Errorf("again %v, %v", ids, err)
	}
}

func TestSilenceOrphansRanksAndFreesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.started(nil)
	s.quiet("m0", time.Minute)
	if due, _ := s.overdue(); len(due) != 0 {
		t.Fatalf("due before lost_after: %v", due)
	}
	s.quiet("m0", 91*time.Second)
	if due, budget := s.overdue(); len(due) != 1 || due[0] != (db.Overdue{Machine: "m0", Ranks: true}) || budget != 1 {
		t.Fatalf("due %v, budget %d", due, budget)
	}
	v := s.judge(term, "m0")
	if len(v.Jobs) != 1 || v.Jobs[0] != id || !v.Lost || s.state("m0") != berth.MachineLost {
		t.Errorf("verdict %+v, machine %s", v, s.state("m0"))
	}
	if r := s.ranks(id, attempt); r[0] != `orphaned {"kill": true}` {
		t.Errorf("rank %s", r[0])
	}
	if e := lastEvent(s, id); e.Kind != wire.EventOrphaned || e.Actor != "leader" {
		t.Errorf("event %+v", e)
	}
	if c, gpus := used(t, s.pool, "m0"); c.CPUMilli != 1000 || gpus[0] != 1000 {
		t.Errorf("m0 uses %+v %v: a timeout freed capacity", c, gpus)
	}
	if epoch := one[int64](s, `SELECT epoch FROM machines WHERE id = 'm0'`); epoch != 2 {
		t.Errorf("epoch %d of a lost machine", epoch)
	}
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("due again: %v", due)
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled to %+v", r)
	}
	if j := s.job(id); j.Reason == nil || j.Reason.Code != berth.ReasonMachineLost || j.Losses != 1 || j.Failures != 0 {
		t.Errorf("job %+v reason %+v", j, j.Reason)
	}
}

func TestEachJobSaysHowLongSilenceMayLast(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	hasty, _ := s.started(func(j *spec.Job) { j.LostAfter = spec.Duration(30 * time.Second) })
	patient, attempt := s.started(func(j *spec.Job) { j.LostAfter = spec.Duration(10 * time.Minute) })
	s.quiet("m0", 2*time.Minute)
	if v := s.judge(term, "m0"); len(v.Jobs) != 1 || v.Jobs[0] != hasty || v.Lost {
		t.Errorf("verdict %+v: the machine is not lost while a rank waits for it", v)
	}
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("due %v", due)
	}
	s.quiet("m0", 11*time.Minute)
	if v := s.judge(term, "m0"); len(v.Jobs) != 1 || v.Jobs[0] != patient || !v.Lost {
		t.Errorf("verdict %+v", v)
	}
	s.settle(patient, attempt)
}

func TestAnIdleMachineIsLostTooAndAMachineThatSpokeIsNot(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.quiet("m0", 91*time.Second)
	s.quiet("m1", 91*time.Second)
	if due, _ := s.overdue(); len(due) != 2 || due[0].Ranks {
		t.Fatalf("due %v", due)
	}
	s.quiet("m1", 0) // it speaks after the list was made
	if v := s.judge(term, "m1"); v.Lost || s.state("m1") != berth.MachineReady {
		t.Errorf("verdict %+v", v)
	}
	if v := s.judge(term, "m0"); !v.Lost || s.state("m0") != berth.MachineLost {
		t.Errorf("verdict %+v", v)
	}
}

func TestUploadsOfASilentMachineAreGivenUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.started(nil)
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', phase = 'exited', exit = $2, exited_at = now() WHERE job = $1`, id, exited(0))
	s.quiet("m0", 2*time.Minute)
	if v := s.judge(term, "m0"); len(v.Jobs) != 1 {
		t.Fatalf("verdict %+v", v)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventWarning {
		t.Errorf("event %+v", e)
	}
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled to %+v", r)
	}
}

func TestNoVerdictsWhileSilenceProvesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.started(nil)
	s.quiet("m0", 5*time.Minute)
	for name, row := range map[string]string{
		"a gap in which no API replica can write": `('api', 'x', 1, now() - interval '1 s')`,
		"the grace after it":                      `('grace', 'x', 1, now() + interval '30 s')`,
	} {
		mustExec(t, s.pool, `INSERT INTO leases VALUES `+row)
		if proves, err := s.db.Machines.SilenceProves(t.Context()); proves || err != nil {
			t.Errorf("%s: silence proves something: %v", name, err)
		}
		if due, _ := s.overdue(); len(due) != 0 {
			t.Errorf("%s: due %v", name, due)
		}
		if v := s.judge(term, "m0"); len(v.Jobs) != 0 || v.Lost {
			t.Errorf("%s: verdict %+v", name, v)
		}
		mustExec(t, s.pool, `DELETE FROM leases WHERE name IN ('api', 'grace')`)
	}
	if err := s.db.Machines.HoldVerdicts(t.Context(), term, time.Hour); err != nil {
		t.Fatal(err)
	}
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("while verdicts are held: due %v", due)
	}
	if v := s.judge(term, "m0"); len(v.Jobs) != 0 || v.Lost {
		t.Errorf("while verdicts are held: verdict %+v", v)
	}
	if proves, err := s.db.Machines.SilenceProves(t.Context()); !proves || err != nil {
		t.Errorf("held verdicts concern machines that call, too: %v", err)
	}
	// A shorter hold replaces a longer one.
	if err := s.db.Machines.HoldVerdicts(t.Context(), term, 0); err != nil {
		t.Fatal(err)
	}
	// A change of leader starts no grace.
	mustExec(t, s.pool, `UPDATE leases SET epoch = epoch + 1 WHERE name = 'leader'`)
	if due, _ := s.overdue(); len(due) != 1 {
		t.Errorf("after a change of leader: due %v", due)
	}
}

func TestAtMostATenthOfTheMachinesIsLostAMinute(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	for i := range 37 {
		insertMachine(t, s.pool, fmt.Sprintf("x%d", i), 0)
	}
	for i := range 10 {
		s.quiet(fmt.Sprintf("x%d", i), 2*time.Minute)
	}
	due, budget := s.overdue()
	if len(due) != 10 || budget != 4 {
		t.Fatalf("%d due, budget %d, want 10 and 4", len(due), budget)
	}
	s.judge(term, due[0].Machine)
	if _, budget := s.overdue(); budget != 3 {
		t.Errorf("budget %d after one", budget)
	}
}

func TestDrainDeadlineSendsJobsBackToTheQueue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.started(nil)
	move := func() int {
		t.Helper()
		n, err := s.db.Attempts.DrainOverdue(t.Context(), term, 10)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	soon, passed := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disks", &soon, "operator:test"); err != nil {
		t.Fatal(err)
	}
	if n := move(); n != 0 {
		t.Errorf("%d moved before the deadline", n)
	}
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disks", &passed, "operator:test"); err != nil {
		t.Fatal(err)
	}
	sub := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	defer sub.Close()
	if n := move(); n != 1 || !hears(t, sub) {
		t.Errorf("%d moved", n)
	}
	if r := s.ranks(id, attempt); r[0] != `active {"stop": true, "grace_ms": 30000, "checkpoint": true}` {
		t.Errorf("rank %s", r[0])
	}
	if e := lastEvent(s, id); e.Kind != wire.EventOrdered || e.Actor != "leader" {
		t.Errorf("event %+v", e)
	}
	if n := move(); n != 0 {
		t.Errorf("%d moved again", n)
	}
	end := exited(0)
	end.Cause = failure.CauseOrdered
	s.exit(id, attempt, 0, end)
	s.settle(id, attempt)
	if j := s.job(id); j.Status != berth.Retrying || j.Reason.Message != "machine drained: new disks" || j.Failures+j.Losses != 0 {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}

// Each call of a suspected machine ends its suspicion. With the rows locked the calls
// wait for one statement, not for one each.
func TestCallsOfSuspectedMachinesShareAStatement(t *testing.T) {
	t.Parallel()
	warned := &syncBuffer{}
	s := stageOf(t, dbtest.DB(t, db.Options{Logger: slog.New(slog.NewTextHandler(warned, nil))}))
	var agents []*agent
	for i := range 6 {
		name := fmt.Sprintf("m%d", i)
		insertMachine(t, s.pool, name, 2)
		a := &agent{stage: s, machine: berth.MachineID(name), host: "h", boot: "a"}
		r, _, err := s.db.Agents.Register(t.Context(), a.machine, a.request())
		if err != nil {
			t.Fatal(err)
		}
		a.epoch = r.Epoch
		agents = append(agents, a)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'suspect'`)
	var calls sync.WaitGroup
	s.holding(`SELECT 1 FROM machines FOR UPDATE`, func() {
		for _, a := range agents {
			calls.Go(func() {
				if _, err := a.sync(func(r *wire.SyncRequest) { r.WaitMS = 1 }); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
	})
	if n := strings.Count(warned.String(), "suspicion"); n > 2 {
		t.Errorf("%d statements for %d machines", n, len(agents))
	}
	for _, a := range agents {
		began := time.Now()
		if _, err := a.sync(func(r *wire.SyncRequest) { r.WaitMS = 1 }); err != nil {
			t.Fatal(err)
		}
		s.cleared(a, time.Since(began), "after a call of "+string(a.machine))
	}
}

// Machines that may be switched off are silent by plan: drained ones without work, and machines in a
// window, whether they were drained or silent before it.
func TestSilenceByPlanIsNotCounted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	insertMachine(t, s.pool, "m3", 2)
	silent := func(step string, want int) {
		t.Helper()
		if p, err := s.db.Cluster.Population(t.Context()); err != nil || p.Silent != want {
			t.Errorf("%s: %d silent machines, %v; want %d", step, p.Silent, err, want)
		}
	}
	lose := func(machine string) {
		t.Helper()
		s.quiet(machine, 3*time.Minute)
		if v := s.judge(term, berth.MachineID(machine)); !v.Lost {
			t.Fatalf("%s is not lost", machine)
		}
	}
	drain := func(machine berth.MachineID) {
		t.Helper()
		if err := s.db.Machines.Drain(t.Context(), machine, "new disk", nil, "operator:ann"); err != nil {
			t.Fatal(err)
		}
	}
	silent("all call", 0)
	drain("m1")
	lose("m1")
	silent("a drained machine was switched off", 0)
	s.started(nil) // on m0
	drain("m0")
	lose("m0")
	silent("a drained machine with work", 1)
	lose("m2")
	silent("a machine in service", 2)
	var at db.WaitingCursor
	id := s.window(time.Hour, nil, "m2", "m3")
	silent("before the window", 2)
	s.shift(id, 56*time.Minute)
	s.passes(term, &at, 10, 1)
	lose("m3")
	silent("a window of a lost machine and of another one", 1)
	s.shift(id, 2*time.Hour)
	s.passes(term, &at, 10, 1)
	silent("after the window", 2)
}
