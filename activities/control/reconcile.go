package control

import (
	"context"

	"berth/wire"
)

// Reconcile reconciles a parent with the rows of its children.
func (s *Steps) Reconcile(ctx context.Context, in wire.StepInput) (wire.ReconcileResult, error) {
	return s.store.Reconcile(ctx, in.Job)
}

// CancelParent writes a cancel that came from Temporal's side to the row of a
// parent, and reconciles the parent.
func (s *Steps) CancelParent(ctx context.Context, in wire.StepInput) (wire.ReconcileResult, error) {
	if _, err := s.store.RequestCancel(ctx, "", in.Job, "temporal", nil); err != nil {
		return wire.ReconcileResult{}, err
	}
	return s.Reconcile(ctx, in)
}
