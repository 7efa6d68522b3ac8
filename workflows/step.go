package workflows

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// Options of activities. Every retry policy is unlimited except that of local steps: a
// failed activity is no verdict about a job.
var (
	// localStep is for a step next to the database, within the workflow's own task.
	localStep = workflow.LocalActivityOptions{
		StartToCloseTimeout:    3 * time.Second, // a step takes milliseconds; Reserve waits up to a second
		ScheduleToCloseTimeout: 5 * time.Second, // far below the time of a workflow task (10 s)
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, BackoffCoefficient: 2,
			MaximumAttempts: 3},
	}

	// durableStep is for the same step while the database is away: the server repeats the
	// step, for days if necessary, and the history does not grow.
	durableStep = workflow.ActivityOptions{
		TaskQueue:           berth.QueueControl,
		StartToCloseTimeout: 10 * time.Second, // bounds the delay by a worker that died with the step
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2,
			MaximumInterval: 30 * time.Second},
	}

	// runRank is for the wait for one member's end, in any replica of the control plane. It
	// has no ScheduleToStartTimeout: a member without a free slot waits without a waiter,
	// and a poke reports its end to the workflow.
	runRank = workflow.ActivityOptions{
		TaskQueue:           berth.QueueWaiters,
		StartToCloseTimeout: 365 * 24 * time.Hour, // of jobs without a run limit; see runOptions
		HeartbeatTimeout:    wire.WaiterTimeout,
		WaitForCancellation: false,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 1.5,
			MaximumInterval: 30 * time.Second},
	}
)

// runSlack is added to a run limit with its grace, for pulling, restoring and uploading.
// The machine enforces the limit itself; past this time the server only repeats the waiter.
const runSlack = 30 * time.Minute

// step runs one step next to the database: at once within the workflow's task, or, after a
// failure, as an activity that the server repeats until success or a permanent error.
func step[In, Out any](ctx workflow.Context, a wire.Activity[In, Out], in In) (Out, error) {
	var result Out
	local := workflow.WithLocalActivityOptions(ctx, localStep)
	err := workflow.ExecuteLocalActivity(local, a.Name(), a.Args(in)...).Get(ctx, &result)
	if err == nil || isFinal(err) {
		return result, err
	}
	return begin(workflow.WithActivityOptions(ctx, durableStep), a, in).get(ctx)
}

// future is the result of an activity under way.
type future[Out any] struct{ workflow.Future }

// begin starts an activity with the options of ctx.
func begin[In, Out any](ctx workflow.Context, a wire.Activity[In, Out], in In) future[Out] {
	return future[Out]{workflow.ExecuteActivity(ctx, a.Name(), a.Args(in)...)}
}

// get waits for the activity's end.
func (f future[Out]) get(ctx workflow.Context) (result Out, err error) {
	err = f.Get(ctx, &result)
	return result, err
}

// isFinal reports whether a repetition of the same step can only fail.
func isFinal(err error) bool {
	var app *temporal.ApplicationError
	return errors.As(err, &app) && app.NonRetryable()
}

func isNotFound(err error) bool {
	var app *temporal.ApplicationError
	return errors.As(err, &app) && app.Type() == string(berth.CodeNotFound)
}
