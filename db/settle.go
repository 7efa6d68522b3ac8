package db

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/spec"
	"berth/wire"
)

// UnclaimedAfter is how long a machine may leave a reservation unclaimed before
// the attempt counts as lost.
const UnclaimedAfter = 2 * time.Minute

// keptAvoids is how many machines a job remembers to avoid.
const keptAvoids = 16

// Settle closes an attempt whose members have all ended: it reads from the rows
// how, decides by failure.Classify, and writes the verdict in the same
// transaction. Called again it returns what was decided. While some member is
// neither sealed nor given up it answers NotReady; then it changes nothing,
// unless a gang waits for a member that its machine does not take.
func (d *Attempts) Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error) {
	var result wire.SettleResult
	var hints touched
	var settled *failure.Verdict
	var kept bool
	err := d.tx(ctx, func(tx pgx.Tx) error {
		result, hints, settled, kept = wire.SettleResult{}, touched{}, nil, false
		job, err := lockJob(ctx, tx, "", id, attempt)
		if err != nil {
			return err
		}
		result.HasParent = job.HasParent
		switch {
		case job.AttemptNext != nil:
			result.Next = *job.AttemptNext
			return nil
		case attempt != job.Attempt || !job.State.HoldsCapacity():
			return berth.Errorf(berth.CodeInvalid, "job %s is %s in attempt %d: attempt %d cannot be settled", id,
				job.State, job.Attempt, attempt)
		case !job.ready():
			result.NotReady = true
			hints, err = giveUpGang(ctx, tx, job)
			return err
		}
		evidence := job.evidence()
		if evidence.Earlier, err = earlier(ctx, tx, job); err != nil {
			return err
		}
		if evidence.OutputsLost, err = lostOutputs(ctx, tx, job); err != nil {
			return err
		}
		verdict := failure.Classify(evidence)
		result.Next, settled = verdict.Next, &verdict
		if hints, err = settle(ctx, tx, job, verdict); err == nil && job.keepsRoom(verdict) {
			kept, err = true, failpoint.Hit("worker.keep.before")
		}
		return err
	})
	if err == nil && kept {
		err = failpoint.Hit("worker.keep.after")
	}
	if err != nil {
		return wire.SettleResult{}, mapError(err, "job "+string(id))
	}
	hints.publish(d.hub)
	if settled != nil {
		d.count(ctx, id, attempt, *settled)
	}
	if result.HasParent && hints.job != "" && result.Next != "" {
		notifyParents(ctx, d.core, id)
	}
	return result, nil
}

// ready reports whether nothing more can be learned of any member.
func (j lockedJob) ready() bool {
	for _, r := range j.Ranks {
		switch r.State {
		case berth.AllocReserved:
			if !r.untaken() {
				return false
			}
		case berth.AllocActive:
			return false
		case berth.AllocExited:
			if !r.Sealed {
				return false
			}
		case berth.AllocOrphaned, berth.AllocReleased:
		default:
			panic("unknown allocation state " + string(r.State))
		}
	}
	return len(j.Ranks) > 0
}

// giveUpGang ends an attempt of which some members live and one was not taken in
// time: the others would hold their capacity, and wait for it, for ever. What
// was not taken has no exit on record, and so is to blame.
func giveUpGang(ctx context.Context, tx pgx.Tx, job lockedJob) (touched, error) {
	if !slices.ContainsFunc(job.Ranks, lockedRank.untaken) {
		return touched{}, nil
	}
	if err := keepRoom(ctx, tx, job, job.hurried().Grace+berth.RepairHold); err != nil {
		return touched{}, err
	}
	released, err := updateRanks(ctx, tx, `
		UPDATE allocations
		SET state = 'released', released_at = now(), sealed_at = now(), orders = orders || @orders
		WHERE job = @job AND attempt = @attempt AND state = 'reserved' AND reserved_at <= now() - @limit::interval
		RETURNING rank, machine_id`,
		pgx.NamedArgs{"job": job.ID, "attempt": job.Attempt, "limit": UnclaimedAfter,
			"orders": berth.Orders{Forget: true}})
	if err != nil {
		return touched{}, err
	}
	withdrawn, err := withdraw(ctx, tx, job, "another rank of its gang was not taken in time")
	if err != nil {
		return touched{}, err
	}
	told, err := orderStop(ctx, tx, job.hurried(), berth.Orders{Checkpoint: true, Stop: true})
	if err != nil {
		return touched{}, err
	}
	return touched{job.ID, machines(released, withdrawn, told), true}, addOrderEvent(ctx, tx, job, "stop", told)
}

// untaken reports whether the machine has left a reservation lying too long.
func (r lockedRank) untaken() bool { return r.State == berth.AllocReserved && r.Age >= UnclaimedAfter }

func (j lockedJob) evidence() failure.AttemptEvidence {
	e := failure.AttemptEvidence{
		Job: j.ID, State: j.State, Attempt: j.Attempt, Retry: j.Retry, Preempted: j.Preempted,
		Failures: j.Failures, Losses: j.Losses, OOMGrown: j.OOMGrown, Checkpoint: j.Checkpoint, LastStep: j.lastStep(),
	}
	if j.CancelAt != nil {
		e.CancelAt = *j.CancelAt
	}
	for _, r := range j.Ranks {
		if e.DrainedBy == "" {
			e.DrainedBy = r.Drain
		}
		e.Ranks = append(e.Ranks, failure.RankEvidence{
			Rank: r.Rank, Machine: r.Machine, Orphaned: r.Orphaned, Claimed: r.Claimed, Suspect: r.Suspect,
			CutOff: r.CutOff, Exit: r.Exit,
		})
	}
	return e
}

// settle writes a verdict: the job, its attempt, its members.
func settle(ctx context.Context, tx pgx.Tx, job lockedJob, v failure.Verdict) (touched, error) {
	hints := touched{job: job.ID, queue: v.Next == berth.Retrying}
	if err := settleRoom(ctx, tx, job, v); err != nil {
		return hints, err
	}
	args := verdictArgs(job, v)
	batch := &pgx.Batch{}
	if v.GrowMemory {
		class, request, err := grownClass(ctx, tx, job.Class)
		if err != nil {
			return hints, err
		}
		args["class"], args["request"] = class, request
		batch.Queue(`
			INSERT INTO classes (class, request)
			VALUES (@class, @request)
			ON CONFLICT DO NOTHING`, args)
	}
	if job.State == berth.Scheduled && v.Next == berth.Succeeded {
		// It ran, and the row never heard of it before its end: its machine told of
		// both at once, or a backup was restored since.
		batch.Queue(`
			UPDATE jobs
			SET state = 'running', version = version + 1, actor = 'workflow', reason = NULL
			WHERE id = @job`, args)
		batch.Queue(`
			UPDATE attempts
			SET started_at = coalesce(started_at, (
				SELECT min(a.started_at)
				FROM allocations a
				WHERE a.job = @job AND a.attempt = @attempt), now())
			WHERE job = @job AND attempt = @attempt`, args)
	}
	batch.Queue(`
		UPDATE jobs
		SET state = @next, version = version + 1, actor = 'workflow', reason = @reason, exit_code = @exit_code,
			dead_letter = @dead_letter, failures = failures + @failures, losses = losses + @losses,
			preemptions = preemptions + @preemptions, eligible_at = now() + @delay::interval, avoid = @avoid,
			class = @class, oom_grown = oom_grown OR @grown, preempted_for = NULL,
			ran_ms = ran_ms + `+attemptRan+`,
			unaged_ms = unaged_ms + (extract(epoch FROM greatest(now() + @delay::interval - scheduled_at, '0')) * 1000)::bigint
		WHERE id = @job`, args)
	batch.Queue(`
		UPDATE attempts
		SET ended_at = now(), outcome = @reason, next_state = @next, exit_code = @exit_code, blamed = @blamed,
			last_step = greatest(last_step, @last_step::bigint), budget = @budget,
			swept_at = CASE WHEN (SELECT s.spec ? 'checkpoint' FROM job_specs s
				WHERE s.job = @job) THEN NULL ELSE now() END
		WHERE job = @job AND attempt = @attempt`, args)
	batch.Queue(`
		UPDATE allocations
		SET state = 'released', released_at = now(), orders = orders || @orders
		WHERE job = @job AND attempt = @attempt AND state IN ('exited', 'reserved')`, args)
	if job.Cached {
		batch.Queue(storeResult, args)
	}
	queueFaults(batch, job, v)
	for _, r := range job.Ranks {
		switch r.State {
		case berth.AllocReserved:
			hints.queue = true // its capacity is free only now
			hints.machines = append(hints.machines, r.Machine)
		case berth.AllocExited:
			hints.machines = append(hints.machines, r.Machine)
		}
	}
	return hints, tx.SendBatch(ctx, batch).Close()
}

// attemptRan is for how long the attempt that is settled ran, in milliseconds: as
// its exits tell it, the longest of its members, since the rows may have heard of the
// start with the end, and of the end late. An exit is told by the clock of its
// machine, which need not be ours: so only how long it took counts, and no more
// than since the reservation. Where no exit tells it, the rows' own times do.
const attemptRan = `coalesce((
				SELECT (extract(epoch FROM coalesce(own.ran, greatest(now() - t.started_at, '0'))) * 1000)::bigint
				FROM attempts t
				CROSS JOIN (
					SELECT max(greatest(least(x.ran, now() - x.reserved_at), '0')) AS ran
					FROM (
						SELECT (a.exit ->> 'finished_at')::timestamptz -
							(a.exit ->> 'started_at')::timestamptz AS ran, a.reserved_at
						FROM allocations a
						WHERE a.job = @job AND a.attempt = @attempt
					) x
					WHERE x.ran IS NOT NULL
				) own
				WHERE t.job = @job AND t.attempt = @attempt), 0)`

func verdictArgs(job lockedJob, v failure.Verdict) pgx.NamedArgs {
	args := pgx.NamedArgs{
		"job": job.ID, "attempt": job.Attempt, "next": v.Next, "reason": job.reasonFor(v), "exit_code": v.ExitCode,
		"blamed":      v.Machine,
		"dead_letter": v.DeadLetter, "failures": 0, "losses": 0, "preemptions": 0,
		"delay": v.Delay, "avoid": job.avoid(v.Avoid), "class": job.Class, "grown": v.GrowMemory,
		"last_step": job.lastStep(), "budget": v.Budget, "orders": berth.Orders{Forget: true},
	}
	switch v.Budget {
	case failure.BudgetUser:
		args["failures"] = 1
	case failure.BudgetInfra:
		args["losses"] = 1
	case failure.BudgetNone:
		if v.Reason.Code == berth.ReasonPreempted {
			args["preemptions"] = 1
		}
	default:
		panic("unknown budget " + string(v.Budget))
	}
	return args
}

// reasonFor is what the row says of the verdict: nothing of a success, and of a
// cancel or a preemption what was said when it was ordered.
func (j lockedJob) reasonFor(v failure.Verdict) *berth.Reason {
	switch {
	case v.Reason == (berth.Reason{}):
		return nil
	case v.Next == berth.Canceled && j.Reason != nil:
		return j.Reason
	case v.Reason.Code == berth.ReasonPreempted && j.Reason != nil && j.Reason.Code == berth.ReasonPreempted:
		told := *j.Reason // for whom, and why
		told.Rule = v.Reason.Rule
		return &told
	}
	return &v.Reason
}

// avoid adds machines to those the job keeps away from, the newest last.
func (j lockedJob) avoid(more []berth.MachineID) []berth.MachineID {
	list := make([]berth.MachineID, 0, len(j.Avoid)+len(more))
	for _, m := range j.Avoid {
		if !slices.Contains(more, m) {
			list = append(list, m)
		}
	}
	list = append(list, more...)
	return list[max(0, len(list)-keptAvoids):]
}

func (j lockedJob) lastStep() *int64 {
	var last *int64
	for _, r := range j.Ranks {
		if r.LastStep != nil && (last == nil || *r.LastStep > *last) {
			last = r.LastStep
		}
	}
	return last
}

// grownClass is a class with half as much memory again. The spec stays as the
// user wrote it: what the next attempt gets stands in the class.
func grownClass(ctx context.Context, tx pgx.Tx, class string) (string, spec.Request, error) {
	var r spec.Request
	if err := tx.QueryRow(ctx, `SELECT request FROM classes WHERE class = $1`, class).Scan(&r); err != nil {
		return "", r, err
	}
	r.MemoryMiB += (r.MemoryMiB + 1) / 2
	return r.Class(), r, nil
}
