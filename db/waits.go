package db

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Members returns the state of the allocations, for the activities that wait for the
// members' ends. Allocations without a row, or of archived jobs, are left out. s decides
// MemberView.Overdue.
func (d *Attempts) Members(ctx context.Context, s Silence, allocs []berth.AllocationID) ([]wire.MemberView, error) {
	args := s.args()
	args["allocs"] = ids(allocs)
	rows, err := d.pool.Query(ctx, `
		SELECT a.id, a.state, a.sealed_at IS NOT NULL, CASE WHEN a.sealed_at IS NOT NULL THEN a.exit END,
		       j.attempt = a.attempt AND j.state IN ('scheduled', 'running', 'preempting', 'canceling'),
		       a.phase, coalesce((a.progress ->> 'step')::bigint, 0), coalesce((a.progress ->> 'total')::bigint, 0),
		         a.machine_id, a.log_bytes, CASE WHEN `+preparing+` THEN s.stage END,
		       coalesce(`+silentFor+` > `+patience+` AND NOT (`+unjudged+`), false)
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		LEFT JOIN member_stages s ON s.alloc_id = a.id
		LEFT JOIN machines m ON m.id = a.machine_id
		LEFT JOIN machine_leases l ON l.machine_id = a.machine_id
		WHERE a.id = ANY(@allocs)`, args)
	if err != nil {
		return nil, mapError(err, "members")
	}
	overdue := false
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v wire.MemberView, err error) {
		p := &v.Progress
		var stage *wire.Stage
		err = row.Scan(&v.Alloc, &v.State, &v.Sealed, &v.Exit, &v.Current, &p.Phase, &p.Step, &p.Total, &p.Machine,
			&p.LogOffset, &stage, &v.Overdue)
		p.Show(stage)
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
	// No verdict may be passed now, so no silent machine is overdue.
	if fleet.Frozen() {
		for i := range list {
			list[i].Overdue = false
		}
	}
	return list, nil
}

// ended is true for an allocation a with a sealed end in an attempt that is not settled,
// since Settle releases the allocation. Few rows match at any time, and the index
// allocations_sealed contains exactly these rows.
const ended = `a.state = 'exited' AND a.sealed_at IS NOT NULL`

// EndedMembers returns the allocations with a sealed end in an attempt that is not settled.
func (d *Attempts) EndedMembers(ctx context.Context) ([]berth.AllocationID, error) {
	rows, err := d.pool.Query(ctx, `SELECT a.id FROM allocations a WHERE `+ended)
	if err != nil {
		return nil, mapError(err, "ended members")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.AllocationID])
	return list, mapError(err, "ended members")
}

// wanting is true for an ended allocation a of job j on which the workflow must act: no
// member of the attempt is live, so the attempt must be settled; or another one has no order to stop yet,
// although this member ended badly, or it was the last of the leading group to complete its work. Another
// member that succeeded while others run needs no action.
const wanting = ended + ` AND j.id = a.job AND j.attempt = a.attempt
	AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
	AND NOT EXISTS (
		SELECT 1
		FROM allocations o
		WHERE o.job = a.job AND o.attempt = a.attempt
		  AND (o.state IN ('reserved', 'active') OR o.state = 'exited' AND o.sealed_at IS NULL)
		  AND (o.orders ? 'stop' OR ` + endedWell + ` AND NOT ` + leadEnded + `))`

// leadEnded is true for an ended allocation a of the leading group of job j if no member of that group
// is live.
const leadEnded = `
	coalesce(a.rank BETWEEN j.lead_first AND j.lead_last AND NOT EXISTS (
		SELECT 1
		FROM allocations l
		WHERE l.job = a.job AND l.attempt = a.attempt AND l.rank BETWEEN j.lead_first AND j.lead_last
		  AND (l.state IN ('reserved', 'active') OR l.state = 'exited' AND l.sealed_at IS NULL)), false)`

// endedWell is failure.Exit.Done in SQL, for the exit of allocation a.
const endedWell = `
	coalesce(a.exit ? 'started_at' AND a.exit ->> 'code' = '0'
		AND (a.exit ->> 'cause' = 'exited' OR a.exit -> 'complete' = 'true'), false)`

// Unheard returns the jobs of the given allocations whose workflow must still act on the
// end: the workflow has not received a report, or has not handled it yet.
func (d *Attempts) Unheard(ctx context.Context, allocs []berth.AllocationID) ([]berth.JobID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT j.id::text
		FROM allocations a, jobs j
		WHERE a.id = ANY(@allocs) AND `+wanting, namedArgs{"allocs": ids(allocs)})
	if err != nil {
		return nil, mapError(err, "ended members")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	return list, mapError(err, "ended members")
}

// UnheardFor returns the jobs with an end that was sealed at least age ago and on which the
// workflow must still act, the oldest first, at most limit.
func (d *Attempts) UnheardFor(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "ended members", `
		SELECT j.id, j.attempt, j.state, clock_timestamp() - min(a.sealed_at)
		FROM allocations a, jobs j
		WHERE `+wanting+` AND a.sealed_at < clock_timestamp() - @age::interval
		GROUP BY j.id
		ORDER BY min(a.sealed_at), j.id
		LIMIT @limit`, namedArgs{"age": age, "limit": limit})
}

// EndHints is a subscription to hints about sealed ends, with allocations as keys.
type EndHints struct{ sub *Subscription }

// EndHints subscribes to hints about sealed ends from one origin. The caller must call
// Close.
func (h *Hub) EndHints(from Origin) EndHints {
	return EndHints{h.SubscribeFrom(TopicEnd, "*", from)}
}

// News returns a channel that has a value when hints can be taken.
func (e EndHints) News() <-chan struct{} { return e.sub.C }

// Take returns the allocations named by hints since the last call. missed reports that
// hints may have been lost, so that the caller must read the rows.
func (e EndHints) Take() (allocs []berth.AllocationID, missed bool) {
	for _, key := range e.sub.Keys() {
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil { // "" after the connection was interrupted
			missed = true
			continue
		}
		allocs = append(allocs, berth.AllocationID(n))
	}
	return allocs, missed
}

// Close ends the subscription.
func (e EndHints) Close() { e.sub.Close() }
