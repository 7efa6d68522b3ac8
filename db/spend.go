package db

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// Spent is the spend of a tenant with a burst policy, and of all tenants below it, in US dollars.
type Spent struct {
	Period   time.Time // start of the present period of the tenant's own policy; the month without one
	Reserved float64   // by launches that are not settled, whenever they were requested
	Settled  float64   // costs in the period
	Limit    float64   // of the tenant's own policy; 0: none
	Warn     float64   // amount from which the tenant's own policy warns; 0: no limit
	StopNew  float64   // amount that no launch may exceed, by the tenant's own policy; 0: no limit
	// Room is the amount that one more launch may reserve, by the limits of the tenant and of all tenants
	// above it; +Inf: no tenant on the path has a limit. It is negative beyond a limit.
	Room float64
}

// Of returns the spend, as of now, of each tenant that has a policy of its own or above it. Amounts in
// the database are whole micro-dollars, so sums are exact before they are converted.
func (d *Spend) Of(ctx context.Context, now time.Time) (map[berth.TenantID]Spent, error) {
	rows, err := d.pool.Query(ctx, `
		WITH RECURSIVE up (id, at) AS (
			SELECT t.id, t.id FROM tenants t
			UNION
			SELECT up.id, t.parent FROM up JOIN tenants t ON t.id = up.at WHERE t.parent IS NOT NULL
		), covered AS MATERIALIZED (
			SELECT DISTINCT up.id FROM up JOIN burst_policies p ON p.tenant = up.at
		)
		SELECT t.id, coalesce(t.parent, ''), p.policy, burst_period(p.policy, @now), s.reserved, s.settled
		FROM covered c
		JOIN tenants t ON t.id = c.id
		LEFT JOIN burst_policies p ON p.tenant = t.id
		CROSS JOIN LATERAL burst_spent(t.id, burst_period(p.policy, @now)) s`, namedArgs{"now": now})
	if err != nil {
		return nil, mapError(err, "spend")
	}
	type node struct {
		ID, Parent        berth.TenantID
		Policy            *spec.Burst
		Period            time.Time
		Reserved, Settled int64
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[node])
	if err != nil {
		return nil, mapError(err, "spend")
	}
	// A tenant without a policy on its path is not in the list, and the walk up a path ends there.
	parents := make(map[berth.TenantID]berth.TenantID, len(list))
	own := make(map[berth.TenantID]float64, len(list)) // room by the tenant's own limit
	all := make(map[berth.TenantID]Spent, len(list))
	for _, n := range list {
		s := Spent{Period: n.Period, Reserved: dollars(n.Reserved), Settled: dollars(n.Settled)}
		parents[n.ID], own[n.ID] = n.Parent, math.Inf(1)
		if n.Policy != nil && n.Policy.Spend != nil {
			p := n.Policy.WithDefaults().Spend
			s.Limit, s.Warn, s.StopNew = p.Limit, p.Limit*p.Warn, p.Limit*p.StopNew
			own[n.ID] = s.StopNew - s.Reserved - s.Settled
		}
		all[n.ID] = s
	}
	limitRooms(all, own, parents)
	return all, nil
}

// limitRooms sets the room of each tenant to the smallest one on its path; own is the room by the
// tenant's own limit. A tenant without a limit of its own has infinite room of its own.
func limitRooms(all map[berth.TenantID]Spent, own map[berth.TenantID]float64,
	parents map[berth.TenantID]berth.TenantID) {
	for id, s := range all {
		s.Room = own[id]
		for at, ok := parents[id], true; ok; at, ok = parents[at] {
			if room, known := own[at]; known {
				s.Room = min(s.Room, room)
			}
		}
		all[id] = s
	}
}

// Settle settles the costs of the instances that exist, up to the present time. Each launch is settled
// in a separate transaction. It returns the number of launches. Repeated and concurrent calls settle
// each second once. An error ends the call; the rest is settled by the next one.
func (d *Spend) Settle(ctx context.Context) (int, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT machine, n
		FROM launches
		WHERE state NOT IN ('gone', 'failed') AND instance <> ''
		ORDER BY machine, n`)
	if err != nil {
		return 0, mapError(err, "spend")
	}
	type launch struct {
		Machine berth.MachineID
		N       int
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[launch])
	if err != nil {
		return 0, mapError(err, "spend")
	}
	for i, l := range list {
		_, err := d.pool.Exec(ctx, `
			UPDATE launches
			SET settled_to = clock_timestamp()
			WHERE machine = @machine AND n = @n AND state NOT IN ('gone', 'failed')`,
			namedArgs{"machine": l.Machine, "n": l.N})
		if err != nil {
			return i, mapError(err, "spend of machine "+string(l.Machine))
		}
	}
	return len(list), nil
}
