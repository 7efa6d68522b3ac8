package lifecycle_test

import (
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/lifecycle"
)

func TestTheEarliestFailureIsHeld(t *testing.T) {
	t.Parallel()
	at := func(machine berth.MachineID, cause failure.ExitCause, code int, after time.Duration) lifecycle.Member {
		x := ended(cause, code)
		x.FinishedAt = start.Add(after)
		return member(machine, x)
	}
	preempting := func(j *lifecycle.Job) { j.State, j.Preempted = berth.Preempting, true }
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		held  berth.MachineID // "": none
	}{
		{"an exit code", running(member("m1", exited(1))), "m1"},
		{"a success", running(member("m1", exited(0))), ""},
		{"the first of two", running(at("m1", failure.CauseExited, 1, 2*time.Minute), at("m2", failure.CauseExited, 1, time.Minute)), "m2"},
		{"not the member that was stopped", running(at("m1", failure.CauseOrdered, 143, 0), at("m2", failure.CauseExited, 1, time.Minute)), "m2"},
		{"no member beside a lost one", running(orphan("m1"), member("m2", exited(1))), ""},
		{"a hang", running(member("m1", ended(failure.CauseStalled, 137))), "m1"},
		{"no failed device", running(member("m1", ended(failure.CauseGPU, 1))), ""},
		{"no preempted job", changed(running(member("m1", exited(1))), preempting), ""},
		{"no canceled job", changed(running(member("m1", exited(1))), func(j *lifecycle.Job) { j.State, j.CancelAt = berth.Canceling, &start }), ""},
		{"no draining machine", running(changed(member("m1", exited(1)), func(m *lifecycle.Member) { m.Drain = "new disk" })), ""},
		{"no debug job", changed(running(member("m1", exited(1))), func(j *lifecycle.Job) { j.Debug = true }), ""},
		{"no member that never ran", running(member("m1", &failure.Exit{Cause: failure.CauseExited, Code: 1})), ""},
	} {
		held, ok := lifecycle.Held(c.job, lifecycle.Settle(c.job, lifecycle.History{}))
		if ok != (c.held != "") || held.Machine != c.held {
			t.Errorf("%s: held is %t on %q, want %q", c.claim, ok, held.Machine, c.held)
		}
	}
}

func TestADebugJobIsNeverRetried(t *testing.T) {
	t.Parallel()
	debug := func(j *lifecycle.Job) { j.Debug, j.Retry.MaxAttempts = true, 5 }
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		next  berth.State
	}{
		{"its time is over", running(member("m1", exited(0))), berth.Succeeded},
		{"a lost machine", running(orphan("m1")), berth.Failed},
		{"a drain", running(changed(member("m1", ended(failure.CauseOrdered, 137)), func(m *lifecycle.Member) { m.Drain = "new disk" })), berth.Failed},
		{"a failure", running(member("m1", exited(1))), berth.Failed},
		{"a cancel", changed(running(member("m1", ended(failure.CauseOrdered, 137))), func(j *lifecycle.Job) { j.State, j.CancelAt = berth.Canceling, &start }), berth.Canceled},
	} {
		s := lifecycle.Settle(changed(c.job, debug), lifecycle.History{})
		if s.Verdict.Next != c.next || s.Verdict.Delay != 0 {
			t.Errorf("%s: %s after %s, want %s", c.claim, s.Verdict.Next, s.Verdict.Delay, c.next)
		}
	}
}
