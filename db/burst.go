package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// BurstRow is the burst policy of a tenant, with the policies above it. Each policy narrows the ones
// above, so Effective never permits more than Above.
type BurstRow struct {
	Tenant    berth.TenantID
	Own       *spec.Burst // nil: the tenant has no policy of its own
	Above     *spec.Burst // effective policy of the tenants above; nil: none of them has one
	Effective *spec.Burst // nil: no policy, so no machines of clouds
	UpdatedAt time.Time   // of Own
	UpdatedBy string
}

// Policies returns the effective policy of each tenant that has a policy of its own or above it. It
// reads all tenants in one statement and folds the policies of each path, the topmost first. A tenant
// without a policy on its path is missing from the result.
func (d *Burst) Policies(ctx context.Context) (map[berth.TenantID]spec.Burst, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT t.id, coalesce(t.parent, ''), p.policy
		FROM tenants t
		LEFT JOIN burst_policies p ON p.tenant = t.id`)
	if err != nil {
		return nil, mapError(err, "burst policies")
	}
	type node struct {
		ID, Parent berth.TenantID
		Policy     *spec.Burst
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[node])
	if err != nil {
		return nil, mapError(err, "burst policies")
	}
	nodes := make(map[berth.TenantID]node, len(list))
	for _, n := range list {
		nodes[n.ID] = n
	}
	all := map[berth.TenantID]spec.Burst{}
	for _, n := range list {
		var path []spec.Burst
		for at, ok := n, true; ok; at, ok = nodes[at.Parent] {
			if at.Policy != nil {
				path = append([]spec.Burst{*at.Policy}, path...)
			}
		}
		if b, ok := spec.EffectiveBurst(path...); ok {
			if n.Policy == nil {
				b = b.Inherited()
			}
			all[n.ID] = b
		}
	}
	return all, nil
}

// Get returns the policy of a tenant. An unknown tenant is not_found. The policies of its path are read
// in one transaction.
func (d *Burst) Get(ctx context.Context, tenant berth.TenantID) (row BurstRow, err error) {
	err = d.readTx(ctx, func(tx pgx.Tx) error {
		row, err = readBurst(ctx, tx, tenant)
		return err
	})
	return row, mapError(err, "tenant "+string(tenant))
}

// readBurst reads the policies on the path of a tenant. A missing tenant is pgx.ErrNoRows. All rows are
// of one statement, so the policies of the path agree with each other.
func readBurst(ctx context.Context, tx pgx.Tx, tenant berth.TenantID) (BurstRow, error) {
	row := BurstRow{Tenant: tenant}
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE `+tenantPath+`
		SELECT up.depth, p.policy, coalesce(p.version, 0), p.updated_at, coalesce(p.updated_by, '')
		FROM up
		LEFT JOIN burst_policies p ON p.tenant = up.id
		WHERE p.tenant IS NOT NULL OR up.depth = 0
		ORDER BY up.depth DESC`, namedArgs{"tenant": tenant})
	if err != nil {
		return row, err
	}
	type level struct {
		Depth   int
		Policy  *spec.Burst
		Version int64
		At      *time.Time
		By      string
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[level])
	if err != nil {
		return row, err
	}
	if len(list) == 0 {
		return row, pgx.ErrNoRows
	}
	var path []spec.Burst
	for _, l := range list {
		if l.Depth == 0 {
			if above, ok := spec.EffectiveBurst(path...); ok {
				above = above.Inherited()
				row.Above = &above
			}
		}
		if l.Policy == nil {
			continue
		}
		path = append(path, *l.Policy)
		if l.Depth == 0 {
			row.Own, row.UpdatedAt, row.UpdatedBy = l.Policy, *l.At, l.By
			row.Own.Version = l.Version
		}
	}
	if row.Effective = row.Above; row.Own != nil {
		effective, _ := spec.EffectiveBurst(path...)
		row.Effective = &effective
	}
	return row, nil
}

// Set replaces the policy of a tenant. A policy that permits more than the policies above it is
// invalid, with a fault for each such field. A version that is neither 0 nor the present one is a
// conflict. Launches that exist are not changed. The policies on the path are locked like at a launch,
// so no launch is admitted by a policy that changes meanwhile. A policy is stored as it was set: moves
// of tenants, and changes above, need no change of its row.
func (d *Burst) Set(ctx context.Context, tenant berth.TenantID, b spec.Burst, actor string) error {
	version := b.Version
	b.Version = 0
	b = b.WithDefaults()
	err := d.tx(ctx, func(tx pgx.Tx) error {
		if err := lockBurst(ctx, tx, tenant); err != nil {
			return err
		}
		row, err := readBurst(ctx, tx, tenant)
		if err != nil {
			return err
		}
		if err := checkBurstVersion(row, version); err != nil {
			return err
		}
		if row.Above != nil {
			if faults := b.Widens(*row.Above); faults != nil {
				return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Fields: faults,
					Message: fmt.Sprintf("the policy of tenant %s would permit more than the tenants above it", tenant)}
			}
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO burst_policies (tenant, policy, updated_by)
			VALUES (@tenant, @policy, @actor)
			ON CONFLICT (tenant) DO UPDATE
			SET policy = excluded.policy, version = burst_policies.version + 1, updated_at = now(),
				updated_by = excluded.updated_by`,
			namedArgs{"tenant": tenant, "policy": b, "actor": actor})
		return err
	})
	return d.changed(err, tenant)
}

// checkBurstVersion refuses a change of another version than the present one; 0 fits each version.
// Version 0 also stands for a tenant without a policy.
func checkBurstVersion(row BurstRow, version int64) error {
	var present int64
	if row.Own != nil {
		present = row.Own.Version
	}
	if version != 0 && version != present {
		return berth.Errorf(berth.CodeConflict, "the burst policy of tenant %s is at version %d, not %d: it was "+
			"changed meanwhile; read it again", row.Tenant, present, version)
	}
	return nil
}

// Delete removes the policy of a tenant, which then has the policies above it. A tenant without a policy is
// not_found.
func (d *Burst) Delete(ctx context.Context, tenant berth.TenantID) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM burst_policies WHERE tenant = @tenant`, namedArgs{"tenant": tenant})
		if err == nil && tag.RowsAffected() == 0 {
			err = pgx.ErrNoRows
		}
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return berth.Errorf(berth.CodeNotFound, "tenant %s has no burst policy of its own", tenant)
	}
	return d.changed(err, tenant)
}

// changed maps the error of a change of a tenant's policy.
func (d *Burst) changed(err error, tenant berth.TenantID) error {
	return mapError(err, "burst policy of tenant "+string(tenant))
}
