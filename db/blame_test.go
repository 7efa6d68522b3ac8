package db_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// diesUnder begins an attempt of the job on a machine, which falls silent for
// good after the job has run there for a while, and settles the attempt.
func (s *stage) diesUnder(id berth.JobID, machine string, ran time.Duration) wire.SettleResult {
	s.t.Helper()
	term := s.term()
	attempt := s.place(id, machine)
	s.claim(id, attempt, 0)
	s.run(id)
	mustExec(s.t, s.pool, `UPDATE allocations SET started_at = now() - $2::interval - interval '91 s' WHERE job = $1 AND state = 'active'`, id, ran)
	s.quiet(machine, 91*time.Second)
	if v := s.judge(term, berth.MachineID(machine)); len(v.Jobs) == 0 {
		s.t.Fatalf("machine %s was not given up", machine)
	}
	return s.settle(id, attempt)
}

// A job under which two machines die is set aside: the third is not touched.
func TestF48PoisonJobGoesToTheDeadLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	if r := s.diesUnder(id, "m0", 2*time.Minute); r.Next != berth.Retrying {
		t.Fatalf("after the first death the job is %s", r.Next)
	}
	if r := s.diesUnder(id, "m1", 9*time.Minute); r.Next != berth.Failed {
		t.Fatalf("after the second death the job is %s", r.Next)
	}
	j := s.job(id)
	if j.Reason == nil || j.Reason.Code != berth.ReasonPoison || !j.DeadLetter || j.Losses != 1 {
		t.Errorf("job %+v, reason %+v", j, j.Reason)
	}
	for _, evidence := range []string{"m0 in attempt 1", "m1 in attempt 2"} {
		if !strings.Contains(j.Reason.Message, evidence) {
			t.Errorf("%q does not name %q", j.Reason.Message, evidence)
		}
	}
	if n := one[int](s, `SELECT count(*)::int FROM allocations WHERE machine_id = 'm2'`); n != 0 {
		t.Errorf("the third machine was given it %d times", n)
	}
	again, created, err := s.db.Retries.Retry(t.Context(), "", id, db.RetryOptions{}, "operator:test")
	if err != nil || !created || again.RetryOf == nil || *again.RetryOf != id {
		t.Errorf("a human may try it again: %+v, %v", again, err)
	}
}

func TestF48RebootsUnderAJobArePoisonToo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	s.diesUnder(id, "m1", time.Minute)
	a, _ := s.register("host1", "agent1")
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	s.run(id)
	a.report(id, attempt, berth.PhaseRunning, nil)
	s.register("host2", "agent2")
	if r := s.settle(id, attempt); r.Next != berth.Failed || s.job(id).Reason.Code != berth.ReasonPoison {
		t.Errorf("settled as %+v, %+v", r, s.job(id).Reason)
	}
}

// A machine that was given up may report its reboot before the attempt is settled: its
// rank is then released without an exit on record.
func TestF48RebootsAfterTheVerdictArePoisonToo(t *testing.T) {
	t.Parallel()
	for name, machines := range map[string][2]string{"the last one": {"m1", "m0"}, "one before": {"m0", "m1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			id := s.submit(nil)
			for i, want := range []berth.State{berth.Retrying, berth.Failed} {
				settle := s.diesAndReboots
				if machines[i] != "m0" {
					settle = func(id berth.JobID) wire.SettleResult { return s.diesUnder(id, machines[i], time.Minute) }
				}
				if r := settle(id); r.Next != want {
					t.Errorf("attempt %d is settled as %+v, want %s", i+1, r, want)
				}
			}
			if r := s.job(id).Reason; r == nil || r.Code != berth.ReasonPoison {
				t.Errorf("the job's reason is %+v", r)
			}
		})
	}
}

// diesAndReboots begins an attempt of the job on machine m0, which falls silent, is
// given up and reports a reboot, settles the attempt and lets the machine work on.
func (s *stage) diesAndReboots(id berth.JobID) wire.SettleResult {
	s.t.Helper()
	a, _ := s.register("host1", "agent1")
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	s.run(id)
	a.report(id, attempt, berth.PhaseRunning, nil)
	s.quiet("m0", 91*time.Second)
	if v := s.judge(s.term(), "m0"); len(v.Jobs) == 0 {
		s.t.Fatal("machine m0 was not given up")
	}
	s.register("host2", "agent2")
	const released = `SELECT count(*)::int FROM allocations WHERE machine_id = 'm0' AND state = 'released' AND exit IS NULL`
	if n := one[int](s, released); n != 1 {
		s.t.Fatalf("%d ranks are released without an exit, want 1", n)
	}
	r := s.settle(id, attempt)
	s.quiet("m0", -time.Minute) // it is heard again, in the new boot
	return r
}

// Another possible cause of the machine's death clears the job.
func TestF48JobsWithAnAlibiAreNoPoison(t *testing.T) {
	t.Parallel()
	for name, alibi := range map[string]struct {
		ran    time.Duration
		before func(s *stage)
		after  func(s *stage)
	}{
		"it ran for long": {ran: 11 * time.Minute},
		"another job ran there": {ran: time.Minute, before: func(s *stage) {
			other := s.submit(nil)
			s.claim(other, s.place(other, "m0"), 0)
			s.run(other)
		}},
		"the machine was drained": {ran: time.Minute, before: func(s *stage) {
			mustExec(s.t, s.pool, `UPDATE machines SET state = 'draining', drain_reason = 'reboot' WHERE id = 'm0'`)
		}},
		"the machine had but lost its network": {ran: time.Minute, after: func(s *stage) { s.quiet("m0", -time.Minute) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			id := s.submit(nil)
			if alibi.before != nil {
				alibi.before(s)
			}
			s.diesUnder(id, "m0", alibi.ran)
			if alibi.after != nil {
				alibi.after(s)
			}
			if r := s.diesUnder(id, "m1", time.Minute); r.Next != berth.Retrying || s.job(id).Losses != 2 {
				t.Errorf("settled as %+v, %+v", r, s.job(id).Reason)
			}
		})
	}
}

// failsOn settles an attempt on m0 that ends for this cause.
func (s *stage) failsOn(machine string, tenant berth.TenantID, cause failure.ExitCause) {
	s.t.Helper()
	id := s.submit(nil)
	mustExec(s.t, s.pool, `UPDATE jobs SET tenant = $2 WHERE id = $1`, id, string(tenant))
	attempt := s.place(id, machine)
	s.claim(id, attempt, 0)
	s.run(id)
	s.exit(id, attempt, 0, failure.Exit{Cause: cause, Message: "broken", StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(id, attempt)
}

// lemons is the leader's look for machines that fail too much.
func (s *stage) lemons() []string {
	s.t.Helper()
	found, err := s.db.Machines.DrainLemons(s.t.Context(), s.term())
	if err != nil {
		s.t.Fatal(err)
	}
	var list []string
	for _, l := range found {
		list = append(list, string(l.Machine))
	}
	return list
}

func TestF49LemonMachineDrainsItself(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.failsOn("m0", "a", failure.CauseVanished)
	s.failsOn("m0", "a", failure.CauseDevice)
	s.failsOn("m0", "a", failure.CauseVanished)
	if l := s.lemons(); len(l) != 0 {
		t.Fatalf("failures of one tenant drained %v", l)
	}
	s.failsOn("m1", "b", failure.CauseVanished)
	s.failsOn("m0", "b", failure.CauseVanished)
	if l := s.lemons(); fmt.Sprint(l) != "[m0]" {
		t.Fatalf("drained %v, want m0 alone", l)
	}
	m := s.machine("", "m0")
	if m.State != wire.MachineDrained || m.DrainBy != "leader" ||
		!strings.HasPrefix(m.Reason, "lemon: 4 failures of jobs of 2 tenants within 24 h (gpu_error, vanished)") ||
		!strings.Contains(m.Reason, "undrain") {
		t.Errorf("operators see %s: %q", m.State, m.Reason)
	}
	if m := s.machine("", "m1"); m.State != berth.MachineReady {
		t.Errorf("m1 is %s", m.State)
	}
	if l := s.lemons(); len(l) != 0 {
		t.Errorf("drained again: %v", l)
	}
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if l := s.lemons(); len(l) != 0 || s.state("m0") == berth.MachineDraining {
		t.Errorf("an operator's word did not count: %v, %s", l, s.state("m0"))
	}
	s.failsOn("m0", "a", failure.CauseVanished)
	if l := s.lemons(); len(l) != 0 {
		t.Errorf("what was forgiven counts on: %v", l)
	}
}

func TestF49WhatIsNoLemon(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, tenant := range []berth.TenantID{"a", "b", "c"} {
		s.failsOn("m0", tenant, failure.CauseEngine)           // one restart of the engine took them all along
		s.failsOn("m1", tenant, failure.CauseImageUnavailable) // the registry's fault
		s.failsOn("m2", tenant, failure.CauseExited)           // their own
	}
	mustExec(t, s.pool, `UPDATE machine_faults SET at = date_trunc('minute', now()) - interval '1 minute'`)
	if l := s.lemons(); len(l) != 0 {
		t.Errorf("drained %v", l)
	}
	for _, tenant := range []berth.TenantID{"a", "b", "c"} {
		s.failsOn("m0", tenant, failure.CauseVanished)
		s.failsOn("m1", tenant, failure.CauseVanished)
	}
	mustExec(t, s.pool, `UPDATE machine_faults SET at = now() - interval '25 hours'`)
	if l := s.lemons(); len(l) != 0 {
		t.Errorf("drained for what was long ago: %v", l)
	}
	mustExec(t, s.pool, `UPDATE machine_faults SET at = now()`)
	if l := s.lemons(); len(l) != 1 {
		t.Errorf("drained %v: where everything fails, one of few machines is enough", l)
	}
	if l := s.lemons(); len(l) != 0 {
		t.Errorf("drained %v beside the one", l)
	}
}

// A crash in doubt counts against its machine once the job passes elsewhere.
func TestCrashThatPassesElsewhereCountsAgainstTheMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.exit(id, attempt, 0, exited(139))
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("a crash is tried once elsewhere, and not %s", r.Next)
	}
	attempt = s.place(id, "m1")
	s.claim(id, attempt, 0)
	s.run(id)
	s.exit(id, attempt, 0, exited(0))
	s.settle(id, attempt)
	if m := one[string](s, `SELECT string_agg(machine_id || ' ' || rule, ',') FROM machine_faults`); m != "m0 passed_elsewhere" {
		t.Errorf("counted is %q", m)
	}
}

func TestStallsOfOneJobAreRemembered(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	stall := failure.Exit{Cause: failure.CauseStalled, Code: 143, Message: "no sign of life", StartedAt: ranAt, FinishedAt: ranAt}
	for i, want := range []berth.State{berth.Retrying, berth.Failed} {
		attempt := s.place(id, fmt.Sprintf("m%d", i))
		s.claim(id, attempt, 0)
		s.run(id)
		mustExec(t, s.pool, `UPDATE allocations SET progress = '{"step":7}' WHERE job = $1`, id)
		s.exit(id, attempt, 0, stall)
		if r := s.settle(id, attempt); r.Next != want {
			t.Errorf("after stall %d the job is %s, want %s", i+1, r.Next, want)
		}
	}
	if j := s.job(id); j.Reason.Rule != "stalled_same_step" || j.Failures != 1 {
		t.Errorf("reason %+v, %d failures", j.Reason, j.Failures)
	}
}

// TestAJobClosesTwoMachinesByItsFailedChecks checks the bound within one row of attempts, and that another
// end of an attempt begins a new row.
func TestAJobClosesTwoMachinesByItsFailedChecks(t *testing.T) {
	t.Parallel()
	unfit := failure.Exit{Cause: failure.CauseCheck, Message: "exit status 3: fan broken", CheckFailed: "exit status 3"}
	other := failure.Exit{Cause: failure.CauseVanished, Message: "removed"}
	for name, c := range map[string]struct {
		before []failure.Exit // of the attempts before, on other machines
		gang   int            // other members of the attempt whose check failed
		after  bool           // the check failed after the run
		closed bool
	}{
		"first":                  {closed: true},
		"second":                 {before: []failure.Exit{unfit}, closed: true},
		"third":                  {before: []failure.Exit{unfit, unfit}},
		"third with a pause":     {before: []failure.Exit{unfit, unfit, other}, closed: true},
		"second of a gang":       {gang: 1, closed: true},
		"third of a gang":        {gang: 2},
		"gang after one attempt": {before: []failure.Exit{unfit}, gang: 2},
		"third, after its run":   {before: []failure.Exit{unfit, unfit}, after: true, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			a, _ := s.register("host1", "agent1")
			id := s.submit(func(j *spec.Job) { j.Members = 1 + c.gang })
			hosts := []string{"m1", "m2"}
			for i, x := range c.before {
				attempt := s.place(id, hosts[i%2])
				s.exit(id, attempt, 0, x)
				if r := s.settle(id, attempt); r.Next != berth.Retrying {
					t.Fatalf("attempt %d is settled as %+v", attempt, r)
				}
			}
			attempt := s.place(id, append([]string{"m0"}, hosts[:c.gang]...)...)
			a.mustClaim(id, attempt)
			for i := range c.gang {
				s.exit(id, attempt, i+1, unfit)
			}
			x := unfit
			if c.after {
				x = exited(1)
				x.CheckFailed = "exit status 3"
			}
			a.report(id, attempt, berth.PhaseExited, func(p *wire.RankReport) { p.Exit = &x })
			if m := s.machine("", "m0"); (m.State != berth.MachineReady) != c.closed {
				t.Errorf("machine is %s: %q; want closed %t", m.State, m.Reason, c.closed)
			}
		})
	}
}

// F38: a device whose fault concerns the whole machine puts that into
// quarantine; another one is merely out of use.
func TestF38DeviceFaultQuarantinesItsMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	sick := a.request().Inventory.GPUs
	sick[0].Healthy, sick[0].Reason = false, "XID 48"
	if _, err := a.sync(func(r *wire.SyncRequest) { r.GPUs = sick }); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.State != berth.MachineReady || m.GPUs[0].Healthy || !m.GPUs[1].Healthy {
		t.Errorf("after XID 48 the machine is %s, its devices %+v", m.State, m.GPUs)
	}
	sick[1].Healthy, sick[1].Reason, sick[1].Quarantine = false, "XID 79", true
	if _, err := a.sync(func(r *wire.SyncRequest) { r.GPUs = sick }); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.State != wire.MachineDrained || m.DrainBy != "agent:m0" ||
		m.Reason != "quarantine: GPU 1: XID 79; then undrain it" {
		t.Errorf("after XID 79 the machine is %s: %q", m.State, m.Reason)
	}
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	req := a.request()
	req.AgentBoot, req.Inventory.GPUs = "agent2", sick
	if _, _, err := s.db.Agents.Register(t.Context(), "m0", req); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.State != wire.MachineDrained {
		t.Errorf("registered with the fault in place the machine is %s", m.State)
	}
}
