package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// outcomeAttribute distinguishes failed from succeeded jobs in Temporal, where every workflow of a
// job that has ended is completed: a job's failure is a result.
var outcomeAttribute = temporal.NewSearchAttributeKeyKeyword(wire.AttributeOutcome)

// end ends the workflow of a job with a final status. Signals that came too late are dropped:
// an unread signal would keep the workflow from completing.
//
// The outcome is one event more. A workflow that was started without the flag ends as before,
// so that recorded histories replay, and no workflow of an earlier version waits for a namespace
// that lacks the attribute. The event and the end belong to one workflow task, so a replica of
// the version before, which ignores the flag, never replays the event.
func (j *job) end(ctx workflow.Context, in wire.JobInput, outcome berth.State) error {
	workflow.SetCurrentDetails(ctx, string(outcome))
	if in.Outcome {
		if err := workflow.UpsertTypedSearchAttributes(ctx, outcomeAttribute.ValueSet(string(outcome))); err != nil {
			workflow.GetLogger(ctx).Warn("outcome not recorded", "job_id", j.id, "err", err)
		}
	}
	j.drain(j.poke)
	j.drain(j.cancel)
	return nil
}
