package control

import (
	"context"
	"time"

	"berth"
)

// Fire decides one time of a schedule.
func (s *Steps) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (berth.FireResult, error) {
	return s.fires.Fire(ctx, id, at)
}
