package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// What jobs are expected to run may change at any time, and orders them as if
// they had come with it.
func TestWhatIsExpectedOrdersFromThenOn(t *testing.T) {
	t.Parallel()
	planner := placement.Planner{Policy: placement.Policy{Order: placement.SRSF, Exponent: 1}}
	s := placement.NewSnapshot()
	request := spec.Request{CPUMilli: 1000, MemoryMiB: 1, Members: 1}
	s.DefineClass("c", request)
	capacity := berth.Capacity{CPUMilli: 1000, MemoryMiB: 1 << 10}
	s.UpsertMachine(placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Total: capacity})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	job := func(id berth.JobID, edit func(*placement.Job)) {
		j := placement.Job{ID: id, Class: "c", Version: 1, SubmittedAt: now, EligibleAt: now, Expected: time.Hour}
		if edit != nil {
			edit(&j)
		}
		s.UpsertJob(j)
	}
	first := func() string {
		t.Helper()
		p := planner.Plan(s, now)
		if len(p.Start) == 0 {
			return "nobody"
		}
		return fmt.Sprint(p.Start[0].Job)
	}
	job("a", nil)
	job("b", nil)
	job("held", func(j *placement.Job) { j.Held = true })
	job("later", func(j *placement.Job) { j.EligibleAt = now.Add(time.Minute) })
	if got := first(); got != "a" {
		t.Errorf("%s starts", got)
	}
	s.Expect("b", time.Minute, "the median of something")
	s.Expect("held", time.Second, "")
	s.Expect("later", time.Second, "")
	s.Expect("nobody", time.Second, "")
	if j, _ := s.Job("b"); j.Expected != time.Minute || j.ExpectedBy != "the median of something" {
		t.Errorf("job %+v", j)
	}
	if got := first(); got != "b" {
		t.Errorf("%s starts", got)
	}
	plan := planner.Plan(s, now)
	s.Assume(plan.Start)
	s.Expect("b", 2*time.Hour, "") // its start is being committed
	s.Expect("a", 2*time.Minute, "")
	if got := first(); got != "nobody" {
		t.Errorf("%s starts, in room that is taken", got)
	}
	s.Drop(plan.Start)
	if got := first(); got != "a" {
		t.Errorf("%s starts", got)
	}
	s.UpsertRunning(placement.Running{Job: "a", Class: "c", StartedAt: now})
	s.Expect("a", time.Minute, "")
	if r, _ := s.Running("a"); r.Expected != time.Minute {
		t.Errorf("it runs, expected for %s", r.Expected)
	}
	if now = now.Add(time.Hour); first() != "later" {
		t.Errorf("%s starts", first())
	}
}
