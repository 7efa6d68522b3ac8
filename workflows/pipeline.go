package workflows

import (
	"errors"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// Pipeline coordinates the steps of a pipeline from its row to its end, by the same step as
// Array. It starts the workflow of each ready step as a child, which outlives it: a step
// runs on when its pipeline's workflow is terminated, and a restarted coordinator finds
// that step in the rows.
func Pipeline(root workflow.Context, in wire.JobInput) error {
	ctx, stop := workflow.NewDisconnectedContext(root)
	defer stop()
	j := newJob(ctx, root, in)
	started := map[berth.JobID]bool{}
	for {
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() && !j.cancelPending() {
			return workflow.NewContinueAsNewError(ctx, berth.WorkflowPipeline, in)
		}
		result, err := j.reconcile(ctx)
		switch {
		case isNotFound(err):
			return err
		case err != nil:
			j.pause(ctx, err.Error())
			continue
		case result.State.Terminal():
			return j.end(ctx, in, result.State)
		}
		j.pauses = 0
		some := startReady(ctx, in, result, started)
		if some || result.More {
			continue
		}
		workflow.SetCurrentDetails(ctx, string(result.State)+": waits for its steps")
		s := workflow.NewSelector(ctx)
		j.listen(s, func() {})
		s.Select(ctx)
	}
}

// Search attributes of the children, the same as of workflows started by the dispatcher.
var (
	tenantAttribute = temporal.NewSearchAttributeKeyKeyword(berth.AttributeTenant)
	kindAttribute   = temporal.NewSearchAttributeKeyKeyword(berth.AttributeKind)
	nameAttribute   = temporal.NewSearchAttributeKeyKeyword(wire.AttributeJobName)
	userAttribute   = temporal.NewSearchAttributeKeyKeyword(wire.AttributeUser)
)

// startReady starts the workflows of ready steps that this run has not started, and waits
// until the server has recorded the starts. An existing one was started by the dispatcher,
// or by an earlier run.
func startReady(
	ctx workflow.Context, in wire.JobInput, result wire.ReconcileResult, started map[berth.JobID]bool,
) (some bool) {
	var children []workflow.Future
	for _, r := range result.Ready {
		if started[r.Job] {
			continue
		}
		started[r.Job], some = true, true
		child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
			WorkflowID:            berth.JobWorkflowID(r.Job),
			TaskQueue:             berth.QueueControl,
			ParentClosePolicy:     enums.PARENT_CLOSE_POLICY_ABANDON,
			WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY,
			TypedSearchAttributes: attributesOf(in, result, r),
			Memo: wire.Described{
				Job: r.Job, Name: r.Name, Image: r.Image, Tenant: result.Tenant, API: in.API,
			}.Memo(),
			StaticSummary: r.Name,
		})
		given := wire.JobInput{Job: r.Job, Outcome: in.Outcome}
		if r.Kind == berth.KindPipeline {
			given.API = in.API
		}
		children = append(children,
			workflow.ExecuteChildWorkflow(child, berth.WorkflowOf(r.Kind), given).GetChildWorkflowExecution())
	}
	for _, c := range children {
		err := c.Get(ctx, nil)
		var already *temporal.ChildWorkflowExecutionAlreadyStartedError
		if err != nil && !errors.As(err, &already) {
			workflow.GetLogger(ctx).Warn("step not started; the dispatcher does", "err", err)
		}
	}
	return some
}

// attributesOf returns the search attributes of a step's workflow. The namespace has the newer
// ones if the pipeline itself was started with them.
func attributesOf(in wire.JobInput, result wire.ReconcileResult, r wire.Ready) temporal.SearchAttributes {
	list := []temporal.SearchAttributeUpdate{
		tenantAttribute.ValueSet(string(result.Tenant)), kindAttribute.ValueSet(string(r.Kind)),
	}
	if in.Outcome && r.Name != "" {
		list = append(list, nameAttribute.ValueSet(r.Name))
	}
	if in.Outcome && result.User != "" {
		list = append(list, userAttribute.ValueSet(result.User))
	}
	return temporal.NewSearchAttributes(list...)
}
