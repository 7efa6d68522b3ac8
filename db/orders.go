package db

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/lifecycle"
	"berth/wire"
)

// Stop stops the rest of a gang once one member has ended badly or its machine fell silent, or once all
// members of its leading group have completed their work.
// The running members save and stop; members that no machine has claimed are withdrawn.
// stopped reports whether there is such a reason. Stop is idempotent, and leaves an
// attempt that is no longer current alone.
//
// After a failure the capacity of the healthy members is kept for the gang's next attempt, for the grace and
// berth.RepairHold; see keepRoom.
func (d *Attempts) Stop(ctx context.Context, id berth.JobID, attempt int) (stopped bool, err error) {
	err = d.order(ctx, id, attempt, func(tx pgx.Tx, job lockedJob) (touched, error) {
		if job.LeadDone() {
			stopped = true
			return stopFollowers(ctx, tx, job)
		}
		if stopped = slices.ContainsFunc(job.Members, lifecycle.Member.Bad); !stopped {
			return touched{}, nil
		}
		if err := keepRoom(ctx, tx, job, job.Hurried().Grace+berth.RepairHold); err != nil {
			return touched{}, err
		}
		withdrawn, err := withdraw(ctx, tx, job, "another member of the gang ended first")
		if err != nil {
			return touched{}, err
		}
		told, err := orderStop(ctx, tx, job.Hurried(), berth.Orders{Checkpoint: true, Stop: true})
		if err != nil {
			return touched{}, err
		}
		if err := addOrderEvent(ctx, tx, job, "stop", told); err != nil {
			return touched{}, err
		}
		return touched{job.ID, machines(withdrawn, told), true}, nil
	})
	return stopped, err
}

// stopFollowers stops the members that still run after the leading group has completed its work. They have
// the whole grace of the job and write no checkpoint, since the work is done. No capacity is kept.
func stopFollowers(ctx context.Context, tx pgx.Tx, job lockedJob) (touched, error) {
	withdrawn, err := withdraw(ctx, tx, job, "the leading group of the gang has ended")
	if err != nil {
		return touched{}, err
	}
	told, err := orderStop(ctx, tx, job.Job, berth.Orders{Stop: true})
	if err != nil {
		return touched{}, err
	}
	return touched{job.ID, machines(withdrawn, told), true}, addOrderEvent(ctx, tx, job, "stop", told)
}

// Escalate kills the members that have not ended by their stop_by.
func (d *Attempts) Escalate(ctx context.Context, id berth.JobID, attempt int) error {
	return d.order(ctx, id, attempt, func(tx pgx.Tx, job lockedJob) (touched, error) {
		killed, err := updateRanks(ctx, tx, `
			UPDATE allocations
			SET orders = orders || @orders
			WHERE job = @job AND attempt = @attempt AND state = 'active' AND stop_by <= now() AND NOT orders ? 'kill'
			RETURNING rank, machine_id`,
			namedArgs{"job": job.ID, "attempt": job.Attempt, "orders": berth.Orders{Kill: true}})
		if err != nil {
			return touched{}, err
		}
		if err := addOrderEvent(ctx, tx, job, "kill", killed); err != nil {
			return touched{}, err
		}
		return touched{job.ID, machines(killed), false}, nil
	})
}

// order runs f on the locked job if attempt is still current and holds capacity. After the
// commit it publishes hints at the machines that got orders.
func (d *Attempts) order(
	ctx context.Context, id berth.JobID, attempt int, f func(pgx.Tx, lockedJob) (touched, error),
) error {
	var hints touched
	err := d.tx(ctx, func(tx pgx.Tx) error {
		job, err := lockJob(ctx, tx, "", id, attempt)
		if err != nil || job.Attempt != attempt || !job.State.HoldsCapacity() {
			return err
		}
		hints, err = f(tx, job)
		return err
	})
	if err != nil {
		return mapError(err, "job "+string(id))
	}
	if len(hints.machines) > 0 {
		hints.publish(d.hub)
	}
	return nil
}

// orderedRank is a member that received an order.
type orderedRank struct {
	rank    int
	machine berth.MachineID
}

// orderStop orders the running members without an order to stop to end within the job's
// grace. A stop_by that is set already may only become earlier.
func orderStop(ctx context.Context, tx pgx.Tx, job lifecycle.Job, o berth.Orders) ([]orderedRank, error) {
	o.GraceMS = int(job.Grace.Milliseconds())
	return updateRanks(ctx, tx, `
		UPDATE allocations
		SET orders = orders || @orders, stop_by = least(stop_by, now() + @grace::interval)
		WHERE job = @job AND attempt = @attempt AND state = 'active' AND NOT orders ? 'stop'
		RETURNING rank, machine_id`,
		namedArgs{"job": job.ID, "attempt": job.Attempt, "orders": o, "grace": job.Grace})
}

// withdraw releases the members that no machine has claimed. A later claim finds the
// allocation released and is refused, so none of these members can start.
func withdraw(ctx context.Context, tx pgx.Tx, job lockedJob, why string) ([]orderedRank, error) {
	return updateRanks(ctx, tx, `
		UPDATE allocations
		SET state = 'released', released_at = now(), sealed_at = now(), exit = @exit, orders = orders || @orders
		WHERE job = @job AND attempt = @attempt AND state = 'reserved'
		RETURNING rank, machine_id`,
		namedArgs{
			"job": job.ID, "attempt": job.Attempt,
			"exit":   failure.Exit{Cause: failure.CauseNotStarted, Message: why, FinishedAt: time.Now().UTC()},
			"orders": berth.Orders{Forget: true},
		})
}

// updateRanks runs an update that returns the rank and the machine of each changed member.
func updateRanks(ctx context.Context, tx pgx.Tx, sql string, args namedArgs) ([]orderedRank, error) {
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r orderedRank, err error) {
		return r, row.Scan(&r.rank, &r.machine)
	})
}

// machines returns the machines of the members, with duplicates.
func machines(lists ...[]orderedRank) []berth.MachineID {
	var ids []berth.MachineID
	for _, list := range lists {
		for _, r := range list {
			ids = append(ids, r.machine)
		}
	}
	return ids
}

// addOrderEvent adds an event that names the members with the order.
func addOrderEvent(ctx context.Context, tx pgx.Tx, job lockedJob, order string, ranks []orderedRank) error {
	if len(ranks) == 0 {
		return nil
	}
	return addEvent(ctx, tx, job.ID, wire.Event{
		Kind: wire.EventOrdered, Attempt: job.Attempt, Actor: "workflow",
		Detail: describeOrder(order, ranks),
	})
}

// describeOrder formats an order and the members that received it.
func describeOrder(order string, ranks []orderedRank) string {
	const shown = 8 // a gang may have hundreds
	names := make([]string, 0, shown)
	for i, r := range ranks {
		if i == shown {
			names = append(names, fmt.Sprintf("%d more", len(ranks)-shown))
			break
		}
		names = append(names, fmt.Sprintf("member %d on %s", r.rank, r.machine))
	}
	return order + ": " + strings.Join(names, ", ")
}
