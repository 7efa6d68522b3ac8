package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/internal/lib/overload"
	"berth/wire"
)

// reattachFor is the longest delay of a repeated activity before its worker records the
// waiter. See package workers.
const reattachFor = time.Minute

// Rewait makes Temporal repeat the activities that wait for members of a job and were
// started at least age ago, and returns their number. The caller knows that no replica
// holds these waiters. Rewait fails the present try of each activity, which its retry
// policy answers with the next one: no event is added to the history, and no attempt is
// spent. If a replica holds a waiter after all, that one is replaced. idle reports that the
// workflow is open and has no such activity at all, so it does not know the present attempt.
func (d *Dispatcher) Rewait(ctx context.Context, id berth.JobID, age time.Duration) (n int, idle bool, err error) {
	var x *workflowservice.DescribeWorkflowExecutionResponse
	err = d.Call(ctx, overload.Sweep, func(ctx context.Context) (err error) {
		x, err = d.temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
		return err
	})
	if isGone(err) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("describe workflow of job %s: %w", id, err)
	}
	if !slices.ContainsFunc(x.GetPendingActivities(), isWaiter) {
		return 0, x.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, nil
	}
	execution := x.GetWorkflowExecutionInfo().GetExecution()
	for _, a := range silentWaiters(x.GetPendingActivities(), age) {
		err := d.Call(ctx, overload.Reattach, func(ctx context.Context) error {
			return d.temporal.CompleteActivityByID(ctx, d.opts.Namespace, berth.JobWorkflowID(id),
				execution.GetRunId(), a.GetActivityId(), nil, errWaiterLost)
		})
		if isGone(err) { // it has ended, or a worker has failed it
			continue
		}
		if err != nil {
			return n, false, fmt.Errorf("repeat activity %s of job %s: %w", a.GetActivityId(), id, err)
		}
		n++
	}
	return n, false, nil
}

// isWaiter reports whether an activity waits for a member.
func isWaiter(a *workflowpb.PendingActivityInfo) bool {
	return a.GetActivityType().GetName() == wire.ActivityRun.Name()
}

// errWaiterLost ends a try of an activity. The next one follows at once.
var errWaiterLost = temporal.NewApplicationErrorWithOptions("no replica waits for the member", "WaiterLost",
	temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})

// silentWaiters returns the waiters among a workflow's activities that were started at least age
// ago, without activities that a worker may still hold back. The match between activities and
// members of a gang is unknown here: if some waiters have sent a heartbeat and others none, only
// the others are returned.
func silentWaiters(all []*workflowpb.PendingActivityInfo, age time.Duration) []*workflowpb.PendingActivityInfo {
	var started, silent []*workflowpb.PendingActivityInfo
	for _, a := range all {
		patience := age
		if a.GetAttempt() > 1 {
			patience += reattachFor
		}
		if !isWaiter(a) || a.GetState() != enumspb.PENDING_ACTIVITY_STATE_STARTED ||
			time.Since(a.GetLastStartedTime().AsTime()) < patience {
			continue
		}
		started = append(started, a)
		if a.GetLastHeartbeatTime() == nil {
			silent = append(silent, a)
		}
	}
	if len(silent) > 0 {
		return silent
	}
	return started
}

// isGone reports whether Temporal does not know the workflow or activity.
func isGone(err error) bool {
	_, gone := errors.AsType[*serviceerror.NotFound](err)
	return gone
}
