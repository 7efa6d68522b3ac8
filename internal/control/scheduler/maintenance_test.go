package scheduler_test

import (
	"testing"
	"time"

	"berth"
	"berth/spec"
)

// window creates a window of m0 that starts after a time.
func (r *rig) window(in time.Duration, edit func(*spec.NewMaintenance)) int64 {
	r.t.Helper()
	m := spec.NewMaintenance{Machines: []berth.MachineID{"m0"}, From: time.Now().Add(in), For: spec.Duration(time.Hour), Reason: "disks"}
	if edit != nil {
		edit(&m)
	}
	id, err := r.db.Maintenance.Create(r.t.Context(), m, "operator:ann")
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// The leader starts a short job before a window and no long one, drains the machine at the window, and
// places work again after its end.
func TestTheLeaderKeepsWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 64, 0)
	id := r.window(5*time.Hour, nil)
	long := r.queued(func(j *spec.Job) { j.TimeLimit = spec.Duration(10 * time.Hour) })
	endless, short := r.queued(nil), r.queued(func(j *spec.Job) { j.TimeLimit = spec.Duration(time.Hour) })
	r.lead(nil)
	r.awaitState(short, berth.Scheduled)
	r.awaitState(endless, berth.Scheduled)
	if state := r.state(long); state != berth.Queued {
		t.Errorf("the job that would run into the window is %s", state)
	}
	// Inside the lead, a job without a limit waits.
	now := spec.Duration(5 * time.Hour)
	if err := r.db.Maintenance.Change(t.Context(), id, spec.MaintenanceChange{Lead: &now}); err != nil {
		t.Fatal(err)
	}
	// A cycle that is under way may still plan with the former window. The next one does not.
	late := r.queued(nil)
	for tries := 0; ; tries++ {
		brief := r.queued(func(j *spec.Job) { j.TimeLimit = spec.Duration(time.Hour) })
		r.awaitState(brief, berth.Scheduled)
		state := r.state(late)
		if state == berth.Queued {
			break
		}
		if tries == 20 {
			t.Fatalf("inside the lead a job without a limit is %s", state)
		}
		late = r.queued(nil)
	}
	r.exec(`UPDATE maintenance_machines SET closes_at = now() - interval '1 s'`)
	r.await("drain", func() bool {
		return value[string](r, `SELECT state || ' ' || drain_actor FROM machines WHERE id = 'm0'`) == "draining maintenance:1"
	})
	if err := r.db.Maintenance.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.awaitState(late, berth.Scheduled)
	r.awaitState(long, berth.Scheduled)
}
