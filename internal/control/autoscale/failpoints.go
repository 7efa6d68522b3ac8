//go:build failpoints

package autoscale

import (
	"context"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/lib/failpoint"
)

// withFailpoints returns writes with the failpoints of the scaler.
func withFailpoints(w writes) writes { return failingWrites{w} }

// failingWrites may die around the commit of a request.
type failingWrites struct{ writes }

func (f failingWrites) Request(ctx context.Context, term db.Term, r cloud.Request, machines []berth.MachineID,
	requestID string) ([]cloud.Record, error) {
	if err := failpoint.Hit("leader.launch.before"); err != nil {
		return nil, err
	}
	list, err := f.writes.Request(ctx, term, r, machines, requestID)
	if err != nil {
		return list, err
	}
	return list, failpoint.Hit("leader.launch.after")
}
