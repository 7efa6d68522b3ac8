package berth

import "slices"

// State is a job's status. It is stored in the state column of the job's row, and nowhere
// else.
type State string

// The states of a job. The last three are terminal.
const (
	Submitted  State = "submitted"  // stored; its workflow has not read the row yet
	Queued     State = "queued"     // its workflow waits for the leader's grant
	Scheduled  State = "scheduled"  // capacity is reserved; machines prepare
	Running    State = "running"    // the containers of all its members have started
	Preempting State = "preempting" // must release its capacity, for another job or because it is suspended
	Canceling  State = "canceling"  // ordered to stop; containers may still run
	Retrying   State = "retrying"   // waits for its next attempt
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	Canceled   State = "canceled"
)

// States lists every state in the order of a job's life.
var States = []State{Submitted, Queued, Scheduled, Running, Preempting, Canceling, Retrying, Succeeded,
	Failed, Canceled}

// Actor is the part of Berth that changes the state of a job.
type Actor string

// The actors of the state table.
const (
	ActorAPI      Actor = "api"      // a user's call
	ActorWorkflow Actor = "workflow" // a step of the job's workflow
	ActorLeader   Actor = "leader"   // placement, deadlines, reconciler
	ActorAgent    Actor = "agent"    // an agent's report, written by the API
)

// Transition is one row of the state machine.
type Transition struct {
	From, To State
	By       Actor
	When     string // the condition checked in the same transaction
}

// Transitions is the state machine of a job: all allowed changes of state. The guard trigger
// in the database contains the same pairs, docs/design/states.md is generated from
// Transitions, and tests compare all three.
var Transitions = []Transition{
	{"", Submitted, ActorAPI, "the request is valid and its idempotency key is new"},
	{Submitted, Queued, ActorWorkflow, "the workflow is alive"},
	{Submitted, Succeeded, ActorWorkflow,
		"a step that says cache: all it needs has succeeded, and an earlier job of its tenant did the same; its " +
			"outputs are the step's"},
	{Submitted, Failed, ActorWorkflow, "the spec cannot be admitted"},
	{Submitted, Canceled, ActorAPI, "a cancel request; no capacity is held"},
	{Queued, Scheduled, ActorLeader,
		"eligible, and the leader's term is current: the attempt, its allocations and those of devices are written"},
	{Queued, Failed, ActorLeader, "the queue deadline has passed"},
	{Queued, Canceled, ActorAPI, "a cancel request; no capacity is held"},
	{Scheduled, Running, ActorAgent,
		"the container of the last rank has started; attempt and machine epoch are current"},
	{Scheduled, Preempting, ActorLeader, "chosen as victim; stop_by is set and checkpoint ordered. Or by api: " +
		"suspended, and held"},
	{Scheduled, Canceling, ActorAPI, "a cancel request; stop is ordered with grace"},
	{Scheduled, Retrying, ActorWorkflow,
		"settled: infrastructure, preempted or transient; capacity released or orphaned"},
	{Scheduled, Failed, ActorWorkflow, "settled: permanent, or a budget is spent"},
	{Running, Preempting, ActorLeader, "chosen as victim; stop_by is set and checkpoint ordered. Or by api: " +
		"suspended, with a checkpoint or consent to lose the work, and held"},
	{Running, Canceling, ActorAPI, "a cancel request; stop is ordered with grace"},
	{Running, Retrying, ActorWorkflow,
		"settled: infrastructure, preempted or transient; capacity released or orphaned"},
	{Running, Succeeded, ActorWorkflow, "settled: every rank exited 0 under the current attempt and is sealed"},
	{Running, Failed, ActorWorkflow, "settled: permanent, or a budget is spent"},
	{Preempting, Canceling, ActorAPI, "a cancel request; stop is ordered with grace"},
	{Preempting, Retrying, ActorWorkflow, "settled: gave way; no retry budget is spent"},
	{Preempting, Succeeded, ActorWorkflow, "settled: its work was complete before it had to stop"},
	{Preempting, Failed, ActorWorkflow, "settled: permanent, or a budget is spent"},
	{Canceling, Canceled, ActorWorkflow, "settled: every rank has stopped or is orphaned"},
	{Canceling, Succeeded, ActorWorkflow, "settled: every rank had exited 0 before the order"},
	{Retrying, Scheduled, ActorLeader, "eligible, and the leader's term is current: the next attempt is written"},
	{Retrying, Failed, ActorLeader, "the queue deadline has passed"},
	{Retrying, Canceled, ActorAPI, "a cancel request; no capacity is held"},
}

// ParentTransitions is the state machine of a parent, an array or a pipeline, which is a
// row of the table jobs, too. A parent holds no capacity; its status follows from its
// children. The guard trigger contains the same pairs.
var ParentTransitions = []Transition{
	{"", Submitted, ActorAPI, "the request is valid and its idempotency key is new"},
	{Submitted, Queued, ActorWorkflow, "its coordinator is alive"},
	{Submitted, Canceling, ActorAPI, "a cancel request of a pipeline, which has its steps from the first"},
	{Submitted, Canceled, ActorAPI, "a cancel request; none of its elements lives"},
	{Queued, Running, ActorLeader, "the first of its elements is scheduled"},
	{Queued, Canceling, ActorAPI,
		"a cancel request, or more failures than it may have: no further element is created or placed. " +
			"By workflow: the final steps of a canceled pipeline have ended"},
	{Queued, Succeeded, ActorWorkflow, "every element has succeeded, or is a skipped step"},
	{Queued, Failed, ActorWorkflow, "every element has ended, not all well"},
	{Running, Canceling, ActorAPI,
		"a cancel request, or more failures than it may have: no further element is created or placed. " +
			"By workflow: the final steps of a canceled pipeline have ended"},
	{Running, Succeeded, ActorWorkflow, "every element has succeeded, or is a skipped step"},
	{Running, Failed, ActorWorkflow, "every element has ended, not all well"},
	{Canceling, Canceled, ActorWorkflow, "a cancel request stands, and every element that was made has ended"},
	{Canceling, Succeeded, ActorWorkflow, "every element had succeeded all the same"},
	{Canceling, Failed, ActorWorkflow,
		"it had more failures than it may have, and every element that was made has ended"},
}

// CanBecome reports whether the state machine of a job allows the change.
func (s State) CanBecome(to State) bool {
	return slices.ContainsFunc(Transitions, func(t Transition) bool { return t.From == s && t.To == to })
}

// Terminal reports whether the state never changes again.
func (s State) Terminal() bool { return s == Succeeded || s == Failed || s == Canceled }

// Waiting reports whether the job holds no capacity and may still get some.
func (s State) Waiting() bool { return s == Submitted || s == Queued || s == Retrying }

// HoldsCapacity reports whether a job in this state may have allocations that hold capacity.
func (s State) HoldsCapacity() bool {
	switch s {
	case Scheduled, Running, Preempting, Canceling:
		return true
	case Submitted, Queued, Retrying, Succeeded, Failed, Canceled:
		return false
	default:
		panic("unknown state " + string(s))
	}
}

// ParseState returns s as a state, or an error of code invalid that lists all states.
func ParseState(s string) (State, error) {
	if slices.Contains(States, State(s)) {
		return State(s), nil
	}
	return "", Errorf(CodeInvalid,
		"status %q is not known: allowed are submitted, queued, scheduled, running, preempting, canceling, "+
			"retrying, succeeded, failed, canceled", s)
}
