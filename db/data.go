package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// MachineCache is the content of a machine's cache, as its agent last reported.
type MachineCache struct {
	Machine berth.MachineID
	Holds   []spec.CachedData
}

// dataOf returns the value of jobs.data for a spec: the keys of its code, inputs and image. A
// leading noData marks a job that also reads outputs of other jobs, for dataColumn. Nearly
// all jobs have an image and few read outputs, and a lookup of outputs in vain costs half as
// much as reading the row.
func dataOf(tenant berth.TenantID, jobSpec spec.Job) []spec.DataKey {
	keys := jobSpec.DataKeys(tenant)
	if len(jobSpec.OutputsNamed()) > 0 {
		keys = slices.Insert(keys, 0, noData)
	}
	return keys
}

// noData is the zero DataKey, which identifies no content.
const noData spec.DataKey = 0

// dataColumn selects the keys of all data that a job j needs. Outputs of other jobs are known
// only once they are bound, which for a step may be long after its submission.
const dataColumn = `
	CASE WHEN j.data[1] = 0 THEN j.data[2:] || ARRAY(
		SELECT content_key(j.tenant, o.address)
		FROM job_inputs i
		JOIN outputs o ON o.job = i.source AND o.attempt = i.attempt AND o.rank = i.rank AND o.name = i.name
		WHERE i.job = j.id
		ORDER BY i.input) ELSE j.data END`

// fedCaches selects the caches that changed since @cursor; see fedMachines. A retired
// machine's cache is left out: its row is deleted on retirement, and a row that a concurrent
// report inserts afterwards is never read.
const fedCaches = `
	SELECT machine_id, keys, mib
	FROM machine_caches c
	WHERE xid >= @cursor AND xid < pg_snapshot_xmin(pg_current_snapshot())
	  AND EXISTS (SELECT 1 FROM machines m WHERE m.id = c.machine_id AND m.state <> 'retired')`

// allCaches selects all caches, in the order of the lists that placement builds from them.
const allCaches = `
	SELECT c.machine_id, c.keys, c.mib
	FROM machine_caches c
	JOIN machines m ON m.id = c.machine_id
	WHERE m.state <> 'retired'
	ORDER BY c.machine_id`

// collectCaches appends the rows of fedCaches or allCaches to into.
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

// writeCache queues the write of the machine's reported cache, which changes the row only if
// the content differs: each change makes the feed return the row again. It takes the first
// spec.MaxCachedData entries of a longer report and caps the size of each.
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
		namedArgs{"machine": r.machine, "keys": keys, "mib": mib})
	return nil
}
