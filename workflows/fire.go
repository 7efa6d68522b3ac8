package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

var scheduledAttribute = temporal.NewSearchAttributeKeyTime(berth.AttributeScheduled)

// Fire is what a Temporal Schedule starts at each of its times: one step, which
// submits what the schedule's row says, or keeps there why not. It ends at once;
// whether what it made before still runs is for the rows to say.
//
// The time it stands for is its start's, and not that of its run: a start that
// is delivered twice, late or after an outage stands for the same time.
func Fire(ctx workflow.Context, in wire.FireInput) error {
	at, ok := workflow.GetTypedSearchAttributes(ctx).GetTime(scheduledAttribute)
	if !ok {
		return temporal.NewNonRetryableApplicationError("it stands for no time: only a schedule starts it",
			string(berth.CodeInvalid), nil)
	}
	result, err := step[wire.FireResult](ctx, berth.ActivityFire, in.Schedule, at)
	if err != nil {
		return err
	}
	workflow.SetCurrentDetails(ctx, details(result))
	return nil
}

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
