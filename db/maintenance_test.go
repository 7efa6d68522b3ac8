package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// window creates a maintenance window of machines that starts after the given time.
func (s *stage) window(in time.Duration, edit func(*spec.NewMaintenance), machines ...berth.MachineID) int64 {
	s.t.Helper()
	m := spec.NewMaintenance{Machines: machines, From: time.Now().Add(in), For: spec.Duration(time.Hour), Reason: "new disks"}
	if edit != nil {
		edit(&m)
	}
	id, err := s.db.Maintenance.Create(s.t.Context(), m, "operator:ann")
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// shift moves a window in time, as if it had been created so much earlier.
func (s *stage) shift(id int64, by time.Duration) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE maintenance SET starts_at = starts_at - $2::interval, ends_at = ends_at - $2::interval WHERE id = $1`, id, by)
	mustExec(s.t, s.pool, `UPDATE maintenance_machines SET closes_at = closes_at - $2::interval, ends_at = ends_at - $2::interval WHERE maintenance = $1`, id, by)
}

// maintain runs a pass and returns its acts.
func (s *stage) maintain(term db.Term) (acts []lifecycle.MaintenanceAct) {
	s.t.Helper()
	steps, err := s.db.Maintenance.Pass(s.t.Context(), term, 100, &db.WaitingCursor{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, x := range steps {
		acts = append(acts, x.Act)
	}
	return acts
}

func (s *stage) wantActs(term db.Term, when string, want ...lifecycle.MaintenanceAct) {
	s.t.Helper()
	if got := s.maintain(term); !slices.Equal(got, want) {
		s.t.Errorf("%s: acts %v, want %v", when, got, want)
	}
}

// theWindow reads a window.
func (s *stage) theWindow(id int64) wire.Maintenance {
	s.t.Helper()
	x, err := s.db.Maintenance.Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

// alive gives a machine a lease.
func (s *stage) alive(machine string) {
	s.t.Helper()
	mustExec(s.t, s.pool, `INSERT INTO machine_leases (machine_id, epoch, until, seen_at) VALUES ($1, 1, now() + interval '1 hour', now())
		ON CONFLICT (machine_id) DO UPDATE SET until = excluded.until`, machine)
}

func TestAWindowDrainsItsMachinesAndReturnsThem(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	job, _ := s.started(nil)
	s.alive("m0")
	id := s.window(time.Hour, nil, "m0", "m1")
	s.wantActs(term, "an hour before")
	if m := s.machine("", "m0"); m.State != berth.MachineReady || m.Maintenance == nil || m.Maintenance.ID != id {
		t.Errorf("before the window the machine is %s, with %+v", m.State, m.Maintenance)
	}
	s.shift(id, 56*time.Minute)
	s.wantActs(term, "at the close", lifecycle.MaintenanceDrain, lifecycle.MaintenanceDrain)
	s.wantActs(term, "a repeat")
	m := s.machine("", "m0")
	if m.State != berth.MachineDraining || m.Reason != "maintenance 1: new disks" || m.DrainBy != "maintenance:1" ||
		m.Deadline == nil || !m.Deadline.Before(time.Now()) {
		t.Errorf("drained as %+v", m)
	}
	s.announce(term, 1)
	if n, err := s.db.Attempts.DrainOverdue(t.Context(), term, 10); err != nil || n != 1 {
		t.Errorf("%d jobs were asked to stop, %v", n, err)
	}
	if state := s.theWindow(id).State; state != wire.MaintenanceActive {
		t.Errorf("the window is %s", state)
	}
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:ann"); berth.CodeOf(err) != berth.CodeConflict ||
		!strings.Contains(err.Error(), "maintenance window 1") {
		t.Errorf("undrained inside the window: %v", err)
	}
	s.shift(id, 2*time.Hour)
	s.wantActs(term, "at the end", lifecycle.MaintenanceReturn, lifecycle.MaintenanceWait)
	s.wantActs(term, "while m1 is silent")
	if m := s.machine("", "m0"); m.State != berth.MachineReady || m.Maintenance != nil {
		t.Errorf("at the end m0 is %+v", m)
	}
	if m := s.machine("", "m1"); m.Reason != "maintenance ended, but: the machine has no contact" || m.State != wire.MachineDrained {
		t.Errorf("at the end m1 is %s: %s", m.State, m.Reason)
	}
	s.alive("m1")
	mustExec(t, s.pool, `UPDATE gpu_devices SET healthy = false WHERE machine_id = 'm1'`)
	s.wantActs(term, "back with broken GPUs", lifecycle.MaintenanceWait)
	mustExec(t, s.pool, `UPDATE gpu_devices SET healthy = true WHERE machine_id = 'm1'`)
	s.wantActs(term, "healthy", lifecycle.MaintenanceReturn)
	if state := s.theWindow(id).State; state != wire.MaintenanceDone || s.machine("", "m1").State != berth.MachineReady {
		t.Errorf("at last the window is %s", state)
	}
	actors := one[[]string](s, `SELECT array_agg(DISTINCT actor) FROM machine_events WHERE machine_id = 'm0' AND actor LIKE 'maintenance:%'`)
	if !slices.Equal(actors, []string{"maintenance:1"}) {
		t.Errorf("actors %v; job %s", actors, job)
	}
}

func TestAnOperatorsDrainOutlivesWindows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	for _, m := range []string{"m0", "m1", "m2"} {
		s.alive(m)
	}
	s.drain("broken fan", nil)
	id := s.window(time.Minute, nil, "m0", "m1", "m2")
	s.wantActs(term, "at the close", lifecycle.MaintenanceBegin, lifecycle.MaintenanceDrain, lifecycle.MaintenanceDrain)
	if m := s.machine("", "m0"); m.Reason != "broken fan" || m.DrainBy != "operator:ann" {
		t.Errorf("the operator's drain became %q by %s", m.Reason, m.DrainBy)
	}
	if err := s.db.Machines.Drain(t.Context(), "m1", "keep it", nil, "operator:bob"); err != nil {
		t.Fatal(err)
	}
	// An agent that finds a fault inside the window takes the drain over.
	mustExec(t, s.pool, `UPDATE machines SET drain_reason = 'quarantine', reason = 'quarantine' WHERE id = 'm2'`)
	s.shift(id, 3*time.Hour)
	s.wantActs(term, "at the end", lifecycle.MaintenanceFinish, lifecycle.MaintenanceFinish, lifecycle.MaintenanceFinish)
	for _, m := range []berth.MachineID{"m0", "m1", "m2"} {
		if got := s.machine("", m); got.State != wire.MachineDrained {
			t.Errorf("%s is %s: %s", m, got.State, got.Reason)
		}
	}
}

func TestWindowsInARowKeepTheMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.alive("m0")
	first := s.window(0, nil, "m0")
	second := s.window(2*time.Hour, nil, "m0")
	s.wantActs(term, "at the first close", lifecycle.MaintenanceDrain)
	s.shift(first, 2*time.Hour)
	s.shift(second, 2*time.Hour)
	s.wantActs(term, "inside the second", lifecycle.MaintenanceBegin)
	s.shift(second, 2*time.Hour)
	s.wantActs(term, "after both", lifecycle.MaintenanceReturn, lifecycle.MaintenanceFinish)
	if state := s.shown(); state != berth.MachineReady {
		t.Errorf("the machine is %s", state)
	}
}

func TestWindowsKeepToTheMachinesThatAreThere(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id := s.window(time.Minute, nil, "m0", "m1")
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost' WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm1'`)
	s.wantActs(term, "one lost, one retired", lifecycle.MaintenanceBegin, lifecycle.MaintenanceCancel)
	mustExec(t, s.pool, `UPDATE machines SET state = 'joining' WHERE id = 'm0'`)
	s.wantActs(term, "back inside the window", lifecycle.MaintenanceDrain)
	if x := s.theWindow(id); x.Machines[1].State != wire.MaintenanceCanceled || x.State != wire.MaintenanceActive {
		t.Errorf("%+v", x)
	}
	missed := s.window(time.Minute, nil, "m2")
	s.shift(missed, 3*time.Hour)
	s.wantActs(term, "no leader ran", lifecycle.MaintenanceFinish)
	if s.machine("", "m2").State != berth.MachineReady || s.theWindow(missed).Machines[0].Note == "" {
		t.Error("a window that passed has changed its machine, or has no note")
	}
}

// A leader whose term is over drains nothing.
func TestADeposedLeaderBeginsNoWindow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.window(time.Minute, nil, "m0")
	s.expire()
	if _, ok := s.lead("other", time.Minute); !ok {
		t.Fatal("no other leader")
	}
	if _, err := s.db.Maintenance.Pass(t.Context(), term, 10, &db.WaitingCursor{}); err == nil || !strings.Contains(err.Error(), "is over") {
		t.Errorf("passed with %v", err)
	}
	if state := s.shown(); state != berth.MachineReady {
		t.Errorf("the machine is %s", state)
	}
}

// A plan may be older than a window: the commit and the trigger refuse starts inside of it.
func TestNothingStartsInsideAWindow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id := s.window(time.Hour, nil, "m0")
	before := s.queued(nil)
	if c := s.commit(term, s.start(before, on("m0"))); len(c.Started) != 1 {
		t.Fatalf("before the window: %+v", c)
	}
	s.shift(id, time.Hour-5*time.Minute+time.Second)
	single, gang := s.queued(nil), s.queued(nil)
	const why = "maintenance window 1"
	c := s.commit(term, s.start(gang, on("m1"), on("m0")), s.start(single, on("m1")))
	if len(c.Started) != 1 || len(c.Refused) != 1 || !strings.Contains(c.Refused[0].Why, why) {
		t.Fatalf("%+v", c)
	}
	const place = `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		SELECT job, attempt, $2, 'm0', 1, 0, 0, 0, 0 FROM allocations WHERE job = $1 AND rank = 0`
	refuses(t, s.pool, "BT014", place, single, 5)
	if err := s.db.Maintenance.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, place, single, 5)
	s.mustCommit(term, s.start(gang, on("m1"), on("m0")))
}

// mustCommit commits one decision.
func (s *stage) mustCommit(term db.Term, start berth.Start) {
	s.t.Helper()
	if c := s.commit(term, start); len(c.Started) != 1 {
		s.t.Errorf("refused: %+v", c.Refused)
	}
}

// A window that is created while a placement commits waits for it, and the next placement sees it.
func TestACommitAndANewWindowAreSerialized(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	created := make(chan error, 1)
	s.committing(`SELECT 1 FROM machines WHERE id = 'm0' FOR NO KEY UPDATE`, func() {
		go func() {
			_, err := s.db.Maintenance.Create(t.Context(), spec.NewMaintenance{Machines: []berth.MachineID{"m0"},
				From: time.Now(), For: spec.Duration(time.Hour), Reason: "now"}, "operator:ann")
			created <- err
		}()
		s.blocked(1)
	})
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	s.mustRefuse(term, s.start(s.queued(nil), on("m0")), "maintenance window 1")
}

func TestBadWindowsAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET pool = 'a' WHERE id = 'm1'`)
	id := s.window(time.Hour, nil, "m0")
	for what, x := range map[string]struct {
		edit func(*spec.NewMaintenance)
		code berth.Code
		says string
	}{
		"the past":     {func(m *spec.NewMaintenance) { m.From = time.Now().Add(-time.Hour) }, berth.CodeInvalid, "is in the past"},
		"next decade":  {func(m *spec.NewMaintenance) { m.From = time.Now().Add(87600 * time.Hour) }, berth.CodeInvalid, "too far ahead"},
		"an unknown":   {func(m *spec.NewMaintenance) { m.Machines = []berth.MachineID{"m1", "m9"} }, berth.CodeInvalid, "m9"},
		"no machine":   {func(m *spec.NewMaintenance) { m.Machines, m.Pool = nil, "none" }, berth.CodeInvalid, "select no machine"},
		"an overlap":   {func(*spec.NewMaintenance) {}, berth.CodeConflict, "machine m0 is in maintenance window 1"},
		"by its grace": {func(m *spec.NewMaintenance) { m.From = m.From.Add(time.Hour) }, berth.CodeConflict, "cannot overlap"},
	} {
		m := spec.NewMaintenance{Machines: []berth.MachineID{"m0"}, From: time.Now().Add(time.Hour),
			For: spec.Duration(time.Hour), Reason: "x"}
		x.edit(&m)
		if _, err := s.db.Maintenance.Create(t.Context(), m, "operator:ann"); berth.CodeOf(err) != x.code || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	pool := s.window(time.Hour, func(m *spec.NewMaintenance) { m.Pool = "a" })
	if x := s.theWindow(pool); len(x.Machines) != 1 || x.Machines[0].Machine != "m1" || time.Duration(x.Grace) != 5*time.Minute ||
		time.Duration(x.Lead) != time.Hour || !x.Undrain {
		t.Errorf("by pool: %+v", x)
	}
	if list, _, err := s.db.Maintenance.List(t.Context(), false, db.Paging{Limit: 1}); err != nil || len(list) != 1 || list[0].ID != pool {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := s.db.Maintenance.End(t.Context(), id); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("ended before it began: %v", err)
	}
	if err := s.db.Maintenance.Cancel(t.Context(), 77); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an unknown window: %v", err)
	}
	for range 2 { // a repeat has no further effect
		if err := s.db.Maintenance.Cancel(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if state := s.theWindow(id).State; state != wire.MaintenanceCanceled {
		t.Errorf("canceled, and yet %s", state)
	}
}

func TestAWindowIsMoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id := s.window(time.Hour, nil, "m0")
	other := s.window(5*time.Hour, nil, "m0")
	change := func(m spec.MaintenanceChange) error { return s.db.Maintenance.Change(t.Context(), id, m) }
	at := func(in time.Duration) *time.Time { x := time.Now().Add(in); return &x }
	length := spec.Duration(90 * time.Minute)
	no := false
	if err := change(spec.MaintenanceChange{From: at(2 * time.Hour), For: &length, Reason: "other", Undrain: &no, Version: 1}); err != nil {
		t.Fatal(err)
	}
	if x := s.theWindow(id); x.Until.Sub(x.From) != 90*time.Minute || x.Reason != "other" || x.Undrain || x.Version != 2 ||
		!x.ClosesAt.Equal(x.From.Add(-5*time.Minute)) {
		t.Errorf("%+v", x)
	}
	for what, m := range map[string]spec.MaintenanceChange{
		"an old version": {Reason: "x", Version: 1},
		"onto the other": {From: at(4 * time.Hour)},
	} {
		if err := change(m); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := change(spec.MaintenanceChange{From: at(-2 * time.Hour)}); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("into the past: %v", err)
	}
	s.shift(id, 3*time.Hour)
	s.shift(other, 3*time.Hour)
	s.wantActs(term, "inside", lifecycle.MaintenanceDrain)
	if err := change(spec.MaintenanceChange{From: at(time.Minute)}); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "has begun") {
		t.Errorf("moved inside: %v", err)
	}
	longer := spec.Duration(2 * time.Hour)
	if err := change(spec.MaintenanceChange{For: &longer}); err != nil {
		t.Error(err)
	}
	if err := s.db.Maintenance.Cancel(t.Context(), id); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("canceled inside: %v", err)
	}
	if windows, err := s.db.Maintenance.Windows(t.Context()); err != nil || len(windows) != 2 || windows[0].ID != id ||
		windows[0].EndsAt != nil || windows[1].EndsAt == nil || windows[1].ClosesAt.Sub(windows[1].LeadAt) != time.Hour {
		t.Errorf("%+v, %v", windows, err)
	}
	for range 2 {
		if err := s.db.Maintenance.End(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	s.wantActs(term, "ended early, without undrain", lifecycle.MaintenanceFinish)
	if state := s.shown(); state != wire.MachineDrained {
		t.Errorf("the machine is %s", state)
	}
	// Windows are kept for a while after their end; an open one is never deleted.
	mustExec(t, s.pool, `UPDATE maintenance SET ends_at = ends_at - interval '10 days'`)
	for _, want := range []int{1, 0} {
		if n, err := s.db.Maintenance.Prune(t.Context(), term, 9*24*time.Hour, 10); err != nil || n != want {
			t.Errorf("pruned %d windows, want %d, %v", n, want, err)
		}
	}
}
