package db

import (
	"context"
	"strings"
)

// MaxCount is the highest number that Count returns.
const MaxCount = MaxPage + 1

// Count returns the number of jobs that f selects, on all pages, or MaxCount if there are at
// least as many. It reads no more rows than Jobs.List does for a page of MaxPage.
func (f JobFilter) Count(ctx context.Context, d *Jobs) (n int, err error) {
	f.Limit, f.Cursor = MaxPage, ""
	// Each walk is a subquery of at most @limit rows; together they find the jobs of f.
	walks, args := f.walks(nil)
	// An array and its retries count each index once, as the list shows them.
	if f.Merged && f.Parent != nil {
		runs, err := readArrayRuns(ctx, d.pool, *f.Parent)
		if err != nil {
			return 0, mapError(err, "jobs")
		}
		if len(runs) > 1 {
			var sql string
			sql, args = f.merged(runs, nil)
			walks = []string{sql}
		}
	}
	err = d.pool.QueryRow(ctx, `
		SELECT count(*)
		FROM (
			SELECT 1
			FROM (`+strings.Join(walks, `
			UNION ALL`)+`
			) found
			LIMIT @limit
		) page`, args).Scan(&n)
	return n, mapError(err, "jobs")
}
