package db_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/spec"
)

// newFleet returns a stage with a burst policy of the default tenant.
func newFleet(t *testing.T) *stage {
	t.Helper()
	s := newStage(t)
	setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}})
	return s
}

// scaled requests machines for the default tenant in a term.
func (s *stage) scaled(term db.Term, id string, machines ...berth.MachineID) error {
	s.t.Helper()
	r := cheap
	r.Tenant = "default"
	_, err := s.db.Scaling.Request(s.t.Context(), term, r, machines, id)
	return err
}

// serves makes a machine of the stage the joined machine of a launch of the scaler.
func (s *stage) serves(m berth.MachineID) {
	s.t.Helper()
	mustExec(s.t, s.pool, `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor)
		VALUES ($1, 1, 'p', 'lab', 'eu-1', 'x', 'on_demand', 1, $1, 'scaler')`, m)
	for _, change := range []string{
		`state = 'sent', sends = 1, request_hash = 'h', sent_at = now(), last_sent_at = now()`,
		`state = 'running', instance = 'i'`, `state = 'serving', joined_at = now()`,
	} {
		mustExec(s.t, s.pool, `UPDATE launches SET `+change+` WHERE machine = $1`, m)
	}
}

// machineIs returns the state of a machine.
func (s *stage) machineIs(m berth.MachineID) berth.MachineState {
	s.t.Helper()
	return one[berth.MachineState](s, `SELECT state FROM machines WHERE id = '`+string(m)+`'`)
}

func TestADeposedLeaderChangesNoMachineOfACloud(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.serves("m0")
	old := s.term()
	mustExec(t, s.pool, `UPDATE leases SET holder = 'other', epoch = epoch + 1 WHERE name = 'leader'`)
	stale := func(what string, err error) {
		t.Helper()
		if err == nil || berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s in a term that is over: %v", what, err)
		}
	}
	stale("launch", s.scaled(old, "r", "new"))
	_, err := s.db.Scaling.Drain(t.Context(), old, "m0")
	stale("drain", err)
	_, err = s.db.Scaling.Undrain(t.Context(), old, "m0")
	stale("undrain", err)
	_, err = s.db.Scaling.Stop(t.Context(), old, "m0")
	stale("stop", err)
	stale("notes", s.db.Scaling.WriteNotes(t.Context(), old, []db.BurstNote{{Job: jobA, Code: "max"}}, nil))
	_, _, err = s.db.Scaling.Fleet(t.Context(), old)
	stale("fleet", err)
	_, err = s.db.Launches.Prune(t.Context(), old, 0, 1)
	stale("prune", err)
	if n := one[int](s, `SELECT count(*) FROM launches WHERE machine = 'new'`); n != 0 || s.machineIs("m0") != berth.MachineReady {
		t.Errorf("%d launches, machine m0 is %s", n, s.machineIs("m0"))
	}
}

func TestAGangIsRequestedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if err := s.scaled(s.term(), "r1", "g1", "g2", "m0"); berth.CodeOf(err) != berth.CodeConflict { // m0 is in service
		t.Errorf("request: %v", err)
	}
	if n := one[int](s, `SELECT count(*) FROM launches`); n != 0 {
		t.Errorf("%d launches of a gang that was refused", n)
	}
	for range 2 { // a repeat creates nothing more
		if err := s.scaled(s.term(), "r2", "g1", "g2"); err != nil {
			t.Fatal(err)
		}
	}
	fleet, now, err := s.db.Scaling.Fleet(t.Context(), s.term())
	if err != nil || len(fleet) != 2 || fleet[0].Tenant != "default" || fleet[0].Machine != "g1" || now.IsZero() {
		t.Errorf("fleet %+v, %v", fleet, err)
	}
	grown, err := s.db.Scaling.Growth(t.Context(), now.Add(-time.Hour))
	if err != nil || len(grown) != 2 {
		t.Errorf("growth %+v, %v", grown, err)
	}
}

func TestNothingIsLaunchedWhileAdmissionIsPaused(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if _, err := s.db.Cluster.SetAdmission(t.Context(), true, "test", "operator:x"); err != nil {
		t.Fatal(err)
	}
	if err := s.scaled(s.term(), "r", "v1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("request: %v", err)
	}
}

// trips records a refusal of the offering, and moves its breaker into the past by that time.
func (s *stage) trips(ago time.Duration) {
	s.t.Helper()
	named, _ := cheap.Trips(&cloud.Error{Kind: cloud.Capacity})
	err := s.db.Launches.Trip(s.t.Context(), named, func(b cloud.Breaker, now time.Time) cloud.Breaker {
		return b.Trip(cloud.Capacity, "no room", now)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.later(ago)
}

// later moves all breakers into the past.
func (s *stage) later(d time.Duration) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE breakers SET until = until - $1::interval, probe_at = probe_at - $1::interval`, d)
}

func TestOneLaunchProbesAHalfOpenBreaker(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	term := s.term()
	if err := s.scaled(term, "r0", "before"); err != nil {
		t.Fatal(err)
	}
	s.trips(0)
	if err := s.scaled(term, "r1", "v1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a request while the breaker is open: %v", err)
	}
	s.later(4 * time.Minute)
	if err := s.scaled(term, "r2", "g1", "g2"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a gang probes: %v", err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = s.scaled(term, string(rune('a'+i)), berth.MachineID("p"+string(rune('a'+i)))) })
	}
	wg.Wait()
	won := slices.Index(errs, nil)
	if n := one[int](s, `SELECT count(*) FROM launches WHERE machine LIKE 'p%'`); n != 1 || won < 0 {
		t.Fatalf("%d launches probe at once: %v", n, errs)
	}
	probe := berth.MachineID("p" + string(rune('a'+won)))
	refused := func(m berth.MachineID) bool {
		t.Helper()
		r, _, err := s.sends(m)
		if err != nil && !errors.Is(err, cloud.ErrNotSent) {
			t.Fatal(err)
		}
		return r.State == cloud.LaunchFailed
	}
	if refused(probe) || !refused("before") {
		t.Errorf("the probe is refused: %v, a launch from before the refusal: %v", refused(probe), refused("before"))
	}
	list, err := s.db.Scaling.Breakers(t.Context())
	if err != nil || len(list) != 1 || !list[0].Probing {
		t.Errorf("breakers %+v, %v", list, err)
	}
	s.later(time.Hour) // its outcome is still unknown
	if err := s.scaled(term, "r3", "v3"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second probe while the first one is under way: %v", err)
	}
	mustExec(t, s.pool, `UPDATE launches SET state = 'failed', due_at = NULL WHERE machine = $1`, probe) // without a refusal
	if err := s.scaled(term, "r4", "v4"); err != nil {
		t.Errorf("a probe after one that was withdrawn: %v", err)
	}
	s.trips(0)
	if !refused("v4") {
		t.Error("a refusal leaves a probe in force")
	}
	mustExec(t, s.pool, `DELETE FROM breakers`)
	if err := s.scaled(term, "r5", "v5"); err != nil || refused("v5") {
		t.Errorf("a request after a success: %v", err)
	}
}

func TestABreakerWithoutATimeIsNotProbed(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	named, _ := cheap.Trips(&cloud.Error{Kind: cloud.Auth})
	err := s.db.Launches.Trip(t.Context(), named, func(b cloud.Breaker, now time.Time) cloud.Breaker {
		return b.Trip(cloud.Auth, "no rights", now)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.scaled(s.term(), "r1", "v1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("request: %v", err)
	}
	if list, err := s.db.Scaling.Breakers(t.Context()); err != nil || len(list) != 1 || !list[0].Until.IsZero() {
		t.Errorf("breakers %+v, %v", list, err)
	}
}

func TestOnlyMachinesWithoutUseGo(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	term, ctx := s.term(), t.Context()
	s.serves("m0")
	is := func(what string, done, want bool, err error) {
		t.Helper()
		if err != nil || done != want {
			t.Errorf("%s: %v, %v", what, done, err)
		}
	}
	since := func() time.Time {
		t.Helper()
		list, _, err := s.db.Scaling.Fleet(ctx, term)
		if err != nil || len(list) != 1 {
			t.Fatalf("fleet %+v, %v", list, err)
		}
		return list[0].EmptySince
	}
	id := s.submit(nil)
	s.place(id, "m0")
	if at := since(); !at.IsZero() {
		t.Errorf("a used machine is empty since %s", at)
	}
	done, err := s.db.Scaling.Drain(ctx, term, "m0")
	is("drain of a used machine", done, false, err)
	mustExec(t, s.pool, `UPDATE allocations SET state = 'released', released_at = now()`)
	first := since()
	if first.IsZero() || !since().Equal(first) {
		t.Errorf("a machine without use is empty since %s, then since %s", first, since())
	}
	done, err = s.db.Scaling.Stop(ctx, term, "m0")
	is("end of a machine that takes work", done, false, err)
	done, err = s.db.Scaling.Drain(ctx, term, "m1") // which no launch has
	is("drain of a machine on premises", done, false, err)
	done, err = s.db.Scaling.Drain(ctx, term, "m0")
	is("drain", done, true, err)
	if list, _, err := s.db.Scaling.Fleet(ctx, term); err != nil || list[0].DrainActor != db.ScalerActor || list[0].DrainedAt.IsZero() {
		t.Errorf("fleet %+v, %v", list, err)
	}
	done, err = s.db.Scaling.Undrain(ctx, term, "m0")
	is("return", done, true, err)
	if s.machineIs("m0") != berth.MachineReady && s.machineIs("m0") != berth.MachineSuspect {
		t.Errorf("the machine is %s", s.machineIs("m0"))
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready' WHERE id = 'm0'`)
	if err := s.db.Machines.Drain(ctx, "m0", "by hand", nil, "operator:x"); err != nil {
		t.Fatal(err)
	}
	done, err = s.db.Scaling.Undrain(ctx, term, "m0")
	is("return from the drain of an admin", done, false, err)
	done, err = s.db.Scaling.Stop(ctx, term, "m0")
	is("end after the drain of an admin", done, false, err)
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready', drain_reason = NULL WHERE id = 'm0'`)
	if done, err := s.db.Scaling.Drain(ctx, term, "m0"); !done || err != nil {
		t.Fatal(done, err)
	}
	done, err = s.db.Scaling.Stop(ctx, term, "m0")
	is("end", done, true, err)
	done, err = s.db.Scaling.Undrain(ctx, term, "m0")
	is("return after the request of the end", done, false, err)
	r, _, err := s.db.Launches.Current(ctx, "m0")
	if err != nil || r.StopActor != db.ScalerActor || r.StopAt.IsZero() {
		t.Errorf("launch %+v, %v", r, err)
	}
}

// A machine whose launch an admin requested is not the scaler's.
func TestMachinesOfAdminsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.serves("m0")
	mustExec(t, s.pool, `UPDATE launches SET actor = 'operator:x'`)
	if list, _, err := s.db.Scaling.Fleet(t.Context(), s.term()); err != nil || len(list) != 0 {
		t.Errorf("fleet %+v, %v", list, err)
	}
	if done, err := s.db.Scaling.Drain(t.Context(), s.term(), "m0"); done || err != nil {
		t.Errorf("drained %v, %v", done, err)
	}
}

func TestTheLastLaunchOfAMachineIsKept(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	settle := func(age string) {
		mustExec(t, s.pool, `UPDATE launches SET state = 'failed', due_at = NULL WHERE state = 'requested'`)
		mustExec(t, s.pool, `ALTER TABLE launches DISABLE TRIGGER USER`)
		mustExec(t, s.pool, `UPDATE launches SET state_at = now() - $1::interval WHERE state = 'failed'`, age)
		mustExec(t, s.pool, `ALTER TABLE launches ENABLE TRIGGER USER`)
	}
	for _, id := range []string{"r1", "r2", "r3"} {
		if _, err := launchOf(s.db, t, "v", id); err != nil {
			t.Fatal(err)
		}
		settle("91 days")
	}
	prune := func(retention time.Duration, want int) {
		t.Helper()
		if n, err := s.db.Launches.Prune(t.Context(), s.term(), retention, 100); err != nil || n != want {
			t.Errorf("pruned %d, %v, want %d", n, err, want)
		}
	}
	prune(92*24*time.Hour, 0)
	prune(90*24*time.Hour, 2)
	prune(90*24*time.Hour, 0)
	if _, err := launchOf(s.db, t, "v", "r4"); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT max(n) FROM launches`); n != 4 {
		t.Errorf("the next launch has number %d", n)
	}
	if counts, err := s.db.Launches.Counts(t.Context()); err != nil || counts[cloud.LaunchRequested].N != 1 || len(counts) != 1 {
		t.Errorf("counts %v, %v", counts, err)
	}
	if err := s.scaled(s.term(), "r5", "w"); err != nil {
		t.Fatal(err)
	}
	settle("91 days")
	prune(92*24*time.Hour, 0)
	prune(90*24*time.Hour, 2) // number 3 of v, and w, as the scaler gives no name twice
	if n := one[int](s, `SELECT count(*) FROM launches WHERE machine = 'w'`); n != 0 {
		t.Error("a settled launch of the scaler is kept")
	}
}

func TestNotesOfTheScaler(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if err := s.scaled(s.term(), "r", "v1"); err != nil {
		t.Fatal(err)
	}
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	write := func(changed []db.BurstNote, gone ...berth.JobID) {
		t.Helper()
		if err := s.db.Scaling.WriteNotes(t.Context(), s.term(), changed, gone); err != nil {
			t.Fatal(err)
		}
	}
	write([]db.BurstNote{{Job: jobA, Code: "launched", Machines: []berth.MachineID{"v1"}}, {Job: jobB, Code: "closed", Until: &until, Cost: 2}})
	shown, err := s.db.Scaling.ShowNotes(t.Context(), []berth.JobID{jobA})
	if n := shown[jobA]; err != nil || len(shown) != 1 || len(n.Launches) != 1 || n.Launches[0].Machine != "v1" || n.Now.IsZero() {
		t.Errorf("%+v, %v", shown, err)
	}
	write([]db.BurstNote{{Job: jobB, Code: "max"}}, jobA)
	notes, err := s.db.Scaling.Notes(t.Context())
	if n := notes[jobB]; err != nil || len(notes) != 1 || n.Code != "max" || n.Until != nil || n.Cost != 0 {
		t.Errorf("%+v, %v", notes, err)
	}
}

func TestJobsWithCheckpointsMayRunOnSpotMachines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	plain := s.submit(nil)
	saves := s.submit(func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/ckpt"} })
	got, err := s.db.Scaling.Saves(t.Context(), []berth.JobID{plain, saves})
	if err != nil || got[plain] || !got[saves] {
		t.Errorf("%v, %v", got, err)
	}
}
