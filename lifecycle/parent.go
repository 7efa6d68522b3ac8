package lifecycle

import (
	"fmt"

	"berth"
	"berth/spec"
	"berth/wire"
)

const (
	// ArrayWindow is the greatest number of an array's elements that may exist as rows and
	// have not ended. More rows would only wait in the queue.
	ArrayWindow = 5000

	// ExpandBatch is the greatest number of elements that one pass creates.
	ExpandBatch = 1000

	// ShownFailures is the greatest number of failed indexes that a reason names.
	ShownFailures = 10
)

// Parent is an array or a pipeline with its children counted by state, as its locked row
// shows them. The counts are of one moment after the lock was granted.
type Parent struct {
	ID          berth.JobID
	Kind        berth.Kind
	State       berth.State
	Held        bool
	Blocked     bool // a step whose needs have not all succeeded
	HasParent   bool
	Expanded    int  // elements that were created in the order of indexes
	MaxFailures *int // nil: any number of children may fail
	FailFast    bool // a pipeline with branches: a failure cancels the other steps; MaxFailures is nil
	Skipped     int  // canceled steps whose condition did not hold
	CancelAsked bool
	Reason      *berth.Reason // stored with the current state
	Next        []int         // indexes of the next elements to create, at most ExpandBatch
	Tally       wire.Tally
}

// Act is the last part of a pass over a parent.
type Act string

// The acts.
const (
	ActRest    Act = "rest"    // nothing is due
	ActEnd     Act = "end"     // set the final state, see Parent.End
	ActStop    Act = "stop"    // cancel the children, see Parent.StopReason
	ActExpand  Act = "expand"  // create elements, see Parent.Elements
	ActAdvance Act = "advance" // continue a pipeline: cancel hopeless steps, start ready ones
)

// Spared are the steps that a cancel of a pipeline's other steps leaves alone.
type Spared string

// The spared steps.
const (
	SpareAll      Spared = ""         // no step is canceled
	SpareBranches Spared = "branches" // after a failure: conditional and final steps, and their dependents
	SpareFinal    Spared = "final"    // after a cancel request: final steps
	SpareNone     Spared = "none"     // every step is canceled
)

// Pass is one pass over a parent. Its parts are due in the order of the fields, and the pass
// ends with Last. The order matters: a failure or a cancellation takes effect before new work
// is created, and the end is decided on counts that the pass has not changed.
type Pass struct {
	Queue bool          // a submitted parent becomes queued
	Fail  *berth.Reason // too many children have failed: the parent becomes canceling, for this reason

	// CancelHopeless cancels the steps that need an unsuccessful step. It comes before a stop,
	// which cancels the other steps for a different reason.
	CancelHopeless bool

	Hold bool // the waiting children are held with their parent

	// Trim cancels the live steps that it does not spare, before an advance.
	Trim Spared

	// Then ends the pass, unless CancelHopeless has canceled steps: see Last.
	Then    Act
	Unblock bool // an advance may start steps whose needs have all succeeded; a held pipeline starts none
}

// Last returns the act that ends the pass. hopeless reports whether CancelHopeless has canceled
// steps: the others then stop in the same transaction, so that nothing inside is placed after
// the commit.
func (p Pass) Last(hopeless bool) Act {
	if hopeless {
		return ActStop
	}
	return p.Then
}

// Reconcile decides one pass over a live parent.
func Reconcile(p Parent) Pass {
	var pass Pass
	if p.Blocked && p.State == berth.Submitted {
		return Pass{Hold: p.Held, Then: ActRest} // none of its children may start
	}
	if p.State == berth.Submitted {
		pass.Queue, p.State = true, berth.Queued
	}
	if p.State != berth.Canceling && p.overdrawn() && (p.Live() > 0 || !p.whole()) {
		reason := p.Failure(nil, "")
		pass.Fail, p.State = &reason, berth.Canceling
	}
	canceling := p.State == berth.Canceling
	pipeline := p.Kind == berth.KindPipeline
	pass.CancelHopeless = pipeline && canceling
	switch {
	case p.Live() == 0 && (p.whole() || canceling):
		pass.Then = ActEnd
		return pass
	case canceling:
		pass.Then = ActStop
		return pass
	}
	pass.Hold = p.Held
	switch {
	case pipeline:
		pass.Trim = p.trim()
		pass.Then, pass.Unblock = ActAdvance, !p.Held
	case p.whole():
		pass.Then = ActRest
	default:
		pass.Then = ActExpand
	}
	return pass
}

// trim returns the steps to spare in a pipeline that may still start steps. A pipeline with
// final steps stays queued or running after a cancel request, and one with branches after a
// failure, since no step of a canceling pipeline is placed.
func (p Parent) trim() Spared {
	switch {
	case p.CancelAsked:
		return SpareFinal
	case p.FailFast && p.Tally.ByStatus[berth.Failed] > 0:
		return SpareBranches
	}
	return SpareAll
}

// Live returns the number of children that have not ended.
func (p Parent) Live() int { return p.Tally.Total - p.Tally.Unmade - p.Tally.Ended() }

// overdrawn reports whether more children failed than max_failures allows.
func (p Parent) overdrawn() bool {
	return p.MaxFailures != nil && p.Tally.ByStatus[berth.Failed] > *p.MaxFailures
}

// whole reports whether no child is left to create.
func (p Parent) whole() bool { return p.Expanded >= p.Tally.Total }

// Elements returns the indexes of the elements to create now: as many as ArrayWindow and the
// tenant's quota of waiting jobs allow. quota is the number of further jobs that may wait;
// nil means any number. more reports a full batch, after which more elements may be due. A
// shorter one ended at a bound.
func (p Parent) Elements(quota *int) (next []int, more bool) {
	room := ArrayWindow - p.Live()
	if quota != nil {
		room = min(room, *quota)
	}
	next = p.Next[:max(0, min(len(p.Next), room))]
	return next, len(next) == ExpandBatch
}

// MayHaveBegun reports whether a pipeline that is still queued may have begun: not all its
// steps are ready. Only the rows of the steps show whether it has; it then becomes running.
func (p Parent) MayHaveBegun(ready int) bool {
	return p.State == berth.Queued && ready != p.Tally.Total
}

// News reports whether a parent around this one must react to its new state.
func (p Parent) News(before berth.State) bool {
	return p.HasParent && p.State != before && (p.State.Terminal() || p.State == berth.Running)
}

// AfterCancel returns the state of a parent after a cancel request. Nothing has to stop in an
// array whose elements are not created yet, or were all canceled as they were created.
func (p Parent) AfterCancel() berth.State {
	if p.State == berth.Submitted && p.Live() == 0 {
		return berth.Canceled
	}
	return berth.Canceling
}

// End returns the final state of a parent whose children have all ended, and the reason. A
// skipped step counts neither as a failure nor as a cancel. The reason of a failure is nil:
// see Failure.
func (p Parent) End() (berth.State, *berth.Reason) {
	switch {
	case p.Tally.ByStatus[berth.Succeeded]+p.Skipped == p.Tally.Total:
		return berth.Succeeded, nil
	case p.CancelAsked:
		return berth.Canceled, p.Reason
	default:
		return berth.Failed, nil
	}
}

// Failure returns the reason for which the parent fails. It names the failed children: the
// first indexes of an array, at most ShownFailures, and the steps of a pipeline, as one text. The
// hint names the id: a newer job may have the same name.
func (p Parent) Failure(indexes []int, steps string) berth.Reason {
	failed, t := p.Tally.ByStatus[berth.Failed], p.Tally
	r := berth.Reason{Code: p.failedCode(), Hint: "run only what failed again: berth retry --failed " + string(p.ID)}
	switch {
	case p.Kind == berth.KindPipeline && failed > 0:
		r.Message = fmt.Sprintf("%d of %d steps failed", failed, t.Total)
	case p.Kind == berth.KindPipeline:
		r.Message = fmt.Sprintf("%d of %d steps were canceled", t.ByStatus[berth.Canceled]-p.Skipped, t.Total)
	case p.overdrawn():
		r.Message = fmt.Sprintf("%d of %d elements failed, more than max_failures (%d) allows", failed, t.Total,
			*p.MaxFailures)
	case failed == 0:
		r.Message = fmt.Sprintf("%d of %d elements were canceled", t.ByStatus[berth.Canceled], t.Total)
		r.Hint = ""
	default:
		r.Message = fmt.Sprintf("%d of %d elements failed", failed, t.Total)
	}
	switch {
	case failed > len(indexes) && len(indexes) > 0:
		r.Message += ": indexes " + spec.FormatIndexes(indexes) + ", …"
	case len(indexes) == 1:
		r.Message += ": index " + spec.FormatIndexes(indexes)
	case len(indexes) > 1:
		r.Message += ": indexes " + spec.FormatIndexes(indexes)
	}
	if steps != "" {
		r.Message += ": " + steps
	}
	return r
}

// StopReason returns the reason for which a canceling parent stops its children: the user's, or
// the failure of other children.
func (p Parent) StopReason() *berth.Reason {
	switch {
	case p.CancelAsked:
		return p.Reason
	case p.Kind == berth.KindPipeline:
		return &berth.Reason{Code: p.failedCode(), Message: "another step of the pipeline failed"}
	default:
		return &berth.Reason{Code: p.failedCode(),
			Message: "more elements of the array failed than max_failures allows"}
	}
}

// failedCode returns the reason code of a parent whose children did not all succeed.
func (p Parent) failedCode() berth.ReasonCode {
	if p.Kind == berth.KindPipeline {
		return berth.ReasonStepsFailed
	}
	return berth.ReasonElementsFailed
}
