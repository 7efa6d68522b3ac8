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
	return describe(ctx, d.temporal, d.under(overload.Sweep), id)
}

func describe(ctx context.Context, temporal Temporal, do caller, id berth.JobID) (open, completed bool, err error) {
	x, err := execution(ctx, temporal, do, id)
	if x == nil || err != nil {
		return false, false, err
	}
	status := x.GetWorkflowExecutionInfo().GetStatus()
	return status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED,
		nil
}

// execution describes the latest run of a job's workflow; nil: there is none.
func execution(ctx context.Context, temporal Temporal, do caller,
	id berth.JobID) (x *workflowservice.DescribeWorkflowExecutionResponse, err error) {
	err = do(ctx, func(ctx context.Context) (err error) {
		x, err = temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
		return err
	})
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("describe workflow of job %s: %w", id, err)
	}
	return x, nil
}

// Pending returns the time for which the present task of a job's workflow has waited for a worker,
// all its tries included; 0 without such a task. Temporal's clock and this one may differ.
func (d *Dispatcher) Pending(ctx context.Context, id berth.JobID) (time.Duration, error) {
	x, err := execution(ctx, d.temporal, d.under(overload.Sweep), id)
	if err != nil {
		return 0, err
	}
	task := x.GetPendingWorkflowTask()
	if task == nil || x.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return 0, nil
	}
	since := task.GetScheduledTime()
	if first := task.GetOriginalScheduledTime(); first != nil {
		since = first
	}
	return max(0, time.Since(since.AsTime())), nil
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

// Terminate ends the workflow of a job that has been terminal for long, or whose workflow does not
// begin. Containers are not affected.
func (d *Dispatcher) Terminate(ctx context.Context, id berth.JobID, reason string) error {
	err := d.Call(ctx, overload.Sweep, func(ctx context.Context) error {
		return d.temporal.TerminateWorkflow(ctx, berth.JobWorkflowID(id), "", reason)
	})
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone || err == nil {
		return nil
	}
	return fmt.Errorf("terminate workflow of job %s: %w", id, err)
}
