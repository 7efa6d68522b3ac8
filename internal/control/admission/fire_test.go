package admission_test

import (
	"testing"
	"time"

	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/admission"
	"berth/internal/lib/background"
	"berth/spec"
	"berth/wire"
)

// owner returns the owner of a controller's readings.
func owner(t *testing.T) *background.Group {
	g := background.New()
	t.Cleanup(g.Close)
	return g
}

// The clock of a changed schedule fires for its former times until it is set again.
func TestTheFormerTimesOfAChangedScheduleAreNotDecided(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	c := admission.New(d, owner(t), admission.Rules{})
	n := db.NewSchedule{Tenant: "default", Actor: "user:test",
		Spec: spec.Schedule{Name: "nightly", Cron: "0 3 * * *", Job: &spec.Job{Image: "busybox"}}.WithDefaults()}
	made, err := d.Schedules.Apply(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	day := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	at := func(hour int) time.Time { return day.Add(time.Duration(hour) * time.Hour) }
	n.Spec.Cron = "0 4 * * *"
	if _, err := d.Schedules.Apply(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	asked := db.NewFires{Schedule: made.ID, Times: []time.Time{at(5)}, Source: wire.FireByHand}
	if _, err := d.Schedules.AddFires(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	for hour, decided := range map[int]bool{3: false, 4: true, 5: true} {
		r, err := c.Fire(t.Context(), made.ID, at(hour))
		if err != nil || (r.Status != "") != decided {
			t.Errorf("the time %d h is %+v, %v; want it decided: %t", hour, r, err, decided)
		}
	}
	s, err := d.Schedules.Get(t.Context(), "default", "nightly", 10)
	if err != nil || len(s.Fires) != 2 {
		t.Errorf("fires are %+v, %v", s.Fires, err)
	}
}

// A limit for new constraints does not stop a schedule from before it.
func TestAScheduleFiresWithAConstraintAboveTheLimit(t *testing.T) {
	t.Parallel()
	job := &spec.Job{Image: "busybox"}
	job.Placement.Constraint = `machine.labels.all(a, machine.labels.exists(b, a + b != "x"))`
	schedule := spec.Schedule{Name: "nightly", Cron: "0 3 * * *", Job: job}.WithDefaults()
	if faults := admission.CheckSchedule(schedule); len(faults) != 1 || faults[0].Field != "job.placement.constraint" {
		t.Errorf("a new schedule has the faults %+v, want the constraint", faults)
	}
	d := dbtest.DB(t, db.Options{})
	c := admission.New(d, owner(t), admission.Rules{})
	made, err := d.Schedules.Apply(t.Context(), db.NewSchedule{Tenant: "default", Actor: "user:test", Spec: schedule})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Fire(t.Context(), made.ID, time.Now().UTC().Truncate(24*time.Hour).Add(27*time.Hour))
	if err != nil || r.Job == "" {
		t.Errorf("the schedule made %+v, %v, want a job", r, err)
	}
}
