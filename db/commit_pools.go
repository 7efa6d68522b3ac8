package db

import (
	"github.com/jackc/pgx/v5"

	"berth"
)

// poolSite is a job and a machine on which a decision starts the job.
type poolSite struct {
	job     berth.JobID
	machine berth.MachineID
}

// queuePools reads the machines whose pool does not accept the tenant of their new job. The trigger
// allocations_tenants refuses such a start too, but then the whole batch fails. If no pool has rules,
// the statement reads no rows.
func (p *present) queuePools(batch *pgx.Batch, starts []berth.Start) {
	var jobs []berth.JobID
	var machines []berth.MachineID
	for _, s := range starts {
		for _, r := range s.Ranks {
			jobs, machines = append(jobs, s.Job), append(machines, r.Machine)
		}
	}
	batch.Queue(`
		SELECT j.id::text, m.id, p.id
		FROM unnest($1::uuid[], $2::text[]) AS x (job, machine)
		JOIN machines m ON m.id = x.machine
		JOIN pools p ON p.id = m.pool AND p.tenants IS NOT NULL
		JOIN jobs j ON j.id = x.job
		WHERE (SELECT EXISTS (SELECT 1 FROM pools WHERE tenants IS NOT NULL))
		  AND NOT tenant_within(j.tenant, p.tenants)`,
		jobs, machines).Query(func(rows pgx.Rows) error {
		var at poolSite
		var pool string
		_, err := pgx.ForEachRow(rows, []any{&at.job, &at.machine, &pool}, func() error {
			p.closed[at] = pool
			return nil
		})
		return err
	})
}
