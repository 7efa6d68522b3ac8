package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// LogStart returns the byte offset in a rank's encoded log from which to read
// so that nothing is missed of the last tail lines (0: of all) written at or
// after since. It is the beginning of a stored chunk, so there may be some
// lines more.
func (d *DB) LogStart(ctx context.Context, log berth.LogRef, tail int, since time.Time) (int64, error) {
	var at any
	if !since.IsZero() {
		at = since
	}
	var offset int64
	err := d.pool.QueryRow(ctx, `
		SELECT greatest(
			coalesce((
				SELECT max(off)
				FROM (
					SELECT off, sum(lines) OVER (ORDER BY off DESC) AS lines_from
					FROM log_chunks
					WHERE job = @job AND attempt = @attempt AND rank = @rank
				) chunk
				WHERE @tail > 0 AND lines_from >= @tail), 0),
			coalesce((
				SELECT coalesce(min(off) FILTER (WHERE last_at >= @since::timestamptz), max(off))
				FROM log_chunks
				WHERE job = @job AND attempt = @attempt AND rank = @rank AND @since IS NOT NULL), 0))`,
		pgx.NamedArgs{"job": log.Job, "attempt": log.Attempt, "rank": log.Rank, "tail": tail, "since": at}).Scan(&offset)
	return offset, mapError(err, "log of job "+string(log.Job))
}
