package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// UsageFilter selects rows of CloudUsage.
type UsageFilter struct {
	Tenant berth.TenantID // with the tenants below it; empty: all, and the launches of admins
	Only   bool           // Tenant alone; its figures still contain the tenants below it
	Period spec.SpendPeriod
	At     time.Time // any time of the period
}

// usageRows is the spend of the tenants that the filter selects. Launches of admins are the row with the
// empty tenant. pairs has each tenant with each tenant above it and itself.
const usageRows = `
	WITH RECURSIVE pairs (below, id) AS (
		SELECT t.id, t.id FROM tenants t
		UNION
		SELECT p.below, t.parent FROM pairs p JOIN tenants t ON t.id = p.id WHERE t.parent IS NOT NULL
	), own AS MATERIALIZED (
		SELECT s.tenant, sum(s.settled)::bigint AS settled
		FROM spend s
		WHERE s.day >= (@from::timestamptz AT TIME ZONE 'UTC')::date
		  AND s.day < (@to::timestamptz AT TIME ZONE 'UTC')::date
		GROUP BY s.tenant
	), held AS MATERIALIZED (
		SELECT l.tenant, sum(l.reserved)::bigint AS reserved, count(*) AS machines
		FROM launches l
		WHERE l.state NOT IN ('gone', 'failed') AND @to::timestamptz > clock_timestamp()
		GROUP BY l.tenant
	)
	SELECT '', '', h.reserved, o.settled, o.settled, h.machines, NULL::jsonb, NULL::jsonb
	FROM (SELECT) one
	LEFT JOIN own o ON o.tenant = ''
	LEFT JOIN held h ON h.tenant = ''
	WHERE @by_hand AND (o.settled > 0 OR h.machines > 0)
	UNION ALL
	(SELECT t.id, coalesce(t.parent, ''), sum(h.reserved)::bigint, sum(o.settled)::bigint,
		sum(o.settled) FILTER (WHERE p.below = t.id)::bigint, sum(h.machines)::bigint,
		(SELECT b.policy FROM burst_policies b WHERE b.tenant = t.id),
		(SELECT jsonb_agg(jsonb_build_object('level', a.level, 'at', a.at, 'used', a.used / 1000000.0, 'limit', a.most)
			ORDER BY a.at, a.level)
		FROM spend_alerts a
		WHERE a.tenant = t.id AND a.period = @from)
	FROM tenants t
	JOIN pairs p ON p.id = t.id
	LEFT JOIN own o ON o.tenant = p.below
	LEFT JOIN held h ON h.tenant = p.below
	WHERE t.id > @after
	  AND (@tenant = '' OR t.id = @tenant
		OR NOT @only AND EXISTS (SELECT 1 FROM pairs x WHERE x.below = t.id AND x.id = @tenant))
	GROUP BY t.id
	ORDER BY t.id
	LIMIT @limit)`

// Usage returns a page of the spend of tenants in a period, by tenant, and the cursor of the next page. An
// unknown tenant is not_found.
func (d *Spend) Usage(ctx context.Context, f UsageFilter, p Paging) (list []wire.CloudUsage, next string, err error) {
	after := ""
	set, err := p.after(&after)
	if err != nil {
		return nil, "", err
	}
	from, to := f.Period.Start(f.At), f.Period.End(f.At)
	rows, err := d.pool.Query(ctx, usageRows, namedArgs{"tenant": string(f.Tenant), "only": f.Only, "from": from,
		"to": to, "after": after, "by_hand": !set && f.Tenant == "", "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "usage")
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (wire.CloudUsage, error) {
		u := wire.CloudUsage{From: from, To: to}
		var reserved, settled, own, machines *int64
		var policy *spec.Burst
		err := row.Scan(&u.Tenant, &u.Parent, &reserved, &settled, &own, &machines, &policy, &u.Alerts)
		u.Reserved, u.Settled, u.Own = dollars(orZero(reserved)), dollars(orZero(settled)), dollars(orZero(own))
		u.Machines = int(orZero(machines))
		// A limit for another period cannot be compared with these sums.
		if policy != nil && policy.Spend != nil && policy.Spend.Period == f.Period {
			u.Limit = policy.Spend.Limit
			share := dollars(orZero(reserved)+orZero(settled)) / u.Limit
			u.Share = &share
		}
		return u, err
	})
	if err != nil {
		return nil, "", mapError(err, "usage")
	}
	// An empty later page is the end of the list, and no unknown tenant.
	if f.Tenant != "" && !set && len(list) == 0 {
		return nil, "", mapError(pgx.ErrNoRows, "tenant "+string(f.Tenant))
	}
	list, next = cut(p, list, func(u wire.CloudUsage) []any { return []any{u.Tenant} })
	return list, next, nil
}

// UsageByPool returns a page of the spend of the pools that have any in a period, by pool, with the launches of admins,
// and the cursor of the next page. It ignores the tenant of the filter.
func (d *Spend) UsageByPool(ctx context.Context, f UsageFilter, p Paging) (list []wire.CloudUsage, next string,
	err error) {
	after := ""
	if _, err := p.after(&after); err != nil {
		return nil, "", err
	}
	from, to := f.Period.Start(f.At), f.Period.End(f.At)
	rows, err := d.pool.Query(ctx, `
		WITH own AS (
			SELECT s.pool, sum(s.settled)::bigint AS settled
			FROM pool_spend s
			WHERE s.day >= (@from::timestamptz AT TIME ZONE 'UTC')::date
			  AND s.day < (@to::timestamptz AT TIME ZONE 'UTC')::date
			GROUP BY s.pool
		), held AS (
			SELECT l.pool, sum(l.reserved)::bigint AS reserved, count(*) AS machines
			FROM launches l
			WHERE l.state NOT IN ('gone', 'failed') AND @to::timestamptz > clock_timestamp()
			GROUP BY l.pool
		)
		SELECT pool, coalesce(h.reserved, 0), coalesce(o.settled, 0), coalesce(h.machines, 0)
		FROM own o
		FULL JOIN held h USING (pool)
		WHERE pool > @after
		ORDER BY pool
		LIMIT @limit`, namedArgs{"from": from, "to": to, "after": after, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "usage")
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (wire.CloudUsage, error) {
		u := wire.CloudUsage{From: from, To: to}
		var reserved, settled int64
		err := row.Scan(&u.Pool, &reserved, &settled, &u.Machines)
		u.Reserved, u.Settled, u.Own = dollars(reserved), dollars(settled), dollars(settled)
		return u, err
	})
	if err != nil {
		return nil, "", mapError(err, "usage")
	}
	list, next = cut(p, list, func(u wire.CloudUsage) []any { return []any{u.Pool} })
	return list, next, nil
}

// orZero returns the number, or 0 for nil.
func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// SpendAlert is a level of a spend limit that a tenant has reached.
type SpendAlert struct {
	Tenant      berth.TenantID
	Period      time.Time
	Level       string // warn, stop_new or drain
	Used, Limit float64
}

// Alert records the levels of spend limits that are reached now, and returns the levels that were not recorded
// before in their period. If several callers ask at once, only one of them gets each level.
//
// No launch is admitted above stop_new. So the level stop_new counts as reached once a launch of one hour at
// a cent would reach it.
func (d *Spend) Alert(ctx context.Context) ([]SpendAlert, error) {
	rows, err := d.pool.Query(ctx, `
		WITH reached AS (
			SELECT p.tenant, s.period, s.used, x.level, (p.policy -> 'spend' ->> 'limit')::float8 AS most
			FROM burst_policies p
			CROSS JOIN LATERAL (
				SELECT b.period, c.reserved + c.settled AS used
				FROM burst_period(p.policy, clock_timestamp()) b (period)
				CROSS JOIN LATERAL burst_spent(p.tenant, b.period) c
			) s
			CROSS JOIN (VALUES ('warn', 0.8, 0), ('stop_new', 0.9, 10000), ('drain', 1.0, 0)) x (level, share, room)
			WHERE p.policy ? 'spend'
			  AND s.used + x.room >= (p.policy -> 'spend' ->> 'limit')::numeric
				* coalesce((p.policy -> 'spend' ->> x.level)::numeric, x.share) * 1000000
		), recorded AS (
			INSERT INTO spend_alerts (tenant, period, level, used, most)
			SELECT r.tenant, r.period, r.level, r.used, r.most
			FROM reached r
			ORDER BY r.tenant, r.period, r.level
			ON CONFLICT DO NOTHING
			RETURNING tenant, period, level, used / 1000000.0::float8 AS used, most
		)
		SELECT tenant, period, level, used, most
		FROM recorded
		ORDER BY tenant, used, level`)
	if err != nil {
		return nil, mapError(err, "spend")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SpendAlert])
	return list, mapError(err, "spend")
}
