package db

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Patience is how long members may stand still on a machine that is heard.
type Patience struct {
	Prepare time.Duration // from the claim to prepared; then its end is ordered
	Obey    time.Duration // and to that end; then its job goes on without it
	Seal    time.Duration // from the end to the last upload; then it is sealed without
	Barrier time.Duration // that members of a gang which are prepared wait for the others
}

func (p Patience) args() pgx.NamedArgs {
	return pgx.NamedArgs{"prepare": p.Prepare, "obey": p.Obey, "seal": p.Seal, "barrier": p.Barrier,
		"kill": berth.Orders{Kill: true}}
}

// unprepared are members a that were claimed and are not ready to start.
const unprepared = `a.state = 'active' AND a.phase IN ('', 'claimed', 'pulling', 'restoring') AND NOT a.orders ? 'start'`

// waitedFor is a member a that another one of its gang, ready to start, has waited
// for too long.
const waitedFor = `a.port IS NOT NULL AND EXISTS (
			SELECT 1
			FROM allocations o
			WHERE o.job = a.job AND o.attempt = a.attempt AND o.prepared_at < clock_timestamp() - @barrier::interval)`

// stuck is what each limit finds, of allocations a of jobs j.
const (
	slowToPrepare = unprepared + ` AND j.state = 'scheduled' AND j.attempt = a.attempt AND NOT a.orders ? 'kill'
		AND (a.claimed_at < clock_timestamp() - @prepare::interval OR ` + waitedFor + `)`
	deafToKill = unprepared + ` AND j.state IN ('scheduled', 'preempting', 'canceling') AND j.attempt = a.attempt
		AND a.orders ? 'kill' AND a.stop_by < clock_timestamp() - @obey::interval
		AND (a.claimed_at < clock_timestamp() - @prepare::interval OR ` + waitedFor + `)`
	neverSealed = `a.state = 'exited' AND a.sealed_at IS NULL AND j.attempt = a.attempt
		AND j.state NOT IN ('succeeded', 'failed', 'canceled') AND a.exited_at < clock_timestamp() - @seal::interval`
)

// KillUnprepared orders the end of members whose machine is heard but does not
// get them ready. What it ends is retried elsewhere. It returns how many jobs
// it told.
func (d *Attempts) KillUnprepared(ctx context.Context, term Term, p Patience, limit int) (int, error) {
	args := p.args()
	args["limit"] = limit
	refs, err := d.list(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE `+slowToPrepare+`
		ORDER BY 1
		LIMIT @limit`, args)
	if err != nil {
		return 0, mapError(err, "unprepared ranks")
	}
	detail := fmt.Sprintf("kill, it was not prepared within %s", p.Prepare)
	return d.leaderOrders(ctx, term, refs, detail, func(tx pgx.Tx, job lockedJob) ([]orderedRank, error) {
		args := p.args()
		args["job"] = job.ID
		return updateRanks(ctx, tx, `
			UPDATE allocations a
			SET orders = a.orders || @kill, stop_by = least(a.stop_by, clock_timestamp())
			FROM jobs j
			WHERE j.id = a.job AND j.id = @job AND `+slowToPrepare+`
			RETURNING a.rank, a.machine_id`, args)
	})
}

// GiveUpStuck stops waiting for members that neither get ready nor end on order:
// they are orphaned, and count until their machine confirms the end. Of members
// that have ended it gives up the uploads that do not come to an end. It returns
// the jobs: their workflows want a poke.
//
// A member without an order to start has no process, and gets none once it is
// orphaned; so its job may go on at once, also with at_most_one.
func (d *Attempts) GiveUpStuck(ctx context.Context, term Term, p Patience, limit int) ([]berth.JobID, error) {
	args := p.args()
	args["limit"] = limit
	const stuck = `
		SELECT a.id, a.job
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE j.state NOT IN ('succeeded', 'failed', 'canceled') AND ((` + deafToKill + `) OR (` + neverSealed + `))`
	var some bool
	if err := d.pool.QueryRow(ctx, `SELECT EXISTS (`+stuck+`)`, args).Scan(&some); err != nil || !some {
		return nil, mapError(err, "stuck ranks")
	}
	var jobs []berth.JobID
	machines := map[berth.MachineID]bool{}
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		jobs = nil
		_, err := tx.Exec(ctx, `
			SELECT 1
			FROM jobs
			WHERE id IN (SELECT job FROM (`+stuck+` ORDER BY a.id LIMIT @limit) s)
			ORDER BY id
			FOR NO KEY UPDATE`, args)
		if err != nil {
			return fmt.Errorf("lock jobs: %w", err)
		}
		rows, err := tx.Query(ctx, `
			SELECT a.id, a.job, a.attempt, a.rank, a.state = 'exited', a.machine_id
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE j.state NOT IN ('succeeded', 'failed', 'canceled') AND ((`+deafToKill+`) OR (`+neverSealed+`))
			ORDER BY a.id
			LIMIT @limit
			FOR NO KEY UPDATE OF a`, args)
		if err != nil {
			return fmt.Errorf("lock ranks: %w", err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stuckRank])
		if err != nil {
			return fmt.Errorf("lock ranks: %w", err)
		}
		for _, r := range found {
			machines[r.Machine] = true
		}
		jobs, err = giveUp(ctx, tx, found, p)
		return err
	})
	if err != nil {
		return nil, mapError(err, "stuck ranks")
	}
	for m := range machines {
		d.hub.Publish(TopicMachine, string(m))
	}
	for _, id := range jobs {
		d.hub.Publish(TopicJob, string(id))
	}
	return jobs, nil
}

type stuckRank struct {
	overdueRank
	Machine berth.MachineID
}

func giveUp(ctx context.Context, tx pgx.Tx, ranks []stuckRank, p Patience) ([]berth.JobID, error) {
	args := p.args()
	ids := make([]int64, len(ranks))
	for i, r := range ranks {
		ids[i] = r.ID
	}
	args["ids"] = ids
	_, err := tx.Exec(ctx, `
		UPDATE allocations
		SET state = CASE state WHEN 'exited' THEN state ELSE 'orphaned' END,
		    orphaned_at = CASE state WHEN 'exited' THEN orphaned_at ELSE clock_timestamp() END,
		    sealed_at = CASE state WHEN 'exited' THEN clock_timestamp() ELSE sealed_at END,
		    cut_off = state = 'exited'
		WHERE id = ANY(@ids)`, args)
	if err != nil {
		return nil, fmt.Errorf("give up ranks: %w", err)
	}
	var jobs []berth.JobID
	for _, r := range ranks {
		kind, detail := wire.EventOrphaned,
			fmt.Sprintf("rank %d: machine %s neither prepared it within %s nor ended it on order; its capacity "+
				"stays taken until that is confirmed", r.Rank, r.Machine, p.Prepare)
		if r.Exited {
			kind, detail = wire.EventWarning,
				fmt.Sprintf("rank %d: its last logs and checkpoints were not stored within %s after its end",
					r.Rank, p.Seal)
		}
		if err := addEvent(ctx, tx, r.Job, wire.Event{
			Kind: kind, Attempt: r.Attempt, Actor: "leader",
			Detail: detail, Facts: &wire.EventFacts{Rank: &r.Rank, Machine: r.Machine},
		}); err != nil {
			return nil, err
		}
		if !slices.Contains(jobs, r.Job) {
			jobs = append(jobs, r.Job)
		}
	}
	return jobs, nil
}
