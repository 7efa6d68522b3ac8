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

// asked are the columns of the visibility store by which Berth, Temporal itself or its UI search
// workflows, in addition to the times.
var asked = []string{
	"workflow_id", "workflow_type_name", "status", "parent_workflow_id", "temporalnamespacedivision",
	"temporalscheduledbyid",
}

// fitIndexes removes the indexes of all columns that no search uses, and restores the ones that
// an earlier start has removed and that are in use now. The schema has an index for each possible
// attribute, over seventy, and every change of a workflow writes to all of them, at a higher cost
// than all other writes for the workflow. Definitions of removed indexes are recorded, and the
// indexes are restored before the schema changes.
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
		// All statements on a table queue behind one that waits for the whole table.
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '10s'`); err != nil {
			return err
		}
		const table = `CREATE TABLE IF NOT EXISTS berth_dropped_indexes
		(name text PRIMARY KEY, definition text NOT NULL)`
		if _, err := tx.Exec(ctx, table); err != nil {
			return err
		}
		if err := remakeIndexes(ctx, tx, keep); err != nil {
			return err
		}
		// Each index begins with the namespace; in the index for lists an expression follows,
		// which is no column.
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

// remakeIndexes creates the removed indexes of the columns again, or all removed indexes if
// columns is nil.
func remakeIndexes(ctx context.Context, tx pgx.Tx, columns []string) error {
	// An index that exists by now was created by hand: only its record is deleted.
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

// restoreIndexes restores all indexes that fitIndexes removed, since a newer schema may begin by
// changing one of the indexes.
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
	_, visibility := st.databases()
	return st.connect(ctx, visibility)
}
