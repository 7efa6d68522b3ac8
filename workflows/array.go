package workflows

import (
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// Array coordinates the elements of one array from its row to its end. Elements are rows
// with workflows of their own, which the dispatcher starts: the history of Array grows with
// the number of pokes, not with the number of elements.
//
// Array repeats one step, which reconciles the parent with the rows. So a coordinator that
// was terminated is rebuilt from the row, and the reconciler may take the same step in its
// place.
func Array(root workflow.Context, in wire.JobInput) error {
	ctx, stop := workflow.NewDisconnectedContext(root)
	defer stop()
	j := newJob(ctx, root, in)
	for {
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() && !j.cancelPending() {
			return workflow.NewContinueAsNewError(ctx, berth.WorkflowArray, in)
		}
		result, err := j.reconcile(ctx)
		switch {
		case isNotFound(err):
			return err
		case err != nil:
			j.pause(ctx, err.Error())
		case result.State.Terminal():
			return j.end(ctx, in, result.State)
		case result.More:
			j.pauses = 0
		default:
			j.pauses = 0
			workflow.SetCurrentDetails(ctx, string(result.State)+": waits for its elements")
			s := workflow.NewSelector(ctx)
			j.listen(s, func() {})
			s.Select(ctx)
		}
	}
}

// reconcile runs the step that reconciles the parent. A pending cancel is written to the
// row first.
func (j *job) reconcile(ctx workflow.Context) (wire.ReconcileResult, error) {
	j.drain(j.poke) // the following read covers all of them
	if !j.cancelPending() {
		return step(ctx, wire.ActivityReconcile, wire.StepInput{Job: j.id})
	}
	result, err := step(ctx, wire.ActivityCancelParent, wire.StepInput{Job: j.id})
	j.told = err == nil
	return result, err
}
