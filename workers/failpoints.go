//go:build failpoints

package workers

import (
	"context"
	"errors"

	"go.temporal.io/sdk/activity"

	"berth/activities/wait"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// noted returns an activity that may die once its token is noted.
func noted(run RunFunc) RunFunc {
	return func(ctx context.Context, r wire.RunRequest) (wire.RunResult, error) {
		result, err := run(ctx, r)
		if !errors.Is(err, activity.ErrResultPending) {
			return result, err
		}
		if err := failpoint.Hit("worker.wait.after"); err != nil {
			return wire.RunResult{}, err
		}
		return result, err
	}
}

// ends returns a t that may die before it completes an activity.
func ends(t wait.Temporal) wait.Temporal { return failingEnds{t} }

type failingEnds struct{ wait.Temporal }

func (f failingEnds) Complete(ctx context.Context, token []byte, r wire.RunResult) error {
	if err := failpoint.Hit("worker.end.before"); err != nil {
		return err
	}
	return f.Temporal.Complete(ctx, token, r)
}
