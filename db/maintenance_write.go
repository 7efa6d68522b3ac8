package db

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// windowName names a window in errors.
func windowName(id int64) string { return fmt.Sprintf("maintenance window %d", id) }

// or returns the value of p, or the default for nil.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// windowTimes are the settings of a window that decide when its machines are closed.
type windowTimes struct {
	from, until time.Time
	grace, lead time.Duration
}

// closes returns the time at which the machines stop to take work: the grace before the start, so
// that jobs which stop within it have stopped at the start.
func (w windowTimes) closes() time.Time { return w.from.Add(-w.grace) }

// args returns the arguments of the statements. Grace and lead are whole seconds.
func (w windowTimes) args(id int64) namedArgs {
	return namedArgs{"id": id, "from": w.from, "until": w.until, "closes": w.closes(),
		"grace": int(w.grace / time.Second), "lead": int(w.lead / time.Second)}
}

// Create stores a maintenance window and returns its id. A start in the past, an unknown machine, and a
// selection without machines are invalid. A machine with another window at the time is a conflict. The
// selection is resolved now: machines that join later, or get a label later, are not part of the
// window.
func (d *Maintenance) Create(ctx context.Context, m spec.NewMaintenance, actor string) (id int64, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		machines, err := windowMachines(ctx, tx, m)
		if err != nil {
			return err
		}
		w := windowTimes{from: m.From, until: m.From.Add(time.Duration(m.For)),
			grace: time.Duration(or(m.Grace, spec.MaintenanceGrace)),
			lead:  time.Duration(or(m.Lead, spec.MaintenanceLead))}
		if err := checkStart(ctx, tx, w); err != nil {
			return err
		}
		if err := checkOverlap(ctx, tx, 0, machines, w); err != nil {
			return err
		}
		args := w.args(0)
		args["reason"], args["undrain"], args["actor"] = m.Reason, or(m.Undrain, true), actor
		err = tx.QueryRow(ctx, `
			INSERT INTO maintenance (reason, starts_at, ends_at, grace_s, lead_s, undrain, actor)
			VALUES (@reason, @from, @until, @grace, @lead, @undrain, @actor)
			RETURNING id`, args).Scan(&id)
		if err != nil {
			return err
		}
		args["id"], args["machines"] = id, machines
		_, err = tx.Exec(ctx, `
			INSERT INTO maintenance_machines (maintenance, machine_id, closes_at, ends_at)
			SELECT @id, machine, @closes, @until
			FROM unnest(@machines::text[]) AS x (machine)`, args)
		return err
	})
	return id, d.changed(err, "maintenance window")
}

// windowMachines locks the machines of a new window and returns them in order. Placements lock the
// machines too, so a later one sees the window. All unknown names are reported at once.
func windowMachines(ctx context.Context, tx pgx.Tx, m spec.NewMaintenance) ([]berth.MachineID, error) {
	named := m.Machines
	if named == nil {
		named = []berth.MachineID{}
	}
	rows, err := tx.Query(ctx, `
		SELECT id
		FROM machines
		WHERE state <> 'retired' AND CASE
			WHEN cardinality(@named::text[]) > 0 THEN id = ANY(@named)
			ELSE (@pool = '' OR pool = @pool) AND machine_labels(machines) @> @labels END
		ORDER BY id
		FOR NO KEY UPDATE`,
		namedArgs{"named": named, "pool": m.Pool, "labels": nonNilMap(m.Labels)})
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	if err != nil {
		return nil, err
	}
	var faults []berth.FieldError
	for i, id := range named {
		if !slices.Contains(list, id) {
			faults = append(faults, berth.FieldError{Field: fmt.Sprintf("machines[%d]", i),
				Detail:  fmt.Sprintf("names %s, a machine that does not exist or is retired", id),
				Allowed: "machines that exist"})
		}
	}
	if faults == nil && len(list) == 0 {
		faults = []berth.FieldError{{Field: "pool", Detail: "and labels select no machine",
			Allowed: "a pool or labels of machines that exist"}}
	}
	if faults == nil && len(list) > spec.MaxMaintenanceMachines {
		faults = []berth.FieldError{{Field: "pool", Detail: fmt.Sprintf("and labels select %d machines", len(list)),
			Allowed: fmt.Sprintf("at most %d machines", spec.MaxMaintenanceMachines)}}
	}
	if faults != nil {
		return nil, &berth.Error{Code: berth.CodeInvalid, Message: faults[0].Field + " " + faults[0].Detail,
			Fields: faults}
	}
	return list, nil
}

// startTolerance is the age of a start that still counts as the present.
const startTolerance = time.Minute

// checkStart refuses a start in the past or too far ahead, by the database's clock. The tolerance
// covers the time of a call that starts a window now.
func checkStart(ctx context.Context, tx pgx.Tx, w windowTimes) error {
	var now time.Time
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return err
	}
	fault := berth.FieldError{Field: "from",
		Allowed: fmt.Sprintf("a time after %s, at most %s ahead", now.UTC().Format(time.RFC3339),
			spec.Duration(spec.MaxMaintenanceAhead))}
	switch {
	case w.from.Before(now.Add(-startTolerance)):
		fault.Detail = "is in the past: " + w.from.UTC().Format(time.RFC3339)
	case w.from.After(now.Add(spec.MaxMaintenanceAhead)):
		fault.Detail = "is too far ahead: " + w.from.UTC().Format(time.RFC3339)
	default:
		return nil
	}
	return &berth.Error{Code: berth.CodeInvalid, Message: "from " + fault.Detail, Fields: []berth.FieldError{fault}}
}

// checkOverlap refuses a window if one of its machines has another one at the time. The caller has
// locked the machines. The grace is part of a window: a machine is closed from then on. id is the
// window itself, 0 for a new one.
func checkOverlap(ctx context.Context, tx pgx.Tx, id int64, machines []berth.MachineID, w windowTimes) error {
	args := w.args(id)
	args["machines"] = machines
	rows, err := tx.Query(ctx, `
		SELECT w.machine_id, w.maintenance, w.closes_at, w.ends_at
		FROM maintenance_machines w
		WHERE w.machine_id = ANY(@machines) AND w.maintenance <> @id AND w.state IN ('planned', 'active')
		  AND w.closes_at < @until AND w.ends_at > @closes
		ORDER BY w.machine_id, w.closes_at
		LIMIT 1`, args)
	if err != nil {
		return err
	}
	type taken struct {
		Machine       berth.MachineID
		Window        int64
		Closes, Until time.Time
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[taken])
	if err != nil || len(list) == 0 {
		return err
	}
	x := list[0]
	return berth.Errorf(berth.CodeConflict, "machine %s is in maintenance window %d from %s (with its grace) to %s: "+
		"windows of a machine cannot overlap", x.Machine, x.Window, x.Closes.UTC().Format(time.RFC3339),
		x.Until.UTC().Format(time.RFC3339))
}

// lockedWindow is a window under lock, with its machines.
type lockedWindow struct {
	windowTimes
	version  int64
	open     []berth.MachineID // planned or active
	begun    bool              // a machine has closed, or should have
	ended    bool              // no machine is open
	machines []berth.MachineID
}

// lockWindow locks a window, then its open machines. A placement that commits first is a running job,
// which the drain of the window moves.
func lockWindow(ctx context.Context, tx pgx.Tx, id int64) (x lockedWindow, err error) {
	args := namedArgs{"id": id}
	var grace, lead int
	err = tx.QueryRow(ctx, `
		SELECT starts_at, ends_at, grace_s, lead_s, version FROM maintenance WHERE id = @id FOR UPDATE`,
		args).Scan(&x.from, &x.until, &grace, &lead, &x.version)
	if err != nil {
		return x, err
	}
	x.grace, x.lead = time.Duration(grace)*time.Second, time.Duration(lead)*time.Second
	rows, err := tx.Query(ctx, `
		SELECT m.id
		FROM machines m
		WHERE m.id IN (SELECT machine_id FROM maintenance_machines WHERE maintenance = @id)
		ORDER BY m.id
		FOR NO KEY UPDATE`, args)
	if err != nil {
		return x, err
	}
	if x.machines, err = pgx.CollectRows(rows, pgx.RowTo[berth.MachineID]); err != nil {
		return x, err
	}
	err = tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(machine_id ORDER BY machine_id), '{}'),
			coalesce(bool_or(state = 'active' OR closes_at <= clock_timestamp()), false)
		FROM maintenance_machines
		WHERE maintenance = @id AND state IN ('planned', 'active')`, args).Scan(&x.open, &x.begun)
	x.ended = len(x.open) == 0
	return x, err
}

// Change changes a window that has not ended. After its machines have closed, the start, the grace and
// the lead stay. A version that is neither 0 nor the present one is a conflict. Machines of the window
// that are done keep their times.
func (d *Maintenance) Change(ctx context.Context, id int64, m spec.MaintenanceChange) error {
	return d.changed(d.tx(ctx, func(tx pgx.Tx) error {
		x, err := lockWindow(ctx, tx, id)
		if err != nil {
			return err
		}
		switch {
		case m.Version != 0 && m.Version != x.version:
			return berth.Errorf(berth.CodeConflict, "%s is at version %d, not %d: it was changed in between; "+
				"read it again", windowName(id), x.version, m.Version)
		case x.ended:
			return berth.Errorf(berth.CodeConflict, "%s has ended", windowName(id))
		case x.begun && (m.From != nil || m.Grace != nil || m.Lead != nil):
			return berth.Errorf(berth.CodeConflict, "%s has begun: its start, grace and lead cannot change; its "+
				"length, reason and undrain can", windowName(id))
		}
		w := windowTimes{from: or(m.From, x.from), grace: time.Duration(or(m.Grace, spec.Duration(x.grace))),
			lead: time.Duration(or(m.Lead, spec.Duration(x.lead)))}
		w.until = w.from.Add(time.Duration(or(m.For, spec.Duration(x.until.Sub(x.from)))))
		if !x.begun {
			if err := checkStart(ctx, tx, w); err != nil {
				return err
			}
		}
		if err := checkOverlap(ctx, tx, id, x.open, w); err != nil {
			return err
		}
		args := w.args(id)
		args["reason"], args["undrain"] = m.Reason, m.Undrain
		_, err = tx.Exec(ctx, `
			UPDATE maintenance
			SET starts_at = @from, ends_at = @until, grace_s = @grace, lead_s = @lead,
				reason = coalesce(nullif(@reason, ''), reason), undrain = coalesce(@undrain, undrain),
				version = version + 1, updated_at = now()
			WHERE id = @id`, args)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE maintenance_machines
			SET closes_at = @closes, ends_at = @until
			WHERE maintenance = @id AND state IN ('planned', 'active')`, args)
		return err
	}), windowName(id))
}

// Cancel cancels a window before its machines close. A window that has begun is a conflict; a
// canceled one stays so.
func (d *Maintenance) Cancel(ctx context.Context, id int64) error {
	return d.changed(d.tx(ctx, func(tx pgx.Tx) error {
		x, err := lockWindow(ctx, tx, id)
		if err != nil {
			return err
		}
		if x.begun {
			return berth.Errorf(berth.CodeConflict, "%s has begun and cannot be canceled; end it", windowName(id))
		}
		_, err = tx.Exec(ctx, `
			UPDATE maintenance_machines SET state = 'canceled'
			WHERE maintenance = @id AND state = 'planned'`, namedArgs{"id": id})
		return err
	}), windowName(id))
}

// End ends a window that has begun, before its time. The leader then returns the machines as at the
// planned end. A window that has not begun is a conflict; one that has ended stays so.
func (d *Maintenance) End(ctx context.Context, id int64) error {
	return d.changed(d.tx(ctx, func(tx pgx.Tx) error {
		x, err := lockWindow(ctx, tx, id)
		if err != nil {
			return err
		}
		if !x.begun && !x.ended {
			return berth.Errorf(berth.CodeConflict, "%s has not begun; cancel it", windowName(id))
		}
		args := namedArgs{"id": id}
		_, err = tx.Exec(ctx, `
			UPDATE maintenance
			SET ends_at = clock_timestamp(), version = version + 1, updated_at = now()
			WHERE id = @id AND ends_at > clock_timestamp() AND `+openNow, args)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE maintenance_machines
			SET ends_at = clock_timestamp()
			WHERE maintenance = @id AND state IN ('planned', 'active') AND ends_at > clock_timestamp()`, args)
		return err
	}), windowName(id))
}

// openNow is true for the row @id of maintenance with an open machine.
const openNow = `EXISTS (
	SELECT 1 FROM maintenance_machines WHERE maintenance = @id AND state IN ('planned', 'active'))`

// changed notifies the leader of a committed change, or maps the error of a failed one. The leader and
// all explainers read the windows together with the tenants.
func (d *Maintenance) changed(err error, what string) error {
	if err != nil {
		return mapError(err, what)
	}
	d.hub.Publish(TopicQueue, KeyTenants)
	return nil
}
