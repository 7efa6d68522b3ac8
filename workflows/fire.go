package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

var scheduledAttribute = temporal.NewSearchAttributeKeyTime(berth.AttributeScheduled)

// Fire is the workflow that a Temporal Schedule starts at each of its times. Its one step
// submits the job in the schedule's row, or records the reason against it there. Fire ends
// at once; the rows say whether the schedule's previous job still runs.
//
// The time that Fire decides is the scheduled one of its start, and not that of its run: a
// start that is delivered twice, late or after an outage decides the same time.
func Fire(ctx workflow.Context, in wire.FireInput) error {
	at, ok := workflow.GetTypedSearchAttributes(ctx).GetTime(scheduledAttribute)
	if !ok {
		return temporal.NewNonRetryableApplicationError("it stands for no time: only a schedule starts it",
			string(berth.CodeInvalid), nil)
	}
	result, err := step(ctx, wire.ActivityFire, wire.FireStep{Schedule: in.Schedule, At: at})
	if err != nil {
		return err
	}
	workflow.SetCurrentDetails(ctx, details(result))
	return nil
}

// details describes the decision in Temporal's UI.
func details(r wire.FireResult) string {
	switch r.Status {
	case "":
		return "there is no such schedule any more"
	case wire.FireSubmitted:
		return "submitted " + string(r.Job)
	default:
		return string(r.Status) + "; berth schedule show says why"
	}
}
