package cloud

import (
	"fmt"
	"time"

	"berth"
)

// Limits are the times of a launch.
type Limits struct {
	Patience  time.Duration // after the first send, until a launch in doubt is unresolved
	JoinLimit time.Duration // after the first send, until an instance that has not joined is terminated
	Sends     int           // of one request with an unknown outcome; then the instance is looked for

	Retry   time.Duration // least pause between two sends; doubles up to 15 times this value
	Look    time.Duration // pause between two reads of an instance that changes soon
	Watch   time.Duration // pause between two reads of an instance whose agent joined
	Nag     time.Duration // least pause between two calls of Terminate; doubles up to 20 times this value
	Unfound time.Duration // least pause between two searches of an unresolved launch; grows with its age
}

// DefaultLimits are the limits in production.
var DefaultLimits = Limits{
	Patience: 5 * time.Minute, JoinLimit: 15 * time.Minute, Sends: 4,
	Retry: 2 * time.Second, Look: 15 * time.Second, Watch: 5 * time.Minute, Nag: 30 * time.Second,
	Unfound: time.Minute,
}

// JoinTokenTTL is the lifetime of the join token in a request. Sends end after Limits.Patience, and an
// instance that has not joined is terminated after Limits.JoinLimit.
const JoinTokenTTL = 20 * time.Minute

// Act is the next thing to do for a launch.
type Act string

// The acts.
const (
	ActNone      Act = "none"      // the launch is settled
	ActWait      Act = "wait"      // nothing to do before Step.Wait has passed
	ActMove      Act = "move"      // change to the state Step.To
	ActSend      Act = "send"      // commit a send, then call Create
	ActFind      Act = "find"      // call Find
	ActDrain     Act = "drain"     // close the machine to new work
	ActRetire    Act = "retire"    // retire the machine if it is empty
	ActRelease   Act = "release"   // confirm the machine dead, whose instance is gone, and retire it
	ActTerminate Act = "terminate" // call Terminate
)

// Step is the next act for a launch. Each step makes at most one call to the cloud.
type Step struct {
	Act    Act
	To     LaunchState   // of ActMove, and the state after a successful ActDrain or ActRetire; "": no change
	Reason string        // for To
	Else   Act           // after a refused ActRetire; "": none
	Wait   time.Duration // of ActWait; after another act, until the act may be repeated without effect on the row
}

// Next decides the next step of a launch at a time. It is a pure function of the row.
//
// After a restore, nothing is sent or terminated before the instances of the provider were listed: the rows of
// some may be lost, and an operator may not yet know that the rows are old. A request since the restore to end the
// machine does not wait, since it names an instance that the row has.
func Next(r Record, l Limits, now time.Time) Step {
	s := next(r, l, now)
	switch {
	case !r.Unlisted || !r.Restored():
	case s.Act == ActSend:
		return Step{Act: ActWait, Wait: l.Look}
	case s.Act == ActTerminate && !(r.stops() && r.StopIncarnation == r.Current):
		return look(r, l.Look, now) // the cloud may have ended the instance
	}
	return s
}

// next is Next for a provider whose instances were listed.
func next(r Record, l Limits, now time.Time) Step {
	switch r.State {
	case LaunchRequested:
		switch {
		case !r.StopAt.IsZero():
			return Step{Act: ActMove, To: LaunchFailed, Reason: "withdrawn by " + r.StopActor + " before it was sent"}
		case r.Restored():
			return Step{Act: ActMove, To: LaunchUnresolved,
				Reason: "the database was restored after the request: it may have been sent, with another join token"}
		}
		return Step{Act: ActSend, Wait: l.Retry}
	case LaunchSent:
		return nextSend(r, l, now)
	case LaunchUnresolved:
		return Step{Act: ActFind, Wait: min(max(l.Unfound, now.Sub(r.StateAt)/10), 60*l.Unfound)}
	case LaunchRunning:
		return nextRunning(r, l, now)
	case LaunchServing:
		if r.stops() {
			return Step{Act: ActDrain, To: LaunchDraining, Reason: r.StopReason}
		}
		if r.MachineState == berth.MachineRetired && !r.Restored() {
			return Step{Act: ActMove, To: LaunchTerminating, Reason: "the machine was retired"}
		}
		return look(r, l.Watch, now)
	case LaunchDraining:
		return nextDraining(r, l, now)
	case LaunchTerminating:
		return nextEnd(r, l, now)
	}
	return Step{Act: ActNone}
}

// look reads the instance if the last read is older than every.
func look(r Record, every time.Duration, now time.Time) Step {
	if age := now.Sub(r.SeenAt); age < every {
		return Step{Act: ActWait, Wait: every - age}
	}
	return Step{Act: ActFind, Wait: every}
}

// nextSend decides about a launch whose request was sent and not answered with an instance.
func nextSend(r Record, l Limits, now time.Time) Step {
	since := now.Sub(r.LastSentAt)
	pause := backoff(l.Retry, r.Sends, 15)
	switch {
	case r.stops() && r.Uncreated():
		return Step{Act: ActMove, To: LaunchFailed,
			Reason: "withdrawn by " + r.StopActor + " before a call has created an instance"}
	case now.Sub(r.SentAt) >= l.Patience && !r.InDoubt() && r.Restored():
		return Step{Act: ActMove, To: LaunchUnresolved,
			Reason: "the database was restored after the request: it may have been sent once more"}
	case now.Sub(r.SentAt) >= l.Patience && !r.InDoubt():
		return Step{Act: ActMove, To: LaunchFailed, Reason: r.Error}
	case now.Sub(r.SentAt) >= l.Patience, r.ErrorKind == Mismatch:
		return Step{Act: ActFind, Wait: l.Look}
	case r.InDoubt() && r.refused():
		// One more send, at a time when each send in doubt has taken effect or never will. If the cloud
		// has no room for it either, none has taken effect. Other refusals prove nothing about them.
		if r.ErrorKind == Capacity && since >= SettleTime && r.doubts() <= l.Sends {
			return Step{Act: ActSend, Wait: pause}
		}
		return Step{Act: ActFind, Wait: l.Look}
	case r.doubts() >= l.Sends:
		return Step{Act: ActFind, Wait: l.Look}
	case since < pause:
		return Step{Act: ActWait, Wait: pause - since}
	}
	return Step{Act: ActSend, Wait: pause}
}

// refused reports whether the last answer to a send was a refusal that a repeat would not change.
func (r Record) refused() bool {
	switch r.ErrorKind {
	case Capacity, Quota, Network, Auth, Spec, NotFound:
		return true
	}
	return false
}

// nextRunning decides about an instance whose agent has not joined.
func nextRunning(r Record, l Limits, now time.Time) Step {
	switch {
	case !r.JoinedAt.IsZero() || r.MachineState != "": // the latter by a join token of an admin
		return Step{Act: ActMove, To: LaunchServing}
	case r.stops():
		return Step{Act: ActMove, To: LaunchTerminating, Reason: r.StopReason}
	case r.Restored():
		// The lost tail of the database may have recorded the join, and work on the machine.
		return look(r, l.Watch, now)
	case now.Sub(r.SentAt) >= l.JoinLimit:
		return Step{Act: ActMove, To: LaunchTerminating,
			Reason: fmt.Sprintf("the instance did not join within %s", l.JoinLimit)}
	}
	return look(r, l.Look, now)
}

// nextDraining decides about an instance whose machine is to become empty.
func nextDraining(r Record, l Limits, now time.Time) Step {
	s := Step{Act: ActRetire, To: LaunchTerminating, Reason: r.StopReason, Wait: l.Look}
	switch {
	case !r.stops() && r.MachineState != berth.MachineRetired:
		return look(r, l.Watch, now)
	case r.MachineState == berth.MachineLost, r.MachineState == berth.MachineRetired:
		// The agent of a lost machine is silent, so the machine never becomes empty. The end of the
		// instance frees its jobs.
		return Step{Act: ActMove, To: LaunchTerminating, Reason: r.StopReason}
	case r.takesWork(), r.MachineState == berth.MachineDraining && !r.DrainDeadline.Equal(r.StopDeadline):
		// An admin opened the machine, or requested another deadline.
		return Step{Act: ActDrain, Reason: r.StopReason, Wait: l.Look}
	case now.Sub(r.SeenAt) >= l.Watch:
		s.Else = ActFind
	}
	return s
}

// takesWork reports whether the machine of the launch is open to new work, or soon will be.
func (r Record) takesWork() bool {
	return r.MachineState == berth.MachineReady || r.MachineState == berth.MachineJoining ||
		r.MachineState == berth.MachineSuspect
}

// nextEnd decides about an instance that is to be terminated, or that the cloud showed as ending. Only
// two reads of Terminated that are SettleTime apart prove the end.
func nextEnd(r Record, l Limits, now time.Time) Step {
	switch {
	case !r.EndedFirst.IsZero() && r.EndedLast.Sub(r.EndedFirst) >= SettleTime:
		if r.MachineState != "" && r.MachineState != berth.MachineRetired && !r.OtherHost {
			return Step{Act: ActRelease, Wait: l.Look}
		}
		return Step{Act: ActMove, To: LaunchGone, Reason: r.Reason}
	case !r.EndedFirst.IsZero():
		if wait := r.EndedFirst.Add(SettleTime).Sub(now); wait > 0 {
			return Step{Act: ActWait, Wait: wait}
		}
		return Step{Act: ActFind, Wait: l.Look}
	case r.takesWork() && !r.OtherHost:
		return Step{Act: ActDrain, Reason: r.Reason, Wait: l.Look}
	case now.Sub(r.TerminateAt) >= backoff(l.Nag, r.Terminates, 20):
		return Step{Act: ActTerminate, Wait: l.Look}
	}
	return look(r, l.Look, now)
}

// backoff returns the pause after a number of tries: least after the first, doubling up to most times.
func backoff(least time.Duration, tries, most int) time.Duration {
	if tries <= 0 {
		return 0
	}
	return min(least<<min(tries-1, 20), time.Duration(most)*least)
}
