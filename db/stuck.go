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

// Patience limits the time that members may make no progress on a machine that is heard.
type Patience struct {
	Prepare time.Duration // from claim to prepared; then the member is killed
	Obey    time.Duration // from the kill order to the end; then the member is orphaned
	Seal    time.Duration // from the end to the last upload; then the member is sealed without
	Barrier time.Duration // of prepared members of a gang, for the other members

	Suspect time.Duration // a machine that was silent for longer cannot report; see Silence.Suspect
	Frozen  bool          // verdicts on silent machines are frozen or held; see Fleet
}

func (p Patience) args() namedArgs {
	return namedArgs{"prepare": p.Prepare, "obey": p.Obey, "seal": p.Seal, "barrier": p.Barrier,
		"suspect": p.Suspect, "frozen": p.Frozen, "kill": berth.Orders{Kill: true}}
}

// onSilent is true for a member a on a silent machine, which cannot report the state of the member.
const onSilent = `EXISTS (
			SELECT 1
			FROM machine_leases l
			WHERE l.machine_id = a.machine_id AND ` + silentFor + ` > @suspect::interval)`

// returnedAt is the time at which the machine of a member a called again after its last silence.
const returnedAt = `coalesce((SELECT l.back_at FROM machine_leases l WHERE l.machine_id = a.machine_id), '-infinity')`

// unprepared is true for a claimed member a that is not ready to start.
const unprepared = `a.state = 'active' AND a.phase IN ('', 'claimed', 'pulling', 'restoring')
	AND NOT a.orders ? 'start'`

// waitedFor is true for a member a of a gang in which a prepared member has waited longer
// than Patience.Barrier.
const waitedFor = `a.port IS NOT NULL AND EXISTS (
			SELECT 1
			FROM allocations o
			WHERE o.job = a.job AND o.attempt = a.attempt AND o.prepared_at < clock_timestamp() - @barrier::interval)`

// The conditions for exceeding each limit of Patience, for allocations a of jobs j.
//
// Work on a silent machine is given up by PassVerdict, after the job's lost_after, and during a freeze not at all.
// Two rules follow. Unfinished uploads wait for the machine. Members without a process stay on silent machines during a
// freeze. Otherwise they move, since they have no work to lose, and PassVerdict never moves a member of an at_most_one
// job from a machine without a fence.
//
// A machine that returns could neither upload nor report before. From its return on, uploads have Patience.Seal again,
// members have Patience.Barrier to prepare, and Patience.Obey to follow a kill order. The agent itself ends a
// preparation after an hour, so repeated returns cannot extend it without bound.
const (
	slowToPrepare = unprepared + ` AND j.state = 'scheduled' AND j.attempt = a.attempt AND NOT a.orders ? 'kill'
		AND NOT (@frozen AND ` + onSilent + `) AND ` + returnedAt + ` < clock_timestamp() - @barrier::interval
		AND (a.claimed_at < clock_timestamp() - @prepare::interval OR ` + waitedFor + `)`
	deafToKill = unprepared + ` AND j.state IN ('scheduled', 'preempting', 'canceling') AND j.attempt = a.attempt
		AND a.orders ? 'kill' AND a.stop_by < clock_timestamp() - @obey::interval
		AND NOT (@frozen AND ` + onSilent + `) AND ` + returnedAt + ` < clock_timestamp() - @obey::interval
		AND (a.claimed_at < clock_timestamp() - @prepare::interval OR ` + waitedFor + `)`
	neverSealed = `a.state = 'exited' AND a.sealed_at IS NULL AND j.attempt = a.attempt
		AND j.state NOT IN ('succeeded', 'failed', 'canceled') AND a.exited_at < clock_timestamp() - @seal::interval
		AND NOT ` + onSilent + ` AND ` + returnedAt + ` < clock_timestamp() - @seal::interval`
)

// KillUnprepared orders the kill of members that their machine does not prepare in time, for
// at most limit jobs. Their jobs are retried elsewhere. It returns the number of jobs with a
// new order.
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
	detail := fmt.Sprintf("kill (not prepared within %s)", p.Prepare)
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

// GiveUpStuck gives up members that neither prepare nor end on order, at most limit: they
// become orphans and hold their capacity until the machine confirms the end. For ended
// members it gives up uploads that do not finish. It returns the jobs, whose workflows need
// a poke.
//
// A member without an order to start has no process, and cannot get one after it is
// orphaned. So its job may continue at once, also with at_most_one execution.
func (d *Attempts) GiveUpStuck(ctx context.Context, term Term, p Patience, limit int) ([]berth.JobID, error) {
	args := p.args()
	args["limit"] = limit
	const stuck = `
		SELECT a.id, a.job
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE j.state NOT IN ('succeeded', 'failed', 'canceled') AND ((` + deafToKill + `) OR (` + neverSealed + `))`
	// The check without locks spares the leader a transaction if no member is stuck.
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

// stuckRank is a member to give up, with its machine to notify.
type stuckRank struct {
	overdueRank
	Machine berth.MachineID
}

// giveUp orphans the members that have not ended, seals the ended ones without their last
// uploads (cut_off), and adds one event per member. It returns each job once.
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
			fmt.Sprintf("member %d: machine %s neither prepared nor stopped the container within %s; its capacity "+
				"stays reserved until the end is confirmed", r.Rank, r.Machine, p.Prepare)
		if r.Exited {
			kind, detail = wire.EventWarning,
				fmt.Sprintf("member %d: the last logs and checkpoints were not stored within %s after the end",
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
