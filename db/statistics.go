package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Each connection caches one plan per statement, made with the statistics of that time. A
// plan made while a table was nearly empty may scan the whole table, and its cost grows
// with the table. PostgreSQL's autovacuum checks once a minute, in which a new cluster can
// get thousands of jobs.
const leastAnalyzed = 200 // rows; smaller tables are cheap with any plan

// RefreshStatistics analyzes the tables with more than twice the rows that the planner's
// statistics assume, and returns their names. All connections then plan their statements
// again. A table that has not doubled is skipped.
func (d *Cluster) RefreshStatistics(ctx context.Context) ([]string, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT s.relname
		FROM pg_stat_user_tables s
		JOIN pg_class c ON c.oid = s.relid
		WHERE s.schemaname = current_schema() AND s.n_live_tup >= @least AND s.n_live_tup > 2 * greatest(c.reltuples, 0)
		ORDER BY s.relname`, namedArgs{"least": leastAnalyzed})
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
