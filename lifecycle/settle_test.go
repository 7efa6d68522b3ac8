package lifecycle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/failure"
	"berth/lifecycle"
	"berth/spec"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// ended returns an exit of the cause with a code, a minute after start.
func ended(cause failure.ExitCause, code int) *failure.Exit {
	return &failure.Exit{Cause: cause, Code: code, StartedAt: start, FinishedAt: start.Add(time.Minute)}
}

func exited(code int) *failure.Exit { return ended(failure.CauseExited, code) }

// member returns a member that has ended, with all its data stored.
func member(machine berth.MachineID, exit *failure.Exit) lifecycle.Member {
	return lifecycle.Member{Machine: machine, State: berth.AllocExited, Claimed: true, Sealed: true, Exit: exit}
}

// orphan returns a member on a silent machine.
func orphan(machine berth.MachineID) lifecycle.Member {
	return lifecycle.Member{Machine: machine, State: berth.AllocOrphaned, Claimed: true, Orphaned: true}
}

// reserved returns a member that its machine has not claimed for the given time.
func reserved(age time.Duration) lifecycle.Member {
	return lifecycle.Member{Machine: "m9", State: berth.AllocReserved, Age: age}
}

var active = lifecycle.Member{Machine: "m8", State: berth.AllocActive, Claimed: true}

// running returns a running job in its first attempt. Its members have the ids 1, 2, ...
func running(members ...lifecycle.Member) lifecycle.Job {
	for i := range members {
		members[i].ID, members[i].Rank = berth.AllocationID(i+1), i
	}
	return lifecycle.Job{ID: "job", State: berth.Running, Attempt: 1, Members: members}
}

// changed applies f to a copy of the value.
func changed[T any](value T, f func(*T)) T {
	f(&value)
	return value
}

func TestASettlementWaitsUntilNoReportCanChangeIt(t *testing.T) {
	t.Parallel()
	done := member("m1", exited(0))
	unsealed := changed(done, func(m *lifecycle.Member) { m.Sealed = false })
	released := changed(done, func(m *lifecycle.Member) { m.State, m.Sealed = berth.AllocReleased, false })
	settled := berth.Retrying
	for _, c := range []struct {
		claim   string
		job     lifecycle.Job
		attempt int
		want    lifecycle.Step
	}{
		{"a sealed end is settled", running(done), 1, lifecycle.StepSettle},
		{"an orphan is settled", running(orphan("m1")), 1, lifecycle.StepSettle},
		{"a released member needs no seal", running(released), 1, lifecycle.StepSettle},
		{"a settled attempt keeps its result",
			changed(running(active), func(j *lifecycle.Job) { j.Settled = &settled }), 1, lifecycle.StepRepeat},
		{"a result stands also for an earlier attempt",
			changed(running(active), func(j *lifecycle.Job) { j.Settled, j.Attempt = &settled, 2 }), 1,
			lifecycle.StepRepeat},
		{"an attempt to come is refused", running(done), 2, lifecycle.StepRefuse},
		{"an earlier attempt without a result is refused", running(done), 0, lifecycle.StepRefuse},
		{"a job without capacity is refused",
			changed(running(done), func(j *lifecycle.Job) { j.State = berth.Queued }), 1, lifecycle.StepRefuse},
		{"a live member is waited for", running(active), 1, lifecycle.StepWait},
		{"one live member is enough to wait", running(done, active), 1, lifecycle.StepWait},
		{"an unstored end is waited for", running(unsealed), 1, lifecycle.StepWait},
		{"a fresh reservation is waited for", running(reserved(lifecycle.UnclaimedAfter - 1)), 1, lifecycle.StepWait},
		{"an attempt without members is waited for", running(), 1, lifecycle.StepWait},
		{"an unclaimed reservation is a loss", running(reserved(lifecycle.UnclaimedAfter)), 1, lifecycle.StepSettle},
		{"a gang that no machine claimed is a loss",
			running(reserved(lifecycle.UnclaimedAfter), reserved(lifecycle.UnclaimedAfter)), 1, lifecycle.StepSettle},
		{"an unclaimed member stops a live gang", running(active, reserved(lifecycle.UnclaimedAfter)), 1,
			lifecycle.StepGiveUp},
		{"an unclaimed member stops a gang with fresh reservations",
			running(reserved(0), reserved(lifecycle.UnclaimedAfter)), 1, lifecycle.StepGiveUp},
	} {
		if got := lifecycle.Begin(c.job, c.attempt); got != c.want {
			t.Errorf("%s: step is %q, want %q", c.claim, got, c.want)
		}
	}
}

func TestAnUnknownAllocationStateIsNoEnd(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a member in an unknown state was settled")
		}
	}()
	lifecycle.Begin(running(lifecycle.Member{State: "lent"}), 1)
}

func TestTheVerdictChargesOneBudget(t *testing.T) {
	t.Parallel()
	preempted := func(j *lifecycle.Job) { j.State, j.Preempted = berth.Preempting, true }
	canceled := func(j *lifecycle.Job) { j.State, j.CancelAt = berth.Canceling, &start }
	type charges struct{ Failures, Losses, Preemptions int }
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		next  berth.State
		want  charges
	}{
		{"a success is free", running(member("m1", exited(0))), berth.Succeeded, charges{}},
		{"a failure of the program is the user's", running(member("m1", exited(1))), berth.Failed,
			charges{Failures: 1}},
		{"a lost machine is the infrastructure's", running(orphan("m1")), berth.Retrying, charges{Losses: 1}},
		{"a preemption is counted and free",
			changed(running(member("m1", ended(failure.CauseOrdered, 143))), preempted), berth.Retrying,
			charges{Preemptions: 1}},
		{"a cancel is free",
			changed(running(member("m1", ended(failure.CauseOrdered, 143))), canceled), berth.Canceled, charges{}},
		{"a drain is free", running(changed(member("m1", ended(failure.CauseOrdered, 143)),
			func(m *lifecycle.Member) { m.Drain = "new disk" })), berth.Retrying, charges{}},
	} {
		s := lifecycle.Settle(c.job, lifecycle.History{})
		if got := (charges{s.Failures, s.Losses, s.Preemptions}); s.Verdict.Next != c.next || got != c.want {
			t.Errorf("%s: %s with %+v, want %s with %+v", c.claim, s.Verdict.Next, got, c.next, c.want)
		}
	}
}

func TestTheReasonOfAnOrderOutlivesTheVerdict(t *testing.T) {
	t.Parallel()
	asked := &berth.Reason{Code: berth.ReasonCanceledByUser, Message: "canceled by user:ann"}
	victim := &berth.Reason{Code: berth.ReasonPreempted, Message: "preempted for job 7"}
	ordered := member("m1", ended(failure.CauseOrdered, 143))
	job := func(m lifecycle.Member, state berth.State, reason *berth.Reason) lifecycle.Job {
		j := running(m)
		j.State, j.Reason, j.Preempted = state, reason, state == berth.Preempting
		return j
	}
	for _, c := range []struct {
		claim   string
		job     lifecycle.Job
		message string // "": no reason
		rule    string
	}{
		{"a success has none", job(member("m1", exited(0)), berth.Running, asked), "", ""},
		{"a cancel keeps the actor's", job(ordered, berth.Canceling, asked), "canceled by user:ann", ""},
		{"a cancel without a stored one has the verdict's", job(ordered, berth.Canceling, nil), "canceled on request",
			"canceled"},
		{"a victim keeps the beneficiary's, with the rule", job(ordered, berth.Preempting, victim),
			"preempted for job 7",
			"preempted"},
		{"a victim without a stored one has the verdict's", job(ordered, berth.Preempting, nil),
			"preempted by another job",
			"preempted"},
		{"a reason of another code does not hide a preemption", job(ordered, berth.Preempting, asked),
			"preempted by another job", "preempted"},
		{"a failure has its own", job(member("m1", exited(3)), berth.Running, victim), "exit code 3", "failed"},
	} {
		got := lifecycle.Settle(c.job, lifecycle.History{}).Reason
		if c.message == "" {
			if got != nil {
				t.Errorf("%s: reason is %+v", c.claim, got)
			}
			continue
		}
		if got == nil || got.Message != c.message || got.Rule != c.rule {
			t.Errorf("%s: reason is %+v", c.claim, got)
		}
	}
	if victim.Rule != "" {
		t.Error("the stored reason was changed in place")
	}
}

func TestAJobAvoidsTheNewestMachines(t *testing.T) {
	t.Parallel()
	lost := func(on berth.MachineID, before ...berth.MachineID) []berth.MachineID {
		j := running(orphan(on))
		j.Avoid = before
		return lifecycle.Settle(j, lifecycle.History{}).Avoid
	}
	var many []berth.MachineID
	for i := range 16 {
		many = append(many, berth.MachineID(fmt.Sprint("m", i)))
	}
	for claim, c := range map[string]struct{ got, want []berth.MachineID }{
		"the first":               {lost("m1"), []berth.MachineID{"m1"}},
		"a further one is last":   {lost("m2", "m1"), []berth.MachineID{"m1", "m2"}},
		"a repeated one is last":  {lost("m1", "m1", "m2"), []berth.MachineID{"m2", "m1"}},
		"the oldest one is given": {lost("new", many...), append(many[1:16:16], "new")},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", claim, diff)
		}
	}
	free := running(member("m1", exited(1)))
	free.Avoid = []berth.MachineID{"m3"}
	if diff := cmp.Diff(free.Avoid, lifecycle.Settle(free, lifecycle.History{}).Avoid); diff != "" {
		t.Errorf("a failure of the program changed the list (-want +got):\n%s", diff)
	}
}

func TestASuccessWithoutASeenStartPassesThroughRunning(t *testing.T) {
	t.Parallel()
	scheduled := func(j *lifecycle.Job) { j.State = berth.Scheduled }
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		want  bool
	}{
		{"scheduled and done", changed(running(member("m1", exited(0))), scheduled), true},
		{"running and done", running(member("m1", exited(0))), false},
		{"scheduled and failed", changed(running(member("m1", exited(1))), scheduled), false},
	} {
		if got := lifecycle.Settle(c.job, lifecycle.History{}).StartUnseen; got != c.want {
			t.Errorf("%s: start unseen is %v", c.claim, got)
		}
	}
}

func TestTheEvidenceOfAllMembersCounts(t *testing.T) {
	t.Parallel()
	step := func(m lifecycle.Member, n int64) lifecycle.Member { m.LastStep = &n; return m }
	bad := exited(1)
	s := lifecycle.Settle(running(step(member("m1", exited(0)), 5), step(member("m2", bad), 9), step(orphan("m3"), 7)),
		lifecycle.History{})
	if s.LastStep == nil || *s.LastStep != 9 {
		t.Errorf("last step is %v, want the highest", s.LastStep)
	}
	if s.Verdict.Rule != "machine_lost" || s.Verdict.Machine != "m3" {
		t.Errorf("verdict is %+v, want the silent machine to be blamed", s.Verdict)
	}
	if s := lifecycle.Settle(running(member("m1", exited(0))), lifecycle.History{}); s.LastStep != nil {
		t.Errorf("last step is %d though none was reported", *s.LastStep)
	}
	cut := changed(member("m1", exited(0)), func(m *lifecycle.Member) { m.CutOff = true })
	lost := lifecycle.History{OutputsLost: []spec.Output{{Name: "model", Path: "/out"}}}
	if s := lifecycle.Settle(running(cut), lost); s.Verdict.Rule != "output_cut_off" {
		t.Errorf("an output that a lost machine kept: %+v", s.Verdict)
	}
	if s := lifecycle.Settle(running(member("m1", exited(0))), lost); s.Verdict.Rule != "output_lost" {
		t.Errorf("an output that the program did not write: %+v", s.Verdict)
	}
	late := changed(running(member("m1", exited(0))), func(j *lifecycle.Job) {
		j.State, j.CancelAt = berth.Canceling, &start
	})
	if s := lifecycle.Settle(late, lifecycle.History{}); s.Verdict.Rule != "succeeded_before_cancel" {
		t.Errorf("work that was done before the cancel: %+v", s.Verdict)
	}
	// The drain of any member's machine explains an ordered end.
	drained := changed(member("m2", ended(failure.CauseOrdered, 143)),
		func(m *lifecycle.Member) { m.Drain = "new disk" })
	gang := running(member("m1", ended(failure.CauseOrdered, 143)), drained)
	if s := lifecycle.Settle(gang, lifecycle.History{}); s.Verdict.Rule != "drained" {
		t.Errorf("a gang with one draining machine: %+v", s.Verdict)
	}
}

func TestFaultsAreChargedToTheMachinesThatExplainThem(t *testing.T) {
	t.Parallel()
	suspect := changed(orphan("m2"), func(m *lifecycle.Member) { m.Suspect = true })
	gpu := member("m1", ended(failure.CauseGPU, 1))
	for _, c := range []struct {
		claim   string
		member  lifecycle.Member
		earlier []failure.EarlierAttempt
		want    lifecycle.Faults
	}{
		{claim: "an end of the program charges none", member: member("m1", exited(1)),
			want: lifecycle.Faults{Rule: "failed"}},
		{claim: "a broken device charges its machine", member: gpu,
			want: lifecycle.Faults{Machines: []berth.MachineID{"m1"}, Rule: "gpu_error"}},
		{claim: "a death under the job is recorded apart", member: suspect,
			want: lifecycle.Faults{Machines: []berth.MachineID{"m2"}, Rule: "died_under_it", Died: true}},
		{claim: "a second death makes the job the suspect", member: suspect,
			earlier: []failure.EarlierAttempt{{Attempt: 1, Rule: "died_under_it", Machine: "m1", Died: true}},
			want:    lifecycle.Faults{Machines: []berth.MachineID{"m2"}, Rule: "poison", Died: true}},
		{claim: "a success charges none", member: member("m1", exited(0)),
			want: lifecycle.Faults{Rule: "passed_elsewhere"}},
		{claim: "a success elsewhere accuses the machine of an earlier crash", member: member("m1", exited(0)),
			earlier: []failure.EarlierAttempt{{Attempt: 1, Rule: "crash", Machine: "m7"}},
			want:    lifecycle.Faults{Machines: []berth.MachineID{"m7"}, Rule: "passed_elsewhere"}},
	} {
		got := lifecycle.Settle(running(c.member), lifecycle.History{Earlier: c.earlier}).Faults
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.claim, diff)
		}
	}
}

func TestGrownMemoryIsHalfAsMuchAgainRoundedUp(t *testing.T) {
	t.Parallel()
	for before, after := range map[int64]int64{0: 0, 1: 2, 3: 5, 1024: 1536} {
		got := lifecycle.Grow(spec.Request{MemoryMiB: before, CPUMilli: 100}, nil)
		if got.MemoryMiB != after || got.CPUMilli != 100 {
			t.Errorf("%d MiB became %+v, want %d MiB", before, got, after)
		}
	}
}
