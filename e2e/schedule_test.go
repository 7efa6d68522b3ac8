package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"berth"
	apiclient "berth/api/client"
	"berth/spec"
	"berth/wire"
)

// everySecond is a schedule of a job of the test program.
func everySecond(name string, overlap spec.Overlap, command ...string) spec.Schedule {
	job := jobSpec(name, command...)
	return spec.Schedule{Name: name, Every: spec.Duration(time.Second), Overlap: overlap, Job: &job}
}

func (s *stack) schedule(t *testing.T, scheduleSpec spec.Schedule) wire.Schedule {
	t.Helper()
	made, _, err := s.api.CreateSchedule(t.Context(), scheduleSpec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (s *stack) scheduleNow(t *testing.T, name string) wire.Schedule {
	t.Helper()
	x, err := s.api.Schedule(t.Context(), name, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// fired are a schedule's fires of a status, oldest first.
func (s *stack) fired(t *testing.T, name string, status wire.FireStatus) []wire.Fire {
	t.Helper()
	fires := slices.DeleteFunc(s.scheduleNow(t, name).Fires, func(f wire.Fire) bool { return f.Status != status })
	slices.Reverse(fires)
	return fires
}

// firesAgain waits until a schedule has fired for times after now.
func (s *stack) firesAgain(t *testing.T, name string, times int) {
	t.Helper()
	now := time.Now()
	until(t, fmt.Sprintf("%s fires %d times more", name, times), func() bool {
		late := slices.DeleteFunc(s.scheduleNow(t, name).Fires, func(f wire.Fire) bool { return !f.At.After(now) })
		return len(late) >= times
	})
}

// clock is the Temporal Schedule of a schedule.
func (s *stack) clock(t *testing.T, x wire.Schedule) client.ScheduleHandle {
	return s.temporal.ScheduleClient().GetHandle(t.Context(), berth.TemporalScheduleID(x.ID))
}

// clockGone reports whether there is none.
func (s *stack) clockGone(t *testing.T, x wire.Schedule) bool {
	_, err := s.clock(t, x).Describe(t.Context())
	_, gone := errors.AsType[*serviceerror.NotFound](err)
	return gone
}

// drop deletes a schedule and waits until its clock is gone.
func (s *stack) drop(t *testing.T, x wire.Schedule) {
	t.Helper()
	if err := s.api.DeleteSchedule(t.Context(), x.Name); err != nil {
		t.Fatal(err)
	}
	until(t, "its clock is gone", func() bool { return s.clockGone(t, x) })
}

func firesOnce(t *testing.T, s *stack) {
	x := s.schedule(t, everySecond("each", spec.OverlapAllow, "exit", "0"))
	s.firesAgain(t, x.Name, 2)
	at := s.fired(t, x.Name, wire.FireSubmitted)[0]
	s.ends(t, *at.Job, berth.Succeeded)

	// The same start once more, as after a lost answer.
	workflow := berth.FireWorkflowID(x.ID) + "-again"
	scheduled := temporal.NewSearchAttributeKeyTime(berth.AttributeScheduled)
	run, err := s.temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: workflow, TaskQueue: berth.QueueControl, TypedSearchAttributes: temporal.NewSearchAttributes(scheduled.ValueSet(at.At)),
	}, berth.WorkflowFire, wire.FireInput{Schedule: x.ID})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Get(t.Context(), nil); err != nil {
		t.Errorf("fired again: %v", err)
	}

	if err := s.clock(t, x).Delete(t.Context()); err != nil { // behind Berth's back
		t.Fatal(err)
	}
	s.firesAgain(t, x.Name, 2)

	if _, err := s.api.PauseSchedule(t.Context(), x.Name, "a test"); err != nil {
		t.Fatal(err)
	}
	until(t, "its clock has stopped", func() bool {
		d, err := s.clock(t, x).Describe(t.Context())
		return err == nil && d.Schedule.State.Paused && !s.scheduleNow(t, x.Name).Pending
	})
	paused := time.Now()
	other := s.schedule(t, everySecond("other", spec.OverlapAllow, "exit", "0"))
	s.firesAgain(t, other.Name, 3)
	s.drop(t, other)
	fires := s.fired(t, x.Name, wire.FireSubmitted) // a fire for an earlier time may still come
	if last := fires[len(fires)-1]; last.At.After(paused) {
		t.Errorf("paused at %s it fired for %s", paused, last.At)
	}
	jobs := map[berth.JobID]bool{}
	for i, f := range fires {
		jobs[*f.Job] = true
		if f.At.Nanosecond() != 0 || i > 0 && !f.At.After(fires[i-1].At) {
			t.Errorf("fires are %+v", fires)
		}
	}
	if len(jobs) != len(fires) {
		t.Errorf("%d jobs of %d fires", len(jobs), len(fires))
	}
	s.backfills(t, x, fires[0].At)
	s.drop(t, x)
	record(t, "fire", s.historyOf(t, workflow))
}

// backfills fires a range that begins before the schedule was made and ends
// after its first fire, twice.
func (s *stack) backfills(t *testing.T, x wire.Schedule, first time.Time) {
	t.Helper()
	b := spec.Backfill{From: spec.Instant{Time: first.Add(-3 * time.Second)}, To: &spec.Instant{Time: first}}
	for _, want := range []int{3, 0} {
		if r, err := s.api.BackfillSchedule(t.Context(), x.Name, b); err != nil || r.Times != 4 || r.Fires != want {
			t.Errorf("backfill: %+v, %v; want %d fires", r, err, want)
		}
	}
	var early []wire.Fire
	until(t, "all are submitted", func() bool {
		early = slices.DeleteFunc(s.fired(t, x.Name, wire.FireSubmitted), func(f wire.Fire) bool { return !f.At.Before(first) })
		return len(early) >= 3
	})
	if len(early) > 3 {
		t.Errorf("backfilled are %+v", early)
	}
	for _, f := range early {
		s.becomes(t, *f.Job, berth.Succeeded)
	}
}

func overlaps(t *testing.T, s *stack) {
	x := s.schedule(t, everySecond("one", spec.OverlapSkip, "trap-term", "0"))
	until(t, "two are skipped", func() bool { return len(s.fired(t, x.Name, wire.FireSkipped)) >= 2 })
	made := s.fired(t, x.Name, wire.FireSubmitted)
	if len(made) != 1 {
		t.Fatalf("%d jobs live at once", len(made))
	}
	s.becomes(t, *made[0].Job, berth.Running)
	if _, err := s.api.Cancel(t.Context(), *made[0].Job); err != nil {
		t.Fatal(err)
	}
	until(t, "the next fire makes a job", func() bool { return len(s.fired(t, x.Name, wire.FireSubmitted)) >= 2 })
	s.drop(t, x)
	last := everySecond("last", spec.OverlapCancel, "trap-term", "0")
	y := s.schedule(t, last)
	until(t, "three have made way", func() bool { return len(s.fired(t, y.Name, wire.FireSubmitted)) >= 4 })
	made = append(made, s.fired(t, y.Name, wire.FireSubmitted)...)
	s.drop(t, y)
	for _, f := range made[1:4] {
		if job := s.ends(t, *f.Job, berth.Canceled); job.Reason == nil || job.Reason.Code != berth.ReasonOverlap {
			t.Errorf("made way for %+v", job.Reason)
		}
	}
	s.endAll(t, "one", "last")
}

// endAll cancels the jobs of these names that live.
func (s *stack) endAll(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		list, err := s.api.Jobs(t.Context(), apiclient.JobsQuery{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range list.Items {
			if _, err := s.api.Cancel(t.Context(), j.ID); err != nil {
				t.Fatal(err)
			}
			until(t, "it has ended", func() bool { return s.job(t, j.ID).Status.Terminal() })
		}
	}
}

// showsTimes compares the times that Berth shows with the times at which Temporal will fire: a
// cron line has one meaning, and two programs compute its dates.
func showsTimes(t *testing.T, s *stack) {
	in := time.Now().Add(time.Hour)
	for i, c := range []spec.Schedule{
		{Cron: "30 2 * 3,10,11 SUN", TimeZone: "Europe/Berlin"}, // among them the hours that come twice or never
		{Cron: "15 1 1-7 11 *", TimeZone: "America/New_York"},
		{Cron: "0 0 13 * FRI"}, // either of them
		{Cron: "*/20 9-17 * JAN-DEC/3 MON-FRI", TimeZone: "Asia/Kolkata"},
		{Cron: "@monthly", TimeZone: "Australia/Lord_Howe"}, // summer is half an hour
		{Cron: "0 0 29 2 ?"},
		{Every: spec.Duration(7 * time.Minute)},
		{At: &spec.Instant{Time: in}},
	} {
		job := jobSpec("never", "exit", "0")
		c.Name, c.Job = fmt.Sprintf("times-%d", i), &job
		x := s.schedule(t, c)
		until(t, "it has a clock", func() bool { return !s.scheduleNow(t, x.Name).Pending })
		diff := s.shownAndFired(t, x)
		if diff != "" { // one of the times may have passed between the two questions
			diff = s.shownAndFired(t, x)
		}
		if diff != "" {
			t.Errorf("%+v (-shown +fired):\n%s", c, diff)
		}
		s.drop(t, x)
	}
}

// shownAndFired compares a schedule's next times, as Berth and as Temporal have
// them.
func (s *stack) shownAndFired(t *testing.T, x wire.Schedule) string {
	t.Helper()
	d, err := s.clock(t, x).Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, at := range d.Info.NextActionTimes[:min(5, len(d.Info.NextActionTimes))] {
		got = append(got, at.UTC().Format(time.RFC3339))
	}
	want := []string{}
	for _, at := range s.scheduleNow(t, x.Name).Next {
		want = append(want, at.UTC().Format(time.RFC3339))
	}
	return cmp.Diff(want, got)
}
