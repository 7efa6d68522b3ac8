package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// cancelParent requests the end of a locked parent. After the commit none of its children is
// created or placed. Waiting children of a pipeline are canceled here, at every depth;
// Reconcile cancels the rest.
//
// A pipeline that has begun keeps its state while it has final steps, which run once all other
// steps have ended. A repeated request changes nothing, unless it is to cancel these as well.
func cancelParent(ctx context.Context, tx pgx.Tx, job lockedJob, actor string, reason *berth.Reason,
	now bool) (berth.State, ending, error) {
	state := berth.Canceling
	var tally *wire.Tally
	w := withdrawal{parent: job.ID, spare: lifecycle.SpareNone, now: now, actor: actor, reason: reason}
	var below ending
	var err error
	if job.Kind == berth.KindPipeline && job.State != berth.Submitted && !now {
		if err := tx.QueryRow(ctx, `SELECT `+liveFinal("q")+` FROM jobs q WHERE q.id = $1`, job.ID).
			Scan(&w.keeps); err != nil {
			return "", below, err
		}
	}
	if w.keeps {
		state, w.spare = job.State, lifecycle.SpareFinal
		if job.CancelAt != nil {
			return state, below, nil
		}
	}
	if job.Kind == berth.KindPipeline {
		if below, err = cancelBelow(ctx, tx, w); err != nil {
			return "", below, err
		}
	}
	if job.State == berth.Canceling && job.CancelAt == nil { // it stops after a failure, and has failed
		return job.State, below, nil
	}
	if job.State == berth.Submitted { // only then may it end at once, as its children decide
		p, err := lockParent(ctx, tx, job.ID)
		if err != nil {
			return "", below, err
		}
		if state = p.AfterCancel(); state.Terminal() {
			tally = &p.Tally
		}
	}
	_, err = tx.Exec(ctx, `
		UPDATE jobs
		SET state = @state, version = version + 1, actor = @actor, reason = @reason, tally = @tally,
			cancel_requested_at = coalesce(cancel_requested_at, now())
		WHERE id = @job`,
		namedArgs{"job": job.ID, "state": state, "actor": actor, "reason": reason, "tally": tally})
	if err == nil && w.keeps { // a change of state records itself
		err = addEvent(ctx, tx, job.ID, wire.Event{Kind: wire.EventCancelRequested, Actor: actor, Reason: reason,
			Detail: "final steps run"})
	}
	return state, below, err
}

// CancelNow is RequestCancel that also cancels the final steps of a pipeline, at every depth.
func (d *Parents) CancelNow(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string,
	reason *berth.Reason) (berth.State, error) {
	return requestCancel(ctx, d.core, tenant, id, actor, reason, true)
}

// CancelElements requests the end of some elements of an array. Elements that are not rows
// yet are created, so that they are on record, and canceled at once. It returns the number of
// elements that were canceled or ordered to stop. A repeated call is no error. It works in
// batches, each a transaction: after an error the number covers the completed batches.
func (d *Parents) CancelElements(ctx context.Context, tenant berth.TenantID, id berth.JobID, which []spec.IndexRange,
	actor string, reason *berth.Reason) (int, error) {
	indexes, err := d.elementsIn(ctx, tenant, id, which)
	if err != nil {
		return 0, err
	}
	n := 0
	for part := range slices.Chunk(indexes, expandBatch) {
		canceled, err := d.cancelElements(ctx, id, part, actor, reason)
		if n += canceled; err != nil {
			return n, mapError(err, "job "+string(id))
		}
	}
	return n, nil
}

// elementsIn returns the indexes of an array within ranges. No index in the ranges is an
// error of code invalid.
func (d *Parents) elementsIn(ctx context.Context, tenant berth.TenantID, id berth.JobID,
	which []spec.IndexRange) ([]int, error) {
	var kind berth.Kind
	var total int
	var only []int
	err := d.pool.QueryRow(ctx, `
		SELECT kind, coalesce(total, 0), indexes
		FROM jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)`,
		namedArgs{"id": id, "tenant": string(tenant)}).Scan(&kind, &total, &only)
	if err != nil {
		return nil, mapError(err, "job "+string(id))
	}
	if kind != berth.KindArray {
		return nil, berth.Errorf(berth.CodeInvalid, "job %s is not an array and has no elements", id)
	}
	// A null column stands for all indexes from 0 to total-1. A retry may have some of them
	// only.
	if only == nil {
		only = make([]int, total)
		for i := range only {
			only[i] = i
		}
	}
	inside := func(i int) bool {
		return slices.ContainsFunc(which, func(r spec.IndexRange) bool { return r.First <= i && i <= r.Last })
	}
	chosen := slices.DeleteFunc(slices.Clone(only), func(i int) bool { return !inside(i) })
	if len(chosen) == 0 {
		return nil, berth.Errorf(berth.CodeInvalid, "array %s has no such elements (it has %s)", id,
			spec.FormatIndexes(only))
	}
	return chosen, nil
}

// cancelElements cancels one batch of elements, and returns their number.
func (d *Parents) cancelElements(ctx context.Context, id berth.JobID, indexes []int, actor string,
	reason *berth.Reason) (int, error) {
	var did tended
	err := d.tx(ctx, func(tx pgx.Tx) error {
		// The closure may run more than once; see core.tx.
		did = tended{changed: true, queue: true}
		p, err := lockParent(ctx, tx, id)
		// An ended array has no element left to cancel.
		if err != nil || p.State.Terminal() {
			return err
		}
		// make leaves existing elements unchanged, so all indexes have a row afterwards.
		if _, err := p.make(ctx, tx, indexes, actor); err != nil {
			return err
		}
		if did.ending, err = cancelWaitingChildren(ctx, tx, []berth.JobID{id}, indexes,
			withdrawal{parent: id, spare: lifecycle.SpareNone, actor: actor, reason: reason}); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT id::text
			FROM jobs
			WHERE parent = @id AND state IN ('scheduled', 'running', 'preempting')
				AND array_index = ANY(@indexes::int[])`,
			namedArgs{"id": id, "indexes": indexes})
		if err != nil {
			return err
		}
		did.stop, err = pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
		if err != nil || len(did.canceled)+len(did.stop) == 0 {
			return err
		}
		return addEvent(ctx, tx, id, wire.Event{
			Kind: wire.EventCancelRequested, Actor: actor, Reason: reason,
			Detail: "elements " + spec.FormatIndexes(indexes),
		})
	})
	if err != nil {
		return 0, err
	}
	// After the commit: members that run are stopped in separate transactions, below.
	did.publish(d.hub, id)
	d.hub.Publish(TopicPoke, string(id)) // the array may have no live element left
	if err := stopJobs(ctx, d.core, did.stop, actor, reason); err != nil {
		return len(did.canceled), err
	}
	return len(did.canceled) + len(did.stop), nil
}

// releaseChildren ends the hold of all children in a locked parent, at every depth of a
// pipeline. The held time counts neither against the queue deadline nor as age.
func releaseChildren(ctx context.Context, tx pgx.Tx, job lockedJob, actor string) error {
	parents, err := parentsIn(ctx, tx, job.ID, job.Kind)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		WITH held AS (
			SELECT id
			FROM jobs
			WHERE parent = ANY(@parents::uuid[]) AND held AND state NOT IN ('succeeded', 'failed', 'canceled')
			ORDER BY id
			FOR NO KEY UPDATE
		), changed AS (
			UPDATE jobs j
			SET held = false, held_at = NULL, queue_deadline = j.queue_deadline + (now() - j.held_at),
				unaged_ms = j.unaged_ms + (extract(epoch FROM now() - j.held_at) * 1000)::bigint,
				version = j.version + 1, event_seq = j.event_seq + 1, actor = @actor
			FROM held
			WHERE j.id = held.id
			RETURNING j.id, j.event_seq, j.attempt
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail)
		SELECT id, event_seq, clock_timestamp(), 'updated', attempt, @actor, 'released with its parent'
		FROM changed`, namedArgs{"parents": parents, "actor": actor})
	return err
}

// patchChildren applies the parent's update to all live children, at every depth of a
// pipeline. args are the arguments from patchArgs; patchChildren adds to them.
func patchChildren(ctx context.Context, tx pgx.Tx, job lockedJob, args namedArgs, detail string) error {
	// All parents are locked before any of their children, as the lock order requires.
	parents, err := parentsIn(ctx, tx, job.ID, job.Kind)
	if err != nil {
		return err
	}
	args["detail"], args["parents"] = detail, parents
	_, err = tx.Exec(ctx, `
		WITH live AS (
			SELECT id
			FROM jobs
			WHERE parent = ANY(@parents::uuid[]) AND state NOT IN ('succeeded', 'failed', 'canceled')
			ORDER BY id
			FOR NO KEY UPDATE
		), changed AS (
			UPDATE jobs j
			SET priority = coalesce(@priority::integer, j.priority),
				run_limit_ms = coalesce(@run_limit_ms::bigint, j.run_limit_ms),
				labels = (j.labels || @set_labels) - @unset_labels::text[],
				version = j.version + 1, event_seq = j.event_seq + 1, actor = @actor
			FROM live
			WHERE j.id = live.id
			RETURNING j.id, j.event_seq, j.attempt, j.labels
		), specs AS (
			UPDATE job_specs s
			SET spec = s.spec || @spec || jsonb_build_object('labels', changed.labels)
			FROM changed
			WHERE s.job = changed.id
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail)
		SELECT id, event_seq, clock_timestamp(), 'updated', attempt, @actor, @detail
		FROM changed`, args)
	return err
}
