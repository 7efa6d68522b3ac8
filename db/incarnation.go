package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth/wire"
)

// idLeap is the number by which ids and terms jump in a new incarnation: more than any lost
// tail could have used.
const idLeap = 10_000_000

// Incarnate detects that the database now runs on another server: a backup was restored into a
// new one, or a standby was promoted, which may have lost the newest rows. Ids of allocations
// and the leader's terms then skip ahead (leap), so that no number from the lost rows is used
// again: a container, a report or a leader of that time matches no new row. Live at_most_one
// jobs are held, since a forgotten attempt may still run somewhere and only an operator can
// find out, and every agent has to register again. leapt reports that this has just happened.
// Every leader calls Incarnate when it takes the lead.
//
// A backup that was restored into the same server, or a copy of its files, keeps the server's
// identity. Watermarks detect these cases; see Leap.
//
// Where the database role may not read the server's identity, Incarnate detects nothing and
// logs a warning.
func (d *Leader) Incarnate(ctx context.Context) (incarnation int64, leapt bool, err error) {
	var made leaps
	err = d.tx(ctx, func(tx pgx.Tx) error {
		// The closure may run more than once; see core.tx.
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
		// No row: the server's identity is unchanged.
		if errors.Is(err, pgx.ErrNoRows) {
			return tx.QueryRow(ctx, `SELECT incarnation FROM cluster`).Scan(&incarnation)
		}
		// The first leader only records the identity, having none to compare with.
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
		d.incarnations.forget()
	}
	return incarnation, leapt && err == nil, mapError(err, "cluster")
}

// Incarnation returns the number of the database's current incarnation, which grows with each
// leap.
func (d *Leader) Incarnation(ctx context.Context) (n int64, err error) {
	return incarnationOf(ctx, d.pool)
}

// holdAtMostOne holds every live at_most_one job, in any state: it is not placed again until
// an operator releases it. The number of statements does not grow with the number of jobs.
func holdAtMostOne(ctx context.Context, tx pgx.Tx) error {
	const why = "held: the database was restored or has failed over, and an attempt that it forgot may still run; " +
		"once no machine runs a container of this job but the one shown here, release it"
	_, err := tx.Exec(ctx, `
		WITH live AS (
			SELECT id
			FROM jobs
			WHERE execution = 'at_most_one' AND NOT held AND state NOT IN ('succeeded', 'failed', 'canceled')
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
		namedArgs{"actor": "leader", "kind": wire.EventUpdated, "detail": why})
	if err != nil {
		return fmt.Errorf("hold at_most_one jobs: %w", err)
	}
	return nil
}
