package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
)

// MaintenanceStep is the act of a pass on one machine of a window.
type MaintenanceStep struct {
	Window  int64
	Machine berth.MachineID
	Act     lifecycle.MaintenanceAct
	Note    string
}

// WaitingCursor is the position of a pass in the list of the machines that have not returned after
// their window. The zero value is the start.
type WaitingCursor struct {
	machine berth.MachineID
	window  int64
}

// MaintenanceActor returns the actor under which a maintenance window changes machines.
func MaintenanceActor(window int64) string { return fmt.Sprintf("maintenance:%d", window) }

// Pass begins and ends maintenance windows that are due, each machine in a transaction under the
// leader's term. It drains the machines when they close, and returns healthy ones at the end, as
// lifecycle.Maintain decides. It decides about at most limit machines, and about at most limit of
// the waiting machines, from the position at on, which it moves. It returns the acts in order.
func (d *Maintenance) Pass(ctx context.Context, term Term, limit int, at *WaitingCursor) ([]MaintenanceStep, error) {
	due, err := d.due(ctx, limit, at)
	if err != nil {
		return nil, mapError(err, "maintenance windows")
	}
	var done []MaintenanceStep
	for _, x := range due {
		step := MaintenanceStep{Window: x.Window, Machine: x.Machine}
		err := d.leaderTx(ctx, term, func(tx pgx.Tx) (err error) {
			step.Act, step.Note, err = maintain(ctx, tx, x.Window, x.Machine)
			return err
		})
		if err != nil {
			return done, mapError(err, windowName(x.Window))
		}
		if step.Act != lifecycle.MaintenanceNone {
			done = append(done, step)
			d.hub.Publish(TopicQueue, KeyTenants)
			d.hub.Publish(TopicMachine, string(x.Machine))
		}
	}
	return done, nil
}

// dueMachine is a machine of a window about which a pass decides.
type dueMachine struct {
	Window  int64
	Machine berth.MachineID
}

// otherWindow is true for a machine w of a window if another window of the machine has begun and is
// not over.
const otherWindow = `EXISTS (
	SELECT 1 FROM maintenance_machines o
	WHERE o.machine_id = w.machine_id AND o.maintenance <> w.maintenance AND o.state IN ('planned', 'active')
	  AND o.closes_at <= clock_timestamp() AND o.ends_at > clock_timestamp())`

// dueMachines selects the machines of windows for which a decision is due.
const dueMachines = `
	SELECT w.maintenance, w.machine_id
	FROM maintenance_machines w
	JOIN machines m ON m.id = w.machine_id
	WHERE w.state IN ('planned', 'active') AND (w.closes_at <= clock_timestamp() OR m.state = 'retired')
	  AND (w.state = 'planned' OR m.state = 'retired'
	    OR w.ends_at > clock_timestamp() AND m.state IN ('joining', 'ready', 'suspect')
	    OR w.ends_at <= clock_timestamp() AND NOT ` + otherWindow + `)`

// due returns the machines for a pass. A decision about a machine without a note always changes its
// row, so a pass may take the first ones. Those with a note may wait for long: a pass takes the ones
// after the last of the pass before, and the pass after the last of all starts again.
func (d *Maintenance) due(ctx context.Context, limit int, at *WaitingCursor) ([]dueMachine, error) {
	read := func(sql string, args namedArgs) ([]dueMachine, error) {
		rows, err := d.pool.Query(ctx, dueMachines+sql, args)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowToStructByPos[dueMachine])
	}
	list, err := read(` AND w.note = '' ORDER BY w.closes_at, w.machine_id LIMIT @limit`,
		namedArgs{"limit": limit})
	if err != nil {
		return nil, err
	}
	waiting, err := read(` AND w.note <> '' AND (w.machine_id, w.maintenance) > (@machine, @window)
		ORDER BY w.machine_id, w.maintenance LIMIT @limit`,
		namedArgs{"limit": limit, "machine": at.machine, "window": at.window})
	if err != nil {
		return nil, err
	}
	*at = WaitingCursor{}
	if len(waiting) == limit {
		last := waiting[limit-1]
		*at = WaitingCursor{last.Machine, last.Window}
	}
	return append(list, waiting...), nil
}

// maintain decides about one machine of a window, and writes the change.
func maintain(ctx context.Context, tx pgx.Tx, window int64, machine berth.MachineID) (
	act lifecycle.MaintenanceAct, note string, err error) {
	args := namedArgs{"id": window, "machine": machine, "actor": MaintenanceActor(window)}
	// The machine's lock comes first, and the facts in a statement of its own, which sees all
	// changes that were committed before the lock was granted.
	if _, err := tx.Exec(ctx, `SELECT 1 FROM machines WHERE id = @machine FOR NO KEY UPDATE`, args); err != nil {
		return act, "", err
	}
	var m lifecycle.Maintenance
	var reason string
	err = tx.QueryRow(ctx, `
		SELECT w.state = 'active', w.closes_at <= clock_timestamp(), w.ends_at <= clock_timestamp(), x.undrain,
			w.note, x.reason, `+otherWindow+`,
			m.state, m.drain_reason IS NOT NULL AND coalesce(m.drain_notice = w.drain_notice, false),
			EXISTS (SELECT 1 FROM machine_leases l WHERE l.machine_id = m.id AND l.until > now()),
			cardinality(m.pending_kills) > 0, m.engine_silent_since IS NOT NULL,
			(SELECT count(*) FROM gpu_devices g WHERE g.machine_id = m.id AND NOT g.healthy)
		FROM maintenance_machines w
		JOIN maintenance x ON x.id = w.maintenance
		JOIN machines m ON m.id = w.machine_id
		WHERE w.maintenance = @id AND w.machine_id = @machine AND w.state IN ('planned', 'active')
		FOR UPDATE OF w`, args).Scan(&m.Active, &m.Closed, &m.Over, &m.Undrain, &m.Note, &reason, &m.Other,
		&m.State, &m.Own, &m.Alive, &m.Leftovers, &m.EngineSilent, &m.UnhealthyGPUs)
	if errors.Is(err, pgx.ErrNoRows) { // it has ended meanwhile
		return lifecycle.MaintenanceNone, "", nil
	}
	if err != nil {
		return act, "", err
	}
	act, note = lifecycle.Maintain(m)
	args["note"], args["reason"] = note, fmt.Sprintf("maintenance %d: %s", window, reason)
	return act, note, carryOut(ctx, tx, m, act, args)
}

// carryOut writes the decision of lifecycle.Maintain.
func carryOut(ctx context.Context, tx pgx.Tx, m lifecycle.Maintenance, act lifecycle.MaintenanceAct,
	args namedArgs) error {
	if act == lifecycle.MaintenanceNone {
		return nil
	}
	if err := actAs(ctx, tx, args["actor"].(string)); err != nil {
		return err
	}
	args["state"], args["own"] = "done", false
	switch act {
	case lifecycle.MaintenanceDrain:
		args["state"], args["own"] = "active", true
		_, err := tx.Exec(ctx, `
			UPDATE machines m
			SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = w.closes_at
			FROM maintenance_machines w
			WHERE m.id = @machine AND w.maintenance = @id AND w.machine_id = m.id`, args)
		if err != nil {
			return err
		}
	case lifecycle.MaintenanceBegin:
		args["state"] = "active"
		if err := hasten(ctx, tx, args); err != nil {
			return err
		}
	case lifecycle.MaintenanceCancel:
		args["state"] = "canceled"
	case lifecycle.MaintenanceReturn:
		if _, err := tx.Exec(ctx, openMachine, namedArgs{"id": args["machine"]}); err != nil {
			return err
		}
	case lifecycle.MaintenanceWait:
		args["state"], args["own"] = "active", true
		args["reason"] = "maintenance ended, but: " + args["note"].(string)
		// A lost machine keeps the reason of its state.
		_, err := tx.Exec(ctx, `
			UPDATE machines
			SET drain_reason = @reason, reason = CASE WHEN state = 'draining' THEN @reason ELSE reason END
			WHERE id = @machine`, args)
		if err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE maintenance_machines w
		SET state = @state, note = @note,
			drain_notice = CASE WHEN @own THEN (SELECT m.drain_notice FROM machines m WHERE m.id = @machine) END
		WHERE maintenance = @id AND machine_id = @machine`, args)
	return err
}

// hasten makes the close of the window the deadline of the drain in force, which no window has made,
// unless the drain has an earlier one. Reason and author of the drain stay.
func hasten(ctx context.Context, tx pgx.Tx, args namedArgs) error {
	var author string
	err := tx.QueryRow(ctx, `
		UPDATE machines m
		SET drain_deadline = w.closes_at
		FROM maintenance_machines w, machines before
		WHERE m.id = @machine AND m.state = 'draining' AND m.drain_actor NOT LIKE 'maintenance:%'
		  AND (m.drain_deadline IS NULL OR m.drain_deadline > w.closes_at)
		  AND w.maintenance = @id AND w.machine_id = m.id AND before.id = m.id
		RETURNING before.drain_actor`, args).Scan(&author)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	// The trigger machines_number_drain has made the window the author.
	_, err = tx.Exec(ctx, `UPDATE machines SET drain_actor = @author WHERE id = @machine`,
		namedArgs{"machine": args["machine"], "author": author})
	return err
}

// Waiting returns the number of machines whose window is over and that are not ready to return.
func (d *Maintenance) Waiting(ctx context.Context) (n int, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT count(*) FROM maintenance_machines
		WHERE state = 'active' AND ends_at <= clock_timestamp() AND note <> ''`).Scan(&n)
	return n, mapError(err, "maintenance windows")
}

// Prune deletes windows that ended longer ago than keep, at most limit, and returns their number.
func (d *Maintenance) Prune(ctx context.Context, term Term, keep time.Duration, limit int) (n int, err error) {
	err = d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM maintenance
			WHERE id IN (
				SELECT x.id FROM maintenance x
				WHERE x.ends_at < now() - @keep::interval AND NOT `+openWindow+`
				ORDER BY x.id
				LIMIT @limit)`, namedArgs{"keep": keep, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "maintenance windows")
}
