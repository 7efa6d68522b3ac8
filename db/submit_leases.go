package db

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth"
)

// SubmitLimit limits the rate of submits of a tenant together with all tenants below it.
type SubmitLimit struct {
	Tenant berth.TenantID
	Rate   float64 // submits per second, above 0
}

// submitBurst is the time for which a tenant may submit at twice its rate after a quiet
// period.
const submitBurst = 2 * time.Second

// burst returns the number of submits that a tenant may make at once after a quiet period.
func (l SubmitLimit) burst() float64 { return max(1, l.Rate*submitBurst.Seconds()) }

// A tenant whose jobs wait for their workflows submits faster than the control plane
// starts workflows. Each further submit takes capacity from the starts, and its job only
// waits. So from unstartedFull such jobs on the tenant's own rate falls in proportion, down to
// unstartedLeast of it at nearly twice as many: the tenant settles where it submits as fast
// as its jobs start, with a backlog that drains within seconds. Temporal may be down for
// long, and submits are accepted meanwhile: so the rate never falls to zero.
const (
	unstartedFull  = 250
	unstartedLeast = 0.1
)

// SubmitGrant is a block of a tenant's submits.
type SubmitGrant struct {
	Granted int           // 0: one of the limits has nothing left
	Wait    time.Duration // with Granted 0: until one more submit may be possible
	// Share is the part of its own rate that the tenant has at present, from unstartedLeast
	// to 1. Below 1 its jobs wait for their workflows.
	Share float64
}

// TakeSubmits takes up to most submits of tenant from the capacity that all of these limits
// have left, for all replicas together.
func (d *Tenants) TakeSubmits(ctx context.Context, tenant berth.TenantID, limits []SubmitLimit, most int) (
	g SubmitGrant, err error,
) {
	limits = slices.Clone(limits)
	slices.SortFunc(limits, func(a, b SubmitLimit) int { return cmp.Compare(a.Tenant, b.Tenant) })
	var ids []string
	var rates, bursts []float64
	for _, l := range limits {
		ids, rates, bursts = append(ids, string(l.Tenant)), append(rates, l.Rate), append(bursts, l.burst())
	}
	var ms int64
	err = d.pool.QueryRow(ctx, `
		WITH unstarted AS (
			SELECT count(*) AS n
			FROM (
				SELECT 1
				FROM jobs
				WHERE tenant = @tenant AND state = 'submitted' AND parent IS NULL AND NOT blocked
				LIMIT 2 * @full
			) x
		), now_at AS (
			SELECT least(1, greatest(@least::float8, 2 - n::float8 / @full)) AS share
			FROM unstarted
		)
		SELECT t.granted, t.wait_ms, s.share
		FROM now_at s
		CROSS JOIN LATERAL (
			SELECT array_agg(x.rate * CASE WHEN x.id = @tenant THEN s.share ELSE 1 END ORDER BY x.place) AS rates,
				array_agg(greatest(1, x.burst * CASE WHEN x.id = @tenant THEN s.share ELSE 1 END)
					ORDER BY x.place) AS bursts
			FROM unnest(@ids::text[], @rates::float8[], @bursts::float8[]) WITH ORDINALITY AS x (id, rate, burst, place)
		) l
		CROSS JOIN LATERAL take_submits(@ids, l.rates, l.bursts, @most) t`,
		namedArgs{"tenant": tenant, "full": unstartedFull, "least": unstartedLeast,
			"ids": ids, "rates": rates, "bursts": bursts, "most": most}).Scan(&g.Granted, &ms, &g.Share)
	g.Wait = time.Duration(ms) * time.Millisecond
	return g, mapError(err, "submits")
}
