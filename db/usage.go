package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
)

// FoldUsage adds recorded charges to the sums in the tenants' rows and deletes them from
// usage_charges, at most limit charges, and returns their number. Reads add both, so the
// use that they return does not change.
func (d *Tenants) FoldUsage(ctx context.Context, term Term, limit int) (int, error) {
	var some bool
	if err := d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM usage_charges)`).Scan(&some); err != nil || !some {
		return 0, mapError(err, "usage")
	}
	args := d.usageArgs()
	args["limit"] = limit
	var n int
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		// The charged tenants are locked in order of id before the update, which has no
		// order of its own.
		if _, err := tx.Exec(ctx, `
			SELECT 1
			FROM tenants
			WHERE id IN (SELECT tenant FROM usage_charges)
			ORDER BY id
			FOR NO KEY UPDATE`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			WITH taken AS MATERIALIZED (
				DELETE FROM usage_charges
				WHERE (alloc_id, entry_ms) IN (SELECT alloc_id, entry_ms FROM usage_charges
					ORDER BY alloc_id, entry_ms LIMIT @limit)
				RETURNING *
			), `+usageOf("taken")+`, folded AS (
				UPDATE tenants t
				SET used_cpu_s = `+usedNow("used_cpu_s")+` + u.cpu_s,
					used_mem_mb_s = `+usedNow("used_mem_mb_s")+` + u.mem_mb_s,
					used_gpu_s = `+usedNow("used_gpu_s")+` + u.gpu_s,
					used_at = n.at,
					period_gpu_s = CASE WHEN t.period_at = p.period THEN t.period_gpu_s ELSE 0 END + u.spent_s,
					period_at = p.period
				FROM u
				CROSS JOIN n
				JOIN p ON p.id = u.tenant
				WHERE t.id = u.tenant
			)
			SELECT count(*) FROM taken`, args).Scan(&n)
	})
	return n, mapError(err, "usage")
}

// SetStalled records the tenants with work that waits only for their quotas at present. The
// clocks of these tenants start, and the clocks of all other tenants stop.
func (d *Tenants) SetStalled(ctx context.Context, term Term, tenants []berth.TenantID) error {
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		args := namedArgs{"tenants": append([]berth.TenantID{}, tenants...)} // an empty array, never NULL
		_, err := tx.Exec(ctx, `
			SELECT 1
			FROM tenants
			WHERE (id = ANY(@tenants::text[])) <> (stalled_since IS NOT NULL)
			ORDER BY id
			FOR NO KEY UPDATE`, args)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE tenants
			SET stalled_ms = stalled_ms + coalesce(extract(epoch FROM clock_timestamp() - stalled_since) * 1000,
				0)::bigint,
				stalled_since = CASE WHEN id = ANY(@tenants::text[]) THEN clock_timestamp() END
			WHERE (id = ANY(@tenants::text[])) <> (stalled_since IS NOT NULL)`, args)
		return err
	})
	return mapError(err, "tenants")
}
