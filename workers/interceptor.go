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

// activities is what each activity passes through, local ones included.
type activities struct {
	interceptor.WorkerInterceptorBase
	log *slog.Logger
}

func (a *activities) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &inbound{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, log: a.log}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	log *slog.Logger
}

// ExecuteActivity maps the error of an activity and tells of it.
func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	start := time.Now()
	result, err := i.Next.ExecuteActivity(ctx, in)
	if err != nil {
		i.tell(ctx, err, time.Since(start))
		err = applicationError(err)
	}
	return result, err
}

// tell logs an activity's error: the workflow or the server tries again, so it
// is a warning, and none at all where somebody ended the wait.
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
