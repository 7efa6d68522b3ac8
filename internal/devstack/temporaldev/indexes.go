package temporaldev

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
)

// asked are the columns of the visibility store by which Berth, Temporal itself
// or its UI look for workflows, beside their times.
var asked = []string{
	"workflow_id", "workflow_type_name", "status", "parent_workflow_id", "temporalnamespacedivision",
	"temporalscheduledbyid",
}

// fitIndexes removes the indexes of all other columns, and makes those again
// that an earlier start has removed and are asked for by now. The schema has one
// for each attribute that anybody might define, over seventy, and every change of
// a workflow writes to all of them: that cost more than all else that a workflow
// writes. What is removed is noted, and made again before the schema changes.
func fitIndexes(ctx context.Context, c client.Client, st store) error {
	n, err := c.WorkflowService().DescribeNamespace(ctx,
		&workflowservice.DescribeNamespaceRequest{Namespace: Namespace})
	if err != nil {
		return fmt.Errorf("columns of the search attributes: %w", err)
	}
	keep := slices.Clone(asked)
	for column := range maps.Keys(n.GetConfig().GetCustomSearchAttributeAliases()) {
		keep = append(keep, strings.ToLower(column))
	}
	conn, err := connectVisibility(ctx, st)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Behind a statement that waits for the whole table, all others of it wait.
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '10s'`); err != nil {
			return err
		}
		const table = `CREATE TABLE IF NOT EXISTS berth_dropped_indexes (name text PRIMARY KEY, definition text NOT NULL)`
		if _, err := tx.Exec(ctx, table); err != nil {
			return err
		}
		if err := remakeIndexes(ctx, tx, keep); err != nil {
			return err
		}
		// Each index begins with the namespace; what follows in the one for lists is
		// an expression, which is no column.
		rows, err := tx.Query(ctx, `
			INSERT INTO berth_dropped_indexes (name, definition)
			SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
			FROM pg_index i
			JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[1]
			WHERE i.indrelid = 'executions_visibility'::regclass AND NOT i.indisunique AND a.attname <> ALL ($1)
			ON CONFLICT (name) DO UPDATE SET definition = excluded.definition
			RETURNING name`, keep)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(names) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, "DROP INDEX "+strings.Join(names, ", "))
		return err
	})
}

// remakeIndexes makes again what was removed of indexes of the columns; of all
// columns where they are nil.
func remakeIndexes(ctx context.Context, tx pgx.Tx, columns []string) error {
	// One that is there by now was made by hand, and is only forgotten here.
	rows, err := tx.Query(ctx, `
		DELETE FROM berth_dropped_indexes
		WHERE $1::text[] IS NULL OR substring(definition FROM '\(namespace_id, (\w+)') = ANY ($1)
		RETURNING CASE WHEN to_regclass(name) IS NULL THEN definition ELSE '' END`, columns)
	if err != nil {
		return err
	}
	definitions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, d := range definitions {
		if _, err := tx.Exec(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// restoreIndexes makes again what fitIndexes removed: a newer schema may begin
// by changing it.
func restoreIndexes(ctx context.Context, st store) error {
	conn, err := connectVisibility(ctx, st)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var dropped bool
	if err := conn.QueryRow(ctx,
		`SELECT to_regclass('berth_dropped_indexes') IS NOT NULL`).Scan(&dropped); err != nil || !dropped {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return remakeIndexes(ctx, tx, nil) })
}

func connectVisibility(ctx context.Context, st store) (*pgx.Conn, error) {
	cfg := st.admin.Copy()
	cfg.Database = visibilityDatabase
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", visibilityDatabase, err)
	}
	return conn, nil
}
