package lifecycle_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/failure"
	"berth/lifecycle"
	"berth/spec"
)

func TestOnlyALiveGangIsRepaired(t *testing.T) {
	t.Parallel()
	gang := func(f func(*lifecycle.Job)) lifecycle.Job { return changed(running(active, orphan("m1")), f) }
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		want  bool
	}{
		{"a running gang", gang(func(*lifecycle.Job) {}), true},
		{"a scheduled gang", gang(func(j *lifecycle.Job) { j.State = berth.Scheduled }), true},
		{"a preempting gang", gang(func(j *lifecycle.Job) { j.State = berth.Preempting }), false},
		{"a canceling gang", gang(func(j *lifecycle.Job) { j.State = berth.Canceling }), false},
		{"a gang with a cancel request", gang(func(j *lifecycle.Job) { j.CancelAt = &start }), false},
		{"a victim", gang(func(j *lifecycle.Job) { j.Preempted = true }), false},
		{"a job of one member", running(orphan("m1")), false},
	} {
		if got := c.job.Repairable(); got != c.want {
			t.Errorf("%s: repairable is %v", c.claim, got)
		}
	}
}

func TestTheMembersThatDidNothingWrongSurvive(t *testing.T) {
	t.Parallel()
	failedAt := func(after time.Duration) lifecycle.Member {
		x := exited(1)
		x.FinishedAt = start.Add(after)
		return member("m1", x)
	}
	followed := member("m2", ended(failure.CauseOrdered, 143))
	withdrawn := lifecycle.Member{State: berth.AllocReleased, Exit: &failure.Exit{Cause: failure.CauseNotStarted}}
	for _, c := range []struct {
		claim string
		gang  []lifecycle.Member
		want  []berth.AllocationID
	}{
		{"all are healthy", []lifecycle.Member{active, active}, []berth.AllocationID{1, 2}},
		{"an orphan is replaced", []lifecycle.Member{active, orphan("m1"), active}, []berth.AllocationID{1, 3}},
		{"an unclaimed member is replaced", []lifecycle.Member{reserved(lifecycle.UnclaimedAfter), active},
			[]berth.AllocationID{2}},
		{"a fresh reservation stays", []lifecycle.Member{reserved(0), orphan("m1")}, []berth.AllocationID{1}},
		{"the member that failed first is replaced",
			[]lifecycle.Member{failedAt(2 * time.Second), failedAt(time.Second), active},
			[]berth.AllocationID{1, 3}},
		{"of equal times the first member is replaced",
			[]lifecycle.Member{failedAt(time.Second), failedAt(time.Second)},
			[]berth.AllocationID{2}},
		{"a lost machine explains later failures", []lifecycle.Member{failedAt(time.Second), orphan("m3")},
			[]berth.AllocationID{1}},
		{"an ordered end and a withdrawn start are no faults", []lifecycle.Member{followed, withdrawn},
			[]berth.AllocationID{1, 2}},
		{"a completed member survives", []lifecycle.Member{member("m1", exited(0)), failedAt(0)},
			[]berth.AllocationID{1}},
		{"the odd member of a hung gang is replaced", []lifecycle.Member{hung(0, "S"), hung(1, "T"), hung(2, "S")},
			[]berth.AllocationID{1, 3}},
		{"of a hung gang without an odd member the first to end is replaced",
			[]lifecycle.Member{hung(0, "S"), hung(1, "S"), hung(2, "S")}, []berth.AllocationID{2, 3}},
		{"none is left", []lifecycle.Member{orphan("m1"), orphan("m2")}, nil},
	} {
		if diff := cmp.Diff(c.want, running(c.gang...).Survivors()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.claim, diff)
		}
	}
}

func TestTheUnclaimedMembersOfAGangAreLost(t *testing.T) {
	t.Parallel()
	gang := running(active, reserved(lifecycle.UnclaimedAfter), reserved(lifecycle.UnclaimedAfter-1), orphan("m1"))
	if diff := cmp.Diff([]berth.AllocationID{2}, gang.Lost()); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
}

func TestAGangStopsWithinItsBoundedGrace(t *testing.T) {
	t.Parallel()
	for grace, want := range map[time.Duration]time.Duration{
		time.Second: time.Second, berth.GangGrace: berth.GangGrace, time.Hour: berth.GangGrace,
	} {
		job := lifecycle.Job{Grace: grace}
		if got := job.Hurried().Grace; got != want || job.Grace != grace {
			t.Errorf("grace %s became %s, want %s", grace, got, want)
		}
	}
}

func TestRoomIsKeptForANextAttemptThatStartsSoon(t *testing.T) {
	t.Parallel()
	slow := func(j *lifecycle.Job) {
		j.Retry = spec.RetryPolicy{MaxAttempts: 3, Backoff: spec.Backoff{Initial: spec.Duration(time.Hour), Factor: 2,
			Max: spec.Duration(2 * time.Hour)}}
	}
	done := member("m1", exited(0))
	for _, c := range []struct {
		claim string
		job   lifecycle.Job
		want  lifecycle.Room
	}{
		{"a job of one member has none", running(orphan("m1")), lifecycle.RoomNone},
		{"a first loss is retried at once", running(done, orphan("m2")), lifecycle.RoomKept},
		{"a long backoff is too late", changed(running(done, member("m2", exited(1))), slow), lifecycle.RoomReleased},
		{"a failed gang needs none", running(done, member("m2", exited(1))), lifecycle.RoomReleased},
		{"a gang that is done needs none", running(done, done), lifecycle.RoomReleased},
	} {
		if s := lifecycle.Settle(c.job, lifecycle.History{}); s.Room != c.want {
			t.Errorf("%s: room is %q after %s in %s, want %q", c.claim, s.Room, s.Verdict.Next, s.Verdict.Delay, c.want)
		}
	}
}

// hung is a member that was stopped because its gang hangs, with a process in this state.
func hung(rank int, state string) lifecycle.Member {
	x := ended(failure.CauseStalled, 143)
	x.FinishedAt = start.Add(time.Duration(rank) * time.Second)
	m := member("m1", x)
	m.Rank = rank
	m.Hang = &failure.HangEvidence{Rank: rank, Processes: []failure.HangProcess{{PID: 1, Name: "python", State: state}}}
	return m
}
