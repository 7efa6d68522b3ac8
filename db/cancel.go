package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
)

// RequestCancel asks for a job's end and returns the state after it. A job that
// holds no capacity is canceled at once; of one that does, the machines are
// told to stop, and Settle decides when they have. A job that is canceling or
// terminal stays as it is, which is no error. Tenant "" means any; reason nil
// is a user's request.
//
// The workflow learns of it by itself when a rank ends, else by a poke, which
// the caller sends.
func (d *DB) RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string, reason *berth.Reason) (berth.State, error) {
	if reason == nil {
		reason = &berth.Reason{Code: berth.ReasonCanceledByUser, Message: "canceled on request"}
	}
	var state berth.State
	var hints touched
	err := d.tx(ctx, func(tx pgx.Tx) error {
		job, err := lockJob(ctx, tx, tenant, id, 0)
		if err != nil {
			return err
		}
		hints = touched{job: id}
		switch state = job.State; {
		case state.Terminal() || state == berth.Canceling:
			hints = touched{}
			return nil
		case state.Waiting():
			hints.queue = true
			state = berth.Canceled
			return cancelWaiting(ctx, tx, job, actor, reason)
		default:
			state = berth.Canceling
			hints.machines, hints.queue, err = cancelHolding(ctx, tx, job, actor, reason)
			return err
		}
	})
	if err != nil {
		return "", mapError(err, "job "+string(id))
	}
	hints.publish(d.hub)
	return state, nil
}

// cancelState moves the row of a locked job and keeps why.
const cancelState = `
	UPDATE jobs
	SET state = @state, version = version + 1, actor = @actor, reason = @reason,
		cancel_requested_at = coalesce(cancel_requested_at, now())
	WHERE id = @job`

// cancelWaiting ends a job without capacity, and gives back what was set aside
// for it: ranks kept for the repair of its gang, devices freed by preemption.
func cancelWaiting(ctx context.Context, tx pgx.Tx, job lockedJob, actor string, reason *berth.Reason) error {
	args := pgx.NamedArgs{"job": job.ID, "state": berth.Canceled, "actor": actor, "reason": reason, "orders": berth.Orders{Forget: true}}
	if _, err := tx.Exec(ctx, cancelState, args); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `
		UPDATE allocations
		SET state = 'released', released_at = now(), orders = orders || @orders
		WHERE job = @job AND state = 'kept'`, args); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM earmarks WHERE beneficiary = @job`, args)
	return err
}

// cancelHolding orders the stop. What nobody has claimed is released at once.
func cancelHolding(ctx context.Context, tx pgx.Tx, job lockedJob, actor string, reason *berth.Reason) (told []berth.MachineID, freed bool, err error) {
	args := pgx.NamedArgs{"job": job.ID, "state": berth.Canceling, "actor": actor, "reason": reason}
	if _, err := tx.Exec(ctx, cancelState, args); err != nil {
		return nil, false, err
	}
	withdrawn, err := withdraw(ctx, tx, job, "canceled before a machine took it")
	if err != nil {
		return nil, false, err
	}
	stopped, err := orderStop(ctx, tx, job, berth.Orders{Stop: true})
	return machines(withdrawn, stopped), len(withdrawn) > 0, err
}
