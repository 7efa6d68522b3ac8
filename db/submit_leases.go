package db

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

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

// TakeSubmits takes up to most submits from all of these limits at once, for all replicas
// together. granted is the number that every limit allows; if it is 0, wait is the time
// after which the exhausted limit may allow one.
func (d *Tenants) TakeSubmits(ctx context.Context, limits []SubmitLimit,
	most int) (granted int, wait time.Duration, err error) {
	limits = slices.Clone(limits)
	// Replicas lock the limits' rows in the same order.
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
