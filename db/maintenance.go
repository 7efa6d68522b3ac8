package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Window is the part of a maintenance window that placement reads, for one machine.
type Window struct {
	ID       int64
	Machine  berth.MachineID
	ClosesAt time.Time  // no work starts from then on
	LeadAt   time.Time  // no work without a time limit starts from then on
	EndsAt   *time.Time // nil: the machine does not return at the end
}

// Windows returns the windows that have not ended, by machine and time.
func (d *Maintenance) Windows(ctx context.Context) ([]Window, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT x.id, w.machine_id, w.closes_at, w.closes_at - make_interval(secs => x.lead_s),
			CASE WHEN x.undrain THEN w.ends_at END
		FROM maintenance_machines w
		JOIN maintenance x ON x.id = w.maintenance
		WHERE w.state IN ('planned', 'active') AND w.ends_at > clock_timestamp()
		ORDER BY w.machine_id, w.closes_at`)
	if err != nil {
		return nil, mapError(err, "maintenance windows")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Window])
	return list, mapError(err, "maintenance windows")
}

// openWindow is true for a window x that has not ended for all of its machines.
const openWindow = `EXISTS (
	SELECT 1 FROM maintenance_machines w WHERE w.maintenance = x.id AND w.state IN ('planned', 'active'))`

// readWindows selects the windows x that satisfy a condition, as documents of the API. The state of
// a window follows from the states of its machines.
func readWindows(condition string) string {
	return `
		SELECT jsonb_build_object(
			'id', x.id, 'reason', x.reason, 'from', x.starts_at, 'until', x.ends_at,
			'closes_at', x.starts_at - make_interval(secs => x.grace_s), 'grace', x.grace_s || 's',
			'lead', x.lead_s || 's', 'undrain', x.undrain, 'by', x.actor, 'version', x.version,
			'created_at', x.created_at, 'updated_at', x.updated_at,
			'state', CASE
				WHEN m.active THEN 'active'
				WHEN m.planned THEN 'planned'
				WHEN m.done THEN 'done'
				ELSE 'canceled' END,
			'machines', m.list)
		FROM maintenance x
		CROSS JOIN LATERAL (
			SELECT bool_or(w.state = 'active') AS active, bool_or(w.state = 'planned') AS planned,
				bool_or(w.state = 'done') AS done,
				jsonb_agg(jsonb_build_object('machine', w.machine_id, 'state', w.state, 'note', w.note)
					ORDER BY w.machine_id) AS list
			FROM maintenance_machines w
			WHERE w.maintenance = x.id) m
		WHERE ` + condition + `
		ORDER BY x.id DESC
		LIMIT @limit`
}

// List returns a page of windows, the latest first, and the cursor of the next page. Without all it
// leaves out windows that have ended or were canceled.
func (d *Maintenance) List(ctx context.Context, all bool, p Paging) (list []wire.Maintenance, next string, err error) {
	var before int64
	if _, err := p.after(&before); err != nil {
		return nil, "", err
	}
	// One row more than the page shows whether a next page exists; cut removes it.
	rows, err := d.pool.Query(ctx, readWindows(`(@before = 0 OR x.id < @before) AND (@all OR `+openWindow+`)`),
		namedArgs{"before": before, "all": all, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "maintenance windows")
	}
	list, err = pgx.CollectRows(rows, pgx.RowTo[wire.Maintenance])
	if err != nil {
		return nil, "", mapError(err, "maintenance windows")
	}
	list, next = cut(p, list, func(x wire.Maintenance) []any { return []any{x.ID} })
	return list, next, nil
}

// Get returns one window. An unknown window is not_found.
func (d *Maintenance) Get(ctx context.Context, id int64) (wire.Maintenance, error) {
	rows, err := d.pool.Query(ctx, readWindows("x.id = @id"), namedArgs{"id": id, "limit": 1})
	if err != nil {
		return wire.Maintenance{}, mapError(err, windowName(id))
	}
	x, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[wire.Maintenance])
	return x, mapError(err, windowName(id))
}

// machineWindow is the next or present window of machine m, as wire.MachineMaintenance; NULL: none.
const machineWindow = `(
	SELECT jsonb_build_object('id', x.id, 'state', w.state, 'closes_at', w.closes_at, 'from', x.starts_at,
		'until', w.ends_at, 'reason', x.reason, 'note', nullif(w.note, ''))
	FROM maintenance_machines w
	JOIN maintenance x ON x.id = w.maintenance
	WHERE w.machine_id = m.id AND w.state IN ('planned', 'active')
	ORDER BY w.closes_at
	LIMIT 1)`
