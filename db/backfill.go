package db

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
)

// backfillBatch is the number of rows that one statement of the backfill changes, and so
// the number of jobs whose other writers wait for it, for some milliseconds.
const backfillBatch = 1000

// fill runs the backfill in batches of that many rows. It waits for a lock as long as a
// migration does, and then returns an error of code unavailable.
func fill(ctx context.Context, conn *pgx.Conn, batch int, patience time.Duration) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", patience.Milliseconds()))
	if err == nil {
		err = backfill(ctx, conn, batch)
	}
	if isLockTimeout(err) {
		return berth.Errorf(berth.CodeUnavailable,
			"the backfill after the migrations waited %s for a row or table that other sessions use: %s",
			patience, longTransactions(ctx, conn))
	}
	return err
}

// backfill fills the columns that migrations added in rows from before. A migration cannot
// do so itself: it would hold the lock of the table, or of all these rows, until its end.
// Each batch is a transaction of its own. The constraint that compares the old column with
// the new one is validated at the end, which is also the record that nothing is left to do.
// A call that was interrupted, or that runs beside another one, is repeatable.
func backfill(ctx context.Context, conn *pgx.Conn, batch int) error {
	var left bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM pg_constraint
			WHERE conrelid = to_regclass('jobs') AND conname = 'jobs_execution' AND NOT convalidated)`).Scan(&left)
	if err != nil || !left {
		return err
	}
	// Locked rows are skipped at first, since a batch does not follow the lock order of jobs.
	// Each of them is then locked alone, which needs no order.
	for _, pass := range []struct {
		lock  string
		batch int
	}{{"FOR NO KEY UPDATE SKIP LOCKED", batch}, {"FOR NO KEY UPDATE", 1}} {
		after := "00000000-0000-0000-0000-000000000000"
		for {
			var last *string
			err := conn.QueryRow(ctx, `
				WITH late AS (
					SELECT id
					FROM jobs
					WHERE id > $1::uuid AND mode = 'exclusive' AND execution <> 'at_most_one'
					ORDER BY id
					LIMIT $2
					`+pass.lock+`
				), filled AS (
					UPDATE jobs j SET execution = 'at_most_one' FROM late WHERE j.id = late.id RETURNING j.id
				)
				SELECT max(id::text) FROM filled`, after, pass.batch).Scan(&last)
			if err != nil {
				return fmt.Errorf("fill jobs.execution: %w", err)
			}
			if last == nil {
				break
			}
			after = *last
		}
	}
	if _, err := conn.Exec(ctx, `ALTER TABLE jobs VALIDATE CONSTRAINT jobs_execution`); err != nil {
		return fmt.Errorf("validate jobs_execution: %w", err)
	}
	return nil
}

// sqlLockTimeout is the SQLSTATE of an expired lock_timeout.
const sqlLockTimeout = "55P03"

// sqlDeadlock is the SQLSTATE of the victim of a deadlock.
const sqlDeadlock = "40P01"

// isLockTimeout reports whether a statement gave up waiting for a lock.
func isLockTimeout(err error) bool {
	x, ok := errors.AsType[*pgconn.PgError](err)
	return ok && x.Code == sqlLockTimeout
}

// longTransactions describes the five longest open transactions, for the error message. It
// leaves out sessions that wait for their turn to migrate.
func longTransactions(ctx context.Context, conn *pgx.Conn) string {
	rows, err := conn.Query(ctx, `
		SELECT format('pid %s (%s of %s, for %s s)', pid,
			coalesce(nullif(application_name, ''), 'no application_name'), usename,
				extract(epoch FROM clock_timestamp() - xact_start)::int)
		FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
			AND wait_event IS DISTINCT FROM 'advisory' -- who waits for its turn to migrate
		ORDER BY xact_start
		LIMIT 5`)
	if err != nil {
		return "who has it is not known: " + err.Error()
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return "who has it is not known: " + err.Error()
	case len(list) == 0:
		return "they are done now"
	}
	return "the longest transactions are of " + strings.Join(list, ", ")
}
