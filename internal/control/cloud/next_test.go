package cloud_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

var (
	start  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limits = cloud.DefaultLimits
)

func fault(kind cloud.Kind) *cloud.Error {
	return &cloud.Error{Kind: kind, Err: errors.New("scripted")}
}

// sent is a launch that was sent once, at start.
func sent(t *testing.T) cloud.Record {
	t.Helper()
	r, err := cloud.Record{Machine: "m", N: 1, State: cloud.LaunchRequested, Token: "t"}.Send("h", "k", "j", limits, start)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// again sends the request of r once more.
func again(t *testing.T, r cloud.Record, at time.Time) cloud.Record {
	t.Helper()
	r, err := r.Send("h", "k", "j", limits, at)
	if err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	return r
}

// instance is the launch's instance in a state.
func instance(state cloud.State) cloud.Instance {
	return cloud.Instance{ID: "i-1", Token: "t", State: state}
}

func see(t *testing.T, r cloud.Record, state cloud.State, at time.Time) cloud.Record {
	t.Helper()
	r, err := r.See(instance(state), at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A launch counts as answered since the answer with its instance, and not since it was throttled before.
func TestAThrottledLaunchIsAnsweredByItsInstance(t *testing.T) {
	t.Parallel()
	r := sent(t).Refused(fault(cloud.Throttle), start, start.Add(time.Second))
	r = again(t, r, start.Add(time.Minute))
	seen := start.Add(61 * time.Second)
	if r = see(t, r, cloud.Pending, seen); !r.AnsweredAt.Equal(seen) {
		t.Errorf("answered at %s, want %s", r.AnsweredAt, seen)
	}
	if r = see(t, r, cloud.Running, seen.Add(time.Minute)); !r.AnsweredAt.Equal(seen) {
		t.Errorf("a later look changes the time of the answer to %s", r.AnsweredAt)
	}
}

func wants(t *testing.T, r cloud.Record, at time.Time, act cloud.Act, to cloud.LaunchState) {
	t.Helper()
	if s := cloud.Next(r, limits, at); s.Act != act || s.To != to {
		t.Errorf("%s: step is %+v, want %s to %q", r.State, s, act, to)
	}
}

func TestARequestIsSentOnceCommittedAndNeverChanged(t *testing.T) {
	t.Parallel()
	r := sent(t)
	if r.State != cloud.LaunchSent || r.Sends != 1 || !r.InDoubt() {
		t.Errorf("after a send: %+v", r)
	}
	if _, err := r.Send("h", "k", "j", limits, start.Add(time.Second)); !errors.Is(err, cloud.ErrNotSent) {
		t.Errorf("a second send at once: %v", err)
	}
	if _, err := r.Send("other", "k", "j", limits, start.Add(time.Minute)); err == nil || errors.Is(err, cloud.ErrNotSent) {
		t.Errorf("another request with the token: %v", err)
	}
}

func TestAnUnknownOutcomeRepeatsThenLooksThenIsUnresolved(t *testing.T) {
	t.Parallel()
	r, at := sent(t), start
	sends := 1
	for at.Sub(start) < limits.Patience {
		s := cloud.Next(r, limits, at)
		switch s.Act {
		case cloud.ActSend:
			r = again(t, r, at).Refused(fault(cloud.Unknown), at, at)
			sends++
		case cloud.ActFind:
			r = r.Missed(fault(cloud.NotFound), limits, at)
		case cloud.ActWait:
		default:
			t.Fatalf("act %+v", s)
		}
		if r.State != cloud.LaunchSent {
			t.Fatalf("after %s: %s", at.Sub(start), r.State)
		}
		at = at.Add(max(s.Wait, time.Second))
	}
	wants(t, r, at, cloud.ActFind, "")
	r = r.Missed(fault(cloud.NotFound), limits, at)
	if r.State != cloud.LaunchUnresolved || sends != limits.Sends {
		t.Errorf("%s after %d sends", r.State, sends)
	}
	for range 1000 { // it is looked for without end, and NotFound never settles it
		at = at.Add(time.Hour)
		wants(t, r, at, cloud.ActFind, "")
		r = r.Missed(fault(cloud.NotFound), limits, at)
	}
	if r = see(t, r, cloud.Running, at); r.State != cloud.LaunchRunning {
		t.Errorf("seen at last: %s", r.State)
	}
}

func TestARefusalSettlesOnlyALaunchThatNoOtherSendMayHaveCreated(t *testing.T) {
	t.Parallel()
	if r := sent(t).Refused(fault(cloud.Capacity), start, start); r.State != cloud.LaunchFailed {
		t.Errorf("refused at once: %s", r.State)
	}
	soon := start.Add(3 * time.Second)
	r := again(t, sent(t), soon).Refused(fault(cloud.Capacity), soon, soon)
	if r.State != cloud.LaunchSent || !r.InDoubt() {
		t.Errorf("refused soon after a send of unknown outcome: %s", r.State)
	}
	late := soon.Add(cloud.SettleTime)
	if r = again(t, r, late).Refused(fault(cloud.Capacity), late, late); r.State != cloud.LaunchFailed {
		t.Errorf("refused again a minute later: %s", r.State)
	}
	// These kinds show that a repeat was refused, and nothing about the send before it.
	for _, kind := range []cloud.Kind{cloud.Auth, cloud.Spec, cloud.Quota, cloud.NotFound, cloud.Network} {
		r := again(t, sent(t), late).Refused(fault(kind), late, late)
		wants(t, r, late.Add(cloud.SettleTime), cloud.ActFind, "")
		if r.State != cloud.LaunchSent || !r.InDoubt() {
			t.Errorf("%s long after a send of unknown outcome: %s", kind, r.State)
		}
		if r = r.Missed(fault(cloud.NotFound), limits, start.Add(limits.Patience)); r.State != cloud.LaunchUnresolved {
			t.Errorf("%s, and not found: %s", kind, r.State)
		}
		if r := sent(t).Refused(fault(kind), start, start); r.State != cloud.LaunchFailed {
			t.Errorf("%s at once: %s", kind, r.State)
		}
	}
	// Two replicas: the send of the other one is later, and unanswered.
	r = again(t, sent(t), soon).Refused(fault(cloud.Capacity), start, soon)
	if r.State != cloud.LaunchSent {
		t.Errorf("refused while a later send is under way: %s", r.State)
	}
	if r = see(t, r, cloud.Pending, soon); r.State != cloud.LaunchRunning {
		t.Errorf("the later send created an instance: %s", r.State)
	}
	if r := sent(t).Refused(fault(cloud.Mismatch), start, start); r.State != cloud.LaunchSent || !r.InDoubt() {
		t.Errorf("mismatch: %s", r.State)
	}
}

func TestAThrottledLaunchIsRepeatedAndFailsForSure(t *testing.T) {
	t.Parallel()
	r := sent(t).Refused(fault(cloud.Throttle), start, start)
	wants(t, r, start.Add(time.Minute), cloud.ActSend, "")
	wants(t, r, start.Add(limits.Patience), cloud.ActMove, cloud.LaunchFailed)
}

// The kind of a launch is unsent while the cloud has answered none of its sends.
func TestALaunchKnowsThatNoSendHasReachedTheCloud(t *testing.T) {
	t.Parallel()
	unsent := &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no program")}
	for _, c := range []struct {
		name  string
		sends []*cloud.Error // 40 seconds apart
		want  cloud.Kind
		never bool // no replica could make a call until the launch is given up
	}{
		{"no call was made", slices.Repeat([]*cloud.Error{unsent}, 8), cloud.Unsent, true},
		{"no call was made, and then none was tried", []*cloud.Error{unsent, unsent}, cloud.Unsent, false},
		{"the cloud throttles", []*cloud.Error{unsent, fault(cloud.Throttle), unsent}, cloud.Throttle, false},
		{"the outcome of a send is unknown", []*cloud.Error{fault(cloud.Unknown), unsent}, cloud.Throttle, false},
	} {
		r, at := sent(t), start
		for i, e := range c.sends {
			if i > 0 {
				at = at.Add(40 * time.Second)
				r = again(t, r, at)
			}
			r = r.Refused(e, at, at)
		}
		if r.ErrorKind != c.want || r.State != cloud.LaunchSent {
			t.Errorf("%s: the launch is %s with the kind %s, want %s", c.name, r.State, r.ErrorKind, c.want)
		}
		end := start.Add(limits.Patience)
		after, moved := r.Take(cloud.Next(r, limits, end), limits, end)
		if r.NeverCalled(after, end) != c.never {
			t.Errorf("%s: given up %v as %+v", c.name, moved, after)
		}
	}
}

func TestGoneIsTerminatedOnTwoReadsAMinuteApart(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r, _ = r.WithStop(cloud.Stop{Actor: "a", Reason: "x"}, start)
	wants(t, r, start, cloud.ActMove, cloud.LaunchTerminating)
	r, _ = r.Take(cloud.Next(r, limits, start), limits, start)
	wants(t, r, start, cloud.ActTerminate, "")
	r = r.Asked(nil, start)
	at := start.Add(limits.Look)
	for range 100 { // NotFound after Terminate proves nothing
		r = r.Missed(fault(cloud.NotFound), limits, at)
	}
	if s := cloud.Next(r, limits, at.Add(time.Hour)); s.Act != cloud.ActTerminate {
		t.Errorf("not seen for an hour: %+v", s)
	}
	r = see(t, r, cloud.Terminated, at)
	wants(t, r, at, cloud.ActWait, "")
	r = see(t, r, cloud.Terminated, at.Add(59*time.Second))
	wants(t, r, at.Add(59*time.Second), cloud.ActWait, "")
	wants(t, r, at.Add(time.Minute), cloud.ActFind, "")
	back := see(t, r, cloud.Running, at.Add(time.Minute)) // the first read was wrong
	back = see(t, back, cloud.Terminated, at.Add(2*time.Minute))
	wants(t, back, at.Add(2*time.Minute), cloud.ActWait, "")
	r = see(t, r, cloud.Terminated, at.Add(time.Minute))
	wants(t, r, at.Add(time.Minute), cloud.ActMove, cloud.LaunchGone)
}

func TestATerminateIsRepeatedWithoutLimit(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r.State = cloud.LaunchTerminating
	at := start
	for range 50 {
		wants(t, r, at, cloud.ActTerminate, "")
		r = r.Asked(fault(cloud.Unknown), at)
		at = at.Add(20 * limits.Nag)
	}
	if r.Terminates != 50 || r.State != cloud.LaunchTerminating {
		t.Errorf("%+v", r)
	}
}

func TestAStopBeforeTheFirstSendSendsNothing(t *testing.T) {
	t.Parallel()
	r, err := cloud.Record{State: cloud.LaunchRequested}.WithStop(cloud.Stop{Actor: "user:a"}, start)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, r, start, cloud.ActMove, cloud.LaunchFailed)
	if _, err := (cloud.Record{State: cloud.LaunchGone}).WithStop(cloud.Stop{}, start); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("stop of a settled launch: %v", err)
	}
}

func TestAStopWhileTheCreateIsUnknownWaitsForTheOutcome(t *testing.T) {
	t.Parallel()
	r, _ := sent(t).WithStop(cloud.Stop{Actor: "a", Reason: "x"}, start)
	wants(t, r, start.Add(limits.Retry), cloud.ActSend, "")
	r = see(t, r, cloud.Pending, start)
	wants(t, r, start, cloud.ActMove, cloud.LaunchTerminating)
}

func TestAMachineThatJoinedIsDrainedFirst(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r.JoinedAt, r.MachineState = start, berth.MachineReady
	wants(t, r, start.Add(time.Hour), cloud.ActMove, cloud.LaunchServing)
	r, _ = r.Take(cloud.Next(r, limits, start), limits, start)
	r, _ = r.WithStop(cloud.Stop{Actor: "a", Reason: "x"}, start)
	wants(t, r, start, cloud.ActDrain, cloud.LaunchDraining)
	r, _ = r.Take(cloud.Next(r, limits, start), limits, start)
	r.MachineState = berth.MachineDraining
	wants(t, r, start, cloud.ActRetire, cloud.LaunchTerminating)
	for _, open := range []berth.MachineState{berth.MachineReady, berth.MachineJoining, berth.MachineSuspect} {
		r.MachineState = open // an admin opened it again
		wants(t, r, start, cloud.ActDrain, "")
	}
	r.MachineState = berth.MachineDraining
	r, _ = r.WithStop(cloud.Stop{Actor: "a", Reason: "x", Deadline: start.Add(time.Hour)}, start)
	wants(t, r, start, cloud.ActDrain, "") // a later request has a deadline
	r.DrainDeadline = r.StopDeadline
	wants(t, r, start, cloud.ActRetire, cloud.LaunchTerminating)
	r.MachineState = berth.MachineRetired
	wants(t, r, start, cloud.ActMove, cloud.LaunchTerminating)
	r.MachineState = berth.MachineLost
	wants(t, r, start, cloud.ActMove, cloud.LaunchTerminating)
}

func TestADrainedMachineIsRetiredWhileItsCloudIsAway(t *testing.T) {
	t.Parallel()
	r := cloud.Record{State: cloud.LaunchDraining, MachineState: berth.MachineDraining, SeenAt: start, StopAt: start}
	if s := cloud.Next(r, limits, start.Add(limits.Watch-1)); s.Act != cloud.ActRetire || s.Else != "" {
		t.Errorf("seen lately: %+v", s)
	}
	if s := cloud.Next(r, limits, start.Add(limits.Watch)); s.Act != cloud.ActRetire || s.Else != cloud.ActFind {
		t.Errorf("not seen lately: %+v", s)
	}
}

func TestAMachineThatAnAdminRetiredIsTerminated(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r.State, r.JoinedAt, r.MachineState = cloud.LaunchServing, start, berth.MachineRetired
	wants(t, r, start, cloud.ActMove, cloud.LaunchTerminating)
	r.Current = 2 // the machine may have joined again in the lost tail
	wants(t, r, start, cloud.ActWait, "")
}

func TestAMachineThatJoinedByAnotherTokenIsDrainedFirst(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r.MachineState = berth.MachineReady
	r, _ = r.WithStop(cloud.Stop{Actor: "a", Reason: "x"}, start)
	wants(t, r, start.Add(limits.JoinLimit), cloud.ActMove, cloud.LaunchServing)
}

func TestARestoredSendIsNeverCertainToHaveFailed(t *testing.T) {
	t.Parallel()
	r := sent(t).Refused(fault(cloud.Throttle), start, start)
	r.Current = 2
	wants(t, r, start.Add(limits.Patience), cloud.ActMove, cloud.LaunchUnresolved)
	r = again(t, r, start.Add(time.Minute))
	if r = r.Refused(fault(cloud.Capacity), r.LastSentAt, r.LastSentAt); r.State != cloud.LaunchSent {
		t.Errorf("refused: %s", r.State)
	}
}

func TestAnInstanceThatNeverJoinsIsTerminated(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start.Add(limits.JoinLimit))
	wants(t, r, start.Add(limits.JoinLimit-1), cloud.ActWait, "")
	wants(t, r, start.Add(limits.JoinLimit), cloud.ActMove, cloud.LaunchTerminating)
}

func TestNothingOfARestoredDatabaseIsSentOrTerminated(t *testing.T) {
	t.Parallel()
	r := cloud.Record{State: cloud.LaunchRequested, Incarnation: 1, Current: 2}
	wants(t, r, start, cloud.ActMove, cloud.LaunchUnresolved)
	r = see(t, sent(t), cloud.Running, start)
	r.Current = 2
	wants(t, r, start.Add(24*time.Hour), cloud.ActFind, "")
	r, _ = r.WithStop(cloud.Stop{Actor: "a"}, start)
	wants(t, r, start, cloud.ActMove, cloud.LaunchTerminating) // an admin may
}

// The rows of other instances may be lost, until a sweep has listed all of them.
func TestAfterARestoreNothingIsCalledBeforeAListing(t *testing.T) {
	t.Parallel()
	again := sent(t).Refused(fault(cloud.Throttle), start, start)
	ending := see(t, sent(t), cloud.Running, start)
	ending.State, ending.Reason = cloud.LaunchTerminating, "enough"
	instead := map[cloud.Act]cloud.Act{cloud.ActSend: cloud.ActWait, cloud.ActTerminate: cloud.ActFind}
	for act, r := range map[cloud.Act]cloud.Record{cloud.ActSend: again, cloud.ActTerminate: ending} {
		late := start.Add(limits.Patience / 2)
		r.Current = 2
		wants(t, r, late, act, "")
		r.Unlisted = true
		wants(t, r, late, instead[act], "")
		r.Current = r.Incarnation // a launch of the present incarnation was requested after a listing
		wants(t, r, late, act, "")
	}
}

// While the listing fails, an instance that the cloud has ended is seen, and an admin can end one that the row has.
func TestBeforeAListingAnEndIsSeenAndAnAdminMayTerminate(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r, _ = r.WithStop(cloud.Stop{Actor: "operator:a", Reason: "x"}, start) // before the restore
	r.State, r.Reason = cloud.LaunchTerminating, "x"
	r.Current, r.Unlisted = 2, true
	at := start.Add(limits.Look)
	wants(t, r, at.Add(-1), cloud.ActWait, "")
	wants(t, r, at, cloud.ActFind, "")
	scaled, _ := r.WithStop(cloud.Stop{Actor: cloud.ScalerActor, Reason: "idle"}, at)
	wants(t, scaled, at, cloud.ActFind, "")
	again, _ := r.WithStop(cloud.Stop{Actor: "operator:a", Reason: "x"}, at)
	wants(t, again, at, cloud.ActTerminate, "")
	again.Current++ // another restore
	wants(t, again, at, cloud.ActFind, "")
	for range 2 {
		r = see(t, r, cloud.Terminated, at)
		at = at.Add(cloud.SettleTime)
	}
	wants(t, r, at, cloud.ActMove, cloud.LaunchGone)
}

// The scaler has found the machine empty before the restore. Jobs of the lost tail may run there.
func TestTheScalersStopFromBeforeARestoreNeedsAnAdmin(t *testing.T) {
	t.Parallel()
	for _, state := range []cloud.LaunchState{cloud.LaunchRunning, cloud.LaunchServing, cloud.LaunchDraining} {
		for _, machine := range []berth.MachineState{berth.MachineDraining, berth.MachineLost, berth.MachineReady} {
			r := see(t, sent(t), cloud.Running, start)
			r, _ = r.WithStop(cloud.Stop{Actor: cloud.ScalerActor}, start)
			r.State = state
			if state != cloud.LaunchRunning {
				r.JoinedAt, r.MachineState = start, machine
			}
			r.Current = 2
			wants(t, r, start.Add(time.Second), cloud.ActWait, "")
			r, _ = r.WithStop(cloud.Stop{Actor: "operator:a"}, start)
			if s := cloud.Next(r, limits, start.Add(time.Second)); s.Act == cloud.ActWait {
				t.Errorf("%s: an admin's stop: %+v", state, s)
			}
		}
	}
}

func TestAMachineWhoseInstanceIsGoneIsReleased(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r.JoinedAt, r.MachineState, r.State = start, berth.MachineReady, cloud.LaunchServing
	r = see(t, r, cloud.Terminated, start)
	if r.State != cloud.LaunchTerminating {
		t.Fatalf("the cloud took the instance: %s", r.State)
	}
	r = see(t, r, cloud.Terminated, start.Add(cloud.SettleTime))
	wants(t, r, start.Add(cloud.SettleTime), cloud.ActRelease, "")
	r.MachineState = berth.MachineRetired
	wants(t, r, start.Add(cloud.SettleTime), cloud.ActMove, cloud.LaunchGone)
}

func TestInstancesThatAreNotTheLaunchsChangeNothing(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	for _, i := range []cloud.Instance{{ID: "i-2", Token: "t"}, {ID: "i-1", Token: "other"}} {
		if after, err := r.See(i, start); !errors.Is(err, cloud.ErrSecond) || after != r {
			t.Errorf("%+v: %v", i, err)
		}
	}
	gone := cloud.Record{State: cloud.LaunchFailed, Token: "t"}
	if after, err := gone.See(instance(cloud.Running), start); !errors.Is(err, cloud.ErrLate) || after != gone {
		t.Errorf("late: %v", err)
	}
}
