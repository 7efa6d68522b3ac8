package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/internal/lib/overload"
)

// reattachFor is how long a worker may hold back an activity that comes again, before
// it notes the waiter. See package workers.
const reattachFor = time.Minute

// Rewait has Temporal start the activities again that wait for members of a job and
// were started at least age ago, and returns their number. The caller knows that no
// replica holds them. It fails the present try of each, which its retry policy answers
// with the next one: no event is added to the history, and no attempt is spent. If a
// replica holds a waiter after all, that one is replaced.
func (d *Dispatcher) Rewait(ctx context.Context, id berth.JobID, age time.Duration) (n int, err error) {
	var x *workflowservice.DescribeWorkflowExecutionResponse
	err = d.Call(ctx, overload.Sweep, func(ctx context.Context) (err error) {
		x, err = d.temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
		return err
	})
	if isGone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("describe workflow of job %s: %w", id, err)
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
			return n, fmt.Errorf("repeat activity %s of job %s: %w", a.GetActivityId(), id, err)
		}
		n++
	}
	return n, nil
}

// errWaiterLost ends a try of an activity. The next one follows at once.
var errWaiterLost = temporal.NewApplicationErrorWithOptions("no replica waits for the member", "WaiterLost",
	temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})

// silentWaiters returns the waiters among a workflow's activities that have been
// started for at least age, without those that a worker may hold back still. Which
// activity waits for which member of a gang is unknown here: of several, the ones with
// a heartbeat are left out if others have sent none.
func silentWaiters(all []*workflowpb.PendingActivityInfo, age time.Duration) []*workflowpb.PendingActivityInfo {
	var started, silent []*workflowpb.PendingActivityInfo
	for _, a := range all {
		patience := age
		if a.GetAttempt() > 1 {
			patience += reattachFor
		}
		if a.GetActivityType().GetName() != berth.ActivityRun ||
			a.GetState() != enumspb.PENDING_ACTIVITY_STATE_STARTED ||
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

func isGone(err error) bool {
	_, gone := errors.AsType[*serviceerror.NotFound](err)
	return gone
}
