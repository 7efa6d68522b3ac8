package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
	"berth/spec"
)

// Slugs of refused launches for a tenant.
const (
	SlugBurstForbidden = "burst_forbidden" // no policy of the tenant permits the launch
	SlugBurstLimit     = "burst_limit"     // the money, the machines or the growth of a policy is used up
)

// tenantPath is a common table expression: tenant @tenant and all tenants above it, with their distance.
const tenantPath = `
	up (id, parent, depth) AS (
		SELECT t.id, t.parent, 0 FROM tenants t WHERE t.id = @tenant
		UNION
		SELECT t.id, t.parent, up.depth + 1 FROM up JOIN tenants t ON t.id = up.parent
	)`

// lockBurst locks the policies on the path of a tenant, in the order of the trigger launches_reserve, so that
// launches below one limit are admitted one at a time. An empty tenant locks nothing.
func lockBurst(ctx context.Context, tx pgx.Tx, tenant berth.TenantID) error {
	if tenant == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `
		WITH RECURSIVE `+tenantPath+`
		SELECT 1
		FROM burst_policies p
		WHERE p.tenant IN (SELECT id FROM up)
		ORDER BY p.tenant
		FOR NO KEY UPDATE`, namedArgs{"tenant": tenant})
	return err
}

// burstLevel is a tenant with a policy, and the use by it and all tenants below it.
type burstLevel struct {
	Tenant            berth.TenantID
	Policy            spec.Burst
	Period            time.Time
	Reserved, Settled int64 // micro-dollars, the latter in the period
	Machines          int
}

// burstPath returns the levels on the path of a tenant, the topmost first. Spend and machines are
// counted over each tenant and all tenants below it, in one statement.
func burstPath(ctx context.Context, tx pgx.Tx, tenant berth.TenantID) ([]burstLevel, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE `+tenantPath+`
		SELECT p.tenant, p.policy, burst_period(p.policy, clock_timestamp()), s.reserved, s.settled, s.machines
		FROM up
		JOIN burst_policies p ON p.tenant = up.id
		CROSS JOIN LATERAL burst_spent(p.tenant, burst_period(p.policy, clock_timestamp())) s
		ORDER BY up.depth DESC`, namedArgs{"tenant": tenant})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[burstLevel])
}

// admitLaunch refuses a launch for a tenant that the tenant's policies do not permit, or whose money is
// used up. The caller holds the locks of lockBurst. An admin's own launch is always admitted. A refusal
// for want of money, machines or growth is passing and has the code capacity; a forbidden launch is a
// conflict.
func admitLaunch(ctx context.Context, tx pgx.Tx, r cloud.Request) error {
	if r.Tenant == "" {
		return nil
	}
	forbid := func(why string) error {
		return &berth.Error{Code: berth.CodeConflict, Slug: SlugBurstForbidden,
			Message: fmt.Sprintf("tenant %s may not launch %s of %s: %s", r.Tenant, r.Offering, r.Provider, why)}
	}
	levels, err := burstPath(ctx, tx, r.Tenant)
	if err != nil {
		return err
	}
	path := make([]spec.Burst, len(levels))
	for i, l := range levels {
		path[i] = l.Policy
	}
	policy, ok := spec.EffectiveBurst(path...)
	if !ok {
		return forbid("neither it nor a tenant above it has a burst policy")
	}
	if why := policy.Refusal(r.Provider, r.Region, r.Market == cloud.Spot, r.Price); why != "" {
		return forbid(why)
	}
	for _, l := range levels {
		why, err := l.full(ctx, tx, r.Reserve())
		if err != nil {
			return err
		}
		if why != "" {
			return &berth.Error{Code: berth.CodeCapacity, Slug: SlugBurstLimit,
				Message: fmt.Sprintf("tenant %s may not launch a machine: %s", r.Tenant, why)}
		}
	}
	return nil
}

// grows is true for a launch l that counts as growth: also one that the cloud refused, but none that failed without a
// call of the cloud, since these must not keep other clouds from being tried.
const grows = `NOT (l.state = 'failed' AND (l.sends = 0 OR l.error_kind = 'unsent'))`

// full returns the limit of the level that one more launch would exceed, or "". The trigger
// launches_reserve enforces the money as well. Machines and growth are checked here alone.
func (l burstLevel) full(ctx context.Context, tx pgx.Tx, reserve int64) (string, error) {
	p := l.Policy.WithDefaults()
	if s := p.Spend; s != nil {
		used, most := dollars(l.Reserved+l.Settled), s.Limit*s.StopNew
		if used+dollars(reserve) > most {
			return fmt.Sprintf("it would reserve $%.2f, and tenant %s has used or reserved $%.2f of the $%.2f for new "+
				"launches of this %s (limit $%.2f)", dollars(reserve), l.Tenant, used, most, s.Period, s.Limit), nil
		}
	}
	if p.MaxMachines > 0 && l.Machines >= p.MaxMachines {
		return fmt.Sprintf("tenant %s has %d machines, and max_machines is %d", l.Tenant, l.Machines,
			p.MaxMachines), nil
	}
	if p.Grow == nil {
		return "", nil
	}
	var recent int
	err := tx.QueryRow(ctx, `
		WITH RECURSIVE down (id) AS (
			SELECT @tenant::text
			UNION
			SELECT t.id FROM down JOIN tenants t ON t.parent = down.id
		)
		SELECT count(*)
		FROM launches l
		WHERE l.tenant IN (SELECT id FROM down) AND l.created_at > clock_timestamp() - @per::interval AND `+grows,
		namedArgs{"tenant": l.Tenant, "per": p.Grow.Per.Std()}).Scan(&recent)
	if err != nil || recent < p.Grow.Machines {
		return "", err
	}
	return fmt.Sprintf("tenant %s has launched %d machines in %s, and grow allows %d", l.Tenant, recent, p.Grow.Per,
		p.Grow.Machines), nil
}

// dollars converts micro-dollars.
func dollars(micros int64) float64 { return float64(micros) / 1e6 }
