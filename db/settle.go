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

// UnclaimedAfter is the age at which an unclaimed reservation makes the attempt count as
// lost.
const UnclaimedAfter = 2 * time.Minute

// keptAvoids is the number of machines that a job avoids at most.
const keptAvoids = 16

// Settle closes an attempt after the end of all its members. It reads the evidence from the
// rows, decides with failure.Classify, and stores the verdict in the same transaction.
// Settle is idempotent: a repeated call returns the stored verdict's next state. While a
// member is neither sealed nor given up, the result is NotReady and nothing changes, except
// that a gang with a member that its machine did not claim in time is stopped.
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

// ready reports whether the evidence on all members is complete: no report can add to it.
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

// giveUpGang stops an attempt with live members and a member that was not claimed in time:
// without it, the live members would hold their capacity and wait without end. The
// unclaimed member has no recorded exit, and is therefore blamed.
func giveUpGang(ctx context.Context, tx pgx.Tx, job lockedJob) (touched, error) {
	if !slices.ContainsFunc(job.Ranks, lockedRank.untaken) {
		return touched{}, nil
	}
	// The survivors' capacity is nominated before it is released, so that no other job
	// takes it in between.
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
	withdrawn, err := withdraw(ctx, tx, job, "another member of the gang was not claimed in time")
	if err != nil {
		return touched{}, err
	}
	told, err := orderStop(ctx, tx, job.hurried(), berth.Orders{Checkpoint: true, Stop: true})
	if err != nil {
		return touched{}, err
	}
	return touched{job.ID, machines(released, withdrawn, told), true}, addOrderEvent(ctx, tx, job, "stop", told)
}

// untaken reports whether the machine has not claimed the reservation within
// UnclaimedAfter.
func (r lockedRank) untaken() bool { return r.State == berth.AllocReserved && r.Age >= UnclaimedAfter }

// evidence returns the input of failure.Classify, except for earlier attempts and lost
// outputs.
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

// settle stores a verdict in the rows of the job, its attempt and its members, and returns
// the hints to publish after the commit.
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
		// The job ran, but its row shows no start: the machine reported start and end in one
		// call, or a backup was restored since.
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
			unaged_ms = unaged_ms
			    + (extract(epoch FROM greatest(now() + @delay::interval - scheduled_at, '0')) * 1000)::bigint
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

// attemptRan is the run time of the attempt to settle in milliseconds: the longest run of
// its members according to their exits. The rows' own times may be wrong, since the start
// may be reported only with the end, and the end late. Exits have the clock of the machine,
// which may differ from the database's, so only their duration counts, up to the time since
// the reservation. Without a time in any exit, the attempt's start in the rows counts.
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

// verdictArgs returns the arguments of the statements of settle.
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

// reasonFor returns the reason to store with the verdict: none for a success; for a cancel
// or a preemption the reason stored with the order, which names the actor or the
// beneficiary.
func (j lockedJob) reasonFor(v failure.Verdict) *berth.Reason {
	switch {
	case v.Reason == (berth.Reason{}):
		return nil
	case v.Next == berth.Canceled && j.Reason != nil:
		return j.Reason
	case v.Reason.Code == berth.ReasonPreempted && j.Reason != nil && j.Reason.Code == berth.ReasonPreempted:
		told := *j.Reason // names the beneficiary
		told.Rule = v.Reason.Rule
		return &told
	}
	return &v.Reason
}

// avoid returns the machines that the job avoids from now on: the newest keptAvoids, newest
// last.
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

// lastStep returns the highest step that a member has reported, or nil.
func (j lockedJob) lastStep() *int64 {
	var last *int64
	for _, r := range j.Ranks {
		if r.LastStep != nil && (last == nil || *r.LastStep > *last) {
			last = r.LastStep
		}
	}
	return last
}

// grownClass returns the class with 1.5 times the memory of class, for a retry after a
// member ran out of memory. The spec keeps the user's request; the class holds the next
// attempt's request.
func grownClass(ctx context.Context, tx pgx.Tx, class string) (string, spec.Request, error) {
	var r spec.Request
	if err := tx.QueryRow(ctx, `SELECT request FROM classes WHERE class = $1`, class).Scan(&r); err != nil {
		return "", r, err
	}
	r.MemoryMiB += (r.MemoryMiB + 1) / 2
	return r.Class(), r, nil
}
