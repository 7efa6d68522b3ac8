package db

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"

	"berth"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings the schema at url up to date. Any number of processes may call it at once:
// tern takes an advisory lock, and the processes that come later find nothing to do.
//
// Each migration stores its checksum in the transaction that applies it. A database that was
// migrated with other content, or by a newer program, is refused with an error of code
// conflict and stays unchanged.
//
// A migration that cannot lock a table within lockPatience, because a dump or another long
// transaction holds it, fails with an error of code unavailable that names the longest
// transactions. Until then all other sessions that want the table wait behind it. Earlier
// migrations stay applied, and the next call continues with this one.
func Migrate(ctx context.Context, url string) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	return migrateWith(ctx, url, files, lockPatience)
}

// lockPatience is how long a migration waits for a table lock. Writers queue behind it in
// vain for as long.
const lockPatience = 3 * time.Second

// migrateWith is Migrate with other files and another patience, for tests.
func migrateWith(ctx context.Context, url string, files fs.FS, patience time.Duration) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return mapError(err, "migrate")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	m, err := migrate.NewMigrator(ctx, conn, "public.schema_version")
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	if err := m.LoadMigrations(files); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	names := make([]string, len(m.Migrations))
	for i, x := range m.Migrations {
		names[i] = x.Name
	}
	sums, err := checksums(files, names)
	if err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	version, err := m.GetCurrentVersion(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return berth.Errorf(berth.CodeConflict, "the database has a schema without a version, as an interrupted "+
			"restore "+
			"leaves it: drop the database, create it again, and repeat berthd backup restore")
	}
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if err := compareApplied(ctx, conn, int(version), names, sums); err != nil {
		return err
	}
	// The limit and the record become part of the migration's own transaction.
	for i, x := range m.Migrations {
		x.UpSQL = fmt.Sprintf("SET LOCAL lock_timeout = %d;\n", patience.Milliseconds()) + x.UpSQL +
			fmt.Sprintf(recordMigration, x.Sequence, x.Name, sums[i])
	}
	err = m.Migrate(ctx)
	if x, ok := errors.AsType[migrate.MigrationPgError](err); ok && x.Code == sqlLockTimeout {
		return berth.Errorf(berth.CodeUnavailable,
			"migration %s waited %s for a table that other sessions use, and gave up so as not to hold up who "+
				"waits behind it: %s",
			x.MigrationName, patience, longTransactions(ctx, conn))
	}
	if x, ok := errors.AsType[migrate.MigrationPgError](err); ok && x.Code == sqlDeadlock {
		return berth.Errorf(berth.CodeUnavailable, "migration %s and a running replica were in a deadlock: the "+
			"migration was rolled back, repeat it", x.MigrationName)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := fill(ctx, conn, backfillBatch, patience); err != nil {
		return err
	}
	return buildIndexes(ctx, conn)
}

// recordMigration is appended to each migration, so both take effect or neither. Names and
// sums are our own and contain no quotes.
const recordMigration = `
;CREATE TABLE IF NOT EXISTS public.applied_migrations (
  sequence   integer PRIMARY KEY,
  name       text NOT NULL,
  sha256     text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO public.applied_migrations (sequence, name, sha256) VALUES (%d, '%s', '%s');
`

// checksums returns the SHA-256 of each migration's file, in hex, in the order of names.
func checksums(files fs.FS, names []string) ([]string, error) {
	sums := make([]string, len(names))
	for i, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		sums[i] = hex.EncodeToString(sum[:])
	}
	return sums, nil
}

// compareApplied refuses a database at this schema version whose recorded migrations differ from the
// files of this program, with an error of code conflict. An empty database passes.
func compareApplied(ctx context.Context, conn querier, version int, names, sums []string) error {
	if version == 0 {
		return nil
	}
	if version > len(sums) {
		return berth.Errorf(berth.CodeConflict,
			"the database is at schema version %d and this program knows %d: run a newer one", version, len(sums))
	}
	rows, err := conn.Query(ctx, `SELECT to_regclass('public.applied_migrations') IS NOT NULL`)
	if err != nil {
		return mapError(err, "applied migrations")
	}
	recorded, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	if err != nil {
		return mapError(err, "applied migrations")
	}
	if !recorded {
		return berth.Errorf(berth.CodeConflict,
			"the database was set up by an unreleased program, which kept no checksums of its migrations: start "+
				"with an empty database")
	}
	rows, err = conn.Query(ctx, `SELECT sequence, sha256 FROM public.applied_migrations`)
	if err != nil {
		return mapError(err, "applied migrations")
	}
	applied := map[int]string{}
	var sequence int
	var sum string
	if _, err := pgx.ForEachRow(rows, []any{&sequence, &sum}, func() error {
		applied[sequence] = sum
		return nil
	}); err != nil {
		return mapError(err, "applied migrations")
	}
	for i := range version {
		if applied[i+1] != sums[i] {
			return berth.Errorf(berth.CodeConflict,
				"migration %s was applied with another content (sha256 %.12s, ours is %.12s): the database belongs "+
					"to another build; run that one, or start with an empty database",
				names[i], applied[i+1], sums[i])
		}
	}
	return nil
}
