package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// Clock is what Temporal must know of a schedule: when, and not what.
type Clock struct {
	Schedule berth.ScheduleID
	Tenant   berth.TenantID
	Name     string
	Spec     spec.Schedule // without job and pipeline
	Paused   bool
	Note     string
	Revision string
	Set      bool      // Temporal was told of this revision
	Deleted  bool      // and is to forget it
	Since    time.Time // times after this one are its own, and on record if they were fired
}

const selectClocks = `
	SELECT s.id, s.tenant, s.name, s.spec - 'job' - 'pipeline', s.paused, s.note, s.revision,
		s.revision = s.clock_revision, s.deleted_at IS NOT NULL,
		greatest(s.active_since, s.forgotten_to)
	FROM schedules s`

// UnsetClocks returns schedules of which Temporal is to be told, or that it is
// to forget, at most limit of them.
func (d *Schedules) UnsetClocks(ctx context.Context, limit int) ([]Clock, error) {
	return d.clocks(ctx, selectClocks+`
		WHERE s.revision <> s.clock_revision OR s.deleted_at IS NOT NULL
		ORDER BY s.id
		LIMIT @limit`, pgx.NamedArgs{"limit": limit})
}

// Clocks returns all schedules that are not deleted.
func (d *Schedules) Clocks(ctx context.Context) ([]Clock, error) {
	return d.clocks(ctx, selectClocks+` WHERE s.deleted_at IS NULL ORDER BY s.id`, nil)
}

func (d *Schedules) clocks(ctx context.Context, sql string, args pgx.NamedArgs) ([]Clock, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, mapError(err, "schedules")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Clock])
	return list, mapError(err, "schedules")
}

// ClockSet tells that Temporal has a schedule's revision.
func (d *Schedules) ClockSet(ctx context.Context, term Term, id berth.ScheduleID, revision string) error {
	return d.tellClocks(ctx, term, `UPDATE schedules SET clock_revision = @revision
		WHERE id = @id AND revision = @revision`,
		pgx.NamedArgs{"id": id, "revision": revision})
}

// ClocksLost tells that Temporal has them no more, or not as they are.
func (d *Schedules) ClocksLost(ctx context.Context, term Term, ids []berth.ScheduleID) error {
	return d.tellClocks(ctx, term, `UPDATE schedules SET clock_revision = ''
		WHERE id = ANY(@ids::uuid[])`, pgx.NamedArgs{"ids": ids})
}

// Forget removes the row of a deleted schedule, of which Temporal has
// nothing any more.
func (d *Schedules) Forget(ctx context.Context, term Term, id berth.ScheduleID) error {
	return d.tellClocks(ctx, term, `DELETE FROM schedules WHERE id = @id AND deleted_at IS NOT NULL`,
		pgx.NamedArgs{"id": id})
}

func (d *Schedules) tellClocks(ctx context.Context, term Term, sql string, args pgx.NamedArgs) error {
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, args)
		return err
	})
	return mapError(err, "schedule")
}

// FireRef names a fire.
type FireRef struct {
	Schedule berth.ScheduleID
	At       time.Time
}

// PendingFires returns fires that are to be decided: those that are due, and
// those that waited for jobs which have ended.
func (d *Schedules) PendingFires(ctx context.Context, limit int) ([]FireRef, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT f.schedule, f.at
		FROM schedule_fires f
		JOIN schedules s ON s.id = f.schedule AND s.deleted_at IS NULL
		WHERE NOT f.over AND (f.status = 'due' OR f.status = 'buffered' AND NOT EXISTS (
			SELECT 1
			FROM schedule_fires o
			JOIN jobs j ON j.id = o.job AND j.state NOT IN ('succeeded', 'failed', 'canceled')
			WHERE o.schedule = f.schedule AND NOT o.over AND o.status = 'submitted'))
		ORDER BY f.schedule, f.at
		LIMIT @limit`, pgx.NamedArgs{"limit": limit})
	if err != nil {
		return nil, mapError(err, "fires")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[FireRef])
	return list, mapError(err, "fires")
}

// firesKept is how many fires of a schedule stay on record, however old.
const firesKept = 20

// PruneFires removes fires that were decided longer ago than retention and whose
// jobs have ended, at most limit of them, but for the last of each schedule. It
// returns how many. Those times can be backfilled no more.
func (d *Schedules) PruneFires(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	var n int
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			WITH old AS (
				SELECT f.schedule, f.at
				FROM schedule_fires f
				WHERE f.over AND f.decided_at < now() - @retention::interval
				  AND f.at < (SELECT n.at FROM schedule_fires n WHERE n.schedule = f.schedule
				    ORDER BY n.at DESC OFFSET @kept LIMIT 1)
				ORDER BY f.decided_at
				LIMIT @limit
			), last AS (
				SELECT schedule, max(at) AS at FROM old GROUP BY schedule
			), told AS (
				UPDATE schedules s
				SET forgotten_to = greatest(s.forgotten_to, last.at)
				FROM last
				WHERE s.id = last.schedule
			), gone AS (
				DELETE FROM schedule_fires f
				USING old
				WHERE f.schedule = old.schedule AND f.at = old.at
				RETURNING 1
			)
			SELECT count(*) FROM gone`,
			pgx.NamedArgs{"retention": retention, "limit": limit, "kept": firesKept - 1}).Scan(&n)
	})
	return n, mapError(err, "fires")
}

// DeleteEnded deletes schedules of a single time that is longer ago than
// retention, whose fire is decided and whose job has ended, at most limit of
// them. It returns how many.
func (d *Schedules) DeleteEnded(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	var n int
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			WITH ended AS (
				SELECT s.id
				FROM schedules s
				WHERE s.spec ? 'at' AND s.deleted_at IS NULL AND NOT s.paused
				  AND (s.spec ->> 'at')::timestamptz < now() - @retention::interval
				  AND EXISTS (SELECT 1 FROM schedule_fires f WHERE f.schedule = s.id)
				  AND NOT EXISTS (
					SELECT 1
					FROM schedule_fires f
					LEFT JOIN jobs j ON j.id = f.job
					WHERE f.schedule = s.id AND NOT f.over
						AND (f.job IS NULL OR j.state NOT IN ('succeeded', 'failed', 'canceled')))
				ORDER BY s.id
				LIMIT @limit
				FOR NO KEY UPDATE
			)
			UPDATE schedules s
			SET deleted_at = now(), updated_at = now()
			FROM ended
			WHERE s.id = ended.id`, pgx.NamedArgs{"retention": retention, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "schedules")
}
