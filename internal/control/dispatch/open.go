package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"berth"
	"berth/internal/lib/overload"
)

// pageSize of the list of open workflows, and the time that a page may take.
const (
	pageSize  = 1000
	listLimit = time.Minute
)

// Open calls each with every job that has an open workflow. The list comes from Temporal's
// visibility, some seconds late: confirm with Describe before acting on an entry.
func (d *Dispatcher) Open(ctx context.Context, each func(berth.JobID)) error {
	request := &workflowservice.ListWorkflowExecutionsRequest{
		PageSize: pageSize,
		Query: fmt.Sprintf("WorkflowType IN ('%s', '%s', '%s') AND ExecutionStatus = 'Running'", berth.WorkflowJob,
			berth.WorkflowArray, berth.WorkflowPipeline),
	}
	for {
		var page *workflowservice.ListWorkflowExecutionsResponse
		err := d.list(ctx, func(ctx context.Context) (err error) {
			page, err = d.temporal.ListWorkflow(ctx, request)
			return err
		})
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

// Describe returns the state of the latest run of a job's workflow, from Temporal's
// own state and not from visibility: open, completed, or neither. Neither means that
// there is none, or that it failed or was terminated.
func (d *Dispatcher) Describe(ctx context.Context, id berth.JobID) (open, completed bool, err error) {
	return d.describe(ctx, d.under(overload.Sweep), id)
}

func (d *Dispatcher) describe(ctx context.Context, do caller, id berth.JobID) (open, completed bool, err error) {
	var x *workflowservice.DescribeWorkflowExecutionResponse
	err = do(ctx, func(ctx context.Context) (err error) {
		x, err = d.temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
		return err
	})
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("describe workflow of job %s: %w", id, err)
	}
	status := x.GetWorkflowExecutionInfo().GetStatus()
	return status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED,
		nil
}

// Start starts the workflow of a job that is not terminal, unless the workflow is open.
// again allows a start even after a completed workflow, as needed after the restore of a
// backup: the first step reads the row, and a terminal row ends the workflow.
func (d *Dispatcher) Start(ctx context.Context, id berth.JobID, again bool) error {
	rows, err := d.db.Live(ctx, []berth.JobID{id})
	if err != nil || len(rows) == 0 {
		return err
	}
	if d.marks.isQueued(id) {
		return nil // the queue starts it
	}
	policy := enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY
	if again {
		policy = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	}
	started, err := d.start(ctx, d.under(overload.Sweep), rows[0], policy)
	if started {
		d.log.Info("workflow restarted", "job_id", id)
	}
	return err
}

// Terminate ends the workflow of a job that has been terminal for long. Containers are not
// affected.
func (d *Dispatcher) Terminate(ctx context.Context, id berth.JobID, reason string) error {
	err := d.Call(ctx, overload.Sweep, func(ctx context.Context) error {
		return d.temporal.TerminateWorkflow(ctx, berth.JobWorkflowID(id), "", reason)
	})
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone || err == nil {
		return nil
	}
	return fmt.Errorf("terminate workflow of job %s: %w", id, err)
}
