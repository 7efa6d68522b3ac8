package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// SetTaints changes the taints of a machine. Taints of its pool are not affected. Jobs that run on the machine
// continue. A machine with too many taints is invalid, and an unknown one not_found.
func (d *Machines) SetTaints(ctx context.Context, id berth.MachineID, c spec.TaintChange) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var taints []string
		err := tx.QueryRow(ctx, `
			SELECT taints
			FROM machines
			WHERE id = @id AND state <> 'retired'
			FOR NO KEY UPDATE`, namedArgs{"id": id}).Scan(&taints)
		if err != nil {
			return err
		}
		// The row is locked, so two concurrent changes of different keys both count.
		after := c.Apply(taints)
		if len(after) > spec.MaxTaints {
			return berth.Errorf(berth.CodeInvalid, "machine %s would have %d taints: allowed are %d", id, len(after),
				spec.MaxTaints)
		}
		if slices.Equal(after, taints) {
			return nil
		}
		_, err = tx.Exec(ctx, `UPDATE machines SET taints = @taints WHERE id = @id`,
			namedArgs{"id": id, "taints": after})
		return err
	})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	// A removed taint may let waiting jobs start, so the leader plans again.
	d.hub.Publish(TopicQueue, "")
	d.hub.Publish(TopicMachine, string(id))
	return nil
}

// taintPool gives the machines of a pool the taints of the pool. The machines and the pool's row are locked.
func taintPool(ctx context.Context, tx pgx.Tx, pool string, taints []string) error {
	_, err := tx.Exec(ctx, `UPDATE machines SET pool_taints = @taints WHERE pool = @pool AND pool_taints <> @taints`,
		namedArgs{"pool": pool, "taints": taints})
	return err
}

// queueTaints reads the machines with a taint that the new job does not tolerate. The trigger allocations_under_rules
// refuses such a start too, but then the whole batch fails. If no machine has taints, the statement reads no rows.
func (p *present) queueTaints(batch *pgx.Batch, starts []berth.Start) {
	var jobs []berth.JobID
	var machines []berth.MachineID
	for _, s := range starts {
		for _, r := range s.Ranks {
			jobs, machines = append(jobs, s.Job), append(machines, r.Machine)
		}
	}
	batch.Queue(`
		SELECT j.id::text, m.id
		FROM unnest($1::uuid[], $2::text[]) AS x (job, machine)
		JOIN machines m ON m.id = x.machine
		JOIN jobs j ON j.id = x.job
		JOIN classes c ON c.class = j.class
		WHERE (SELECT EXISTS (SELECT 1 FROM machines WHERE taints <> '{}' OR pool_taints <> '{}'))
		  AND NOT tolerates(c.request, m.taints || m.pool_taints)`,
		jobs, machines).Query(func(rows pgx.Rows) error {
		var at poolSite
		_, err := pgx.ForEachRow(rows, []any{&at.job, &at.machine}, func() error {
			p.tainted[at] = true
			return nil
		})
		return err
	})
}
