package control

import (
	"context"

	"berth/wire"
)

// Fire decides one time of a schedule. A repeated call for the same time returns the first
// decision, since Temporal may deliver a time twice.
func (s *Steps) Fire(ctx context.Context, in wire.FireStep) (wire.FireResult, error) {
	return s.fires.Fire(ctx, in.Schedule, in.At)
}
