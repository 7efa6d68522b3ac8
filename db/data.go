package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
)

// MachineCache is what a machine's cache holds, as its agent told last.
type MachineCache struct {
	Machine berth.MachineID
	Holds   []berth.CachedData
}

// dataOf is jobs.data of a spec: null where a reader of the queue need not look
// for outputs of other jobs either.
func dataOf(tenant berth.TenantID, spec berth.JobSpec) []berth.DataKey {
	keys := spec.DataKeys(tenant)
	if keys == nil && len(spec.OutputsNamed()) > 0 {
		keys = []berth.DataKey{}
	}
	return keys
}

// dataColumn is the keys of all that a job j needs. Outputs of other jobs are
// known once they are bound, which for a step may be long after its submit.
const dataColumn = `
	CASE WHEN j.data IS NOT NULL THEN j.data || ARRAY(
		SELECT content_key(j.tenant, o.address)
		FROM job_inputs i
		JOIN outputs o ON o.job = i.source AND o.attempt = i.attempt AND o.rank = i.rank AND o.name = i.name
		WHERE i.job = j.id
		ORDER BY i.input) END`

const fedCaches = `
	SELECT machine_id, keys, mib
	FROM machine_caches
	WHERE xid >= @cursor AND xid < pg_snapshot_xmin(pg_current_snapshot())`

const allCaches = `
	SELECT c.machine_id, c.keys, c.mib
	FROM machine_caches c
	JOIN machines m ON m.id = c.machine_id
	WHERE m.state <> 'retired'`

func collectCaches(rows pgx.Rows, into *[]MachineCache) error {
	defer rows.Close()
	for rows.Next() {
		var c MachineCache
		var keys []berth.DataKey
		var mib []int64
		if err := rows.Scan(&c.Machine, &keys, &mib); err != nil {
			return fmt.Errorf("read cache: %w", err)
		}
		for i, key := range keys {
			c.Holds = append(c.Holds, berth.CachedData{Key: key, MiB: mib[i]})
		}
		*into = append(*into, c)
	}
	return rows.Err()
}

// writeCache stores what the machine's cache holds, if that is not what stands
// there. Of more than anybody should tell, the first are taken.
func (r *reporting) writeCache(context.Context) error {
	if r.req.Cache == nil {
		return nil
	}
	holds := r.req.Cache.Holds
	keys, mib := []int64{}, []int64{}
	for _, x := range holds[:min(len(holds), berth.MaxCachedData)] {
		if x.MiB > 0 && !slices.Contains(keys, int64(x.Key)) {
			keys, mib = append(keys, int64(x.Key)), append(mib, min(x.MiB, berth.MaxInputBytes>>20))
		}
	}
	r.writes.Queue(`
		INSERT INTO machine_caches AS c (machine_id, keys, mib)
		VALUES (@machine, @keys, @mib)
		ON CONFLICT (machine_id) DO UPDATE
		SET keys = excluded.keys, mib = excluded.mib, xid = pg_current_xact_id()
		WHERE c.keys <> excluded.keys OR c.mib <> excluded.mib`,
		pgx.NamedArgs{"machine": r.machine, "keys": keys, "mib": mib})
	return nil
}
