package db_test

import (
	"fmt"
	"testing"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
)

// Jobs of a lost tail may run on a machine that has no use in the rows.
func TestNothingThatMayRunLostJobsIsDrainedOrEnded(t *testing.T) {
	t.Parallel()
	for what, doubt := range map[string]string{
		"a restore since the launch": `UPDATE cluster SET incarnation = incarnation + 1`,
		"an unknown container":       `UPDATE machines SET pending_kills = '{7}' WHERE id = 'm0'`,
		"an agent that is silent so far": `INSERT INTO machine_leases (machine_id, epoch, agent_boot, until) VALUES ('m0', 1, 'a', now() - interval '1 s')
			ON CONFLICT (machine_id) DO UPDATE SET until = excluded.until`,
	} {
		for _, drained := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, drained %v", what, drained), func(t *testing.T) {
				t.Parallel()
				s := newFleet(t)
				term, ctx := s.term(), t.Context()
				s.serves("m0")
				list, _, err := s.db.Scaling.Fleet(ctx, term)
				if err != nil || list[0].EmptySince.IsZero() {
					t.Fatalf("fleet %+v, %v", list, err)
				}
				if drained {
					if done, err := s.db.Scaling.Drain(ctx, term, "m0"); !done || err != nil {
						t.Fatal(done, err)
					}
				}
				mustExec(t, s.pool, doubt)
				if list, _, err = s.db.Scaling.Fleet(ctx, term); err != nil || !list[0].EmptySince.IsZero() {
					t.Errorf("the machine is empty since %s, %v", list[0].EmptySince, err)
				}
				if done, err := s.db.Scaling.Drain(ctx, term, "m0"); done || err != nil {
					t.Errorf("drain: %v, %v", done, err)
				}
				if done, err := s.db.Scaling.Stop(ctx, term, "m0"); done || err != nil {
					t.Errorf("end: %v, %v", done, err)
				}
				if done, err := s.db.Scaling.Undrain(ctx, term, "m0"); done != drained || err != nil {
					t.Errorf("return: %v, %v", done, err)
				}
			})
		}
	}
}

// A provider that was configured in the lost tail has no row about its instances.
func TestAProviderWithoutAListingLaunchesNothingAfterARestore(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	mustExec(t, s.pool, `UPDATE cluster SET incarnation = incarnation + 1`)
	if err := s.scaled(s.term(), "r1", "v1"); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("request: %v", err)
	}
	if err := s.db.Launches.Listed(t.Context(), "lab", s.incarnation()); err != nil {
		t.Fatal(err)
	}
	if err := s.scaled(s.term(), "r2", "v1"); err != nil {
		t.Error(err)
	}
}

// Machines that a restored database has lost count for the least numbers of their pools, until an admin or the cloud
// ends them.
func TestAdoptedMachinesAreListedWhileTheyMayTakeWork(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	for _, m := range []berth.MachineID{"m0", "v1", "v2"} { // m0 is in service
		if _, err := s.db.Launches.Adopt(t.Context(), "lab", cloud.Instance{Machine: m, N: 1, Pool: "p", Token: string(m), Offering: cheap.Offering}); err != nil {
			t.Fatal(err)
		}
	}
	s.launches("own")
	wants := func(n int) {
		t.Helper()
		list, err := s.db.Scaling.Adopted(t.Context())
		if err != nil || len(list) != n || list[0] != (db.Adopted{Pool: "p", Type: cheap.Type}) {
			t.Errorf("adopted %+v, %v: want %d", list, err, n)
		}
	}
	wants(3)
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost' WHERE id = 'm0'`)
	wants(2)
	mustExec(t, s.pool, `UPDATE launches SET stop_at = now(), stop_actor = 'user:test', stop_reason = 'enough' WHERE machine = 'v1'`)
	wants(1)
}
