//go:build failpoints

package control

import (
	"context"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// withFailpoints returns steps that may die before and after each call of their stores.
func withFailpoints(s Steps) *Steps {
	s.grants, s.store, s.fires = failingGrants{s.grants}, failingStore{s.store}, failingFires{s.fires}
	return &s
}

// failingGrants has the failpoints of the reads in Reserve.
type failingGrants struct{ grants }

func (f failingGrants) Load(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	return f.read(ctx, id, f.grants.Load)
}

func (f failingGrants) View(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	return f.read(ctx, id, f.grants.View)
}

func (failingGrants) read(ctx context.Context, id berth.JobID,
	read func(context.Context, berth.JobID) (wire.JobView, error)) (wire.JobView, error) {
	if err := failpoint.Hit("worker.reserve.before"); err != nil {
		return wire.JobView{}, err
	}
	view, err := read(ctx, id)
	if err != nil {
		return view, err
	}
	return view, failpoint.Hit("worker.reserve.after")
}

// failingStore has the failpoints of the other steps.
type failingStore struct{ Store }

func (f failingStore) Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error) {
	if err := failpoint.Hit("worker.settle.before"); err != nil {
		return wire.SettleResult{}, err
	}
	result, err := f.Store.Settle(ctx, id, attempt)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("worker.settle.after")
}

// RequestCancel serves the cancel of a job and of a parent.
func (f failingStore) RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string,
	reason *berth.Reason) (berth.State, error) {
	if err := failpoint.Hit("worker.cancel.before"); err != nil {
		return "", err
	}
	state, err := f.Store.RequestCancel(ctx, tenant, id, actor, reason)
	if err != nil {
		return state, err
	}
	return state, failpoint.Hit("worker.cancel.after")
}

func (f failingStore) StopAttempt(ctx context.Context, id berth.JobID, attempt int) (bool, error) {
	if err := failpoint.Hit("worker.stop.before"); err != nil {
		return false, err
	}
	stopped, err := f.Store.StopAttempt(ctx, id, attempt)
	if err != nil {
		return stopped, err
	}
	return stopped, failpoint.Hit("worker.stop.after")
}

func (f failingStore) Escalate(ctx context.Context, id berth.JobID, attempt int) error {
	if err := failpoint.Hit("worker.escalate.before"); err != nil {
		return err
	}
	if err := f.Store.Escalate(ctx, id, attempt); err != nil {
		return err
	}
	return failpoint.Hit("worker.escalate.after")
}

func (f failingStore) Reconcile(ctx context.Context, id berth.JobID) (wire.ReconcileResult, error) {
	if err := failpoint.Hit("worker.tend.before"); err != nil {
		return wire.ReconcileResult{}, err
	}
	result, err := f.Store.Reconcile(ctx, id)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("worker.tend.after")
}

// failingFires has the failpoints of the step of a schedule.
type failingFires struct{ Fires }

func (f failingFires) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	if err := failpoint.Hit("worker.fire.before"); err != nil {
		return wire.FireResult{}, err
	}
	result, err := f.Fires.Fire(ctx, id, at)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("worker.fire.after")
}
