package dispatch

import (
	"context"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/overload"
)

// stores implements rows over the stores of the database.
type stores struct{ db *db.DB }

// Submitted calls db.Jobs.Submitted.
func (s stores) Submitted(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error) {
	return s.db.Jobs.Submitted(ctx, ids)
}

// SubmittedBefore calls db.Jobs.SubmittedBefore.
func (s stores) SubmittedBefore(ctx context.Context, age time.Duration, limit int) ([]db.Dispatch, error) {
	return s.db.Jobs.SubmittedBefore(ctx, age, limit)
}

// AwaitTurn calls db.DB.AwaitTurn, as a first step of a job would.
func (s stores) AwaitTurn(ctx context.Context) error {
	return s.db.AwaitTurn(overload.As(ctx, overload.Start))
}

// Live calls db.Jobs.Live.
func (s stores) Live(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error) {
	return s.db.Jobs.Live(ctx, ids)
}

// Pressure calls db.Cluster.Pressure.
func (s stores) Pressure(ctx context.Context, from, to time.Duration) (db.Pressure, error) {
	return s.db.Cluster.Pressure(ctx, from, to)
}

// Unheard calls db.Attempts.Unheard.
func (s stores) Unheard(ctx context.Context, allocs []berth.AllocationID) ([]berth.JobID, error) {
	return s.db.Attempts.Unheard(ctx, allocs)
}

// Hub calls db.DB.Hub.
func (s stores) Hub() *db.Hub { return s.db.Hub() }
