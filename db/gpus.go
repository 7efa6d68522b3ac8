package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
)

// writeGPUs stores the devices that the machine reports. It identifies devices by UUID:
// claims refer to a device by index, so a device keeps its index in the table even if the
// driver numbers it differently after a reboot. A device that is no longer reported becomes
// unhealthy and is never deleted.
func (r *registration) writeGPUs(ctx context.Context) error {
	gpus, err := r.indexGPUs(ctx)
	if err != nil {
		return err
	}
	// The hardware of a retired machine may have moved here. Its device rows make way, unless
	// capacity is still claimed on them.
	_, err = r.tx.Exec(ctx, `
		DELETE FROM gpu_devices g
		USING machines m
		WHERE m.id = g.machine_id AND m.id <> @machine AND m.state = 'retired'
		  AND g.uuid = ANY(@uuid::text[]) AND g.milli_used = 0`, gpuArgs(r.machine, gpus))
	if err != nil {
		return fmt.Errorf("take devices over from a retired machine: %w", err)
	}
	_, err = r.tx.Exec(ctx, `
		WITH seen AS (
			SELECT *
			FROM unnest(@idx::int[], @uuid::text[], @model::text[], @mem::bigint[], @healthy::bool[], @reason::text[])
			     AS s (idx, uuid, model, mem_mb, healthy, reason)
		), vanished AS (
			UPDATE gpu_devices
			SET healthy = false, reason = 'the machine does not report it any more'
			WHERE machine_id = @machine AND uuid NOT IN (SELECT uuid FROM seen)
		)
		INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb, healthy, reason)
		SELECT @machine, idx, uuid, model, mem_mb, healthy, reason
		FROM seen
		ORDER BY idx
		ON CONFLICT (machine_id, idx) DO UPDATE
		SET model = excluded.model, mem_mb = excluded.mem_mb, healthy = excluded.healthy, reason = excluded.reason`,
		gpuArgs(r.machine, gpus))
	// The UUID is unique over all machines, so one device is never offered twice.
	if IsConstraint(err, "gpu_devices_uuid_key") {
		return berth.Errorf(berth.CodeConflict,
			"a GPU of machine %s is registered by another machine; retire that one first", r.machine)
	}
	if err != nil {
		return fmt.Errorf("store devices: %w", err)
	}
	// The machine's total includes unhealthy and vanished devices.
	_, err = r.tx.Exec(ctx, `
		UPDATE machines
		SET gpu_milli = 1000 * (SELECT count(*) FROM gpu_devices WHERE machine_id = @machine)
		WHERE id = @machine`, namedArgs{"machine": r.machine})
	if err != nil {
		return err
	}
	return quarantine(ctx, r.tx, r.machine, gpus)
}

// indexGPUs locks the machine's devices and returns the reported ones, each with the index
// under which Berth knows it.
func (r *registration) indexGPUs(ctx context.Context) ([]berth.GPU, error) {
	rows, err := r.tx.Query(ctx, `
		SELECT idx, uuid
		FROM gpu_devices
		WHERE machine_id = @machine
		ORDER BY idx
		FOR NO KEY UPDATE`, namedArgs{"machine": r.machine})
	if err != nil {
		return nil, fmt.Errorf("lock devices: %w", err)
	}
	// index has the stored index by UUID; taken has the indexes in use, and most the highest.
	index, taken, most := map[string]int{}, map[int]bool{}, -1
	var idx int
	var uuid string
	if _, err := pgx.ForEachRow(rows, []any{&idx, &uuid}, func() error {
		index[uuid], taken[idx], most = idx, true, max(most, idx)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("lock devices: %w", err)
	}
	gpus := slices.Clone(r.req.Inventory.GPUs)
	for i, g := range gpus {
		if g.UUID == "" || g.Index < 0 {
			return nil, berth.Errorf(berth.CodeInvalid,
				"GPU %d: a device needs a uuid and an index of 0 or more", g.Index)
		}
		known, ok := index[g.UUID]
		switch {
		// A known device keeps its index. A new device whose index belongs to another device
		// gets the next index above all others.
		case ok:
			gpus[i].Index = known
		case taken[g.Index]:
			most = max(most, g.Index) + 1
			gpus[i].Index = most
		}
		taken[gpus[i].Index], most = true, max(most, gpus[i].Index)
	}
	return gpus, nil
}

// quarantine drains the machine if one of its devices has a fault that concerns the whole
// machine. Running work continues; an operator reboots the host and undrains the machine. A
// machine that is already draining keeps the reason of that drain.
func quarantine(ctx context.Context, tx pgx.Tx, machine berth.MachineID, gpus []berth.GPU) error {
	at := slices.IndexFunc(gpus, func(g berth.GPU) bool { return g.Quarantine && !g.Healthy })
	if at < 0 {
		return nil
	}
	return closeMachine(ctx, tx, machine, fmt.Sprintf("quarantine: GPU %d: %s; then undrain it",
		gpus[at].Index, gpus[at].Reason))
}

// closeMachine drains a machine for its agent, which knows the reason. Running work continues; an
// operator undrains the machine. A machine that is already draining keeps the reason of that drain,
// except for the drain of a maintenance window: its end would return the machine. Its deadline stays.
func closeMachine(ctx context.Context, tx pgx.Tx, machine berth.MachineID, reason string) error {
	if err := actAs(ctx, tx, AgentActor(machine)); err != nil {
		return fmt.Errorf("quarantine machine %s: %w", machine, err)
	}
	_, err := tx.Exec(ctx, `
		UPDATE machines
		SET state = 'draining', reason = @reason, drain_reason = @reason,
			drain_deadline = CASE WHEN state = 'draining' THEN drain_deadline END
		WHERE id = @machine AND (state IN ('joining', 'ready', 'suspect')
			OR state = 'draining' AND drain_actor LIKE 'maintenance:%')`,
		namedArgs{"machine": machine, "reason": reason})
	if err != nil {
		return fmt.Errorf("quarantine machine %s: %w", machine, err)
	}
	return nil
}

// gpuArgs returns the devices as one array per column, for unnest.
func gpuArgs(machine berth.MachineID, gpus []berth.GPU) namedArgs {
	n := len(gpus)
	idx, uuid, model, mem := make([]int, n), make([]string, n), make([]string, n), make([]int64, n)
	healthy, reason := make([]bool, n), make([]string, n)
	for i, g := range gpus {
		idx[i], uuid[i], model[i], mem[i], healthy[i], reason[i] = g.Index, g.UUID, g.Model, g.MemoryMiB,
			g.Healthy, g.Reason
	}
	return namedArgs{"machine": machine, "idx": idx, "uuid": uuid, "model": model, "mem": mem, "healthy": healthy,
		"reason": reason}
}
