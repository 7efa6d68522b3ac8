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
var lateIndexes = []lateIndex{
	{"tail", "jobs", "id", `(` + tailOf("id") + `)`},
	{"tail", "archived_jobs", "id", `(` + tailOf("id") + `)`},
	{"waiting", "jobs", "run_when", `(id) WHERE parent IS NULL AND state = 'submitted' AND blocked`},
	{"submitter", "jobs", "submitted_by", `(submitted_by, submitted_at DESC, id DESC)
		WHERE parent IS NULL AND submitted_by IS NOT NULL`},
	{"submitter", "archived_jobs", "submitted_by", `((job ->> 'submitted_by'), submitted_at DESC, id DESC)
		WHERE parent IS NULL AND job ->> 'submitted_by' IS NOT NULL`},
	{"session", "acts", "session", `(job, session)`},
}

// lateIndex is an index called TABLE_by_KEY. It is built once jobs or the table has the column;
// columns is its definition after the name of the table.
type lateIndex struct{ key, table, column, columns string }

func (x lateIndex) name() string { return x.table + "_by_" + x.key }

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
		if !missing[index.name()] {
			continue
		}
		err := index.build(ctx, conn)
		if isLockTimeout(err) {
			return berth.Errorf(berth.CodeUnavailable, "the build of index %s waited too long for older "+
				"transactions: %s", index.name(), longTransactions(ctx, conn))
		}
		if err != nil {
			return fmt.Errorf("build index %s: %w", index.name(), err)
		}
	}
	return nil
}

// build builds the index. PostgreSQL builds none concurrently on a partitioned table:
// the indexes of the partitions are built first, and the statement for the whole table then
// finds them and takes them over, without a scan.
func (x lateIndex) build(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT inhrelid::regclass::text FROM pg_inherits
		WHERE inhparent = to_regclass($1) ORDER BY 1`, x.table)
	if err != nil {
		return err
	}
	partitions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(partitions) == 0 {
		return x.buildConcurrently(ctx, conn)
	}
	for _, p := range partitions {
		if err := (lateIndex{x.key, p, x.column, x.columns}).buildConcurrently(ctx, conn); err != nil {
			return err
		}
	}
	// Brief, but writers wait behind it.
	if err := setLockTimeout(ctx, conn, lockPatience); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE INDEX `+x.name()+` ON `+x.table+` `+x.columns)
	return err
}

// buildConcurrently builds an index of a table without partitions, unless a valid one of
// this name exists.
func (x lateIndex) buildConcurrently(ctx context.Context, conn *pgx.Conn) error {
	var valid bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid)`,
		x.name()).Scan(&valid)
	if err != nil || valid {
		return err
	}
	if err := setLockTimeout(ctx, conn, indexPatience); err != nil {
		return err
	}
	// The build was interrupted, or there was none.
	if _, err = conn.Exec(ctx, `DROP INDEX CONCURRENTLY IF EXISTS `+x.name()); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE INDEX CONCURRENTLY `+x.name()+` ON `+x.table+` `+x.columns)
	return err
}

// setLockTimeout sets how long a statement of the session waits for a lock.
func setLockTimeout(ctx context.Context, conn *pgx.Conn, patience time.Duration) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", patience.Milliseconds()))
	return err
}

// missingIndexes returns the names of the indexes that do not exist, or not completely. An
// index whose column no migration has added yet is not missing.
func missingIndexes(ctx context.Context, conn *pgx.Conn) (map[string]bool, error) {
	names, tables, columns := make([]string, len(lateIndexes)), make([]string, len(lateIndexes)),
		make([]string, len(lateIndexes))
	for i, index := range lateIndexes {
		names[i], tables[i], columns[i] = index.name(), index.table, index.column
	}
	rows, err := conn.Query(ctx, `
		SELECT n
		FROM unnest($1::text[], $2::text[], $3::text[]) AS x (n, t, c)
		WHERE EXISTS (
			SELECT 1
			FROM pg_attribute
			WHERE attrelid IN (to_regclass('jobs'), to_regclass(t)) AND attname = c)
		  AND NOT EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(n) AND indisvalid)`,
		names, tables, columns)
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
