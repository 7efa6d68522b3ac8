package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// FleetUse is the measured use of all machines with a recent report. Reservations are not part of it.
type FleetUse struct {
	CPUMilli, MemoryMiB int64                       // of jobs
	BusyGPUs            map[string]float64          // devices, by model; models without a measurement are left out
	FreeDisk            map[berth.MachineID]float64 // free share, from 0 to 1, of each machine that reports one
}

// FleetUse adds up the last reports of the machines that are neither lost nor retired. Reports older
// than wire.UseAge do not count: an agent that is away must not show old use. One statement returns two
// kinds of rows, one for each machine and one for each GPU model. An agent of an earlier version
// reports no share of its disk.
func (d *Machines) FleetUse(ctx context.Context) (FleetUse, error) {
	f := FleetUse{BusyGPUs: map[string]float64{}, FreeDisk: map[berth.MachineID]float64{}}
	// MATERIALIZED: the reports are read once for both parts of the answer.
	rows, err := d.pool.Query(ctx, `
		WITH recent AS MATERIALIZED (
			SELECT u.machine_id, u.use
			FROM machine_use u
			JOIN machines m ON m.id = u.machine_id AND m.state NOT IN ('lost', 'retired')
			WHERE u.at > now() - make_interval(secs => $1)
		)
		SELECT 'machine', r.machine_id, (r.use ->> 'cpu_milli')::bigint, (r.use ->> 'memory_mib')::bigint,
			(r.use ->> 'disk_free')::double precision
		FROM recent r
		UNION ALL
		SELECT 'model', g.model, 0, 0, sum((now.gpu ->> 'busy')::double precision)
		FROM recent r
		CROSS JOIN LATERAL jsonb_array_elements(r.use -> 'gpus') now (gpu)
		JOIN gpu_devices g ON g.machine_id = r.machine_id AND g.uuid = now.gpu ->> 'uuid'
		WHERE now.gpu ? 'busy'
		GROUP BY g.model`, wire.UseAge.Seconds())
	if err != nil {
		return f, mapError(err, "use of machines")
	}
	var of, name string
	var cpu, memory int64
	var share *float64
	_, err = pgx.ForEachRow(rows, []any{&of, &name, &cpu, &memory, &share}, func() error {
		f.CPUMilli += cpu
		f.MemoryMiB += memory
		switch {
		case share == nil: // from an agent of before this field
		case of == "model":
			f.BusyGPUs[name] = *share
		default:
			f.FreeDisk[berth.MachineID(name)] = *share
		}
		return nil
	})
	return f, mapError(err, "use of machines")
}
