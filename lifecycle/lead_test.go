package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/failure"
	"berth/lifecycle"
	"berth/spec"
)

// led makes the first members of a job its leading group.
func led(leaders int, members ...lifecycle.Member) lifecycle.Job {
	j := running(members...)
	for i := range leaders {
		j.Members[i].Leads = true
	}
	return j
}

func TestOnlyTheLeadingMembersCountOnceTheyAreDone(t *testing.T) {
	t.Parallel()
	done, failed := member("m1", exited(0)), member("m2", exited(3))
	stopped := member("m3", ended(failure.CauseOrdered, 143))
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		done  bool
		next  berth.State
	}{
		{"workers stopped by order", led(1, done, stopped, stopped), true, berth.Succeeded},
		{"a worker failed because its head had gone", led(1, done, failed), true, berth.Succeeded},
		{"a worker's machine fell silent", led(1, done, orphan("m2")), true, berth.Succeeded},
		{"the head failed", led(1, failed, done), false, berth.Failed},
		{"the head was stopped by order after a worker failed", led(1, stopped, failed), false, berth.Failed},
		{"one of two leading members failed", led(2, done, failed, done), false, berth.Failed},
		{"all leading members are done", led(2, done, done, failed), true, berth.Succeeded},
		{"no group leads", led(0, done, failed), false, berth.Failed},
		{"canceled after the head was done", changed(led(1, done, stopped), func(j *lifecycle.Job) {
			j.State, j.CancelAt = berth.Canceling, &start
		}), true, berth.Succeeded},
		{"canceled before the head was done", changed(led(1, stopped, done), func(j *lifecycle.Job) {
			j.State, j.CancelAt = berth.Canceling, &start
		}), false, berth.Canceled},
	} {
		c.job.Retry.MaxAttempts = 1
		if got := c.job.LeadDone(); got != c.done {
			t.Errorf("%s: the lead is done: %v", c.claim, got)
		}
		if got := lifecycle.Settle(c.job, lifecycle.History{}).Verdict.Next; got != c.next {
			t.Errorf("%s: the job becomes %s, want %s", c.claim, got, c.next)
		}
	}
}

func TestASettlementWaitsForTheOthersOfALeadingGroup(t *testing.T) {
	t.Parallel()
	if got := lifecycle.Begin(led(1, member("m1", exited(0)), active), 1); got != lifecycle.StepWait {
		t.Errorf("the step is %q", got)
	}
}

func TestOutputsOfTheLeadingMembersDecide(t *testing.T) {
	t.Parallel()
	j := led(1, member("m1", exited(0)), member("m2", exited(3)))
	j.Retry.MaxAttempts = 1
	s := lifecycle.Settle(j, lifecycle.History{OutputsLost: []spec.Output{{Name: "model", Path: "/model"}}})
	if s.Verdict.Rule != "output_lost" {
		t.Errorf("the rule is %s", s.Verdict.Rule)
	}
}

func TestMoreMemoryIsForTheGroupsThatLackedIt(t *testing.T) {
	t.Parallel()
	r := spec.Request{Members: 4, Groups: []spec.GroupRequest{{Members: 1, MemoryMiB: 100}, {Members: 2, MemoryMiB: 200}, {Members: 1, MemoryMiB: 300}}}
	oom := member("m", exited(137))
	oom.Exit.OOMKilled = true
	j := running(member("m", exited(0)), member("m", exited(0)), oom, member("m", exited(0)))
	var got []int64
	for _, g := range lifecycle.Grow(r, j.OutOfMemory()).Groups {
		got = append(got, g.MemoryMiB)
	}
	if diff := cmp.Diff([]int64{100, 300, 300}, got); diff != "" || r.Groups[1].MemoryMiB != 200 {
		t.Errorf("the request was changed, or (-want +got):\n%s", diff)
	}
}
