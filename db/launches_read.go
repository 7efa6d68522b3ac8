package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
	"berth/wire"
)

// launchCost is the cost of row l of launches up to now, in micro-dollars.
const launchCost = `CASE
		WHEN l.instance = '' THEN 0
		WHEN l.state IN ('gone', 'failed') THEN l.settled
		ELSE launch_cost(l.price, coalesce(l.sent_at, l.created_at), least(l.ended_first_at, clock_timestamp())) END`

// launchWaits is the reason for which cloud.Next does not send or terminate row l of launches after a restore.
const launchWaits = `CASE WHEN l.state IN ('sent', 'terminating') AND l.ended_first_at IS NULL AND EXISTS (
		SELECT 1
		FROM cluster c
		WHERE c.incarnation > 1 AND l.incarnation <> c.incarnation
		  AND (l.state = 'sent' OR l.stop_incarnation <> c.incarnation OR l.stop_actor = '` + ScalerActor + `')
		  AND NOT EXISTS (
			SELECT 1 FROM cloud_listings s WHERE s.provider = l.provider AND s.incarnation = c.incarnation))
	THEN 'waits for the first complete list of the cloud after the restore' END`

// launchView is row l of launches as a wire.Launch.
const launchView = `jsonb_strip_nulls(jsonb_build_object(
	'machine', l.machine, 'n', l.n, 'state', l.state,
	'reason', nullif(concat_ws('; ', nullif(l.reason, ''), ` + launchWaits + `,
		CASE WHEN l.joined_at IS NULL THEN 'join refused at ' || nullif(l.join_refused, '') END), ''), 'pool', l.pool,
	'provider', l.provider, 'region', l.region, 'zone', nullif(l.zone, ''), 'type', l.type, 'market', l.market,
	'price_per_hour', nullif(l.price, 0), 'tenant', nullif(l.tenant, ''),
	'reserved', nullif(l.reserved, 0) / 1000000.0, 'cost', nullif(` + launchCost + `, 0) / 1000000.0,
	'instance', nullif(l.instance, ''),
	'instance_state', nullif(l.instance_state, ''), 'seen_at', l.seen_at, 'joined_at', l.joined_at,
	'sends', nullif(l.sends, 0), 'sent_at', l.sent_at, 'stop_at', l.stop_at, 'stop_deadline', l.stop_deadline,
	'ended_at', l.ended_first_at, 'terminates', nullif(l.terminates, 0),
	'error_kind', nullif(l.error_kind, ''), 'error', nullif(l.error, ''),
	'created_by', l.actor, 'created_at', l.created_at, 'state_at', l.state_at))`

// LaunchFilter selects launches.
type LaunchFilter struct {
	Machine berth.MachineID // empty: of all machines
	Settled bool            // also launches that are gone or failed
}

// List returns a page of launches, by machine and number, and the cursor of the next page.
func (d *Launches) List(ctx context.Context, f LaunchFilter, p Paging) (list []wire.Launch, next string, err error) {
	var machine string
	var n int
	// Without a cursor both stay zero, and sort before every launch.
	if _, err := p.after(&machine, &n); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, `
		SELECT `+launchView+`
		FROM launches l
		WHERE (l.machine, l.n) > (@machine, @n)
		  AND (@only::text = '' OR l.machine = @only)
		  AND (@settled OR l.state NOT IN ('gone', 'failed'))
		ORDER BY l.machine, l.n
		LIMIT @limit`,
		namedArgs{"machine": machine, "n": n, "only": string(f.Machine), "settled": f.Settled,
			"limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "launches")
	}
	// launchView has the JSON form of wire.Launch, so the driver decodes a row directly.
	if list, err = pgx.CollectRows(rows, pgx.RowTo[wire.Launch]); err != nil {
		return nil, "", mapError(err, "launches")
	}
	list, next = cut(p, list, func(l wire.Launch) []any { return []any{l.Machine, l.N} })
	return list, next, nil
}

// Due records that the next step of a launch is due after a pause, unless its end was requested
// meanwhile: then it stays due.
func (d *Launches) Due(ctx context.Context, r cloud.Record, after time.Duration) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE launches
		SET due_at = clock_timestamp() + @after::interval
		WHERE machine = @machine AND n = @n AND due_at IS NOT NULL
		  AND (stop_at IS NULL) = @unstopped`,
		namedArgs{"machine": r.Machine, "n": r.N, "after": after, "unstopped": r.StopAt.IsZero()})
	return mapError(err, "launch of machine "+string(r.Machine))
}

// Overdue returns machines with a launch whose step is overdue by that much, the most overdue first.
func (d *Launches) Overdue(ctx context.Context, by time.Duration, limit int) ([]berth.MachineID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT machine
		FROM launches
		WHERE due_at < clock_timestamp() - @by::interval
		ORDER BY due_at
		LIMIT @limit`,
		namedArgs{"by": by, "limit": limit})
	if err != nil {
		return nil, mapError(err, "launches")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	return list, mapError(err, "launches")
}

// Busy returns the number of jobs that hold capacity on a machine, or have results to store there.
func (d *Launches) Busy(ctx context.Context, id berth.MachineID) (n int, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT count(DISTINCT a.job) FROM allocations a WHERE a.machine_id = @machine AND `+heldThere,
		namedArgs{"machine": id}).Scan(&n)
	return n, mapError(err, "machine "+string(id))
}

// Made reports whether a call with the request id has launched all of the machines.
func (d *Launches) Made(ctx context.Context, machines []berth.MachineID, requestID string) (made bool, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT count(DISTINCT l.machine) = @count
		FROM launches l
		WHERE l.machine = ANY(@machines) AND l.request_id = @request AND @request <> ''
		  AND NOT EXISTS (SELECT 1 FROM launches n WHERE n.machine = l.machine AND n.n > l.n)`,
		namedArgs{"machines": machines, "count": len(machines), "request": requestID}).Scan(&made)
	return made, mapError(err, "launches")
}

// Get returns one launch.
func (d *Launches) Get(ctx context.Context, ref cloud.Ref) (l wire.Launch, err error) {
	err = d.pool.QueryRow(ctx, `SELECT `+launchView+` FROM launches l WHERE l.machine = @machine AND l.n = @n`,
		namedArgs{"machine": ref.Machine, "n": ref.N}).Scan(&l)
	return l, mapError(err, "launch of machine "+string(ref.Machine))
}
