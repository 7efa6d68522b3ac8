package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// A checkpoint that exceeds a storage quota is refused as a whole step, for all members of
// the gang: the shards that other members have registered would never become a checkpoint,
// and would occupy storage until the attempt ends. The row of the step stays in state
// pruned, so that a later shard of the step is deleted too.

// refuseStep gives up a checkpoint step that exceeds a storage quota and adds an event with
// the reason, once per attempt. It returns the step's shards, including the reported one;
// the caller deletes their objects. See RegisterCheckpoint for backups.
func (d *Objects) refuseStep(
	ctx context.Context, machine berth.MachineID, p wire.CheckpointReport, why error,
) ([]PrunedShard, error) {
	var list []PrunedShard
	err := d.tx(ctx, func(tx pgx.Tx) error {
		list = nil
		c := checkpointing{tx: tx, machine: machine, report: p}
		if err := c.lock(ctx); err != nil {
			return err
		}
		var err error
		if list, err = c.giveUp(ctx, why); err != nil || len(list) == 0 {
			return err // a verified step stays: nothing was refused
		}
		err = addEventOnce(ctx, tx, p.Job, wire.EventCheckpointRefused, p.Attempt, AgentActor(machine),
			fmt.Sprintf("step %d was not stored, and the checkpoints before it stay: %v", p.Step, why))
		if err == nil {
			list, err = withoutHeld(ctx, tx, list)
		}
		return err
	})
	if err == nil {
		d.hub.Publish(TopicJob, string(p.Job))
	}
	return list, err
}

// giveUp marks the step as pruned, unless it is verified, and returns its shards, including
// the reported one. A verified step returns none.
func (c *checkpointing) giveUp(ctx context.Context, why error) ([]PrunedShard, error) {
	p := c.report
	rows, err := c.tx.Query(ctx, `
		WITH refused AS (
			INSERT INTO checkpoints AS c (job, step, attempt, ranks, state, detail)
			VALUES (@job, @step, @attempt, @ranks, 'pruned', @why)
			ON CONFLICT (job, step, attempt) DO UPDATE
			SET state = 'pruned', detail = excluded.detail
			WHERE c.state IN ('partial', 'pruned')
			RETURNING c.job
		)
		SELECT @rank::int FROM refused
		UNION
		SELECT h.rank
		FROM refused r
		JOIN checkpoint_shards h ON h.job = r.job AND h.step = @step AND h.attempt = @attempt
		ORDER BY 1`,
		namedArgs{
			"job": p.Job, "step": p.Step, "attempt": p.Attempt, "ranks": c.ranks, "rank": p.Rank, "why": why.Error(),
		})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (PrunedShard, error) {
		s := PrunedShard{Tenant: c.tenant, Job: p.Job, Attempt: p.Attempt, Step: p.Step}
		err := row.Scan(&s.Rank)
		return s, err
	})
}

// addEventOnce adds an event to a locked job, unless the attempt already has one of this
// kind.
func addEventOnce(
	ctx context.Context, tx pgx.Tx, job berth.JobID, kind wire.EventKind, attempt int, actor, detail string,
) error {
	var known bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM job_events WHERE job = @job AND kind = @kind AND attempt = @attempt)`,
		namedArgs{"job": job, "kind": kind, "attempt": attempt}).Scan(&known)
	if err != nil || known {
		return err
	}
	return addEvent(ctx, tx, job, wire.Event{Kind: kind, Attempt: attempt, Actor: actor, Detail: detail})
}

// RefuseCheckpoint handles a shard that exceeds a storage quota before it is stored; see
// RegisterCheckpoint. The report has no allocation id, so it is looked up.
func (d *Objects) RefuseCheckpoint(
	ctx context.Context, machine berth.MachineID, p wire.CheckpointReport, why error,
) ([]PrunedShard, error) {
	err := d.pool.QueryRow(ctx, `
		SELECT id FROM allocations WHERE job = @job AND attempt = @attempt AND rank = @rank AND machine_id = @machine`,
		namedArgs{"job": p.Job, "attempt": p.Attempt, "rank": p.Rank, "machine": machine}).Scan(&p.Alloc)
	var list []PrunedShard
	if err == nil {
		list, err = d.refuseStep(ctx, machine, p, why)
	}
	return list, mapError(err, fmt.Sprintf("checkpoint %d of job %s", p.Step, p.Job))
}

// doomOutput marks the object of a refused output for deletion in a day. By then the agent
// no longer retries the output; a retry that fits within a day takes the mark back.
//
// doomOutput locks the job's row, as RegisterOutput does. A repeated report may have been
// accepted between the refusal and this call, and its object must stay.
func (d *Objects) doomOutput(ctx context.Context, job berth.JobID, object string) error {
	return d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"job": job, "object": object}
		if _, err := tx.Exec(ctx, `SELECT 1 FROM jobs WHERE id = @job FOR NO KEY UPDATE`, args); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO doomed_objects (prefix, since)
			SELECT @object, clock_timestamp() + interval '1 day'
			WHERE NOT EXISTS (SELECT 1 FROM outputs WHERE object = @object)
			ON CONFLICT DO NOTHING`, args)
		return err
	})
}
