package control

import (
	"context"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// Fire decides one time of a schedule. A repeated call for the same time returns the first
// decision, since Temporal may deliver a time twice.
func (s *Steps) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	if err := failpoint.Hit("worker.fire.before"); err != nil {
		return wire.FireResult{}, err
	}
	result, err := s.fires.Fire(ctx, id, at)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("worker.fire.after")
}
