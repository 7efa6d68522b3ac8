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

// actAs names the author of this transaction's changes of machines, for drain_actor and
// machine_events.
func actAs(ctx context.Context, tx pgx.Tx, actor string) error {
	_, err := tx.Exec(ctx, `SELECT set_config('berth.actor', @actor, true)`, namedArgs{"actor": actor})
	return err
}

// Drain closes a machine to new work. Running work continues until deadline; then the leader
// moves it elsewhere. Without a deadline it may run to its end. The leader notifies the jobs
// on the machine; see Attempts.AnnounceDrains. A second call changes reason, deadline and
// actor, and notifies again if reason or deadline differ. A lost or retired machine is a
// conflict.
func (d *Machines) Drain(ctx context.Context, id berth.MachineID, reason string, deadline *time.Time,
	actor string) error {
	return d.change(ctx, id, actor, "drained", `
		UPDATE machines
		SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = @deadline
		WHERE id = @id AND state IN ('joining', 'ready', 'suspect', 'draining')`,
		namedArgs{"id": id, "reason": reason, "deadline": deadline})
}

// Undrain opens a draining machine to new work; a machine in another state keeps it. Faults
// counted against the machine are forgiven. A machine with containers still to be removed
// becomes joining, a silent one suspect until it reports, any other one ready. A machine inside a
// maintenance window is a conflict.
func (d *Machines) Undrain(ctx context.Context, id berth.MachineID, actor string) error {
	return d.change(ctx, id, actor, "undrained", forgiveFaults+openMachine+` AND NOT `+insideWindow,
		namedArgs{"id": id})
}

// insideWindow is true for a machine m inside a maintenance window that has begun.
const insideWindow = `EXISTS (
	SELECT 1 FROM maintenance_machines w
	WHERE w.machine_id = m.id AND w.state = 'active' AND w.ends_at > clock_timestamp())`

// forgiveFaults, before openMachine, forgives the faults counted against machine @id.
const forgiveFaults = `
		WITH forgiven AS (
			UPDATE machine_faults SET forgiven = true
			WHERE machine_id = @id AND NOT forgiven
		)`

// openMachine opens machine @id to new work, as Undrain describes.
const openMachine = `
		UPDATE machines m
		SET state = CASE
				WHEN m.state <> 'draining' THEN m.state
				WHEN cardinality(m.pending_kills) > 0 THEN 'joining'
				WHEN EXISTS (SELECT 1 FROM machine_leases l WHERE l.machine_id = m.id AND l.until > now()) THEN 'ready'
				ELSE 'suspect'
			END,
			reason = CASE WHEN m.state = 'draining' THEN '' ELSE m.reason END,
			drain_reason = NULL, drain_deadline = NULL
		WHERE m.id = @id AND m.state NOT IN ('lost', 'retired')`

// change runs an update of one machine on behalf of actor and publishes the hints. An update
// without a matching row is an error that names the refused act, as refuse gives it.
func (d *Machines) change(ctx context.Context, id berth.MachineID, actor, act, sql string, args namedArgs) error {
	changed := false
	err := d.tx(ctx, func(tx pgx.Tx) error {
		if err := actAs(ctx, tx, actor); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sql, args)
		changed = tag.RowsAffected() > 0
		return err
	})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	if !changed {
		return d.refuse(ctx, id, act)
	}
	d.hub.Publish(TopicQueue, "")
	d.hub.Publish(TopicMachine, string(id))
	return nil
}

// refuse returns the error for an update that found no row: not_found or a conflict.
func (d *Machines) refuse(ctx context.Context, id berth.MachineID, what string) error {
	var state berth.MachineState
	var window *int64
	err := d.pool.QueryRow(ctx, `
		SELECT state, (
			SELECT min(w.maintenance) FROM maintenance_machines w
			WHERE w.machine_id = m.id AND w.state = 'active' AND w.ends_at > clock_timestamp())
		FROM machines m
		WHERE id = @id`, namedArgs{"id": id}).Scan(&state, &window)
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	if window != nil && state == berth.MachineDraining {
		return berth.Errorf(berth.CodeConflict, "machine %s is in %s and cannot be %s; end the window",
			id, windowName(*window), what)
	}
	return berth.Errorf(berth.CodeConflict, "machine %s is %s and cannot be %s", id, state, what)
}

// ConfirmDead records an operator's confirmation that no container of a silent machine runs.
// It releases everything that the machine holds, so that jobs that waited for the machine can
// be settled, and returns these jobs.
//
// The machine's epoch rises, so an agent that does come back must register again and remove
// its leftovers before it gets work. A machine with a valid lease is refused: it can report
// its containers itself.
func (d *Machines) ConfirmDead(ctx context.Context, id berth.MachineID, actor string) ([]berth.JobID, error) {
	var touched []berth.JobID
	err := d.tx(ctx, func(tx pgx.Tx) error {
		// The closure may run more than once; see core.tx.
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

// heldThere is true for an allocation a that counts against its machine, or whose results the
// machine has yet to store.
const heldThere = `a.forgotten_at IS NULL AND (counts(a.state) OR a.state = 'exited' AND a.sealed_at IS NULL)`

// holding is an allocation for which heldThere is true.
type holding struct {
	ID      berth.AllocationID
	Job     berth.JobID
	Attempt int
}

// lockJobsOn locks the jobs with members on a machine. Jobs come first in the lock order.
func lockJobsOn(ctx context.Context, tx pgx.Tx, id berth.MachineID) ([]berth.JobID, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id::text
		FROM jobs j
		WHERE j.id IN (
			SELECT a.job FROM allocations a
			WHERE a.machine_id = @machine AND `+heldThere+`)
		ORDER BY j.id
		FOR NO KEY UPDATE`,
		namedArgs{"machine": id})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
}

// lockHeldBy locks the machine's allocations of these jobs. Work that the leader adds after
// lockJobsOn is not among them; confirmable detects it.
func lockHeldBy(ctx context.Context, tx pgx.Tx, id berth.MachineID, jobs []berth.JobID) ([]holding, error) {
	rows, err := tx.Query(ctx, `
		SELECT a.id, a.job::text, a.attempt
		FROM allocations a
		WHERE a.machine_id = @machine AND a.job = ANY(@jobs::uuid[]) AND `+heldThere+`
		ORDER BY a.id
		FOR NO KEY UPDATE`,
		namedArgs{"machine": id, "jobs": jobs})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[holding])
}

// confirmable locks the machine. It refuses a machine with a valid lease, a retired one, and
// one that got more work after its jobs were locked.
func confirmable(ctx context.Context, tx pgx.Tx, id berth.MachineID, held []holding) error {
	var state berth.MachineState
	var alive bool
	var counting int
	args := namedArgs{"machine": id}
	// The lock comes first, and the count in a statement of its own: a count that started
	// before the lock was granted would miss rows that were committed meanwhile.
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
			"machine %s is alive, since its lease has not expired; drain it, or wait %s after its last contact", id,
			spec.Duration(berth.MachineLeaseTTL))
	case counting != len(held):
		return berth.Errorf(berth.CodeConflict,
			"machine %s received a job meanwhile; try again", id)
	}
	return nil
}

// releaseDead releases the allocations with an exit on record and declares the machine lost.
func releaseDead(ctx context.Context, tx pgx.Tx, id berth.MachineID, held []holding, actor string) error {
	ids := make([]int64, len(held))
	for i, h := range held {
		ids[i] = int64(h.ID)
	}
	// A member without an end gets a recorded exit, so its job is retried elsewhere, as after
	// any loss of a machine. Unsealed results count as cut off.
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
		namedArgs{"ids": ids, "actor": actor, "cause": failure.CauseVanished})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE machines
		SET state = 'lost', epoch = epoch + 1, reason = 'confirmed dead by ' || @actor::text
		WHERE id = @machine`,
		namedArgs{"machine": id, "actor": actor})
	return err
}

// Retire removes a machine from service permanently and revokes its token. It fails with a
// conflict while an allocation counts against the machine or has results to store: drain the
// machine, or confirm it dead, first.
func (d *Machines) Retire(ctx context.Context, id berth.MachineID, actor string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var counting int
		var state berth.MachineState
		// The lock keeps the leader from placing work between the count and the write.
		err := tx.QueryRow(ctx, `SELECT state FROM machines
			WHERE id = @machine FOR NO KEY UPDATE`, namedArgs{"machine": id}).Scan(&state)
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			SELECT count(DISTINCT a.job) FROM allocations a
			WHERE a.machine_id = @machine AND `+heldThere,
			namedArgs{"machine": id}).Scan(&counting)
		if err != nil {
			return err
		}
		if counting > 0 {
			advice := "drain it and wait"
			if state == berth.MachineDraining {
				advice = "wait for them"
				if counting == 1 {
					advice = "wait for it"
				}
			}
			return berth.Errorf(berth.CodeConflict, "machine %s is %s and still runs %s; %s, or use confirm-dead "+
				"if the "+
				"machine is off", id, state, plural(counting, "job"), advice)
		}
		if err := revokeTokensOf(ctx, tx, id); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			WITH emptied AS (
				DELETE FROM machine_caches
				WHERE machine_id = @machine
			)
			UPDATE machines
			SET state = 'retired', reason = 'retired by ' || @actor::text, drain_reason = NULL, drain_deadline = NULL
			WHERE id = @machine`,
			namedArgs{"machine": id, "actor": actor})
		return err
	})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	d.hub.Publish(TopicQueue, "")
	return nil
}
