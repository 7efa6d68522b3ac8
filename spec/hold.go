package spec

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth"
)

// Limits of Job.HoldOnFailure.
const (
	minHold = time.Minute
	maxHold = 24 * time.Hour
)

// HoldWait is the longest time in which a debug job waits for its start. Later its machine has no room
// for it, and the files of the failed attempt are deleted.
const HoldWait = time.Minute

// holdMargin is the time after the end of a hold at which the agent stops a container that has not ended.
const holdMargin = time.Minute

// validateHold checks the time of a hold. A hold is a second container with the files of the first, which
// is exactly the case that at_most_one excludes.
func validateHold(v *validation, s Job) {
	d := s.HoldOnFailure
	if d == 0 {
		return
	}
	v.require(d.Std() >= minHold && d.Std() <= maxHold, "hold_on_failure", fmt.Sprintf("%s is out of range", d),
		fmt.Sprintf("%s to %s", Duration(minHold), Duration(maxHold)))
	v.require(s.Execution != AtMostOne, "hold_on_failure", "is not for jobs with execution: at_most_one, of which no "+
		"second container may have the files", "leave it out, or set execution: at_least_once")
}

// DebugSuffix ends the name of a debug job.
const DebugSuffix = "-debug"

// DebugJob returns the spec of the debug job that holds a member of a failed attempt: one member with the
// resources, the environment, the secrets, the network and the user of that member, on its machine. It
// sleeps for HoldOnFailure in place of the command. The mounts of Workdir and Inputs stay, since the agent
// takes over the folders of the failed member. s must have its defaults filled in; alternative is the
// hardware in force. It has no labels, so that a filter for the job's labels does not find it.
func DebugJob(s Job, member, alternative int, machine berth.MachineID) Job {
	hold := s.HoldOnFailure
	d := ChooseMember(Choose(s, alternative), member)
	d.Name = debugName(s.Name)
	d.Entrypoint, d.Command = []string{"sleep"}, []string{strconv.Itoa(int(hold.Std().Seconds()))}
	d.Members, d.Groups, d.Alternatives = 1, nil, nil
	d.Placement = Placement{Constraint: "machine.id == " + strconv.Quote(string(machine)),
		Tolerations: d.Placement.Tolerations}
	d.Priority, d.Preemptible, d.Execution = ptr(Priority(0)), ptr(true), AtLeastOnce
	d.QueueTimeout, d.TimeLimit = Duration(HoldWait), hold+Duration(holdMargin)
	d.StallTimeout, d.Stall, d.StopGrace, d.HoldOnFailure = 0, nil, ptr(Duration(0)), 0
	d.Retry, d.Checkpoint, d.Outputs = RetryPolicy{}, nil, nil
	d.Labels = nil
	d.Array, d.Needs, d.When, d.Final, d.Cache, d.Notify = nil, nil, "", false, false, nil
	return d.WithDefaults()
}

// debugName returns the name of the debug job of a job, within the longest allowed length of a name.
func debugName(name string) string {
	const longest = 63
	if most := longest - len(DebugSuffix); len(name) > most {
		name = strings.TrimRight(name[:most], "-")
	}
	return name + DebugSuffix
}
