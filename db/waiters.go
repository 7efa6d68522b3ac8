package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

const (
	// waitersKept is the age up to which a replica's set of waiters counts. A replica
	// confirms its set every 10 s; one that is frozen for a short time keeps its waiters.
	waitersKept = time.Minute

	// waitersStale is the age of the sets of dead replicas that are removed.
	waitersStale = time.Hour
)

// WaiterSet stores the set of members that one replica waits for. It implements wait.Peers.
type WaiterSet struct {
	db      *core
	replica string
}

// NewWaiterSet returns the set of a replica. The name must be unique among the replicas.
func (d *Attempts) NewWaiterSet(replica string) WaiterSet { return WaiterSet{d.core, replica} }

// Share stores the members that the replica waits for. With changed false, the members are
// the same as in the last successful call, and Share only confirms the stored set, at a
// cost that does not depend on the number of members.
func (s WaiterSet) Share(ctx context.Context, members []berth.AllocationID, changed bool) error {
	if !changed {
		tag, err := s.db.pool.Exec(ctx, `UPDATE waiter_sets SET at = clock_timestamp() WHERE replica = $1`, s.replica)
		if err != nil || tag.RowsAffected() > 0 {
			return mapError(err, "waiters of replica "+s.replica)
		}
	}
	// The set has changed, or its row was removed as stale: store the whole set.
	args := namedArgs{"replica": s.replica, "members": ids(members), "stale": waitersStale}
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO waiter_sets (replica, members, at)
		VALUES (@replica, @members, clock_timestamp())
		ON CONFLICT (replica) DO UPDATE SET members = excluded.members, at = excluded.at`, args)
	batch.Queue(`DELETE FROM waiter_sets WHERE at < clock_timestamp() - @stale::interval`, args)
	return mapError(s.db.pool.SendBatch(ctx, batch).Close(), "waiters of replica "+s.replica)
}

// Withdraw removes the set before the replica stops.
func (s WaiterSet) Withdraw(ctx context.Context) error {
	_, err := s.db.pool.Exec(ctx, `DELETE FROM waiter_sets WHERE replica = $1`, s.replica)
	return mapError(err, "waiters of replica "+s.replica)
}

// Unwaited returns the jobs with a member that its machine claimed at least age ago and
// that no replica waits for, the oldest first, at most limit. If no replica shares its set,
// there is no evidence, and no job is returned.
func (d *Attempts) Unwaited(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "members without a waiter", `
		WITH sets AS MATERIALIZED (
			SELECT members
			FROM waiter_sets
			WHERE at > clock_timestamp() - @kept::interval
		), waited AS MATERIALIZED (
			SELECT unnest(members) AS id
			FROM sets
		)
		SELECT j.id, j.attempt, j.state, clock_timestamp() - min(a.claimed_at)
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.state = 'active' AND a.claimed_at < clock_timestamp() - @age::interval
		  AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
		  AND a.id NOT IN (SELECT id FROM waited) AND EXISTS (SELECT FROM sets)
		GROUP BY j.id
		ORDER BY min(a.claimed_at), j.id
		LIMIT @limit`, namedArgs{"age": age, "limit": limit, "kept": waitersKept})
}
