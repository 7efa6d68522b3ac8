package db

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Events returns a machine's history after seq, oldest first, at most limit entries. An entry
// repeats the condition from its time on, so two entries may differ in capacity or epoch alone.
// Entries older than berthd's retention are removed, except for the latest one before it.
func (d *Machines) Events(ctx context.Context, id berth.MachineID, after int64, limit int) ([]wire.MachineEvent,
	error) {
	var known bool
	args := namedArgs{"id": id, "after": after, "limit": limit}
	err := d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM machines WHERE id = @id)`, args).Scan(&known)
	if err != nil {
		return nil, mapError(err, "machine "+string(id))
	}
	if !known {
		return nil, berth.Errorf(berth.CodeNotFound, "no such machine %s", id)
	}
	rows, err := d.pool.Query(ctx, `
		SELECT jsonb_strip_nulls(jsonb_build_object('seq', e.seq, 'at', e.at, 'gpu', e.gpu, 'state', e.state,
			'reason', e.reason, 'actor', e.actor, 'drain_deadline', e.drain_deadline, 'epoch', e.epoch))
		FROM machine_events e
		WHERE e.machine_id = @id AND e.seq > @after
		ORDER BY e.seq
		LIMIT @limit`, args)
	if err != nil {
		return nil, mapError(err, "machine "+string(id))
	}
	events, err := pgx.CollectRows(rows, pgx.RowTo[wire.MachineEvent])
	return events, mapError(err, "machine "+string(id))
}

// imageJobs is the number of the cluster's latest jobs whose images can be named; see Images.
const imageJobs = 5000

// Images returns the images that a machine holds, largest first. An agent reports a cache as
// keys of its content, which reveal no name, so images are named by the specs of the imageJobs
// latest jobs, as far as they belong to the tenant ("" for all tenants). An image that only
// older jobs name is missing, and so is an image that is too small for the agent to report.
func (d *Machines) Images(ctx context.Context, tenant berth.TenantID, id berth.MachineID) ([]wire.MachineImage,
	error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT j.tenant, s.spec ->> 'image', c.keys, c.mib
		FROM machine_caches c, (
			SELECT id, tenant, data
			FROM jobs
			ORDER BY id DESC
			LIMIT @limit
		) j
		JOIN job_specs s ON s.job = j.id
		WHERE c.machine_id = @id AND (@tenant = '' OR j.tenant = @tenant) AND j.data && c.keys AND s.spec ? 'image'`,
		namedArgs{"tenant": string(tenant), "id": id, "limit": imageJobs})
	if err != nil {
		return nil, mapError(err, "machine "+string(id))
	}
	var list []wire.MachineImage
	var one wire.MachineImage
	var keys []spec.DataKey
	var mib []int64
	_, err = pgx.ForEachRow(rows, []any{&one.Tenant, &one.Image, &keys, &mib}, func() error {
		if i := slices.Index(keys, spec.ImageKey(one.Tenant, one.Image)); i >= 0 {
			one.MiB = mib[i]
			list = append(list, one)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b wire.MachineImage) int {
		return cmp.Or(cmp.Compare(b.MiB, a.MiB), cmp.Compare(a.Image, b.Image), cmp.Compare(a.Tenant, b.Tenant))
	})
	return list, mapError(err, "machine "+string(id))
}
