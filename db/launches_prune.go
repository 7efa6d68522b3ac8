package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
)

// Prune deletes at most limit launches that were settled longer ago than retention, and returns their
// number. The last launch of a machine name that an admin chose stays, so that no number is given twice. The
// scaler never gives a name twice, since its names contain the leader's term. Prune also deletes breakers a day after
// their end. Breakers of joins stay, since only a whole machine closes them.
func (d *Launches) Prune(ctx context.Context, term Term, retention time.Duration, limit int) (n int, err error) {
	err = d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM launches
			WHERE (machine, n) IN (
				SELECT l.machine, l.n
				FROM launches l
				WHERE l.state IN ('gone', 'failed') AND l.state_at < clock_timestamp() - @retention::interval
				  AND (l.actor = @scaler OR EXISTS (SELECT 1 FROM launches x WHERE x.machine = l.machine AND x.n > l.n))
				ORDER BY l.state_at
				LIMIT @limit)`, namedArgs{"retention": retention, "limit": limit,
			"scaler": ScalerActor})
		if n = int(tag.RowsAffected()); err != nil {
			return err
		}
		// Without another launch nothing else deletes them. A refusal of long ago is no reason to try with one launch,
		// or to wait longer after the next one; and a cloud names any number of quotas.
		_, err = tx.Exec(ctx, `
			DELETE FROM breakers
			WHERE scope <> 'join' AND until > '-infinity' AND until < clock_timestamp() - interval '1 day'`)
		return err
	})
	return n, mapError(err, "launches")
}

// LaunchCount counts the launches in one state.
type LaunchCount struct {
	N      int
	Oldest time.Duration // the longest time for which one of them has been in the state, by the database's clock
}

// Counts returns the number of launches that are not settled, by state.
func (d *Launches) Counts(ctx context.Context) (map[cloud.LaunchState]LaunchCount, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT state, count(*), greatest('0', clock_timestamp() - min(state_at))
		FROM launches
		WHERE due_at IS NOT NULL
		GROUP BY state`)
	if err != nil {
		return nil, mapError(err, "launches")
	}
	counts := map[cloud.LaunchState]LaunchCount{}
	var state cloud.LaunchState
	var c LaunchCount
	_, err = pgx.ForEachRow(rows, []any{&state, &c.N, &c.Oldest}, func() error {
		counts[state] = c
		return nil
	})
	return counts, mapError(err, "launches")
}
