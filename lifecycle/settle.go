package lifecycle

import (
	"slices"

	"berth"
	"berth/failure"
	"berth/spec"
)

// keptAvoids is the number of machines that a job avoids at most.
const keptAvoids = 16

// Step is the next step of a settlement.
type Step string

// The steps of a settlement.
const (
	// StepRepeat returns the stored state: the attempt was settled before.
	StepRepeat Step = "repeat"
	// StepRefuse rejects the call: the attempt is not the current one, or holds no capacity.
	StepRefuse Step = "refuse"
	// StepWait changes nothing: a member has not ended, or its data is not stored.
	StepWait Step = "wait"
	// StepGiveUp stops a gang with live members and a member that was not claimed in time:
	// without it, the live members would hold their capacity and wait without end.
	StepGiveUp Step = "give up"
	// StepSettle reads the History and calls Settle.
	StepSettle Step = "settle"
)

// Begin returns the next step for the settlement of an attempt, by the locked rows of its
// job. Begin is the guard in front of Settle, and needs no history.
func Begin(job Job, attempt int) Step {
	switch {
	case job.Settled != nil:
		return StepRepeat
	case attempt != job.Attempt || !job.State.HoldsCapacity():
		return StepRefuse
	case job.ready():
		return StepSettle
	case slices.ContainsFunc(job.Members, Member.Unclaimed):
		return StepGiveUp
	default:
		return StepWait
	}
}

// History is the evidence outside the rows of the job and its members.
type History struct {
	Earlier     []failure.EarlierAttempt // oldest first
	OutputsLost []spec.Output            // declared outputs without any stored data
	Progressed  bool                     // the attempt has stored a verified checkpoint
	Requeues    int                      // earlier attempts that ended with a requeue at the time limit
}

// Settlement is the result of an attempt: the verdict, and the values to store with it.
type Settlement struct {
	Verdict  failure.Verdict
	Reason   *berth.Reason     // for the job's row; nil after a success
	Avoid    []berth.MachineID // the job's whole list from now on, the newest last
	LastStep *int64            // the highest step that a member has reported

	// The budget that pays for the attempt. At most one of the three is 1, the others are 0.
	Failures, Losses, Preemptions int

	// StartUnseen is set for a job that ran although its row shows no start: the machine
	// reported start and end in one call, or a backup was restored since. The job's row
	// passes through running, as the state machine demands.
	StartUnseen bool

	Room   Room
	Faults Faults
	Hang   *failure.Hang // of an attempt that hung; nil: it ended otherwise, or no evidence arrived
}

// Room is the future of the nominations that keep capacity for a gang.
type Room string

// The futures of a gang's nominations.
const (
	RoomNone     Room = ""         // the job is no gang and has none
	RoomKept     Room = "kept"     // for berth.RepairHold, except on the machines that the verdict avoids
	RoomReleased Room = "released" // the next attempt is too late for them, or there is none
)

// Faults are the records that charge an attempt to machines.
type Faults struct {
	Machines []berth.MachineID // empty: nothing is charged
	Rule     string
	Died     bool // the machine died under the job
}

// Settle decides the result of an attempt for which Begin returned StepSettle. The verdict is
// failure.Classify's.
func Settle(job Job, history History) Settlement {
	evidence := job.evidence(history)
	v := failure.Classify(evidence)
	if job.Debug && v.Next == berth.Retrying { // its files are on one machine, and in one attempt
		v.Next, v.Delay, v.Avoid, v.GrowMemory = berth.Failed, 0, nil, false
	}
	s := Settlement{
		Verdict:     v,
		Reason:      job.reasonFor(v),
		Avoid:       job.avoid(v.Avoid),
		LastStep:    job.lastStep(),
		StartUnseen: job.State == berth.Scheduled && v.Next == berth.Succeeded,
		Room:        job.room(v),
		Faults:      faultsOf(v),
		Hang:        evidence.Hang(v),
	}
	switch v.Budget {
	case failure.BudgetUser:
		s.Failures = 1
	case failure.BudgetInfra:
		s.Losses = 1
	case failure.BudgetNone:
		if v.Reason.Code == berth.ReasonPreempted {
			s.Preemptions = 1
		}
	default:
		panic("unknown budget " + string(v.Budget))
	}
	return s
}

// evidence returns the input of failure.Classify.
func (j Job) evidence(history History) failure.AttemptEvidence {
	e := failure.AttemptEvidence{
		Job: j.ID, State: j.State, Attempt: j.Attempt, Retry: j.Retry, Preempted: j.Preempted,
		Failures: j.Failures, Losses: j.Losses, OOMGrown: j.OOMGrown, Checkpoint: j.Checkpoint, LastStep: j.lastStep(),
		Earlier: history.Earlier, OutputsLost: history.OutputsLost,
		Progressed: history.Progressed, Requeues: history.Requeues, Suspended: j.suspended(),
	}
	if j.CancelAt != nil {
		e.CancelAt = *j.CancelAt
	}
	leadDone := j.LeadDone()
	for _, m := range j.Members {
		if leadDone && !m.Leads {
			continue
		}
		if e.DrainedBy == "" {
			e.DrainedBy = m.Drain
		}
		e.Ranks = append(e.Ranks, failure.RankEvidence{
			Rank: m.Rank, Group: m.Group, Machine: m.Machine, Orphaned: m.Orphaned, Claimed: m.Claimed,
			Suspect: m.Suspect, CutOff: m.CutOff, Exit: m.Exit, Hang: m.Hang,
		})
	}
	return e
}

// suspended reports whether the attempt stops because of a suspension.
func (j Job) suspended() bool {
	return j.State == berth.Preempting && j.Reason != nil && j.Reason.Code == berth.ReasonSuspended
}

// reasonFor returns the reason to store with the verdict: none for a success; for a cancel
// a preemption or a suspension the reason stored with the order, which names the actor or
// the beneficiary.
func (j Job) reasonFor(v failure.Verdict) *berth.Reason {
	switch {
	case v.Reason == (berth.Reason{}):
		return nil
	case v.Next == berth.Canceled && j.Reason != nil:
		return j.Reason
	case (v.Reason.Code == berth.ReasonPreempted || v.Reason.Code == berth.ReasonSuspended) &&
		j.Reason != nil && j.Reason.Code == v.Reason.Code:
		ordered := *j.Reason // names the beneficiary, or the actor
		ordered.Rule = v.Reason.Rule
		return &ordered
	}
	return &v.Reason
}

// avoid returns the machines that the job avoids from now on: the newest keptAvoids, newest
// last.
func (j Job) avoid(more []berth.MachineID) []berth.MachineID {
	list := make([]berth.MachineID, 0, len(j.Avoid)+len(more))
	for _, m := range j.Avoid {
		if !slices.Contains(more, m) {
			list = append(list, m)
		}
	}
	list = append(list, more...)
	return list[max(0, len(list)-keptAvoids):]
}

// faultsOf returns the machines that a verdict charges. A machine that died under the job is
// recorded apart: such a death may be taken back when the machine returns. A success accuses
// the machines on which earlier attempts of the same job had failed.
func faultsOf(v failure.Verdict) Faults {
	switch {
	case v.Rule == "died_under_it" || v.Rule == "poison":
		return Faults{Machines: []berth.MachineID{v.Machine}, Rule: v.Rule, Died: true}
	case v.Next == berth.Succeeded:
		return Faults{Machines: v.Faults, Rule: "passed_elsewhere"}
	default:
		return Faults{Machines: v.Faults, Rule: v.Rule}
	}
}

// Grow returns the request with 1.5 times the memory, for a retry after these members ran out of
// memory. Of a gang with groups only their groups get more.
func Grow(r spec.Request, members []int) spec.Request {
	r.MemoryMiB += (r.MemoryMiB + 1) / 2
	r.Groups = slices.Clone(r.Groups)
	first := 0
	for i := range r.Groups {
		g := &r.Groups[i]
		if slices.ContainsFunc(members, func(m int) bool { return m >= first && m < first+g.Members }) {
			g.MemoryMiB += (g.MemoryMiB + 1) / 2
		}
		first += g.Members
	}
	return r
}

// OutOfMemory returns the members that the kernel stopped for memory.
func (j Job) OutOfMemory() (members []int) {
	for _, m := range j.Members {
		if m.Exit != nil && m.Exit.OOMKilled {
			members = append(members, m.Rank)
		}
	}
	return members
}
