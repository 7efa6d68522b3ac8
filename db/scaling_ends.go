package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
)

const (
	// UnfitFor is the time for which a machine of the scaler must have been lost, or empty and closed by
	// Berth, before its end is requested. A machine that is restarted returns sooner.
	UnfitFor = 15 * time.Minute

	mostEnds = 50 // requests of ends in one pass
)

// unfitLaunches selects the launches of the scaler that are to end although they are not idle, with the
// reason. Either the machine has been lost, or empty and closed to work, for @for; or it joined with less than its
// offer, see registration.compare; or the spend of the tenant that pays, or of a tenant above, has reached
// drain × limit. As in emptyMachine, launches from before a restore
// are left out, and so are machines with containers that the database does not know, or whose name another host
// has taken.
const unfitLaunches = `
	WITH RECURSIVE reached AS (
		SELECT p.tenant
		FROM burst_policies p
		CROSS JOIN LATERAL burst_spent(p.tenant, burst_period(p.policy, clock_timestamp())) s
		WHERE p.policy ? 'spend'
		  AND s.reserved + s.settled >= (p.policy -> 'spend' ->> 'limit')::numeric
			* coalesce((p.policy -> 'spend' ->> 'drain')::numeric, 1.0) * 1000000
	), down (id, above) AS (
		SELECT tenant, tenant FROM reached
		UNION
		SELECT t.id, down.above FROM down JOIN tenants t ON t.parent = down.id
	), spent AS (
		SELECT id, min(above) AS above FROM down GROUP BY id
	)
	SELECT l.machine, CASE
			WHEN x.id IS NOT NULL THEN 'the spend of tenant ' || x.above || ' has reached the level drain'
			WHEN m.state = 'lost' THEN 'the machine is lost'
			WHEN m.state = 'draining' AND m.drain_actor = @short THEN m.reason
			ELSE 'the machine is empty and takes no work: ' || coalesce(nullif(m.reason, ''), 'its engine is silent')
		END AS reason
	FROM launches l
	CROSS JOIN cluster c
	LEFT JOIN machines m ON m.id = l.machine
	LEFT JOIN spent x ON x.id = l.tenant AND l.tenant <> ''
	WHERE l.actor = @actor AND l.stop_at IS NULL AND (@machine = '' OR l.machine = @machine)
	  AND l.state IN ('requested', 'sent', 'unresolved', 'running', 'serving') AND l.incarnation = c.incarnation
	  AND coalesce(m.pending_kills = '{}' AND m.joined_token IN ('', l.join_token), true)
	  AND (x.id IS NOT NULL OR l.state = 'serving' AND (
		m.state = 'lost' AND m.state_at < clock_timestamp() - @for::interval
		OR ` + emptyMachine + ` AND (
			m.engine_silent_since < clock_timestamp() - @for::interval
			OR m.state = 'draining' AND m.drain_actor = @short
			OR m.state = 'draining' AND m.drain_actor = 'leader' AND m.state_at < clock_timestamp() - @for::interval)))
	ORDER BY l.machine
	LIMIT @limit`

// endUnfit requests the ends of the launches of unfitLaunches, and returns their machines. Each launch is
// checked again under the locks of the launch and its machine.
func endUnfit(ctx context.Context, tx pgx.Tx) (ended []berth.MachineID, err error) {
	args := func(id berth.MachineID) namedArgs {
		return namedArgs{"actor": ScalerActor, "machine": id, "for": UnfitFor, "limit": mostEnds,
			"short": shortActor}
	}
	type unfit struct {
		Machine berth.MachineID
		Reason  string
	}
	read := func(id berth.MachineID) ([]unfit, error) {
		rows, err := tx.Query(ctx, unfitLaunches, args(id))
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowToStructByPos[unfit])
	}
	list, err := read("")
	if err != nil {
		return nil, err
	}
	for _, u := range list {
		r, err := lockFleet(ctx, tx, u.Machine)
		if err != nil {
			return nil, err
		}
		again, err := read(u.Machine)
		if err != nil {
			return nil, err
		}
		if len(again) == 0 {
			continue
		}
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return nil, err
		}
		if r, err = r.WithStop(cloud.Stop{Actor: ScalerActor, Reason: again[0].Reason}, now); err != nil {
			return nil, err
		}
		if err := storeLaunch(ctx, tx, r); err != nil {
			return nil, err
		}
		ended = append(ended, u.Machine)
	}
	return ended, nil
}

// Leaving returns the machines that drain until a deadline within the time, by machine: the jobs that run there move
// at the deadline. A cloud's notice sets the deadline, and so do admins and maintenance windows.
func (d *Scaling) Leaving(ctx context.Context, within time.Duration) (map[berth.MachineID]time.Time, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT id, drain_deadline
		FROM machines
		WHERE state = 'draining' AND drain_deadline < clock_timestamp() + @within::interval`,
		namedArgs{"within": within})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	leaving := map[berth.MachineID]time.Time{}
	var id berth.MachineID
	var deadline time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &deadline}, func() error {
		leaving[id] = deadline
		return nil
	})
	return leaving, mapError(err, "machines")
}
