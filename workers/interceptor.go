package workers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"

	"berth"
)

// activities intercepts every activity of a worker, local ones included.
type activities struct {
	interceptor.WorkerInterceptorBase
	log *slog.Logger
}

// InterceptActivity wraps one activity.
func (a *activities) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &inbound{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, log: a.log}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	log *slog.Logger
}

// ExecuteActivity runs the activity, logs an error and maps the error for Temporal.
func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	start := time.Now()
	result, err := i.Next.ExecuteActivity(ctx, in)
	if err != nil {
		i.tell(ctx, err, time.Since(start))
		err = applicationError(err)
	}
	return result, err
}

// tell logs an activity's error as a warning, since the workflow or the server retries. An
// ended context or a pending result is no failure and is logged for debugging only.
func (i *inbound) tell(ctx context.Context, err error, took time.Duration) {
	level := slog.LevelWarn
	if ctx.Err() != nil || errors.Is(err, activity.ErrResultPending) {
		level = slog.LevelDebug
	}
	info := activity.GetInfo(ctx)
	job, _ := berth.JobOfWorkflow(info.WorkflowExecution.ID)
	i.log.Log(ctx, level, "activity ended without a result",
		"activity", info.ActivityType.Name, "job_id", job, "tries", info.Attempt,
		"took", took.Round(time.Millisecond), "err", err)
}
