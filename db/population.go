package db

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
)

// Population is the number of rows in each state.
type Population struct {
	Jobs          map[berth.State]int // every live state has a key, also with 0 jobs
	Machines      map[berth.MachineState]int
	SilentEngines int // machines, neither lost nor retired, whose container engine does not answer

	// Total and Used sum the capacity of all machines that are not retired. Unreachable
	// and draining machines count, because their capacity may be in use.
	Total, Used berth.Capacity
	GPUs        map[string]GPUPopulation // by model
}

// GPUPopulation counts the devices of one model.
type GPUPopulation struct {
	Total     int
	Unhealthy int
	UsedMilli int64 // thousandths of a device
}

// Population counts live jobs, machines and their devices.
func (d *Cluster) Population(ctx context.Context) (Population, error) {
	p := Population{Jobs: map[berth.State]int{}, Machines: map[berth.MachineState]int{}}
	for _, s := range berth.States {
		if !s.Terminal() {
			p.Jobs[s] = 0
		}
	}
	rows, err := d.pool.Query(ctx, `
		SELECT 'job', state, count(*)
		FROM jobs
		WHERE kind = 'job' AND state NOT IN ('succeeded', 'failed', 'canceled')
		GROUP BY state
		UNION ALL
		SELECT 'machine', state, count(*)
		FROM machines
		GROUP BY state`)
	if err != nil {
		return p, mapError(err, "counts")
	}
	var what, state string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&what, &state, &n}, func() error {
		if what == "job" {
			p.Jobs[berth.State(state)] = n
		} else {
			p.Machines[berth.MachineState(state)] = n
		}
		return nil
	})
	if err != nil {
		return p, mapError(err, "counts")
	}
	return p, mapError(p.readCapacity(ctx, d.pool), "counts")
}

func (p *Population) readCapacity(ctx context.Context, pool *pgxpool.Pool) error {
	err := pool.QueryRow(ctx, `
		SELECT coalesce(sum(cpu_m), 0)::bigint, coalesce(sum(mem_mb), 0)::bigint, coalesce(sum(disk_mb), 0)::bigint,
			coalesce(sum(gpu_milli), 0)::bigint,
			coalesce(sum(cpu_m_used), 0)::bigint, coalesce(sum(mem_mb_used), 0)::bigint,
				coalesce(sum(disk_mb_used), 0)::bigint, coalesce(sum(gpu_milli_used), 0)::bigint,
			count(*) FILTER (WHERE engine_silent_since IS NOT NULL AND state <> 'lost')
		FROM machines
		WHERE state <> 'retired'`).
		Scan(&p.Total.CPUMilli, &p.Total.MemoryMiB, &p.Total.DiskMiB, &p.Total.GPUMilli,
			&p.Used.CPUMilli, &p.Used.MemoryMiB, &p.Used.DiskMiB, &p.Used.GPUMilli, &p.SilentEngines)
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
