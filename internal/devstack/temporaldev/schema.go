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
	admin, err := pgx.ConnectConfig(ctx, s.admin)
	if err != nil {
		return fmt.Errorf("connect for schema set-up: %w", err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	workflows, visibility := s.databases()
	for database, schemaName := range map[string]string{
		workflows:  "postgresql/v12/temporal",
		visibility: "postgresql/v12/visibility",
	} {
		if err := setUpSchema(ctx, admin, s, database, schemaName, log); err != nil {
			return fmt.Errorf("set up database %s: %w", database, err)
		}
	}
	return nil
}

// setUpSchema creates one database if necessary and updates its schema. The mark unfinished is set
// before the first table exists and removed after the last update, so that a database without the
// mark can always be updated.
func setUpSchema(ctx context.Context, admin *pgx.Conn, s store, database, schemaName string, log log.Logger) error {
	quoted := pgx.Identifier{database}.Sanitize()
	if err := createDatabase(ctx, admin, s, database); err != nil {
		return err
	}
	conn, err := sql.NewConnection(s.sqlConfig(database, 1), log)
	if err != nil {
		return err
	}
	defer conn.Close()
	has, err := conn.ReadSchemaVersion()
	if err != nil {
		if _, err := admin.Exec(ctx, "COMMENT ON DATABASE "+quoted+" IS '"+unfinished+"'"); err != nil {
			return err
		}
		if err := schema.NewSetupSchemaTask(conn, &schema.SetupConfig{InitialVersion: "0.0"}, log).Run(); err != nil {
			return fmt.Errorf("make version tables: %w", err)
		}
	}
	// A newer schema may change indexes that fitIndexes has removed, and would fail without them.
	if _, visibility := s.databases(); database == visibility && has != "" && has != v12.VisibilityVersion {
		if err := restoreIndexes(ctx, s); err != nil {
			return fmt.Errorf("restore the indexes of unused attributes: %w", err)
		}
	}
	if err := schema.NewUpdateSchemaTask(conn, &schema.UpdateConfig{DBName: database, SchemaName: schemaName},
		log).Run(); err != nil {
		return fmt.Errorf("update schema: %w", err)
	}
	_, err = admin.Exec(ctx, "COMMENT ON DATABASE "+quoted+" IS NULL")
	return err
}

// createDatabase creates the database unless it exists, and empties a half-made one. The role needs no
// right to create databases if the operator has created both.
func createDatabase(ctx context.Context, admin *pgx.Conn, s store, database string) error {
	var comment string
	err := admin.QueryRow(ctx, `
		SELECT coalesce(shobj_description(oid, 'pg_database'), '')
		FROM pg_database
		WHERE datname = $1`, database).Scan(&comment)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		// Another start may create the database at the same time: then both use it.
		_, err = admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{database}.Sanitize())
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == duplicateDatabase {
			return nil
		}
		return err
	case err != nil || comment != unfinished:
		return err
	}
	cfg := s.admin.Copy()
	cfg.Database = database
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("empty the half-made database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
		return fmt.Errorf("empty the half-made database: %w", err)
	}
	return nil
}
