package db

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Members returns the rows of the allocations, for the activities that wait for
// them. An allocation that has no row, or whose job is archived, is left out.
// s is how long machines may be silent; see MemberView.Overdue.
func (d *Attempts) Members(ctx context.Context, s Silence, allocs []berth.AllocationID) ([]wire.MemberView, error) {
	args := s.args()
	args["allocs"] = ids(allocs)
	rows, err := d.pool.Query(ctx, `
		SELECT a.id, a.state, a.sealed_at IS NOT NULL, CASE WHEN a.sealed_at IS NOT NULL THEN a.exit END,
		       j.attempt = a.attempt AND j.state IN ('scheduled', 'running', 'preempting', 'canceling'),
		       a.phase, coalesce((a.progress ->> 'step')::bigint, 0), coalesce((a.progress ->> 'total')::bigint, 0),
		         a.machine_id, a.log_bytes,
		       coalesce(`+silentFor+` > `+patience+` AND NOT (`+unproven+`), false)
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		LEFT JOIN machines m ON m.id = a.machine_id
		LEFT JOIN machine_leases l ON l.machine_id = a.machine_id
		WHERE a.id = ANY(@allocs)`, args)
	if err != nil {
		return nil, mapError(err, "members")
	}
	overdue := false
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v wire.MemberView, err error) {
		p := &v.Progress
		err = row.Scan(&v.Alloc, &v.State, &v.Sealed, &v.Exit, &v.Current, &p.Phase, &p.Step, &p.Total, &p.Machine,
			&p.LogOffset, &v.Overdue)
		overdue = overdue || v.Overdue
		return v, err
	})
	if err != nil || !overdue {
		return list, mapError(err, "members")
	}
	fleet, err := countFleet(ctx, d.core, s)
	if err != nil {
		return nil, err
	}
	if fleet.Frozen() {
		for i := range list {
			list[i].Overdue = false
		}
	}
	return list, nil
}

// ended is the condition of allocations a whose end is sealed while their attempt
// is not settled: Settle releases them. Few rows meet it at any time, and the index
// allocations_sealed holds exactly those.
const ended = `a.state = 'exited' AND a.sealed_at IS NOT NULL`

// EndedMembers returns the allocations whose end is sealed and whose attempt is
// not settled.
func (d *Attempts) EndedMembers(ctx context.Context) ([]berth.AllocationID, error) {
	rows, err := d.pool.Query(ctx, `SELECT a.id FROM allocations a WHERE `+ended)
	if err != nil {
		return nil, mapError(err, "ended members")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.AllocationID])
	return list, mapError(err, "ended members")
}

// wanting is the condition of an ended allocation a of job j for which the
// workflow has something to do: no member of the attempt lives, so it is to be
// settled, or this one ended badly and another has not been told to stop. A
// member that did its work while others run needs nothing.
const wanting = ended + ` AND j.id = a.job AND j.attempt = a.attempt
	AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
	AND NOT EXISTS (
		SELECT 1
		FROM allocations o
		WHERE o.job = a.job AND o.attempt = a.attempt
		  AND (o.state IN ('reserved', 'active') OR o.state = 'exited' AND o.sealed_at IS NULL)
		  AND (o.orders ? 'stop' OR ` + endedWell + `))`

// endedWell is failure.Exit.Done of allocation a.
const endedWell = `
	coalesce(a.exit ? 'started_at' AND a.exit ->> 'code' = '0' AND (a.exit ->> 'cause' = 'exited' OR a.exit -> 'complete' = 'true'), false)`

// Unheard returns the jobs of those allocations whose end still wants something
// of their workflow: no report has reached it, or it is late.
func (d *Attempts) Unheard(ctx context.Context, allocs []berth.AllocationID) ([]berth.JobID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT j.id::text
		FROM allocations a, jobs j
		WHERE a.id = ANY(@allocs) AND `+wanting, pgx.NamedArgs{"allocs": ids(allocs)})
	if err != nil {
		return nil, mapError(err, "ended members")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	return list, mapError(err, "ended members")
}

// UnheardFor returns the jobs with an end that was sealed at least age ago and
// wants something of their workflow still, the oldest first.
func (d *Attempts) UnheardFor(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "ended members", `
		SELECT j.id, j.attempt, j.state, clock_timestamp() - min(a.sealed_at)
		FROM allocations a, jobs j
		WHERE `+wanting+` AND a.sealed_at < clock_timestamp() - @age::interval
		GROUP BY j.id
		ORDER BY min(a.sealed_at), j.id
		LIMIT @limit`, pgx.NamedArgs{"age": age, "limit": limit})
}

// EndHints are hints at sealed ends, by allocation.
type EndHints struct{ sub *Subscription }

// EndHints subscribes to hints at sealed ends of one origin. Close it.
func (h *Hub) EndHints(from Origin) EndHints {
	return EndHints{h.SubscribeFrom(TopicEnd, "*", from)}
}

// News has a value when there are hints to take.
func (e EndHints) News() <-chan struct{} { return e.sub.C }

// Take returns the allocations hinted at since the last call. missed reports that
// hints may have been lost meanwhile, so that the rows are to be read.
func (e EndHints) Take() (allocs []berth.AllocationID, missed bool) {
	for _, key := range e.sub.Keys() {
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil { // "" after a break of the connection
			missed = true
			continue
		}
		allocs = append(allocs, berth.AllocationID(n))
	}
	return allocs, missed
}

// Close ends the subscription.
func (e EndHints) Close() { e.sub.Close() }
