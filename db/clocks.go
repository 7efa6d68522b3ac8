package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// Clock is the part of a schedule that its Temporal schedule needs: the times, without the
// work to submit.
type Clock struct {
	Schedule berth.ScheduleID
	Tenant   berth.TenantID
	Name     string
	Spec     spec.Schedule // without its job or pipeline
	Paused   bool
	Note     string
	Revision string
	Set      bool      // Temporal's schedule has this revision
	Deleted  bool      // the schedule is deleted; Temporal's schedule must be removed
	Since    time.Time // later times belong to the schedule, and the fired ones have a row
}

// selectClocks selects the columns of Clock, in its field order. A schedule's revision
// changes with each update; clock_revision is the last revision that Temporal confirmed, so
// the two differ while an update is pending.
const selectClocks = `
	SELECT s.id, s.tenant, s.name, s.spec - 'job' - 'pipeline', s.paused, s.note, s.revision,
		s.revision = s.clock_revision, s.deleted_at IS NOT NULL,
		greatest(s.active_since, s.forgotten_to)
	FROM schedules s`

// UnsetClocks returns at most limit schedules for which Temporal's schedule must be created,
// updated or removed.
func (d *Schedules) UnsetClocks(ctx context.Context, limit int) ([]Clock, error) {
	return d.clocks(ctx, selectClocks+`
		WHERE s.revision <> s.clock_revision OR s.deleted_at IS NOT NULL
		ORDER BY s.id
		LIMIT @limit`, namedArgs{"limit": limit})
}

// Clocks returns all schedules that are not deleted.
func (d *Schedules) Clocks(ctx context.Context) ([]Clock, error) {
	return d.clocks(ctx, selectClocks+` WHERE s.deleted_at IS NULL ORDER BY s.id`, nil)
}

func (d *Schedules) clocks(ctx context.Context, sql string, args namedArgs) ([]Clock, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, mapError(err, "schedules")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Clock])
	return list, mapError(err, "schedules")
}

// ClockSet records that Temporal has the given revision of a schedule. It changes nothing if
// the schedule has been updated since: the newer revision is still to be set.
func (d *Schedules) ClockSet(ctx context.Context, term Term, id berth.ScheduleID, revision string) error {
	return d.tellClocks(ctx, term, `UPDATE schedules SET clock_revision = @revision
		WHERE id = @id AND revision = @revision`,
		namedArgs{"id": id, "revision": revision})
}

// ClocksLost records that Temporal's schedules are missing, or differ from the rows. The next
// UnsetClocks returns them.
func (d *Schedules) ClocksLost(ctx context.Context, term Term, ids []berth.ScheduleID) error {
	return d.tellClocks(ctx, term, `UPDATE schedules SET clock_revision = ''
		WHERE id = ANY(@ids::uuid[])`, namedArgs{"ids": ids})
}

// Forget deletes the row of a deleted schedule, once its Temporal schedule is removed.
func (d *Schedules) Forget(ctx context.Context, term Term, id berth.ScheduleID) error {
	return d.tellClocks(ctx, term, `DELETE FROM schedules WHERE id = @id AND deleted_at IS NOT NULL`,
		namedArgs{"id": id})
}

// tellClocks runs one write of the leader, fenced by its term.
func (d *Schedules) tellClocks(ctx context.Context, term Term, sql string, args namedArgs) error {
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, args)
		return err
	})
	return mapError(err, "schedule")
}

// FireRef identifies a fire: one time of one schedule.
type FireRef struct {
	Schedule berth.ScheduleID
	At       time.Time
}

// PendingFires returns at most limit fires without a decision: due fires, and buffered fires
// of schedules without a live job.
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
		LIMIT @limit`, namedArgs{"limit": limit})
	if err != nil {
		return nil, mapError(err, "fires")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[FireRef])
	return list, mapError(err, "fires")
}

// firesKept is the number of a schedule's newest fires that PruneFires never removes.
const firesKept = 20

// PruneFires removes at most limit fires that were decided longer ago than retention and
// whose jobs have ended, except the newest firesKept of each schedule. It returns their
// number.
//
// The removed rows are the record that a time was fired once, so PruneFires also raises the
// schedule's forgotten_to, in the same statement. AddFires refuses to backfill times up to
// then.
func (d *Schedules) PruneFires(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	var n int
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
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
			namedArgs{"retention": retention, "limit": limit, "kept": firesKept - 1}).Scan(&n)
	})
	return n, mapError(err, "fires")
}

// DeleteEnded marks at most limit one-time schedules as deleted and returns their number. A
// schedule qualifies if it is not paused, its time is longer ago than retention, its fire is
// decided and its job has ended.
func (d *Schedules) DeleteEnded(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	var n int
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
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
			WHERE s.id = ended.id`, namedArgs{"retention": retention, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "schedules")
}
