package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// passes runs small passes of one term, as a leader does with many machines.
func (s *stage) passes(term db.Term, at *db.WaitingCursor, limit, times int) {
	s.t.Helper()
	for range times {
		if _, err := s.db.Maintenance.Pass(s.t.Context(), term, limit, at); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Machines that are silent or unhealthy after their window do not delay the return of healthy ones.
func TestMachinesThatWaitDelayNoOtherMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	var at db.WaitingCursor
	id := s.window(time.Hour, nil, "m0", "m1", "m2")
	s.shift(id, 56*time.Minute)
	s.passes(term, &at, 1, 3)
	s.alive("m1")
	mustExec(t, s.pool, `UPDATE gpu_devices SET healthy = false WHERE machine_id = 'm1'`)
	s.shift(id, 2*time.Hour)
	s.passes(term, &at, 1, 3)
	if n, err := s.db.Maintenance.Waiting(t.Context()); err != nil || n != 3 {
		t.Fatalf("%d machines wait, %v", n, err)
	}
	for _, m := range []string{"m2", "m0"} {
		s.alive(m)
		s.passes(term, &at, 1, 4) // one for each machine, and one for the end of the list
		if x := s.machine("", berth.MachineID(m)); x.State != berth.MachineReady {
			t.Errorf("%s is %s: %s", m, x.State, x.Reason)
		}
	}
	if x := s.machine("", "m1"); x.State != wire.MachineDrained {
		t.Errorf("m1 with broken GPUs is %s", x.State)
	}
}

// A window whose end waits for the next window of its machine does not delay windows of other machines.
func TestWindowsInARowDelayNoOtherWindow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	var at db.WaitingCursor
	sharp := func(m *spec.NewMaintenance) { m.Grace = new(spec.Duration) }
	first := s.window(time.Hour, nil, "m0", "m1")
	second := s.window(2*time.Hour+time.Minute, sharp, "m0", "m1")
	other := s.window(2*time.Hour+6*time.Minute, sharp, "m2")
	for _, x := range []int64{first, second, other} {
		s.shift(x, 56*time.Minute)
	}
	s.passes(term, &at, 2, 1)
	for _, x := range []int64{first, second, other} {
		s.shift(x, 75*time.Minute)
	}
	s.passes(term, &at, 2, 2)
	for _, x := range []int64{first, second, other} {
		if state := s.theWindow(x).State; state != wire.MaintenanceActive {
			t.Errorf("window %d is %s", x, state)
		}
	}
	if x := s.machine("", "m2"); x.State != wire.MachineDrained {
		t.Errorf("m2 is %s inside its window", x.State)
	}
	s.shift(second, 2*time.Hour)
	for _, m := range []string{"m0", "m1"} {
		s.alive(m)
	}
	s.passes(term, &at, 2, 2)
	if x := s.machine("", "m0"); x.State != berth.MachineReady || s.theWindow(first).State != wire.MaintenanceDone {
		t.Errorf("after both windows m0 is %s", x.State)
	}
}

// The jobs of a machine that is drained already leave it before the window too. The drain stays that of
// its author, with its reason, and an earlier deadline stays.
func TestAWindowHastensADrainThatStands(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.started(nil)
	soon, late := time.Now().Add(time.Minute).Truncate(time.Second), time.Now().Add(48*time.Hour)
	for _, x := range []struct {
		machine  berth.MachineID
		deadline *time.Time
		by       string
	}{{"m0", nil, "agent:m0"}, {"m1", &late, "operator:ann"}, {"m2", &soon, "operator:bob"}} {
		if err := s.db.Machines.Drain(t.Context(), x.machine, "by "+x.by, x.deadline, x.by); err != nil {
			t.Fatal(err)
		}
	}
	s.announce(term, 1)
	id := s.window(time.Hour, nil, "m0", "m1", "m2")
	mustExec(t, s.pool, `UPDATE machines SET drain_deadline = drain_deadline - interval '2 hours' WHERE id = 'm2'`)
	s.shift(id, 70*time.Minute)
	begin := lifecycle.MaintenanceBegin
	s.wantActs(term, "at the close", begin, begin, begin)
	closed := s.theWindow(id).ClosesAt
	for m, x := range map[berth.MachineID]struct {
		by       string
		deadline time.Time
	}{"m0": {"agent:m0", closed}, "m1": {"operator:ann", closed}, "m2": {"", soon.Add(-2 * time.Hour)}} {
		got := s.machine("", m)
		if got.Deadline == nil || !got.Deadline.Equal(x.deadline) || got.DrainBy != x.by {
			t.Errorf("%s has the deadline %v by %q, want %s by %q", m, got.Deadline, got.DrainBy, x.deadline, x.by)
		}
	}
	if got := s.machine("", "m0").Reason; got != "by agent:m0" {
		t.Errorf("m0 is drained for %q", got)
	}
	s.announce(term, 1)
	if n, err := s.db.Attempts.DrainOverdue(t.Context(), term, 10); err != nil || n != 1 {
		t.Errorf("%d jobs were asked to stop, %v", n, err)
	}
	const author = `SELECT actor FROM machine_events WHERE machine_id = 'm0' ORDER BY seq DESC LIMIT 1`
	if got := one[string](s, author); got != db.MaintenanceActor(id) {
		t.Errorf("the change of the deadline is by %s", got)
	}
	finish := lifecycle.MaintenanceFinish
	s.shift(id, 2*time.Hour)
	s.wantActs(term, "at the end", finish, finish, finish)
}

// The end of a window forgives no faults of its machine: an operator does, with undrain.
func TestTheEndOfAWindowForgivesNoFault(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.alive("m0")
	job := s.submit(nil)
	mustExec(t, s.pool, `INSERT INTO machine_faults (job, attempt, machine_id, tenant, rule) VALUES ($1, 1, 'm0', 'default', 'gpu_lost')`, job)
	id := s.window(time.Minute, nil, "m0")
	s.wantActs(term, "at the close", lifecycle.MaintenanceDrain)
	s.shift(id, 2*time.Hour)
	s.wantActs(term, "at the end", lifecycle.MaintenanceReturn)
	const forgiven = `SELECT forgiven FROM machine_faults WHERE machine_id = 'm0'`
	if one[bool](s, forgiven) {
		t.Error("the end of the window has forgiven a fault")
	}
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:ann"); err != nil || !one[bool](s, forgiven) {
		t.Errorf("undrain has not forgiven the fault: %v", err)
	}
}
