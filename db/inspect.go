package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Inspection is the state of a database as far as it decides whether berthd can work on it.
type Inspection struct {
	Server  int    // version as PostgreSQL writes it: 150004 is 15.4
	Standby bool   // in recovery: nothing can be written
	Role    string // of the connection

	Version  int   // of the schema; 0: there is none yet
	Wanted   int   // of this program
	Conflict error // why this program refuses the schema; nil: it does not

	MayCreate bool     // the role may create tables in the schema public
	Foreign   []string // tables that the role does not own, which keeps it from migrating them

	Conns    int // connections that the role may open at most, by the server's limit and its own
	Reserved int // connections that berthd opens beyond its pool

	// SealedKeys are the ids of the keys under which secrets and requests for machines are sealed. They
	// are read only if the schema is the one of this program.
	SealedKeys []string

	// StoreID is the id of the cluster's object store, or "" if none is recorded. It is read as SealedKeys are.
	StoreID string

	Clock time.Time // of the server, when it answered
}

// Inspect reads the state of the database at url. It changes nothing, also where the schema is missing
// or older than this program. An error means that the database does not answer or refuses the role.
func Inspect(ctx context.Context, url string) (Inspection, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return Inspection{}, mapError(err, "inspect")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	i := Inspection{Reserved: vitalConns}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := i.server(ctx, tx); err != nil {
			return err
		}
		if err := i.schema(ctx, tx); err != nil {
			return err
		}
		return i.sealedKeys(ctx, tx)
	})
	if err != nil {
		return i, mapError(err, "inspect")
	}
	// Last, so that the answer is as new as possible when the caller compares it with its own clock.
	err = conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&i.Clock)
	return i, mapError(err, "inspect")
}

// server reads the server's version and limits, and the rights of the role. The lower one of the
// server's limit of connections and the role's own applies.
func (i *Inspection) server(ctx context.Context, tx pgx.Tx) error {
	return tx.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int,
		       pg_is_in_recovery(),
		       current_user::text,
		       has_schema_privilege('public', 'CREATE'),
		       least(
		         current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
		         CASE WHEN r.rolconnlimit < 0 THEN NULL ELSE r.rolconnlimit END),
		       coalesce((
		         SELECT array_agg(c.relname::text ORDER BY c.relname)
		         FROM pg_class c
		         JOIN pg_namespace n ON n.oid = c.relnamespace
		         WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'v') AND NOT pg_has_role(c.relowner, 'USAGE')
		       ), '{}')
		FROM pg_roles r
		WHERE r.rolname = current_user`).
		Scan(&i.Server, &i.Standby, &i.Role, &i.MayCreate, &i.Conns, &i.Foreign)
}

// schema compares the schema with the migrations of this program. A schema that is newer, or that was
// migrated with other content, is a conflict and no error of the call. A database without the table of
// versions has version 0.
func (i *Inspection) schema(ctx context.Context, tx pgx.Tx) error {
	below, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	names, err := fs.Glob(below, "*.sql") // in the order of their numbers
	if err != nil {
		return err
	}
	i.Wanted = len(names)
	sums, err := checksums(below, names)
	if err != nil {
		return err
	}
	var exists, readable bool
	err = tx.QueryRow(ctx, `
		SELECT oid IS NOT NULL, CASE WHEN oid IS NULL THEN false ELSE has_table_privilege(oid, 'SELECT') END
		FROM (SELECT to_regclass('public.schema_version')::oid AS oid) s`).Scan(&exists, &readable)
	if err != nil || !exists {
		return err
	}
	if !readable {
		i.Conflict = berth.Errorf(berth.CodeConflict, "role %s may not read the tables of the schema", i.Role)
		return nil
	}
	err = tx.QueryRow(ctx, `SELECT version FROM public.schema_version`).Scan(&i.Version)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("schema version: %w", err)
	}
	err = compareApplied(ctx, tx, i.Version, names, sums)
	if berth.CodeOf(err) == berth.CodeConflict {
		i.Conflict, err = err, nil
	}
	return err
}

// sealedKeys reads the keys under which values are sealed, and the id of the object store. Older schemas may lack the
// columns. These are ids of keys, never keys or values.
func (i *Inspection) sealedKeys(ctx context.Context, tx pgx.Tx) error {
	if i.Version != i.Wanted || i.Conflict != nil {
		return nil
	}
	rows, err := tx.Query(ctx, `
		SELECT key_id FROM secrets
		UNION
		SELECT request_key FROM launches WHERE request IS NOT NULL
		ORDER BY 1`)
	if err != nil {
		return err
	}
	if i.SealedKeys, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return err
	}
	return tx.QueryRow(ctx, `SELECT coalesce(store_id, '') FROM cluster`).Scan(&i.StoreID)
}
