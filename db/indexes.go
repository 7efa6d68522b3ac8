package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// lateIndexes are indexes of tables that may be large. A migration would keep writers from
// the table until the index is complete; these are built concurrently, after the migrations.
// A table may be partitioned.
var lateIndexes = []struct{ name, table, columns string }{
	{"jobs_by_tail", "jobs", tailOf("id")},
	{"archived_jobs_by_tail", "archived_jobs", tailOf("id")},
}

// indexPatience is how long the build of an index waits for transactions that began before
// it, such as a dump. No other session waits meanwhile.
const indexPatience = 5 * time.Minute

// indexLock is the key of the advisory lock under which one process at a time builds.
const indexLock = 0x62657274685f6978 // berth_ix

// buildIndexes builds the missing indexes of lateIndexes, and builds an index again whose
// build was interrupted. Any number of processes may call it at once. If transactions from
// before hold up a build for indexPatience, it returns an error of code unavailable, and the
// next call continues.
func buildIndexes(ctx context.Context, conn *pgx.Conn) error {
	missing, err := missingIndexes(ctx, conn)
	if err != nil || len(missing) == 0 {
		return err
	}
	if err := lockIndexes(ctx, conn); err != nil {
		return err
	}
	defer func() { // a broken connection has lost the lock already
		_, _ = conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, int64(indexLock))
	}()
	// Under the lock, since another process may have built them meanwhile.
	if missing, err = missingIndexes(ctx, conn); err != nil {
		return err
	}
	for _, index := range lateIndexes {
		if !missing[index.name] {
			continue
		}
		err := buildIndex(ctx, conn, index.name, index.table, index.columns)
		if isLockTimeout(err) {
			return berth.Errorf(berth.CodeUnavailable, "the build of index %s waited too long for older "+
				"transactions: %s", index.name, longTransactions(ctx, conn))
		}
		if err != nil {
			return fmt.Errorf("build index %s: %w", index.name, err)
		}
	}
	return nil
}

// buildIndex builds one index. PostgreSQL builds none concurrently on a partitioned table:
// the indexes of the partitions are built first, and the statement for the whole table then
// finds them and takes them over, without a scan.
func buildIndex(ctx context.Context, conn *pgx.Conn, name, table, columns string) error {
	rows, err := conn.Query(ctx, `SELECT inhrelid::regclass::text FROM pg_inherits
		WHERE inhparent = to_regclass($1) ORDER BY 1`, table)
	if err != nil {
		return err
	}
	partitions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(partitions) == 0 {
		return buildConcurrently(ctx, conn, name, table, columns)
	}
	for _, p := range partitions {
		if err := buildConcurrently(ctx, conn, p+"_by_tail", p, columns); err != nil {
			return err
		}
	}
	// Brief, but writers wait behind it.
	if err := setLockTimeout(ctx, conn, lockPatience); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE INDEX `+name+` ON `+table+` (`+columns+`)`)
	return err
}

// buildConcurrently builds an index of a table without partitions, unless a valid one of
// this name exists.
func buildConcurrently(ctx context.Context, conn *pgx.Conn, name, table, columns string) error {
	var valid bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid)`, name).Scan(&valid)
	if err != nil || valid {
		return err
	}
	if err := setLockTimeout(ctx, conn, indexPatience); err != nil {
		return err
	}
	// The build was interrupted, or there was none.
	if _, err = conn.Exec(ctx, `DROP INDEX CONCURRENTLY IF EXISTS `+name); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE INDEX CONCURRENTLY `+name+` ON `+table+` (`+columns+`)`)
	return err
}

// setLockTimeout sets how long a statement of the session waits for a lock.
func setLockTimeout(ctx context.Context, conn *pgx.Conn, patience time.Duration) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", patience.Milliseconds()))
	return err
}

// missingIndexes returns the names of the indexes that do not exist, or not completely. A
// database whose migrations stopped before the tables has nothing to build on.
func missingIndexes(ctx context.Context, conn *pgx.Conn) (map[string]bool, error) {
	names := make([]string, len(lateIndexes))
	for i, index := range lateIndexes {
		names[i] = index.name
	}
	rows, err := conn.Query(ctx, `
		SELECT n
		FROM unnest($1::text[]) AS n
		WHERE to_regclass('archived_jobs') IS NOT NULL AND NOT EXISTS (
			SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(n) AND indisvalid)`, names)
	if err != nil {
		return nil, mapError(err, "indexes")
	}
	missing := map[string]bool{}
	var name string
	_, err = pgx.ForEachRow(rows, []any{&name}, func() error {
		missing[name] = true
		return nil
	})
	return missing, mapError(err, "indexes")
}

// lockIndexes takes the advisory lock of builders. It asks again and again instead of
// waiting in the server: a waiting statement is a transaction for which the build of the
// other process would wait in turn.
func lockIndexes(ctx context.Context, conn *pgx.Conn) error {
	for {
		var locked bool
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(indexLock)).Scan(&locked); err != nil {
			return mapError(err, "indexes")
		}
		if locked {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
