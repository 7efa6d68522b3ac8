package db

import (
	"context"
	"time"

	"berth"
)

// LogStart is where to read a log from.
type LogStart struct {
	Offset int64 // in the encoded log; a chunk begins there
	Skip   int   // lines from there that are not wanted
}

// Start returns where to begin to read the last tail lines (0: all) of a
// member's log that were written at or after since. Lines before since may still
// follow from there.
func (d *Logs) Start(ctx context.Context, log berth.LogRef, tail int, since time.Time) (LogStart, error) {
	args := namedArgs{"job": log.Job, "attempt": log.Attempt, "rank": log.Rank, "tail": tail, "since": since}
	var start LogStart
	if tail > 0 {
		// Chunk by chunk from the end, and no further than the tail reaches: logs have
		// up to millions of chunks.
		err := d.pool.QueryRow(ctx, `
			WITH RECURSIVE back (off, n) AS (
				SELECT 9223372036854775807, 0::bigint
				UNION ALL
				SELECT c.off, b.n + c.lines
				FROM back b
				CROSS JOIN LATERAL (
					SELECT off, lines
					FROM log_chunks
					WHERE job = @job AND attempt = @attempt AND rank = @rank AND off < b.off
					ORDER BY off DESC
					LIMIT 1
				) c
				WHERE b.n < @tail
			)
			SELECT coalesce(min(off) FILTER (WHERE n > 0), 0), greatest(0, max(n) - @tail)
			FROM back`, args).Scan(&start.Offset, &start.Skip)
		if err != nil {
			return start, mapError(err, "log of job "+string(log.Job))
		}
	}
	if since.IsZero() {
		return start, nil
	}
	var offset int64
	err := d.pool.QueryRow(ctx, `
		SELECT coalesce(min(off) FILTER (WHERE last_at >= @since), max(off), 0)
		FROM log_chunks
		WHERE job = @job AND attempt = @attempt AND rank = @rank`, args).Scan(&offset)
	if offset > start.Offset {
		start = LogStart{Offset: offset}
	}
	return start, mapError(err, "log of job "+string(log.Job))
}
