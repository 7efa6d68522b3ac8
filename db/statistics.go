package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Connections keep one plan for each statement, made with the statistics of that
// moment. A plan that was made while a table was nearly empty may read all of the
// table, and costs ever more as it grows. PostgreSQL's autovacuum looks once a
// minute, in which a cluster that begins to work gets thousands of jobs.
const leastAnalyzed = 200 // rows; plans of smaller tables cost little either way

// RefreshStatistics analyzes the tables that hold more than twice the rows that
// the planner's statistics know of, and returns their names. All connections then
// plan their statements again. A table that has not doubled costs nothing.
func (d *Cluster) RefreshStatistics(ctx context.Context) ([]string, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT s.relname
		FROM pg_stat_user_tables s
		JOIN pg_class c ON c.oid = s.relid
		WHERE s.schemaname = current_schema() AND s.n_live_tup >= @least AND s.n_live_tup > 2 * greatest(c.reltuples, 0)
		ORDER BY s.relname`, pgx.NamedArgs{"least": leastAnalyzed})
	if err != nil {
		return nil, mapError(err, "statistics")
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, mapError(err, "statistics")
	}
	for _, table := range tables {
		if _, err := d.pool.Exec(ctx, `ANALYZE `+pgx.Identifier{table}.Sanitize()); err != nil {
			return nil, mapError(fmt.Errorf("analyze %s: %w", table, err), "statistics")
		}
	}
	return tables, nil
}
