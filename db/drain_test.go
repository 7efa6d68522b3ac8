package db_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// drain drains m0 on behalf of operator:ann.
func (s *stage) drain(reason string, deadline *time.Time) {
	s.t.Helper()
	if err := s.db.Machines.Drain(s.t.Context(), "m0", reason, deadline, "operator:ann"); err != nil {
		s.t.Fatal(err)
	}
}

// shown returns the state of m0 that readers see.
func (s *stage) shown() berth.MachineState {
	s.t.Helper()
	return s.machine("", "m0").State
}

func TestAMachineIsDrainedOnceItHoldsNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, _ := s.started(nil)
	s.drain("new disk", nil)
	if got := s.shown(); got != berth.MachineDraining {
		t.Errorf("with a running job it is %s", got)
	}
	m := s.machine("", "m0")
	if m.DrainBy != "operator:ann" || m.Reason != "new disk" || m.StateAt == nil {
		t.Errorf("drained by %q for %q at %v", m.DrainBy, m.Reason, m.StateAt)
	}
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', exited_at = now() WHERE job = $1`, id)
	if got := s.shown(); got != berth.MachineDraining {
		t.Errorf("with results to store it is %s", got)
	}
	if set, err := s.db.Machines.Drained(t.Context()); err != nil || len(set) != 0 {
		t.Errorf("drained machines while results are stored: %v, %v", set, err)
	}
	mustExec(t, s.pool, `UPDATE allocations SET sealed_at = now() WHERE job = $1`, id)
	if got := s.shown(); got != wire.MachineDrained {
		t.Errorf("empty it is %s", got)
	}
	list := func(states ...berth.MachineState) (ids []berth.MachineID) {
		found, err := s.db.Machines.List(t.Context(), db.MachineFilter{State: states})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range found {
			ids = append(ids, m.ID)
		}
		return ids
	}
	if diff := cmp.Diff([]berth.MachineID{"m0"}, list(wire.MachineDrained)); diff != "" {
		t.Errorf("drained machines (-want +got):\n%s", diff)
	}
	if set, err := s.db.Machines.Drained(t.Context()); err != nil || len(set) != 1 || !set["m0"] {
		t.Errorf("the set of drained machines: %v, %v", set, err)
	}
	if got := list(berth.MachineDraining); len(got) != 0 {
		t.Errorf("still draining are %v", got)
	}
	mustExec(t, s.pool, `UPDATE machines SET pending_kills = '{7}' WHERE id = 'm0'`)
	if got := s.shown(); got != berth.MachineDraining {
		t.Errorf("with a container to remove it is %s", got)
	}
	mustExec(t, s.pool, `UPDATE machines SET pending_kills = '{}' WHERE id = 'm0'`)
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:bob"); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.State == wire.MachineDrained || m.DrainBy != "" {
		t.Errorf("undrained it is %s, by %q", m.State, m.DrainBy)
	}
}

func TestAnOrphanKeepsItsMachineDraining(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.drain("new disk", nil)
	s.orphan(id, attempt, 0)
	if got := s.shown(); got != berth.MachineDraining {
		t.Errorf("with an orphan it is %s", got)
	}
}

// announce runs one pass of the leader and checks the number of notified jobs.
func (s *stage) announce(term db.Term, want int) {
	s.t.Helper()
	if n, err := s.db.Attempts.AnnounceDrains(s.t.Context(), term, 10); err != nil || n != want {
		s.t.Errorf("%d jobs notified, want %d: %v", n, want, err)
	}
}

func TestJobsAreNotifiedOfEachDrainOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.signs()
	term := s.term()
	saves := func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGUSR1",
			Interval: spec.Duration(time.Hour)}
		hooks([]string{"draining", "failed"}, []string{"failed"})(j)
	}
	id, attempt := s.started(saves)
	s.announce(term, 0)
	deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	s.drain("new disk", &deadline)
	sub := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	defer sub.Close()
	s.announce(term, 1)
	if !hears(t, sub) {
		t.Error("the machine got no hint of its order")
	}
	e := lastEvent(s, id)
	if e.Kind != wire.EventDraining || !strings.Contains(e.Detail, "machine m0 is draining (new disk)") ||
		e.Facts == nil || e.Facts.Machine != "m0" || e.Facts.Deadline == nil || !e.Facts.Deadline.Equal(deadline) {
		t.Errorf("event %+v", e)
	}
	if diff := cmp.Diff([]string{"0:draining"}, s.notifications(id)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	order := func() int64 {
		return one[int64](s, `SELECT coalesce((orders ->> 'save')::bigint, 0) FROM allocations WHERE job = $1`, id)
	}
	first := order()
	if first == 0 {
		t.Error("the job was not ordered to save")
	}
	// A repeat with the same reason and deadline is no other drain.
	s.drain("new disk", &deadline)
	s.announce(term, 0)
	sooner := deadline.Add(-30 * time.Minute)
	s.drain("new disk", &sooner)
	s.announce(term, 1)
	s.announce(term, 0)
	if second := order(); second <= first {
		t.Errorf("order to save %d after %d", second, first)
	}
	// The same drain after an undrain is another one, also of a job that has stayed.
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:ann"); err != nil {
		t.Fatal(err)
	}
	s.announce(term, 0)
	s.drain("new disk", &sooner)
	s.announce(term, 1)
	if r := s.ranks(id, attempt); !strings.HasPrefix(r[0], "active") {
		t.Errorf("rank %s", r[0])
	}
}

func TestAJobWithoutAnIntervalIsNotSignalled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGUSR1"}
	})
	s.drain("new disk", nil)
	s.announce(s.term(), 1)
	if r := s.ranks(id, attempt); strings.Contains(r[0], "save") {
		t.Errorf("rank %s", r[0])
	}
	if e := lastEvent(s, id); !strings.Contains(e.Detail, "may run to its end") {
		t.Errorf("event %+v", e)
	}
}

func TestHistoryOfAMachineNamesItsActors(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	s.drain("new disk", nil)
	s.drain("other disk", &deadline)
	s.lease("m0", -time.Second)
	if err := s.db.Machines.Undrain(ctx, "m0", "operator:bob"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Machines.ConfirmDead(ctx, "m0", "operator:cid"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Machines.Retire(ctx, "m0", "operator:dan"); err != nil {
		t.Fatal(err)
	}
	all, err := s.db.Machines.Events(ctx, "m0", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		if e.GPU == nil {
			got = append(got, e.State+" "+e.Actor+" "+e.Reason)
		}
	}
	want := []string{
		"draining operator:ann new disk", "draining operator:ann other disk", "suspect operator:bob ",
		"lost operator:cid confirmed dead by operator:cid", "retired operator:dan retired by operator:dan",
	}
	if diff := cmp.Diff(want, got[max(0, len(got)-len(want)):]); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	for _, e := range all {
		if e.Reason == "other disk" && (e.Deadline == nil || !e.Deadline.Equal(deadline)) {
			t.Errorf("event %+v", e)
		}
	}
	rest, err := s.db.Machines.Events(ctx, "m0", all[len(all)-2].Seq, 100)
	if err != nil || len(rest) != 1 || rest[0].State != string(berth.MachineRetired) {
		t.Errorf("after the last but one come %+v, %v", rest, err)
	}
	if _, err := s.db.Machines.Events(ctx, "nowhere", 0, 1); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("history of an unknown machine: %v", err)
	}
}

func TestChangesWithoutANamedActorAreTheAgentsOrTheLeaders(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	actor := func() string {
		return one[string](s, `SELECT actor FROM machine_events WHERE machine_id = 'm0' AND gpu IS NULL ORDER BY seq DESC LIMIT 1`)
	}
	for _, c := range []struct{ change, want string }{
		{`state = 'suspect', reason = 'silent'`, "leader"},
		{`state = 'ready', reason = ''`, "agent:m0"},
		{`epoch = epoch + 1`, "agent:m0"},
		// A program of the version before drains without naming its actor.
		{`state = 'draining', drain_reason = 'old'`, ""},
	} {
		mustExec(t, s.pool, `UPDATE machines SET `+c.change+` WHERE id = 'm0'`)
		if got := actor(); got != c.want {
			t.Errorf("%s is by %q, want %q", c.change, got, c.want)
		}
	}
}

func TestImagesOfAMachineAreThoseOfTheCallersJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `INSERT INTO machine_caches (machine_id, keys, mib) VALUES ('m0', $1, '{4096,100,7}')`,
		[]int64{int64(spec.ImageKey("default", "small")), int64(spec.ImageKey("default", "large")),
			int64(spec.ImageKey("default", "unnamed"))})
	mustExec(t, s.pool, `UPDATE machine_caches SET mib = '{100,4096,7}'`)
	for _, image := range []string{"small", "large", "large", "elsewhere"} {
		s.submit(func(j *spec.Job) { j.Image = image })
	}
	for tenant, want := range map[berth.TenantID][]wire.MachineImage{
		"":      {{Image: "large", Tenant: "default", MiB: 4096}, {Image: "small", Tenant: "default", MiB: 100}},
		"other": nil,
	} {
		got, err := s.db.Machines.Images(t.Context(), tenant, "m0")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("images for %q (-want +got):\n%s", tenant, diff)
		}
	}
}

func TestMachinesAreSelectedByPoolAndLabels(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET pool = 'spot', labels = '{"rack": "r7", "zone": "a"}' WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE machines SET pool = 'spot', labels = '{"rack": "r8"}' WHERE id = 'm1'`)
	for _, c := range []struct {
		f    db.MachineFilter
		want int
	}{
		{db.MachineFilter{Pool: "spot"}, 2},
		{db.MachineFilter{Pool: "none"}, 0},
		{db.MachineFilter{Pool: "spot", Labels: map[string]string{"rack": "r7"}}, 1},
		{db.MachineFilter{Labels: map[string]string{"rack": "r7", "zone": "b"}}, 0},
	} {
		if got, err := s.db.Machines.List(t.Context(), c.f); err != nil || len(got) != c.want {
			t.Errorf("%+v selects %d machines, want %d: %v", c.f, len(got), c.want, err)
		}
	}
}
