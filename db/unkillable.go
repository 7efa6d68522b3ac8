package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// takeUnkillable gives up the members that the call lists as stuck. A failure to store this does not
// fail the call, whose renewal of the lease matters more: the agent lists the members again. Only the
// end of the session, or of the machine itself, is an error of the call.
func (c *syncCall) takeUnkillable(ctx context.Context) error {
	if len(c.req.Stuck) == 0 {
		return nil
	}
	err := c.giveUpUnkillable(ctx, c.machine, c.req)
	if berth.IsSlug(err, berth.SlugStaleEpoch) || berth.IsSlug(err, berth.SlugMachineRetired) {
		return err
	}
	if err != nil {
		c.log.Warn("cannot give up stuck members, the agent lists them again", "machine_id", c.machine, "err", err)
	}
	return nil
}

// giveUpUnkillable orphans members of the machine whose containers do not end on SIGKILL. An orphan's job is
// settled without it, and its capacity stays taken until the machine reports that the container is
// gone. Members of at_most_one jobs stay: their containers may still run. A repetition changes nothing.
func (d *Agents) giveUpUnkillable(ctx context.Context, machine berth.MachineID, req wire.SyncRequest) error {
	args := namedArgs{"machine": machine, "ids": req.Stuck, "kill": berth.Orders{Kill: true}}
	const stuck = `
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.id = ANY(@ids) AND a.machine_id = @machine AND a.state = 'active' AND a.forgotten_at IS NULL
		  AND j.execution <> 'at_most_one'`
	var some bool // without a lock: most calls repeat a list that is already carried out
	if err := d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1`+stuck+`)`, args).Scan(&some); err != nil || !some {
		return err
	}
	var ranks []overdueRank
	err := d.tx(ctx, func(tx pgx.Tx) error {
		t := noticeTx{tx: tx, machine: machine}
		// A former session of the machine must not give up members of the present one.
		if err := t.checkSession(ctx, req); err != nil {
			return err
		}
		// Jobs are locked before their members, by the lock order.
		jobs, err := lockJobsOn(ctx, tx, machine)
		if err != nil {
			return err
		}
		args["jobs"] = jobs
		rows, err := tx.Query(ctx, `
			SELECT a.id, a.job, a.attempt, a.rank, false`+stuck+` AND a.job = ANY(@jobs::uuid[])
			ORDER BY a.id
			FOR NO KEY UPDATE OF a`, args)
		if err != nil {
			return err
		}
		if ranks, err = pgx.CollectRows(rows, pgx.RowToStructByPos[overdueRank]); err != nil {
			return err
		}
		return orphanUnkillable(ctx, tx, machine, ranks)
	})
	if err != nil || len(ranks) == 0 {
		return mapError(err, "machine "+string(machine))
	}
	for _, r := range ranks {
		d.hub.Publish(TopicJob, string(r.Job))
		d.hub.Publish(TopicPoke, string(r.Job)) // its workflow may wait for peers, which must be stopped
	}
	d.hub.Publish(TopicMachine, string(machine))
	return nil
}

// orphanUnkillable orphans locked members and adds an event for each. They do not count as alone: the
// machine lives, and the job is not suspected of its death.
func orphanUnkillable(ctx context.Context, tx pgx.Tx, machine berth.MachineID, ranks []overdueRank) error {
	for _, r := range ranks {
		_, err := tx.Exec(ctx, `
			UPDATE allocations
			SET state = 'orphaned', alone = false, orphaned_at = clock_timestamp(), orders = orders || @kill
			WHERE id = @id`, namedArgs{"id": r.ID, "kill": berth.Orders{Kill: true}})
		if err != nil {
			return fmt.Errorf("orphan a stuck member: %w", err)
		}
		if err := addEvent(ctx, tx, r.Job, wire.Event{
			Kind: wire.EventOrphaned, Attempt: r.Attempt, Actor: AgentActor(machine),
			Detail: fmt.Sprintf("member %d: its container on machine %s does not end on SIGKILL, since a process "+
				"in it waits for a file server; its capacity stays reserved until the container has ended",
				r.Rank, machine),
			Facts: &wire.EventFacts{Rank: &r.Rank, Machine: machine},
		}); err != nil {
			return err
		}
	}
	return nil
}
