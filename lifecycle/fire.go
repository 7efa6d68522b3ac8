package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// lateness is the delay that a fire may have on its way, in addition to the catch-up window.
const lateness = time.Minute

// FireFacts are the facts about one undecided time of a schedule.
type FireFacts struct {
	At, Now time.Time // the time to fire, and the time of the decision
	Source  wire.FireSource
	Status  wire.FireStatus // due or buffered
	Overlap spec.Overlap    // policy of this fire
	Paused  bool            // the schedule is paused
	Live    []berth.JobID   // unended jobs of the schedule's other fires, in lock order
	Waits   bool            // another fire of the schedule is buffered
	Refused *berth.Reason   // reason of admission to refuse the work; nil: only the database can refuse it
}

// FireDecision is the decision about one time of a schedule.
type FireDecision struct {
	Status       wire.FireStatus // buffered is decided later, the other ones are final
	Reason       *berth.Reason   // nil for submitted
	Cancel       []berth.JobID   // jobs to cancel before the work is submitted
	CancelReason *berth.Reason
}

// Fire decides one time of a schedule. FireSubmitted asks the caller to cancel the listed jobs
// and to submit the work; a refused submission turns the decision into Refuse.
//
// A pause and a late time concern only times that the clock brings. A backfill runs even if
// the schedule is paused or its time is long past. So does a buffered fire: it passed these
// checks when it was buffered.
func Fire(s spec.Schedule, f FireFacts) FireDecision {
	late := f.Now.Sub(f.At)
	window := s.CatchUp.Std() + s.Jitter.Std()
	fresh := f.Source == wire.FireByClock && f.Status == wire.FireDue
	switch {
	case fresh && f.Paused:
		return unsubmitted(wire.FireSkipped, berth.Reason{Code: berth.ReasonPaused, Message: "the schedule was paused",
			Hint: "resume the schedule; berth schedule backfill runs skipped times"})
	case fresh && late > window+lateness:
		return unsubmitted(wire.FireMissed, berth.Reason{Code: berth.ReasonTooLate,
			Message: fmt.Sprintf("%s late, more than catch_up (%s)", late.Round(time.Second), s.CatchUp),
			Hint:    "berth schedule backfill runs it anyway"})
	case f.Refused != nil:
		return Refuse(*f.Refused)
	case f.Overlap == spec.OverlapCancel:
		return replace(s, f)
	case f.Overlap == spec.OverlapAllow, f.free():
		return FireDecision{Status: wire.FireSubmitted}
	case f.Overlap == spec.OverlapBuffer && (f.Status == wire.FireBuffered || !f.Waits):
		return unsubmitted(wire.FireBuffered, berth.Reason{Code: berth.ReasonOverlap, Message: f.busy(),
			Hint: "submitted when the earlier run has ended"})
	default:
		return unsubmitted(wire.FireSkipped, berth.Reason{Code: berth.ReasonOverlap, Message: f.busy(),
			Hint: "change overlap to buffer, cancel or allow such runs"})
	}
}

// Refuse decides that a fire submits nothing, because its work was refused.
func Refuse(why berth.Reason) FireDecision { return unsubmitted(wire.FireRefused, why) }

// unsubmitted returns a decision that submits nothing now.
func unsubmitted(s wire.FireStatus, why berth.Reason) FireDecision {
	return FireDecision{Status: s, Reason: &why}
}

// replace submits the work in place of the jobs that have not ended.
func replace(s spec.Schedule, f FireFacts) FireDecision {
	return FireDecision{Status: wire.FireSubmitted, Cancel: f.Live, CancelReason: &berth.Reason{
		Code:    berth.ReasonOverlap,
		Message: fmt.Sprintf("schedule %s started its next run (overlap: %s)", s.Name, f.Overlap),
	}}
}

// free reports whether no other fire is in the way. Of two fires without a live job before
// them, the buffered one goes first.
func (f FireFacts) free() bool {
	return len(f.Live) == 0 && (!f.Waits || f.Status == wire.FireBuffered)
}

// busy describes the work that has not ended.
func (f FireFacts) busy() string {
	switch {
	case len(f.Live) == 0:
		return "an earlier run is still waiting to be submitted"
	case len(f.Live) == 1:
		return fmt.Sprintf("job %s has not ended", f.Live[0])
	default:
		return fmt.Sprintf("%d jobs have not ended, the latest is %s", len(f.Live), f.Live[len(f.Live)-1])
	}
}

// WhyRefused returns the reason why a submission was rejected, or nil for another failure,
// after which it may be retried.
func WhyRefused(err error) *berth.Reason {
	e, ok := errors.AsType[*berth.Error](err)
	if !ok {
		return nil
	}
	switch e.Code {
	case berth.CodeInvalid, berth.CodeForbidden, berth.CodeConflict, berth.CodeCapacity:
	case berth.CodeUnauthorized, berth.CodeNotFound, berth.CodeUnavailable, berth.CodeInternal:
		return nil
	}
	parts := []string{e.Message}
	for _, f := range e.Fields[:min(len(e.Fields), 5)] {
		if text := strings.TrimSpace(f.Field + " " + f.Detail); text != e.Message {
			parts = append(parts, text)
		}
	}
	return &berth.Reason{Code: berth.ReasonCode(e.StableCode()),
		Message: strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; "),
		Hint:    "the next scheduled time tries again; berth schedule backfill repeats this one"}
}
