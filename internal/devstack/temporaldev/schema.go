package temporaldev

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.temporal.io/server/common/log"
	v12 "go.temporal.io/server/schema/postgresql/v12"
	"go.temporal.io/server/tools/common/schema"
	"go.temporal.io/server/tools/sql"
)

// unfinished marks a database during the creation of its first schema. The statements of a
// schema are not one transaction, so a killed set-up cannot be continued; the mark shows
// the next set-up that the database holds nothing but the unfinished schema and may be
// dropped.
const unfinished = "berth: first schema set-up is not finished"

// duplicateDatabase is duplicate_database of PostgreSQL's appendix A.
const duplicateDatabase = "42P04"

// setUpSchemas makes both databases and brings their schemas up to the version
// that this server wants. It is idempotent and upgrades older ones.
func setUpSchemas(ctx context.Context, s store, log log.Logger) error {
	workflows, visibility := s.databases()
	for database, schemaName := range map[string]string{
		workflows:  "postgresql/v12/temporal",
		visibility: "postgresql/v12/visibility",
	} {
		if err := setUpSchema(ctx, s, database, schemaName, log); err != nil {
			return fmt.Errorf("set up database %s: %w", database, err)
		}
	}
	return nil
}

// setUpSchema creates one database if necessary and updates its schema. The mark unfinished is set on
// an empty database before the first table exists, and removed after the last update. So a marked database
// holds nothing but an unfinished schema, and may be emptied; one without the mark is never emptied.
func setUpSchema(ctx context.Context, s store, database, schemaName string, log log.Logger) error {
	if err := createDatabase(ctx, s, database); err != nil {
		return err
	}
	own, err := s.connect(ctx, database)
	if err != nil {
		return err
	}
	defer own.Close(context.WithoutCancel(ctx))
	fresh, err := emptied(ctx, own)
	if err != nil {
		return err
	}
	conn, err := sql.NewConnection(s.sqlConfig(database, 1), log)
	if err != nil {
		return err
	}
	defer conn.Close()
	quoted := pgx.Identifier{database}.Sanitize()
	if fresh {
		if _, err := own.Exec(ctx, "COMMENT ON DATABASE "+quoted+" IS '"+unfinished+"'"); err != nil {
			return err
		}
		if err := schema.NewSetupSchemaTask(conn, &schema.SetupConfig{InitialVersion: "0.0"}, log).Run(); err != nil {
			return fmt.Errorf("make version tables: %w", err)
		}
	}
	has, err := conn.ReadSchemaVersion()
	if err != nil {
		return fmt.Errorf("read the version of the schema, which a database has under its own name alone: %w", err)
	}
	// A newer schema may change indexes that fitIndexes has removed, and would fail without them.
	if _, visibility := s.databases(); database == visibility && !fresh && has != v12.VisibilityVersion {
		if err := restoreIndexes(ctx, s); err != nil {
			return fmt.Errorf("restore the indexes of unused attributes: %w", err)
		}
	}
	if err := schema.NewUpdateSchemaTask(conn, &schema.UpdateConfig{DBName: database, SchemaName: schemaName},
		log).Run(); err != nil {
		return fmt.Errorf("update schema: %w", err)
	}
	_, err = own.Exec(ctx, "COMMENT ON DATABASE "+quoted+" IS NULL")
	return err
}

// connect opens a session in one of the databases.
func (s store) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg := s.admin.Copy()
	cfg.Database = database
	cfg.RuntimeParams["application_name"] = sessions
	for name, value := range liveness {
		cfg.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", database, err)
	}
	return conn, nil
}

// createDatabase creates the database unless it exists. The role needs no right to create databases if the
// operator has created both.
func createDatabase(ctx context.Context, s store, database string) error {
	admin, err := pgx.ConnectConfig(ctx, s.admin)
	if err != nil {
		return fmt.Errorf("connect for schema set-up: %w", err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	exists := false
	err = admin.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, database).Scan(&exists)
	if err != nil || exists {
		return err
	}
	// Another start may create the database at the same time: then both use it.
	_, err = admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{database}.Sanitize())
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == duplicateDatabase {
		return nil
	}
	return err
}

// emptied reports whether the database of a session has no schema yet, after it has removed an unfinished one. A
// database with tables of others is refused.
func emptied(ctx context.Context, own *pgx.Conn) (bool, error) {
	var comment string
	var known, used bool
	err := own.QueryRow(ctx, `
		SELECT coalesce(shobj_description(oid, 'pg_database'), ''), to_regclass('public.schema_version') IS NOT NULL,
		       EXISTS (SELECT 1
		               FROM pg_class c
		               WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
		                 AND NOT EXISTS (
		                   SELECT 1
		                   FROM pg_depend d
		                   WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'))
		FROM pg_database
		WHERE datname = current_database()`).Scan(&comment, &known, &used)
	switch {
	case err != nil:
		return false, err
	case comment == unfinished && used:
		if _, err := own.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
			return false, fmt.Errorf("empty the half-made database: %w", err)
		}
		return true, nil
	case used && !known:
		return false, errors.New("it has tables, and none of Temporal: name a cluster in which the database is " +
			"Temporal's or empty")
	}
	return !known, nil
}
