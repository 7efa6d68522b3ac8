package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
)

// writeGPUs matches devices by UUID, so that one keeps its index however the
// driver numbers it today: claims name the index. A device that is not reported
// any more is unhealthy, never deleted.
func (r *registration) writeGPUs(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, `
		SELECT idx, uuid
		FROM gpu_devices
		WHERE machine_id = @machine
		ORDER BY idx
		FOR NO KEY UPDATE`, pgx.NamedArgs{"machine": r.machine})
	if err != nil {
		return fmt.Errorf("lock devices: %w", err)
	}
	index, taken, most := map[string]int{}, map[int]bool{}, -1
	var idx int
	var uuid string
	if _, err := pgx.ForEachRow(rows, []any{&idx, &uuid}, func() error {
		index[uuid], taken[idx], most = idx, true, max(most, idx)
		return nil
	}); err != nil {
		return fmt.Errorf("lock devices: %w", err)
	}
	gpus := slices.Clone(r.req.Inventory.GPUs)
	for i, g := range gpus {
		if g.UUID == "" || g.Index < 0 {
			return berth.Errorf(berth.CodeInvalid, "GPU %d: a device needs a uuid and an index that is not negative",
				g.Index)
		}
		known, ok := index[g.UUID]
		switch {
		case ok:
			gpus[i].Index = known
		case taken[g.Index]:
			most = max(most, g.Index) + 1
			gpus[i].Index = most
		}
		taken[gpus[i].Index], most = true, max(most, gpus[i].Index)
	}
	// What is left of a retired machine lays no claim to hardware.
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
	if IsConstraint(err, "gpu_devices_uuid_key") {
		return berth.Errorf(berth.CodeConflict,
			"a GPU of machine %s is registered by another machine; retire that one first", r.machine)
	}
	if err != nil {
		return fmt.Errorf("store devices: %w", err)
	}
	_, err = r.tx.Exec(ctx, `
		UPDATE machines
		SET gpu_milli = 1000 * (SELECT count(*) FROM gpu_devices WHERE machine_id = @machine)
		WHERE id = @machine`, pgx.NamedArgs{"machine": r.machine})
	if err != nil {
		return err
	}
	return quarantine(ctx, r.tx, r.machine, gpus)
}

// quarantine drains the machine if one of its devices says that it concerns all
// of it. What runs there goes on; an operator reboots the host and undrains it.
func quarantine(ctx context.Context, tx pgx.Tx, machine berth.MachineID, gpus []berth.GPU) error {
	at := slices.IndexFunc(gpus, func(g berth.GPU) bool { return g.Quarantine && !g.Healthy })
	if at < 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		UPDATE machines
		SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = NULL
		WHERE id = @machine AND state IN ('joining', 'ready', 'suspect')`,
		pgx.NamedArgs{"machine": machine, "reason": fmt.Sprintf("quarantine: GPU %d: %s; then undrain it",
			gpus[at].Index, gpus[at].Reason)})
	if err != nil {
		return fmt.Errorf("quarantine machine %s: %w", machine, err)
	}
	return nil
}

func gpuArgs(machine berth.MachineID, gpus []berth.GPU) pgx.NamedArgs {
	n := len(gpus)
	idx, uuid, model, mem := make([]int, n), make([]string, n), make([]string, n), make([]int64, n)
	healthy, reason := make([]bool, n), make([]string, n)
	for i, g := range gpus {
		idx[i], uuid[i], model[i], mem[i], healthy[i], reason[i] = g.Index, g.UUID, g.Model, g.MemoryMiB,
			g.Healthy, g.Reason
	}
	return pgx.NamedArgs{"machine": machine, "idx": idx, "uuid": uuid, "model": model, "mem": mem, "healthy": healthy,
		"reason": reason}
}
