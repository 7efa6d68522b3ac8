package db

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// attemptRef names an attempt of a job.
type attemptRef struct {
	Job     berth.JobID
	Attempt int
}

// list returns the attempts that a query selects.
func (d *Attempts) list(ctx context.Context, sql string, args pgx.NamedArgs) ([]attemptRef, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[attemptRef])
}

// leaderOrders sends orders to members of several attempts, with one transaction for each
// attempt, and returns the number of attempts with a new order. give writes the orders of
// a locked job; leaderOrders calls give only if the attempt is current and holds capacity.
// Each order adds an event to the job, and the machines are notified after the commit.
func (d *Attempts) leaderOrders(ctx context.Context, term Term, refs []attemptRef, detail string,
	give func(pgx.Tx, lockedJob) ([]orderedRank, error)) (int, error) {
	given := 0
	for _, ref := range refs {
		var told []orderedRank
		err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
			told = nil
			job, err := lockJob(ctx, tx, "", ref.Job, ref.Attempt)
			if err != nil || job.Attempt != ref.Attempt || !job.State.HoldsCapacity() {
				return err
			}
			if told, err = give(tx, job); err != nil || len(told) == 0 {
				return err
			}
			var where []string
			for _, r := range told {
				where = append(where, fmt.Sprintf("member %d on %s", r.rank, r.machine))
			}
			return addEvent(ctx, tx, job.ID, wire.Event{
				Kind: wire.EventOrdered, Attempt: job.Attempt, Actor: "leader",
				Detail: detail + ": " + strings.Join(where, ", "),
			})
		})
		if err != nil {
			return given, mapError(err, "job "+string(ref.Job))
		}
		if len(told) > 0 {
			given++
			touched{job: ref.Job, machines: machines(told)}.publish(d.hub)
		}
	}
	return given, nil
}

// DrainOverdue orders jobs on draining machines past the drain deadline to checkpoint and
// stop within their grace period, at most limit per call. The jobs return to the queue.
// DrainOverdue returns the number of jobs with a new order.
func (d *Attempts) DrainOverdue(ctx context.Context, term Term, limit int) (int, error) {
	refs, err := d.list(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM machines m
		JOIN allocations a ON a.machine_id = m.id AND a.forgotten_at IS NULL
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE m.state = 'draining' AND m.drain_deadline <= clock_timestamp()
		  AND a.state = 'active' AND NOT a.orders ? 'stop' AND j.state IN ('scheduled', 'running')
		ORDER BY 1
		LIMIT @limit`, pgx.NamedArgs{"limit": limit})
	if err != nil {
		return 0, mapError(err, "draining machines")
	}
	return d.leaderOrders(ctx, term, refs, "checkpoint and stop (machine draining)",
		func(tx pgx.Tx, job lockedJob) ([]orderedRank, error) {
			return orderStop(ctx, tx, job.Job, berth.Orders{Checkpoint: true, Stop: true})
		})
}
