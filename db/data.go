package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// MachineCache is what a machine's cache holds, as its agent told last.
type MachineCache struct {
	Machine berth.MachineID
	Holds   []spec.CachedData
}

// dataOf is jobs.data of a spec. No key comes first where a reader of the queue is
// to look for outputs of other jobs too: nearly all jobs have an image and few have
// those, and to look for them in vain costs as much as half of reading the row.
func dataOf(tenant berth.TenantID, jobSpec spec.Job) []spec.DataKey {
	keys := jobSpec.DataKeys(tenant)
	if len(jobSpec.OutputsNamed()) > 0 {
		keys = slices.Insert(keys, 0, noData)
	}
	return keys
}

// noData is the zero DataKey, which names nothing.
const noData spec.DataKey = 0

// dataColumn is the keys of all that a job j needs. Outputs of other jobs are
// known once they are bound, which for a step may be long after its submit.
const dataColumn = `
	CASE WHEN j.data[1] = 0 THEN j.data[2:] || ARRAY(
		SELECT content_key(j.tenant, o.address)
		FROM job_inputs i
		JOIN outputs o ON o.job = i.source AND o.attempt = i.attempt AND o.rank = i.rank AND o.name = i.name
		WHERE i.job = j.id
		ORDER BY i.input) ELSE j.data END`

// A machine that is retired holds nothing for anybody. Its row goes with that; one
// that a report under way has left is never read.
const fedCaches = `
	SELECT machine_id, keys, mib
	FROM machine_caches c
	WHERE xid >= @cursor AND xid < pg_snapshot_xmin(pg_current_snapshot())
	  AND EXISTS (SELECT 1 FROM machines m WHERE m.id = c.machine_id AND m.state <> 'retired')`

// In the order of placement's lists, which are built of it.
const allCaches = `
	SELECT c.machine_id, c.keys, c.mib
	FROM machine_caches c
	JOIN machines m ON m.id = c.machine_id
	WHERE m.state <> 'retired'
	ORDER BY c.machine_id`

func collectCaches(rows pgx.Rows, into *[]MachineCache) error {
	defer rows.Close()
	for rows.Next() {
		var c MachineCache
		var keys []spec.DataKey
		var mib []int64
		if err := rows.Scan(&c.Machine, &keys, &mib); err != nil {
			return fmt.Errorf("read cache: %w", err)
		}
		for i, key := range keys {
			c.Holds = append(c.Holds, spec.CachedData{Key: key, MiB: mib[i]})
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
	for _, x := range holds[:min(len(holds), spec.MaxCachedData)] {
		if x.MiB > 0 && !slices.Contains(keys, int64(x.Key)) {
			keys, mib = append(keys, int64(x.Key)), append(mib, min(x.MiB, spec.MaxInputBytes>>20))
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
