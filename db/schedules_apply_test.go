package db_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// apply applies the nightly schedule.
func (s *stage) apply(edit func(*spec.Schedule)) wire.AppliedSchedule {
	s.t.Helper()
	a, err := s.db.Schedules.Apply(s.t.Context(), nightly(edit))
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *stage) activeSince() time.Time {
	return one[time.Time](s, `SELECT active_since FROM schedules WHERE name = $1`, "nightly")
}

// The rows of the table at Apply.
func TestApplyCreatesAScheduleAndChangesItInPlace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	made := s.apply(nil)
	if made.Result != wire.ScheduleCreated || len(made.Changes) != 0 || made.ChangedAt != nil {
		t.Fatalf("created: %+v", made)
	}
	since := s.activeSince()
	again := s.apply(nil)
	if again.Result != wire.ScheduleUnchanged || again.ID != made.ID || again.ChangedAt != nil {
		t.Errorf("again: %+v", again)
	}
	if err := s.db.Schedules.Pause(t.Context(), "default", "nightly", "holidays"); err != nil {
		t.Fatal(err)
	}
	image := func(x *spec.Schedule) { x.Job.Image = "busybox:2" }
	changed := s.apply(image)
	want := []spec.Change{{Field: "job.image", From: `"busybox"`, To: `"busybox:2"`}}
	if diff := cmp.Diff(want, changed.Changes); diff != "" || changed.Result != wire.ScheduleUpdated || changed.ID != made.ID {
		t.Errorf("changed: %+v (-want +got):\n%s", changed, diff)
	}
	if !changed.Paused || changed.Note != "holidays" || changed.ChangedAt == nil || !changed.Pending {
		t.Errorf("changed while paused: %+v", changed)
	}
	if got := s.activeSince(); !got.Equal(since) {
		t.Errorf("other work moves the time from which times count: %s, was %s", got, since)
	}
	if x := s.apply(image); x.Result != wire.ScheduleUnchanged || !x.ChangedAt.Equal(*changed.ChangedAt) {
		t.Errorf("repeated: %+v", x)
	}
	timed := s.apply(func(x *spec.Schedule) { image(x); x.Cron = "0 4 * * *" })
	if timed.Result != wire.ScheduleUpdated || !s.activeSince().After(since) || timed.Cron != "0 4 * * *" {
		t.Errorf("other times: %+v since %s", timed, s.activeSince())
	}
	if err := s.db.Schedules.Resume(t.Context(), "default", "nightly", ""); err != nil {
		t.Fatal(err)
	}
	paused := s.apply(func(x *spec.Schedule) { image(x); x.Cron, x.Paused = "0 4 * * *", true })
	if want := []spec.Change{{Field: "paused", To: "true"}}; !cmp.Equal(want, paused.Changes) || !paused.Paused {
		t.Errorf("paused by the file: %+v", paused)
	}
	if err := s.db.Schedules.Delete(t.Context(), "default", "nightly"); err != nil {
		t.Fatal(err)
	}
	if x := s.apply(nil); x.Result != wire.ScheduleCreated || x.ID == made.ID {
		t.Errorf("after a deletion: %+v", x)
	}
}

// A fire never submits work that was replaced before its decision.
func TestAFireOfAScheduleThatWasChangedIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	before := s.apply(nil).Schedule
	after := s.apply(func(x *spec.Schedule) { x.Job.Image = "busybox:2" }).Schedule
	at := time.Now().UTC().Truncate(time.Second)
	_, err := s.db.Schedules.Fire(t.Context(), db.Firing{Schedule: before, At: at})
	if !errors.Is(err, db.ErrScheduleChanged) {
		t.Fatalf("the former work: %v", err)
	}
	r, err := s.db.Schedules.Fire(t.Context(), db.Firing{Schedule: after, At: at})
	if err != nil || r.Status != wire.FireSubmitted {
		t.Fatalf("the present work: %+v, %v", r, err)
	}
	if j := s.job(r.Job); j.Spec.Image != "busybox:2" {
		t.Errorf("its job runs %s", j.Spec.Image)
	}
}

func TestConcurrentAppliesLeaveOneSchedule(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var mu sync.Mutex
	results := map[wire.ApplyResult]int{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			a, err := s.db.Schedules.Apply(t.Context(), nightly(nil))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			results[a.Result]++
		})
	}
	all.Wait()
	if want := map[wire.ApplyResult]int{wire.ScheduleCreated: 1, wire.ScheduleUnchanged: 7}; !cmp.Equal(want, results) {
		t.Errorf("the results are %v", results)
	}
}

func TestApplyOfWorkThatCannotRunChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(nil)
	_, err := s.db.Schedules.Apply(t.Context(), nightly(func(x *spec.Schedule) {
		x.Job.Secrets = []string{"MISSING"}
	}))
	if berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a secret that does not exist: %v", err)
	}
	if x := s.apply(nil); x.Result != wire.ScheduleUnchanged {
		t.Errorf("after a refusal: %+v", x)
	}
}
