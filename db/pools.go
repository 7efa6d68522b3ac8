package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// PoolRule is the rules of a pool that placement obeys.
type PoolRule struct {
	Pool      string
	Tenants   []berth.TenantID // the pool accepts only their jobs, and the jobs of all tenants below; nil: all jobs
	OneTenant bool             // each machine is used by one tenant at a time
	Taints    []string         // of each machine, which its row has as well
}

// Rules returns the rules of the pools that have any, by name.
func (d *Pools) Rules(ctx context.Context) ([]PoolRule, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT id, tenants, one_tenant, taints
		FROM pools
		WHERE tenants IS NOT NULL OR one_tenant OR taints <> '{}'
		ORDER BY id`)
	if err != nil {
		return nil, mapError(err, "rules of pools")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PoolRule])
	return list, mapError(err, "rules of pools")
}

// readPools selects the pools p that satisfy a condition, in the order of scanPool.
func readPools(condition string) string {
	return `
		SELECT p.id, p.tenants, p.description, p.version, p.created_at, p.updated_at, p.approval, p.one_tenant,
			p.taints,
			(SELECT count(*) FROM machines m WHERE m.pool = p.id AND m.state <> 'retired'),
			(SELECT count(*) FROM machines m WHERE m.pool = p.id AND m.state <> 'retired' AND m.held <> '')
		FROM pools p
		WHERE ` + condition + `
		ORDER BY p.id
		LIMIT @limit`
}

// scanPool scans a row of readPools.
func scanPool(row pgx.CollectableRow) (p wire.Pool, err error) {
	err = row.Scan(&p.Name, &p.Tenants, &p.Description, &p.Version, &p.CreatedAt, &p.UpdatedAt, &p.Approval,
		&p.OneTenant, &p.Taints, &p.Machines, &p.Pending)
	return p, err
}

// List returns a page of pools by name, and the cursor of the next page.
func (d *Pools) List(ctx context.Context, p Paging) (pools []wire.Pool, next string, err error) {
	var name string
	if _, err := p.after(&name); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, readPools("p.id > @name"), namedArgs{"name": name, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "pools")
	}
	list, err := pgx.CollectRows(rows, scanPool)
	if err != nil {
		return nil, "", mapError(err, "pools")
	}
	pools, next = cut(p, list, func(x wire.Pool) []any { return []any{x.Name} })
	return pools, next, nil
}

// Get returns one pool. An unknown pool is not_found.
func (d *Pools) Get(ctx context.Context, name string) (wire.Pool, error) {
	rows, err := d.pool.Query(ctx, readPools("p.id = @name"), namedArgs{"name": name, "limit": 1})
	if err != nil {
		return wire.Pool{}, mapError(err, "pool "+name)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPool)
	return p, mapError(err, "pool "+name)
}

// Set replaces the rules of a pool, and creates the pool if it does not exist. Jobs that run in the
// pool keep their machines. If the rule approval begins, the machines in service are approved as they
// are; if it ends, machines that waited only for it get work. A cloud that refused the settings of the pool is tried
// again by one launch. A version that is neither 0 nor the
// present version is a conflict, and an unknown tenant is invalid.
func (d *Pools) Set(ctx context.Context, name string, p spec.PoolRules, actor string) error {
	args := namedArgs{"name": name, "tenants": p.Tenants, "description": p.Description, "approval": p.Approval,
		"one_tenant": p.OneTenant, "taints": spec.StoredTaints(p.Taints)}
	return d.changed(name, d.tx(ctx, func(tx pgx.Tx) error {
		if err := lockMachinesOf(ctx, tx, name); err != nil {
			return err
		}
		version, was, err := lockPool(ctx, tx, name)
		if err != nil && (p.Version != 0 || !errors.Is(err, pgx.ErrNoRows)) {
			return err
		}
		if p.Version != 0 && p.Version != version {
			return berth.Errorf(berth.CodeConflict, "pool %s is at version %d, not %d: it was changed meanwhile; "+
				"read it again", name, version, p.Version)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO pools (id, tenants, description, approval, one_tenant, taints)
			VALUES (@name, @tenants, @description, @approval, @one_tenant, @taints)
			ON CONFLICT (id) DO UPDATE
			SET tenants = excluded.tenants, description = excluded.description, approval = excluded.approval,
				one_tenant = excluded.one_tenant, taints = excluded.taints, version = pools.version + 1,
				updated_at = now()`, args)
		if err != nil {
			return err
		}
		if err := keepPoolTenants(ctx, tx, p.Tenants); err != nil {
			return err
		}
		if err := taintPool(ctx, tx, name, spec.StoredTaints(p.Taints)); err != nil {
			return err
		}
		if err := switchApproval(ctx, tx, name, p.Approval, was, actor); err != nil {
			return err
		}
		return reopenPool(ctx, tx, name)
	}))
}

// lockPool locks a pool's row and returns its version and its rule approval. A missing row is
// pgx.ErrNoRows.
func lockPool(ctx context.Context, tx pgx.Tx, name string) (version int64, approval bool, err error) {
	err = tx.QueryRow(ctx, `SELECT version, approval FROM pools WHERE id = @name FOR UPDATE`,
		namedArgs{"name": name}).Scan(&version, &approval)
	return version, approval, err
}

// keepPoolTenants prevents the deletion of the tenants until the transaction ends. An unknown tenant
// is invalid.
func keepPoolTenants(ctx context.Context, tx pgx.Tx, tenants []berth.TenantID) error {
	for _, t := range slices.Sorted(slices.Values(tenants)) {
		err := keepTenant(ctx, tx, t)
		if berth.CodeOf(err) == berth.CodeNotFound {
			return &berth.Error{Code: berth.CodeInvalid, Message: "no such tenant " + string(t),
				Fields: []berth.FieldError{{
					Field:  fmt.Sprintf("tenants[%d]", slices.Index(tenants, t)),
					Detail: fmt.Sprintf("names %s, a tenant that does not exist", t), Allowed: "tenants that exist",
				}}}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete removes a pool. The pool default, a pool with machines, a pool with a join token that can
// still be used, and a pool named by the constraint of a live job are conflicts.
func (d *Pools) Delete(ctx context.Context, name string) error {
	if name == spec.DefaultPool {
		return berth.Errorf(berth.CodeConflict,
			"pool %s cannot be deleted: machines that name no pool are in it", name)
	}
	return d.changed(name, d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"name": name}
		var machines, tokens, jobs int
		// Jobs are counted before the pool is locked, since registrations wait for the lock and the
		// count takes long if there are many jobs. The lock would not refuse later jobs in any case.
		err := tx.QueryRow(ctx, `
			SELECT count(*)
			FROM jobs j
			JOIN classes c ON c.class = j.class
			WHERE j.state NOT IN ('succeeded', 'failed', 'canceled')
			  AND c.request->>'constraint' ~ 'machine\s*\.\s*pool'
			  AND (strpos(c.request->>'constraint', '"' || @name || '"') > 0
			    OR strpos(c.request->>'constraint', '''' || @name || '''') > 0)`, args).Scan(&jobs)
		if err != nil {
			return err
		}
		// The lock conflicts with the SQL function pools_keep: a machine or a token that names the
		// pool is either committed by now and counted below, or finds no pool and creates it again.
		if _, _, err := lockPool(ctx, tx, name); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM machines WHERE pool = @name AND state <> 'retired'),
				(SELECT count(*) FROM join_tokens WHERE pool = @name AND used_at IS NULL AND expires_at > now())`,
			args).Scan(&machines, &tokens)
		if err != nil {
			return err
		}
		if err := errPoolInUse(name, machines, tokens, jobs); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM pools WHERE id = @name`, namedArgs{"name": name})
		return err
	}))
}

// errPoolInUse names the reasons for which a pool cannot be deleted, or returns nil.
func errPoolInUse(name string, machines, tokens, jobs int) error {
	var parts []string
	if machines > 0 {
		parts = append(parts, "it has "+plural(machines, "machine"))
	}
	if tokens > 0 {
		parts = append(parts, "it has "+plural(tokens, "unused join token"))
	}
	if jobs > 0 {
		parts = append(parts, "constraints of "+plural(jobs, "live job")+" name it")
	}
	if parts == nil {
		return nil
	}
	return berth.Errorf(berth.CodeConflict, "pool %s cannot be deleted: %s", name, strings.Join(parts, ", "))
}

// changed notifies the leader of a committed change, or maps the error of a failed one.
func (d *Pools) changed(name string, err error) error {
	if err != nil {
		return mapError(err, "pool "+name)
	}
	d.hub.Publish(TopicQueue, KeyTenants)
	return nil
}
