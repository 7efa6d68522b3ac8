package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Suspend stops a job, frees its capacity and keeps it from being placed until Release. The
// members are ordered to save a checkpoint and stop within their grace; the next attempt
// continues from the newest checkpoint. No budget is charged. A waiting job is held, a job that
// is suspended already stays as it is.
//
// Suspend refuses a running job that would lose its work: it has no verified checkpoint, and no
// checkpoint.signal by which it could save one. loseWork accepts the loss. Arrays and pipelines
// are refused; hold keeps their waiting children from starting.
//
// The caller must poke the workflow: without a running member no end would wake it.
func (d *Attempts) Suspend(
	ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string, loseWork bool,
) error {
	var hints touched
	err := d.tx(ctx, func(tx pgx.Tx) error {
		hints = touched{}
		job, err := lockJob(ctx, tx, tenant, id, 0)
		if err != nil {
			return err
		}
		switch {
		case job.Kind != berth.KindJob:
			return berth.Errorf(berth.CodeConflict, "%s is %s: only single jobs, gangs, elements and steps can be "+
				"suspended; hold keeps the waiting children from starting", id, article(job.Kind))
		case job.Debug:
			return berth.Errorf(berth.CodeConflict, "job %s holds a failed attempt and cannot be suspended; cancel it",
				id)
		case job.State.Terminal() || job.State == berth.Canceling:
			return berth.Errorf(berth.CodeConflict, "job %s is %s and cannot be suspended", id, job.State)
		case job.HeldAt != nil:
			return nil
		}
		hints = touched{job: id, queue: true}
		if job.State == berth.Scheduled || job.State == berth.Running {
			if err := keepsWork(ctx, tx, job, loseWork); err != nil {
				return err
			}
			if hints.machines, err = suspend(ctx, tx, job, actor); err != nil {
				return err
			}
		} else if err := holdJob(ctx, tx, job, actor); err != nil {
			return err
		}
		return addEvent(ctx, tx, id, wire.Event{
			Kind: wire.EventUpdated, Attempt: job.Attempt, Actor: actor, Detail: "suspended",
		})
	})
	if err != nil {
		return mapError(err, "job "+string(id))
	}
	hints.publish(d.hub)
	return nil
}

// article returns a kind of job with its article, for messages.
func article(k berth.Kind) string {
	if k == berth.KindArray {
		return "an array"
	}
	return "a " + string(k)
}

// keepsWork returns an error if the suspension of a running job would lose its work.
func keepsWork(ctx context.Context, tx pgx.Tx, job lockedJob, loseWork bool) error {
	if loseWork || job.State != berth.Running || job.Checkpoint {
		return nil
	}
	var signal bool
	err := tx.QueryRow(ctx, `SELECT coalesce(spec -> 'checkpoint' ? 'signal', false) FROM job_specs WHERE job = $1`,
		job.ID).Scan(&signal)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("read the checkpoint policy: %w", err)
	case signal:
		return nil
	}
	return berth.Errorf(berth.CodeConflict, "job %s has no checkpoint, and no checkpoint.signal by which it could "+
		"save one: lose_work=true (berth suspend --lose-work) suspends it, and it starts from the beginning", job.ID)
}

// suspend moves a job with capacity to preempting and holds it. It returns the machines to
// notify.
func suspend(ctx context.Context, tx pgx.Tx, job lockedJob, actor string) ([]berth.MachineID, error) {
	_, err := tx.Exec(ctx, `
		UPDATE jobs
		SET state = 'preempting', version = version + 1, actor = @actor, reason = @reason, held = true, held_at = now()
		WHERE id = @job`,
		namedArgs{"job": job.ID, "actor": actor,
			"reason": berth.Reason{Code: berth.ReasonSuspended, Message: "suspended by " + actor}})
	if err != nil {
		return nil, err
	}
	withdrawn, err := withdraw(ctx, tx, job, "suspended before a machine took it")
	if err != nil {
		return nil, err
	}
	stopped, err := orderStop(ctx, tx, job.Job, berth.Orders{Checkpoint: true, Stop: true})
	if err != nil {
		return nil, err
	}
	if job.Gang() { // the room kept for its repair
		if _, err := tx.Exec(ctx, `DELETE FROM nominations WHERE beneficiary = $1`, job.ID); err != nil {
			return nil, err
		}
	}
	return machines(withdrawn, stopped), addOrderEvent(ctx, tx, job, "stop", stopped)
}

// RequestSave orders the running members of a job to write a checkpoint now, by the job's
// checkpoint.signal; the job continues. It does not wait for the checkpoint.
func (d *Attempts) RequestSave(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string) error {
	var hints touched
	err := d.tx(ctx, func(tx pgx.Tx) error {
		hints = touched{}
		job, err := lockJob(ctx, tx, tenant, id, 0)
		if err != nil {
			return err
		}
		if job.Kind != berth.KindJob || job.State != berth.Running {
			return berth.Errorf(berth.CodeConflict, "job %s is %s: only a running job can save a checkpoint", id,
				job.State)
		}
		ordered, err := updateRanks(ctx, tx, `
			WITH order_number AS (SELECT nextval('ledger') AS n)
			UPDATE allocations a
			SET orders = a.orders || jsonb_build_object('save', o.n)
			FROM order_number o
			WHERE a.job = @job AND a.attempt = @attempt AND a.state = 'active' AND NOT a.orders ? 'stop' AND EXISTS (
				SELECT 1 FROM job_specs s WHERE s.job = a.job AND s.spec -> 'checkpoint' ? 'signal')
			RETURNING a.rank, a.machine_id`, namedArgs{"job": id, "attempt": job.Attempt})
		if err != nil {
			return err
		}
		if len(ordered) == 0 {
			return berth.Errorf(berth.CodeConflict,
				"job %s has no checkpoint.signal by which Berth could ask it to save, or it stops already", id)
		}
		hints = touched{job: id, machines: machines(ordered)}
		return addOrderEvent(ctx, tx, job, "save", ordered)
	})
	if err != nil {
		return mapError(err, "job "+string(id))
	}
	hints.publish(d.hub)
	return nil
}
