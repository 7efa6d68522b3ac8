package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// BackupLease is how long a backup holds back deletions after its last renewal. A killed backup
// has no effect after this time.
const BackupLease = 2 * time.Minute

// backupsLock is the advisory lock between the start of a backup and the deletion of rows. A
// deletion holds it shared until its commit, and Begin holds it exclusively. So every deletion
// either commits before the backup begins, or sees the backup and does nothing.
const backupsLock = `hashtextextended('backups', 0)`

// deletionsHeld is true while a backup runs or the cluster is quarantined: then no old row and no
// object may be deleted.
const deletionsHeld = `(
	EXISTS (SELECT 1 FROM backups WHERE ended_at IS NULL AND expires_at > clock_timestamp())
	OR ` + quarantined + `)`

// holdsDeletions reports whether deletions are held back. If it reports false, no backup begins
// before the transaction has ended. It never waits: while a backup begins, it reports true.
func holdsDeletions(ctx context.Context, tx pgx.Tx) (held bool, err error) {
	var free bool
	err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock_shared(`+backupsLock+`)`).Scan(&free)
	if err != nil || !free {
		return true, err
	}
	// A statement of its own: its snapshot shows every backup that began before the lock was granted.
	err = tx.QueryRow(ctx, `SELECT `+deletionsHeld).Scan(&held)
	return held, err
}

// pruneTx is leaderTx for a deletion of old rows. While deletions are held back it does not call f,
// and returns nil.
func (d *core) pruneTx(ctx context.Context, term Term, f func(tx pgx.Tx) error) error {
	return d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		if held, err := holdsDeletions(ctx, tx); err != nil || held {
			return err
		}
		return f(tx)
	})
}

// Begin records a new backup, whose lease holds back deletions for BackupLease. It waits for
// deletions under way. Rows that the caller reads afterwards name no object that is deleted
// before the lease ends.
func (d *Backups) Begin(ctx context.Context, actor string) (id string, err error) {
	id = berth.NewSecret()[:16]
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(`+backupsLock+`)`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO backups (id, actor, expires_at)
			VALUES (@id, @actor, clock_timestamp() + @lease::interval)`,
			namedArgs{"id": id, "actor": actor, "lease": BackupLease})
		return err
	})
	return id, mapError(err, "backup")
}

// Renew extends the lease of a backup to BackupLease from now. A lease that has ended cannot be
// renewed: objects may have been deleted since, and the backup is worthless.
func (d *Backups) Renew(ctx context.Context, id string) error {
	tag, err := d.pool.Exec(ctx, `
		UPDATE backups
		SET expires_at = clock_timestamp() + @lease::interval
		WHERE id = @id AND ended_at IS NULL AND expires_at > clock_timestamp()`,
		namedArgs{"id": id, "lease": BackupLease})
	if err == nil && tag.RowsAffected() == 0 {
		return berth.Errorf(berth.CodeConflict, "backup %s was not renewed for %s, so deletions have resumed "+
			"and objects may be missing from it: create a new backup", id, BackupLease)
	}
	return mapError(err, "backup "+id)
}

// End ends a backup and its lease. whole records that the backup is complete.
func (d *Backups) End(ctx context.Context, id string, whole bool) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE backups
		SET ended_at = clock_timestamp(), whole = @whole
		WHERE id = @id AND ended_at IS NULL`, namedArgs{"id": id, "whole": whole})
	return mapError(err, "backup "+id)
}

// Age returns the time since the start of the newest complete backup: work since then is lost if the database is.
// Without one it is the time since the creation of the cluster.
func (d *Backups) Age(ctx context.Context) (time.Duration, error) {
	var started, now time.Time
	err := d.pool.QueryRow(ctx, `
		SELECT coalesce((SELECT max(started_at) FROM backups WHERE whole), created_at), clock_timestamp()
		FROM cluster`).Scan(&started, &now)
	return now.Sub(started), mapError(err, "age of the backup")
}
