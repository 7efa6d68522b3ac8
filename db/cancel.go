package db

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/failure"
)

// requestCancel implements Jobs.RequestCancel for every store of this package.
func requestCancel(
	ctx context.Context, d *core, tenant berth.TenantID, id berth.JobID, actor string, reason *berth.Reason,
	now bool,
) (berth.State, error) {
	if reason == nil {
		reason = &berth.Reason{Code: berth.ReasonCanceledByUser, Message: "canceled on request"}
	}
	var c cancellation
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var err error
		c, err = cancelJob(ctx, tx, tenant, id, actor, reason, now)
		return err
	})
	if err != nil {
		return "", mapError(err, "job "+string(id))
	}
	return afterCancel(ctx, d, c)
}

// RequestCancel cancels a job and returns the job's new state. A job without capacity
// is canceled at once. A job with capacity becomes canceling: its machines are ordered to
// stop the containers, and Settle ends the job after they have. A job that is canceling or
// terminal is left unchanged, without an error. Tenant "" means any tenant; a nil reason
// stands for a user's request.
//
// The end of a member wakes the job's workflow. In all other cases the caller must poke
// the workflow.
func (d *Jobs) RequestCancel(
	ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string, reason *berth.Reason,
) (berth.State, error) {
	return requestCancel(ctx, d.core, tenant, id, actor, reason, false)
}

// cancellation is the effect of cancelJob, which afterCancel publishes.
type cancellation struct {
	job   lockedJob   // as read before the change
	state berth.State // after the change
	hints touched
	below ending // jobs inside, if the job is a parent
}

// cancelJob does the part of RequestCancel that needs a transaction. It locks the job's
// row. The caller runs afterCancel after the commit.
func cancelJob(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, id berth.JobID, actor string,
	reason *berth.Reason, now bool) (c cancellation, err error) {
	if c.job, err = lockJob(ctx, tx, tenant, id, 0); err != nil {
		return c, err
	}
	c.hints = touched{job: id}
	switch c.state = c.job.State; {
	case c.state.Terminal() || c.state == berth.Canceling && !(now && c.job.Kind == berth.KindPipeline):
		c.hints = touched{}
	case c.job.Kind != berth.KindJob:
		c.hints.queue = true
		c.state, c.below, err = cancelParent(ctx, tx, c.job, actor, reason, now)
	case c.state.Waiting():
		c.hints.queue = true
		c.state = berth.Canceled
		err = cancelWaiting(ctx, tx, c.job, actor, reason)
	default:
		c.state = berth.Canceling
		c.hints.machines, c.hints.queue, err = cancelHolding(ctx, tx, c.job, actor, reason)
	}
	return c, err
}

// afterCancel follows the commit of cancelJob. It publishes the hints, stops the jobs
// below a parent and returns the state of the job.
func afterCancel(ctx context.Context, d *core, c cancellation) (berth.State, error) {
	c.hints.publish(d.hub)
	c.below.publish(d.hub)
	wakeDependents(ctx, d, c.below.ids()...)
	left := followUp
	if err := stopInside(ctx, d, c.below.stopping, &left); err != nil {
		return c.state, err
	}
	if c.job.Kind != berth.KindJob && !c.state.Terminal() {
		// At once, and not only by its coordinator: Temporal may be away.
		return reconcileThrough(ctx, d, c.job.ID, &left)
	}
	if c.job.HasParent && c.state.Terminal() && c.hints.job != "" {
		notifyParents(ctx, d, c.job.ID)
	}
	if c.job.Needed && c.state.Terminal() {
		wakeDependents(ctx, d, c.job.ID)
	}
	return c.state, nil
}

// cancelState changes the state of a locked job and stores the actor and the reason.
// cancel_requested_at keeps the time of the first request.
const cancelState = `
	UPDATE jobs
	SET state = @state, version = version + 1, actor = @actor, reason = @reason,
		cancel_requested_at = coalesce(cancel_requested_at, now())
	WHERE id = @job`

// cancelWaiting cancels a job without capacity and releases its nominations: capacity
// reserved for the repair of its gang, and devices freed by preemption.
func cancelWaiting(ctx context.Context, tx pgx.Tx, job lockedJob, actor string, reason *berth.Reason) error {
	args := namedArgs{"job": job.ID, "state": berth.Canceled, "actor": actor, "reason": reason}
	if _, err := tx.Exec(ctx, cancelState, args); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM nominations WHERE beneficiary = @job`, args)
	return err
}

// withdrawnByCancel explains the end of a member that no machine had claimed.
const withdrawnByCancel = "canceled before a machine took it"

// cancelHolding cancels a job with capacity. It releases the allocations that no agent
// has claimed and orders the stop of the others. It returns the machines to notify, and
// freed if capacity became available in this transaction.
func cancelHolding(ctx context.Context, tx pgx.Tx, job lockedJob, actor string,
	reason *berth.Reason) (told []berth.MachineID, freed bool, err error) {
	args := namedArgs{"job": job.ID, "state": berth.Canceling, "actor": actor, "reason": reason}
	if _, err := tx.Exec(ctx, cancelState, args); err != nil {
		return nil, false, err
	}
	withdrawn, err := withdraw(ctx, tx, job, withdrawnByCancel)
	if err != nil {
		return nil, false, err
	}
	stopped, err := orderStop(ctx, tx, job.Job, berth.Orders{Stop: true})
	if err != nil || !job.Gang() {
		return machines(withdrawn, stopped), len(withdrawn) > 0, err
	}
	// Only a gang has nominations while it holds capacity: room for its repair.
	gone, err := tx.Exec(ctx, `DELETE FROM nominations WHERE beneficiary = @job`, args)
	return machines(withdrawn, stopped), len(withdrawn) > 0 || gone.RowsAffected() > 0, err
}

// stopBatch is the number of jobs that one transaction of stopJobs orders to stop.
// Their rows stay locked until its commit, and reports on their members wait so long.
const stopBatch = 50

// stopJobs requests the cancel of jobs that hold capacity, as RequestCancel does for
// one job. A transaction serves a batch: with one for each job, a busy database
// stopped some twenty jobs a second.
func stopJobs(ctx context.Context, d *core, ids []berth.JobID, actor string, reason *berth.Reason) error {
	for part := range slices.Chunk(ids, stopBatch) {
		var s stopped
		err := d.tx(ctx, func(tx pgx.Tx) error {
			var err error
			s, err = stopHolding(ctx, tx, part, actor, reason)
			return err
		})
		if err != nil {
			return mapError(err, "jobs to stop")
		}
		s.publish(d.hub)
		for _, id := range part {
			if slices.Contains(s.jobs, string(id)) {
				continue
			}
			// Its attempt was settled meanwhile: it may wait for the next one.
			if _, err := requestCancel(ctx, d, "", id, actor, reason, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopped is the effect of stopHolding, to be hinted at after its commit.
type stopped struct {
	jobs     []string
	machines []string
	freed    bool // capacity, or capacity that was nominated for a job
}

// publish sends the hints. It must follow the commit of stopHolding.
func (s stopped) publish(h *Hub) {
	if s.freed {
		h.Publish(TopicQueue, slices.Concat(s.machines, s.jobs)...)
	}
	h.Publish(TopicJob, s.jobs...)
	h.Publish(TopicMachine, s.machines...)
}

// stopHolding is cancelHolding for many jobs. It locks them by id, and then their
// members by id.
func stopHolding(
	ctx context.Context, tx pgx.Tx, ids []berth.JobID, actor string, reason *berth.Reason,
) (s stopped, err error) {
	args := namedArgs{
		"jobs": ids, "state": berth.Canceling, "actor": actor, "reason": reason,
		"stop": berth.Orders{Stop: true}, "forget": berth.Orders{Forget: true},
		"exit": failure.Exit{Cause: failure.CauseNotStarted, Message: withdrawnByCancel, FinishedAt: time.Now().UTC()},
	}
	rows, err := tx.Query(ctx, `
		SELECT id::text
		FROM jobs
		WHERE id = ANY(@jobs::uuid[]) AND kind = 'job' AND state IN ('scheduled', 'running', 'preempting')
		ORDER BY id
		FOR NO KEY UPDATE`, args)
	if err != nil {
		return s, err
	}
	if s.jobs, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(s.jobs) == 0 {
		return s, err
	}
	args["jobs"] = s.jobs
	noteMachine := func(rows pgx.Rows) error {
		machines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		s.machines = append(s.machines, machines...)
		return err
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT 1
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE j.id = ANY(@jobs::uuid[])
		ORDER BY a.id
		FOR NO KEY UPDATE OF a`, args)
	batch.Queue(`
		UPDATE jobs
		SET state = @state, version = version + 1, actor = @actor, reason = @reason,
			cancel_requested_at = coalesce(cancel_requested_at, now())
		WHERE id = ANY(@jobs::uuid[])`, args)
	batch.Queue(`
		UPDATE allocations a
		SET state = 'released', released_at = now(), sealed_at = now(), exit = @exit, orders = a.orders || @forget
		FROM jobs j
		WHERE j.id = ANY(@jobs::uuid[]) AND a.job = j.id AND a.attempt = j.attempt AND a.state = 'reserved'
		RETURNING a.machine_id`, args).Query(func(rows pgx.Rows) error {
		err := noteMachine(rows)
		s.freed = len(s.machines) > 0
		return err
	})
	batch.Queue(`
		UPDATE allocations a
		SET orders = a.orders || @stop || jsonb_strip_nulls(jsonb_build_object('grace_ms', nullif(j.grace_ms, 0))),
			stop_by = least(a.stop_by, now() + j.grace_ms * interval '1 ms')
		FROM jobs j
		WHERE j.id = ANY(@jobs::uuid[]) AND a.job = j.id AND a.attempt = j.attempt AND a.state = 'active'
			AND NOT a.orders ? 'stop'
		RETURNING a.machine_id`, args).Query(noteMachine)
	batch.Queue(`
		DELETE FROM nominations
		WHERE beneficiary = ANY(@jobs::uuid[]) AND 1 < (
			SELECT count(*)
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE j.id = beneficiary)`, args).Exec(func(tag pgconn.CommandTag) error {
		s.freed = s.freed || tag.RowsAffected() > 0
		return nil
	})
	err = tx.SendBatch(ctx, batch).Close()
	slices.Sort(s.machines)
	s.machines = slices.Compact(s.machines)
	return s, err
}
