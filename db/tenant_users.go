package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// nextUsers selects where the next range of users begins, how large it is (n.size), and where the pool ends
// (n.beyond). A range that the operator's present pool does not contain may still overlap the pool.
const nextUsers = `
	SELECT greatest(lower(c.container_uids), (SELECT max(upper(x.uids)) FROM tenant_uids x
			WHERE x.uids && c.container_uids)) AS at,
		c.uids_per_tenant AS size, upper(c.container_uids) AS beyond
	FROM cluster c`

// Users returns the range of users of a tenant, and takes the next free one for a tenant without a range. A
// range belongs to its tenant for good: it is never given to another one, also after the deletion of the tenant.
func (d *Tenants) Users(ctx context.Context, tenant berth.TenantID) (spec.UserRange, error) {
	var r spec.UserRange
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"tenant": tenant}
		// The lock of the row orders all callers.
		if _, err := tx.Exec(ctx, `SELECT 1 FROM cluster FOR NO KEY UPDATE`); err != nil {
			return fmt.Errorf("lock cluster: %w", err)
		}
		const own = `SELECT lower(uids), upper(uids) - 1 FROM tenant_uids WHERE tenant = @tenant`
		err := tx.QueryRow(ctx, own, args).Scan(&r.First, &r.Last)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO tenant_uids (tenant, uids)
			SELECT @tenant, int8range(n.at, n.at + n.size)
			FROM (`+nextUsers+`) n
			WHERE n.at + n.size <= n.beyond
			RETURNING lower(uids), upper(uids) - 1`, args).Scan(&r.First, &r.Last)
		if errors.Is(err, pgx.ErrNoRows) {
			return errNoUsers(ctx, tx, tenant)
		}
		if err != nil {
			return err
		}
		return keepTenant(ctx, tx, tenant)
	})
	return r, mapError(err, "users of tenant "+string(tenant))
}

// errNoUsers returns the error for a tenant that finds the pool empty.
func errNoUsers(ctx context.Context, tx pgx.Tx, tenant berth.TenantID) error {
	p, err := userPool(ctx, tx)
	if err != nil {
		return err
	}
	return berth.Errorf(berth.CodeConflict, "no users are left for tenant %s in %s; an operator can set another "+
		"range with berthd --container-uids", tenant, p)
}

// userPool reads the range from which tenants get their users.
func userPool(ctx context.Context, q querier) (p spec.UserPool, err error) {
	rows, err := q.Query(ctx, `
		SELECT lower(container_uids), upper(container_uids) - 1, uids_per_tenant FROM cluster`)
	if err != nil {
		return p, err
	}
	return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (p spec.UserPool, err error) {
		return p, row.Scan(&p.First, &p.Last, &p.PerTenant)
	})
}

// lostUsers is the number of ranges that a restore leaves out: more than tenants can have got their first
// users since the backup.
const lostUsers = 100

// leapUsers takes ranges of users that belong to no tenant. The lost rows may have given them to tenants whose
// files still exist on shared folders. The caller has locked the row of cluster.
func leapUsers(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO tenant_uids (uids)
		SELECT int8range(n.at, least(n.at + n.size * @ranges::bigint, n.beyond))
		FROM (`+nextUsers+`) n
		WHERE n.at < n.beyond`, namedArgs{"ranges": lostUsers})
	if err != nil {
		return fmt.Errorf("leap users of tenants: %w", err)
	}
	return nil
}
