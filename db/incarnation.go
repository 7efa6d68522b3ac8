package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth/wire"
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
// only people can tell, and every agent has to register again. It reports whether
// that has just happened. Every leader calls it when it takes the lead.
//
// A backup that was restored into the same server, or a copy of its files, keeps
// the identity; watermarks tell of those, see Leap.
//
// A role that may not read the server's identity notices nothing.
func (d *Leader) Incarnate(ctx context.Context) (incarnation int64, leapt bool, err error) {
	var made leaps
	err = d.tx(ctx, func(tx pgx.Tx) error {
		leapt = false
		if err := stopLeaders(ctx, tx); err != nil {
			return err
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
			SET system = present.system
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
		made, err = leap(ctx, tx, Outside{})
		incarnation = made.incarnation
		return err
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == sqlInsufficientPrivilege {
		d.log.Warn("the database's role may not read the server's identity: a failover to another server is not "+
			"noticed; grant pg_monitor", "err", err)
		incarnation, err = d.Incarnation(ctx)
		return incarnation, false, err
	}
	if err == nil {
		made.publish(d.hub)
	}
	return incarnation, leapt && err == nil, mapError(err, "cluster")
}

// Incarnation is the number of lives that the database has had: it grows with each
// leap.
func (d *Leader) Incarnation(ctx context.Context) (n int64, err error) {
	err = d.pool.QueryRow(ctx, `SELECT incarnation FROM cluster`).Scan(&n)
	return n, mapError(err, "cluster")
}

// holdExclusive holds every live job of at_most_one work, whatever its state: it
// is not placed again before somebody has released it. The number of statements
// does not grow with the number of jobs.
func holdExclusive(ctx context.Context, tx pgx.Tx) error {
	const why = "held: the database was restored or has failed over, and an attempt that it forgot may still run; " +
		"once no machine runs a container of this job but the one shown here, release it"
	_, err := tx.Exec(ctx, `
		WITH live AS (
			SELECT id
			FROM jobs
			WHERE mode = 'exclusive' AND NOT held AND state NOT IN ('succeeded', 'failed', 'canceled')
			ORDER BY id
			FOR NO KEY UPDATE
		), held AS (
			UPDATE jobs j
			SET held = true, held_at = now(), version = version + 1, event_seq = event_seq + 1, actor = @actor
			FROM live
			WHERE j.id = live.id
			RETURNING j.id, j.event_seq, j.attempt
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail)
		SELECT id, event_seq, clock_timestamp(), @kind, attempt, @actor, @detail
		FROM held`,
		pgx.NamedArgs{"actor": "leader", "kind": wire.EventUpdated, "detail": why})
	if err != nil {
		return fmt.Errorf("hold at_most_one jobs: %w", err)
	}
	return nil
}
