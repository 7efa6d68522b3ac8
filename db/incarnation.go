package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
)

// idLeap is by how much ids and terms jump in a new incarnation: more than any
// tail that could have been lost.
const idLeap = 10_000_000

// Incarnate notices that the database is not the server it was: a backup was
// restored into another one, or a standby was promoted, which may have lost the
// newest rows. Then ids of allocations and the leader's terms leap, so that none
// that was given in the lost tail is ever given again: a container, a report or
// a leader of that time finds nothing that it could be taken for. Live
// at_most_one jobs are held: an attempt that was forgotten may run somewhere, and
// only people can tell. It reports whether that has just happened. Every leader
// calls it when it takes the lead.
//
// A role that may not read the server's identity notices nothing.
func (d *DB) Incarnate(ctx context.Context) (incarnation int64, leapt bool, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		leapt = false
		// The leader's lease first, as everywhere.
		if _, err := tx.Exec(ctx, `SELECT 1 FROM leases WHERE name = @name FOR NO KEY UPDATE`, pgx.NamedArgs{"name": LeaseLeader}); err != nil {
			return fmt.Errorf("lock lease: %w", err)
		}
		var known bool
		err := tx.QueryRow(ctx, `
			WITH was AS (
				SELECT one, system FROM cluster FOR NO KEY UPDATE
			), present AS (
				SELECT s.system_identifier || '/' || c.timeline_id AS system
				FROM pg_control_system() s, pg_control_checkpoint() c
			)
			UPDATE cluster c
			SET system = present.system, incarnation = c.incarnation + (was.system <> '')::int
			FROM was, present
			WHERE c.one = was.one AND was.system <> present.system
			RETURNING c.incarnation, was.system <> ''`).Scan(&incarnation, &known)
		if errors.Is(err, pgx.ErrNoRows) {
			return tx.QueryRow(ctx, `SELECT incarnation FROM cluster`).Scan(&incarnation)
		}
		if err != nil || !known {
			return err
		}
		leapt = true
		args := pgx.NamedArgs{"name": LeaseLeader, "leap": int64(idLeap)}
		if _, err := tx.Exec(ctx, `UPDATE leases SET epoch = epoch + @leap WHERE name = @name`, args); err != nil {
			return fmt.Errorf("leap terms: %w", err)
		}
		_, err = tx.Exec(ctx, `
			SELECT setval(pg_get_serial_sequence('allocations', 'id'), nextval(pg_get_serial_sequence('allocations', 'id')) + @leap)`, args)
		if err != nil {
			return err
		}
		return holdExclusive(ctx, tx)
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == sqlInsufficientPrivilege {
		d.log.Warn("the database's role may not read the server's identity: a restored backup is not noticed; grant pg_monitor", "err", err)
		return 0, false, nil
	}
	return incarnation, leapt && err == nil, mapError(err, "cluster")
}

// holdExclusive holds every live job of at_most_one work, whatever its state: it
// is not placed again before somebody has released it.
func holdExclusive(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT id, attempt
		FROM jobs
		WHERE mode = 'exclusive' AND NOT held AND state NOT IN ('succeeded', 'failed', 'canceled')
		ORDER BY id
		FOR NO KEY UPDATE`)
	if err != nil {
		return fmt.Errorf("lock at_most_one jobs: %w", err)
	}
	type live struct {
		ID      berth.JobID
		Attempt int
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[live])
	if err != nil {
		return fmt.Errorf("lock at_most_one jobs: %w", err)
	}
	for _, j := range jobs {
		_, err := tx.Exec(ctx, `
			UPDATE jobs
			SET held = true, held_at = now(), version = version + 1, actor = @actor
			WHERE id = @job`,
			pgx.NamedArgs{"job": j.ID, "actor": "leader"})
		if err != nil {
			return fmt.Errorf("hold job %s: %w", j.ID, err)
		}
		const why = "held: the database was restored or has failed over, and an attempt that it forgot may still run; " +
			"once no machine runs a container of this job but the one shown here, release it"
		if err := addEvent(ctx, tx, j.ID, berth.EventUpdated, j.Attempt, "leader", nil, why); err != nil {
			return err
		}
	}
	return nil
}
