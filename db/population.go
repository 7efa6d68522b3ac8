package db

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/wire"
)

// Population is the number of rows in each state.
type Population struct {
	Jobs     map[berth.State]int                 // every live state has a key, also with 0 jobs
	Machines map[berth.MachineState]int          // by shown state; every state has a key
	Tenants  map[berth.TenantID]TenantPopulation // every tenant has a key, up to maxTenantCounts

	Led bool // a process has the lead by the database's clock

	// Silent is the number of machines that are suspect or lost, without the machines that may be switched
	// off: drained machines that hold no work, and machines in a maintenance window.
	Silent int

	SilentEngines int // machines, neither lost nor retired, whose container engine does not answer

	// Total and Used sum the capacity of all machines that are not retired. Unreachable
	// and draining machines count, because their capacity may be in use.
	Total, Used berth.Capacity
	GPUs        map[string]GPUPopulation // by model
}

// TenantPopulation counts the live jobs of one tenant, without tenants below it.
type TenantPopulation struct {
	Waiting int // submitted, queued or retrying
	Running int // holding capacity

	// Oldest is the time since which the longest waiting job that may be placed has waited in
	// its status; zero: none waits. Held jobs and blocked steps wait for something else.
	Oldest time.Time
}

// maxTenantCounts bounds the tenants that are counted apart. Beyond it, tenants without live
// jobs are left out first, then the tenants with the highest ids.
const maxTenantCounts = 500

// machineStates are the states that machines are shown in.
var machineStates = []berth.MachineState{berth.MachineJoining, wire.MachinePending, berth.MachineReady,
	berth.MachineSuspect, berth.MachineDraining, wire.MachineDrained, berth.MachineLost, berth.MachineRetired}

// GPUPopulation counts the devices of one model.
type GPUPopulation struct {
	Total     int
	Unhealthy int
	UsedMilli int64 // thousandths of a device
}

// Population counts live jobs, machines and their devices. Statuses without a job count as 0, so that a
// metric does not vanish. Its statements have a snapshot each.
func (d *Cluster) Population(ctx context.Context) (Population, error) {
	p := Population{Jobs: map[berth.State]int{}, Machines: map[berth.MachineState]int{},
		Tenants: map[berth.TenantID]TenantPopulation{}}
	for _, s := range machineStates {
		p.Machines[s] = 0
	}
	for _, s := range berth.States {
		if !s.Terminal() {
			p.Jobs[s] = 0
		}
	}
	rows, err := d.pool.Query(ctx, `
		SELECT 'job', tenant, state, count(*), min(state_at) FILTER (
			WHERE state IN ('submitted', 'queued', 'retrying') AND NOT held AND NOT blocked)
		FROM jobs
		WHERE kind = 'job' AND state NOT IN ('succeeded', 'failed', 'canceled')
		GROUP BY tenant, state
		UNION ALL
		SELECT 'machine', '', shown.state, count(*), NULL
		FROM machines m
		CROSS JOIN LATERAL (SELECT `+shownState+` AS state) shown
		GROUP BY shown.state`)
	if err != nil {
		return p, mapError(err, "counts")
	}
	var what, tenant, state string
	var n int
	var oldest *time.Time
	_, err = pgx.ForEachRow(rows, []any{&what, &tenant, &state, &n, &oldest}, func() error {
		if what == "job" {
			p.Jobs[berth.State(state)] += n
			p.count(berth.TenantID(tenant), berth.State(state), n, oldest)
		} else {
			p.Machines[berth.MachineState(state)] = n
		}
		return nil
	})
	if err != nil {
		return p, mapError(err, "counts")
	}
	if err := p.readTenants(ctx, d.pool); err != nil {
		return p, mapError(err, "counts")
	}
	return p, mapError(p.readCapacity(ctx, d.pool), "counts")
}

// count adds the jobs of a tenant in one status.
func (p *Population) count(tenant berth.TenantID, state berth.State, n int, oldest *time.Time) {
	t := p.Tenants[tenant]
	if state.HoldsCapacity() {
		t.Running += n
	} else {
		t.Waiting += n
	}
	if oldest != nil && (t.Oldest.IsZero() || oldest.Before(t.Oldest)) {
		t.Oldest = *oldest
	}
	p.Tenants[tenant] = t
}

// readTenants adds tenants without live jobs as zeros and bounds the number of tenants.
func (p *Population) readTenants(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, `SELECT id FROM tenants ORDER BY id LIMIT $1`, maxTenantCounts)
	if err != nil {
		return err
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[berth.TenantID])
	if err != nil {
		return err
	}
	for _, id := range known {
		if _, counted := p.Tenants[id]; !counted && len(p.Tenants) < maxTenantCounts {
			p.Tenants[id] = TenantPopulation{}
		}
	}
	busy := slices.Sorted(maps.Keys(p.Tenants))
	for _, id := range busy[min(len(busy), maxTenantCounts):] {
		delete(p.Tenants, id)
	}
	return nil
}

// readCapacity sums capacities in thousandths and MiB, and counts GPUs by model.
func (p *Population) readCapacity(ctx context.Context, pool *pgxpool.Pool) error {
	err := pool.QueryRow(ctx, `
		SELECT coalesce(sum(cpu_m), 0)::bigint, coalesce(sum(mem_mb), 0)::bigint, coalesce(sum(disk_mb), 0)::bigint,
			coalesce(sum(gpu_milli), 0)::bigint,
			coalesce(sum(cpu_m_used), 0)::bigint, coalesce(sum(mem_mb_used), 0)::bigint,
				coalesce(sum(disk_mb_used), 0)::bigint, coalesce(sum(gpu_milli_used), 0)::bigint,
			count(*) FILTER (WHERE engine_silent_since IS NOT NULL AND state <> 'lost'),
			count(*) FILTER (WHERE state IN ('suspect', 'lost') AND NOT (drain_reason IS NOT NULL AND NOT EXISTS (
				SELECT 1 FROM allocations a WHERE a.machine_id = m.id AND `+heldThere+`)) AND NOT `+insideWindow+`),
			EXISTS (SELECT 1 FROM leases WHERE name = $1 AND expires_at >= clock_timestamp())
		FROM machines m
		WHERE state <> 'retired'`, LeaseLeader).
		Scan(&p.Total.CPUMilli, &p.Total.MemoryMiB, &p.Total.DiskMiB, &p.Total.GPUMilli,
			&p.Used.CPUMilli, &p.Used.MemoryMiB, &p.Used.DiskMiB, &p.Used.GPUMilli, &p.SilentEngines, &p.Silent,
			&p.Led)
	if err != nil {
		return err
	}
	rows, err := pool.Query(ctx, `
		SELECT g.model, count(*), count(*) FILTER (WHERE NOT g.healthy), sum(g.milli_used)::bigint
		FROM gpu_devices g
		JOIN machines m ON m.id = g.machine_id AND m.state <> 'retired'
		GROUP BY g.model`)
	if err != nil {
		return err
	}
	p.GPUs = map[string]GPUPopulation{}
	var model string
	var g GPUPopulation
	_, err = pgx.ForEachRow(rows, []any{&model, &g.Total, &g.Unhealthy, &g.UsedMilli}, func() error {
		p.GPUs[model] = g
		return nil
	})
	return err
}
