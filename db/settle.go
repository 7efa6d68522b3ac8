package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// Settle closes an attempt after the end of all its members. It reads the evidence from the
// rows, decides with lifecycle.Settle, and stores the result in the same transaction.
// Settle is idempotent: a repeated call returns the stored verdict's next state. While a
// member is neither sealed nor given up, the result is NotReady and nothing changes, except
// that a gang with a member that its machine did not claim in time is stopped.
func (d *Attempts) Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error) {
	var result wire.SettleResult
	var hints touched
	var settled *lifecycle.Settlement
	var held *hold
	needed := false
	incarnation, err := d.incarnations.now(ctx, d.pool)
	if err != nil {
		return wire.SettleResult{}, err
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		// The transaction may run again after a serialization failure or a deadlock: nothing of a failed try may
		// remain.
		result, hints, settled, held = wire.SettleResult{}, touched{}, nil, nil
		job, err := lockJob(ctx, tx, "", id, attempt)
		if err != nil {
			return err
		}
		result.HasParent, needed = job.HasParent, job.Needed
		switch step := lifecycle.Begin(job.Job, attempt); step {
		case lifecycle.StepRepeat:
			result.Next = *job.Settled
			return nil
		case lifecycle.StepRefuse:
			return berth.Errorf(berth.CodeInvalid, "job %s is %s in attempt %d: attempt %d cannot be settled", id,
				job.State, job.Attempt, attempt)
		case lifecycle.StepWait:
			result.NotReady = true
			return nil
		case lifecycle.StepGiveUp:
			result.NotReady = true
			hints, err = giveUpGang(ctx, tx, job)
			return err
		case lifecycle.StepSettle:
			var history lifecycle.History
			if history, err = readHistory(ctx, tx, job); err != nil {
				return err
			}
			s := lifecycle.Settle(job.Job, history)
			result.Next, settled = s.Verdict.Next, &s
			hints, held, err = d.settleAndHold(ctx, tx, job, s, incarnation)
			if err == nil && s.Room == lifecycle.RoomKept {
				// Both points of keep lie within Settle: one before its commit, in the transaction, and
				// one between the commit and the hints.
				err = failpoint.Hit("worker.keep.before")
			}
			return err
		default:
			panic("unknown step of a settlement " + string(step))
		}
	})
	if err == nil && settled != nil && settled.Room == lifecycle.RoomKept {
		err = failpoint.Hit("worker.keep.after")
	}
	if err != nil {
		return wire.SettleResult{}, mapError(err, "job "+string(id))
	}
	// Notices go out after the commit only: their receivers read the rows at once.
	hints.publish(d.hub)
	if held != nil {
		d.hub.Publish(TopicSubmit, string(held.debug))
	}
	if settled != nil {
		d.count(ctx, id, attempt, settled.Verdict)
	}
	if result.HasParent && hints.job != "" && result.Next != "" {
		notifyParents(ctx, d.core, id)
	}
	if needed && result.Next.Terminal() {
		wakeDependents(ctx, d.core, id)
	}
	return result, nil
}

// readHistory reads the evidence outside the rows of the job and its members.
func readHistory(ctx context.Context, tx pgx.Tx, job lockedJob) (h lifecycle.History, err error) {
	if h.Earlier, err = earlier(ctx, tx, job); err != nil {
		return h, err
	}
	if h.OutputsLost, err = lostOutputs(ctx, tx, job); err != nil || job.Job.Retry.Requeues() == 0 {
		return h, err
	}
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (
			    SELECT 1
			    FROM checkpoints c
			    WHERE c.job = @job AND c.attempt = @attempt AND c.state = 'verified'),
		    (SELECT count(*) FROM attempts t WHERE t.job = @job AND t.outcome ->> 'rule' = @rule)`,
		namedArgs{"job": job.ID, "attempt": job.Attempt, "rule": failure.RuleRequeue}).
		Scan(&h.Progressed, &h.Requeues)
	return h, err
}

// giveUpGang stops an attempt with live members and a member that was not claimed in time.
// The unclaimed member has no recorded exit, and is therefore blamed.
func giveUpGang(ctx context.Context, tx pgx.Tx, job lockedJob) (touched, error) {
	// The survivors' capacity is nominated before it is released, so that no other job
	// takes it in between.
	if err := keepRoom(ctx, tx, job, job.Hurried().Grace+berth.RepairHold); err != nil {
		return touched{}, err
	}
	released, err := updateRanks(ctx, tx, `
		UPDATE allocations
		SET state = 'released', released_at = now(), sealed_at = now(), orders = orders || @orders
		WHERE id = ANY(@lost) AND state = 'reserved'
		RETURNING rank, machine_id`,
		namedArgs{"lost": ids(job.Lost()), "orders": berth.Orders{Forget: true}})
	if err != nil {
		return touched{}, err
	}
	withdrawn, err := withdraw(ctx, tx, job, "another member of the gang was not claimed in time")
	if err != nil {
		return touched{}, err
	}
	told, err := orderStop(ctx, tx, job.Hurried(), berth.Orders{Checkpoint: true, Stop: true})
	if err != nil {
		return touched{}, err
	}
	return touched{job.ID, machines(released, withdrawn, told), true}, addOrderEvent(ctx, tx, job, "stop", told)
}

// settle stores a settlement in the rows of the job, its attempt and its members, and returns
// the hints to publish after the commit.
func settle(ctx context.Context, tx pgx.Tx, job lockedJob, s lifecycle.Settlement) (touched, error) {
	hints := touched{job: job.ID, queue: s.Verdict.Next == berth.Retrying}
	if err := settleRoom(ctx, tx, job, s); err != nil {
		return hints, err
	}
	if err := addOddMember(ctx, tx, job, s.Hang); err != nil {
		return hints, err
	}
	args := settlementArgs(job, s)
	batch := &pgx.Batch{}
	if s.Verdict.GrowMemory {
		class, request, err := grownClass(ctx, tx, job)
		if err != nil {
			return hints, err
		}
		args["class"], args["request"] = class, request
		grown, choices, err := growAlternatives(ctx, tx, job.ID)
		if err != nil {
			return hints, err
		}
		args["alternatives"], args["choices"] = grown, choices
		batch.Queue(`
			INSERT INTO classes (class, request)
			SELECT @class, @request::jsonb
			UNION ALL
			SELECT * FROM unnest(@alternatives::text[], @choices::jsonb[])
			ON CONFLICT DO NOTHING`, args)
	}
	if s.StartUnseen {
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
			class = @class, alternatives = coalesce(@alternatives::text[], alternatives),
			oom_grown = oom_grown OR @grown, preempted_for = NULL,
			ran_ms = ran_ms + `+attemptRan+`,
			unaged_ms = unaged_ms
			    + (extract(epoch FROM greatest(now() + @delay::interval - scheduled_at, '0')) * 1000)::bigint
		WHERE id = @job`, args)
	// An attempt that may have left objects without a row waits for the sweep.
	batch.Queue(`
		UPDATE attempts t
		SET ended_at = now(), outcome = @reason, next_state = @next, exit_code = @exit_code, blamed = @blamed,
			last_step = greatest(last_step, @last_step::bigint), budget = @budget, hang = @hang,
			swept_at = CASE WHEN (SELECT s.spec ? 'checkpoint' FROM job_specs s
				WHERE s.job = @job) OR EXISTS (`+unregisteredOutputs+`) THEN NULL ELSE now() END
		WHERE job = @job AND attempt = @attempt`, args)
	batch.Queue(`
		UPDATE allocations
		SET state = 'released', released_at = now(), orders = orders || @orders
		WHERE job = @job AND attempt = @attempt AND state IN ('exited', 'reserved')`, args)
	if job.Cached {
		batch.Queue(storeResult, args)
	}
	queueFaults(batch, job, s.Faults)
	for _, m := range job.Members {
		switch m.State {
		case berth.AllocReserved:
			hints.queue = true // its capacity is free only now
			hints.machines = append(hints.machines, m.Machine)
		case berth.AllocExited:
			hints.machines = append(hints.machines, m.Machine)
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

// settlementArgs returns the arguments of the statements of settle.
func settlementArgs(job lockedJob, s lifecycle.Settlement) namedArgs {
	v := s.Verdict
	return namedArgs{
		"job": job.ID, "attempt": job.Attempt, "next": v.Next, "reason": s.Reason, "exit_code": v.ExitCode,
		"blamed": v.Machine, "dead_letter": v.DeadLetter, "failures": s.Failures, "losses": s.Losses,
		"preemptions": s.Preemptions, "delay": v.Delay, "avoid": s.Avoid, "class": job.Class, "grown": v.GrowMemory,
		"alternatives": []string(nil),
		"last_step":    s.LastStep, "budget": v.Budget, "orders": berth.Orders{Forget: true}, "hang": s.Hang,
	}
}

// grownClass returns the class of the grown request of a job. The spec keeps the user's
// request; the class holds the next attempt's request.
func grownClass(ctx context.Context, tx pgx.Tx, job lockedJob) (string, spec.Request, error) {
	var r spec.Request
	if err := tx.QueryRow(ctx, `SELECT request FROM classes WHERE class = $1`, job.Class).Scan(&r); err != nil {
		return "", r, err
	}
	r = lifecycle.Grow(r, job.OutOfMemory())
	return r.Class(), r, nil
}
