package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// Drain keeps new work off a machine. What runs there goes on until deadline;
// the leader moves it away then. No deadline: it may end by itself. Draining a
// draining machine changes reason and deadline.
func (d *Machines) Drain(ctx context.Context, id berth.MachineID, reason string, deadline *time.Time) error {
	tag, err := d.pool.Exec(ctx, `
		UPDATE machines
		SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = @deadline
		WHERE id = @id AND state IN ('joining', 'ready', 'suspect', 'draining')`,
		pgx.NamedArgs{"id": id, "reason": reason, "deadline": deadline})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	if tag.RowsAffected() == 0 {
		return d.refuse(ctx, id, "drained")
	}
	d.hub.Publish(TopicQueue, "")
	d.hub.Publish(TopicMachine, string(id))
	return nil
}

// Undrain opens a draining machine for work again; one that is not draining
// stays as it is. What was counted against it is forgiven. A machine that has been silent comes back as suspect, until
// it speaks.
func (d *Machines) Undrain(ctx context.Context, id berth.MachineID) error {
	tag, err := d.pool.Exec(ctx, `
		WITH forgiven AS (
			UPDATE machine_faults SET forgiven = true
			WHERE machine_id = @id AND NOT forgiven
		)
		UPDATE machines m
		SET state = CASE
				WHEN m.state <> 'draining' THEN m.state
				WHEN cardinality(m.pending_kills) > 0 THEN 'joining'
				WHEN EXISTS (SELECT 1 FROM machine_leases l WHERE l.machine_id = m.id AND l.until > now()) THEN 'ready'
				ELSE 'suspect'
			END,
			reason = CASE WHEN m.state = 'draining' THEN '' ELSE m.reason END,
			drain_reason = NULL, drain_deadline = NULL
		WHERE m.id = @id AND m.state NOT IN ('lost', 'retired')`,
		pgx.NamedArgs{"id": id})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	if tag.RowsAffected() == 0 {
		return d.refuse(ctx, id, "undrained")
	}
	d.hub.Publish(TopicQueue, "")
	d.hub.Publish(TopicMachine, string(id))
	return nil
}

// refuse explains an update that found no row.
func (d *Machines) refuse(ctx context.Context, id berth.MachineID, what string) error {
	var state berth.MachineState
	err := d.pool.QueryRow(ctx, `SELECT state FROM machines WHERE id = @id`, pgx.NamedArgs{"id": id}).Scan(&state)
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	return berth.Errorf(berth.CodeConflict, "machine %s is %s and cannot be %s", id, state, what)
}

// ConfirmDead takes an operator's word that no container of a silent machine
// lives any more: everything it holds is released, and the jobs that were still
// waiting for it may be settled. It returns those jobs.
//
// The machine's epoch rises, so that an agent that does come back must register
// anew and remove its leftovers before it is given work. A machine whose lease
// is alive is refused: it can say itself what runs there.
func (d *Machines) ConfirmDead(ctx context.Context, id berth.MachineID, actor string) ([]berth.JobID, error) {
	var touched []berth.JobID
	err := d.tx(ctx, func(tx pgx.Tx) error {
		touched = nil
		jobs, err := lockJobsOn(ctx, tx, id)
		if err != nil {
			return err
		}
		held, err := lockHeldBy(ctx, tx, id, jobs)
		if err != nil {
			return err
		}
		if err := confirmable(ctx, tx, id, held); err != nil {
			return err
		}
		if err := releaseDead(ctx, tx, id, held, actor); err != nil {
			return err
		}
		for _, h := range held {
			err := addEvent(ctx, tx, h.Job, wire.Event{
				Kind: wire.EventReleased, Attempt: h.Attempt, Actor: actor,
				Detail: "machine " + string(id) + " was confirmed dead", Facts: &wire.EventFacts{Machine: id},
			})
			if err != nil {
				return err
			}
			touched = append(touched, h.Job)
		}
		return nil
	})
	if err != nil {
		return nil, mapError(err, "machine "+string(id))
	}
	for _, job := range touched {
		d.hub.Publish(TopicJob, string(job))
	}
	d.hub.Publish(TopicMachine, string(id))
	d.hub.Publish(TopicQueue, "")
	return touched, nil
}

// heldThere is of an allocation a that counts against its machine, or of which
// the machine still has something to store.
const heldThere = `a.forgotten_at IS NULL AND (counts(a.state) OR a.state = 'exited' AND a.sealed_at IS NULL)`

// holding is an allocation that is held there.
type holding struct {
	ID      berth.AllocationID
	Job     berth.JobID
	Attempt int
}

// lockJobsOn locks the jobs with members on a machine, first in lock order.
func lockJobsOn(ctx context.Context, tx pgx.Tx, id berth.MachineID) ([]berth.JobID, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id::text
		FROM jobs j
		WHERE j.id IN (
			SELECT a.job FROM allocations a
			WHERE a.machine_id = @machine AND `+heldThere+`)
		ORDER BY j.id
		FOR NO KEY UPDATE`,
		pgx.NamedArgs{"machine": id})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
}

func lockHeldBy(ctx context.Context, tx pgx.Tx, id berth.MachineID, jobs []berth.JobID) ([]holding, error) {
	rows, err := tx.Query(ctx, `
		SELECT a.id, a.job::text, a.attempt
		FROM allocations a
		WHERE a.machine_id = @machine AND a.job = ANY(@jobs::uuid[]) AND `+heldThere+`
		ORDER BY a.id
		FOR NO KEY UPDATE`,
		pgx.NamedArgs{"machine": id, "jobs": jobs})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[holding])
}

// confirmable locks the machine and refuses one that speaks, one that is
// retired, and one that was given more work since its jobs were locked.
func confirmable(ctx context.Context, tx pgx.Tx, id berth.MachineID, held []holding) error {
	var state berth.MachineState
	var alive bool
	var counting int
	args := pgx.NamedArgs{"machine": id}
	// The lock first, the look after it in a statement of its own: a count that
	// was begun before the lock was granted would miss what was just committed.
	err := tx.QueryRow(ctx, `SELECT state FROM machines WHERE id = @machine FOR NO KEY UPDATE`, args).Scan(&state)
	if err != nil {
		return err
	}
	err = tx.QueryRow(ctx, `
		SELECT
			EXISTS (SELECT 1 FROM machine_leases l WHERE l.machine_id = @machine AND l.until > now()),
			(SELECT count(*) FROM allocations a WHERE a.machine_id = @machine AND `+heldThere+`)`,
		args).Scan(&alive, &counting)
	switch {
	case err != nil:
		return err
	case state == berth.MachineRetired:
		return berth.Errorf(berth.CodeConflict, "machine %s is retired", id)
	case alive:
		return berth.Errorf(berth.CodeConflict,
			"machine %s is alive: its lease has not run out. Drain it, or wait %s after its last word", id,
			spec.Duration(berth.MachineLeaseTTL))
	case counting != len(held):
		return berth.Errorf(berth.CodeConflict,
			"machine %s was given work while it was being confirmed dead; try again", id)
	}
	return nil
}

func releaseDead(ctx context.Context, tx pgx.Tx, id berth.MachineID, held []holding, actor string) error {
	ids := make([]int64, len(held))
	for i, h := range held {
		ids[i] = int64(h.ID)
	}
	// A member that was not settled gets an exit on record: its job then goes
	// elsewhere, as after any loss of a machine.
	_, err := tx.Exec(ctx, `
		UPDATE allocations
		SET state = 'released',
			exit = coalesce(exit, jsonb_build_object(
				'cause', @cause::text, 'code', 0,
				'message', 'machine ' || machine_id || ' was confirmed dead by ' || @actor::text,
				'started_at', started_at, 'finished_at', now())),
			exited_at = coalesce(exited_at, now()),
			sealed_at = coalesce(sealed_at, now()),
			cut_off = cut_off OR state = 'exited' AND sealed_at IS NULL,
			released_at = now(),
			forgotten_at = now(),
			freed_by = CASE WHEN counts(state) THEN 'operator' ELSE freed_by END
		WHERE id = ANY(@ids)`,
		pgx.NamedArgs{"ids": ids, "actor": actor, "cause": failure.CauseVanished})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE machines
		SET state = 'lost', epoch = epoch + 1, reason = 'confirmed dead by ' || @actor::text
		WHERE id = @machine`,
		pgx.NamedArgs{"machine": id, "actor": actor})
	return err
}

// Retire takes a machine out for good and revokes its token. It is refused
// while anything counts against it, or is still to be stored from it: drain it,
// or confirm it dead, first.
func (d *Machines) Retire(ctx context.Context, id berth.MachineID, actor string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var counting int
		// The lock keeps the leader from placing anything between look and write.
		err := tx.QueryRow(ctx, `SELECT 0 FROM machines
			WHERE id = @machine FOR NO KEY UPDATE`, pgx.NamedArgs{"machine": id}).Scan(&counting)
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			SELECT count(*) FROM allocations a
			WHERE a.machine_id = @machine AND `+heldThere,
			pgx.NamedArgs{"machine": id}).Scan(&counting)
		if err != nil {
			return err
		}
		if counting > 0 {
			return berth.Errorf(berth.CodeConflict, "machine %s still holds %d reservation(s): drain it and wait, "+
				"or confirm it dead", id, counting)
		}
		_, err = tx.Exec(ctx, `
			WITH revoked AS (
				UPDATE tokens SET revoked_at = coalesce(revoked_at, now())
				WHERE machine_id = @machine
			), emptied AS (
				DELETE FROM machine_caches
				WHERE machine_id = @machine
			)
			UPDATE machines
			SET state = 'retired', reason = 'retired by ' || @actor::text, drain_reason = NULL, drain_deadline = NULL
			WHERE id = @machine`,
			pgx.NamedArgs{"machine": id, "actor": actor})
		return err
	})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	d.hub.Publish(TopicQueue, "")
	return nil
}
