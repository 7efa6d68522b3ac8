package db

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// SubmitLimit is a rate of submits that binds a tenant and all below it.
type SubmitLimit struct {
	Tenant berth.TenantID
	Rate   float64 // submits a second, above 0
}

// submitBurst is for how long a tenant that was quiet may submit at twice its rate.
const submitBurst = 2 * time.Second

// burst is how many submits a tenant that was quiet may make at once.
func (l SubmitLimit) burst() float64 { return max(1, l.Rate*submitBurst.Seconds()) }

// TakeSubmits takes up to most submits from what all of these limits have left, for
// all replicas together. granted is 0 if one limit has none left; then wait is
// after what time it may have one.
func (d *Tenants) TakeSubmits(ctx context.Context, limits []SubmitLimit,
	most int) (granted int, wait time.Duration, err error) {
	limits = slices.Clone(limits)
	slices.SortFunc(limits, func(a, b SubmitLimit) int { return cmp.Compare(a.Tenant, b.Tenant) })
	var ids []string
	var rates, bursts []float64
	for _, l := range limits {
		ids, rates, bursts = append(ids, string(l.Tenant)), append(rates, l.Rate), append(bursts, l.burst())
	}
	var ms int64
	err = d.pool.QueryRow(ctx, `
		SELECT granted, wait_ms
		FROM take_submits(@ids, @rates, @bursts, @most)`,
		pgx.NamedArgs{"ids": ids, "rates": rates, "bursts": bursts, "most": most}).Scan(&granted, &ms)
	return granted, time.Duration(ms) * time.Millisecond, mapError(err, "submits")
}
