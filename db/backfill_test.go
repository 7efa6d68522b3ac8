package db_test

import (
	"maps"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// beforeNewNames is the last migration of the version that knows only the retired names.
const beforeNewNames = "0036_index_unstarted.sql"

// oldDatabase returns a pool on a database that the version before has migrated.
func oldDatabase(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	url := dbtest.EmptyURL(t)
	files := migrationFiles(t)
	maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool { return name > beforeNewNames })
	if err := db.MigrateWith(t.Context(), url, files, time.Minute); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, url
}

// oldJobs inserts 30 jobs as the version before does, every third at_most_one. Ten of them
// have ended, and so cannot change otherwise.
func oldJobs(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	mustExec(t, pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor, mode)
		SELECT gen_random_uuid(), 'default', 'j' || i, 'c', 500, true, 30000, 90000, 'user:a',
			CASE WHEN i % 3 = 0 THEN 'exclusive' ELSE 'fenced' END
		FROM generate_series(0, 29) i`)
	mustExec(t, pool, `UPDATE jobs SET state = 'failed', version = 2 WHERE name IN (SELECT 'j' || i FROM generate_series(0, 9) i)`)
}

// filled returns the number of jobs whose execution agrees with the former name, and
// whether the constraint holds for all of them.
func filled(t *testing.T, pool *pgxpool.Pool) (n int, validated bool) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM jobs WHERE (execution = 'at_most_one') = (mode = 'exclusive')),
			(SELECT convalidated FROM pg_constraint WHERE conname = 'jobs_execution')`).Scan(&n, &validated); err != nil {
		t.Fatal(err)
	}
	return n, validated
}

func TestMigrateFillsTheNewColumnOfOldRows(t *testing.T) {
	t.Parallel()
	pool, url := oldDatabase(t)
	oldJobs(t, pool)
	for range 2 { // the second call has nothing to do
		if err := db.Migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		if n, validated := filled(t, pool); n != 30 || !validated {
			t.Errorf("%d of 30 rows agree, validated %v", n, validated)
		}
	}
}

// While a row is locked, the backfill fills the others and gives up on it for now, and the
// version before can still write the row.
func TestABackfillGivesUpOnARowThatSomebodyHas(t *testing.T) {
	t.Parallel()
	pool, url := oldDatabase(t)
	oldJobs(t, pool)
	mustExec(t, pool, string(migrationFiles(t)["0037_add_new_names.sql"].Data))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM jobs WHERE name = 'j12' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	const batch = 3 // of ten rows
	if err := db.Backfill(t.Context(), url, batch, 50*time.Millisecond); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Fatalf("beside a lock: %v", err)
	}
	if n, validated := filled(t, pool); n != 29 || validated {
		t.Errorf("%d of 30 rows agree, validated %v, want all but the locked one", n, validated)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE jobs SET priority = 7 WHERE name = 'j12'`); err != nil {
		t.Fatalf("the version before: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Backfill(t.Context(), url, batch, time.Minute); err != nil {
		t.Fatal(err)
	}
	if n, validated := filled(t, pool); n != 30 || !validated {
		t.Errorf("%d of 30 rows agree, validated %v", n, validated)
	}
}
