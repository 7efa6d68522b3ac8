package db

import (
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
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

// queueTenants reads the tenants that use the machines of pools whose machines are used by one tenant at a time. The
// locks of the machines keep other commits away. The trigger allocations_under_rules refuses such a start too, but then
// the whole batch fails. If no pool has the rule, the statement reads no rows.
func (p *present) queueTenants(batch *pgx.Batch, machines []berth.MachineID) {
	batch.Queue(`
		SELECT m.id, coalesce(j.tenant, '')
		FROM machines m
		JOIN pools p ON p.id = m.pool AND p.one_tenant
		LEFT JOIN allocations a ON a.machine_id = m.id AND a.forgotten_at IS NULL AND counts(a.state)
		LEFT JOIN jobs j ON j.id = a.job
		WHERE m.id = ANY($1) AND (SELECT EXISTS (SELECT 1 FROM pools WHERE one_tenant))`,
		machines).Query(func(rows pgx.Rows) error {
		var id berth.MachineID
		var tenant berth.TenantID
		_, err := pgx.ForEachRow(rows, []any{&id, &tenant}, func() error {
			m := p.machines[id]
			m.oneTenant = true
			if tenant != "" {
				m.tenants = append(m.tenants, tenant)
			}
			return nil
		})
		return err
	})
}

// usedByOther reports whether another tenant uses the machine, which is used by one tenant at a time.
func (m *presentMachine) usedByOther(t berth.TenantID) bool {
	return m.oneTenant && slices.ContainsFunc(m.tenants, func(o berth.TenantID) bool { return o != t })
}

// queueFloors reads the machines that do not meet the security floors, of new jobs of untrusted tenants. The trigger
// allocations_under_rules refuses such a start too, but then the whole batch fails. If no tenant is untrusted, the
// statement reads no rows.
func (p *present) queueFloors(batch *pgx.Batch, starts []berth.Start) {
	var jobs []berth.JobID
	var machines []berth.MachineID
	for _, s := range starts {
		for _, r := range s.Ranks {
			jobs, machines = append(jobs, s.Job), append(machines, r.Machine)
		}
	}
	batch.Queue(`
		SELECT j.id::text, m.id, meets_floors(m),
			CASE WHEN m.floor_boot = m.agent_boot THEN coalesce(m.floor_findings, '[]') ELSE '[]' END
		FROM unnest($1::uuid[], $2::text[]) AS x (job, machine)
		JOIN machines m ON m.id = x.machine
		JOIN jobs j ON j.id = x.job
		WHERE (SELECT EXISTS (SELECT 1 FROM tenants WHERE untrusted)) AND tenant_untrusted(j.tenant)`,
		jobs, machines).Query(func(rows pgx.Rows) error {
		var at poolSite
		var met bool
		var findings []wire.HostFinding
		_, err := pgx.ForEachRow(rows, []any{&at.job, &at.machine, &met, &findings}, func() error {
			p.distrust[at.job] = true
			if !met {
				p.exposed[at] = unmetText(findings)
			}
			findings = nil
			return nil
		})
		return err
	})
}
