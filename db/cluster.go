package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// ID returns the random identity of this database.
func (d *Cluster) ID(ctx context.Context) (string, error) {
	return clusterID(ctx, d.core)
}

// clusterID implements Cluster.ID for every store of this package.
func clusterID(ctx context.Context, d *core) (string, error) {
	var id string
	err := d.pool.QueryRow(ctx, `SELECT id FROM cluster`).Scan(&id)
	return id, mapError(err, "cluster")
}

// StoreID returns the id of the cluster's object store, or "" before RecordStoreID.
func (d *Cluster) StoreID(ctx context.Context) (id string, err error) {
	err = d.pool.QueryRow(ctx, `SELECT coalesce(store_id, '') FROM cluster`).Scan(&id)
	return id, mapError(err, "cluster")
}

// RecordStoreID records the id of the cluster's object store, unless another one is recorded, and returns the recorded
// one: replicas that start at once agree on it.
func (d *Cluster) RecordStoreID(ctx context.Context, id string) (recorded string, err error) {
	err = d.pool.QueryRow(ctx, `
		UPDATE cluster SET store_id = coalesce(store_id, @id) RETURNING store_id`, namedArgs{"id": id}).
		Scan(&recorded)
	return recorded, mapError(err, "cluster")
}

// AdoptStoreID replaces the id of the cluster's object store, and returns the one before, or "" if there was none. No
// berthd may run: a change that a server has checked against the store before may commit after.
func (d *Cluster) AdoptStoreID(ctx context.Context, id string) (before string, err error) {
	err = d.pool.QueryRow(ctx, `
		WITH old AS (SELECT coalesce(store_id, '') AS id FROM cluster FOR UPDATE)
		UPDATE cluster SET store_id = @id FROM old RETURNING old.id`, namedArgs{"id": id}).
		Scan(&before)
	return before, mapError(err, "cluster")
}

// SecretsAs returns how containers receive secrets if their job file does not say (spec.SecretsFile
// and others).
func (d *Cluster) SecretsAs(ctx context.Context) (string, error) {
	var as string
	err := d.pool.QueryRow(ctx, `SELECT secrets_as FROM cluster`).Scan(&as)
	return as, mapError(err, "cluster")
}

// ContainerUser returns the user of containers whose job file has no user (spec.UserTenant or
// spec.UserImage).
func (d *Cluster) ContainerUser(ctx context.Context) (string, error) {
	var user string
	err := d.pool.QueryRow(ctx, `SELECT container_user FROM cluster`).Scan(&user)
	return user, mapError(err, "cluster")
}

// UserPool returns the range from which tenants get their users.
func (d *Cluster) UserPool(ctx context.Context) (spec.UserPool, error) {
	p, err := userPool(ctx, d.pool)
	return p, mapError(err, "cluster")
}

// SetUserPool replaces the range from which tenants get their users. Ranges that tenants have stay as they are.
// It reports whether the range was another one before.
func (d *Cluster) SetUserPool(ctx context.Context, p spec.UserPool) (changed bool, err error) {
	tag, err := d.pool.Exec(ctx, `
		UPDATE cluster
		SET container_uids = int8range(@first, @beyond), uids_per_tenant = @size
		WHERE (container_uids, uids_per_tenant) <> (int8range(@first, @beyond), @size)`,
		namedArgs{"first": int64(p.First), "beyond": int64(p.Last) + 1, "size": p.PerTenant})
	return tag.RowsAffected() > 0, mapError(err, "cluster")
}

// Quarantine returns the quarantine of this cluster. ok is false for a cluster in service.
func (d *Cluster) Quarantine(ctx context.Context) (q Quarantine, ok bool, err error) {
	var since, taken *time.Time
	err = d.pool.QueryRow(ctx, `SELECT quarantined_at, backup_taken_at FROM cluster`).Scan(&since, &taken)
	if err != nil || since == nil {
		return Quarantine{}, false, mapError(err, "cluster")
	}
	q.Since = *since
	if taken != nil {
		q.Taken = *taken
	}
	return q, true, nil
}

// Miscount is a machine whose counters differ from the sum of its allocations. No job
// should be placed on the machine until an operator has found the cause.
type Miscount struct {
	Machine berth.MachineID
	Detail  string
}

// Miscounts compares the counters of machines and devices with the allocations
// of them that count, in one statement and so as of one moment.
func (d *Cluster) Miscounts(ctx context.Context) ([]Miscount, error) {
	rows, err := d.pool.Query(ctx, `
		WITH live AS (
			SELECT id, machine_id, cpu_m, mem_mb, disk_mb, gpu_milli
			FROM allocations
			WHERE state IN ('reserved', 'active', 'orphaned')
		), machine_sums AS (
			SELECT machine_id, sum(cpu_m) AS cpu_m, sum(mem_mb) AS mem_mb, sum(disk_mb) AS disk_mb,
				sum(gpu_milli) AS gpu_milli
			FROM live
			GROUP BY machine_id
		), device_sums AS (
			SELECT c.machine_id, c.idx, sum(c.milli) AS milli
			FROM live l
			JOIN device_allocations c ON c.alloc_id = l.id
			GROUP BY c.machine_id, c.idx
		)
		SELECT m.id, format('counted cpu %s, memory %s, disk %s, gpu %s; allocations add up to %s, %s, %s, %s',
			m.cpu_m_used, m.mem_mb_used, m.disk_mb_used, m.gpu_milli_used,
			coalesce(s.cpu_m, 0), coalesce(s.mem_mb, 0), coalesce(s.disk_mb, 0), coalesce(s.gpu_milli, 0))
		FROM machines m
		LEFT JOIN machine_sums s ON s.machine_id = m.id
		WHERE (m.cpu_m_used, m.mem_mb_used, m.disk_mb_used, m.gpu_milli_used)
		   <> (coalesce(s.cpu_m, 0), coalesce(s.mem_mb, 0), coalesce(s.disk_mb, 0), coalesce(s.gpu_milli, 0))
		UNION ALL
		SELECT g.machine_id, format('GPU %s: counted %s; allocations add up to %s', g.idx, g.milli_used,
			coalesce(s.milli, 0))
		FROM gpu_devices g
		LEFT JOIN device_sums s ON s.machine_id = g.machine_id AND s.idx = g.idx
		WHERE g.milli_used <> coalesce(s.milli, 0)
		ORDER BY 1`)
	if err != nil {
		return nil, mapError(err, "counters")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Miscount])
	return list, mapError(err, "counters")
}

// EnsurePartitions creates the missing monthly partitions of this and the next months.
func (d *Cluster) EnsurePartitions(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, `SELECT ensure_partitions()`)
	return mapError(err, "partitions")
}
