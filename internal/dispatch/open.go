package dispatch

import (
	"context"
	"errors"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"berth"
)

// pageSize of the list of open workflows.
const pageSize = 1000

// Open calls each with every job whose workflow is open, as Temporal's
// visibility knows them: some seconds late. Confirm with Describe before acting
// on one.
func (d *Dispatcher) Open(ctx context.Context, each func(berth.JobID)) error {
	request := &workflowservice.ListWorkflowExecutionsRequest{
		PageSize: pageSize,
		Query:    fmt.Sprintf("WorkflowType IN ('%s', '%s', '%s') AND ExecutionStatus = 'Running'", berth.WorkflowJob, berth.WorkflowArray, berth.WorkflowPipeline),
	}
	for {
		page, err := d.temporal.ListWorkflow(ctx, request)
		d.note(ctx, err)
		if err != nil {
			return fmt.Errorf("list open workflows: %w", err)
		}
		for _, x := range page.GetExecutions() {
			if id, ok := berth.JobOfWorkflow(x.GetExecution().GetWorkflowId()); ok {
				each(id)
			}
		}
		if len(page.GetNextPageToken()) == 0 {
			return nil
		}
		request.NextPageToken = page.GetNextPageToken()
	}
}

// Describe tells how the latest run of a job's workflow stands, by the truth
// and not by visibility: open, completed, or neither, which is that there is
// none, or that it failed or was terminated.
func (d *Dispatcher) Describe(ctx context.Context, id berth.JobID) (open, completed bool, err error) {
	x, err := d.temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
	d.note(ctx, err)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("describe workflow of job %s: %w", id, err)
	}
	status := x.GetWorkflowExecutionInfo().GetStatus()
	return status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil
}

// Start starts the workflow of a job that is not terminal, unless it is open.
// again allows it even though one has completed, as after the restore of a
// backup: its first step reads the row, and a terminal one ends it.
func (d *Dispatcher) Start(ctx context.Context, id berth.JobID, again bool) error {
	rows, err := d.db.Live(ctx, []berth.JobID{id})
	if err != nil || len(rows) == 0 {
		return err
	}
	if err := d.limit.Wait(ctx); err != nil {
		return err
	}
	policy := enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY
	if again {
		policy = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	}
	started, err := d.start(ctx, rows[0], policy)
	if started {
		d.log.Info("workflow started anew", "job_id", id)
	}
	return err
}

// Terminate ends the workflow of a job, whose row has been terminal for long.
// Its containers do not hear of it.
func (d *Dispatcher) Terminate(ctx context.Context, id berth.JobID, reason string) error {
	err := d.temporal.TerminateWorkflow(ctx, berth.JobWorkflowID(id), "", reason)
	d.note(ctx, err)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone || err == nil {
		return nil
	}
	return fmt.Errorf("terminate workflow of job %s: %w", id, err)
}
