package control

import (
	"context"

	"berth/internal/lib/failpoint"
	"berth/wire"
)

// Fire decides one time of a schedule. A repeated call for the same time returns the first
// decision, since Temporal may deliver a time twice.
func (s *Steps) Fire(ctx context.Context, in wire.FireStep) (wire.FireResult, error) {
	if err := failpoint.Hit("worker.fire.before"); err != nil {
		return wire.FireResult{}, err
	}
	result, err := s.fires.Fire(ctx, in.Schedule, in.At)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("worker.fire.after")
}
